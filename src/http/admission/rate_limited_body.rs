//! Response bodies that are sent no faster than their client's rate limit allows.
//!
//! A body holds its client's request permit until it has been sent. It also holds its in-flight slot, unless it is
//! small and entirely in memory.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::http::admission::client_limits::RequestPermit;
use crate::metrics::{QueueLabel, QueueWaitTimer};

/// Maximum number of bytes that are sent at once under a rate limit.
const MAX_CHUNK_BYTES: usize = 64 << 10;

/// Size up to which a response that is entirely in memory releases its in-flight slot before it is sent. A client that
/// does not receive it then blocks no other request.
const MAX_EARLY_RELEASE_BYTES: u64 = 1 << 20;

/// A body that is sent in chunks, each as soon as the rate limiter allows it.
struct RateLimitedBody {
    body: Body,
    /// Data of the inner body that has not been sent yet.
    unsent: Bytes,
    /// True if the next chunk has been charged to the rate limiter.
    is_charged: bool,
    delay: Option<(Pin<Box<Sleep>>, QueueWaitTimer)>,
    permit: RequestPermit,
}

/// Wraps the body of a response, so that the permit is held until it is sent and the client's byte rate is not exceeded.
pub(crate) fn hold_until_sent(permit: RequestPermit, response: Response<Body>) -> Response<Body> {
    response.map(|body| Body::new(RateLimitedBody::new(body, permit)))
}

impl RateLimitedBody {
    fn new(body: Body, mut permit: RequestPermit) -> Self {
        // A body that is produced while it is sent has no exact size.
        if http_body::Body::size_hint(&body).exact().is_some_and(|bytes| bytes <= MAX_EARLY_RELEASE_BYTES) {
            permit.release_in_flight();
        }
        Self { body, unsent: Bytes::new(), is_charged: false, delay: None, permit }
    }
}

impl http_body::Body for RateLimitedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if !self.permit.is_rate_limited() {
            return Pin::new(&mut self.body).poll_frame(context);
        }
        if self.unsent.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.unsent = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return Poll::Ready(other),
            }
        }
        let length = self.unsent.len().min(MAX_CHUNK_BYTES);
        if !self.is_charged {
            self.is_charged = true;
            self.delay = self
                .permit
                .charge_bytes(length, Instant::now())
                .map(|due| (Box::pin(tokio::time::sleep_until(due)), QueueWaitTimer::begin(QueueLabel::Rate)));
        }
        if let Some((sleep, _)) = &mut self.delay {
            ready!(sleep.as_mut().poll(context));
        }
        (self.is_charged, self.delay) = (false, None);
        Poll::Ready(Some(Ok(Frame::data(self.unsent.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.unsent.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, unsent_bytes) = (self.body.size_hint(), self.unsent.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + unsent_bytes);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + unsent_bytes);
        }
        hint
    }
}
