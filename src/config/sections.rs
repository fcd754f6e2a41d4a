//! The configuration and its sections.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::container::{ContainerConfig, ContainerDefaults};
use super::policies::RequiredContainers;
use super::values::{self, ListenAddress, RevalidationPolicy};

/// The configuration of the server. `config/default.toml` documents every key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Section `[server]`.
    pub server: ServerConfig,
    /// Tables `[[containers]]`: the containers to serve; if empty, the embedded demo container is served.
    #[serde(default)]
    pub containers: Vec<ContainerConfig>,
    /// Section `[tls]`.
    pub tls: TlsConfig,
    /// Section `[container_defaults]`, which is already applied to `containers`.
    pub container_defaults: ContainerDefaults,
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
    /// Maximum time for which a client may accept no bytes of a response.
    #[serde(with = "values::duration")]
    pub send_timeout: Duration,
    /// Time at shutdown in which the server reports that it is not ready but still accepts requests.
    #[serde(with = "values::duration")]
    pub drain_delay: Duration,
    /// Containers that must be readable for the server to be ready.
    pub ready: RequiredContainers,
    /// Time that requests in progress have to finish at shutdown.
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
    /// Directory of a built viewer, served if it contains an `index.html`; empty for none.
    pub viewer: PathBuf,
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

/// Section `[limits]`: bounds on requests and memory; sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsConfig {
    /// Maximum size of a slice.
    #[serde(with = "values::size")]
    pub slice: u64,
    /// Memory for results that are being assembled or sent.
    #[serde(with = "values::size")]
    pub slice_budget: u64,
    /// Memory for blocks that are being decoded, in addition to the cache; also the maximum size of a block.
    #[serde(with = "values::size")]
    pub decode_budget: u64,
    /// Memory for stored blocks that are being read or sent, in addition to the cache.
    #[serde(with = "values::size")]
    pub transfer_budget: u64,
    /// Maximum ratio of the bytes decoded for a response to the bytes of the response.
    #[serde(deserialize_with = "values::count")]
    pub decode_factor: u64,
    /// Maximum size of an `attributes.json` that is interpreted.
    #[serde(with = "values::size")]
    pub attributes: u64,
    /// Maximum time to wait for a permit of a budget.
    #[serde(with = "values::duration")]
    pub budget_wait: Duration,
    /// Maximum number of concurrent requests; further ones wait up to `budget_wait`, then get 503.
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

/// Section `[cache]`: sizes in bytes, where 0 disables a cache, and policies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheConfig {
    /// Size of the cache of decoded blocks.
    #[serde(with = "values::size")]
    pub decoded: u64,
    /// Size of the cache of files as stored.
    #[serde(with = "values::size")]
    pub stored: u64,
    /// Eviction policy.
    pub policy: EvictionPolicy,
    /// Policy for comparing cached attributes with their file.
    pub recheck_cached_metadata: RevalidationPolicy,
    /// Policy for comparing cached blocks with their file.
    pub recheck_cached_data: RevalidationPolicy,
}

/// Policy by which a full cache chooses the entry to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EvictionPolicy {
    /// Drops the least recently used entry.
    Lru,
    /// Drops an entry that was used less often than the new one, otherwise the new one.
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
    /// Callers that may read `/metrics`, written like the right side of a rule.
    pub metrics: String,
    /// File with the hashes of tokens; empty if there is none.
    pub tokens: PathBuf,
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
    /// PEM file of root certificates for that URL; empty for the roots that browsers trust.
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
    /// Sampling interval: one request in this many is traced.
    #[serde(deserialize_with = "values::count")]
    pub one_in: u64,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

impl Config {
    /// Returns true if access control is configured: responses may then depend on the caller.
    pub fn has_access_control(&self) -> bool {
        let AccessConfig { default, rules, metrics, tokens } = &self.access;
        let is_all_public = *default == DefaultAccess::Public && rules.is_empty() && metrics == "public";
        !is_all_public || !tokens.as_os_str().is_empty() || !self.jwt.keys.is_empty()
    }

    /// Returns true if there is no access rule and everyone may read everything.
    pub fn is_fully_public(&self) -> bool {
        self.access.default == DefaultAccess::Public && self.access.rules.is_empty()
    }
}
