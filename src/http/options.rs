//! What the HTTP layer is told by the configuration.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::{Limits, Viewer};
use crate::access::Control;

/// What the HTTP layer itself is told; everything else it gets from the containers.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a setting of its own")]
pub struct Options {
    /// Prefix of every path, empty or `/prefix`.
    pub base_path: String,
    /// Networks whose `Forwarded` and `X-Forwarded-*` headers are believed.
    pub trusted_proxies: Vec<ipnet::IpNet>,
    /// Longest time from a request's headers to its answer's.
    pub request_timeout: Duration,
    /// Which containers must be readable for the server to be ready.
    pub ready: Ready,
    /// Most requests answered at once.
    pub concurrent_requests: usize,
    /// Origins that scripts may read answers from; `*` for all.
    pub origins: Vec<String>,
    /// Whether whole raw and json slices are compressed when the client accepts it.
    pub compress_slices: bool,
    /// Whether browsers may send cookies along; for listed origins only.
    pub credentials: bool,
    /// Whether preflights for private networks are allowed.
    pub private_network: bool,
    /// Who may read what; without it everybody may read everything.
    pub control: Option<Arc<Control>>,
    /// Origins that may show pages within theirs; `*` for all, none for none.
    pub frame_ancestors: Vec<String>,
    /// What one client may take.
    pub clients: Limits,
    /// Whether connections are encrypted here.
    pub is_https: bool,
    /// For how long browsers shall ask for nothing unencrypted; in whole seconds.
    pub hsts: Option<Duration>,
    /// What is served at `/viewer/`, where there is one.
    pub viewer: Option<Viewer>,
    /// Where documents are made, which can take a quarter of a second; where the request came without one.
    pub documents: Option<Handle>,
}

/// Which containers must be readable for the server to be ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ready {
    /// Every one.
    All,
    /// One at least.
    Any,
}
