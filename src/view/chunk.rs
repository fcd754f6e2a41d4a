//! Chunks: parts of a dataset in the encoding of a view.

use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use super::encoder::{ChunkEncoder, StreamLayout};
use crate::container::{
    self, CachedAnswer, Container, Dataset, Derivation, Fingerprint, Freshness, LargeObject, PieceTransform,
    PlannedSlice, ReadError, SliceDelivery, StoredObject, grid_component,
};
use crate::n5::{Array, GridPosition, RawLayout, Region, SignedCoords, to_big_endian};
use crate::store::{Key, ObjectMeta, StoreError};

/// Part of every entity tag, because another release may encode to other bytes, which are another representation.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// A region of a dataset with its encoder. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Chunk {
    dataset: Arc<Dataset>,
    /// Position of the block, if the chunk is one block.
    position: Option<GridPosition>,
    region: Region,
    encoder: Arc<dyn ChunkEncoder>,
}

/// An encoded chunk.
#[derive(Debug)]
pub struct EncodedChunk {
    /// The bytes.
    pub bytes: Bytes,
    /// Strong entity tag in quotes, the same on every replica.
    pub etag: String,
    origin: ChunkOrigin,
}

/// Body of a chunk that exists.
#[derive(Debug)]
pub enum ChunkBody {
    /// The whole chunk, in memory.
    Whole(EncodedChunk),
    /// A chunk that is too large to be held in memory.
    Streamed(Box<StreamedChunk>),
}

/// Origin of the bytes of a chunk.
#[derive(Debug)]
enum ChunkOrigin {
    /// A range of the stored block of this version.
    Stored(u64, Range<usize>),
    /// Derived from blocks with this hash of their versions. There is a dependency if the bytes are cached.
    Derived(u64, Option<container::Dependency>),
}

impl Chunk {
    /// Creates the chunk of the box of `shape` elements at `start`, in N5 axis order. It is 0 outside the dataset.
    ///
    /// # Errors
    /// [`ReadError::NotFound`] if numbers leave the 64-bit range.
    pub fn of_region(
        dataset: Arc<Dataset>,
        start: &[u64],
        shape: &[u64],
        encoder: Arc<dyn ChunkEncoder>,
    ) -> Result<Self, ReadError> {
        let start: Option<SignedCoords> = start.iter().map(|n| i64::try_from(*n).ok()).collect();
        let step = shape.iter().map(|_| 1).collect();
        let region = start.and_then(|start| Region::new(start, shape.into(), step).ok());
        let region = region.ok_or_else(|| ReadError::NotFound(dataset.key.clone()))?;
        Ok(Self { dataset, position: None, region, encoder })
    }

    /// Creates the chunk of the box of `shape` elements at the origin of the block at `position`. No other block may
    /// have elements in the box.
    ///
    /// # Errors
    /// As [`Self::of_region`].
    pub fn of_block(
        dataset: Arc<Dataset>,
        position: GridPosition,
        shape: &[u64],
        encoder: Arc<dyn ChunkEncoder>,
    ) -> Result<Self, ReadError> {
        let start = dataset.attributes.grid().origin(&position);
        let chunk = Self::of_region(dataset, &start, shape, encoder)?;
        Ok(Self { position: Some(position), ..chunk })
    }

