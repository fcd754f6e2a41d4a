//! Chunks: parts of a dataset in the encoding of a view.

use std::fmt;
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use super::streamed_chunk::{StreamSource, StreamedChunk};
use crate::cache::{CachedAnswer, Dataset, Freshness, ReadError, StoredObject};
use crate::container::{Container, grid_component};
use crate::n5::{
    Array, BlockEncoding, BlockHeader, BlockMode, Coords, DataType, GridPosition, RawLayout, Region, SignedCoords,
};
use crate::read::{Derivation, Fingerprint, PlannedSlice, SliceDelivery};
use crate::store::{Key, ObjectMeta};

/// Part of every entity tag, because another release may encode to other bytes, which are another representation.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Encodes the elements of a chunk to bytes.
pub trait ChunkEncoder: fmt::Debug + Send + Sync {
    /// Returns the media type.
    fn media_type(&self) -> &'static str {
        "application/octet-stream"
    }

    /// Returns, as text, everything that the bytes depend on besides the elements. It is a part of entity tags and of
    /// the cache keys of encoded chunks.
    fn id(&self) -> String;

    /// Returns an upper bound of the bytes that encoding allocates besides the elements, including the result.
    fn extra_bytes(&self, shape: &Coords, width: usize) -> u64;

    /// Encodes elements as a chunk.
    ///
    /// # Errors
    /// [`ReadError::NotRepresentable`] and [`ReadError::Convert`] if the elements cannot be encoded.
    fn encode(&self, array: Array) -> Result<Bytes, ReadError>;

    /// Returns the range of the chunk within a stored block of the dataset, if the block contains it in the required
    /// encoding. It is called only for a chunk that is exactly one block.
    fn passthrough_range(&self, _stored: &[u8], _dataset: &Dataset, _position: &GridPosition) -> Option<Range<usize>> {
        None
    }

    /// As [`Self::passthrough_range`], for a stored block of `stored_bytes` that is not in memory. `head` holds its
    /// first bytes.
    fn passthrough_range_from_head(
        &self,
        _head: &[u8],
        _stored_bytes: u64,
        _dataset: &Dataset,
        _position: &GridPosition,
    ) -> Option<Range<u64>> {
        None
    }

    /// Returns true if [`Self::passthrough_range`] can find a range in any block of the dataset.
    fn can_pass_through(&self, _dataset: &Dataset) -> bool {
        false
    }

    /// Returns the layout of a chunk of `shape` if its elements are encoded one after the other, so that it can be
    /// streamed. Returns `None` if the encoder needs all elements at once.
    fn stream_layout(&self, _shape: &Coords) -> Option<StreamLayout> {
        None
    }
}

/// Layout of a streamed chunk: a header, then each element in memory order.
#[derive(Debug, Clone, Default)]
pub struct StreamLayout {
    /// Bytes before the elements.
    pub header: Bytes,
    /// Type that the elements are converted to, if it is not the dataset's own.
    pub data_type: Option<DataType>,
    /// True if the elements are big-endian.
    pub is_big_endian: bool,
}

/// A region of a dataset with its encoder. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Chunk {
    pub(super) dataset: Arc<Dataset>,
    /// Position of the block, if the chunk is one block.
    position: Option<GridPosition>,
    pub(super) region: Region,
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
    Derived(u64, Option<crate::cache::Dependency>),
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
    pub(super) fn plan_banded(
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

/// Returns the range of the payload of a stored block, if the block is of the default mode, has exactly `size` elements
/// and is one stream of `encoding`.
pub(super) fn payload_range(
    stored: &[u8],
    size: &[u64],
    width: usize,
    encoding: BlockEncoding,
) -> Option<Range<usize>> {
    let header = BlockHeader::parse(stored).ok()?;
    if header.mode != BlockMode::Default || header.size.as_slice() != size {
        return None;
    }
    let len = usize::try_from(header.elements?).ok()?.checked_mul(width)?;
    let payload = stored.get(header.len..)?;
    encoding.is_one_stream(payload, len).then_some(header.len..stored.len())
}

/// Returns the encoding of the blocks of a dataset, if it is one that other programs read.
pub(super) fn stored_encoding(dataset: &Dataset) -> Option<BlockEncoding> {
    BlockEncoding::from_name(dataset.attributes.compression().name())
}
