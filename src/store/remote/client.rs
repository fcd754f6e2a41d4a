//! Sends the requests of one remote root: a bounded number at once, signed, each within its time limits, and retried
//! after temporary failures.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{ACCEPT_ENCODING, CONTENT_LENGTH, HeaderName, HeaderValue, RETRY_AFTER, TRANSFER_ENCODING};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use object_store::client::HttpRequestBody;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use super::super::error::StoreError;
use super::super::key::Key;
use super::failure::{Failure, error_of_answer};
use super::listing::{ErrorAnswer, StoreErrorCode, printable};
use super::location::Location;
use super::signer::Signer;
use crate::http_client::{HttpClient, describe_error};
use crate::runtime::fair_queue::{ClientId, ClientQuota, CostBasis, FairPermit, FairSemaphore};

/// Maximum number of retries of a request after temporary failures.
const MAX_RETRIES: u32 = 2;

/// Pause before the first retry, unless the store asks for another. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Longest pause that the store may ask for. If it asks for more, the request fails at once.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Maximum number of bytes of an error response that are read.
const MAX_ERROR_BYTES: usize = 16 << 10;

/// A request for an object or a listing.
pub(super) struct StoreRequest<'a> {
    /// The attempted action for error messages, such as "read" or "list".
    pub(super) action: &'static str,
    /// Key of the object or directory.
    pub(super) key: &'a Key,
    pub(super) method: Method,
    pub(super) url: String,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    /// Time at which the caller stops waiting.
    pub(super) deadline: Instant,
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
        let mut answer = ErrorAnswer::parse(self.status.as_u16(), &self.error_document);
        let header = |name: &str| self.headers.get(name).and_then(|value| value.to_str().ok()).map(printable);
        if answer.code_name.is_empty()
            && let Some(name) = header("x-ms-error-code")
        {
            answer.code = StoreErrorCode::from_name(&name);
            answer.code_name = name;
        }
        answer.region = answer.region.or_else(|| header("x-amz-bucket-region"));
        answer
    }
}

/// Sends requests to the store of one root.
pub(super) struct StoreClient {
    pub(super) location: Location,
    http: HttpClient,
    signer: Signer,
    /// One permit for every request whose response is awaited or read.
    permits: FairSemaphore,
    /// Maximum time without a byte from the store.
    timeout: Duration,
    /// Maximum time of a call.
    call_timeout: Duration,
}

impl fmt::Debug for StoreClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreClient").field("location", &self.location).finish_non_exhaustive()
    }
}

impl StoreClient {
    pub(super) fn new(
        location: Location,
        http: HttpClient,
        signer: Signer,
        concurrency: usize,
        timeout: Duration,
        call_timeout: Duration,
    ) -> Self {
        let concurrency = concurrency.max(1);
        let quota = ClientQuota { alone: concurrency, among_others: (concurrency / 4 * 3).max(1) };
        let permits = FairSemaphore::new(concurrency, quota, CostBasis::Time);
        Self { location, http, signer, permits, timeout, call_timeout }
    }

