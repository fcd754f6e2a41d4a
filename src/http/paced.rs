//! The body of an answer that is sent no faster than its client may have it. It keeps its client's place until it is sent, and one
//! among all requests as long as there is something left to do for it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use futures_util::FutureExt;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::{Instant, Sleep};

use super::clients::Place;
use crate::metrics::{Queue, Waiting};

/// Most bytes that are sent at once where they are limited.
const PIECE_BYTES: usize = 64 << 10;

/// A body in pieces that leave when they are paid for.
pub(super) struct Paced {
    body: Body,
    /// The first frame, if it was there at once.
    first: Option<Result<Frame<Bytes>, axum::Error>>,
    /// What has come of the body and not been sent.
    left: Bytes,
    /// The next piece has been paid for.
    is_due: bool,
    pause: Option<(Pin<Box<Sleep>>, Waiting)>,
    place: Place,
}

impl Paced {
    pub(super) fn new(mut body: Body, mut place: Place) -> Self {
        let has_length = http_body::Body::size_hint(&body).exact().is_some();
        let first = if has_length { body.frame().now_or_never().flatten() } else { None };
        if http_body::Body::is_end_stream(&body) {
            // Its bytes are in memory, which counts for itself: a client that takes none of them keeps no other one waiting.
            place.is_made();
        }
        Self { body, first, left: Bytes::new(), is_due: false, pause: None, place }
    }

    fn poll_body(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match self.first.take() {
            Some(first) => Poll::Ready(Some(first)),
            None => http_body::Body::poll_frame(Pin::new(&mut self.body), context),
        }
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
            return self.poll_body(context);
        }
        if self.left.is_empty() {
            match ready!(self.poll_body(context)) {
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
        self.first.is_none() && self.left.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().and_then(|first| first.as_ref().ok()?.data_ref()).map_or(0, Bytes::len);
        let (inner, left) = (self.body.size_hint(), (first + self.left.len()) as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + left);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + left);
        }
        hint
    }
}
