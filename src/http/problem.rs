//! Problems: what went wrong with a request, and the response that says so, as a problem document (RFC 9457). Only this
//! file assigns statuses to errors of lower layers.

use axum::body::Body;
use axum::http::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RETRY_AFTER, VARY, WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use serde_json::{Map, Value, json};

use crate::cache::{BudgetError, ReadError};
use crate::http::redact::redacted_excerpt;
use crate::output::NegotiationError;
use crate::read::SliceRefusal;
use crate::store::StoreError;
use crate::telemetry::log_throttle::LogThrottle;
use n5_format::{BlockError, CodecError, ConvertError};

const MEDIA_TYPE: &str = "application/problem+json";

/// Beginning of the `type` URI of every problem. The name of the problem type follows.
pub(crate) const TYPE_BASE_URI: &str = "https://github.com/n5-server/n5-server/blob/main/docs/PROBLEMS.md#";

/// A problem type: the end of its `type` URI, its title, its status, and advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProblemType {
    /// End of the `type` URI.
    pub name: &'static str,
    /// The title.
    pub title: &'static str,
    /// The status.
    pub status: StatusCode,
    /// Advice for a person, which the page of the error shows.
    pub advice: &'static str,
}

macro_rules! problem_types {
    ($($ident:ident = $name:literal, $title:literal, $status:ident, $advice:literal;)*) => {
        $(
            #[doc = $title]
            pub const $ident: ProblemType =
                ProblemType { name: $name, title: $title, status: StatusCode::$status, advice: $advice };
        )*
        /// All problem types.
        pub const PROBLEM_TYPES: &[ProblemType] = &[$($ident),*];
    };
}

problem_types! {
    INVALID_PARAMETER = "invalid-parameter", "The path or a parameter is invalid", BAD_REQUEST,
        "Correct the address and open it again.";
    OUT_OF_BOUNDS = "out-of-bounds", "The region does not lie within the dataset", BAD_REQUEST,
        "Request a region within the dataset. Or add outside=clip to leave out what lies outside, or outside=zero to fill \
         it with zeros.";
    UNAUTHORIZED = "unauthorized", "A valid token is required", UNAUTHORIZED,
        "Enter a token. The operator of this server can give you one.";
    NOT_FOUND = "not-found", "Nothing exists at this path", NOT_FOUND,
        "Check the spelling of the address; capital and small letters differ. What was here may also have been moved or \
         deleted.";
    NOT_A_DATASET = "not-a-dataset", "This is not a dataset", NOT_FOUND,
        "Open the group, and choose one of the datasets in it.";
    METHOD_NOT_ALLOWED = "method-not-allowed", "Only GET, HEAD and OPTIONS are supported", METHOD_NOT_ALLOWED,
        "Nothing can be changed or sent here, because this server only reads.";
    NOT_ACCEPTABLE = "not-acceptable", "No format matches Accept", NOT_ACCEPTABLE,
        "Choose a format by adding format= and its name to the address.";
    PRECONDITION_FAILED = "precondition-failed", "The object does not match the request's precondition", PRECONDITION_FAILED,
        "The data has changed since it was last read. Read it again.";
    TOO_LARGE = "too-large", "The request exceeds a limit", PAYLOAD_TOO_LARGE,
        "Request a smaller region, a coarser level, or several pieces. The operator of this server can raise the limit.";
    RANGE_NOT_SATISFIABLE = "range-not-satisfiable", "The range is outside the object", RANGE_NOT_SATISFIABLE,
        "Request bytes that the object has.";
    CORRUPT_BLOCK = "corrupt-block", "A stored block is damaged", UNPROCESSABLE_ENTITY,
        "The rest of the dataset can still be read. Tell the owner of the data, who can write the block again. The command \
         n5-server verify finds all damaged blocks.";
    UNREADABLE = "unreadable", "The server cannot read an object that the response needs", UNPROCESSABLE_ENTITY,
        "The rest of the dataset can still be read. Tell the operator of this server, who can give it the right to read the \
         object.";
    NOT_REPRESENTABLE = "not-representable", "The requested type cannot represent a value in the region", UNPROCESSABLE_ENTITY,
        "Request another type with dtype=, or leave dtype out to get the values as they are stored.";
    TOO_MANY = "too-many", "Too many concurrent requests", TOO_MANY_REQUESTS,
        "Wait a moment, then try again. If a program of yours is reading from this server, let it send fewer requests at once.";
    INTERNAL = "internal", "Internal server error", INTERNAL_SERVER_ERROR,
        "This is a fault in the server. Please report it, with the request ID, to the operator of the server.";
    UNSUPPORTED = "unsupported", "This server cannot decode the data", NOT_IMPLEMENTED,
        "The blocks can be downloaded as they are stored, and decoded by a program that knows the compression.";
    STORAGE_UNAVAILABLE = "storage-unavailable", "The storage is unavailable", SERVICE_UNAVAILABLE,
        "Wait a moment, then try again. If it does not help, tell the operator of this server, and give the request ID.";
    ISSUER_UNAVAILABLE = "issuer-unavailable", "The token cannot be verified at the moment", SERVICE_UNAVAILABLE,
        "Wait a moment, then try again. Public data can be opened without a token.";
    OVERLOADED = "overloaded", "The server is overloaded", SERVICE_UNAVAILABLE,
        "Many requests are in progress. Wait a moment, then try again.";
    TIMEOUT = "timeout", "The request timed out", GATEWAY_TIMEOUT,
        "Request a smaller region or a coarser level, or try again later.";
}

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

