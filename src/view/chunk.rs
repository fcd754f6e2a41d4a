//! A part of a dataset in a view's form.

use std::fmt;
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use crate::container::{
    self, Access, Container, Dataset, Fingerprint, ReadError, Recipe, Slice, Stored, Trail, grid_component,
};
use crate::n5::{Array, BlockHeader, Coords, Encoding, GridPosition, Mode, Region, Start};
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

    /// Whether [`Self::within`] can find anything in any block of the dataset.
    fn passes(&self, _dataset: &Dataset) -> bool {
        false
    }
}

/// A region of a dataset, and the form it is wanted in.
#[derive(Debug)]
pub struct Chunk {
    dataset: Arc<Dataset>,
    /// The block that it is, where it is one.
    position: Option<GridPosition>,
    region: Region,
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
    pub async fn ready(&self, container: &Container, access: Access) -> Result<Option<Ready>, ReadError> {
        let ready = self.found(container, access).await?;
        if ready.is_none() {
            // Clients take a missing chunk for zeros.
            container.believe(access, &self.dataset, self.position.as_slice()).await?;
        }
        Ok(ready)
    }

    async fn found(&self, container: &Container, access: Access) -> Result<Option<Ready>, ReadError> {
        if let Some(position) = &self.position
            && self.form.passes(&self.dataset)
        {
            let stored = container.object(access, &self.dataset.block_key(position)).await?;
            let Some(stored) = stored else { return Ok(None) };
            if let Stored::Whole(meta, bytes) = stored
                && let Some(range) = self.form.within(&bytes, &self.dataset, position)
            {
                let etag = self.etag(of_one(position, &meta).tags);
                let source = Source::Stored(meta.version, range.clone());
                return Ok(Some(Ready { bytes: bytes.slice(range), etag, source }));
            }
            // Let go of here: nobody waits for memory who holds some.
        }
        let slice = self.slice(container)?;
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
            Ready { bytes: made.bytes, etag: self.etag(made.tags), source }
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

    /// The entity tag that [`Self::ready`] would give, without reading a block; `None` where none exists.
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
        let fingerprint = container.fingerprint(access, &self.slice(container)?).await?;
        Ok((!fingerprint.is_empty()).then(|| self.etag(fingerprint.tags)))
    }

    fn slice(&self, container: &Container) -> Result<Slice, ReadError> {
        let budget = container.resources().settings().slice_budget;
        let slice = container.plan_slice(&self.dataset, self.region.clone()).ok();
        slice.filter(|slice| !slice.is_streamed()).ok_or_else(|| {
            ReadError::TooLarge(format!(
                "a chunk of {:?} elements is too large to be made; limits.slice_budget allows {budget} bytes; regions \
                 of it can be had from /slice",
                self.region.shape().as_slice()
            ))
        })
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
