//! Makes a response from an entity and its body: evaluates preconditions and ranges (RFC 9110), and sets status and
//! headers. All routes use this file, except the one that serves the files of Neuroglancer. [`super::problem`] makes
//! the responses to failed requests.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, IF_RANGE,
    LAST_MODIFIED, LOCATION, RANGE, VARY,
};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use bytes::Bytes;
use headers::{ETag, HeaderMapExt, IfMatch, IfModifiedSince, IfNoneMatch, IfUnmodifiedSince};

use crate::cache::MemoryPermit;
use crate::http::problem::{self, Problem};
use crate::store::Key;

/// The response of a handler, or the problem that prevents it.
pub(crate) type HandlerResult = Result<Response<Body>, Problem>;

/// Number of headers that a response has in addition to [`Entity::extra`], at most, unless it is unusual.
const USUAL_HEADERS: usize = 12;

/// Marks a response whose body is a document that is compressed for clients that accept compression.
#[derive(Clone)]
pub(crate) struct Compressible;

/// Metadata of a representation (RFC 9110, section 8): everything that the head of a response says about the body.
#[derive(Clone)]
pub(crate) struct Entity<'a> {
    pub(crate) media_type: &'static str,
    pub(crate) cache_control: HeaderValue,
    /// Quoted entity tag; weak if it begins with `W/`. Without a tag and a time, preconditions are not evaluated.
    pub(crate) etag: Option<Arc<str>>,
    pub(crate) modified: Option<SystemTime>,
    /// Length in bytes, if it is known before the body is made.
    pub(crate) len: Option<u64>,
    /// True if clients may request ranges of bytes.
    pub(crate) has_ranges: bool,
    /// True if the response is [`Compressible`], as for documents. Blocks and attributes are sent as stored, with their
    /// length.
    pub(crate) is_compressible: bool,
    /// Further headers of the response, which a 304 has, too.
    pub(crate) extra: HeaderMap,
    /// Name of the entity in the detail of a failed precondition.
    pub(crate) subject: &'static str,
    /// Key of a stored object, which takes the place of `subject`.
    pub(crate) key: Option<&'a Key>,
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
            subject: "this object",
            key: None,
        }
    }

    /// Adds the headers of a response with this status, except for those that depend on the body's length.
    pub(crate) fn add_headers(&self, headers: &mut HeaderMap, status: StatusCode) {
        // Room for those of this function and for the headers that all responses have in common.
        headers.reserve(self.extra.len() + USUAL_HEADERS);
        headers.extend(self.extra.clone());
        if let Some(etag) = &self.etag {
            insert_header(headers, ETAG, etag);
        }
        headers.extend(self.modified.and_then(last_modified).map(|date| (LAST_MODIFIED, date)));
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

    /// Evaluates the preconditions and the range of `request`.
    fn evaluate(&self, request: &Parts) -> ConditionalOutcome {
        if self.etag.is_none() && self.modified.is_none() {
            return ConditionalOutcome::Full;
        }
        let etag = self.etag.as_deref();
        let modified = self.modified.filter(has_http_date);
        let outcome = evaluate_preconditions(&request.headers, etag, modified);
        if outcome != ConditionalOutcome::Full || request.method != Method::GET || !self.has_ranges {
            return outcome;
        }
        let range = requested_range(&request.headers, etag, modified).zip(self.len);
        range.and_then(|(range, len)| parse_range(range, len)).unwrap_or(outcome)
    }

    /// Returns a 304 if the client has this entity already. The caller then need not make the body.
    pub(crate) fn not_modified(&self, request: &Parts) -> Option<Response<Body>> {
        (self.evaluate(request) == ConditionalOutcome::NotModified).then(|| self.not_modified_response())
    }

    fn not_modified_response(&self) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        self.add_headers(response.headers_mut(), StatusCode::NOT_MODIFIED);
        response
    }

    /// Evaluates the preconditions and the range of `request`. Returns the response without its body, and the range of
    /// bytes that the body must have. The range is `None` if the response has no body, and unbounded if the length is
    /// unknown.
    ///
    /// # Errors
    /// Returns a problem with status 412 if a precondition fails, 416 if the range lies beyond the end.
    pub(crate) fn select(&self, request: &Parts) -> Result<(Response<Body>, Option<Range<u64>>), Problem> {
        let etag = self.etag.as_deref().unwrap_or_default();
        let (status, range) = match (self.evaluate(request), self.len) {
            (ConditionalOutcome::NotModified, _) => return Ok((self.not_modified_response(), None)),
            (ConditionalOutcome::Partial(range), _) => (StatusCode::PARTIAL_CONTENT, range),
            (ConditionalOutcome::PreconditionFailed, _) => {
                let subject = self.key.map_or_else(|| self.subject.to_owned(), |key| format!("/{key}"));
                let detail = format!("the entity tag of {subject} is now {etag}");
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
        // HEAD needs the body of a document, because the length in the response is that of the compressed document.
        let needs_body = request.method != Method::HEAD || self.len.is_none() || self.is_compressible;
        Ok((response, Some(range).filter(|range| needs_body && !range.is_empty())))
    }

    /// Answers `request` with this entity, whose body is `body`.
    ///
    /// # Errors
    /// Returns a problem with status 412 if a precondition fails, 416 if the range lies beyond the end.
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

/// Returns the bytes of a document, which own `memory`: the permit is reduced to their length, and freed when they have
/// been sent.
pub(crate) fn text_bytes(mut text: String, memory: Option<MemoryPermit>) -> Bytes {
    text.shrink_to_fit();
    let Some(mut memory) = memory else { return text.into() };
    memory.shrink(text.len() as u64);
    memory.own_pooled(text.into())
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

/// Outcome of the preconditions and the range of a request for an entity that exists.
#[derive(Debug, PartialEq, Eq)]
enum ConditionalOutcome {
    /// The whole body: 200.
    Full,
    /// A range of the bytes of the body: 206.
    Partial(Range<u64>),
    /// No body, because the client has the entity already: 304.
    NotModified,
    /// No body, because the entity is not the one that the client expects: 412.
    PreconditionFailed,
    /// No body, because the range lies beyond the end of the entity: 416.
    Unsatisfiable,
}

/// Evaluates preconditions in the order of RFC 9110 §13.2.2. Returns [`ConditionalOutcome::Full`] if all are met.
///
/// `etag` is quoted. It is weak if it begins with `W/`; then it satisfies no `If-Match` except `*` (§13.1.1).
fn evaluate_preconditions(headers: &HeaderMap, etag: Option<&str>, modified: Option<SystemTime>) -> ConditionalOutcome {
    let etag: Option<ETag> = etag.and_then(|etag| etag.parse().ok());
    if let Some(if_match) = headers.typed_get::<IfMatch>() {
        if !etag.as_ref().is_some_and(|etag| if_match.precondition_passes(etag)) {
            return ConditionalOutcome::PreconditionFailed;
        }
    } else if let (Some(unmodified_since), Some(modified)) = (headers.typed_get::<IfUnmodifiedSince>(), modified)
        && !unmodified_since.precondition_passes(modified)
    {
        return ConditionalOutcome::PreconditionFailed;
    }
    if let Some(if_none_match) = headers.typed_get::<IfNoneMatch>() {
        if etag.as_ref().is_some_and(|etag| !if_none_match.precondition_passes(etag)) {
            return ConditionalOutcome::NotModified;
        }
    } else if let (Some(modified_since), Some(modified)) = (headers.typed_get::<IfModifiedSince>(), modified)
        && !modified_since.is_modified(modified)
    {
        return ConditionalOutcome::NotModified;
    }
    ConditionalOutcome::Full
}

/// Returns the `Range` of a request. Returns `None` if there is no `Range`, or if an `If-Range` does not match.
fn requested_range<'a>(headers: &'a HeaderMap, etag: Option<&str>, modified: Option<SystemTime>) -> Option<&'a str> {
    let range = headers.get(RANGE)?.to_str().ok()?;
    let is_current = headers.get(IF_RANGE).is_none_or(|condition| if_range_matches(condition, etag, modified));
    is_current.then_some(range)
}

/// Returns the part of an entity of `len` bytes that a request needs, or `None` if it needs all of it. If the length is
/// unknown, it is `u64::MAX`, and so is the end of a part without an end.
pub(crate) fn requested_part(headers: &HeaderMap, len: u64) -> Option<Range<u64>> {
    let Some(ConditionalOutcome::Partial(range)) = parse_range(headers.get(RANGE)?.to_str().ok()?, len) else {
        return None;
    };
    (range != (0..len)).then_some(range)
}

/// Returns true if a request asks for the last bytes of an entity, so that the part depends on the length.
pub(crate) fn requests_suffix(headers: &HeaderMap) -> bool {
    let range = headers.get(RANGE).and_then(|range| range.to_str().ok()?.split_once('='));
    range.is_some_and(|(_, spec)| spec.trim_start().starts_with('-'))
}

/// Returns true if an `If-Range` names exactly this entity, by its strong tag or its exact date (RFC 9110 §13.1.5).
fn if_range_matches(condition: &HeaderValue, etag: Option<&str>, modified: Option<SystemTime>) -> bool {
    let matches_etag = etag.is_some_and(|etag| etag.starts_with('"') && condition.as_bytes() == etag.as_bytes());
    matches_etag || modified.and_then(last_modified).is_some_and(|date| date == *condition)
}

/// Parses a `Range` of one byte range and cuts it off at the end of an entity of `len` bytes. Returns `None` for any
/// other `Range`, which is ignored: the client then gets the whole entity, as RFC 9110 §14.2 allows.
///
/// The crate `headers` is not used here, because it takes a suffix that is longer than the entity for unsatisfiable.
/// Such a suffix means the whole entity (RFC 9110 §14.1.2).
fn parse_range(range: &str, len: u64) -> Option<ConditionalOutcome> {
    let (unit, spec) = range.split_once('=')?;
    let (first, last) = spec.trim().split_once('-').filter(|_| unit.trim().eq_ignore_ascii_case("bytes"))?;
    let parse_number = |text: &str| {
        let is_decimal = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // A number above 2^64 lies beyond the end of every object.
        is_decimal.then(|| text.parse().unwrap_or(u64::MAX))
    };
    let (from, to) = match (first, last) {
        ("", suffix) => (len.saturating_sub(parse_number(suffix)?), len),
        (first, "") => (parse_number(first)?, len),
        (first, last) => {
            let first = parse_number(first)?;
            let last = parse_number(last)?;
            if last < first {
                return None;
            }
            (first, last.saturating_add(1).min(len))
        }
    };
    Some(if from < to { ConditionalOutcome::Partial(from..to) } else { ConditionalOutcome::Unsatisfiable })
}

/// Returns the value of `Last-Modified`. Returns `None` if HTTP dates cannot express the time.
pub(crate) fn last_modified(modified: SystemTime) -> Option<HeaderValue> {
    has_http_date(&modified).then(|| HeaderValue::from_str(&httpdate::fmt_http_date(modified)).ok())?
}

/// Start of the year 10000. HTTP dates have four-digit years (RFC 9110, section 5.6.7), and cannot express this or a
/// later time.
const YEAR_10000: Duration = Duration::from_secs(253_402_300_800);

/// Returns true if an HTTP date can express the time. The owner of a file may set any time, and `httpdate` panics for
/// times before 1970 and from the year 10000 on.
fn has_http_date(time: &SystemTime) -> bool {
    time.duration_since(SystemTime::UNIX_EPOCH).is_ok_and(|elapsed| elapsed < YEAR_10000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entity(etag: Option<&str>, modified: SystemTime, len: u64) -> Entity<'static> {
        let entity = Entity::new("application/octet-stream", HeaderValue::from_static("no-cache"));
        Entity { etag: etag.map(Arc::from), modified: Some(modified), len: Some(len), has_ranges: true, ..entity }
    }

    fn evaluate_for(entity: &Entity<'_>, headers: &[(&'static str, &str)]) -> ConditionalOutcome {
        let mut request = axum::http::Request::new(()).into_parts().0;
        request.headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        entity.evaluate(&request)
    }

    fn evaluate_headers(headers: &[(&'static str, &str)]) -> ConditionalOutcome {
        let modified = SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_000_000_500);
        evaluate_for(&entity(Some("\"a-1\""), modified, 10), headers)
    }

    #[test]
    fn the_part_that_a_request_needs_is_known_before_the_length_unless_it_is_a_suffix() {
        let part = |range: &str, len| requested_part(&HeaderMap::from_iter([(RANGE, range.parse().unwrap())]), len);
        assert_eq!(part("bytes=16-31", u64::MAX), Some(16..32));
        assert_eq!(part("bytes=16-", u64::MAX), Some(16..u64::MAX));
        assert_eq!(part("bytes=-4", 10), Some(6..10));
        for whole in ["bytes=0-", "bytes=0-1,4-5", "lines=0-1"] {
            assert_eq!(part(whole, u64::MAX), None, "{whole}");
        }
        assert!(requests_suffix(&HeaderMap::from_iter([(RANGE, HeaderValue::from_static("bytes=-4"))])));
        assert!(!requests_suffix(&HeaderMap::from_iter([(RANGE, HeaderValue::from_static("bytes=4-"))])));
    }

    #[test]
    fn byte_ranges_of_every_form_are_parsed() {
        assert_eq!(evaluate_headers(&[]), ConditionalOutcome::Full);
        assert_eq!(evaluate_headers(&[("range", "bytes=0-0")]), ConditionalOutcome::Partial(0..1));
        assert_eq!(evaluate_headers(&[("range", "bytes=3-")]), ConditionalOutcome::Partial(3..10));
        assert_eq!(evaluate_headers(&[("range", "bytes=3-99")]), ConditionalOutcome::Partial(3..10));
        assert_eq!(evaluate_headers(&[("range", "bytes=-4")]), ConditionalOutcome::Partial(6..10));
        assert_eq!(evaluate_headers(&[("range", "bytes=-99")]), ConditionalOutcome::Partial(0..10));
        assert_eq!(evaluate_headers(&[("range", "bytes=10-")]), ConditionalOutcome::Unsatisfiable);
        assert_eq!(evaluate_headers(&[("range", "bytes=-0")]), ConditionalOutcome::Unsatisfiable);
        assert_eq!(evaluate_headers(&[("range", "bytes=0-1,3-4")]), ConditionalOutcome::Full);
        assert_eq!(evaluate_headers(&[("range", "lines=0-1")]), ConditionalOutcome::Full);
        assert_eq!(evaluate_headers(&[("range", "bytes=5-2")]), ConditionalOutcome::Full);
        assert_eq!(evaluate_headers(&[("range", "bytes=x")]), ConditionalOutcome::Full);
        assert_eq!(evaluate_headers(&[("range", "bytes=")]), ConditionalOutcome::Full);
        assert_eq!(evaluate_headers(&[("range", "bytes=+1-2")]), ConditionalOutcome::Full);
        assert_eq!(
            evaluate_headers(&[("range", "Bytes=0-99999999999999999999999")]),
            ConditionalOutcome::Partial(0..10)
        );
        assert_eq!(
            evaluate_headers(&[("range", "bytes=18446744073709551615-18446744073709551615")]),
            ConditionalOutcome::Unsatisfiable
        );
    }

    #[test]
    fn a_time_without_an_http_date_is_no_precondition() {
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        for modified in [SystemTime::UNIX_EPOCH - Duration::from_nanos(1), SystemTime::UNIX_EPOCH + YEAR_10000] {
            for name in ["if-modified-since", "if-unmodified-since", "if-range"] {
                assert_eq!(evaluate_for(&entity(None, modified, 1), &[(name, date)]), ConditionalOutcome::Full);
            }
            assert_eq!(last_modified(modified), None);
        }
        let last_date = SystemTime::UNIX_EPOCH + YEAR_10000 - Duration::from_secs(1);
        assert_eq!(last_modified(last_date).unwrap(), "Fri, 31 Dec 9999 23:59:59 GMT");
    }

    #[test]
    fn an_empty_object_satisfies_no_range() {
        let empty = entity(None, SystemTime::UNIX_EPOCH, 0);
        assert_eq!(evaluate_for(&empty, &[("range", "bytes=0-")]), ConditionalOutcome::Unsatisfiable);
    }

    #[test]
    fn preconditions_come_before_ranges() {
        assert_eq!(
            evaluate_headers(&[("if-none-match", "\"a-1\""), ("range", "bytes=0-1")]),
            ConditionalOutcome::NotModified
        );
        assert_eq!(evaluate_headers(&[("if-none-match", "W/\"a-1\"")]), ConditionalOutcome::NotModified);
        assert_eq!(evaluate_headers(&[("if-none-match", "*")]), ConditionalOutcome::NotModified);
        assert_eq!(evaluate_headers(&[("if-none-match", "\"b\", \"a-1\"")]), ConditionalOutcome::NotModified);
        assert_eq!(evaluate_headers(&[("if-none-match", "\"b\"")]), ConditionalOutcome::Full);
        assert_eq!(evaluate_headers(&[("if-match", "\"b\"")]), ConditionalOutcome::PreconditionFailed);
        assert_eq!(
            evaluate_headers(&[("if-match", "\"a-1\""), ("range", "bytes=1-1")]),
            ConditionalOutcome::Partial(1..2)
        );
        assert_eq!(evaluate_headers(&[("if-match", "*")]), ConditionalOutcome::Full);
    }

    #[test]
    fn dates_have_a_resolution_of_seconds() {
        let same = "Sun, 09 Sep 2001 01:46:40 GMT";
        let before = "Sun, 09 Sep 2001 01:46:39 GMT";
        assert_eq!(evaluate_headers(&[("if-modified-since", same)]), ConditionalOutcome::NotModified);
        assert_eq!(evaluate_headers(&[("if-modified-since", before)]), ConditionalOutcome::Full);
        assert_eq!(evaluate_headers(&[("if-unmodified-since", same)]), ConditionalOutcome::Full);
        assert_eq!(evaluate_headers(&[("if-unmodified-since", before)]), ConditionalOutcome::PreconditionFailed);
        // If there is an entity tag, the date is ignored.
        assert_eq!(
            evaluate_headers(&[("if-none-match", "\"b\""), ("if-modified-since", same)]),
            ConditionalOutcome::Full
        );
    }

    #[test]
    fn if_range_decides_between_the_range_and_the_full_representation() {
        assert_eq!(
            evaluate_headers(&[("if-range", "\"a-1\""), ("range", "bytes=0-1")]),
            ConditionalOutcome::Partial(0..2)
        );
        assert_eq!(evaluate_headers(&[("if-range", "\"b\""), ("range", "bytes=0-1")]), ConditionalOutcome::Full);
        assert_eq!(evaluate_headers(&[("if-range", "W/\"a-1\""), ("range", "bytes=0-1")]), ConditionalOutcome::Full);
        assert_eq!(evaluate_headers(&[("if-range", "\"b\""), ("range", "bytes=99-")]), ConditionalOutcome::Full);
        assert_eq!(evaluate_headers(&[("if-range", "garbage"), ("range", "bytes=0-1")]), ConditionalOutcome::Full);
        assert_eq!(evaluate_headers(&[("if-range", "a-1"), ("range", "bytes=0-1")]), ConditionalOutcome::Full);
        let date = "Sun, 09 Sep 2001 01:46:40 GMT";
        assert_eq!(evaluate_headers(&[("if-range", date), ("range", "bytes=0-1")]), ConditionalOutcome::Partial(0..2));
        let later = "Sun, 09 Sep 2001 01:46:41 GMT";
        assert_eq!(evaluate_headers(&[("if-range", later), ("range", "bytes=0-1")]), ConditionalOutcome::Full);
    }
}
