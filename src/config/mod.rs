//! Configuration: defaults < file < environment < flags, merged as tables and typed once.
//!
//! Plain data: nothing here reads a file or the environment. `main` passes their text to [`Config::load`], so that
//! tests need neither. `config/default.toml` ([`DEFAULTS`]) says what every key is for.

mod care;
mod cli;
mod container;
mod default;
mod fault;
mod load;
mod source;
mod validate;
mod values;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use care::{Deny, Inspect, Verify};
pub use cli::{Cli, Command, NewToken};
pub use container::{CachePolicy, ContainerConfig, ContainerDefaults, EntityTag, Symlinks};
pub use fault::{Fault, Faults, Origin};
pub use source::{File, Root, Sources};

/// `config/default.toml`: every key with its default, its unit and what it is for.
pub const DEFAULTS: &str = include_str!("../../config/default.toml");

/// Everything that can be configured. `config/default.toml` documents every key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `[server]`
    pub server: Server,
    /// `[[containers]]`: what is served; empty means the embedded demo container.
    #[serde(default)]
    pub containers: Vec<ContainerConfig>,
    /// `[tls]`
    pub tls: Tls,
    /// `[container_defaults]`: what a container has that does not say otherwise; already applied to `containers`.
    pub container_defaults: ContainerDefaults,
    /// `[limits]`
    pub limits: Limits,
    /// `[clients]`
    pub clients: Clients,
    /// `[cache]`
    pub cache: Cache,
    /// `[access]`
    pub access: Access,
    /// `[jwt]`
    pub jwt: Jwt,
    /// `[cors]`
    pub cors: Cors,
    /// `[compression]`
    pub compression: Compression,
    /// `[log]`
    pub log: Log,
    /// `[tracing]`
    pub tracing: Tracing,
}

/// Where and how connections are accepted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// `ADDR:PORT`, port 0 for any free one, or `unix:/path/to/socket`.
    pub listen: Listen,
    /// Path prefix of every route, `""` or `/prefix` without a trailing slash.
    pub base_path: String,
    /// Networks whose `Forwarded` and `X-Forwarded-*` headers are believed.
    #[serde(with = "values::networks")]
    pub trusted_proxies: Vec<ipnet::IpNet>,
    /// Time to receive a request's headers.
    #[serde(with = "values::duration")]
    pub header_timeout: Duration,
    /// Time from a request's headers to its answer's.
    #[serde(with = "values::duration")]
    pub request_timeout: Duration,
    /// Longest pause in which a client takes no byte of an answer.
    #[serde(with = "values::duration")]
    pub send_timeout: Duration,
    /// Time between not being ready any more and accepting no more, at shutdown.
    #[serde(with = "values::duration")]
    pub drain_delay: Duration,
    /// Which containers must be readable for the server to be ready.
    pub ready: Ready,
    /// Time that running answers get at shutdown.
    #[serde(with = "values::duration")]
    pub shutdown_timeout: Duration,
    /// Most open connections.
    #[serde(deserialize_with = "values::count")]
    pub max_connections: usize,
    /// Worker threads, also the number of blocks decoded at once; 0 for one per core.
    #[serde(deserialize_with = "values::count")]
    pub threads: usize,
    /// Origins whose pages may show this server's pages within theirs; `*` for all.
    pub frame_ancestors: Vec<String>,
    /// Directory of a built viewer, served where it has an `index.html`; empty for none.
    pub viewer: PathBuf,
}

/// `[tls]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// File with the certificate and those that vouch for it, PEM; empty where connections are not encrypted here.
    pub certificate: PathBuf,
    /// File with the certificate's private key, PEM.
    pub key: PathBuf,
    /// Time to agree on a key.
    #[serde(with = "values::duration")]
    pub handshake_timeout: Duration,
    /// For how long browsers shall ask for nothing unencrypted; 0 to say nothing of that.
    #[serde(with = "values::duration")]
    pub hsts: Duration,
}

impl Tls {
    /// Whether connections are encrypted here.
    pub fn is_used(&self) -> bool {
        !self.certificate.as_os_str().is_empty()
    }
}

/// A listening address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Listen {
    /// TCP.
    Tcp(std::net::SocketAddr),
    /// A Unix domain socket.
    Unix(PathBuf),
}

/// Which containers must be readable for the server to be ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ready {
    /// Every one: another replica may be able to read what this one cannot.
    #[default]
    All,
    /// One at least: all replicas share the storage, and what can be read is to be served.
    Any,
}