    /// Returns the time at which a call that begins now must have ended.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.call_timeout
    }

    /// Waits for a permit for one request.
    ///
    /// # Errors
    /// Returns [`StoreError::Overloaded`] if there is none before the deadline.
    pub(super) async fn acquire(
        &self,
        action: &'static str,
        key: &Key,
        deadline: Instant,
    ) -> Result<FairPermit, StoreError> {
        let permit = self.permits.acquire(ClientId::current().flow(0), 1);
        let permit = tokio::time::timeout_at(deadline, permit).await;
        permit.map_err(|_elapsed| StoreError::Overloaded(action, key.clone()))
    }

    /// Sends a request, and retries it after temporary failures. Returns a response with any other status.
    ///
    /// # Errors
    /// Returns an error if there is no response, or if the store remains unavailable.
    pub(super) async fn send(&self, request: &StoreRequest<'_>) -> Result<StoreResponse, StoreError> {
        let mut permit = self.acquire(request.action, request.key, request.deadline).await?;
        let mut attempt = 0;
        loop {
            let failure = match self.attempt(request, permit).await {
                Ok(response) if !is_temporary(response.status) => return Ok(response),
                Ok(response) => {
                    let retry_after = retry_after(&response.headers);
                    let answer = response.error_answer();
                    Failure { retry_after, error: error_of_answer(request.action, request.key, &answer, retry_after) }
                }
                Err(error) => Failure { retry_after: None, error },
            };
            attempt += 1;
            let pause = failure.retry_after.unwrap_or_else(|| backoff(request.key, attempt));
            if attempt > MAX_RETRIES || pause > MAX_PAUSE || Instant::now() + pause >= request.deadline {
                return Err(failure.error);
            }
            tokio::time::sleep(pause).await;
            permit = self.acquire(request.action, request.key, request.deadline).await?;
        }
    }

    /// Sends a request once. Reads the beginning of the body of an error response.
    ///
    /// # Errors
    /// Returns an error if there is no response, or if an error document breaks off that may say which of several
    /// causes an error has. The status 404 alone could stand for a missing bucket or a missing object.
    async fn attempt(&self, request: &StoreRequest<'_>, permit: FairPermit) -> Result<StoreResponse, StoreError> {
        let failed = |reason: String| {
            let (action, key) = (request.action, request.key.clone());
            StoreError::Io { action, key, cause: Arc::new(io::Error::other(reason)) }
        };
        let exchange = async {
            let signed = self.signed(request).await.map_err(failed)?;
            self.http.send(signed).await.map_err(|error| failed(error.to_string()))
        };
        let timeout = self.timeout.min(request.deadline.saturating_duration_since(Instant::now()));
        let response = tokio::time::timeout(timeout, exchange).await;
        let response = response.map_err(|_elapsed| StoreError::Timeout(request.action, request.key.clone()))??;
        let (parts, body) = response.into_parts();
        let mut body = ResponseBody {
            body,
            unread: Bytes::new(),
            permit: Some(permit),
            timeout: self.timeout,
            action: request.action,
            key: request.key.clone(),
        };
        let status = parts.status;
        let mut error_document = Bytes::new();
        if !status.is_success() && status != StatusCode::NOT_MODIFIED {
            match body.read_up_to(MAX_ERROR_BYTES, request.deadline).await {
                Ok((document, _is_cut)) => error_document = document,
                Err(_) if is_temporary(status) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(StoreResponse { status, headers: parts.headers, error_document, body })
    }

    /// Returns the HTTP request with the headers that give it authority.
    async fn signed(&self, request: &StoreRequest<'_>) -> Result<Request<Full<Bytes>>, String> {
        let mut http_request = Request::builder().method(request.method.clone()).uri(&request.url);
        for (name, value) in &request.headers {
            http_request = http_request.header(name, value);
        }
        let http_request = http_request.body(HttpRequestBody::empty()).map_err(|error| error.to_string())?;
        let mut signed = self.signer.sign(http_request).await?;
        // Bodies must be as they are stored. Proxies change this header, so it is not part of the signature.
        signed.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        Ok(signed.map(|_empty| Full::default()))
    }
}

/// Returns true for statuses that another attempt may change.
fn is_temporary(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::REQUEST_TIMEOUT
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::INTERNAL_SERVER_ERROR
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

/// Returns the pause that the store asks for, if it gives a number of seconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Returns the pause before the retry with this number. It differs from key to key, so that not all requests that failed
/// at once are sent again at once.
fn backoff(key: &Key, attempt: u32) -> Duration {
    let jitter = xxh3_64(key.as_str().as_bytes()).rotate_left(attempt * 8) % 256;
    let pause = FIRST_PAUSE * 2_u32.pow(attempt.saturating_sub(1));
    pause / 2 + pause * u32::try_from(jitter).unwrap_or_default() / 512
}

/// The body of a response, which is read piece by piece. Ends with an error if it is shorter than announced.
pub(super) struct ResponseBody {
    body: Incoming,
    /// Bytes that have been received and not been read.
    unread: Bytes,
    /// Permit of the request; `None` while the body is not being read.
    permit: Option<FairPermit>,
    timeout: Duration,
    action: &'static str,
    key: Key,
}

impl ResponseBody {
    /// Returns the number of bytes that the response announces and that have not been read.
    pub(super) fn announced_bytes(&self) -> Option<u64> {
        self.body.size_hint().exact().map(|bytes| bytes.saturating_add(self.unread.len() as u64))
    }

    /// Lets other requests use the permit while the body is not being read.
    pub(super) fn release_permit(&mut self) {
        self.permit = None;
    }

    /// Takes a permit again, if [`Self::release_permit`] has released it.
    pub(super) async fn take_permit(&mut self, client: &StoreClient, deadline: Instant) -> Result<(), StoreError> {
        if self.permit.is_none() {
            self.permit = Some(client.acquire(self.action, &self.key, deadline).await?);
        }
        Ok(())
    }

    /// Returns the next bytes, at most `max_bytes`; `None` at the end.
    ///
    /// # Errors
    /// Returns an error if the store sends nothing in time, or if the body ends early.
    pub(super) async fn next(&mut self, max_bytes: usize, deadline: Instant) -> Result<Option<Bytes>, StoreError> {
        while self.unread.is_empty() {
            let timeout = self.timeout.min(deadline.saturating_duration_since(Instant::now()));
            let frame = tokio::time::timeout(timeout, self.body.frame()).await;
            let frame = frame.map_err(|_elapsed| StoreError::Timeout(self.action, self.key.clone()))?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|error| self.broken(&describe_error(&error)))?;
            self.unread = frame.into_data().unwrap_or_default();
        }
        Ok(Some(self.unread.split_to(self.unread.len().min(max_bytes))))
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

/// Returns the length that the header of a response to HEAD announces.
pub(super) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use object_store::StaticCredentialProvider;
    use object_store::aws::AwsCredential;

    use super::*;
    use crate::config::{Provider, RemoteRoot, StoreSettings};
    use crate::http_client::HttpClientOptions;

    #[tokio::test]
    async fn the_signature_does_not_contain_the_encodings_that_are_accepted() {
        let root = RemoteRoot {
            provider: Provider::S3,
            bucket: "lab".to_owned(),
            prefix: String::new(),
            endpoint: None,
            region: None,
            account: None,
        };
        let location = Location::new(&root, &StoreSettings::default(), "eu-west-1", None).unwrap();
        let credential = AwsCredential { key_id: "AKIA".into(), secret_key: "secret".into(), token: None };
        let signer = Signer::S3 {
            credentials: Arc::new(StaticCredentialProvider::new(credential)),
            region: "eu-west-1".to_owned(),
            requester_pays: false,
        };
        let http = HttpClient::new(&HttpClientOptions::default()).unwrap();
        let client = StoreClient::new(location, http, signer, 1, FIRST_PAUSE, FIRST_PAUSE);
        let key = Key::parse("a/0").unwrap();
        let request = StoreRequest {
            action: "read",
            key: &key,
            method: Method::GET,
            url: client.location.object_url(&key),
            headers: Vec::new(),
            deadline: client.deadline(),
        };
        let signed = client.signed(&request).await.unwrap();
        let authorization = signed.headers()["authorization"].to_str().unwrap();
        assert!(
            authorization.contains("SignedHeaders=host;") && !authorization.contains("encoding"),
            "{authorization}"
        );
        assert_eq!(signed.headers()[ACCEPT_ENCODING], "identity");
    }

    #[test]
    fn pauses_grow_and_differ_from_key_to_key() {
        let pause = |key: &str, attempt| backoff(&Key::parse(key).unwrap(), attempt);
        for attempt in [1, 2] {
            let longest = FIRST_PAUSE * attempt;
            assert!((longest / 2..longest).contains(&pause("a/0", attempt)));
        }
        assert_ne!(pause("a/0", 1), pause("a/1", 1));
    }
}