const BASIC_CHALLENGE: HeaderValue = HeaderValue::from_static("Basic realm=\"n5-server\", charset=\"UTF-8\"");

/// Detail of the 404 of a key.
pub(crate) const NO_SUCH_KEY: &str = "no such key";

/// Seconds after which a client may retry.
const RETRY_SECONDS: &str = "1";

/// An error that becomes a problem response.
#[derive(Debug)]
pub struct Problem(Box<ProblemInner>);

#[derive(Debug)]
struct ProblemInner {
    problem_type: ProblemType,
    detail: String,
    members: Map<String, Value>,
    headers: HeaderMap,
    /// Number of leading segments of the requested path that lead to a directory, to which the error's page links.
    directory: usize,
    /// Text for the log. Unlike the detail, which clients get, it may reveal internals.
    cause: Option<String>,
}

impl Problem {
    /// Creates a problem of type `problem_type`. `detail` says what was requested, what is allowed, and what to do.
    pub fn new(problem_type: ProblemType, detail: impl Into<String>) -> Self {
        Self(Box::new(ProblemInner {
            problem_type,
            detail: detail.into(),
            members: Map::new(),
            headers: HeaderMap::new(),
            directory: 0,
            cause: None,
        }))
    }

    /// Adds an extension member.
    #[must_use]
    pub fn with_member(mut self, member: &str, value: impl Into<Value>) -> Self {
        self.0.members.insert(member.to_owned(), value.into());
        self
    }

    /// Creates a problem that the server is responsible for. `cause` is only logged. A 503 gets `Retry-After`.
    pub fn with_cause(problem_type: ProblemType, detail: &str, cause: impl Into<String>) -> Self {
        let mut problem = Self::new(problem_type, detail);
        problem.0.cause = Some(cause.into());
        if problem_type.status == StatusCode::SERVICE_UNAVAILABLE { problem.with_retry_after() } else { problem }
    }

    /// Creates a 500. `cause` is only logged.
    #[expect(clippy::needless_pass_by_value, reason = "`map_err` passes an error by value")]
    pub fn internal(cause: impl ToString) -> Self {
        Self::with_cause(INTERNAL, "internal server error", cause.to_string())
    }

    /// Adds `Retry-After`, for a problem that may be temporary.
    #[must_use]
    pub fn with_retry_after(self) -> Self {
        self.with_header(RETRY_AFTER, RETRY_SECONDS)
    }

