//! The body of an answer, checked while it is read.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use object_store::client::{HttpError, HttpResponseBody};
use tokio::time::{Instant, Sleep, sleep};

use super::concurrency_limit::{ConcurrencyLimit, ConcurrencyPermit};
use super::counters::{UpstreamCounters, UpstreamOperation};
use super::failure::{FailureKind, UpstreamFailure};

/// The permit of a request while its body is read. A reader that pauses, for example because its client is slow, can
/// give it back to let other requests be sent, and takes another one when it reads on.
#[derive(Debug, Clone)]
pub(in crate::store::remote) struct HeldPermit {
    permit: Arc<Mutex<Option<ConcurrencyPermit>>>,
    limit: Arc<ConcurrencyLimit>,
    counters: Arc<UpstreamCounters>,
}

impl HeldPermit {
    pub(super) fn new(
        permit: Option<ConcurrencyPermit>,
        limit: &Arc<ConcurrencyLimit>,
        counters: &Arc<UpstreamCounters>,
    ) -> Self {
        Self { permit: Arc::new(Mutex::new(permit)), limit: Arc::clone(limit), counters: Arc::clone(counters) }
    }

    /// Waits until the body may be read, if the permit has been given back.
    ///
    /// # Errors
    /// Returns a throttled failure if too many requests wait, or if there is no permit before `deadline`.
    pub(in crate::store::remote) async fn hold(&self, deadline: Instant) -> Result<(), UpstreamFailure> {
        if self.lock().is_none() {
            let waiting = self.counters.begin_waiting();
            let permit = self.limit.acquire_for_body(deadline).await;
            drop(waiting);
            *self.lock() = Some(permit?);
        }
        Ok(())
    }

    /// Gives the permit back before the body has been read.
    pub(in crate::store::remote) fn release(&self) {
        let permit = self.lock().take();
        drop(permit);
    }

    fn lock(&self) -> MutexGuard<'_, Option<ConcurrencyPermit>> {
        self.permit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A body that ends with an error if the store sends no byte in time, or fewer or more bytes than announced. It counts
/// its bytes, and gives its permit back with its last byte.
///
/// Only the time in which the reader waits counts, so a slow reader causes no timeout.
pub(super) struct CheckedBody {
    /// `None` after the end or an error, so that the connection is free or closed.
    inner: Option<HttpResponseBody>,
    /// The part that was read before the body was passed on.
    first: Option<Bytes>,
    /// Number of bytes to come, if it was announced.
    remaining: Option<u64>,
    timeout: Duration,
    /// Runs while the reader waits.
    timer: Option<Pin<Box<Sleep>>>,
    permit: HeldPermit,
    counters: Arc<UpstreamCounters>,
    operation: UpstreamOperation,
}

impl CheckedBody {
    /// Checks `inner`. Its first part, `first`, has been read already.
    pub(super) fn new(
        inner: HttpResponseBody,
        first: Option<Bytes>,
        length: Option<u64>,
        timeout: Duration,
        permit: HeldPermit,
        counters: Arc<UpstreamCounters>,
        operation: UpstreamOperation,
    ) -> Self {
        Self { inner: Some(inner), first, remaining: length, timeout, timer: None, permit, counters, operation }
    }

    /// Returns the next frame, or an error if none arrives in time.
    fn poll_inner(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, UpstreamFailure>>> {
        if let Some(bytes) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        let Some(inner) = &mut self.inner else { return Poll::Ready(None) };
        if let Poll::Ready(frame) = Pin::new(inner).poll_frame(context) {
            self.timer = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(|error| UpstreamFailure::of_transport(&error))));
        }
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.timeout)));
        ready!(timer.as_mut().poll(context));
        let detail = format!("the store sent no further byte for {:.1?}", self.timeout);
        Poll::Ready(Some(Err(UpstreamFailure::new(FailureKind::Timeout, detail))))
    }

    /// Checks a frame against the announced length.
    fn check(&mut self, frame: Option<Frame<Bytes>>) -> Result<Option<Frame<Bytes>>, UpstreamFailure> {
        let Some(frame) = frame else {
            return match self.remaining {
                None | Some(0) => Ok(None),
                Some(missing) => {
                    let detail = format!("it ended {missing} bytes before its announced length");
                    Err(UpstreamFailure::new(FailureKind::Truncated, detail))
                }
            };
        };
        let length = frame.data_ref().map_or(0, |bytes| bytes.len() as u64);
        if let Some(remaining) = &mut self.remaining {
            *remaining = remaining.checked_sub(length).ok_or_else(|| {
                UpstreamFailure::new(FailureKind::BadAnswer, "the body is longer than its announced length")
            })?;
        }
        self.counters.add_bytes(self.operation, length);
        Ok(Some(frame))
    }

    /// Gives the connection and the permit back.
    fn end(&mut self) {
        self.inner = None;
        self.timer = None;
        self.permit.release();
    }
}

impl Drop for CheckedBody {
    /// The response may outlive its body.
    fn drop(&mut self) {
        self.permit.release();
    }
}

impl Body for CheckedBody {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        if self.inner.is_none() && self.first.is_none() {
            return Poll::Ready(None);
        }
        let frame = ready!(self.poll_inner(context)).transpose();
        match frame.and_then(|frame| self.check(frame)) {
            Ok(Some(frame)) => {
                if self.remaining == Some(0) {
                    // The HTTP library needs one more poll to see the end and to reuse the connection.
                    self.permit.release();
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Ok(None) => {
                self.end();
                Poll::Ready(None)
            }
            Err(failure) => {
                self.counters.broken_body(self.operation, failure.kind);
                self.end();
                Poll::Ready(Some(Err(failure.into_http_error())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none()
            && self.inner.as_ref().is_none_or(Body::is_end_stream)
            && matches!(self.remaining, None | Some(0))
    }

    fn size_hint(&self) -> SizeHint {
        self.remaining.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
