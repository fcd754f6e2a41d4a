//! The header fields of a request that are kept while it waits: those that the server reads.

use axum::http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION,
    CONTENT_LENGTH, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    IF_RANGE, IF_UNMODIFIED_SINCE, ORIGIN, RANGE, TRANSFER_ENCODING,
};

/// All that any part of the server reads.
const READ: [HeaderName; 23] = [
    ACCEPT,
    ACCEPT_ENCODING,
    ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD,
    HeaderName::from_static("access-control-request-private-network"),
    AUTHORIZATION,
    CONTENT_LENGTH,
    FORWARDED,
    HOST,
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    IF_RANGE,
    IF_UNMODIFIED_SINCE,
    ORIGIN,
    RANGE,
    TRANSFER_ENCODING,
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-forwarded-host"),
    HeaderName::from_static("x-forwarded-prefix"),
    HeaderName::from_static("x-forwarded-proto"),
    HeaderName::from_static("x-request-id"),
];

/// Fields of an ordinary request, which are not worth the copy.
const FEW: usize = 24;

/// Drops the fields that the server does not read, and copies the others out of the buffer that they came in, where there are more than
/// a few: 97 fields took 25 KiB as long as their request waited. Returns true if it did.
pub(super) fn keep_read(headers: &mut HeaderMap) -> bool {
    if headers.len() <= FEW {
        return false;
    }
    let mut kept = HeaderMap::new();
    for name in READ {
        for value in headers.get_all(&name) {
            if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
                kept.append(name.clone(), value);
            }
        }
    }
    *headers = kept;
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_fields_those_that_are_read_are_kept_in_their_order() {
        let mut headers = HeaderMap::new();
        for number in 0..30 {
            headers.append(HeaderName::from_bytes(format!("x-{number}").as_bytes()).unwrap(), "y".parse().unwrap());
        }
        for (name, value) in [("accept", "a/b"), ("range", "bytes=0-"), ("accept", "c/d"), ("x-request-id", "1")] {
            headers.append(name, value.parse().unwrap());
        }
        assert!(keep_read(&mut headers));
        let left: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(left, [("accept", "a/b"), ("accept", "c/d"), ("range", "bytes=0-"), ("x-request-id", "1")]);
        let before = headers.clone();
        headers.append("cookie", "few".parse().unwrap());
        assert!(!keep_read(&mut headers));
        assert_eq!(headers.len(), before.len() + 1);
    }
}
