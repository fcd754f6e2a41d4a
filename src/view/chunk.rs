//! A part of a dataset in a view's form.

use std::fmt;
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use super::pieces::{Pieces, PiecesFrom};
use crate::container::{
    self, Access, Container, Dataset, Fingerprint, ReadError, Recipe, Sending, Slice, Stored, Trail, grid_component,
};
use crate::n5::{Array, BlockHeader, Coords, DataType, Encoding, GridPosition, Mode, RawLayout, Region, Start};
use crate::store::{Key, Meta};

/// Another release may encode to other bytes, which are another representation.
const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// How the elements of a chunk become bytes.
pub trait Form: fmt::Debug + Send + Sync {
    /// The media type.
    fn media_type(&self) -> &'static str {
        "application/octet-stream"
    }

    /// Everything that the bytes depend on besides the elements, as text: part of entity tags, and of what encoded
    /// chunks are cached by.
    fn id(&self) -> String;

    /// Upper bound of the bytes that encoding allocates besides the elements, the result included.
    fn extra_bytes(&self, shape: &Coords, width: usize) -> u64;

    /// The chunk of these elements.
    ///
    /// # Errors
    /// [`ReadError::Unmakeable`] and [`ReadError::Convert`], for what cannot be made of them.
    fn encode(&self, array: Array) -> Result<Bytes, ReadError>;

    /// Where the chunk lies within a stored block of the dataset, if it is there as it has to be. Not asked unless
    /// the chunk is exactly one block.
    fn within(&self, _stored: &[u8], _dataset: &Dataset, _position: &GridPosition) -> Option<Range<usize>> {
        None
    }

    /// As [`Self::within`], in a stored block of `stored_bytes` that is not held; `head` are its first bytes.
    fn within_large(
        &self,
        _head: &[u8],
        _stored_bytes: u64,
        _dataset: &Dataset,
        _position: &GridPosition,
    ) -> Option<Range<u64>> {
        None
    }

    /// Whether [`Self::within`] can find anything in any block of the dataset.
    fn passes(&self, _dataset: &Dataset) -> bool {
        false
    }

    /// How a chunk of `shape` is made of its elements one after the other, so that it can be sent while it is made; `None` for
    /// what needs all of them.
    fn plain(&self, _shape: &Coords) -> Option<Plain> {
        None
    }
}

/// A header, and then each element in the order of memory.
#[derive(Debug, Clone, Default)]
pub struct Plain {
    /// The bytes before the elements.
    pub header: Bytes,
    /// The type that they are converted to, where that is another one.
    pub data_type: Option<DataType>,
    /// The elements are big-endian.
    pub big_endian: bool,
}

/// A region of a dataset, and the form it is wanted in. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Chunk {
    pub(super) dataset: Arc<Dataset>,
    /// The block that it is, where it is one.
    position: Option<GridPosition>,
    pub(super) region: Region,
    form: Arc<dyn Form>,
}

/// A chunk to be sent.
#[derive(Debug)]
pub struct Ready {
    /// The bytes.
    pub bytes: Bytes,
    /// Strong, quoted, equal on every replica.
    pub etag: String,
    source: Source,
}

/// A chunk that is found.
#[derive(Debug)]
pub enum Sent {
    /// All of it.
    Whole(Ready),
    /// It is too large for that.
    Pieces(Box<Pieces>),
}

/// Where the bytes of a chunk are from.
#[derive(Debug)]
enum Source {
    /// They are a part of the stored block of this version.
    Stored(u64, Range<usize>),
    /// They were made of blocks of these versions, and may be cached.
    Made(u64, Option<container::Found>),
}

impl Chunk {
    /// The box from `start` on of `shape` elements, N5 axis order; what lies outside the dataset is 0.
    ///
    /// # Errors
    /// [`ReadError::NotFound`] where numbers leave the 64-bit range.
    pub fn of_region(
        dataset: Arc<Dataset>,
        start: &[u64],
        shape: &[u64],
        form: Arc<dyn Form>,
    ) -> Result<Self, ReadError> {
        let start: Option<Start> = start.iter().map(|n| i64::try_from(*n).ok()).collect();
        let step = shape.iter().map(|_| 1).collect();
        let region = start.and_then(|start| Region::new(start, shape.into(), step).ok());
        let region = region.ok_or_else(|| ReadError::NotFound(dataset.key.clone()))?;
        Ok(Self { dataset, position: None, region, form })
    }

