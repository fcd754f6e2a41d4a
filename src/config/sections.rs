//! The configuration and its sections. Their defaults come from `config/default.toml`.
//!
//! To add a key, start with a field of its section in this file, and follow "A config key" in `CONTRIBUTING.md`.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::root_address::RootAddress;
use super::store_settings::StoreSettings;
use super::values::{self, CacheControl, ListenAddress, MemoryLimit, MinFree, RevalidationPolicy};

/// Text of `config/default.toml`: every key with its default, unit and purpose.
pub const DEFAULTS: &str = include_str!("../../config/default.toml");

/// The configuration of the server. `config/default.toml` documents every key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Section `[server]`.
    pub server: ServerConfig,
    /// Tables `[[containers]]`: the containers to serve. If there are none, the embedded demo container is served.
    #[serde(default)]
    pub containers: Vec<ContainerConfig>,
    /// Section `[tls]`.
    pub tls: TlsConfig,
    /// Section `[container_defaults]`, which is already applied to `containers`.
    pub container_defaults: ContainerDefaults,
    /// Section `[memory]`.
    pub memory: MemoryConfig,
    /// Section `[limits]`.
    pub limits: LimitsConfig,
    /// Section `[clients]`.
    pub clients: ClientsConfig,
    /// Section `[cache]`.
    pub cache: CacheConfig,
    /// Section `[access]`.
    pub access: AccessConfig,
    /// Section `[jwt]`.
    pub jwt: JwtConfig,
    /// Section `[cors]`.
    pub cors: CorsConfig,
    /// Section `[compression]`.
    pub compression: CompressionConfig,
    /// Section `[log]`.
    pub log: LogConfig,
    /// Section `[tracing]`.
    pub tracing: TracingConfig,
}

/// Section `[server]`: listening address, timeouts, and limits of connections.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Listening address: `ADDR:PORT`, where port 0 means any free port, or `unix:/path/to/socket`.
    pub listen: ListenAddress,
    /// Path prefix of every route: `""`, or `/prefix` without a trailing slash.
    pub base_path: String,
    /// Networks whose `Forwarded` and `X-Forwarded-*` headers are trusted.
    #[serde(with = "values::networks")]
    pub trusted_proxies: Vec<ipnet::IpNet>,
    /// Time limit for receiving a request's headers.
    #[serde(with = "values::duration")]
    pub header_timeout: Duration,
    /// Time limit from a request's headers to its response's headers.
    #[serde(with = "values::duration")]
    pub request_timeout: Duration,
    /// Maximum time a client may go without accepting any bytes of a response.
    #[serde(with = "values::duration")]
    pub send_timeout: Duration,
    /// Time for which a server that shuts down still accepts requests, but reports that it is not ready.
    #[serde(with = "values::duration")]
    pub drain_delay: Duration,
    /// Containers that must be readable for the server to be ready.
    pub ready: RequiredContainers,
    /// Time for which a server that shuts down waits for requests in progress.
    #[serde(with = "values::duration")]
    pub shutdown_timeout: Duration,
    /// Maximum number of open connections.
    #[serde(deserialize_with = "values::count")]
    pub max_connections: usize,
    /// Number of worker threads and of blocks decoded concurrently; 0 means one per core.
    #[serde(deserialize_with = "values::count")]
    pub threads: usize,
    /// Origins whose pages may embed this server's pages; `*` for all.
    pub frame_ancestors: Vec<String>,
    /// Directory of a built viewer, served if it contains an `index.html`; `auto` for the one that was installed with the
    /// program; empty for none.
    pub viewer: PathBuf,
}

/// Containers that must be readable for the server to be ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RequiredContainers {
    /// All containers. If one cannot be read, load balancers send requests to other replicas, which may be able to.
    #[default]
    All,
    /// At least one container. Replicas that share their storage then keep the readable containers in service.
    Any,
}

/// Section `[tls]`: encryption of connections.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// PEM file with the certificate and its chain; empty if this server does not encrypt connections.
    pub certificate: PathBuf,
    /// PEM file with the certificate's private key.
    pub key: PathBuf,
    /// Time limit for a TLS handshake.
    #[serde(with = "values::duration")]
    pub handshake_timeout: Duration,
    /// `max-age` of `Strict-Transport-Security`; 0 omits the header.
    #[serde(with = "values::duration")]
    pub hsts: Duration,
}

