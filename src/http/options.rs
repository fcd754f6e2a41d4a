//! The options of the HTTP layer.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::access::AccessControl;
use crate::config::{ClientsConfig, Config, RequiredContainers};
use crate::http::viewer_files::Viewer;

/// Options of the HTTP layer that apply to all containers. [`Mount`](crate::http::Mount) has the options of one
/// container.
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
    /// True if a 401 also has the challenge of HTTP Basic, at which browsers ask for a name and a password.
    pub basic_challenge: bool,
    /// Origins whose pages may embed pages of this server; `*` for all, empty for none.
    pub frame_ancestors: Vec<String>,
    /// Limits on the requests and bytes of each client. The limit on connections applies in `conn/`.
    pub client_limits: ClientsConfig,
    /// Maximum wait for one of the client's request permits, and for an in-flight slot.
    pub budget_wait: Duration,
    /// True if this server terminates TLS.
    pub is_https: bool,
    /// Time for which browsers use encrypted connections only (`Strict-Transport-Security`), in whole seconds.
    pub hsts: Option<Duration>,
    /// Viewer served at `/viewer/`, if there is one.
    pub viewer: Option<Viewer>,
    /// Runtime that makes documents, because that can take a quarter of a second. If there is none, documents are made
    /// on the runtime that received the request.
    pub document_runtime: Option<Handle>,
}

impl HttpOptions {
    /// Returns the options of a configuration, without access control, viewer and document runtime.
    pub fn new(config: &Config) -> Self {
        Self {
            base_path: config.server.base_path.clone(),
            trusted_proxies: config.server.trusted_proxies.clone(),
            request_timeout: config.server.request_timeout,
            required_containers: config.server.ready,
            concurrent_requests: config.limits.concurrent_requests,
            cors_origins: config.cors.origins.clone(),
            compress_slices: config.compression.slices,
            cors_credentials: config.cors.credentials,
            cors_private_network: config.cors.private_network,
            access_control: None,
            basic_challenge: config.access.basic_challenge,
            frame_ancestors: config.server.frame_ancestors.clone(),
            client_limits: config.clients.clone(),
            budget_wait: config.limits.budget_wait,
            is_https: config.tls.is_enabled(),
            hsts: Some(config.tls.hsts).filter(|age| config.tls.is_enabled() && !age.is_zero()),
            viewer: None,
            document_runtime: None,
        }
    }
}
