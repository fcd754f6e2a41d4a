//! Every error answer: RFC 9457 problem documents, and the one place that gives errors their status.

mod causes;

use axum::body::Body;
use axum::http::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RETRY_AFTER, VARY, WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::{Map, Value};

use super::observe::shown;
use crate::seldom::Seldom;

const MEDIA_TYPE: &str = "application/problem+json";

/// Where the problem types are described.
const TYPES: &str = "https://github.com/n5-server/n5-server/blob/main/docs/PROBLEMS.md#";

/// A kind of problem: the end of its `type`, its title and its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// What `type` ends in.
    pub name: &'static str,
    /// The title.
    pub title: &'static str,
    /// The status.
    pub status: StatusCode,
}

macro_rules! kinds {
    ($($ident:ident = $name:literal, $title:literal, $status:ident;)*) => {
        $(
            #[doc = $title]
            pub const $ident: Kind = Kind { name: $name, title: $title, status: StatusCode::$status };
        )*
        /// Every kind of problem.
        pub const KINDS: &[Kind] = &[$($ident),*];
    };
}

kinds! {
    INVALID_PARAMETER = "invalid-parameter", "The path or a parameter cannot be used", BAD_REQUEST;
    OUT_OF_BOUNDS = "out-of-bounds", "The region does not lie within the dataset", BAD_REQUEST;
    UNAUTHORIZED = "unauthorized", "A valid token is needed", UNAUTHORIZED;
    NOT_FOUND = "not-found", "There is nothing of that name", NOT_FOUND;
    NOT_A_DATASET = "not-a-dataset", "This is not a dataset", NOT_FOUND;
    METHOD_NOT_ALLOWED = "method-not-allowed", "Only GET, HEAD and OPTIONS are served", METHOD_NOT_ALLOWED;
    NOT_ACCEPTABLE = "not-acceptable", "No format matches Accept", NOT_ACCEPTABLE;
    PRECONDITION_FAILED = "precondition-failed", "The object is another one than the request names", PRECONDITION_FAILED;
    TOO_LARGE = "too-large", "The request exceeds a limit", PAYLOAD_TOO_LARGE;
    RANGE_NOT_SATISFIABLE = "range-not-satisfiable", "The range lies beyond the object", RANGE_NOT_SATISFIABLE;
    CORRUPT_BLOCK = "corrupt-block", "A stored block is damaged", UNPROCESSABLE_ENTITY;
    UNREADABLE = "unreadable", "What the answer needs may not be read", UNPROCESSABLE_ENTITY;
    NOT_REPRESENTABLE = "not-representable", "The type asked for does not have a value of the region", UNPROCESSABLE_ENTITY;
    TOO_MANY = "too-many", "You ask for too much at once", TOO_MANY_REQUESTS;
    INTERNAL = "internal", "The server has a fault", INTERNAL_SERVER_ERROR;
    UNSUPPORTED = "unsupported", "This is not decoded by this server", NOT_IMPLEMENTED;
    STORAGE_UNAVAILABLE = "storage-unavailable", "The storage does not answer", SERVICE_UNAVAILABLE;
    ISSUER_UNAVAILABLE = "issuer-unavailable", "Who asks cannot be known now", SERVICE_UNAVAILABLE;
    OVERLOADED = "overloaded", "The server has too much to do", SERVICE_UNAVAILABLE;
    TIMEOUT = "timeout", "It took too long", GATEWAY_TIMEOUT;
}

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Seconds after which a client may try again.
const RETRY_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// An error answer in the making.
#[derive(Debug)]
pub struct Problem(Box<Parts>);

#[derive(Debug)]
struct Parts {
    kind: Kind,
    detail: String,
    members: Map<String, Value>,
    headers: HeaderMap,
    /// What the log says instead of the detail, which never carries what happened inside.
    cause: Option<String>,
}