    /// Sets a header of the response, if `value` can be one.
    fn with_header(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.0.headers.insert(name, value);
        }
        self
    }

    /// Creates a 400 for a parameter whose value is invalid or conflicts with other parameters.
    pub(crate) fn invalid_parameter(parameter: &str, detail: impl Into<String>) -> Self {
        Self::new(INVALID_PARAMETER, detail).with_member("parameter", parameter)
    }

    /// Creates a 413 with the limit that is exceeded.
    pub(crate) fn too_large(detail: impl Into<String>, limit: u64) -> Self {
        Self::new(TOO_LARGE, detail).with_member("limit", limit)
    }

    /// Creates a 404 for a key that does not exist.
    pub fn not_found() -> Self {
        Self::new(NOT_FOUND, NO_SUCH_KEY)
    }

    /// Creates a 401 (RFC 6750). `reason` says why the token is invalid. `None` means that a token is required, but
    /// missing.
    pub fn unauthorized(reason: Option<&str>) -> Self {
        let (detail, challenge) = match reason {
            None => ("a token is required: Authorization: Bearer, ?token= or /token/TOKEN/".to_owned(), String::new()),
            Some(reason) => (reason.to_owned(), format!(", error=\"invalid_token\", error_description=\"{reason}\"")),
        };
        let challenge = format!("Bearer realm=\"n5-server\"{challenge}");
        Self::new(UNAUTHORIZED, detail).no_store().with_header(WWW_AUTHENTICATE, &challenge)
    }

    /// Forbids caching, and marks the response as dependent on `Authorization`.
    #[must_use]
    pub fn no_store(self) -> Self {
        self.with_vary("authorization").with_cache_control(NO_STORE)
    }

    /// Creates a 405.
    pub fn method_not_allowed() -> Self {
        Self::new(METHOD_NOT_ALLOWED, "this server is read-only; use GET, HEAD or OPTIONS")
            .with_header(ALLOW, "GET, HEAD, OPTIONS")
    }

    /// Creates a 416 for an object of `len` bytes.
    pub fn range_not_satisfiable(len: u64) -> Self {
        Self::new(RANGE_NOT_SATISFIABLE, format!("the object has {len} bytes; request a range within them"))
            .with_header(CONTENT_RANGE, &format!("bytes */{len}"))
    }

    /// Sets `Cache-Control` if this is a 404. Other problems may be temporary and are not cached.
    #[must_use]
    pub fn with_cache_control_if_missing(self, policy: HeaderValue) -> Self {
        if self.is_missing() { self.with_cache_control(policy) } else { self }
    }

    fn with_cache_control(mut self, policy: HeaderValue) -> Self {
        self.0.headers.insert(CACHE_CONTROL, policy);
        self
    }

    /// Adds the hint that the region can be requested in pieces of the shape `piece`.
    pub(crate) fn with_piece_hint(mut self, piece: Option<&[u64]>) -> Self {
        let Some(piece) = piece else { return self };
        let shape = piece.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let hint = format!("; split it into pieces of at most {shape} elements along the axes");
        self.0.detail.push_str(&hint);
        self.with_member("piece", piece)
    }

    /// Sets the number of leading segments of the requested path that lead to a directory which the caller may open.
    #[must_use]
    pub(crate) fn with_directory(mut self, segments: usize) -> Self {
        self.0.directory = segments;
        self
    }

    /// Returns the number of leading segments of the requested path that lead to a directory.
    pub(crate) fn directory(&self) -> usize {
        self.0.directory
    }

    /// Returns the problem type.
    pub(crate) fn problem_type(&self) -> ProblemType {
        self.0.problem_type
    }

    /// Returns the detail: what was requested, what is allowed, and what to do.
    pub(crate) fn detail(&self) -> &str {
        &self.0.detail
    }

    /// Logs the problem if the server or the data is at fault.
    pub(crate) fn log(&self, id: &str, path: &str) {
        static LOG_THROTTLES: [LogThrottle; 5] = [const { LogThrottle::new() }; 5];
        let status = self.0.problem_type.status.as_u16();
        let path = redacted_excerpt(path);
        // A single storage fault, damaged block or moment of overload can make thousands of requests fail, so these
        // lines are throttled.
        let throttle_index = [STORAGE_UNAVAILABLE, TIMEOUT, OVERLOADED, UNREADABLE, CORRUPT_BLOCK]
            .iter()
            .position(|kind| *kind == self.0.problem_type);
        let Some(suppressed) = throttle_index.and_then(|n| LOG_THROTTLES.get(n)).map_or(Some(0), LogThrottle::allow)
        else {
            return;
        };
        match &self.0.cause {
            // Not an error: these problems are expected under load and at shutdown.
            Some(cause) if self.0.problem_type == OVERLOADED => {
                tracing::warn!(id, path, status, cause, suppressed, "request refused");
            }
            Some(cause) => tracing::error!(id, path, status, cause, suppressed, "request failed"),
            None if self.0.problem_type == CORRUPT_BLOCK => {
                tracing::error!(id, path, status, cause = self.0.detail, suppressed, "request failed");
            }
            None => {}
        }
    }

    /// Adds a name to `Vary`, unless it is there.
    #[must_use]
    pub fn with_vary(mut self, name: &'static str) -> Self {
        if !self.0.headers.get_all(VARY).iter().any(|known| known == name) {
            self.0.headers.append(VARY, HeaderValue::from_static(name));
        }
        self
    }

    /// Adds `Vary: accept` if a cache may store the response.
    #[must_use]
    pub(crate) fn with_vary_if_cacheable(self) -> Self {
        let is_stored = self.0.headers.get(CACHE_CONTROL).is_some_and(|policy| policy != NO_STORE);
        if is_stored { self.with_vary("accept") } else { self }
    }

    /// Adds the challenge of HTTP Basic, at which browsers ask for a name and a password.
    #[must_use]
    pub(crate) fn with_basic_challenge(mut self) -> Self {
        self.0.headers.append(WWW_AUTHENTICATE, BASIC_CHALLENGE);
        self
    }

    /// Returns true if there are too many requests: of all clients, or of this client.
    pub(crate) fn is_overload(&self) -> bool {
        [OVERLOADED, TOO_MANY].contains(&self.0.problem_type)
    }

    /// Builds the response. `instance` is the request's path. If the server is at fault, the document has the request's
    /// id.
    pub fn into_response(self, instance: &str, request_id: &str) -> Response<Body> {
        let mut document = Map::new();
        let is_server_fault = self.0.cause.is_some();
        let detail = &self.0.detail;
        let detail = if is_server_fault { format!("{detail}; request {request_id}") } else { detail.clone() };
        document.insert("type".into(), format!("{TYPE_BASE_URI}{}", self.0.problem_type.name).into());
        document.insert("title".into(), self.0.problem_type.title.into());
        document.insert("status".into(), self.0.problem_type.status.as_u16().into());
        document.insert("detail".into(), detail.into());
        document.insert("instance".into(), redacted_excerpt(instance).into());
        if is_server_fault {
            document.insert("request_id".into(), request_id.into());
        }
        document.extend(self.0.members.clone());
        let mut response = self.with_body(Value::Object(document).to_string());
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        response
    }

    /// Builds the response to a request for a key. The 404 of a missing key has a body only if `Accept` in `headers`
    /// names problem documents.
    pub(crate) fn into_key_response(self, headers: &HeaderMap, instance: &str, request_id: &str) -> Response<Body> {
        if !self.is_missing() {
            return self.into_response(instance, request_id);
        }
        let wants_body = headers.get_all(ACCEPT).iter().any(|accept| Self::is_named_in_accept(accept.as_bytes()));
        if wants_body {
            self.with_vary("accept").into_response(instance, request_id)
        } else {
            self.into_bodyless_response()
        }
    }

    /// Builds the response without a body.
    ///
    /// Clients request thousands of missing keys and never read the bodies of these 404s. If there were bodies, the JDK
    /// would not reuse a connection until its garbage collector has run.
    pub(crate) fn into_bodyless_response(self) -> Response<Body> {
        self.with_body(String::new())
    }

    /// Returns true if an `Accept` header names `application/problem+json`. The 404 response for a missing key then has
    /// a problem document as its body.
    pub(crate) fn is_named_in_accept(accept: &[u8]) -> bool {
        accept.windows(MEDIA_TYPE.len()).any(|part| part.eq_ignore_ascii_case(MEDIA_TYPE.as_bytes()))
    }

    /// Builds the response whose body is the page of this problem.
    pub(crate) fn into_page_response(self, html: String) -> Response<Body> {
        let mut response = self.with_vary("accept").with_body(html);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
        response
    }

    fn is_missing(&self) -> bool {
        self.0.problem_type.status == StatusCode::NOT_FOUND
    }

    fn with_body(self, body: String) -> Response<Body> {
        let mut headers = self.0.headers;
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        headers.entry(CACHE_CONTROL).or_insert(NO_STORE);
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.0.problem_type.status;
        *response.headers_mut() = headers;
        response
    }
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NotFound(key) => {
                Self::new(NOT_FOUND, format!("there is no group or dataset /{key} in this container"))
            }
            ReadError::NotADataset { key, reason } => {
                Self::new(NOT_A_DATASET, format!("/{key} is not a dataset: {reason}")).with_member("reason", reason)
            }
            ReadError::AttributesTooLarge { key, bytes, limit_bytes } => {
                let detail = format!(
                    "the attributes of /{key} have {bytes} bytes; limits.attributes and limits.transfer_budget allow \
                     {limit_bytes}"
                );
                Self::too_large(detail, limit_bytes)
            }
            ReadError::StoredTooLarge { key, bytes, limit_bytes } => {
                let detail = format!(
                    "the stored block /{key} has {bytes} bytes; limits.decode_budget allows blocks of \
                     {limit_bytes} bytes to be decoded; the block itself can be fetched as stored"
                );
                Self::too_large(detail, limit_bytes)
            }
            ReadError::TooLarge(detail) => Self::new(TOO_LARGE, detail),
            ReadError::InvalidParameter { parameter, detail, known } => {
                let problem = Self::invalid_parameter(parameter, detail);
                if known.is_empty() { problem } else { problem.with_member("known", known) }
            }
            ReadError::NotRepresentable(detail) => Self::new(NOT_REPRESENTABLE, detail),
            ReadError::Convert(error) => conversion_problem(error),
            ReadError::Block { key, position, error } => block_problem(&key, &position, error),
            ReadError::Store(error) => store_problem(&error),
            ReadError::Budget(BudgetError::TooLarge { budget, asked_bytes, capacity_bytes }) => Self::too_large(
                format!("this needs {asked_bytes} bytes of memory; limits.{budget}_budget allows {capacity_bytes}"),
                capacity_bytes,
            ),
            ReadError::Budget(error @ BudgetError::TimedOut { .. }) => {
                Self::with_cause(OVERLOADED, "no memory became free in time; try again", error.to_string())
            }
            ReadError::Internal(cause) => Self::internal(cause),
        }
    }
}

