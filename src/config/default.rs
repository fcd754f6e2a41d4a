//! The defaults, which are those of `config/default.toml`.

use super::{
    AccessConfig, CacheConfig, ClientsConfig, CompressionConfig, Config, ContainerDefaults, CorsConfig, JwtConfig,
    LimitsConfig, LogConfig, ServerConfig, TlsConfig, TracingConfig,
};

/// Text of `config/default.toml`: every key with its default, unit and purpose.
pub const DEFAULTS: &str = include_str!("../../config/default.toml");

impl Default for Config {
    #[expect(clippy::expect_used, reason = "the text is a part of the program, and every test reads it")]
    fn default() -> Self {
        toml::from_str(DEFAULTS).expect("default.toml is a complete configuration")
    }
}

/// Makes the default of a section that of [`Config::default`].
macro_rules! section_defaults {
    ($($section:ident: $type:ty),*) => {$(
        impl Default for $type {
            fn default() -> Self {
                Config::default().$section
            }
        }
    )*};
}

section_defaults!(
    server: ServerConfig, tls: TlsConfig, container_defaults: ContainerDefaults, limits: LimitsConfig,
    clients: ClientsConfig, cache: CacheConfig, access: AccessConfig, jwt: JwtConfig, cors: CorsConfig,
    compression: CompressionConfig, log: LogConfig, tracing: TracingConfig
);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::{ContainerConfig, ServerConfig};
    use super::*;

    const MIB: u64 = 1 << 20;

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
