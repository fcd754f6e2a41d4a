//! Chunks: parts of a dataset in the encoding of a view, and the reading of their bytes.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::chunk_encoder::{ChunkEncoder, StreamLayout};
use crate::cache::{Dataset, LargeObject, ReadError, ReadOptions, StoredObject};
use crate::container::{CachedResponse, Container, Dependency, grid_component};
use crate::read::{self, Derivation, DerivedBytes, Fingerprint, PlannedSlice, SliceDelivery, SlicePlanner};
use crate::store::{Key, ObjectMeta, StoreError};
use n5_format::{Array, BlockEncoding, BlockHeader, BlockMode, DataType, GridPosition, Region, SignedCoords};

/// Version of this release. Entity tags depend on it, because another release may encode the same chunk to other bytes.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// Number of missing blocks that are confirmed at once.
const CONFIRMED_BLOCKS: usize = 256;

/// A region of a dataset with its encoder. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Chunk {
    dataset: Arc<Dataset>,
    /// Position of the block, if the chunk is one block.
    position: Option<GridPosition>,
    region: Region,
    encoder: Arc<dyn ChunkEncoder>,
}

/// An encoded chunk: its length, entity tag and bytes.
#[derive(Debug)]
pub struct EncodedChunk {
    /// Length in bytes.
    pub len: u64,
    /// Strong entity tag in quotes, the same on every replica.
    pub etag: String,
    /// Source of the bytes.
    pub source: ChunkSource,
}

/// Source of the bytes of a chunk.
#[derive(Debug)]
pub enum ChunkSource {
    /// Bytes in memory that are a range of a stored block.
    Stored {
        /// The bytes of the chunk.
        bytes: Bytes,
        /// Version of the block.
        version: u64,
        /// Range of these bytes within the block.
        range: Range<usize>,
    },
    /// Bytes in memory that were derived from blocks.
    Derived {
        /// The bytes of the chunk.
        bytes: Bytes,
        /// Hash of the versions of the blocks.
        versions_hash: u64,
        /// Dependency on the cached bytes, or `None` if they are not cached.
        dependency: Option<Dependency>,
    },
    /// A range of a stored block that is too large to be held in memory, and is read while it is being sent.
    LargeStored(Arc<LargeObject>, Range<u64>),
    /// Elements that are too large to be held in memory, and are read while they are being sent.
    Elements(StreamLayout),
}

impl EncodedChunk {
    /// Returns the bytes if they are in memory.
    pub fn bytes(&self) -> Option<&Bytes> {
        match &self.source {
            ChunkSource::Stored { bytes, .. } | ChunkSource::Derived { bytes, .. } => Some(bytes),
            ChunkSource::LargeStored(..) | ChunkSource::Elements(_) => None,
        }
    }
}

impl Chunk {
    /// Creates a chunk that covers the box of `shape` elements at `start`, in N5 axis order. Elements outside the
    /// dataset are 0.
    ///
    /// # Errors
    /// Returns [`ReadError::NotFound`] if an index or size is outside the 64-bit range.
    pub fn of_region(
        dataset: Arc<Dataset>,
        start: &[u64],
        shape: &[u64],
        encoder: Arc<dyn ChunkEncoder>,
    ) -> Result<Self, ReadError> {
        let start: Option<SignedCoords> = start.iter().map(|index| i64::try_from(*index).ok()).collect();
        let step = shape.iter().map(|_| 1).collect();
        let region = start.and_then(|start| Region::new(start, shape.into(), step).ok());
        let region = region.ok_or_else(|| ReadError::NotFound(dataset.key.clone()))?;
        Ok(Self { dataset, position: None, region, encoder })
    }

