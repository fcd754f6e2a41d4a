//! A request as the handlers see it.

use std::net::IpAddr;

use axum::extract::ConnectInfo;
use axum::http::header::{HOST, HeaderName};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Version};

use super::credentials::Presented;
use super::guard::Viewpoint;
use super::problem::{self, Problem};
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

/// Refuses a request that wants more than to read; and one of HTTP/1.1 that came by a connection and does not say once for
/// which host it is (RFC 9112, section 3.2): programs on the way would not agree on whose it is.
pub(super) fn check(parts: &Parts) -> Result<(), Problem> {
    if !matches!(parts.method, Method::GET | Method::HEAD) {
        return Err(Problem::method());
    }
    let mut hosts = parts.headers.get_all(HOST).iter();
    let is_needed =
        parts.version == Version::HTTP_11 && parts.extensions.get::<ConnectInfo<Option<IpAddr>>>().is_some();
    let is_sound = match (hosts.next(), hosts.next()) {
        (None, _) => !is_needed,
        (Some(host), None) => could_be_host(host),
        (Some(_), Some(_)) => false,
    };
    let text = "the header Host must name one host, as in Host: example.org:8080";
    if is_sound { Ok(()) } else { Err(Problem::new(problem::INVALID_PARAMETER, text)) }
}

/// Nothing of what ends the host of a URL, and no space (RFC 3986, section 3.2.2).
fn could_be_host(host: &HeaderValue) -> bool {
    host.len() <= 255 && host.as_bytes().iter().all(|byte| byte.is_ascii_graphic() && !br#"/?#@\"<>"#.contains(byte))
}
