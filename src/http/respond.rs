//! Answers: from the headers of an entity and its body to a response. Preconditions and ranges, and with them statuses,
//! are evaluated here for every route but the files of Neuroglancer. [`super::problem`] makes the answers to failed requests.

use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use axum::body::Body;
use axum::http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, LAST_MODIFIED,
    LOCATION, STRICT_TRANSPORT_SECURITY, VARY,
};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use bytes::Bytes;

use crate::cache::MemoryPermit;
use crate::http::conditional::{self, ConditionalOutcome};
use crate::http::options::HttpOptions;
use crate::http::problem::{self, Problem};

/// The response of a handler, or the problem that prevents it.
pub(crate) type HandlerResult = Result<Response<Body>, Problem>;

/// Marks a response as a document that may be compressed. Blocks and attributes are never compressed: they are sent
/// byte for byte, with their length.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Compressible;

/// An entity without its body: everything that the head of a response says about it.
#[derive(Clone)]
pub(crate) struct Entity<'a> {
    pub(crate) media_type: &'static str,
    pub(crate) cache_control: HeaderValue,
    /// Quoted entity tag; weak if it begins with `W/`. Without it and a time, preconditions are not evaluated.
    pub(crate) etag: Option<Arc<str>>,
    pub(crate) modified: Option<SystemTime>,
    /// Length in bytes, if it is known before the body is made.
    pub(crate) len: Option<u64>,
    /// True if clients may request ranges of bytes.
    pub(crate) has_ranges: bool,
    /// True if the body may be compressed.
    pub(crate) is_compressible: bool,
    /// Further headers, which a 304 has, too.
    pub(crate) extra: HeaderMap,
    /// The entity's name in the detail of a failed precondition.
    pub(crate) subject: &'a (dyn Display + Sync),
}

impl Entity<'_> {
    pub(crate) fn new(media_type: &'static str, cache_control: HeaderValue) -> Self {
        Self {
            media_type,
            cache_control,
            etag: None,
            modified: None,
            len: None,
            has_ranges: false,
            is_compressible: false,
            extra: HeaderMap::new(),
            subject: &"this object",
        }
    }

    /// Adds the headers of a response with this status, except for those that depend on the body's length.
    pub(crate) fn add_headers(&self, headers: &mut HeaderMap, status: StatusCode) {
        headers.extend(self.extra.clone());
        if let Some(etag) = &self.etag {
            insert_header(headers, ETAG, etag);
        }
        headers.extend(self.modified.and_then(conditional::last_modified).map(|date| (LAST_MODIFIED, date)));
        headers.insert(CACHE_CONTROL, self.cache_control.clone());
        if status == StatusCode::NOT_MODIFIED {
            return;
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.media_type));
        if self.has_ranges {
            headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
            // Java N5 looks for a header of this name before it reads ranges (`n5:HttpKeyValueAccess.java`).
            headers.insert("accept-range", HeaderValue::from_static("bytes"));
        }
    }

    fn evaluate(&self, request: &Parts) -> ConditionalOutcome {
        if self.etag.is_none() && self.modified.is_none() {
            return ConditionalOutcome::Full;
        }
        let len = self.len.filter(|_| self.has_ranges);
        conditional::evaluate(&request.method, &request.headers, self.etag.as_deref(), self.modified, len)
    }

    /// Returns the 304 if the client has this entity already, so that the body need not be made.
    pub(crate) fn not_modified(&self, request: &Parts) -> Option<Response<Body>> {
        (self.evaluate(request) == ConditionalOutcome::NotModified).then(|| self.not_modified_response())
    }

    fn not_modified_response(&self) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        self.add_headers(response.headers_mut(), StatusCode::NOT_MODIFIED);
        response
    }

    /// Evaluates the preconditions and the range of `request`. Returns the response, still without a body, and the range
    /// of bytes that its body has; `None` if the response is complete. The range is unbounded if the length is unknown.
    ///
    /// # Errors
    /// 412 and 416.
    pub(crate) fn select(&self, request: &Parts) -> Result<(Response<Body>, Option<Range<u64>>), Problem> {
        let etag = self.etag.as_deref().unwrap_or_default();
        let (status, range) = match (self.evaluate(request), self.len) {
            (ConditionalOutcome::NotModified, _) => return Ok((self.not_modified_response(), None)),
            (ConditionalOutcome::Partial(from, to), _) => (StatusCode::PARTIAL_CONTENT, from..to),
            (ConditionalOutcome::PreconditionFailed, _) => {
                let detail = format!("the entity tag of {} is now {etag}", self.subject);
                return Err(Problem::new(problem::PRECONDITION_FAILED, detail));
            }
            (ConditionalOutcome::Unsatisfiable, Some(len)) => return Err(Problem::range_not_satisfiable(len)),
            (_, len) => (StatusCode::OK, 0..len.unwrap_or(u64::MAX)),
        };
        let mut response = Response::new(Body::empty());
        *response.status_mut() = status;
        let headers = response.headers_mut();
        if self.len.is_some() {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(range.end - range.start));
        }
        self.add_headers(headers, status);
        if let (StatusCode::PARTIAL_CONTENT, Some(len)) = (status, self.len) {
            insert_header(headers, CONTENT_RANGE, &format!("bytes {}-{}/{len}", range.start, range.end - 1));
        }
        if self.is_compressible {
            response.extensions_mut().insert(Compressible);
        }
        // The compressed length of a document is known only once the document is compressed, for HEAD, too.
        let needs_body = request.method != Method::HEAD || self.len.is_none() || self.is_compressible;
        Ok((response, Some(range).filter(|range| needs_body && !range.is_empty())))
    }

    /// Answers `request` with this entity, whose body is `body`.
    ///
    /// # Errors
    /// 412 and 416.
    pub(crate) fn respond(self, request: &Parts, body: impl Into<Bytes>) -> HandlerResult {
        let body = body.into();
        let (mut response, range) = Self { len: Some(body.len() as u64), ..self }.select(request)?;
        if let Some(range) = range {
            *response.body_mut() = Body::from(slice_bytes(&body, &range));
        }
        Ok(response)
    }
}

