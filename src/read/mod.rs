//! Reads of regions: plans a slice, gathers its blocks from the cache or the store, and pastes them.

mod bands;
mod canvas;
mod check;
mod derived;
mod existing_blocks;
mod gather;
mod nonblocking_gather;
mod partial_reads;
mod plan;
mod read_stats;
mod sample;
mod slice_reader;

pub use bands::{Bands, shrink_until_accepted};
pub use check::{ValidBlock, check_block};
pub use derived::{Derivation, DerivedBytes, read_derived};
pub use plan::{
    PlanError, PlannedSlice, SliceDelivery, SlicePlanner, SliceRefusal, Streaming, has_capacity_for, max_buffered_bytes,
};
pub use read_stats::{Fingerprint, ReadStats, fingerprint};
pub use sample::{SamplePlan, SampleStatistics, plan_sample, sample_statistics};
pub use slice_reader::{PieceTransform, ReadPurpose, SliceRead, SliceReader, next_band};
