//! Options of the HTTP layer, set by the configuration.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::access::AccessControl;
pub use crate::config::RequiredContainers;
use crate::http::viewer_files::Viewer;

/// Options of the HTTP layer itself. Everything else comes from the containers.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each flag is an independent setting")]
pub struct HttpOptions {
    /// Prefix of every path, empty or `/prefix`.
    pub base_path: String,
    /// Networks of trusted proxies, whose `Forwarded` and `X-Forwarded-*` headers are used.
    pub trusted_proxies: Vec<ipnet::IpNet>,
    /// Maximum time from a request's headers to the response's headers.
    pub request_timeout: Duration,
    /// Containers that must be readable for the server to be ready.
    pub required_containers: RequiredContainers,
    /// Maximum number of requests that are handled concurrently.
    pub concurrent_requests: usize,
    /// Origins whose scripts may read responses; `*` for all.
    pub cors_origins: Vec<String>,
    /// True if whole raw and json slices are compressed when the client accepts it.
    pub compress_slices: bool,
    /// True if browsers may send cookies; applies to listed origins only.
    pub cors_credentials: bool,
    /// True if preflights for private networks are allowed.
    pub cors_private_network: bool,
    /// Access control; without it everything is public.
    pub access_control: Option<Arc<AccessControl>>,
    /// Origins that may embed pages of this server in theirs; `*` for all, empty for none.
    pub frame_ancestors: Vec<String>,
    /// Limits of each client.
    pub client_limits: ClientLimits,
    /// True if this server terminates TLS.
    pub is_https: bool,
    /// Time for which browsers use encrypted connections only (`Strict-Transport-Security`), in whole seconds.
    pub hsts: Option<Duration>,
    /// Viewer served at `/viewer/`, if there is one.
    pub viewer: Option<Viewer>,
    /// Runtime on which documents are made, which can take a quarter of a second. Without it, they are made on the
    /// runtime that received the request.
    pub document_runtime: Option<Handle>,
}

/// Limits of each client; 0 for no limit.
#[derive(Debug, Clone, Copy)]
pub struct ClientLimits {
    /// Maximum number of concurrent requests; a request counts until the last byte of its response is sent.
    pub requests: usize,
    /// Maximum bytes of response bodies per second.
    pub bytes_per_second: u64,
    /// Bytes that may be sent at once after a pause.
    pub burst_bytes: u64,
    /// Longest wait for another request of the client to end, and for admission.
    pub max_wait: Duration,
}

impl ClientLimits {
    /// Returns true if neither requests nor bytes are limited.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.requests == 0 && self.bytes_per_second == 0
    }
}
