//! Removes the header fields that the server does not read, so that a waiting request does not keep them in memory.

use axum::http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION,
    CONTENT_LENGTH, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH,
    IF_RANGE, IF_UNMODIFIED_SINCE, ORIGIN, RANGE, TRANSFER_ENCODING,
};

/// All header fields that any part of the server reads.
const READ_HEADERS: [HeaderName; 23] = [
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

/// Maximum number of header fields of a request that is left unchanged. Ordinary requests have fewer, and copying a few
/// fields costs more than it saves.
const STRIP_THRESHOLD: usize = 24;

/// Removes the fields that the server does not read, if there are more than [`STRIP_THRESHOLD`] fields. Copies the
/// other fields, so that they do not keep the receive buffer in memory. Returns true if it did so. Without this, a
/// waiting request with 97 fields takes 25 KiB.
pub(super) fn strip_unread_headers(headers: &mut HeaderMap) -> bool {
    if headers.len() <= STRIP_THRESHOLD {
        return false;
    }
    let mut filtered = HeaderMap::new();
    for name in READ_HEADERS {
        for value in headers.get_all(&name) {
            if let Ok(value) = HeaderValue::from_bytes(value.as_bytes()) {
                filtered.append(name.clone(), value);
            }
        }
    }
    *headers = filtered;
    true
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn only_read_fields_of_many_are_kept_in_their_order() {
        let mut headers = HeaderMap::new();
        for number in 0..30 {
            headers.append(HeaderName::from_bytes(format!("x-{number}").as_bytes()).unwrap(), "y".parse().unwrap());
        }
        for (name, value) in [("accept", "a/b"), ("range", "bytes=0-"), ("accept", "c/d"), ("x-request-id", "1")] {
            headers.append(name, value.parse().unwrap());
        }
        assert!(strip_unread_headers(&mut headers));
        let remaining: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        assert_eq!(remaining, [("accept", "a/b"), ("accept", "c/d"), ("range", "bytes=0-"), ("x-request-id", "1")]);
        let before = headers.clone();
        headers.append("cookie", "few".parse().unwrap());
        assert!(!strip_unread_headers(&mut headers));
        assert_eq!(headers.len(), before.len() + 1);
    }

    /// Fields that are named only for responses, are only counted (`cookie`), or are in lists of what browsers may
    /// send.
    const UNREAD_HEADERS: [&str; 32] = [
        "accept-range",
        "accept-ranges",
        "allow",
        "cache-control",
        "connection",
        "content-disposition",
        "content-encoding",
        "content-range",
        "content-security-policy",
        "content-type",
        "cookie",
        "date",
        "etag",
        "last-modified",
        "link",
        "location",
        "n5-axes",
        "n5-byte-order",
        "n5-data-type",
        "n5-level",
        "n5-missing-blocks",
        "n5-order",
        "n5-shape",
        "n5-start",
        "n5-step",
        "referrer-policy",
        "retry-after",
        "server-timing",
        "strict-transport-security",
        "vary",
        "www-authenticate",
        "x-content-type-options",
    ];

    /// Files and folders of `src` that name fields of requests to other servers, or no fields at all.
    const WITHOUT_FIELDS_OF_CLIENTS: [&str; 3] = ["src/config", "src/http_client", "src/store/remote"];

    /// Returns the part without tests of each source file below `directory`, except this file.
    #[expect(clippy::disallowed_methods, reason = "the test reads the source files")]
    fn sources(directory: &Path) -> Vec<String> {
        let paths = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let texts = paths.flat_map(|path| match path.extension() {
            None if WITHOUT_FIELDS_OF_CLIENTS.iter().any(|folder| path.ends_with(folder)) => Vec::new(),
            None => sources(&path),
            Some(extension) if extension == "rs" && !path.ends_with(file!()) => {
                let text = std::fs::read_to_string(path).unwrap();
                vec![text.split("#[cfg(test)]").next().unwrap().to_owned()]
            }
            Some(_) => Vec::new(),
        });
        texts.collect()
    }

    /// Returns true if `word` is written like a constant, as in `http::header`.
    fn is_constant(word: &str) -> bool {
        word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
    }

    /// Returns the names of header fields in a source file: imported constants, and strings that look like such names.
    fn header_names(text: &str) -> Vec<String> {
        let constants = text.split("header::").skip(1).flat_map(|rest| {
            let list = rest.strip_prefix('{').map_or_else(
                || rest.split(|c: char| !c.is_alphanumeric() && c != '_').next(),
                |rest| rest.split('}').next(),
            );
            list.unwrap_or_default().split(',').map(str::trim).filter(|word| is_constant(word))
        });
        let is_name = |name: &str| text.contains(&format!("HeaderName::from_static(\"{name}\")"));
        let strings = text.split('"').filter(|name| name.starts_with("x-") || is_name(name));
        let constant_names = constants.map(|word| word.to_ascii_lowercase().replace('_', "-"));
        constant_names.chain(strings.map(str::to_owned)).collect()
    }

    #[test]
    fn every_field_named_in_the_sources_is_listed_as_read_or_unread() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let names: BTreeSet<String> = sources(&root).iter().flat_map(|text| header_names(text)).collect();
        let is_read = |name: &str| READ_HEADERS.iter().any(|read| read == name);
        for name in &names {
            assert!(
                is_read(name) != UNREAD_HEADERS.contains(&name.as_str()),
                "{name}: add it to READ_HEADERS if the server reads it from requests, else to UNREAD_HEADERS"
            );
        }
        assert!(is_read("x-forwarded-prefix") && names.contains("x-forwarded-prefix") && names.contains("if-range"));
        let unnamed: Vec<_> = UNREAD_HEADERS.iter().filter(|name| !names.contains(**name)).collect();
        assert!(unnamed.is_empty(), "named in no source file: {unnamed:?}");
    }

    #[test]
    fn every_request_field_of_the_api_description_is_kept() {
        let api = include_str!("../../openapi.yaml");
        let names = api.match_indices("in: header").filter_map(|(at, _)| api.get(..at)?.rsplit_once("name: "));
        let names: Vec<String> = names.map(|(_, name)| name.trim().to_ascii_lowercase()).collect();
        assert!(names.len() > 9, "{names:?}");
        for name in names {
            assert!(READ_HEADERS.iter().any(|read| *read == name.as_str()), "{name}");
        }
    }
}
