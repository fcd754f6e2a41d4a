//! Sends the requests of one remote root and turns failures into errors of the store.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::http::header::{ACCEPT_ENCODING, HeaderName, HeaderValue, TRANSFER_ENCODING};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use bytes::Bytes;
use http_body::Body;
use http_body_util::{BodyExt, Full};
use object_store::client::{
    HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody, HttpService,
};
use tokio::time::Instant;

use super::super::disk_pool::StorePressure;
use super::super::error::StoreError;
use super::super::key::Key;
use super::failure::error_of_answer;
use super::listing::ErrorAnswer;
use super::location::Location;
use super::signer::Signer;
use super::upstream::{
    FailureKind, HeldPermit, RetryCount, UpstreamContext, UpstreamFailure, UpstreamOperation, UpstreamService,
    error_answer,
};
use super::waiting_calls::WaitingCalls;
use crate::http_client::HttpClient;

/// Maximum number of bytes of a body that is read only to use its connection again.
const MAX_DISCARDED_BYTES: u64 = 256 << 10;

/// Maximum time in which such a body is read.
const MAX_DISCARD_TIME: Duration = Duration::from_millis(100);

/// A request for an object or a listing.
pub(super) struct StoreRequest<'a> {
    pub(super) operation: UpstreamOperation,
    /// The attempted action for error messages, such as "read" or "list".
    pub(super) action: &'static str,
    /// Key of the object or directory.
    pub(super) key: &'a Key,
    pub(super) url: String,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    /// Time at which the caller stops waiting.
    pub(super) deadline: Instant,
    /// Number of retries of the operation that the request is part of.
    pub(super) retries: RetryCount,
}

impl StoreRequest<'_> {
    fn method(&self) -> Method {
        if self.operation == UpstreamOperation::Head { Method::HEAD } else { Method::GET }
    }

    fn context(&self) -> UpstreamContext {
        UpstreamContext { operation: self.operation, deadline: self.deadline, retries: self.retries.clone() }
    }
}

/// The head of a response, and its body, which has not been read.
pub(super) struct StoreResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// Beginning of the body of an error response, which has been read.
    pub(super) error_document: Bytes,
    pub(super) body: ResponseBody,
}

impl StoreResponse {
    /// Returns an error if the body ends with the connection, because a body that is cut off would look whole.
    ///
    /// # Errors
    /// Returns an error that says what the server must send.
    pub(super) fn check_end(&self) -> Result<(), StoreError> {
        let encoding = self.headers.get_all(TRANSFER_ENCODING).iter().next_back().and_then(|value| value.to_str().ok());
        let last = encoding.and_then(|encodings| encodings.rsplit(',').next()).unwrap_or_default();
        if self.body.announced_bytes().is_some() || last.trim().eq_ignore_ascii_case("chunked") {
            return Ok(());
        }
        Err(self.body.failed(
            "the server must send Content-Length, or Transfer-Encoding: chunked, because a response that \
             ends with its connection may have been cut off",
        ))
    }

    /// Returns what an error response says.
    pub(super) fn error_answer(&self) -> ErrorAnswer {
        error_answer(self.status, &self.headers, &self.error_document)
    }
}

/// Signs every attempt, and sends it by the program's client.
#[derive(Debug)]
pub(super) struct SignedService {
    pub(super) http: HttpClient,
    pub(super) signer: Signer,
}

impl SignedService {
    /// Returns the request with the headers that give it authority.
    async fn signed(&self, request: HttpRequest) -> Result<Request<Full<Bytes>>, String> {
        let mut signed = self.signer.sign(request).await?;
        // Bodies must be as they are stored. Proxies change this header, so it is not part of the signature.
        signed.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        Ok(signed.map(|_empty| Full::default()))
    }
}

#[async_trait]
impl HttpService for SignedService {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let failed = |kind, reason| UpstreamFailure::new(kind, reason).into_http_error();
        let signed = self.signed(request).await.map_err(|reason| failed(FailureKind::Refused, reason))?;
        let response = self.http.send(signed).await.map_err(|error| {
            let kind = if error.is_permanent { FailureKind::Refused } else { FailureKind::Unavailable };
            failed(kind, error.to_string())
        })?;
        Ok(response
            .map(|body| HttpResponseBody::new(body.map_err(|error| HttpError::new(HttpErrorKind::Request, error)))))
    }
}

/// Sends requests to the store of one root.
pub(super) struct StoreClient {
    pub(super) location: Location,
    service: UpstreamService<SignedService>,
    /// The calls that wait for the store.
    waiting: Arc<WaitingCalls>,
    /// Maximum time of a call.
    call_timeout: Duration,
}