impl Problem {
    /// A problem of that kind; `detail` says what was asked, what is allowed and what to do.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        let (members, headers) = (Map::new(), HeaderMap::new());
        Self(Box::new(Parts { kind, detail: detail.into(), members, headers, cause: None }))
    }

    /// With a further member.
    #[must_use]
    pub fn with(mut self, member: &str, value: impl Into<Value>) -> Self {
        self.0.members.insert(member.to_owned(), value.into());
        self
    }

    /// A problem of the server's own; `cause` goes to the log only.
    pub fn own(kind: Kind, detail: &str, cause: impl Into<String>) -> Self {
        let mut problem = Self::new(kind, detail);
        problem.0.cause = Some(cause.into());
        if kind.status == StatusCode::SERVICE_UNAVAILABLE { problem.passing() } else { problem }
    }

    /// With the time after which it may have gone away.
    #[must_use]
    pub fn passing(mut self) -> Self {
        self.0.headers.insert(RETRY_AFTER, RETRY_SECONDS);
        self
    }

    /// 404 for what is not there.
    pub fn missing() -> Self {
        Self::new(NOT_FOUND, "no such key")
    }

    /// 401 (RFC 6750): no token where one is needed, or one that is wrong, and why.
    pub fn unauthorized(why: Option<&str>) -> Self {
        let (detail, challenge) = match why {
            None => ("a token is needed: Authorization: Bearer, ?token= or /token/TOKEN/".to_owned(), String::new()),
            Some(why) => (why.to_owned(), format!(", error=\"invalid_token\", error_description=\"{why}\"")),
        };
        let mut problem = Self::new(UNAUTHORIZED, detail).uncached();
        if let Ok(challenge) = HeaderValue::from_str(&format!("Bearer realm=\"n5-server\"{challenge}")) {
            problem.0.headers.insert(WWW_AUTHENTICATE, challenge);
        }
        problem
    }

    /// For nobody to keep, and not the same for everybody.
    #[must_use]
    pub fn uncached(self) -> Self {
        self.varying("authorization").with_policy(NO_STORE)
    }

    /// 405.
    pub fn method() -> Self {
        let mut problem = Self::new(METHOD_NOT_ALLOWED, "this server only reads; use GET, HEAD or OPTIONS");
        problem.0.headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD, OPTIONS"));
        problem
    }

    /// 416 for an object of `len` bytes.
    pub fn range(len: u64) -> Self {
        let mut problem =
            Self::new(RANGE_NOT_SATISFIABLE, format!("the object has {len} bytes; ask for a range within them"));
        if let Ok(range) = HeaderValue::from_str(&format!("bytes */{len}")) {
            problem.0.headers.insert(CONTENT_RANGE, range);
        }
        problem
    }

    /// With `Cache-Control`, where it says that something is missing: all else may pass, and is for nobody to keep.
    #[must_use]
    pub fn cached(self, policy: HeaderValue) -> Self {
        if self.is_missing() { self.with_policy(policy) } else { self }
    }

    fn with_policy(mut self, policy: HeaderValue) -> Self {
        self.0.headers.insert(CACHE_CONTROL, policy);
        self
    }

    /// Says in the log, once, what is the server's own or the data's fault.
    pub(super) fn log(&self, id: &str, path: &str) {
        static SELDOM: [Seldom; 5] = [const { Seldom::new() }; 5];
        let (status, path) = (self.0.kind.status.as_u16(), shown(path));
        // One fault of the storage, one damaged block or one moment of overload fails requests by the thousand.
        let seldom = [STORAGE_UNAVAILABLE, TIMEOUT, OVERLOADED, UNREADABLE, CORRUPT_BLOCK]
            .iter()
            .position(|kind| *kind == self.0.kind);
        let Some(unsaid) = seldom.and_then(|n| SELDOM.get(n)).map_or(Some(0), Seldom::may_say) else { return };
        match &self.0.cause {
            // Expected under load and at shutdown.
            Some(cause) if self.0.kind == OVERLOADED => {
                tracing::warn!(id, path, status, cause, unsaid, "request refused");
            }
            Some(cause) => tracing::error!(id, path, status, cause, unsaid, "request failed"),
            None if self.0.kind == CORRUPT_BLOCK => {
                tracing::error!(id, path, status, cause = self.0.detail, unsaid, "request failed");
            }
            None => {}
        }
    }

    /// With a name added to `Vary`.
    #[must_use]
    pub fn varying(mut self, name: &'static str) -> Self {
        self.0.headers.append(VARY, HeaderValue::from_static(name));
        self
    }

    /// Whether it says that there are too many requests.
    pub(super) fn is_of_load(&self) -> bool {
        [OVERLOADED, TOO_MANY].contains(&self.0.kind)
    }

    /// The answer. `instance` is the request's path; a problem of the server's own names the request.
    pub fn into_response(self, instance: &str, request_id: &str) -> Response<Body> {
        let mut document = Map::new();
        let (detail, own) = (&self.0.detail, self.0.cause.is_some());
        let detail = if own { format!("{detail}; request {request_id}") } else { detail.clone() };
        document.insert("type".into(), format!("{TYPES}{}", self.0.kind.name).into());
        document.insert("title".into(), self.0.kind.title.into());
        document.insert("status".into(), self.0.kind.status.as_u16().into());
        document.insert("detail".into(), detail.into());
        document.insert("instance".into(), shown(instance).into());
        if own {
            document.insert("request_id".into(), request_id.into());
        }
        document.extend(self.0.members.clone());
        let mut response = self.with_body(Value::Object(document).to_string());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        response
    }

    /// The answer to a request for a key: without a body where the key is missing, unless `headers` ask for one.
    pub(super) fn of_key(self, headers: &HeaderMap, instance: &str, request_id: &str) -> Response<Body> {
        if !self.is_missing() {
            return self.into_response(instance, request_id);
        }
        let is_named = headers.get_all(ACCEPT).iter().any(|accept| Self::is_named_by(accept.as_bytes()));
        if is_named { self.varying("accept").into_response(instance, request_id) } else { self.of_missing_key() }
    }

    /// Clients ask for thousands of missing keys and read no body of any: if there was one, the JDK would not use the
    /// connection again before its garbage collector has run.
    pub(super) fn of_missing_key(self) -> Response<Body> {
        self.with_body(String::new())
    }

    /// Whether an `Accept` names problem documents: then a missing key has one, too.
    pub(super) fn is_named_by(accept: &[u8]) -> bool {
        accept.windows(MEDIA_TYPE.len()).any(|part| part.eq_ignore_ascii_case(MEDIA_TYPE.as_bytes()))
    }

    fn is_missing(&self) -> bool {
        self.0.kind.status == StatusCode::NOT_FOUND
    }

    fn with_body(self, body: String) -> Response<Body> {
        let mut headers = self.0.headers;
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        headers.entry(CACHE_CONTROL).or_insert(NO_STORE);
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.0.kind.status;
        *response.headers_mut() = headers;
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_permanent_fault_has_a_status_that_clients_retry() {
        let passing = [TOO_MANY, STORAGE_UNAVAILABLE, ISSUER_UNAVAILABLE, OVERLOADED, TIMEOUT, INTERNAL];
        for kind in KINDS.iter().filter(|kind| !passing.contains(kind)) {
            assert!(![308, 408, 429, 500, 502, 503, 504].contains(&kind.status.as_u16()), "{}", kind.name);
        }
    }

    #[test]
    fn what_happened_inside_goes_to_the_log_only() {
        let problem = Problem::own(STORAGE_UNAVAILABLE, "the storage failed", "read /secret: EIO");
        assert!(!problem.0.detail.contains("secret"));
        let response = problem.into_response("/a", "id7");
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
    }
}
