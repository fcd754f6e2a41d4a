//! A container as it is served: its name, and what caches are told about its objects.

use std::sync::Arc;

use axum::http::HeaderValue;

use crate::container::{Container, Visibility};
use crate::http::caller_view::CallerView;

/// A container and the name under which it is served.
#[derive(Debug, Clone)]
pub struct Mount {
    /// First path segment; empty for a single container that is served at the root.
    pub name: String,
    /// The container.
    pub container: Container,
    /// `Cache-Control` of responses for objects that exist.
    pub found_cache_control: HeaderValue,
    /// `Cache-Control` of responses for objects that do not exist.
    pub missing_cache_control: HeaderValue,
}

impl Mount {
    /// Returns the mount restricted to what the caller sees.
    pub(crate) fn visible_to(&self, caller_view: &Arc<CallerView>) -> Self {
        let visibility: Arc<dyn Visibility> = Arc::<CallerView>::clone(caller_view);
        Self { container: self.container.with_visibility(visibility), ..self.clone() }
    }
}
