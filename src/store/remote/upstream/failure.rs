//! Failures of requests to a store, and the function that every caller uses to tell them apart.

use std::error::Error;
use std::io;
use std::time::{Duration, SystemTime};

use axum::http::header::{DATE, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use object_store::client::{HttpError, HttpErrorKind};

use super::super::listing::{ErrorAnswer, StoreErrorCode};

/// Longest time that a `Retry-After` is taken to mean, so that sums of times cannot overflow.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// Kind of a failure. It decides how requests are retried, paced and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::store::remote) enum FailureKind {
    /// The object does not exist.
    Missing,
    /// The object has not changed since the version that the request named.
    NotModified,
    /// The object has changed since the version that the request named.
    Changed,
    /// The store refused the credentials, or this request with them.
    Forbidden,
    /// This server refused to send the request: there are no credentials, the address is on the local link, or the
    /// certificate of the store is not trusted.
    Refused,
    /// The store asks for fewer requests, or too many requests wait for it.
    Throttled,
    /// The store sent no byte in time.
    Timeout,
    /// The store could not be reached, closed the connection or reported a fault of its own.
    Unavailable,
    /// A body ended before its announced length.
    Truncated,
    /// The answer makes no sense for this request.
    BadAnswer,
}

impl FailureKind {
    /// All kinds.
    pub(in crate::store::remote) const ALL: [Self; 10] = [
        Self::Missing,
        Self::NotModified,
        Self::Changed,
        Self::Forbidden,
        Self::Refused,
        Self::Throttled,
        Self::Timeout,
        Self::Unavailable,
        Self::Truncated,
        Self::BadAnswer,
    ];

    /// Returns the name of the kind, used as a metric label.
    pub(in crate::store::remote) const fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::NotModified => "not_modified",
            Self::Changed => "changed",
            Self::Forbidden => "forbidden",
            Self::Refused => "refused",
            Self::Throttled => "throttled",
            Self::Timeout => "timeout",
            Self::Unavailable => "unavailable",
            Self::Truncated => "truncated",
            Self::BadAnswer => "bad_answer",
        }
    }

    /// Returns true if the store answered the request as it should: the object is missing, unchanged or changed.
    pub(in crate::store::remote) const fn is_regular(self) -> bool {
        matches!(self, Self::Missing | Self::NotModified | Self::Changed)
    }
}

/// Reason why a request to a store has no usable body. The text names no address, since addresses may hold secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{detail}")]
pub(in crate::store::remote) struct UpstreamFailure {
    /// Kind of the failure.
    pub(in crate::store::remote) kind: FailureKind,
    /// Status of the answer, if there was one.
    pub(in crate::store::remote) status: Option<StatusCode>,
    /// Time after which the store asks to be tried again.
    pub(in crate::store::remote) retry_after: Option<Duration>,
    /// Description for the log.
    pub(in crate::store::remote) detail: String,
}

impl UpstreamFailure {
    /// Creates a failure without an answer of the store.
    pub(in crate::store::remote) fn new(kind: FailureKind, detail: impl Into<String>) -> Self {
        Self { kind, status: None, retry_after: None, detail: detail.into() }
    }

    /// Creates the failure of a request that the limits of this server hold back.
    pub(in crate::store::remote) fn held_back(detail: impl Into<String>, retry_after: Option<Duration>) -> Self {
        Self { retry_after, ..Self::new(FailureKind::Throttled, detail) }
    }

    /// Returns true if the same request may succeed a moment later.
    pub(in crate::store::remote) fn is_transient(&self) -> bool {
        match self.kind {
            FailureKind::Missing
            | FailureKind::NotModified
            | FailureKind::Changed
            | FailureKind::Forbidden
            | FailureKind::Refused => false,
            FailureKind::Throttled => true,
            FailureKind::Timeout | FailureKind::Unavailable | FailureKind::Truncated | FailureKind::BadAnswer => {
                // A redirect or a client error comes again, and so does the answer that a bucket is missing.
                self.status.is_none_or(|status| {
                    status.is_success()
                        || status == StatusCode::REQUEST_TIMEOUT
                        || status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED
                })
            }
        }
    }

