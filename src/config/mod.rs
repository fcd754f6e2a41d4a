//! Configuration: defaults < file < environment < flags, merged as tables and typed once.

use std::path::PathBuf;
use std::time::Duration;

/// Everything that can be configured. `config/default.toml` documents every key.
#[derive(Debug, Clone)]
pub struct Config {
    /// `[server]`
    pub server: Server,
    /// `[[containers]]`: what is served; empty means the embedded demo container.
    pub containers: Vec<ContainerConfig>,
    /// `[limits]`
    pub limits: Limits,
    /// `[cache]`
    pub cache: Cache,
    /// `[cors]`
    pub cors: Cors,
    /// `[compression]`
    pub compression: Compression,
    /// `[log]`
    pub log: Log,
}

/// Where and how connections are accepted.
#[derive(Debug, Clone)]
pub struct Server {
    /// `ADDR:PORT`, port 0 for any free one, or `unix:/path/to/socket`.
    pub listen: Listen,
    /// Path prefix of every route, `""` or `/prefix` without a trailing slash.
    pub base_path: String,
    /// Networks whose `Forwarded` and `X-Forwarded-*` headers are believed.
    pub trusted_proxies: Vec<ipnet::IpNet>,
    /// Time to receive a request's headers.
    pub header_timeout: Duration,
    /// Time from a request's headers to its answer's.
    pub request_timeout: Duration,
    /// Longest pause in which a client takes no byte of an answer.
    pub send_timeout: Duration,
    /// Time that running answers get at shutdown.
    pub shutdown_timeout: Duration,
    /// Most open connections.
    pub max_connections: usize,
    /// Worker threads, also the number of blocks decoded at once; 0 for one per core.
    pub threads: usize,
}

/// A listening address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// TCP.
    Tcp(std::net::SocketAddr),
    /// A Unix domain socket.
    Unix(PathBuf),
}

/// One container to serve.
#[derive(Debug, Clone)]
pub struct ContainerConfig {
    /// First path segment; empty for the only container, which is then the root.
    pub name: String,
    /// Directory on the file system.
    pub root: PathBuf,
    /// What caches downstream may do.
    pub cache_control: CachePolicy,
    /// Which symbolic links are followed.
    pub symlinks: Symlinks,
}

/// What `Cache-Control` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachePolicy {
    /// `public, max-age=31536000, immutable`
    Immutable,
    /// `no-cache`
    Revalidate,
    /// `max-age=N` in whole seconds.
    MaxAge(Duration),
}

/// Which symbolic links are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symlinks {
    /// Those whose target lies inside the container.
    Inside,
    /// None.
    Deny,
    /// All.
    Follow,
}

/// `[limits]`; sizes in bytes.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Largest slice.
    pub slice: u64,
    /// Memory for results being assembled and sent.
    pub slice_budget: u64,
    /// Memory for blocks being decoded, beyond the cache; also the largest block.
    pub decode_budget: u64,
    /// Memory for stored blocks being read and sent, beyond the cache.
    pub transfer_budget: u64,
    /// How many times the bytes of an answer may be decoded for it.
    pub decode_factor: u64,
    /// Largest `attributes.json` that is parsed.
    pub attributes: u64,
    /// Longest wait for a share of a budget.
    pub budget_wait: Duration,
    /// Most requests answered at once; more are refused with 503.
    pub concurrent_requests: usize,
}

/// `[cache]`; sizes in bytes, 0 switches a cache off.
#[derive(Debug, Clone)]
pub struct Cache {
    /// Decoded blocks.
    pub decoded: u64,
    /// Files as stored.
    pub stored: u64,
    /// Eviction.
    pub policy: EvictionPolicy,
    /// When cached attributes are compared with the file's.
    pub recheck_cached_metadata: Recheck,
    /// When cached blocks are compared with the file's.
    pub recheck_cached_data: Recheck,
}

/// How a full cache chooses what to drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// The least recently used entry goes.
    Lru,
    /// An entry used less often than the newcomer goes, else the newcomer.
    TinyLfu,
}

/// When a cached entry is compared with its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recheck {
    /// At every request.
    Always,
    /// Not as long as it is cached.
    Never,
    /// When the last comparison is longer ago.
    After(Duration),
}

/// `[cors]`
#[derive(Debug, Clone)]
pub struct Cors {
    /// Origins that scripts may read answers from; `*` for all.
    pub origins: Vec<String>,
}

/// `[compression]`
#[derive(Debug, Clone)]
pub struct Compression {
    /// Whether whole raw and json slices are compressed when the client accepts it.
    pub slices: bool,
}

/// `[log]`
#[derive(Debug, Clone)]
pub struct Log {
    /// Form of the lines on standard error.
    pub format: LogFormat,
    /// A level or a filter such as `info,n5_server=debug`.
    pub level: String,
}

/// Form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}
