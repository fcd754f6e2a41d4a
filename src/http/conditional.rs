//! Preconditions and ranges of RFC 9110 for one representation.

use std::time::{Duration, SystemTime};

use axum::http::header::{IF_RANGE, RANGE};
use axum::http::{HeaderMap, HeaderValue, Method};
use headers::{ETag, HeaderMapExt, IfMatch, IfModifiedSince, IfNoneMatch, IfUnmodifiedSince};

/// Outcome of the preconditions and the range of a request for a representation that exists.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConditionalOutcome {
    /// The whole representation: 200.
    Full,
    /// The bytes from the first number up to, but not including, the second: 206.
    Partial(u64, u64),
    /// None of it, because the client has it: 304.
    NotModified,
    /// None of it, because it is not the representation that the client expects: 412.
    PreconditionFailed,
    /// None of it, because the range lies beyond its end: 416.
    Unsatisfiable,
}

/// Evaluates preconditions and range in the order of RFC 9110 §13.2.2.
///
/// `etag` is quoted. It is weak if it begins with `W/`; then it satisfies no `If-Match` except `*` (§13.1.1). `len` is
/// `None` for a representation that does not support ranges. Several ranges are answered with the whole representation,
/// as §14.2 allows.
pub(crate) fn evaluate(
    method: &Method,
    headers: &HeaderMap,
    etag: Option<&str>,
    modified: Option<SystemTime>,
    len: Option<u64>,
) -> ConditionalOutcome {
    let modified = modified.filter(has_http_date);
    let etag_text = etag;
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
    let (Some(len), true) = (len, method == Method::GET) else { return ConditionalOutcome::Full };
    let Some(range) = headers.get(RANGE).and_then(|range| range.to_str().ok()) else {
        return ConditionalOutcome::Full;
    };
    if let Some(condition) = headers.get(IF_RANGE)
        && !if_range_matches(condition, etag_text, modified)
    {
        return ConditionalOutcome::Full;
    }
    parse_range(range, len).unwrap_or(ConditionalOutcome::Full)
}

/// Returns true if an `If-Range` names exactly this representation, by its strong entity tag or its exact date
/// (§13.1.5).
fn if_range_matches(condition: &HeaderValue, etag: Option<&str>, modified: Option<SystemTime>) -> bool {
    let matches_etag = etag.is_some_and(|etag| etag.starts_with('"') && condition.as_bytes() == etag.as_bytes());
    matches_etag || modified.and_then(last_modified).is_some_and(|date| date == *condition)
}

/// Parses a `Range` of one byte range and cuts it off at the end of the representation. Returns `None` for anything
/// else, which is ignored.
///
/// The typed header is not used: it treats a suffix longer than the representation as unsatisfiable, but such a suffix
/// means the whole representation (RFC 9110 §14.1.2).
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
            let (first, last) = (parse_number(first)?, parse_number(last)?);
            if last < first {
                return None;
            }
            (first, last.saturating_add(1).min(len))
        }
    };
    Some(if from < to { ConditionalOutcome::Partial(from, to) } else { ConditionalOutcome::Unsatisfiable })
}

/// Returns `Last-Modified` as an HTTP date; `None` for a time that has none.
pub(crate) fn last_modified(modified: SystemTime) -> Option<HeaderValue> {
    has_http_date(&modified).then(|| HeaderValue::from_str(&httpdate::fmt_http_date(modified)).ok())?
}

/// First second of the year 10000, which an HTTP date with its four-digit year cannot express (RFC 9110, section
/// 5.6.7).
const YEAR_10000: Duration = Duration::from_secs(253_402_300_800);