impl TlsConfig {
    /// Maximum number of concurrent handshakes. Two cores complete a few thousand per second; most of a handshake's
    /// time is network latency.
    pub const MAX_HANDSHAKES: usize = 256;

    /// Returns true if this server encrypts connections.
    pub fn is_enabled(&self) -> bool {
        !self.certificate.as_os_str().is_empty()
    }
}

/// A table of `[[containers]]`: a container to serve.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerConfig {
    /// First path segment; empty if this is the only container and is served at the root.
    #[serde(default)]
    pub name: String,
    /// Directory of the container, or its address in an object store or on an HTTP server.
    #[serde(default)]
    pub root: RootAddress,
    /// Cache policy for browsers and proxies.
    #[serde(default)]
    pub cache_control: CacheControl,
    /// Symbolic links that are followed.
    #[serde(default)]
    pub symlinks: SymlinkPolicy,
    /// True if the container is served only while a file system is mounted at its directory.
    #[serde(default)]
    pub must_be_mount: bool,
    /// Properties of a file from which its entity tag is made.
    #[serde(default)]
    pub entity_tag: EntityTagSource,
    /// Policy for comparing cached attributes with the store; `None` for the default of the kind of root.
    #[serde(default, with = "values::auto_policy")]
    pub recheck_cached_metadata: Option<RevalidationPolicy>,
    /// Policy for comparing cached blocks with the store; `None` for the default of the kind of root.
    #[serde(default, with = "values::auto_policy")]
    pub recheck_cached_data: Option<RevalidationPolicy>,
    /// Time for which a missing object counts as missing; `None` for the default of the kind of root.
    #[serde(default, with = "values::auto_duration")]
    pub remember_missing: Option<Duration>,
    /// True if the container never changes, so that nothing cached is compared with the store.
    #[serde(default)]
    pub immutable: bool,
    /// Number whose change makes the caches forget the container.
    #[serde(default, deserialize_with = "values::count")]
    pub cache_generation: u64,
    /// Section `[containers.store]`: access to the store of a remote container.
    #[serde(default)]
    pub store: StoreSettings,
}

/// Settings of a container or of `container_defaults` that have bounds.
#[derive(Debug, Clone, Copy)]
pub(super) struct ContainerSettings<'a> {
    pub(super) recheck_cached_metadata: Option<RevalidationPolicy>,
    pub(super) recheck_cached_data: Option<RevalidationPolicy>,
    pub(super) remember_missing: Option<Duration>,
    pub(super) store: &'a StoreSettings,
}

impl ContainerDefaults {
    pub(super) fn freshness_and_store(&self) -> ContainerSettings<'_> {
        let Self { recheck_cached_metadata, recheck_cached_data, remember_missing, ref store, .. } = *self;
        ContainerSettings { recheck_cached_metadata, recheck_cached_data, remember_missing, store }
    }
}

impl ContainerConfig {
    pub(super) fn freshness_and_store(&self) -> ContainerSettings<'_> {
        let Self { recheck_cached_metadata, recheck_cached_data, remember_missing, ref store, .. } = *self;
        ContainerSettings { recheck_cached_metadata, recheck_cached_data, remember_missing, store }
    }

    /// Returns the policy for comparing cached attributes with the store. `local` is the policy for local directories.
    pub fn metadata_policy(&self, local: RevalidationPolicy) -> RevalidationPolicy {
        const REMOTE: RevalidationPolicy = RevalidationPolicy::After(Duration::from_secs(60));
        self.policy(self.recheck_cached_metadata, local, REMOTE)
    }

    /// Returns the policy for comparing cached blocks with the store. `local` is the policy for local directories.
    pub fn data_policy(&self, local: RevalidationPolicy) -> RevalidationPolicy {
        const REMOTE: RevalidationPolicy = RevalidationPolicy::After(Duration::from_secs(60 * 60));
        self.policy(self.recheck_cached_data, local, REMOTE)
    }

    /// Returns the policy for asking the store again for objects that were missing; `None` if such objects have the
    /// policies of attributes and blocks.
    pub fn missing_policy(&self) -> Option<RevalidationPolicy> {
        const REMOTE: Duration = Duration::from_secs(60);
        if self.immutable {
            return self.is_remote().then_some(RevalidationPolicy::Never);
        }
        self.remember_missing.or(self.is_remote().then_some(REMOTE)).map(RevalidationPolicy::After)
    }

    fn policy(
        &self,
        configured: Option<RevalidationPolicy>,
        local: RevalidationPolicy,
        remote: RevalidationPolicy,
    ) -> RevalidationPolicy {
        match configured {
            _ if self.immutable => RevalidationPolicy::Never,
            Some(policy) => policy,
            None if self.is_remote() => remote,
            None => local,
        }
    }

    /// Returns true if the root is not a directory of this machine.
    pub fn is_remote(&self) -> bool {
        matches!(self.root, RootAddress::Remote(_))
    }
}