    /// The box of `shape` elements that begins where the block at `position` does, and of whose elements no other
    /// block has any.
    ///
    /// # Errors
    /// As [`Self::of_region`].
    pub fn of_block(
        dataset: Arc<Dataset>,
        position: GridPosition,
        shape: &[u64],
        form: Arc<dyn Form>,
    ) -> Result<Self, ReadError> {
        let start = dataset.attributes.grid().origin(&position);
        let chunk = Self::of_region(dataset, &start, shape, form)?;
        Ok(Self { position: Some(position), ..chunk })
    }

    /// The media type.
    pub fn media_type(&self) -> &'static str {
        self.form.media_type()
    }

    /// The chunk; `None` where none of its blocks exists.
    ///
    /// # Errors
    /// [`ReadError`] of the first block that cannot be read, or when memory is short.
    pub async fn sent(&self, container: &Container, access: Access) -> Result<Option<Sent>, ReadError> {
        let found = self.found(container, access).await?;
        if found.is_none() {
            // Clients take a missing chunk for zeros.
            container.believe(access, &self.dataset, self.position.as_slice()).await?;
        }
        Ok(found)
    }

    async fn found(&self, container: &Container, access: Access) -> Result<Option<Sent>, ReadError> {
        if let Some(position) = &self.position
            && self.form.passes(&self.dataset)
        {
            let stored = container.object(access, &self.dataset.block_key(position)).await?;
            let Some(stored) = stored else { return Ok(None) };
            let etag = self.etag(of_one(position, stored.meta()).tags);
            match stored {
                Stored::Whole(meta, bytes) => {
                    if let Some(range) = self.form.within(&bytes, &self.dataset, position) {
                        let source = Source::Stored(meta.version, range.clone());
                        return Ok(Some(Sent::Whole(Ready { bytes: bytes.slice(range), etag, source })));
                    }
                }
                Stored::Large(large) => {
                    let stored_bytes = large.meta().len;
                    let head = large.piece(0, RawLayout::head_bytes(self.region.rank()).min(stored_bytes)).await?;
                    if let Some(range) = self.form.within_large(&head, stored_bytes, &self.dataset, position) {
                        let len = range.end.saturating_sub(range.start);
                        let from = PiecesFrom::Stored(large, range);
                        return Ok(Some(Sent::Pieces(Box::new(Pieces { len, etag, from, chunk: self.clone() }))));
                    }
                }
            }
            // Let go of here: nobody waits for memory who holds some.
        }
        let slice = match self.slice(container) {
            Err(error) => {
                let Some(plain) = self.form.plain(self.region.shape()) else { return Err(error) };
                let Some(etag) = self.found_tag(container, access).await? else { return Ok(None) };
                let len =
                    self.planned(container, &self.region, &plain)?.bytes().saturating_add(plain.header.len() as u64);
                let from = PiecesFrom::Elements(plain);
                return Ok(Some(Sent::Pieces(Box::new(Pieces { len, etag, from, chunk: self.clone() }))));
            }
            slice => slice?,
        };
        let (form, shape) = (Arc::clone(&self.form), self.region.shape().clone());
        let data_type = self.dataset.attributes.data_type().clone();
        let width = data_type.size_bytes().unwrap_or(1);
        let recipe = Recipe {
            id: xxh3_128(self.form.id().as_bytes()),
            extra_bytes: self.form.extra_bytes(&shape, width),
            make: Arc::new(move |data| form.encode(Array { shape: shape.clone(), data_type: data_type.clone(), data })),
        };
        let made = container.made(access, &slice, &recipe).await?;
        Ok(made.map(|made| {
            let source = Source::Made(made.versions, made.found);
            Sent::Whole(Ready { bytes: made.bytes, etag: self.etag(made.tags), source })
        }))
    }

    /// How to find a chunk that is one block again, which was asked for by `key`; `None` where more than the attributes
    /// of its dataset and that block decided what it is, or they are not at hand.
    pub fn trail(&self, container: &Container, access: Access, key: &Key, ready: Ready) -> Option<Trail> {
        let (dataset, position) = (&self.dataset, self.position.as_ref()?);
        // Of the ways to cut a key, those were tried before that begin a dataset's grid further up.
        let is_unambiguous = dataset.key.name().is_none_or(|name| grid_component(name).is_none());
        let mut names = key.segments();
        let is_below = dataset.key.segments().all(|name| names.next() == Some(name));
        // Nothing but a position follows, after what some views put before it.
        let is_position = names.skip_while(|name| *name == "c").all(|name| grid_component(name).is_some());
        if !is_unambiguous || !is_below || !is_position {
            return None;
        }
        let attributes = container.cached(access, &dataset.attributes_key()?, dataset.version)?;
        let block = dataset.block_key(position);
        match ready.source {
            Source::Stored(version, range) => {
                Some(Trail { founds: vec![attributes, container.cached(access, &block, version)?], range })
            }
            Source::Made(versions, made) => {
                let (meta, block) = container.compared(access, &block)?;
                let is_same = of_one(position, &meta).versions == versions;
                let founds = vec![attributes, block, made.filter(|_| is_same)?];
                Some(Trail { founds, range: 0..ready.bytes.len() })
            }
        }
    }

    /// The entity tag that [`Self::sent`] would give, without reading a block; `None` where none exists.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn tag(&self, container: &Container, access: Access) -> Result<Option<String>, ReadError> {
        let tag = self.found_tag(container, access).await?;
        if tag.is_none() {
            container.believe(access, &self.dataset, self.position.as_slice()).await?;
        }
        Ok(tag)
    }

    async fn found_tag(&self, container: &Container, access: Access) -> Result<Option<String>, ReadError> {
        if let Some(position) = &self.position {
            let meta = container.meta(access, &self.dataset.block_key(position)).await?;
            return Ok(meta.map(|meta| self.etag(of_one(position, &meta).tags)));
        }
        let slice = match (self.slice(container), self.form.plain(self.region.shape())) {
            (Err(_), Some(plain)) => self.planned(container, &self.region, &plain)?,
            (slice, _) => slice?,
        };
        let fingerprint = container.fingerprint(access, &slice).await?;
        Ok((!fingerprint.is_empty()).then(|| self.etag(fingerprint.tags)))
    }

    /// The region, to be read in one piece and encoded.
    fn slice(&self, container: &Container) -> Result<Slice, ReadError> {
        let budget = container.resources().settings().slice_budget;
        let width = self.dataset.attributes.data_type().size_bytes().unwrap_or(1);
        let extra_bytes = self.form.extra_bytes(self.region.shape(), width);
        let slice = container.plan_slice(&self.dataset, self.region.clone()).ok();
        // A chunk that can be streamed leaves memory to others, because its client may be slow.
        let is_plain = self.form.plain(self.region.shape()).is_some();
        let most = if is_plain { container.most_held_bytes() } else { budget };
        let is_held = |slice: &Slice| slice.held_bytes().saturating_add(extra_bytes) <= most;
        slice.filter(|slice| !slice.is_streamed() && is_held(slice)).ok_or_else(|| self.too_large(container))
    }

    /// `region`, a part of this one, to be read in bands.
    pub(super) fn planned(&self, container: &Container, region: &Region, plain: &Plain) -> Result<Slice, ReadError> {
        let data_type = plain.data_type.as_ref().unwrap_or(self.dataset.attributes.data_type());
        let sending = Sending {
            data_type,
            extra_bytes: 0,
            beside_bytes: 0,
            is_slowed: false,
            is_streamable: true,
            is_banded: true,
        };
        let slice = container.plan_converted_slice(&self.dataset, region.clone(), &sending);
        slice.map_err(|_refusal| self.too_large(container))
    }

    fn too_large(&self, container: &Container) -> ReadError {
        let budget = container.resources().settings().slice_budget;
        ReadError::TooLarge(format!(
            "a chunk of {:?} elements is too large to be made; limits.slice_budget allows {budget} bytes; regions \
             of it can be had from /slice",
            self.region.shape().as_slice()
        ))
    }

    fn etag(&self, tags: u128) -> String {
        let mut facts = String::new();
        // Writing to a String cannot fail.
        let _ = write!(facts, "{} {} {:?} {tags:x} {RELEASE}", self.dataset.etag, self.form.id(), self.region);
        format!("\"{:032x}\"", xxh3_128(facts.as_bytes()))
    }
}

fn of_one(position: &GridPosition, meta: &Meta) -> Fingerprint {
    let mut one = Fingerprint::default();
    one.add(position, &meta.etag, meta.version);
    one
}

/// The payload of a stored block of today's form that has exactly `size` elements and is one stream of `encoding`.
pub(super) fn payload(stored: &[u8], size: &[u64], width: usize, encoding: Encoding) -> Option<Range<usize>> {
    let header = BlockHeader::parse(stored).ok()?;
    if header.mode != Mode::Default || header.size.as_slice() != size {
        return None;
    }
    let len = usize::try_from(header.elements?).ok()?.checked_mul(width)?;
    let payload = stored.get(header.len..)?;
    encoding.is_one_stream(payload, len).then_some(header.len..stored.len())
}

/// The scheme that the blocks of a dataset are in, where it is one that other programs read.
pub(super) fn stored_encoding(dataset: &Dataset) -> Option<Encoding> {
    Encoding::from_name(dataset.attributes.compression().name())
}