    /// Classifies an answer that is no success.
    pub(in crate::store::remote) fn of_answer(answer: &ErrorAnswer, headers: &HeaderMap) -> Self {
        let kind = match (answer.code, answer.status) {
            // The other server is not overloaded, so requests for its other containers need not wait.
            _ if answer.names_unavailable_storage() => FailureKind::Unavailable,
            (StoreErrorCode::Throttled, _) | (_, 429 | 503) => FailureKind::Throttled,
            (_, 304) => FailureKind::NotModified,
            // A range that lies outside the object was inside it when the object was opened.
            (_, 412 | 416) => FailureKind::Changed,
            (StoreErrorCode::NoSuchObject, _) => FailureKind::Missing,
            // A fault of the whole bucket must not make its objects look missing.
            (StoreErrorCode::NoSuchBucket, _) => FailureKind::Unavailable,
            (
                StoreErrorCode::AccessDenied
                | StoreErrorCode::UnknownCredentials
                | StoreErrorCode::ExpiredCredentials
                | StoreErrorCode::WrongSignature
                | StoreErrorCode::ClockSkew
                | StoreErrorCode::RequesterPays
                | StoreErrorCode::Archived,
                _,
            ) => FailureKind::Forbidden,
            (_, 408 | 504) => FailureKind::Timeout,
            (_, 500..=599) => FailureKind::Unavailable,
            (StoreErrorCode::WrongRegion | StoreErrorCode::Unavailable | StoreErrorCode::Other, _) => {
                FailureKind::BadAnswer
            }
        };
        let retry_after = (kind == FailureKind::Throttled).then(|| retry_after(headers)).flatten();
        Self { kind, status: StatusCode::from_u16(answer.status).ok(), retry_after, detail: answer.to_string() }
    }

    /// Classifies an error of the HTTP client.
    pub(in crate::store::remote) fn of_transport(error: &(dyn Error + 'static)) -> Self {
        for cause in causes(error) {
            if let Some(failure) = cause.downcast_ref::<Self>() {
                return failure.clone();
            }
            if let Some(kind) = transport_kind(cause) {
                return Self::new(kind, innermost_text(error));
            }
        }
        let is_timeout = causes(error)
            .filter_map(|cause| cause.downcast_ref::<HttpError>())
            .any(|cause| cause.kind() == HttpErrorKind::Timeout);
        let kind = if is_timeout { FailureKind::Timeout } else { FailureKind::Unavailable };
        Self::new(kind, innermost_text(error))
    }

    /// Wraps the failure as an error of an HTTP service.
    pub(in crate::store::remote) fn into_http_error(self) -> HttpError {
        HttpError::new(HttpErrorKind::Unknown, self)
    }
}

/// Returns `error` and its causes, outermost first.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    // The bound guards against an error that is its own cause.
    std::iter::successors(Some(error), |&cause| cause.source()).take(16)
}

