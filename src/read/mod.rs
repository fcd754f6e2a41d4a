//! Reads of regions: plans a slice, gathers its blocks from the cache or the store, and pastes them.

mod bands;
mod canvas;
mod check;
mod concurrent_loads;
mod derived;
mod existing_blocks;
mod gather;
mod nonblocking_gather;
mod partial_reads;
mod read_stats;
mod sample;
mod single_block;
mod slice_cost;
mod slice_decision;
mod slice_plan;

pub use bands::Bands;
pub use check::ValidBlock;
pub use derived::{Derivation, DeriveFn, DerivedBytes};
pub use gather::PieceTransform;
pub use read_stats::{Fingerprint, ReadStats};
pub use sample::{SamplePlan, SampleStatistics};
pub use slice_decision::SliceRefusal;
pub use slice_plan::{PlannedSlice, SliceDelivery};