/// Returns true if `httpdate` can format the time, which a file's owner may set at will. It panics before 1970 and from
/// the year 10000 on.
fn has_http_date(time: &SystemTime) -> bool {
    time.duration_since(SystemTime::UNIX_EPOCH).is_ok_and(|elapsed| elapsed < YEAR_10000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluate_headers(headers: &[(&'static str, &str)]) -> ConditionalOutcome {
        let map: HeaderMap = headers.iter().map(|(k, v)| (k.parse().unwrap(), v.parse().unwrap())).collect();
        let modified = SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_000_000_500);
        evaluate(&Method::GET, &map, Some("\"a-1\""), Some(modified), Some(10))
    }

    #[test]
    fn byte_ranges_of_every_form_are_parsed() {
        assert_eq!(evaluate_headers(&[]), ConditionalOutcome::Full);
        assert_eq!(evaluate_headers(&[("range", "bytes=0-0")]), ConditionalOutcome::Partial(0, 1));
        assert_eq!(evaluate_headers(&[("range", "bytes=3-")]), ConditionalOutcome::Partial(3, 10));
        assert_eq!(evaluate_headers(&[("range", "bytes=3-99")]), ConditionalOutcome::Partial(3, 10));
        assert_eq!(evaluate_headers(&[("range", "bytes=-4")]), ConditionalOutcome::Partial(6, 10));
        assert_eq!(evaluate_headers(&[("range", "bytes=-99")]), ConditionalOutcome::Partial(0, 10));
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
            ConditionalOutcome::Partial(0, 10)
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
                let map = [(name.parse().unwrap(), date.parse().unwrap())].into_iter().collect();
                assert_eq!(evaluate(&Method::GET, &map, None, Some(modified), Some(1)), ConditionalOutcome::Full);
            }
            assert_eq!(last_modified(modified), None);
        }
        let last_date = SystemTime::UNIX_EPOCH + YEAR_10000 - Duration::from_secs(1);
        assert_eq!(last_modified(last_date).unwrap(), "Fri, 31 Dec 9999 23:59:59 GMT");
    }

    #[test]
    fn an_empty_object_satisfies_no_range() {
        let map: HeaderMap = [("range".parse().unwrap(), "bytes=0-".parse().unwrap())].into_iter().collect();
        assert_eq!(evaluate(&Method::GET, &map, None, None, Some(0)), ConditionalOutcome::Unsatisfiable);
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
            ConditionalOutcome::Partial(1, 2)
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
        // An entity tag outweighs a date.
        assert_eq!(
            evaluate_headers(&[("if-none-match", "\"b\""), ("if-modified-since", same)]),
            ConditionalOutcome::Full
        );
    }

    #[test]
    fn if_range_decides_between_the_range_and_the_full_representation() {
        assert_eq!(
            evaluate_headers(&[("if-range", "\"a-1\""), ("range", "bytes=0-1")]),
            ConditionalOutcome::Partial(0, 2)
        );
        assert_eq!(evaluate_headers(&[("if-range", "\"b\""), ("range", "bytes=0-1")]), ConditionalOutcome::Full);
        assert_eq!(evaluate_headers(&[("if-range", "W/\"a-1\""), ("range", "bytes=0-1")]), ConditionalOutcome::Full);
        assert_eq!(evaluate_headers(&[("if-range", "\"b\""), ("range", "bytes=99-")]), ConditionalOutcome::Full);
        assert_eq!(evaluate_headers(&[("if-range", "garbage"), ("range", "bytes=0-1")]), ConditionalOutcome::Full);
        assert_eq!(evaluate_headers(&[("if-range", "a-1"), ("range", "bytes=0-1")]), ConditionalOutcome::Full);
        let date = "Sun, 09 Sep 2001 01:46:40 GMT";
        assert_eq!(evaluate_headers(&[("if-range", date), ("range", "bytes=0-1")]), ConditionalOutcome::Partial(0, 2));
        let later = "Sun, 09 Sep 2001 01:46:41 GMT";
        assert_eq!(evaluate_headers(&[("if-range", later), ("range", "bytes=0-1")]), ConditionalOutcome::Full);
    }
}
