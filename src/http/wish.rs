//! Admission of slices: the same check for the slice that is asked for and for the piece that a refusal names.

use std::sync::Arc;

use super::compress::{self, Encoding};
use super::problem::{self, Problem};
use crate::container::{Container, Dataset, Sending, Slice};
use crate::n5::{Coords, DataType, Region};
use crate::output::{self, Format, Options};

/// Largest share of a stream's memory that its header may take (1/6, which is 1/8 of the slice budget).
const START_SHARE: u64 = 6;

/// Headers of formats up to this size are not counted as memory.
const UNCOUNTED_BYTES: u64 = 64 << 10;

/// A slice request apart from its region.
pub(super) struct Wish<'a> {
    pub(super) dataset: &'a Arc<Dataset>,
    /// Axes of the region that the answer's shape has.
    pub(super) kept_axes: &'a [usize],
    /// Of the elements as they are sent.
    pub(super) data_type: &'a DataType,
    pub(super) format: &'static dyn Format,
    pub(super) options: &'a Options,
    /// Content coding of the answer, if it is not streamed.
    pub(super) compressed: Option<Encoding>,
}

/// Memory that an answer takes besides its elements.
#[expect(clippy::struct_field_names, reason = "the unit is part of the name")]
pub(super) struct Needs {
    /// Memory that encoding takes.
    pub(super) extra_bytes: u64,
    /// Bytes of what comes before the elements, where these go out as they are in memory.
    pub(super) start_bytes: Option<u64>,
    /// The same, as far as they count as memory.
    beside_bytes: u64,
}

/// A slice that may be read, and how its answer is made.
pub(super) struct Admitted {
    pub(super) slice: Slice,
    pub(super) extra_bytes: u64,
    pub(super) encoding: Option<Encoding>,
}

impl Wish<'_> {
    fn shape(&self, region: &Region) -> Coords {
        self.kept_axes.iter().filter_map(|axis| region.shape().get(*axis).copied()).collect()
    }

    /// # Errors
    /// Why the format cannot show this.
    pub(super) fn needs(&self, region: &Region) -> Result<Needs, String> {
        let shape = self.shape(region);
        self.format.accepts(&shape, self.data_type, self.options)?;
        let start_bytes = self.format.header(&shape, self.data_type, self.options).map(|start| start.len() as u64);
        let beside_bytes = start_bytes.filter(|bytes| *bytes > UNCOUNTED_BYTES).unwrap_or(0);
        let extra_bytes = self.format.extra_bytes(&shape, self.data_type, self.options);
        Ok(Needs { extra_bytes, start_bytes, beside_bytes })
    }

    pub(super) fn sending(&self, needs: &Needs, is_slowed: bool, is_banded: bool) -> Sending<'_> {
        let (is_streamable, beside_bytes) = (needs.start_bytes.is_some(), needs.beside_bytes);
        Sending {
            data_type: self.data_type,
            extra_bytes: if is_streamable { needs.extra_bytes } else { 0 },
            beside_bytes,
            is_slowed: is_slowed && is_streamable && beside_bytes == 0 && self.compressed.is_none(),
            is_streamable,
            is_banded: is_banded && is_streamable,
        }
    }

    /// Admits the answer of a planned slice if it can be made within `limit` bytes.
    pub(super) fn admit(&self, slice: Slice, needs: &Needs, limit: u64) -> Result<Admitted, Problem> {
        let encoding = self.compressed.filter(|_| !slice.is_streamed());
        let mut extra_bytes = needs.extra_bytes;
        if encoding.is_some() {
            extra_bytes = extra_bytes.saturating_add(compress::extra_bytes(slice.bytes().saturating_add(extra_bytes)));
        }
        // In bands, the elements take what bands are given; what comes before them is little beside that.
        let needed = if needs.start_bytes.is_some() && slice.is_streamed() {
            needs.beside_bytes.saturating_mul(START_SHARE)
        } else {
            slice.held_bytes().saturating_add(extra_bytes)
        };
        if needed <= limit {
            return Ok(Admitted { slice, extra_bytes, encoding });
        }
        let streamed: Vec<&str> = output::FORMATS
            .iter()
            .filter(|format| format.header(&[1, 1], &DataType::UInt8, &Options::default()).is_some())
            .map(|format| format.name())
            .collect();
        let detail = format!(
            "as {} this takes up to {needed} bytes of memory; three quarters of limits.slice_budget are {limit}; ask for less at once, \
             or for a format that is streamed: {}",
            self.format.name(),
            streamed.join(", ")
        );
        Err(Problem::new(problem::TOO_LARGE, detail).with("limit", limit))
    }

    /// Shape of a piece of `region` that is not refused, in this format, wherever in the dataset it lies.
    pub(super) fn piece(&self, container: &Container, region: &Region) -> Option<Coords> {
        let limit = container.most_held_bytes();
        container.piece(self.dataset, region, |part| {
            let needs = self.needs(part).ok();
            needs.is_some_and(|needs| {
                let planned = container.plan_part(self.dataset, part, &self.sending(&needs, false, false));
                planned.is_ok_and(|slice| !slice.is_streamed() && self.admit(slice, &needs, limit).is_ok())
            })
        })
    }
}