    /// Creates a chunk that covers a box of `shape` elements, starting at the origin of the block at `position`. The
    /// box must not overlap any other block.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::of_region`].
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
    /// The first of these ways that is possible is taken:
    ///
    /// 1. If the payload of the stored block already has the form of the chunk, the chunk is a range of the stored
    ///    object.
    /// 2. If the elements and the encoded chunk fit into memory, the elements are read and encoded. The result may be
    ///    cached. A chunk that can be streamed is read in this way only within [`read::max_buffered_bytes`].
    /// 3. If the chunk can be streamed, because its encoder encodes one element after the other, the elements are read
    ///    and encoded while the chunk is being sent.
    ///
    /// # Errors
    /// Returns the [`ReadError`] of the first block that cannot be read. Also returns an error if there is not enough
    /// memory.
    pub async fn read(&self, container: &Container, options: ReadOptions) -> Result<Option<EncodedChunk>, ReadError> {
        let chunk = self.read_unconfirmed(container, options).await?;
        if chunk.is_none() {
            // Clients read a missing chunk as zeros, so the dataset must still exist.
            self.confirm_missing(container, options).await?;
        }
        Ok(chunk)
    }

    /// Confirms that the blocks of the chunk, which were missing, are holes.
    async fn confirm_missing(&self, container: &Container, options: ReadOptions) -> Result<(), ReadError> {
        if let Some(position) = &self.position {
            return container.confirm_missing(options, &self.dataset, std::slice::from_ref(position)).await;
        }
        let mut positions = self.dataset.attributes.grid().covering(&self.region);
        loop {
            let batch: Vec<GridPosition> = positions.by_ref().take(CONFIRMED_BLOCKS).collect();
            if batch.is_empty() {
                return Ok(());
            }
            container.confirm_missing(options, &self.dataset, &batch).await?;
        }
    }

    async fn read_unconfirmed(
        &self,
        container: &Container,
        options: ReadOptions,
    ) -> Result<Option<EncodedChunk>, ReadError> {
        if let Some((position, encoding)) = self.passthrough_candidate() {
            let stored = container.object(options, &self.dataset.block_key(position)).await?;
            let Some(stored) = stored else { return Ok(None) };
            // The stored object is dropped here, because a request that holds memory must not wait for more.
            if let Some(chunk) = self.pass_through(position, encoding, stored).await? {
                return Ok(Some(chunk));
            }
        }
        if let Some(slice) = self.plan_whole(container) {
            return self.derive(container, options, &slice).await;
        }
        match self.stream_layout() {
            Some(layout) => self.stream(container, options, layout).await,
            None => Err(self.too_large(container)),
        }
    }

    /// Returns the position of the chunk's block and the encoding of its payload, if blocks of the dataset may be sent
    /// as they are stored.
    fn passthrough_candidate(&self) -> Option<(&GridPosition, BlockEncoding)> {
        let position = self.position.as_ref()?;
        let attributes = &self.dataset.attributes;
        let encoding = self.encoder.passthrough(attributes)?;
        (attributes.compression().name() == encoding.name()).then_some((position, encoding))
    }

    /// Returns the range of the chunk within its stored block, if the block is of the default mode, its header is
    /// accepted by the encoder, and its payload is one stream in `encoding`.
    ///
    /// The block has `stored_bytes` bytes and begins with `head`. For an uncompressed block, `head` need not go beyond
    /// the header. For a compressed block, it must be the whole block.
    fn range_in_block(
        &self,
        position: &GridPosition,
        encoding: BlockEncoding,
        head: &[u8],
        stored_bytes: u64,
    ) -> Option<Range<u64>> {
        let header = BlockHeader::parse(head).ok()?;
        if header.mode != BlockMode::Default {
            return None;
        }
        let start = self.encoder.start_in_block(&self.dataset.attributes, position, &header)?;
        let payload_start = header.len as u64;
        let payload_bytes = header.elements?.checked_mul(self.element_bytes() as u64)?;
        let is_one_stream = match encoding {
            BlockEncoding::Raw => payload_start.checked_add(payload_bytes) == Some(stored_bytes),
            BlockEncoding::Gzip | BlockEncoding::Zstd | BlockEncoding::Blosc => {
                head.len() as u64 == stored_bytes
                    && encoding.is_one_stream(head.get(header.len..)?, usize::try_from(payload_bytes).ok()?)
            }
        };
        is_one_stream.then_some(start as u64..stored_bytes)
    }