/// Gives a body to a response whose entity had an unknown length.
pub(crate) fn with_body(mut response: Response<Body>, body: impl Into<Body>, len: u64) -> Response<Body> {
    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(len));
    *response.body_mut() = body.into();
    response
}

/// Returns a range of `bytes`, which shares their memory.
pub(crate) fn slice_bytes(bytes: &Bytes, range: &Range<u64>) -> Bytes {
    let clamp = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    bytes.slice(clamp(range.start)..clamp(range.end))
}

/// Returns the bytes of a document. They hold `memory`, reduced to their length, until they have been sent.
pub(crate) fn text_bytes(mut text: String, memory: Option<MemoryPermit>) -> Bytes {
    text.shrink_to_fit();
    let Some(mut memory) = memory else { return text.into() };
    memory.shrink(text.len() as u64);
    memory.own(text.into())
}

/// Returns a redirect without a body.
pub(crate) fn redirect(
    status: StatusCode,
    location: Option<HeaderValue>,
    cache_control: &'static str,
) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response.headers_mut().extend(location.map(|location| (LOCATION, location)));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static(cache_control));
    response
}

/// Adds a name to `Vary`.
pub(crate) fn add_vary(headers: &mut HeaderMap, name: &'static str) {
    headers.append(VARY, HeaderValue::from_static(name));
}

/// Inserts a header, if `value` can be one.
pub(crate) fn insert_header(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// Adds the headers that all responses have in common.
pub(crate) fn add_common_headers(headers: &mut HeaderMap, status: StatusCode, options: &HttpOptions) {
    if let Some(age) = options.hsts {
        let text = format!("max-age={}", age.as_secs());
        headers.insert(STRICT_TRANSPORT_SECURITY, HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("")));
    }
    headers.insert("timing-allow-origin", HeaderValue::from_static("*"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("cross-origin"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    if (status.is_client_error() || status.is_server_error()) && !headers.contains_key(CACHE_CONTROL) {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
}