fn store_problem(error: &StoreError) -> Problem {
    let unreadable = |detail: String| Problem::with_cause(UNREADABLE, &detail, error.to_string());
    let (kind, detail) = match error {
        StoreError::LinkNotFollowed(key) => {
            return unreadable(format!(
                "the path to /{key} contains a symbolic link that the server does not follow; see the setting symlinks"
            ));
        }
        StoreError::DanglingLink(key) => {
            return unreadable(format!(
                "/{key} is a link that leads nowhere, or is below one; fetch the link's target"
            ));
        }
        StoreError::Io { key, .. } if error.hides_object() => {
            return unreadable(format!("the server has no permission to read /{key}"));
        }
        StoreError::CannotList(key, _) => {
            return unreadable(format!(
                "the storage of this container has no listing of /{key}; its objects can be requested by their paths"
            ));
        }
        StoreError::Throttled(_, _, pause) => {
            let detail = "the storage asks for fewer requests; try again later";
            let seconds = pause.as_secs().max(1).to_string();
            return Problem::with_cause(STORAGE_UNAVAILABLE, detail, error.to_string())
                .with_header(RETRY_AFTER, &seconds);
        }
        StoreError::Denied { .. } => (
            STORAGE_UNAVAILABLE,
            "the storage refuses the requests of this server; its operator finds the reason in the log",
        ),
        StoreError::Timeout(..) => (TIMEOUT, "the storage did not respond in time"),
        StoreError::Io { .. } | StoreError::Truncated(_) | StoreError::Torn(_) => {
            (STORAGE_UNAVAILABLE, "the storage failed, perhaps temporarily; try again")
        }
        StoreError::RootMissing(_) => {
            (STORAGE_UNAVAILABLE, "the container's root directory is missing, so its content is unknown")
        }
        StoreError::KeyStalled(..) => {
            (STORAGE_UNAVAILABLE, "the storage does not respond for this object; try again later")
        }
        StoreError::Overloaded(..) | StoreError::Preempted(_) => {
            (STORAGE_UNAVAILABLE, "too many requests wait for the storage; try again later")
        }
        StoreError::Stalled(..) => (STORAGE_UNAVAILABLE, "the storage has not responded for a while; try again later"),
    };
    Problem::with_cause(kind, detail, error.to_string())
}