    /// Returns the chunk as a range of its stored block, or `None` if the block does not already have the form of the
    /// chunk.
    async fn pass_through(
        &self,
        position: &GridPosition,
        encoding: BlockEncoding,
        stored: StoredObject,
    ) -> Result<Option<EncodedChunk>, ReadError> {
        let etag = self.etag(single_block_fingerprint(position, stored.meta()).etags_hash);
        let (range, source) = match stored {
            StoredObject::Whole(meta, bytes) => {
                let range = self.range_in_block(position, encoding, &bytes, bytes.len() as u64);
                let Some(range) = range else { return Ok(None) };
                let block_range = usize::try_from(range.start).unwrap_or(usize::MAX)..bytes.len();
                let bytes = bytes.slice(block_range.clone());
                (range, ChunkSource::Stored { bytes, version: meta.version, range: block_range })
            }
            StoredObject::Large(large) => {
                let stored_bytes = large.meta().len;
                let head_bytes = BlockHeader::max_len(self.region.rank()).min(stored_bytes);
                let head = large.read_piece(0, head_bytes).await?;
                let range = self.range_in_block(position, encoding, &head, stored_bytes);
                let Some(range) = range else { return Ok(None) };
                (range.clone(), ChunkSource::LargeStored(large, range))
            }
        };
        Ok(Some(EncodedChunk { len: range.end.saturating_sub(range.start), etag, source }))
    }

    /// Reads the elements of the chunk and encodes them, through the cache of derived results.
    async fn derive(
        &self,
        container: &Container,
        options: ReadOptions,
        slice: &PlannedSlice,
    ) -> Result<Option<EncodedChunk>, ReadError> {
        let encoder = Arc::clone(&self.encoder);
        let shape = self.region.shape().clone();
        let data_type = self.dataset.attributes.data_type().clone();
        let derivation = Derivation {
            id: self.derivation_id(),
            extra_bytes: self.encoder.encoder_bytes(&shape, self.element_bytes()),
            skips_damaged: false,
            apply: Arc::new(move |data| {
                encoder.encode(Array { shape: shape.clone(), data_type: data_type.clone(), data })
            }),
        };
        let derived = read::read_derived(container, options, slice, &derivation).await?;
        Ok(derived.map(|derived| {
            let DerivedBytes { bytes, etags_hash, versions_hash, dependency } = derived;
            let len = bytes.len() as u64;
            let source = ChunkSource::Derived { bytes, versions_hash, dependency };
            EncodedChunk { len, etag: self.etag(etags_hash), source }
        }))
    }

    /// Returns the chunk as elements that are read while the chunk is being sent.
    async fn stream(
        &self,
        container: &Container,
        options: ReadOptions,
        layout: StreamLayout,
    ) -> Result<Option<EncodedChunk>, ReadError> {
        let slice = self.plan_banded(container, &self.region, &layout)?;
        let Some(etag) = self.streamed_etag(container, options, &slice).await? else { return Ok(None) };
        let elements_bytes = slice.bytes();
        let len = elements_bytes.saturating_add(layout.header.len() as u64);
        Ok(Some(EncodedChunk { len, etag, source: ChunkSource::Elements(layout) }))
    }

    fn element_bytes(&self) -> usize {
        self.dataset.attributes.data_type().size_bytes().unwrap_or(1)
    }

    /// Returns a cached response that a later request for `key` may get without resolving the key again. Returns `None`
    /// if the chunk is not one block, if it depends on more than this block and the attributes of its dataset, or if
    /// these are not available without waiting.
    pub fn cached_response(
        &self,
        container: &Container,
        options: ReadOptions,
        key: &Key,
        encoded: EncodedChunk,
    ) -> Option<CachedResponse> {
        let dataset = &self.dataset;
        let position = self.position.as_ref()?;
        if !is_block_path(&dataset.key, key) {
            return None;
        }
        let attributes = container.cached_dependency(options, &dataset.attributes_key()?, dataset.version)?;
        let block = dataset.block_key(position);
        match encoded.source {
            ChunkSource::Stored { version, range, .. } => Some(CachedResponse {
                source: container.cached_dependency(options, &block, version)?,
                range,
                others: vec![attributes],
            }),
            ChunkSource::Derived { bytes, versions_hash, dependency } => {
                let (meta, block) = container.stored_dependency(options, &block)?;
                let is_same = single_block_fingerprint(position, &meta).versions_hash == versions_hash;
                let source = dependency.filter(|_| is_same)?;
                Some(CachedResponse { source, range: 0..bytes.len(), others: vec![attributes, block] })
            }
            ChunkSource::LargeStored(..) | ChunkSource::Elements(_) => None,
        }
    }

