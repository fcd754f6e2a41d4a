//! Chunks that are too large to be held: read while they are sent.

use std::ops::Range;
use std::sync::Arc;

use super::chunk::{Chunk, Plain};
use crate::container::{Container, Finish, LargeObject, ReadError, Slice};
use crate::n5::{BlockHeader, Mode, big_endian};
use crate::store::StoreError;

/// A chunk that is too large to be held, and is read while it is sent.
#[derive(Debug)]
pub struct Pieces {
    /// Bytes of the chunk.
    pub len: u64,
    /// As [`super::Ready::etag`].
    pub etag: String,
    /// Where they are.
    pub from: PiecesFrom,
    pub(super) chunk: Chunk,
}

/// Where the bytes of a large chunk are from.
#[derive(Debug, Clone)]
pub enum PiecesFrom {
    /// They are these of a stored block.
    Stored(LargeObject, Range<u64>),
    /// They are a header and elements.
    Elements(Plain),
}

impl Pieces {
    /// The slice that has the bytes `from .. to` of the chunk's elements in the order of memory, and how many bytes of it come
    /// before these.
    ///
    /// # Errors
    /// [`ReadError::TooLarge`].
    pub fn slice(&self, container: &Container, plain: &Plain, from: u64, to: u64) -> Result<(Slice, u64), ReadError> {
        let region = &self.chunk.region;
        let elements_bytes = self.len.saturating_sub(plain.header.len() as u64);
        let axis = region.shape().iter().rposition(|samples| *samples > 1).unwrap_or(0);
        let samples = region.shape().get(axis).copied().unwrap_or(1);
        let sample_bytes = elements_bytes.checked_div(samples).unwrap_or(0).max(1);
        let first = from / sample_bytes;
        let count = to.div_ceil(sample_bytes).saturating_sub(first);
        let slice = self.chunk.planned(container, &region.part(axis, first, count), plain)?;
        Ok((slice, from.saturating_sub(first.saturating_mul(sample_bytes))))
    }

    /// Turns converted elements into those of the chunk in place; `None` if they are the same.
    pub fn finish(&self, plain: &Plain) -> Option<Finish> {
        let data_type = plain.data_type.as_ref().unwrap_or(self.chunk.dataset.attributes.data_type());
        let width = data_type.size_bytes().filter(|width| plain.big_endian && *width > 1)?;
        Some(Arc::new(move |elements| big_endian(elements, width)))
    }

    /// That the blocks are the ones that [`Self::etag`] was made of.
    ///
    /// # Errors
    /// [`ReadError::Store`] where they are not, or the store fails.
    pub async fn still_has_tag(&self, container: &Container) -> Result<(), ReadError> {
        let access = container.resources().begin();
        let is_same = self.chunk.tag(container, access).await?.as_ref() == Some(&self.etag);
        if is_same { Ok(()) } else { Err(StoreError::Torn(self.chunk.dataset.key.clone()).into()) }
    }
}

/// The payload of a stored block of `stored_bytes` that begins with `head`, where it is of today's form and has exactly `size`
/// elements, uncompressed.
pub(super) fn raw_payload(head: &[u8], stored_bytes: u64, size: &[u64], width: usize) -> Option<Range<u64>> {
    let header = BlockHeader::parse(head).ok()?;
    let len = header.elements?.checked_mul(width as u64)?;
    let from = header.len as u64;
    let is_plain = header.mode == Mode::Default && header.size.as_slice() == size;
    (is_plain && from.checked_add(len) == Some(stored_bytes)).then_some(from..stored_bytes)
}