/// Section `[container_defaults]`: settings of containers that do not override them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerDefaults {
    /// Cache policy for browsers and proxies.
    pub cache_control: CacheControl,
    /// Symbolic links that are followed.
    pub symlinks: SymlinkPolicy,
    /// True if the container is served only while a file system is mounted at its directory.
    pub must_be_mount: bool,
    /// Properties of a file from which its entity tag is made.
    pub entity_tag: EntityTagSource,
    /// Policy for comparing cached attributes with the store; `None` for the default of the kind of root.
    #[serde(with = "values::auto_policy")]
    pub recheck_cached_metadata: Option<RevalidationPolicy>,
    /// Policy for comparing cached blocks with the store; `None` for the default of the kind of root.
    #[serde(with = "values::auto_policy")]
    pub recheck_cached_data: Option<RevalidationPolicy>,
    /// Time for which a missing object counts as missing; `None` for the default of the kind of root.
    #[serde(with = "values::auto_duration")]
    pub remember_missing: Option<Duration>,
    /// True if the container never changes, so that nothing cached is compared with the store.
    pub immutable: bool,
    /// Number whose change makes the caches forget the containers.
    #[serde(deserialize_with = "values::count")]
    pub cache_generation: u64,
    /// Section `[container_defaults.store]`: access to the stores of remote containers.
    pub store: StoreSettings,
}

/// Policy for symbolic links below the root of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SymlinkPolicy {
    /// Follow links whose target lies below the root, whether the link is relative or absolute.
    #[default]
    Inside,
    /// Follow no link.
    Deny,
    /// Follow all links.
    Follow,
}

impl SymlinkPolicy {
    /// Returns the name of the policy in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inside => "inside",
            Self::Deny => "deny",
            Self::Follow => "follow",
        }
    }
}

/// Properties of a file from which its entity tag is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntityTagSource {
    /// Length and modification time. Copies of a file on other machines have the same tag. If a file is replaced by
    /// another of the same length and time, the tag does not change.
    #[default]
    Mtime,
    /// Length, modification time, change time and inode. The tag changes even if a file is replaced by another of the
    /// same length and modification time. The change time is sent as `Last-Modified`.
    Inode,
}

/// Section `[memory]`: the memory of the process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryConfig {
    /// Maximum memory of the process, which the caches and budgets share that have no size of their own.
    pub limit: MemoryLimit,
    /// Memory of the system; `None` if it is not known. [`MemoryLimit::Auto`] takes a quarter of it. Not a setting.
    #[serde(skip)]
    pub system: Option<SystemMemory>,
    /// Sizes of a running server, which a reload keeps if it can. Not a setting.
    #[serde(skip)]
    pub(super) in_force: Option<MemorySizes>,
}

/// Amount of memory that the system has for this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SystemMemory {
    /// Number of bytes.
    pub bytes: u64,
    /// Part of the system that has this memory.
    pub source: SystemMemorySource,
}

/// Origin of a [`SystemMemory`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SystemMemorySource {
    /// The memory of the machine.
    Machine,
    /// The lowest limit of the control groups of the process, which is below the memory of the machine.
    ControlGroup,
}

/// Sizes of the caches and budgets that share `memory.limit`, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemorySizes {
    /// Size of the cache of decoded blocks, `cache.decoded`.
    pub decoded_cache: u64,
    /// Size of the cache of files as stored, `cache.stored`.
    pub stored_cache: u64,
    /// Memory for slices, `limits.slice_budget`.
    pub slice_budget: u64,
    /// Memory for blocks that are being decoded, `limits.decode_budget`.
    pub decode_budget: u64,
    /// Memory for stored blocks that are being read or sent, `limits.transfer_budget`.
    pub transfer_budget: u64,
}