fn conversion_problem(error: ConvertError) -> Problem {
    match error {
        ConvertError::NotRepresentable { value, from, to, .. } => Problem::new(
            NOT_REPRESENTABLE,
            format!(
                "the region holds {value} ({from}), which {to} cannot represent exactly; use a dtype that can, \
                 float32 or float64 to round it, or no dtype to get the elements unchanged"
            ),
        )
        .with_member("value", value)
        .with_member("from", from.name())
        .with_member("to", to.name()),
        error @ (ConvertError::Unsupported(_) | ConvertError::Length { .. } | ConvertError::Memory(_)) => {
            Problem::internal(error)
        }
    }
}

fn block_problem(key: &crate::store::Key, position: &[u64], error: BlockError) -> Problem {
    match error {
        BlockError::Unsupported(feature) => {
            Problem::new(UNSUPPORTED, format!("block /{key}: {feature}; it can be fetched as stored"))
        }
        BlockError::OverLimit { needed_bytes, limit_bytes } => {
            let detail = format!(
                "decoding block /{key} takes {needed_bytes} bytes; limits.decode_budget allows {limit_bytes}; \
                 the block itself can be fetched as stored"
            );
            Problem::too_large(detail, limit_bytes)
        }
        // Decoding is never cancelled while a request is waiting for it.
        error @ BlockError::Payload(CodecError::Cancelled) => Problem::internal(error),
        error @ (BlockError::ShortHeader { .. }
        | BlockError::UnknownMode(_)
        | BlockError::Rank { .. }
        | BlockError::TooLargeForGrid { .. }
        | BlockError::Implausible { .. }
        | BlockError::Payload(_)) => {
            Problem::new(CORRUPT_BLOCK, format!("block /{key}: {error}")).with_member("block", json!(position))
        }
    }
}