    /// Returns the entity tag of the chunk that [`Self::read`] would return, without reading a block. Returns `None` if
    /// no block exists.
    ///
    /// # Errors
    /// Returns an error if the store fails.
    pub async fn lookup_etag(&self, container: &Container, options: ReadOptions) -> Result<Option<String>, ReadError> {
        let etag = self.lookup_etag_unconfirmed(container, options).await?;
        if etag.is_none() {
            self.confirm_missing(container, options).await?;
        }
        Ok(etag)
    }

    async fn lookup_etag_unconfirmed(
        &self,
        container: &Container,
        options: ReadOptions,
    ) -> Result<Option<String>, ReadError> {
        let whole = self.plan_whole(container);
        if let Some(slice) = &whole
            && self.passthrough_candidate().is_none()
            && let Some(etags_hash) = read::cached_etags_hash(container, options, slice, self.derivation_id()).await
        {
            return Ok(Some(self.etag(etags_hash)));
        }
        // The store must not be asked for a block that is decoded already.
        let is_decoded = self.passthrough_candidate().is_none() && container.store.sends_conditional_requests();
        if let Some(position) = self.position.as_ref().filter(|_| !is_decoded) {
            let meta = container.meta(options, &self.dataset.block_key(position)).await?;
            return Ok(meta.map(|meta| self.etag(single_block_fingerprint(position, &meta).etags_hash)));
        }
        let slice = if let Some(slice) = whole {
            slice
        } else {
            let layout = self.stream_layout().ok_or_else(|| self.too_large(container))?;
            self.plan_banded(container, &self.region, &layout)?
        };
        self.streamed_etag(container, options, &slice).await
    }

    /// Returns the entity tag of the chunk if `slice`, its elements, is read now. Returns `None` if no block exists.
    async fn streamed_etag(
        &self,
        container: &Container,
        options: ReadOptions,
        slice: &PlannedSlice,
    ) -> Result<Option<String>, ReadError> {
        let fingerprint = read::fingerprint(container, options, slice).await?;
        Ok((!fingerprint.is_empty()).then(|| self.etag(fingerprint.etags_hash)))
    }

    fn derivation_id(&self) -> u128 {
        xxh3_128(self.encoder.id().as_bytes())
    }

    /// Plans to read the region in one piece and to encode it. Returns `None` if this takes too much memory, or if the
    /// planner refuses the slice.
    fn plan_whole(&self, container: &Container) -> Option<PlannedSlice> {
        let slice = SlicePlanner::whole(container, &self.dataset).plan(&self.region).ok()?;
        // A chunk that can be streamed is read as a whole only if it is small, because a slow client may keep its
        // memory for a long time.
        let max_bytes = match self.stream_layout() {
            Some(_) => read::max_buffered_bytes(container),
            None => container.resources().settings().slice_budget,
        };
        let encoder_bytes = self.encoder.encoder_bytes(self.region.shape(), self.element_bytes());
        let fits = slice.memory_bytes().saturating_add(encoder_bytes) <= max_bytes;
        (fits && !slice.is_streamed()).then_some(slice)
    }

    /// Plans to read `region`, a part of this chunk, in bands.
    fn plan_banded(
        &self,
        container: &Container,
        region: &Region,
        layout: &StreamLayout,
    ) -> Result<PlannedSlice, ReadError> {
        let delivery = SliceDelivery::streamed(self.streamed_type(layout));
        let planner = SlicePlanner { container, dataset: &self.dataset, delivery };
        planner.plan(region).map_err(|_refusal| self.too_large(container))
    }

    fn too_large(&self, container: &Container) -> ReadError {
        let budget = container.resources().settings().slice_budget;
        ReadError::TooLarge(format!(
            "a chunk of {:?} elements is too large to be encoded; limits.slice_budget is {budget} bytes; regions \
             of it are available from /slice",
            self.region.shape().as_slice()
        ))
    }