/// Section `[limits]`: bounds on requests and memory; sizes in bytes, where `None` is a share of `memory.limit`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsConfig {
    /// Maximum size of a slice.
    #[serde(with = "values::size")]
    pub slice: u64,
    /// Memory for results that are being assembled or sent.
    #[serde(with = "values::auto_size")]
    pub slice_budget: Option<u64>,
    /// Memory for blocks that are being decoded, in addition to the cache; also the maximum size of a block.
    #[serde(with = "values::auto_size")]
    pub decode_budget: Option<u64>,
    /// Memory for stored blocks that are being read or sent, in addition to the cache.
    #[serde(with = "values::auto_size")]
    pub transfer_budget: Option<u64>,
    /// Maximum ratio of the bytes decoded for a response to the bytes of the response.
    #[serde(deserialize_with = "values::count")]
    pub decode_factor: u64,
    /// Maximum size of an `attributes.json` that is interpreted.
    #[serde(with = "values::size")]
    pub attributes: u64,
    /// Maximum time to wait for a permit of a budget.
    #[serde(with = "values::duration")]
    pub budget_wait: Duration,
    /// Maximum number of concurrent requests. Further ones wait up to `budget_wait`, and are then refused with 503.
    #[serde(deserialize_with = "values::count")]
    pub concurrent_requests: usize,
}

/// Section `[clients]`: limits of each client; 0 means no limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientsConfig {
    /// Maximum number of open connections from one address.
    #[serde(deserialize_with = "values::count")]
    pub connections: usize,
    /// Maximum number of concurrent requests of one client.
    #[serde(deserialize_with = "values::count")]
    pub concurrent_requests: usize,
    /// Maximum rate of response bytes to one client.
    #[serde(with = "values::size")]
    pub bytes_per_second: u64,
    /// Number of bytes that a client gets at once after a pause, before the rate applies.
    #[serde(with = "values::size")]
    pub burst: u64,
}

/// Section `[cache]`: sizes in bytes, where 0 disables a cache and `None` is a share of `memory.limit`, and policies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheConfig {
    /// Size of the cache of decoded blocks.
    #[serde(with = "values::auto_size")]
    pub decoded: Option<u64>,
    /// Size of the cache of files as stored.
    #[serde(with = "values::auto_size")]
    pub stored: Option<u64>,
    /// Eviction policy.
    pub policy: EvictionPolicy,
    /// Policy for comparing cached attributes with their file.
    pub recheck_cached_metadata: RevalidationPolicy,
    /// Policy for comparing cached blocks with their file.
    pub recheck_cached_data: RevalidationPolicy,
    /// Section `[cache.disk]`.
    pub disk: DiskCacheConfig,
}

/// Section `[cache.disk]`: a cache of remote objects on a local disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskCacheConfig {
    /// Directory of the cache; empty if there is none.
    pub path: PathBuf,
    /// Maximum size of the cache on the disk.
    #[serde(with = "values::size")]
    pub size: u64,
    /// Free space that the cache leaves on the file system.
    pub min_free: MinFree,
}

impl DiskCacheConfig {
    /// Returns true if there is a cache on disk.
    pub fn is_enabled(&self) -> bool {
        !self.path.as_os_str().is_empty()
    }
}

/// Policy of a full cache for the choice of the entry to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EvictionPolicy {
    /// Drops the least recently used entry.
    Lru,
    /// Drops an entry that was used less often than the new one. If there is none, the new one is not cached.
    TinyLfu,
}

/// Section `[access]`: access control.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessConfig {
    /// Access to paths that no rule covers.
    pub default: DefaultAccess,
    /// Access rules, such as `/em/secret = alice @lab`.
    pub rules: Vec<String>,
    /// Callers that may read `/metrics`, in the syntax of the right side of a rule.
    pub metrics: String,
    /// File with the hashes of tokens; empty if there is none.
    pub tokens: PathBuf,
    /// True if a 401 also has the challenge of HTTP Basic, at which browsers ask for a name and a password.
    pub basic_challenge: bool,
}

/// Access to paths that no rule covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DefaultAccess {
    /// Everyone may read them.
    Public,
    /// No one may read them.
    Private,
}

