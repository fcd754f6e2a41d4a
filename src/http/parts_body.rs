//! A body of several parts that are all in memory.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};

/// Returns a body of `parts` and its length.
pub(crate) fn from_parts(mut parts: Vec<Bytes>) -> (Body, u64) {
    parts.retain(|part| !part.is_empty());
    let len = parts.iter().map(|part| part.len() as u64).sum();
    let body = match parts.len() {
        0 => Body::empty(),
        1 => Body::from(parts.remove(0)),
        _ => Body::new(PartsBody(parts.into())),
    };
    (body, len)
}

/// The parts that have not been sent yet. The body's size is exact.
struct PartsBody(VecDeque<Bytes>);

impl http_body::Body for PartsBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|part| part.len() as u64).sum())
    }
}
