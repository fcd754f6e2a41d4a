//! Slices that are admitted: what is known of them before anything is read.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use super::bands::{self, Bands, Bounds, Refusal, Widths, plan};
use super::budget::Budget;
use super::cost::{Counted, most_touched};
use super::{Access, Container, Dataset, ReadError};
use crate::n5::{Codec, ConvertError, Coords, DataType, Region, convert};

/// A slice that has been admitted by its size; nothing has been read yet.
#[derive(Debug, Clone)]
pub struct Slice {
    pub(super) dataset: Arc<Dataset>,
    pub(super) region: Region,
    pub(super) width: usize,
    pub(super) widths: Widths,
    /// The type that the elements are converted to, where that is another one than they have.
    converted: Option<DataType>,
    bytes: u64,
    pub(super) beside_bytes: u64,
    pub(super) bands: Option<Bands>,
    /// It was admitted as one whose blocks are read only where it has samples.
    pub(super) in_parts: bool,
    /// Its first band has been read: the answer can no longer be refused.
    pub(super) has_begun: bool,
    /// How long the last band waited for memory, which earlier ones may have kept.
    pub(super) memory_waited: Duration,
    /// Held by every piece of a stream that has not been sent yet.
    pub(super) pieces: Arc<()>,
}

impl Slice {
    /// Stands for the dataset where several want the same cores.
    pub fn party(&self) -> u64 {
        self.dataset.id
    }

    /// Bytes of the elements, converted.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of memory that the elements take where the slice is whole: those of the stored type, and of the
    /// one that they are converted to.
    pub fn held_bytes(&self) -> u64 {
        self.region.elements().unwrap_or(u64::MAX).saturating_mul(self.widths.held)
    }

    /// The elements as the type that was asked for.
    ///
    /// # Errors
    /// [`ConvertError`], as [`convert`].
    pub fn convert(&self, data: Bytes) -> Result<Bytes, ConvertError> {
        match &self.converted {
            Some(to) => convert(data, self.dataset.attributes.data_type(), to),
            None => Ok(data),
        }
    }

    /// Whether [`Self::convert`] makes other elements.
    pub fn is_converted(&self) -> bool {
        self.converted.is_some()
    }

    /// A number that stands for what is read, of which version of the dataset's attributes.
    pub(super) fn id(&self) -> u128 {
        let numbers = self.region.start().iter().map(|start| start.cast_unsigned());
        let numbers = numbers.chain(self.region.shape().iter().chain(self.region.step()).copied());
        let facts: Vec<u8> = numbers.chain([self.dataset.id]).flat_map(u64::to_le_bytes).collect();
        xxh3_128(&facts)
    }

    /// Who takes bands slowly gets small ones, where memory is short: the last one has `waited` for the one before it to be taken,
    /// besides what it waited for memory.
    pub(super) fn pace(&mut self, waited: Duration, budget: &Budget) {
        let waited = waited.saturating_add(self.memory_waited);
        let (free_bytes, Some(bands)) = (budget.free_bytes(), &mut self.bands) else { return };
        let is_plenty = free_bytes > budget.capacity_bytes() / 2;
        if waited < if is_plenty { LATE } else { SOON } {
            bands.grow(free_bytes);
        } else if waited > LATE && !is_plenty {
            bands.shrink();
        }
        // Where others have the memory, a smaller one need not wait for them.
        if waited > LATE || Arc::strong_count(&self.pieces) == 1 {
            bands.fit(free_bytes.saturating_sub(budget.capacity_bytes() - budget.stream_bytes()));
        }
    }

    /// Returns true if all of its bands have been read.
    pub fn is_read(&self) -> bool {
        self.bands.as_ref().is_none_or(Bands::are_done)
    }

    /// Whether it exceeds the slice budget and leaves in bands.
    pub fn is_streamed(&self) -> bool {
        self.bands.is_some()
    }
}

/// A client that takes a band within this time does not keep its memory for long: the next ones may be larger, also where
/// memory is short.
const SOON: Duration = Duration::from_millis(250);

/// One that takes longer shall have smaller ones where it is.
const LATE: Duration = Duration::from_secs(1);

/// How the elements of a slice are sent.
#[derive(Debug, Clone)]
pub struct Sending<'a> {
    /// The type that they are converted to; the dataset's own, and they are sent as they are.
    pub data_type: &'a DataType,
    /// Bytes of memory that a whole answer takes besides the elements as stored and as converted. Where these do
    /// not fit, the answer leaves in bands; 0 where it cannot.
    pub extra_bytes: u64,
    /// Bytes of what is sent before a streamed answer's elements: their memory comes with the first band.
    pub beside_bytes: u64,
    /// Whether the client is made to take it slowly: then it leaves in small bands, where it can.
    pub is_slowed: bool,
    /// The answer can leave in bands. It does if it would not leave a quarter of the slice budget to others, because its client
    /// may be slow.
    pub is_streamable: bool,
    /// The answer leaves in bands even if there is memory for all of it.
    pub is_banded: bool,
}

/// An answer of so many bytes is not worth sending in bands.
const SMALL_BYTES: u64 = 1 << 20;

/// Bands of a slowed answer have one part in so many of the budget: it holds them for long, and up to three at once.
const SLOWED_PARTS: u64 = 16;