impl From<SliceRefusal> for Problem {
    fn from(refusal: SliceRefusal) -> Self {
        match refusal {
            SliceRefusal::TooLarge { bytes, limit_bytes } => {
                let bytes = bytes.map_or_else(|| "more than 2^64".to_owned(), |bytes| bytes.to_string());
                let detail = format!("the response has {bytes} bytes; limits.slice allows {limit_bytes}");
                Self::too_large(detail, limit_bytes)
            }
            SliceRefusal::TooCostly { decoded_bytes, bytes, limit_bytes, .. } => {
                let detail = format!(
                    "{decoded_bytes} bytes would be decoded for an answer of {bytes}; \
                     limits.decode_factor allows {limit_bytes}"
                );
                Self::too_large(detail, u64::try_from(limit_bytes).unwrap_or(u64::MAX))
            }
        }
    }
}

impl From<NegotiationError> for Problem {
    fn from(error: NegotiationError) -> Self {
        let (kind, known) = match &error {
            NegotiationError::UnknownFormat { known, .. } => (INVALID_PARAMETER, known.clone()),
            NegotiationError::NotAcceptable { known } => (NOT_ACCEPTABLE, known.clone()),
        };
        Self::new(kind, error.to_string()).with_member("known", known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Problem {
        /// Returns the name of the type, the detail and the extension members.
        pub(crate) fn content(&self) -> (&'static str, &str, &Map<String, Value>) {
            (self.0.problem_type.name, &self.0.detail, &self.0.members)
        }
    }

    #[test]
    fn no_permanent_fault_has_a_status_that_clients_retry() {
        let temporary = [TOO_MANY, STORAGE_UNAVAILABLE, ISSUER_UNAVAILABLE, OVERLOADED, TIMEOUT, INTERNAL];
        for kind in PROBLEM_TYPES.iter().filter(|kind| !temporary.contains(kind)) {
            assert!(![308, 408, 429, 500, 502, 503, 504].contains(&kind.status.as_u16()), "{}", kind.name);
        }
    }

    #[test]
    fn the_internal_cause_is_only_logged() {
        let problem = Problem::with_cause(STORAGE_UNAVAILABLE, "the storage failed", "read /secret: EIO");
        assert!(!problem.0.detail.contains("secret"));
        let response = problem.into_response("/a", "id7");
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
    }
}
