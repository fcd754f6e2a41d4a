//! The body of an answer that is sent no faster than its client may have it. It keeps the place among its client's requests until it
//! is sent, and the one among all requests unless it is small and in memory.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::clients::Place;
use crate::metrics::{Queue, Waiting};

/// Most bytes that are sent at once where they are limited.
const PIECE_BYTES: usize = 64 << 10;

/// Answers up to this size, all of which are in memory, keep no place among all requests: a client that does not take them keeps
/// others from nothing.
const SMALL_BYTES: u64 = 1 << 20;

/// A body in pieces that leave when they are paid for.
pub(super) struct Paced {
    body: Body,
    /// What has come of the body and not been sent.
    left: Bytes,
    /// The next piece has been paid for.
    is_due: bool,
    pause: Option<(Pin<Box<Sleep>>, Waiting)>,
    place: Place,
}

impl Paced {
    pub(super) fn new(body: Body, mut place: Place) -> Self {
        // A body that is read or made while it is sent has no exact size.
        if http_body::Body::size_hint(&body).exact().is_some_and(|bytes| bytes <= SMALL_BYTES) {
            place.is_made();
        }
        Self { body, left: Bytes::new(), is_due: false, pause: None, place }
    }
}

impl http_body::Body for Paced {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if !self.place.is_slowed() {
            return Pin::new(&mut self.body).poll_frame(context);
        }
        if self.left.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.left = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return Poll::Ready(other),
            }
        }
        let length = self.left.len().min(PIECE_BYTES);
        if !self.is_due {
            self.is_due = true;
            self.pause = self
                .place
                .pay(length, Instant::now())
                .map(|due| (Box::pin(tokio::time::sleep_until(due)), Waiting::begin(Queue::Rate)));
        }
        if let Some((pause, _)) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
        }
        (self.is_due, self.pause) = (false, None);
        Poll::Ready(Some(Ok(Frame::data(self.left.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, left) = (self.body.size_hint(), self.left.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + left);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + left);
        }
        hint
    }
}