impl fmt::Debug for StoreClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreClient").field("location", &self.location).finish_non_exhaustive()
    }
}

impl StoreClient {
    pub(super) fn new(location: Location, service: UpstreamService<SignedService>, call_timeout: Duration) -> Self {
        let waiting = Arc::new(WaitingCalls::new(call_timeout));
        Self { location, service, waiting, call_timeout }
    }

    /// Returns the pressure on the store.
    pub(super) fn pressure(&self) -> StorePressure {
        let pressure = self.waiting.pressure(self.service.waiting());
        // A store that throttles does answer. Requests wait for the end of its pause.
        StorePressure { is_stalled: pressure.is_stalled && !self.service.is_throttled(), ..pressure }
    }

    /// Returns the number of requests that the store may have open now.
    pub(super) fn concurrency(&self) -> usize {
        self.service.concurrency()
    }

    /// Returns the maximum number of requests that the store may have open.
    pub(super) fn max_concurrency(&self) -> usize {
        self.service.max_concurrency()
    }

    /// Returns the time at which a call that begins now must have ended.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.call_timeout
    }

    /// Sends a request, and retries it after temporary failures. Returns a response with any other status.
    ///
    /// # Errors
    /// Returns an error if there is no response, or if the store remains unavailable.
    pub(super) async fn send(&self, request: &StoreRequest<'_>) -> Result<StoreResponse, StoreError> {
        let failed = |failure: &UpstreamFailure| error_of_failure(request.action, request.key, failure);
        let mut http_request = Request::builder().method(request.method()).uri(&request.url);
        for (name, value) in &request.headers {
            http_request = http_request.header(name, value);
        }
        let http_request = http_request
            .body(HttpRequestBody::empty())
            .map_err(|error| failed(&UpstreamFailure::new(FailureKind::Refused, error.to_string())))?;
        let call = self.waiting.begin();
        let response =
            self.service.execute(http_request, &request.context()).await.map_err(|failure| failed(&failure))?;
        call.answered();
        if let Some(failure) = response.failure.as_ref().filter(|failure| failure.is_transient()) {
            let answer = error_answer(response.parts.status, &response.parts.headers, &response.document);
            return Err(error_of_answer(request.action, request.key, &answer, failure.retry_after));
        }
        let body = ResponseBody {
            body: response.body,
            unread: Bytes::new(),
            permit: response.permit,
            waiting: Arc::clone(&self.waiting),
            action: request.action,
            key: request.key.clone(),
        };
        let (status, headers) = (response.parts.status, response.parts.headers);
        Ok(StoreResponse { status, headers, error_document: response.document, body })
    }

    /// Waits until a read whose response broke off may continue by another request. Returns false if it may not.
    pub(super) async fn may_continue(&self, retries: &RetryCount, deadline: Instant) -> bool {
        let failure = UpstreamFailure::new(FailureKind::Truncated, "the response broke off");
        let (operation, retries) = (UpstreamOperation::GetRange, retries.clone());
        let context = UpstreamContext { operation, deadline, retries };
        self.service.wait_to_retry(&failure, &context).await
    }
}

/// Returns the error for a request without a response.
fn error_of_failure(action: &'static str, key: &Key, failure: &UpstreamFailure) -> StoreError {
    let key = key.clone();
    match (failure.kind, failure.retry_after) {
        (FailureKind::Throttled, Some(pause)) => StoreError::Throttled(action, key, pause),
        (FailureKind::Throttled, None) => StoreError::Overloaded(action, key),
        (FailureKind::Timeout, _) => StoreError::Timeout(action, key),
        (FailureKind::Refused, _) => StoreError::Denied { action, key, reason: failure.detail.clone() },
        (
            FailureKind::Missing
            | FailureKind::NotModified
            | FailureKind::Changed
            | FailureKind::Forbidden
            | FailureKind::Unavailable
            | FailureKind::Truncated
            | FailureKind::BadAnswer,
            _,
        ) => StoreError::Io { action, key, cause: Arc::new(io::Error::other(failure.detail.clone())) },
    }
}

/// The body of a response, which is read piece by piece. Ends with an error if it is shorter than announced.
pub(super) struct ResponseBody {
    body: HttpResponseBody,
    /// Bytes that have been received and not been read.
    unread: Bytes,
    /// Permit of the request, until the body has been read.
    permit: HeldPermit,
    waiting: Arc<WaitingCalls>,
    action: &'static str,
    key: Key,
}

impl ResponseBody {
    /// Returns the number of bytes that the response announces and that have not been read.
    pub(super) fn announced_bytes(&self) -> Option<u64> {
        self.body.size_hint().exact().map(|bytes| bytes.saturating_add(self.unread.len() as u64))
    }

