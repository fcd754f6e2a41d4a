//! Options of the HTTP layer, set by the configuration.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::access::AccessControl;
use crate::config::{ClientsConfig, RequiredContainers};
use crate::http::viewer_files::Viewer;

/// Options of the HTTP layer, for all containers. [`Mount`](crate::http::Mount) has those of one.
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
    /// Limits of each client's requests and bytes. `conn/` limits its connections.
    pub client_limits: ClientsConfig,
    /// Maximum wait for one of the client's request permits, and for an in-flight slot.
    pub budget_wait: Duration,
    /// True if this server terminates TLS.
    pub is_https: bool,
    /// Time for which browsers use encrypted connections only (`Strict-Transport-Security`), in whole seconds.
    pub hsts: Option<Duration>,
    /// Viewer served at `/viewer/`, if there is one.
    pub viewer: Option<Viewer>,
    /// Runtime on which documents are made, which can take a quarter of a second. Without this runtime, documents are
    /// made on the one that received the request.
    pub document_runtime: Option<Handle>,
}
