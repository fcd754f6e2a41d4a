//! Bodies of slices that are read in bands: each band is assembled while the previous one is sent.

use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;

use super::observe;
use crate::container::{Container, Freshness, PieceTransform, PlannedSlice, ReadError};
use crate::fair_queue::ClientId;
use crate::trace;
use crate::view::StreamedChunk;

/// Maximum number of bands that wait to be sent while the next one is assembled.
const BANDS_AHEAD: usize = 1;

/// Reads a slice band by band.
pub(super) struct BandReader {
    container: Container,
    freshness: Freshness,
    slice: PlannedSlice,
    /// Time that the last band waited for the client.
    send_wait: Option<Duration>,
    finish: Option<PieceTransform>,
    /// Chunk whose entity tag is checked again after the last band has been read.
    etag_check: Option<StreamedChunk>,
    /// Bytes at the start of what is read that are still to be skipped.
    to_skip: u64,
    /// Bytes after the skipped ones that are still to be sent.
    remaining: u64,
}

impl BandReader {
    pub(super) fn new(
        container: Container,
        freshness: Freshness,
        slice: PlannedSlice,
        finish: Option<PieceTransform>,
    ) -> Self {
        Self { container, freshness, slice, send_wait: None, finish, etag_check: None, to_skip: 0, remaining: u64::MAX }
    }

    /// Adds a check, before the last band is sent, that the blocks still have the promised entity tag.
    pub(super) fn with_etag_check(self, pieces: StreamedChunk) -> Self {
        Self { etag_check: Some(pieces), ..self }
    }

    /// Restricts the body to `len` bytes after the first `skipped`.
    pub(super) fn with_byte_range(self, skipped: u64, len: u64) -> Self {
        Self { to_skip: skipped, remaining: len, ..self }
    }

    /// Reads the next band and returns its pieces; `None` after the last band.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Bytes>>, ReadError> {
        if self.remaining == 0 {
            return Ok(None);
        }
        let band =
            self.container.next_band(self.freshness, &mut self.slice, self.send_wait, self.finish.clone()).await?;
        let band = band.map(|(pieces, _)| trim_pieces(pieces, &mut self.to_skip, &mut self.remaining));
        // Checked before the last band is sent.
        if let Some(pieces) = self.etag_check.as_ref().filter(|_| self.slice.is_exhausted() || self.remaining == 0) {
            pieces.verify_etag(&self.container).await?;
        }
        Ok(band)
    }

    /// Returns a body of `start`, `first` and the following bands. An error aborts the body and the connection, because
    /// the length of the body has been promised.
    pub(super) fn into_body(mut self, start: Bytes, first: Vec<Bytes>, id: String) -> Body {
        let (sender, receiver) = mpsc::channel(BANDS_AHEAD);
        tokio::spawn(ClientId::current().scope(trace::in_current_scope(async move {
            let mut next = Ok(Some(first));
            loop {
                // Waits until the previous band is being sent, so that at most two are held. If the client has
                // disconnected, the task ends.
                let since = Instant::now();
                let Ok(place) = sender.reserve().await else { return };
                self.send_wait = Some(since.elapsed());
                match next {
                    Ok(Some(pieces)) => place.send(Ok(pieces)),
                    Ok(None) => return,
                    Err(error) => {
                        observe::report_body_failure(&id, &error);
                        return place.send(Err(error));
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
        let start = (!start.is_empty()).then_some(Ok::<_, ReadError>(start));
        Body::from_stream(stream::iter(start).chain(pieces))
    }
}

/// Drops the first `skipped` bytes of `pieces`, keeps the next `left` and drops the rest. Reduces both numbers by the
/// bytes that they took.
fn trim_pieces(pieces: Vec<Bytes>, skipped: &mut u64, left: &mut u64) -> Vec<Bytes> {
    let cut = pieces.into_iter().map(|mut piece| {
        let away = usize::try_from(*skipped).unwrap_or(usize::MAX).min(piece.len());
        *skipped = skipped.saturating_sub(away as u64);
        drop(piece.split_to(away));
        piece.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
        *left = left.saturating_sub(piece.len() as u64);
        piece
    });
    cut.filter(|piece| !piece.is_empty()).collect()
}