    /// Lets other requests use the permit before the body has been read.
    pub(super) fn release_permit(&self) {
        self.permit.release();
    }

    /// Waits until the rest of the body may be read, if its permit has been released.
    async fn hold_permit(&self, deadline: Instant) -> Result<(), StoreError> {
        if self.body.is_end_stream() || self.body.size_hint().exact() == Some(0) {
            return Ok(());
        }
        self.permit.hold(deadline).await.map_err(|failure| error_of_failure(self.action, &self.key, &failure))
    }

    /// Returns the next bytes, at most `max_bytes`; `None` at the end.
    ///
    /// # Errors
    /// Returns an error if the store sends nothing in time, or if the body ends early.
    pub(super) async fn next(&mut self, max_bytes: usize, deadline: Instant) -> Result<Option<Bytes>, StoreError> {
        while self.unread.is_empty() {
            let call = self.waiting.begin();
            self.hold_permit(deadline).await?;
            let frame = tokio::time::timeout_at(deadline, self.body.frame()).await;
            let frame = frame.map_err(|_elapsed| StoreError::Timeout(self.action, self.key.clone()))?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|error| self.broken_by(&UpstreamFailure::of_transport(&error)))?;
            call.answered();
            self.unread = frame.into_data().unwrap_or_default();
        }
        Ok(Some(self.unread.split_to(self.unread.len().min(max_bytes))))
    }

    /// Reads a short body to its end, so that its connection can be used again.
    pub(super) async fn discard(&mut self, deadline: Instant) {
        if self.announced_bytes().is_some_and(|bytes| bytes <= MAX_DISCARDED_BYTES) {
            let deadline = deadline.min(Instant::now() + MAX_DISCARD_TIME);
            while let Ok(Some(_)) = self.next(usize::MAX, deadline).await {}
        }
    }

    /// Returns the beginning of the body, at most `max_bytes`, and true if that is not all.
    ///
    /// # Errors
    /// Returns the errors of [`Self::next`].
    pub(super) async fn read_up_to(
        &mut self,
        max_bytes: usize,
        deadline: Instant,
    ) -> Result<(Bytes, bool), StoreError> {
        let announced = self.announced_bytes().and_then(|bytes| usize::try_from(bytes).ok());
        let mut bytes = Vec::with_capacity(announced.unwrap_or_default().min(max_bytes));
        while let Some(chunk) = self.next(max_bytes.saturating_sub(bytes.len()).max(1), deadline).await? {
            if bytes.len() >= max_bytes {
                return Ok((bytes.into(), true));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok((bytes.into(), false))
    }

    /// Returns the error for a body that ends with a failure.
    fn broken_by(&self, failure: &UpstreamFailure) -> StoreError {
        if failure.kind == FailureKind::Timeout {
            return StoreError::Timeout(self.action, self.key.clone());
        }
        self.broken(&failure.detail)
    }

    /// Returns the error for a body that breaks off.
    pub(super) fn broken(&self, reason: &str) -> StoreError {
        self.failed(&format!("the response broke off: {reason}"))
    }

    /// Returns an error for the object of the body.
    pub(super) fn failed(&self, reason: &str) -> StoreError {
        let cause = io::Error::other(reason.to_owned());
        StoreError::Io { action: self.action, key: self.key.clone(), cause: Arc::new(cause) }
    }
}

#[cfg(test)]
mod tests {
    use object_store::StaticCredentialProvider;
    use object_store::aws::AwsCredential;

    use super::*;
    use crate::http_client::HttpClientOptions;

    #[tokio::test]
    async fn the_signature_does_not_contain_the_encodings_that_are_accepted() {
        let credential = AwsCredential { key_id: "AKIA".into(), secret_key: "secret".into(), token: None };
        let signer = Signer::S3 {
            credentials: Arc::new(StaticCredentialProvider::new(credential)),
            region: "eu-west-1".to_owned(),
            requester_pays: false,
        };
        let service = SignedService { http: HttpClient::new(&HttpClientOptions::default()).unwrap(), signer };
        let request = Request::get("https://lab.s3.eu-west-1.amazonaws.com/a/0").body(HttpRequestBody::empty());
        let signed = service.signed(request.unwrap()).await.unwrap();
        let authorization = signed.headers()["authorization"].to_str().unwrap();
        assert!(
            authorization.contains("SignedHeaders=host;") && !authorization.contains("encoding"),
            "{authorization}"
        );
        assert_eq!(signed.headers()[ACCEPT_ENCODING], "identity");
    }
}
