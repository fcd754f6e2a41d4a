//! The defaults as values; a test checks that they equal `config/default.toml`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::{
    AccessConfig, CacheConfig, ClientsConfig, CompressionConfig, Config, ContainerDefaults, CorsConfig, DefaultAccess,
    EvictionPolicy, JwtConfig, LimitsConfig, ListenAddress, LogConfig, LogFormat, RequiredContainers,
    RevalidationPolicy, ServerConfig, TlsConfig, TracingConfig,
};

/// Text of `config/default.toml`: every key with its default, unit and purpose.
pub const DEFAULTS: &str = include_str!("../../config/default.toml");

const KIB: u64 = 1 << 10;
const MIB: u64 = KIB << 10;
const GIB: u64 = MIB << 10;

impl Default for Config {
    fn default() -> Self {
        Self {
            server: ServerConfig::default(),
            tls: TlsConfig::default(),
            containers: Vec::new(),
            container_defaults: ContainerDefaults::default(),
            limits: LimitsConfig::default(),
            clients: ClientsConfig::default(),
            cache: CacheConfig::default(),
            access: AccessConfig::default(),
            jwt: JwtConfig::default(),
            cors: CorsConfig::default(),
            compression: CompressionConfig { slices: false },
            log: LogConfig::default(),
            tracing: TracingConfig { otlp_endpoint: String::new(), one_in: 100 },
        }
    }
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: ListenAddress::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, 8080))),
            base_path: String::new(),
            trusted_proxies: Vec::new(),
            header_timeout: Duration::from_secs(75),
            request_timeout: Duration::from_secs(60),
            send_timeout: Duration::from_secs(30),
            drain_delay: Duration::from_secs(1),
            ready: RequiredContainers::All,
            shutdown_timeout: Duration::from_secs(30),
            max_connections: 10_240,
            threads: 0,
            frame_ancestors: Vec::new(),
            viewer: "viewer/dist".into(),
        }
    }
}

impl TlsConfig {
    /// Maximum number of concurrent handshakes. Two cores complete a few thousand per second; most of a handshake's
    /// time is network latency.
    pub const MAX_HANDSHAKES: usize = 256;
}

impl Default for TlsConfig {
    fn default() -> Self {
        Self {
            certificate: PathBuf::new(),
            key: PathBuf::new(),
            handshake_timeout: Duration::from_secs(10),
            hsts: Duration::ZERO,
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            slice: 64 * GIB,
            slice_budget: 128 * MIB,
            decode_budget: 80 * MIB,
            transfer_budget: 16 * MIB,
            decode_factor: 16,
            attributes: 16 * MIB,
            budget_wait: Duration::from_secs(10),
            concurrent_requests: 1024,
        }
    }
}

impl Default for ClientsConfig {
    fn default() -> Self {
        Self { connections: 2048, concurrent_requests: 0, bytes_per_second: 0, burst: 64 * MIB }
    }
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            decoded: 256 * MIB,
            stored: 64 * MIB,
            policy: EvictionPolicy::Lru,
            recheck_cached_metadata: RevalidationPolicy::Always,
            recheck_cached_data: RevalidationPolicy::Always,
        }
    }
}

impl Default for AccessConfig {
    fn default() -> Self {
        Self { default: DefaultAccess::Public, rules: Vec::new(), metrics: "public".to_owned(), tokens: PathBuf::new() }
    }
}

impl Default for JwtConfig {
    fn default() -> Self {
        Self {
            keys: String::new(),
            roots: PathBuf::new(),
            issuer: String::new(),
            audience: Vec::new(),
            algorithms: ["RS256", "PS256", "ES256", "ES384", "EdDSA"].map(str::to_owned).to_vec(),
            name_claim: "sub".to_owned(),
            groups_claim: "groups".to_owned(),
            leeway: Duration::from_secs(30),
            refresh: Duration::from_secs(10 * 60),
            refetch: Duration::from_secs(30),
            stale: Duration::from_secs(24 * 60 * 60),
        }
    }
}

impl Default for CorsConfig {
    fn default() -> Self {
        Self { origins: vec!["*".to_owned()], credentials: false, private_network: true }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: "info".to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::{ContainerConfig, ServerConfig};
    use super::*;

    /// Returns default.toml with its commented-out keys (`#key`, not `# prose`) enabled.
    fn uncommented() -> String {
        let uncomment = |line: &'static str| match line.strip_prefix('#') {
            Some(key) if key.starts_with(|c: char| c == '[' || c.is_lowercase()) => key,
            _ => line,
        };
        DEFAULTS.lines().map(uncomment).collect::<Vec<_>>().join("\n")
    }

    fn keys(table: &toml::Table) -> BTreeSet<String> {
        let inner = |value: &toml::Value| value.as_table().or_else(|| value.as_array()?.first()?.as_table()).cloned();
        table
            .iter()
            .flat_map(|(section, value)| match inner(value) {
                Some(inner) => inner.keys().map(|key| format!("{section}.{key}")).collect(),
                None => vec![section.clone()],
            })
            .collect()
    }

    #[test]
    fn default_toml_is_the_default() {
        assert_eq!(toml::from_str::<Config>(DEFAULTS).unwrap(), Config::default());
    }

    #[test]
    fn default_toml_has_every_field_and_nothing_else() {
        let container = ContainerConfig {
            name: String::new(),
            root: "/data/volume.n5".into(),
            cache_control: ContainerDefaults::default().cache_control,
            symlinks: ContainerDefaults::default().symlinks,
            must_be_mount: false,
            entity_tag: ContainerDefaults::default().entity_tag,
        };
        let config = Config { containers: vec![container], ..Config::default() };
        assert_eq!(toml::from_str::<Config>(&uncommented()).unwrap(), config);
        assert_eq!(keys(&uncommented().parse().unwrap()), keys(&toml::Table::try_from(config).unwrap()));
    }

    #[test]
    fn every_key_of_default_toml_is_explained() {
        let mut has_comment = false;
        for line in DEFAULTS.lines() {
            let is_key = line.trim_start_matches('#').split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
            assert!(!is_key || has_comment, "{line:?} follows no comment");
            has_comment = line.starts_with("# ");
        }
    }

    #[test]
    fn the_example_is_valid() {
        let text = include_str!("../../config/example.toml");
        let file = super::super::ConfigFile { name: "example.toml".into(), text: text.into() };
        let config =
            Config::load(&super::super::ConfigSources { file: Some(file), ..super::super::ConfigSources::default() })
                .unwrap();
        assert_eq!(config.containers.len(), 2);
    }

    #[test]
    fn caches_and_budgets_leave_room_below_600_mib() {
        let with_threads =
            |threads| Config { server: ServerConfig { threads, ..ServerConfig::default() }, ..Config::default() };
        assert_eq!(with_threads(2).memory_bound_bytes(), 552 * MIB);
        assert_eq!(with_threads(64).memory_bound_bytes(), (552 + 62 * 8) * MIB);
    }
}