    /// Plans the slice that contains the bytes `from .. to` of the elements of a streamed chunk, in memory order. Also
    /// returns the number of bytes of the slice before the byte `from`.
    ///
    /// # Errors
    /// Returns [`ReadError::TooLarge`] if the slice is refused.
    pub fn plan_byte_range(
        &self,
        container: &Container,
        layout: &StreamLayout,
        from: u64,
        to: u64,
    ) -> Result<(PlannedSlice, u64), ReadError> {
        let shape = self.region.shape();
        let axis = shape.iter().rposition(|samples| *samples > 1).unwrap_or(0);
        let width = self.streamed_type(layout).size_bytes().unwrap_or(1) as u64;
        let sample_bytes = shape.iter().take(axis).fold(width, |bytes, size| bytes.saturating_mul(*size)).max(1);
        let first = from / sample_bytes;
        let count = to.div_ceil(sample_bytes).saturating_sub(first);
        let slice = self.plan_banded(container, &self.region.narrow(axis, first, count), layout)?;
        Ok((slice, from.saturating_sub(first.saturating_mul(sample_bytes))))
    }

    /// Returns the width of the converted elements if they are sent big-endian; `None` if their bytes are not swapped.
    pub fn swapped_width(&self, layout: &StreamLayout) -> Option<usize> {
        self.streamed_type(layout).size_bytes().filter(|width| layout.is_big_endian && *width > 1)
    }

    /// Checks that the blocks are still those that `etag` was computed from.
    ///
    /// # Errors
    /// Returns [`ReadError::Store`] if the blocks have changed or the store fails.
    pub async fn verify_etag(&self, container: &Container, etag: &str) -> Result<(), ReadError> {
        let layout = self.stream_layout().ok_or_else(|| self.too_large(container))?;
        let slice = self.plan_banded(container, &self.region, &layout)?;
        let is_same = self.streamed_etag(container, ReadOptions::begin(), &slice).await?.as_deref() == Some(etag);
        if is_same { Ok(()) } else { Err(StoreError::Torn(self.dataset.key.clone()).into()) }
    }

    fn stream_layout(&self) -> Option<StreamLayout> {
        self.encoder.stream_layout(self.region.shape())
    }

    fn streamed_type<'a>(&'a self, layout: &'a StreamLayout) -> &'a DataType {
        layout.data_type.as_ref().unwrap_or(self.dataset.attributes.data_type())
    }

    /// Returns the entity tag of the chunk. It is a hash of the attributes of the dataset, the encoder, the box, the
    /// entity tags of the blocks and the release.
    fn etag(&self, etags_hash: u128) -> String {
        let mut hash = Xxh3::new();
        let mut add = |field: &[u8]| {
            hash.update(&(field.len() as u64).to_le_bytes());
            hash.update(field);
        };
        add(self.dataset.etag.as_bytes());
        add(self.encoder.id().as_bytes());
        for index in self.region.start() {
            add(&index.to_le_bytes());
        }
        for size in self.region.shape() {
            add(&size.to_le_bytes());
        }
        add(&etags_hash.to_le_bytes());
        add(RELEASE.as_bytes());
        format!("\"{:032x}\"", hash.digest128())
    }
}

/// Returns true if `key` always names a block of the dataset at `dataset`, no matter what else the container holds.
fn is_block_path(dataset: &Key, key: &Key) -> bool {
    // A key can be split into dataset and position in several ways, and shorter dataset paths are tried first. If the
    // last name of the dataset is a number, the result also depends on the shorter paths.
    let is_unambiguous = dataset.name().is_none_or(|name| grid_component(name).is_none());
    let mut names = key.segments();
    let is_below = dataset.segments().all(|name| names.next() == Some(name));
    // Only a position may follow the dataset, after the `c` that Zarr 3 puts before it.
    let is_position = names.skip_while(|name| *name == "c").all(|name| grid_component(name).is_some());
    is_unambiguous && is_below && is_position
}

fn single_block_fingerprint(position: &GridPosition, meta: &ObjectMeta) -> Fingerprint {
    let mut fingerprint = Fingerprint::default();
    fingerprint.add(position, &meta.etag, meta.version);
    fingerprint
}
