//! Bodies of slices that are read in bands: each band is assembled while the one before it is sent.

use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;

use super::observe;
use crate::container::{Access, Container, Finish, ReadError, Slice};
use crate::fair::Client;
use crate::trace;
use crate::view::Pieces;

/// Bands that wait to be sent while the next one is assembled.
const BANDS_AHEAD: usize = 1;

/// Reads a slice band by band.
pub(super) struct BandReader {
    container: Container,
    access: Access,
    slice: Slice,
    /// How long the last band waited for the client.
    waited: Option<Duration>,
    finish: Option<Finish>,
    /// The chunk whose entity tag must still be the same when the last band has been read.
    unchanged: Option<Pieces>,
    /// Bytes of what is read that are not sent: the first ones, and those after so many more.
    skipped: u64,
    left: u64,
}

impl BandReader {
    pub(super) fn new(container: Container, access: Access, slice: Slice, finish: Option<Finish>) -> Self {
        Self { container, access, slice, waited: None, finish, unchanged: None, skipped: 0, left: u64::MAX }
    }

    /// The same, of blocks for which an entity tag has been promised.
    pub(super) fn of_unchanged(self, pieces: Pieces) -> Self {
        Self { unchanged: Some(pieces), ..self }
    }

    /// The same without its first `skipped` bytes, and of the others the first `len`.
    pub(super) fn cut(self, skipped: u64, len: u64) -> Self {
        Self { skipped, left: len, ..self }
    }

    /// The next band, in pieces; `None` after the last.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Bytes>>, ReadError> {
        if self.left == 0 {
            return Ok(None);
        }
        let band = self.container.next_band(self.access, &mut self.slice, self.waited, self.finish.clone()).await?;
        let band = band.map(|(pieces, _)| cut(pieces, &mut self.skipped, &mut self.left));
        // Before the last band is sent.
        if let Some(pieces) = self.unchanged.as_ref().filter(|_| self.slice.is_read() || self.left == 0) {
            pieces.still_has_tag(&self.container).await?;
        }
        Ok(band)
    }

    /// A body of `start`, `first`, and the bands after that. A fault breaks it off, and the connection with it: its length has
    /// been promised.
    pub(super) fn into_body(mut self, start: Bytes, first: Vec<Bytes>, id: String) -> Body {
        let (sender, receiver) = mpsc::channel(BANDS_AHEAD);
        tokio::spawn(Client::current().works(trace::carried(async move {
            let mut next = Ok(Some(first));
            loop {
                // Waits until the band before is on its way: no more than two are held. A client that has hung up ends
                // the work.
                let since = Instant::now();
                let Ok(place) = sender.reserve().await else { return };
                self.waited = Some(since.elapsed());
                match next {
                    Ok(Some(pieces)) => place.send(Ok(pieces)),
                    Ok(None) => return,
                    Err(error) => {
                        observe::broken_off(&id, &error);
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

/// `pieces` without their first `skipped` bytes and what follows the next `left`; both are less what they took.
fn cut(pieces: Vec<Bytes>, skipped: &mut u64, left: &mut u64) -> Vec<Bytes> {
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