impl Container {
    /// Decides from sizes alone whether `region` of `dataset` may be read, and whether in one piece.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn plan_slice(&self, dataset: &Arc<Dataset>, region: Region) -> Result<Slice, Refusal> {
        let data_type = dataset.attributes.data_type();
        self.plan_converted_slice(
            dataset,
            region,
            &Sending {
                data_type,
                extra_bytes: 0,
                beside_bytes: 0,
                is_slowed: false,
                is_streamable: false,
                is_banded: false,
            },
        )
    }

    /// As [`Self::plan_slice`], for an answer of other bytes than the elements as they are.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn plan_converted_slice(
        &self,
        dataset: &Arc<Dataset>,
        region: Region,
        sending: &Sending<'_>,
    ) -> Result<Slice, Refusal> {
        self.plan_counting(dataset, region, sending, Counted::default())
    }

    /// The most bytes of one answer that wait to be sent: a quarter of the slice budget is left to others.
    pub fn most_held_bytes(&self) -> u64 {
        self.resources.slice_budget.stream_bytes()
    }

    /// Returns true if there is memory for `slice` and `extra_bytes` now, or if the slice is so small that it should wait for it.
    ///
    /// The client's own bound does not count: one that has too much waits for its own answers. In bands it would get more
    /// memory the fewer of them it takes, and leave too little for the streams of others.
    pub fn has_room_for(&self, slice: &Slice, extra_bytes: u64) -> bool {
        let bytes = slice.held_bytes().saturating_add(extra_bytes);
        bytes <= SMALL_BYTES || self.resources.slice_budget.has_room_for(bytes)
    }

    /// As [`Self::plan_converted_slice`]; where that refuses because of what it would decode, blocks that do not exist are no
    /// longer counted.
    ///
    /// Blocks that come after they were counted are read like all others. Memory stays bounded; what is decoded may exceed
    /// `limits.decode_factor` by those.
    ///
    /// # Errors
    /// [`ReadError`] when it cannot be found out which blocks exist; inside, [`Refusal`].
    pub async fn plan_sparse_slice(
        &self,
        access: Access,
        dataset: &Arc<Dataset>,
        region: Region,
        sending: &Sending<'_>,
    ) -> Result<Result<Slice, Refusal>, ReadError> {
        let refusal = match self.plan_converted_slice(dataset, region.clone(), sending) {
            Err(refusal @ Refusal::TooCostly { .. }) => refusal,
            planned => return Ok(planned),
        };
        let Refusal::TooCostly { affordable_blocks, .. } = refusal else { return Ok(Err(refusal)) };
        access.may_wait().await;
        let existing = Some(self.existing_blocks(dataset, &region, affordable_blocks).await?);
        Ok(self.plan_counting(dataset, region, sending, Counted { existing, ..Counted::default() }))
    }

    /// Shape of a part of `region`, in samples, that is `accepted` as [`Self::plan_part`] plans it; `None` where no part is.
    pub fn piece(&self, dataset: &Arc<Dataset>, region: &Region, accepted: impl Fn(&Region) -> bool) -> Option<Coords> {
        bands::piece(region, dataset.attributes.grid(), accepted)
    }

    /// As [`Self::plan_converted_slice`], for any region of the shape and the steps of `part`: it is refused if one of
    /// them would be.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn plan_part(&self, dataset: &Arc<Dataset>, part: &Region, sending: &Sending<'_>) -> Result<Slice, Refusal> {
        let touched = Some(most_touched(part, dataset.attributes.grid()));
        self.plan_counting(dataset, part.clone(), sending, Counted { touched, ..Counted::default() })
    }

    /// Plans a slice; where its blocks are stored uncompressed and decoding them whole is too much, one that reads parts of them.
    fn plan_counting(
        &self,
        dataset: &Arc<Dataset>,
        region: Region,
        sending: &Sending<'_>,
        counted: Counted,
    ) -> Result<Slice, Refusal> {
        let settings = self.resources.settings();
        let (beside_bytes, stream_bytes) = (sending.beside_bytes, self.resources.slice_budget.stream_bytes());
        let bounds = Bounds {
            slice_bytes: settings.slice,
            budget_bytes: settings.slice_budget,
            whole_bytes: if sending.is_streamable { stream_bytes } else { settings.slice_budget },
            extra_bytes: sending.extra_bytes,
            band_bytes: stream_bytes.saturating_sub(beside_bytes),
            decode_factor: settings.decode_factor,
            is_banded: sending.is_banded,
        };
        let width = dataset.attributes.data_type().size_bytes().unwrap_or(1);
        let converted = Some(sending.data_type).filter(|to| *to != dataset.attributes.data_type());
        let widths = Widths::new(width, converted.map(|to| to.size_bytes().unwrap_or(1)));
        let grid = dataset.attributes.grid();
        let part = settings.slice_budget / SLOWED_PARTS;
        let small =
            Bounds { budget_bytes: part, whole_bytes: part, band_bytes: part.saturating_sub(beside_bytes), ..bounds };
        let is_plain = dataset.attributes.compression().codec().is_some_and(Codec::is_plain);
        let planned = |bounds: Bounds| match plan(&region, grid, widths, bounds, counted) {
            Err(Refusal::TooCostly { .. }) if is_plain => {
                plan(&region, grid, widths, bounds, Counted { in_parts: true, ..counted }).map(|plan| (plan, true))
            }
            planned => planned.map(|plan| (plan, false)),
        };
        // Where small bands would decode blocks too often, it is planned as ever.
        let slowed = if sending.is_slowed { planned(small).ok() } else { None };
        let ((bytes, bands), in_parts) = slowed.map_or_else(|| planned(bounds), Ok)?;
        let (dataset, converted, pieces) = (Arc::clone(dataset), converted.cloned(), Arc::new(()));
        Ok(Slice {
            dataset,
            region,
            width,
            widths,
            converted,
            bytes,
            beside_bytes,
            bands,
            in_parts,
            has_begun: false,
            memory_waited: Duration::ZERO,
            pieces,
        })
    }
}