/// Section `[jwt]`: JWTs of an issuer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwtConfig {
    /// `https` URL or file of a JWK set; empty if JWTs are not accepted.
    pub keys: String,
    /// PEM file of root certificates for a URL in `keys`; empty for the roots that browsers trust.
    pub roots: PathBuf,
    /// Required value of `iss`.
    pub issuer: String,
    /// Accepted values of `aud`; a JWT must have one of them.
    pub audience: Vec<String>,
    /// Accepted algorithms.
    pub algorithms: Vec<String>,
    /// Claim with the caller's name.
    pub name_claim: String,
    /// Claim with the caller's groups.
    pub groups_claim: String,
    /// Allowed difference between the issuer's clock and this server's.
    #[serde(with = "values::duration")]
    pub leeway: Duration,
    /// Interval between regular fetches of the keys.
    #[serde(with = "values::duration")]
    pub refresh: Duration,
    /// Minimum interval between fetches, even if JWTs name unknown keys.
    #[serde(with = "values::duration")]
    pub refetch: Duration,
    /// Maximum age of keys that stay in use while they cannot be fetched.
    #[serde(with = "values::duration")]
    pub stale: Duration,
}

/// Section `[cors]`: cross-origin requests of browsers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorsConfig {
    /// Origins whose scripts may read responses; `*` for all.
    pub origins: Vec<String>,
    /// True if browsers may send cookies and client certificates.
    pub credentials: bool,
    /// True if preflights for private networks are allowed (`Access-Control-Allow-Private-Network`).
    pub private_network: bool,
}

/// Section `[compression]`: compression of responses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompressionConfig {
    /// True if raw and JSON slices that are not streamed are compressed for clients that accept it.
    pub slices: bool,
}

/// Section `[log]`: log lines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// Format of the lines on standard error.
    pub format: LogFormat,
    /// Level, or filter such as `info,n5_server=debug`.
    pub level: String,
}

/// Section `[tracing]`: traces of requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracingConfig {
    /// URL of an OpenTelemetry collector, without `/v1/traces`; empty for none.
    pub otlp_endpoint: String,
    /// Sampling interval: the server traces one of every `one_in` requests.
    #[serde(deserialize_with = "values::count")]
    pub one_in: u64,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// Text, one line per event.
    Text,
    /// One JSON object per line.
    Json,
}

impl Config {
    /// Returns true if access control is configured: responses may then depend on the caller.
    pub fn has_access_control(&self) -> bool {
        // The challenge alone restricts nothing.
        let AccessConfig { default, rules, metrics, tokens: _, basic_challenge: _ } = &self.access;
        let is_all_public = *default == DefaultAccess::Public && rules.is_empty() && metrics == "public";
        !is_all_public || self.authenticates_callers()
    }

    /// Returns true if there are tokens of a file or of an issuer.
    pub fn authenticates_callers(&self) -> bool {
        !self.access.tokens.as_os_str().is_empty() || !self.jwt.keys.is_empty()
    }

    /// Returns true if there is no access rule and everyone may read everything.
    pub fn is_fully_public(&self) -> bool {
        self.access.default == DefaultAccess::Public && self.access.rules.is_empty()
    }
}

impl Default for Config {
    #[expect(clippy::expect_used, reason = "the text is a part of the program, and every test reads it")]
    fn default() -> Self {
        toml::from_str(DEFAULTS).expect("default.toml is a complete configuration")
    }
}

/// Implements `Default` for sections, with the values of [`Config::default`].
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
    server: ServerConfig, tls: TlsConfig, container_defaults: ContainerDefaults, memory: MemoryConfig,
    limits: LimitsConfig, clients: ClientsConfig, cache: CacheConfig, access: AccessConfig, jwt: JwtConfig, cors: CorsConfig,
    compression: CompressionConfig, log: LogConfig, tracing: TracingConfig
);

impl Default for StoreSettings {
    fn default() -> Self {
        ContainerDefaults::default().store
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
                Some(inner) => keys(&inner).into_iter().map(|key| format!("{section}.{key}")).collect(),
                None => vec![section.clone()],
            })
            .collect()
    }

    #[test]
    fn default_toml_has_every_field_and_nothing_else() {
        let container = ContainerConfig {
            name: String::new(),
            root: RootAddress::Local("/data/volume.n5".into()),
            ..ContainerConfig::default()
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
    fn caches_and_budgets_leave_room_below_600_mib() {
        let with_threads =
            |threads| Config { server: ServerConfig { threads, ..ServerConfig::default() }, ..Config::default() };
        assert_eq!(with_threads(2).memory_bound_bytes(), 552 * MIB);
        assert_eq!(with_threads(64).memory_bound_bytes(), (552 + 62 * 8) * MIB);
    }
}