/// Returns the text of the innermost cause. The outer ones may contain the address of the request.
fn innermost_text(error: &(dyn Error + 'static)) -> String {
    causes(error).last().map_or_else(String::new, ToString::to_string)
}

/// Returns the kind of one cause of a transport error, if it tells.
fn transport_kind(cause: &(dyn Error + 'static)) -> Option<FailureKind> {
    if let Some(error) = cause.downcast_ref::<hyper::Error>() {
        if error.is_timeout() {
            return Some(FailureKind::Timeout);
        }
        if error.is_incomplete_message() || error.is_closed() || error.is_canceled() {
            return Some(FailureKind::Unavailable);
        }
        if error.is_parse() {
            return Some(FailureKind::BadAnswer);
        }
    }
    let kind = cause.downcast_ref::<io::Error>()?.kind();
    if kind == io::ErrorKind::TimedOut {
        Some(FailureKind::Timeout)
    } else if kind == io::ErrorKind::UnexpectedEof {
        Some(FailureKind::Truncated)
    } else if matches!(kind, io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput) {
        Some(FailureKind::BadAnswer)
    } else {
        // An error that only wraps another one is classified by the latter.
        (kind != io::ErrorKind::Other).then_some(FailureKind::Unavailable)
    }
}

/// Returns the time of the header `Retry-After`: a number of seconds, or a date, which is compared with the clock of
/// the store, or else with that of this machine.
#[expect(clippy::disallowed_methods, reason = "the header may be a date")]
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER));
    }
    let until = httpdate::parse_http_date(value).ok()?;
    let date = headers.get(DATE).and_then(|date| date.to_str().ok());
    let now = date.and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or_else(SystemTime::now);
    Some(until.duration_since(now).unwrap_or_default().min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    fn classify(status: u16, headers: &[(&'static str, &str)], document: &str) -> UpstreamFailure {
        let headers = headers.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        UpstreamFailure::of_answer(&ErrorAnswer::parse(status, document.as_bytes()), &headers.collect())
    }

    #[test]
    fn every_status_has_one_kind() {
        let code = |code: &str| format!("<Error><Code>{code}</Code></Error>");
        let cases = [
            (304, String::new(), FailureKind::NotModified, false),
            (301, String::new(), FailureKind::BadAnswer, false),
            (400, String::new(), FailureKind::BadAnswer, false),
            (400, code("TooManyRequests"), FailureKind::Throttled, true),
            (400, code("ExpiredToken"), FailureKind::Forbidden, false),
            (401, String::new(), FailureKind::Forbidden, false),
            (403, code("AccessDenied"), FailureKind::Forbidden, false),
            (404, code("NoSuchKey"), FailureKind::Missing, false),
            (404, code("NoSuchBucket"), FailureKind::Unavailable, false),
            (408, String::new(), FailureKind::Timeout, true),
            (410, String::new(), FailureKind::Missing, false),
            (412, String::new(), FailureKind::Changed, false),
            (416, String::new(), FailureKind::Changed, false),
            (429, String::new(), FailureKind::Throttled, true),
            (500, String::new(), FailureKind::Unavailable, true),
            (501, String::new(), FailureKind::Unavailable, false),
            (502, String::new(), FailureKind::Unavailable, true),
            (503, code("SlowDown"), FailureKind::Throttled, true),
            (503, String::new(), FailureKind::Throttled, true),
            (504, String::new(), FailureKind::Timeout, true),
        ];
        for (status, document, kind, is_transient) in cases {
            let failure = classify(status, &[], &document);
            assert_eq!((failure.kind, failure.is_transient()), (kind, is_transient), "{status} {document}");
        }
    }

    #[test]
    fn another_server_without_its_storage_is_not_overloaded() {
        let problem = |code: &str| format!(r#"{{"type":"https://host/PROBLEMS.md#{code}","detail":"why"}}"#);
        let classify = |code: &str| classify(503, &[("retry-after", "1")], &problem(code));
        let failure = classify("storage-unavailable");
        assert_eq!((failure.kind, failure.retry_after), (FailureKind::Unavailable, None));
        assert!(failure.is_transient() && failure.detail.ends_with("storage-unavailable: why"), "{}", failure.detail);
        let failure = classify("overloaded");
        assert_eq!((failure.kind, failure.retry_after), (FailureKind::Throttled, Some(Duration::from_secs(1))));
    }

    #[test]
    fn retry_after_is_a_number_of_seconds_or_a_date_on_the_clock_of_the_store() {
        let date = ("date", "Fri, 27 Nov 2026 20:00:00 GMT");
        let wait = |headers: &[_]| classify(503, headers, "").retry_after;
        assert_eq!(wait(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
        assert_eq!(wait(&[date, ("retry-after", "Fri, 27 Nov 2026 20:00:09 GMT")]), Some(Duration::from_secs(9)));
        assert_eq!(wait(&[date, ("retry-after", "Fri, 27 Nov 2026 19:00:00 GMT")]), Some(Duration::ZERO));
        assert_eq!(wait(&[("retry-after", "Fri, 27 Nov 2015 20:00:09 GMT")]), Some(Duration::ZERO));
        assert_eq!(wait(&[("retry-after", "18446744073709551615")]), Some(MAX_RETRY_AFTER));
        assert_eq!(wait(&[date, ("retry-after", "Fri, 31 Dec 9999 23:59:59 GMT")]), Some(MAX_RETRY_AFTER));
        for ignored in ["-1", "soon", ""] {
            assert_eq!(wait(&[("retry-after", ignored)]), None, "{ignored}");
        }
    }

    #[test]
    fn a_failure_survives_the_wrapping_as_an_error_of_a_service() {
        let failure = UpstreamFailure::held_back("busy", Some(Duration::from_secs(3)));
        assert_eq!(UpstreamFailure::of_transport(&failure.clone().into_http_error()), failure);
    }
}
