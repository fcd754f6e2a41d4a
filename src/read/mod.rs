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
pub use check::ValidBlock;
pub use derived::{Derivation, DerivedBytes};
pub use gather::PieceTransform;
pub use plan::{PlannedSlice, SliceDelivery, SliceRefusal, Streaming};
pub use read_stats::{Fingerprint, ReadStats};
pub use sample::{SamplePlan, SampleStatistics};
