//! A request as the handlers see it.

use std::net::IpAddr;

use axum::http::header::HeaderName;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method};

use super::credentials::Presented;
use super::guard::Viewpoint;
use super::problem::Problem;
use super::target::{self, Target};
use super::{App, Mount};
use crate::container::Access;
use crate::store::Key;

/// A request as the handlers see it.
pub(super) struct Ask<'a> {
    pub(super) app: &'a App,
    pub(super) parts: &'a Parts,
    pub(super) id: &'a str,
    /// The other end of the connection.
    pub(super) peer: Option<IpAddr>,
    pub(super) access: Access,
    pub(super) target: &'a Target,
    pub(super) presented: &'a Presented,
    /// Who asks, where that makes a difference.
    pub(super) viewpoint: Option<&'a Viewpoint>,
    /// The mount of the path as whoever asks sees it, where that makes a difference.
    pub(super) seen: Option<Mount>,
}

impl Ask<'_> {
    pub(super) fn method(&self) -> &Method {
        &self.parts.method
    }

    pub(super) fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }

    /// As [`App::locate`], as whoever asks sees it.
    pub(super) fn locate(&self, segments: &[String]) -> Result<Option<(&Mount, Key)>, Problem> {
        let Some((mount, key)) = self.app.locate(segments)? else { return Ok(None) };
        Ok(Some((self.seen.as_ref().filter(|seen| seen.name == mount.name).unwrap_or(mount), key)))
    }

    /// Whether the mount of that name is shown.
    pub(super) fn shows(&self, mount: &str) -> bool {
        self.viewpoint.is_none_or(|viewpoint| viewpoint.shows(mount))
    }

    /// The raw path.
    pub(super) fn path(&self) -> &str {
        self.parts.uri.path()
    }

    /// The raw query string.
    pub(super) fn query(&self) -> Option<&str> {
        self.parts.uri.query()
    }

    /// The raw query string with the token that was in it.
    pub(super) fn query_with_token(&self) -> Option<String> {
        let token = self.presented.in_query().map(|token| format!("token={}", target::encode(token)));
        let parts: Vec<String> = self.query().map(str::to_owned).into_iter().chain(token).collect();
        (!parts.is_empty()).then(|| parts.join("&"))
    }

    /// All lines of a list header as one; `None` where there is none that is text.
    pub(super) fn list_header(&self, name: &HeaderName) -> Option<String> {
        let lines: Vec<&str> = self.headers().get_all(name).iter().filter_map(|line| line.to_str().ok()).collect();
        (!lines.is_empty()).then(|| lines.join(", "))
    }
}