/// `[limits]`; sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Largest slice.
    #[serde(with = "values::size")]
    pub slice: u64,
    /// Memory for results being assembled and sent.
    #[serde(with = "values::size")]
    pub slice_budget: u64,
    /// Memory for blocks being decoded, beyond the cache; also the largest block.
    #[serde(with = "values::size")]
    pub decode_budget: u64,
    /// Memory for stored blocks being read and sent, beyond the cache.
    #[serde(with = "values::size")]
    pub transfer_budget: u64,
    /// How many times the bytes of an answer may be decoded for it.
    #[serde(deserialize_with = "values::count")]
    pub decode_factor: u64,
    /// Largest `attributes.json` that is interpreted.
    #[serde(with = "values::size")]
    pub attributes: u64,
    /// Longest wait for a share of a budget.
    #[serde(with = "values::duration")]
    pub budget_wait: Duration,
    /// Most requests answered at once; more are refused with 503.
    #[serde(deserialize_with = "values::count")]
    pub concurrent_requests: usize,
}

/// `[clients]`: what one client may take; 0 for no limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clients {
    /// Most open connections of one address.
    #[serde(deserialize_with = "values::count")]
    pub connections: usize,
    /// Most requests of one client that are answered at once.
    #[serde(deserialize_with = "values::count")]
    pub concurrent_requests: usize,
    /// Most bytes of answers that one client gets in a second.
    #[serde(with = "values::size")]
    pub bytes_per_second: u64,
    /// Bytes that a client gets at once after a pause.
    #[serde(with = "values::size")]
    pub burst: u64,
}

/// `[cache]`; sizes in bytes, 0 switches a cache off.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cache {
    /// Decoded blocks.
    #[serde(with = "values::size")]
    pub decoded: u64,
    /// Files as stored.
    #[serde(with = "values::size")]
    pub stored: u64,
    /// Eviction.
    pub policy: EvictionPolicy,
    /// When cached attributes are compared with the file's.
    pub recheck_cached_metadata: Recheck,
    /// When cached blocks are compared with the file's.
    pub recheck_cached_data: Recheck,
}

/// How a full cache chooses what to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EvictionPolicy {
    /// The least recently used entry goes.
    Lru,
    /// An entry used less often than the newcomer goes, else the newcomer.
    TinyLfu,
}

/// When a cached entry is compared with its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Recheck {
    /// At every request.
    Always,
    /// Not as long as it is cached.
    Never,
    /// When the last comparison is longer ago.
    After(Duration),
}

/// `[access]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// What no rule is about.
    pub default: Exposure,
    /// Who may read what, such as `/em/secret = alice @lab`.
    pub rules: Vec<String>,
    /// Who may read `/metrics`, as on the right side of a rule.
    pub metrics: String,
    /// File with the hashes of tokens; empty for none.
    pub tokens: PathBuf,
}

/// Who may read what no rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exposure {
    /// Everybody.
    Public,
    /// Nobody.
    Private,
}

/// `[jwt]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jwt {
    /// JWK set: a URL of the scheme `https`, or a file; empty where JWTs are not accepted.
    pub keys: String,
    /// File with certificates that vouch for that URL; empty for those that browsers trust.
    pub roots: PathBuf,
    /// `iss` of every JWT.
    pub issuer: String,
    /// One of these is in `aud`.
    pub audience: Vec<String>,
    /// Accepted algorithms.
    pub algorithms: Vec<String>,
    /// Claim with the caller's name.
    pub name_claim: String,
    /// Claim with the caller's groups.
    pub groups_claim: String,
    /// By how much clocks may differ.
    #[serde(with = "values::duration")]
    pub leeway: Duration,
    /// How often keys are fetched.
    #[serde(with = "values::duration")]
    pub refresh: Duration,
    /// How often at most, whatever names of keys come.
    #[serde(with = "values::duration")]
    pub refetch: Duration,
    /// How long keys are good for while they cannot be fetched.
    #[serde(with = "values::duration")]
    pub stale: Duration,
}

/// `[cors]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cors {
    /// Origins that scripts may read answers from; `*` for all.
    pub origins: Vec<String>,
    /// Whether browsers may send cookies and client certificates along.
    pub credentials: bool,
    /// Whether preflights for private networks are allowed (`Access-Control-Allow-Private-Network`).
    pub private_network: bool,
}

/// `[compression]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compression {
    /// Whether whole raw and json slices are compressed when the client accepts it.
    pub slices: bool,
}

/// `[log]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// Form of the lines on standard error.
    pub format: LogFormat,
    /// A level or a filter such as `info,n5_server=debug`.
    pub level: String,
}

/// `[tracing]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tracing {
    /// URL of a collector of OpenTelemetry, without `/v1/traces`; empty for none.
    pub otlp_endpoint: String,
    /// Of so many requests one is traced.
    #[serde(deserialize_with = "values::count")]
    pub one_in: u64,
}

/// Form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Config {
    /// Whether it makes a difference who asks.
    pub fn is_guarded(&self) -> bool {
        let Access { default, rules, metrics, tokens } = &self.access;
        let is_all_public = *default == Exposure::Public && rules.is_empty() && metrics == "public";
        !is_all_public || !tokens.as_os_str().is_empty() || !self.jwt.keys.is_empty()
    }

    /// Whether everybody may read everything for want of a rule.
    pub fn is_open(&self) -> bool {
        self.access.default == Exposure::Public && self.access.rules.is_empty()
    }
}
