//! A request as handlers get it.

use std::net::IpAddr;

use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, HOST, HeaderName};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Response, StatusCode, Version};
use percent_encoding::percent_decode_str;

use crate::cache::ReadOptions;
use crate::http::app::App;
use crate::http::credentials::PresentedTokens;
use crate::http::mount::{CallerView, Mount};
use crate::http::observe;
use crate::http::problem::{self, Problem};
use crate::http::respond;
use crate::http::route::{self, RequestTarget};
use crate::store::Key;

/// A request, with the application and everything that was parsed from it.
pub(crate) struct RequestContext<'a> {
    pub(crate) app: &'a App,
    pub(crate) parts: &'a Parts,
    pub(crate) id: &'a str,
    /// IP address of the peer of the connection.
    pub(crate) peer: Option<IpAddr>,
    pub(crate) read_options: ReadOptions,
    pub(crate) target: &'a RequestTarget,
    pub(crate) presented: &'a PresentedTokens,
    /// The part of the mount that the caller may read; `None` if everyone may read all of it.
    pub(crate) caller_view: Option<&'a CallerView>,
    /// The target's mount, restricted to what the caller may read; `None` if everyone may read all of it.
    pub(crate) visible_mount: Option<Mount>,
}

impl<'a> RequestContext<'a> {
    /// Creates the context of a request before its caller is known.
    pub(crate) fn new(app: &'a App, parts: &'a Parts, target: &'a RequestTarget) -> Self {
        Self {
            app,
            parts,
            id: observe::request_id(&parts.headers),
            peer: observe::peer_address(&parts.extensions),
            read_options: ReadOptions::begin(),
            target,
            presented: PresentedTokens::of(parts),
            caller_view: None,
            visible_mount: None,
        }
    }

    /// Like [`App::locate`], but restricts the mount to what the caller may read.
    pub(crate) fn locate(&self, segments: &[String]) -> Result<Option<(&Mount, Key)>, Problem> {
        let Some((_, mount, key)) = self.app.locate(segments)? else { return Ok(None) };
        Ok(Some((self.visible_mount.as_ref().filter(|visible| visible.name == mount.name).unwrap_or(mount), key)))
    }

    /// Returns all lines of a list header, joined; `None` if no line is text.
    pub(crate) fn list_header(&self, name: &HeaderName) -> Option<String> {
        let lines: Vec<&str> = self.parts.headers.get_all(name).iter().filter_map(|line| line.to_str().ok()).collect();
        (!lines.is_empty()).then(|| lines.join(", "))
    }

    /// Returns a 301 to the same path with a slash. Its location is relative, so that it is valid behind a proxy that
    /// strips a prefix.
    pub(crate) fn redirect_to_slash(&self) -> Response<Body> {
        let last_segment = self.parts.uri.path().rsplit('/').next().unwrap_or_default();
        // The segment is decoded and encoded again, because a colon in it would make the relative reference an absolute
        // one.
        let name = percent_decode_str(last_segment).decode_utf8_lossy();
        // The token was removed from the query when the request arrived.
        let token =
            self.presented.query_token.as_deref().map(|token| format!("token={}", route::encode_segment(token)));
        let query: Vec<String> = self.parts.uri.query().map(str::to_owned).into_iter().chain(token).collect();
        let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
        let location = HeaderValue::from_str(&format!("{}/{query}", route::encode_segment(&name))).ok();
        let mut response = respond::redirect(StatusCode::MOVED_PERMANENTLY, location, "no-cache");
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(0));
        response
    }
}

/// Refuses methods other than GET and HEAD, and a `Host` that is invalid, repeated or missing. With such a header, a
/// proxy and this server could disagree about the host that the request is for (RFC 9112, section 3.2). The header is
/// required only of HTTP/1.1 requests that arrived over a connection.
pub(crate) fn check_method_and_host(parts: &Parts) -> Result<(), Problem> {
    if !matches!(parts.method, Method::GET | Method::HEAD) {
        return Err(Problem::method_not_allowed());
    }
    let mut hosts = parts.headers.get_all(HOST).iter();
    let is_required = parts.version == Version::HTTP_11 && observe::has_connection(&parts.extensions);
    let is_valid = match (hosts.next(), hosts.next()) {
        (None, _) => !is_required,
        (Some(host), None) => could_be_host(host),
        (Some(_), Some(_)) => false,
    };
    let detail = "the header Host must name one host, as in Host: example.org:8080";
    if is_valid { Ok(()) } else { Err(Problem::new(problem::INVALID_PARAMETER, detail)) }
}

/// Returns true if the value has at most 255 bytes, all of them printable ASCII. Spaces and characters that end the
/// host of a URL are excluded (RFC 3986, section 3.2.2).
fn could_be_host(host: &HeaderValue) -> bool {
    host.len() <= 255 && host.as_bytes().iter().all(|byte| byte.is_ascii_graphic() && !br#"/?#@\"<>"#.contains(byte))
}
