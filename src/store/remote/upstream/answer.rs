//! Reads the beginning of an answer: its head and the first bytes of its body, or the document of an error.

use std::time::Duration;

use axum::http::header::{CONTENT_LENGTH, CONTENT_RANGE};
use axum::http::response::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use object_store::client::{HttpRequest, HttpResponseBody, HttpService};
use tokio::time::timeout;

use super::super::listing::{ErrorAnswer, StoreErrorCode, printable};
use super::failure::{FailureKind, UpstreamFailure};

/// Maximum number of bytes of an error document that are read.
const MAX_DOCUMENT_BYTES: usize = 16 << 10;

/// Time within which an error document must arrive.
const DOCUMENT_TIME: Duration = Duration::from_secs(2);

/// The beginning of an answer.
pub(super) struct AnswerHead {
    pub(super) parts: Parts,
    pub(super) body: HttpResponseBody,
    /// First bytes of a usable body.
    pub(super) first: Option<Bytes>,
    /// Announced length of the body.
    pub(super) length: Option<u64>,
    /// Beginning of the document of an error.
    pub(super) document: Bytes,
    pub(super) failure: Option<UpstreamFailure>,
}

impl AnswerHead {
    /// Sends a request and waits for the first bytes of its body, or for the document of an error.
    ///
    /// # Errors
    /// Returns a failure if there is no answer, if its body cannot begin as announced, or if an error document breaks
    /// off that may say which of several causes the error has: the status 404 alone could stand for a missing bucket or
    /// a missing object.
    pub(super) async fn read(service: &impl HttpService, request: HttpRequest) -> Result<Self, UpstreamFailure> {
        let is_head = request.method() == Method::HEAD;
        let response = service.call(request).await.map_err(|error| UpstreamFailure::of_transport(&error))?;
        let (parts, mut body) = response.into_parts();
        let has_body = !is_head && !matches!(parts.status, StatusCode::NOT_MODIFIED | StatusCode::NO_CONTENT);
        let mut head = Self {
            parts,
            body: Bytes::new().into(),
            first: None,
            length: Some(0),
            document: Bytes::new(),
            failure: None,
        };
        if !head.parts.status.is_success() {
            let document = if has_body { error_document(body).await } else { Ok(Bytes::new()) };
            let answer = |document: &[u8]| error_answer(head.parts.status, &head.parts.headers, document);
            head.document = match document {
                Ok(document) => document,
                // The status suffices.
                Err(_) if UpstreamFailure::of_answer(&answer(&[]), &head.parts.headers).is_transient() => Bytes::new(),
                Err(failure) => return Err(failure),
            };
            head.failure = Some(UpstreamFailure::of_answer(&answer(&head.document), &head.parts.headers));
            return Ok(head);
        }
        if !has_body {
            return Ok(head);
        }
        head.length = content_length(&head.parts.headers);
        if let (Some(length), Some(range)) = (head.length, content_range_length(&head.parts))
            && length != range
        {
            let detail = format!("a range of {range} bytes has a body of {length}");
            return Err(UpstreamFailure::new(FailureKind::BadAnswer, detail));
        }
        if head.length != Some(0) {
            head.first = first_bytes(&mut body, head.length).await?;
        }
        head.body = body;
        Ok(head)
    }
}

/// Returns what an error response says.
pub(in crate::store::remote) fn error_answer(status: StatusCode, headers: &HeaderMap, document: &[u8]) -> ErrorAnswer {
    let mut answer = ErrorAnswer::parse(status.as_u16(), document);
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(printable);
    if answer.code_name.is_empty()
        && let Some(name) = header("x-ms-error-code")
    {
        answer.code = StoreErrorCode::from_name(&name);
        answer.code_name = name;
    }
    answer.region = answer.region.or_else(|| header("x-amz-bucket-region"));
    answer
}

/// Returns the beginning of an error document.
///
/// # Errors
/// Returns a failure if the document breaks off or does not arrive in time.
async fn error_document(mut body: HttpResponseBody) -> Result<Bytes, UpstreamFailure> {
    let read = async {
        let mut document = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| UpstreamFailure::of_transport(&error))?;
            let Ok(bytes) = frame.into_data() else { continue };
            let room = MAX_DOCUMENT_BYTES.saturating_sub(document.len());
            document.extend_from_slice(bytes.get(..room).unwrap_or(&bytes));
            if document.len() >= MAX_DOCUMENT_BYTES {
                break;
            }
        }
        Ok(document.freeze())
    };
    timeout(DOCUMENT_TIME, read).await.unwrap_or_else(|_elapsed| {
        Err(UpstreamFailure::new(FailureKind::Timeout, "the document of an error did not arrive in time"))
    })
}

/// Returns the first bytes of a body that is not empty, or `None` if it has none.
async fn first_bytes(body: &mut HttpResponseBody, length: Option<u64>) -> Result<Option<Bytes>, UpstreamFailure> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| UpstreamFailure::of_transport(&error))?;
        if let Some(bytes) = frame.into_data().ok().filter(|bytes| !bytes.is_empty()) {
            return Ok(Some(bytes));
        }
    }
    match length {
        None => Ok(None),
        Some(length) => {
            let detail = format!("the response broke off: it ended {length} bytes before its announced length");
            Err(UpstreamFailure::new(FailureKind::Truncated, detail))
        }
    }
}

/// Returns the length of the body that a head announces.
pub(in crate::store::remote) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

/// Returns the length of the range that a partial answer contains.
fn content_range_length(parts: &Parts) -> Option<u64> {
    if parts.status != StatusCode::PARTIAL_CONTENT {
        return None;
    }
    let value = parts.headers.get(CONTENT_RANGE)?.to_str().ok()?;
    let (first, last) = value.trim().strip_prefix("bytes ")?.split_once('/')?.0.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    last.checked_sub(first)?.checked_add(1)
}
