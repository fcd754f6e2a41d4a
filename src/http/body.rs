//! Bodies of responses that are not one buffer: several buffers, large objects that are read piece by piece, and slices
//! that are read in bands.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body::{Frame, SizeHint};
use tokio::sync::mpsc;

use crate::cache::{LargeObject, ReadError};
use crate::container::Container;
use crate::http::observe;
use crate::read::BandStream;
use crate::runtime::fair_queue::ClientId;
use crate::telemetry::trace;
use crate::view::Chunk;

/// Maximum number of bands that wait to be sent while the next one is being assembled.
const BANDS_AHEAD: usize = 1;

/// Returns a body of `parts` and the length of the body.
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

/// Returns a body that is read piece by piece. An error aborts the body and the connection, because the length has
/// already been sent.
pub(crate) fn stream_range(large: Arc<LargeObject>, range: Range<u64>, id: String) -> Body {
    // The client is captured here, because the connection polls the body without a current client.
    let client = ClientId::current();
    Body::from_stream(stream::try_unfold(range.start, move |offset| {
        let large = Arc::clone(&large);
        let id = id.clone();
        async move {
            if offset >= range.end {
                return Ok(None);
            }
            let piece = client.scope(large.read_piece(offset, range.end)).await.inspect_err(|error| {
                observe::report_body_failure(&id, error);
            })?;
            let next = offset.saturating_add(piece.len() as u64);
            Ok::<_, ReadError>(Some((piece, next)))
        }
    }))
}

/// Reads a slice band by band.
pub(crate) struct BandReader {
    container: Container,
    bands: BandStream,
    /// Time that the last band waited until the client had received the band before it; `None` before the first band.
    send_wait: Option<Duration>,
    /// A chunk and its entity tag, which is checked again after the last band has been read.
    etag_check: Option<(Chunk, String)>,
    /// Number of bytes to skip before the first byte that is sent.
    bytes_to_skip: u64,
    /// Bytes after the skipped ones that are still to be sent.
    remaining_bytes: u64,
}

impl BandReader {
    /// Creates a reader of the whole slice.
    pub(crate) fn new(container: Container, bands: BandStream) -> Self {
        Self { container, bands, send_wait: None, etag_check: None, bytes_to_skip: 0, remaining_bytes: u64::MAX }
    }

    /// Limits the reader to `len` bytes, which follow the first `bytes_to_skip` bytes of the slice.
    pub(crate) fn limited_to(self, bytes_to_skip: u64, len: u64) -> Self {
        Self { bytes_to_skip, remaining_bytes: len, ..self }
    }

    /// Makes the last band fail if the entity tag of `chunk` is no longer `etag`.
    pub(crate) fn with_etag_check(self, chunk: Chunk, etag: String) -> Self {
        Self { etag_check: Some((chunk, etag)), ..self }
    }

    /// Reads the next band and returns its pieces; `None` after the last band.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Bytes>>, ReadError> {
        if self.remaining_bytes == 0 {
            return Ok(None);
        }
        let band = self.bands.next(self.send_wait).await?.map(|pieces| {
            let trimmed = pieces.into_iter().map(|mut piece| {
                let skipped_bytes = usize::try_from(self.bytes_to_skip).unwrap_or(usize::MAX).min(piece.len());
                self.bytes_to_skip = self.bytes_to_skip.saturating_sub(skipped_bytes as u64);
                drop(piece.split_to(skipped_bytes));
                piece.truncate(usize::try_from(self.remaining_bytes).unwrap_or(usize::MAX));
                self.remaining_bytes = self.remaining_bytes.saturating_sub(piece.len() as u64);
                piece
            });
            trimmed.filter(|piece| !piece.is_empty()).collect()
        });
        // The entity tag is checked before the last band is sent, so that no client takes a changed chunk for complete.
        if let Some((chunk, etag)) =
            self.etag_check.as_ref().filter(|_| self.bands.is_exhausted() || self.remaining_bytes == 0)
        {
            chunk.verify_etag(&self.container, etag).await?;
        }
        Ok(band)
    }

    /// Returns a body of `prefix`, `first_band` and the following bands. An error aborts the body and the connection,
    /// because the length of the body has been promised.
    pub(crate) fn into_body(mut self, prefix: Bytes, first_band: Vec<Bytes>, id: String) -> Body {
        let (sender, receiver) = mpsc::channel(BANDS_AHEAD);
        tokio::spawn(ClientId::current().scope(trace::in_current_scope(async move {
            let mut next = Ok(Some(first_band));
            loop {
                // Waits until the previous band is being sent, so that at most two bands are in memory. The task ends
                // if the client has disconnected.
                let started = Instant::now();
                let Ok(permit) = sender.reserve().await else { return };
                self.send_wait = Some(started.elapsed());
                match next {
                    Ok(Some(pieces)) => permit.send(Ok(pieces)),
                    Ok(None) => return,
                    Err(error) => {
                        observe::report_body_failure(&id, &error);
                        return permit.send(Err(error));
                    }
                }
                next = tokio::select! {
                    band = self.next() => band,
                    () = sender.closed() => return,
                };
            }
        })));
        let bands = stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) });
        let pieces = bands.flat_map(|band| {
            stream::iter(match band {
                Ok(pieces) => pieces.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            })
        });
        let prefix = (!prefix.is_empty()).then_some(Ok::<_, ReadError>(prefix));
        Body::from_stream(stream::iter(prefix).chain(pieces))
    }
}
