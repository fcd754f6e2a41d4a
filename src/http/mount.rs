//! A container as it is served: its name, the `Cache-Control` of its objects, and the part that a caller may see.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, HeaderMap, VARY};

use crate::access::{AccessControl, Caller, Decision};
use crate::container::{Container, Visibility};
use crate::http::problem::Problem;
use crate::http::respond::Entity;
use crate::store::Key;

/// A container and the name under which it is served.
#[derive(Debug, Clone)]
pub struct Mount {
    /// First path segment; empty for a single container that is served at the root.
    pub name: String,
    /// Name that people know the container by: that of its directory, without `.n5`; empty if there is none.
    pub title: String,
    /// The container.
    pub container: Container,
    /// `Cache-Control` of responses for objects that exist.
    pub found_cache_control: HeaderValue,
    /// `Cache-Control` of responses for objects that do not exist.
    pub missing_cache_control: HeaderValue,
}

impl Mount {
    /// Returns the path of a key from the server's root, without slashes at its ends.
    pub(crate) fn path_of(&self, key: &Key) -> String {
        path_in_mount(&self.name, key)
    }

    /// Returns the entity of a stored object: attributes or a block.
    pub(crate) fn stored_entity<'a>(&self, is_attributes: bool) -> Entity<'a> {
        let media_type = if is_attributes { "application/json" } else { "application/octet-stream" };
        Entity { has_ranges: true, ..Entity::new(media_type, self.found_cache_control.clone()) }
    }

    /// Converts an error about this container into a problem. If an object is missing, the problem carries the
    /// `Cache-Control` of this mount's 404s.
    pub(crate) fn problem(&self, error: impl Into<Problem>) -> Problem {
        error.into().with_cache_control_if_missing(self.missing_cache_control.clone())
    }

    /// Returns the 404 of a key that does not exist in this container.
    pub(crate) fn not_found(&self) -> Problem {
        self.problem(Problem::not_found())
    }
}

/// Returns the path of a key from the server's root, without slashes at its ends. `mount` is the name of the key's
/// mount.
fn path_in_mount(mount: &str, key: &Key) -> String {
    [mount, key.as_str()].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
}

/// The part of a mount that the caller may read.
#[derive(Debug)]
pub(crate) struct CallerView {
    control: Arc<AccessControl>,
    /// Name of the mount; empty for the root.
    mount: String,
    /// `None` for a client without a token.
    pub(crate) caller: Option<Caller>,
    /// True if the response may differ for other callers.
    varies_by_caller: Arc<AtomicBool>,
}

impl CallerView {
    /// Creates the view that `caller` has of the mount named `mount`.
    pub(crate) fn new(control: &Arc<AccessControl>, mount: &str, caller: Option<Caller>) -> Self {
        Self { control: Arc::clone(control), mount: mount.to_owned(), caller, varies_by_caller: Arc::default() }
    }

    /// Returns the view that the same caller has of the mount named `mount`, for the same response.
    pub(crate) fn of_mount(&self, mount: &str) -> Self {
        Self {
            control: Arc::clone(&self.control),
            mount: mount.to_owned(),
            caller: self.caller.clone(),
            varies_by_caller: Arc::clone(&self.varies_by_caller),
        }
    }

    /// Records that the response depends on `decision`. Returns true if the decision lets the caller read.
    pub(crate) fn record_decision(&self, decision: Decision) -> bool {
        if decision != Decision::Public {
            self.varies_by_caller.store(true, Ordering::Relaxed);
        }
        decision != Decision::Refused
    }

    /// Returns true if the caller may read the path, which begins with the mount's name, and records the decision.
    pub(crate) fn may_read(&self, path: &str) -> bool {
        self.record_decision(self.control.policy().decide(path, self.caller.as_ref()))
    }

    /// Adds `Vary` and makes `Cache-Control` private if the response depends on the caller.
    pub(crate) fn restrict_caching(&self, headers: &mut HeaderMap) {
        if self.varies_by_caller.load(Ordering::Relaxed) {
            headers.append(VARY, HeaderValue::from_static("authorization"));
            make_cache_private(headers);
        }
    }
}

impl Visibility for CallerView {
    fn check_visible(&self, key: &Key) -> bool {
        self.may_read(&path_in_mount(&self.mount, key))
    }

    fn check_subtree_visible(&self, key: &Key) -> bool {
        let path = path_in_mount(&self.mount, key);
        self.record_decision(self.control.policy().decide_below(&path, self.caller.as_ref()))
    }
}

/// Makes `Cache-Control` private, so that only the client's own cache may store the response.
pub(crate) fn make_cache_private(headers: &mut HeaderMap) {
    let policy = headers.get(CACHE_CONTROL).and_then(|policy| policy.to_str().ok()).unwrap_or("no-cache");
    if policy.split(',').any(|directive| directive.trim() == "no-store") {
        return;
    }
    let directives =
        policy.split(',').map(str::trim).filter(|directive| !["public", "private", ""].contains(directive));
    let text = std::iter::once("private").chain(directives).collect::<Vec<_>>().join(", ");
    headers
        .insert(CACHE_CONTROL, HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("private, no-store")));
}

/// Returns true if everyone may read the whole mount. The keys of such a mount are not checked, and the fast path may
/// answer requests for them.
pub(crate) fn is_public_mount(control: Option<&AccessControl>, mount: &str) -> bool {
    control.is_none_or(|control| control.policy().decide_below(mount, None) == Decision::Public)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_clients_own_cache_stores_private_responses() {
        for (before, after) in [
            ("public, max-age=31536000, immutable", "private, max-age=31536000, immutable"),
            ("no-cache", "private, no-cache"),
            ("no-store", "no-store"),
            ("private, no-cache", "private, no-cache"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CACHE_CONTROL, HeaderValue::from_static(before));
            make_cache_private(&mut headers);
            assert_eq!(headers[CACHE_CONTROL], after);
        }
        let mut headers = HeaderMap::new();
        make_cache_private(&mut headers);
        assert_eq!(headers[CACHE_CONTROL], "private, no-cache");
    }
}
