//! Chunks that are too large to be held in memory, and are read while they are sent.

use std::ops::Range;
use std::sync::Arc;

use super::chunk::{Chunk, StreamLayout};
use crate::cache::{LargeObject, ReadError};
use crate::container::Container;
use crate::n5::{BlockHeader, BlockMode, to_big_endian};
use crate::read::{PieceTransform, PlannedSlice};
use crate::store::StoreError;

/// A chunk that is too large to be held in memory, and is read while it is sent.
#[derive(Debug)]
pub struct StreamedChunk {
    /// Length of the chunk in bytes.
    pub len: u64,
    /// As [`super::EncodedChunk::etag`].
    pub etag: String,
    /// Source of the bytes.
    pub source: StreamSource,
    pub(super) chunk: Chunk,
}

/// Source of the bytes of a streamed chunk.
#[derive(Debug, Clone)]
pub enum StreamSource {
    /// A range of a stored block.
    Stored(LargeObject, Range<u64>),
    /// A header, followed by elements.
    Elements(StreamLayout),
}

impl StreamedChunk {
    /// Plans the slice that contains the bytes `from .. to` of the chunk's elements in memory order. Also returns the
    /// number of bytes of the slice that come before them.
    ///
    /// # Errors
    /// [`ReadError::TooLarge`].
    pub fn plan_byte_range(
        &self,
        container: &Container,
        layout: &StreamLayout,
        from: u64,
        to: u64,
    ) -> Result<(PlannedSlice, u64), ReadError> {
        let region = &self.chunk.region;
        let elements_bytes = self.len.saturating_sub(layout.header.len() as u64);
        let axis = region.shape().iter().rposition(|samples| *samples > 1).unwrap_or(0);
        let samples = region.shape().get(axis).copied().unwrap_or(1);
        let sample_bytes = elements_bytes.checked_div(samples).unwrap_or(0).max(1);
        let first = from / sample_bytes;
        let count = to.div_ceil(sample_bytes).saturating_sub(first);
        let slice = self.chunk.plan_banded(container, &region.narrow(axis, first, count), layout)?;
        Ok((slice, from.saturating_sub(first.saturating_mul(sample_bytes))))
    }

    /// Returns a transform that swaps the bytes of converted elements in place, or `None` if their order is that of the
    /// chunk.
    pub fn byte_swap(&self, layout: &StreamLayout) -> Option<PieceTransform> {
        let data_type = layout.data_type.as_ref().unwrap_or(self.chunk.dataset.attributes.data_type());
        let width = data_type.size_bytes().filter(|width| layout.is_big_endian && *width > 1)?;
        Some(Arc::new(move |elements| to_big_endian(elements, width)))
    }

    /// Checks that the blocks are still those that [`Self::etag`] was computed from.
    ///
    /// # Errors
    /// [`ReadError::Store`] if they are not, or if the store fails.
    pub async fn verify_etag(&self, container: &Container) -> Result<(), ReadError> {
        let freshness = container.resources().request_freshness();
        let is_same = self.chunk.lookup_etag(container, freshness).await?.as_ref() == Some(&self.etag);
        if is_same { Ok(()) } else { Err(StoreError::Torn(self.chunk.dataset.key.clone()).into()) }
    }
}

/// Returns the range of the uncompressed payload of a stored block of `stored_bytes` that begins with `head`, if the
/// block is of the default mode and has exactly `size` elements.
pub(super) fn raw_payload_range(head: &[u8], stored_bytes: u64, size: &[u64], width: usize) -> Option<Range<u64>> {
    let header = BlockHeader::parse(head).ok()?;
    let len = header.elements?.checked_mul(width as u64)?;
    let from = header.len as u64;
    let has_expected_header = header.mode == BlockMode::Default && header.size.as_slice() == size;
    (has_expected_header && from.checked_add(len) == Some(stored_bytes)).then_some(from..stored_bytes)
}