    /// Returns the media type.
    pub fn media_type(&self) -> &'static str {
        self.encoder.media_type()
    }

    /// Reads and encodes the chunk. Returns `None` if none of its blocks exists.
    ///
    /// # Errors
    /// [`ReadError`] of the first block that cannot be read, or if memory is short.
    pub async fn read(&self, container: &Container, freshness: Freshness) -> Result<Option<ChunkBody>, ReadError> {
        let body = self.read_unconfirmed(container, freshness).await?;
        if body.is_none() {
            // Clients read a missing chunk as zeros, so the dataset must still exist.
            container.confirm_missing(freshness, &self.dataset, self.position.as_slice()).await?;
        }
        Ok(body)
    }

    async fn read_unconfirmed(
        &self,
        container: &Container,
        freshness: Freshness,
    ) -> Result<Option<ChunkBody>, ReadError> {
        if let Some(position) = &self.position
            && self.encoder.can_pass_through(&self.dataset)
        {
            let stored = container.object(freshness, &self.dataset.block_key(position)).await?;
            let Some(stored) = stored else { return Ok(None) };
            let etag = self.etag(single_block_fingerprint(position, stored.meta()).etags_hash);
            match stored {
                StoredObject::Whole(meta, bytes) => {
                    if let Some(range) = self.encoder.passthrough_range(&bytes, &self.dataset, position) {
                        let origin = ChunkOrigin::Stored(meta.version, range.clone());
                        return Ok(Some(ChunkBody::Whole(EncodedChunk { bytes: bytes.slice(range), etag, origin })));
                    }
                }
                StoredObject::Large(large) => {
                    let stored_bytes = large.meta().len;
                    let head =
                        large.read_piece(0, RawLayout::max_header_bytes(self.region.rank()).min(stored_bytes)).await?;
                    if let Some(range) =
                        self.encoder.passthrough_range_from_head(&head, stored_bytes, &self.dataset, position)
                    {
                        let len = range.end.saturating_sub(range.start);
                        let source = StreamSource::Stored(large, range);
                        return Ok(Some(ChunkBody::Streamed(Box::new(StreamedChunk {
                            len,
                            etag,
                            source,
                            chunk: self.clone(),
                        }))));
                    }
                }
            }
            // The stored object is dropped here, because a request that holds memory must not wait for more.
        }
        let slice = match self.plan_whole(container) {
            Err(error) => {
                let Some(layout) = self.encoder.stream_layout(self.region.shape()) else { return Err(error) };
                let Some(etag) = self.lookup_etag_unconfirmed(container, freshness).await? else { return Ok(None) };
                let len = self
                    .plan_banded(container, &self.region, &layout)?
                    .bytes()
                    .saturating_add(layout.header.len() as u64);
                let source = StreamSource::Elements(layout);
                return Ok(Some(ChunkBody::Streamed(Box::new(StreamedChunk {
                    len,
                    etag,
                    source,
                    chunk: self.clone(),
                }))));
            }
            slice => slice?,
        };
        let (encoder, shape) = (Arc::clone(&self.encoder), self.region.shape().clone());
        let data_type = self.dataset.attributes.data_type().clone();
        let width = data_type.size_bytes().unwrap_or(1);
        let derivation = Derivation {
            id: xxh3_128(self.encoder.id().as_bytes()),
            extra_bytes: self.encoder.extra_bytes(&shape, width),
            apply: Arc::new(move |data| {
                encoder.encode(Array { shape: shape.clone(), data_type: data_type.clone(), data })
            }),
        };
        let derived = container.derived(freshness, &slice, &derivation).await?;
        Ok(derived.map(|derived| {
            let origin = ChunkOrigin::Derived(derived.versions_hash, derived.dependency);
            ChunkBody::Whole(EncodedChunk { bytes: derived.bytes, etag: self.etag(derived.etags_hash), origin })
        }))
    }

    /// Returns the dependencies with which a later request for `key` gets the same chunk without resolving it. Returns
    /// `None` if the chunk is not one block, if it depends on more than this block and the attributes of its dataset,
    /// or if these are not available without waiting.
    pub fn cached_answer(
        &self,
        container: &Container,
        freshness: Freshness,
        key: &Key,
        encoded: EncodedChunk,
    ) -> Option<CachedAnswer> {
        let (dataset, position) = (&self.dataset, self.position.as_ref()?);
        // A key can be split into dataset and position in several ways, and shorter dataset paths are tried first. If
        // the last name of the dataset is a number, the result also depends on what was tried before.
        let is_unambiguous = dataset.key.name().is_none_or(|name| grid_component(name).is_none());
        let mut names = key.segments();
        let is_below = dataset.key.segments().all(|name| names.next() == Some(name));
        // Only a position may follow the dataset, after the `c` that Zarr 3 puts before it.
        let is_position = names.skip_while(|name| *name == "c").all(|name| grid_component(name).is_some());
        if !is_unambiguous || !is_below || !is_position {
            return None;
        }
        let attributes = container.cached_dependency(freshness, &dataset.attributes_key()?, dataset.version)?;
        let block = dataset.block_key(position);
        match encoded.origin {
            ChunkOrigin::Stored(version, range) => Some(CachedAnswer {
                dependencies: vec![attributes, container.cached_dependency(freshness, &block, version)?],
                range,
            }),
            ChunkOrigin::Derived(versions_hash, dependency) => {
                let (meta, block) = container.stored_dependency(freshness, &block)?;
                let is_same = single_block_fingerprint(position, &meta).versions_hash == versions_hash;
                let dependencies = vec![attributes, block, dependency.filter(|_| is_same)?];
                Some(CachedAnswer { dependencies, range: 0..encoded.bytes.len() })
            }
        }
    }

    /// Returns the entity tag that [`Self::read`] would give, without reading a block; `None` if no block exists.
    ///
    /// # Errors
    /// [`ReadError`] if the store fails.
    pub async fn lookup_etag(&self, container: &Container, freshness: Freshness) -> Result<Option<String>, ReadError> {
        let etag = self.lookup_etag_unconfirmed(container, freshness).await?;
        if etag.is_none() {
            container.confirm_missing(freshness, &self.dataset, self.position.as_slice()).await?;
        }
        Ok(etag)
    }

    async fn lookup_etag_unconfirmed(
        &self,
        container: &Container,
        freshness: Freshness,
    ) -> Result<Option<String>, ReadError> {
        if let Some(position) = &self.position {
            let meta = container.meta(freshness, &self.dataset.block_key(position)).await?;
            return Ok(meta.map(|meta| self.etag(single_block_fingerprint(position, &meta).etags_hash)));
        }
        let slice = match (self.plan_whole(container), self.encoder.stream_layout(self.region.shape())) {
            (Err(_), Some(layout)) => self.plan_banded(container, &self.region, &layout)?,
            (slice, _) => slice?,
        };
        let fingerprint = container.fingerprint(freshness, &slice).await?;
        Ok((!fingerprint.is_empty()).then(|| self.etag(fingerprint.etags_hash)))
    }

    /// Plans to read the region in one piece and to encode it.
    fn plan_whole(&self, container: &Container) -> Result<PlannedSlice, ReadError> {
        let budget = container.resources().settings().slice_budget;
        let width = self.dataset.attributes.data_type().size_bytes().unwrap_or(1);
        let extra_bytes = self.encoder.extra_bytes(self.region.shape(), width);
        let slice = container.plan_slice(&self.dataset, self.region.clone()).ok();
        // A chunk that can be streamed leaves memory to other requests, because its client may be slow.
        let is_streamable = self.encoder.stream_layout(self.region.shape()).is_some();
        let max_bytes = if is_streamable { container.max_buffered_bytes() } else { budget };
        let fits = |slice: &PlannedSlice| slice.memory_bytes().saturating_add(extra_bytes) <= max_bytes;
        slice.filter(|slice| !slice.is_streamed() && fits(slice)).ok_or_else(|| self.too_large(container))
    }

    /// Plans to read `region`, a part of this chunk, in bands.
    fn plan_banded(
        &self,
        container: &Container,
        region: &Region,
        layout: &StreamLayout,
    ) -> Result<PlannedSlice, ReadError> {
        let data_type = layout.data_type.as_ref().unwrap_or(self.dataset.attributes.data_type());
        let delivery = SliceDelivery {
            data_type,
            extra_bytes: 0,
            prefix_bytes: 0,
            is_rate_limited: false,
            is_streamable: true,
            must_stream: true,
        };
        let slice = container.plan_converted_slice(&self.dataset, region.clone(), &delivery);
        slice.map_err(|_refusal| self.too_large(container))
    }

    fn too_large(&self, container: &Container) -> ReadError {
        let budget = container.resources().settings().slice_budget;
        ReadError::TooLarge(format!(
            "a chunk of {:?} elements is too large to be encoded; limits.slice_budget is {budget} bytes; regions \
             of it are available from /slice",
            self.region.shape().as_slice()
        ))
    }

    fn etag(&self, etags_hash: u128) -> String {
        let mut hashed_text = String::new();
        // Writing to a String cannot fail.
        let _ = write!(
            hashed_text,
            "{} {} {:?} {etags_hash:x} {RELEASE}",
            self.dataset.etag,
            self.encoder.id(),
            self.region
        );
        format!("\"{:032x}\"", xxh3_128(hashed_text.as_bytes()))
    }
}

fn single_block_fingerprint(position: &GridPosition, meta: &ObjectMeta) -> Fingerprint {
    let mut fingerprint = Fingerprint::default();
    fingerprint.add(position, &meta.etag, meta.version);
    fingerprint
}

/// A chunk that is too large to be held in memory, and is read while it is sent.
#[derive(Debug)]
pub struct StreamedChunk {
    /// Length of the chunk in bytes.
    pub len: u64,
    /// As [`EncodedChunk::etag`].
    pub etag: String,
    /// Source of the bytes.
    pub source: StreamSource,
    chunk: Chunk,
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
