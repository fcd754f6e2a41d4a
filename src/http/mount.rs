//! A container as it is served: its name, and what caches are told about its objects.

use std::sync::Arc;

use axum::http::HeaderValue;

use crate::container::{Container, Visibility};
use crate::http::caller_view::CallerView;
use crate::http::problem::Problem;
use crate::http::respond::Entity;
use crate::store::Key;

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

    /// Returns the path of a key from the server's root, without slashes at its ends.
    pub(crate) fn path_of(&self, key: &Key) -> String {
        [self.name.as_str(), key.as_str()].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
    }

    /// Returns the entity of a stored object: attributes or a block.
    pub(crate) fn stored_entity<'a>(&self, is_attributes: bool) -> Entity<'a> {
        let media_type = if is_attributes { "application/json" } else { "application/octet-stream" };
        Entity { has_ranges: true, ..Entity::new(media_type, self.found_cache_control.clone()) }
    }

    /// Converts an error about this container. If an object does not exist, caches learn how long that is true.
    pub(crate) fn problem(&self, error: impl Into<Problem>) -> Problem {
        error.into().with_cache_control_if_missing(self.missing_cache_control.clone())
    }

    /// Returns the 404 of a key that does not exist in this container.
    pub(crate) fn not_found(&self) -> Problem {
        self.problem(Problem::not_found())
    }
}
