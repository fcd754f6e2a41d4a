//! Reads of regions: plans a slice, gathers its blocks from the cache or the store, and pastes them.

mod bands;
mod canvas;
mod check;
mod derived;
mod gather;
mod nonblocking_gather;
mod partial_reads;
mod plan;
mod read_stats;
mod sample;

pub use bands::{Bands, shrink_until_accepted};
pub use check::{ValidBlock, check_block};
pub use derived::{Derivation, DerivedBytes, read_derived};
pub use gather::{PieceTransform, next_band, read_pieces, read_slice};
pub use plan::{
    PlannedSlice, SliceDelivery, SliceRefusal, Streaming, has_capacity_for, max_buffered_bytes, plan_converted_slice,
    plan_part, plan_slice, plan_sparse_slice,
};
pub use read_stats::{Fingerprint, ReadStats, fingerprint};
pub use sample::{SamplePlan, SampleStatistics, plan_sample, sample_statistics};
