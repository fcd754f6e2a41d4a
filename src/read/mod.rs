//! Reads of regions: plans a slice, gathers its blocks from the cache or the store, and pastes them.
//!
//! Read `plan` first, then `slice_reader`, `gather` and `nonblocking_gather`. A block takes this path:
//!
//! 1. `plan` decides whether the slice is read as a whole or in `bands`. `existing_blocks` counts blocks if the
//!    decision depends on them.
//! 2. `slice_reader` takes memory, and creates a `canvas` of slabs for the elements of the region. `band_stream` takes
//!    these steps for one band after another.
//! 3. `gather` looks up the region's blocks in the cache, in batches. A block of a batch is a hit, a miss, or is read
//!    in parts.
//! 4. Jobs of `nonblocking_gather` paste the hits into the canvas. They load and paste those misses that need no
//!    waiting, and defer the other misses.
//! 5. `gather` loads the deferred blocks by `BlockCache::load`, several at once, and pastes each when it is loaded.
//! 6. `partial_reads` reads only the needed parts of large uncompressed blocks, and pastes these parts.
//!
//! `read_stats` counts the blocks. `derived` caches what is encoded from a region. `sample` and `check` load blocks for
//! statistics and for `verify`, without a canvas; `auto_window` caches what pictures need of the statistics.

mod auto_window;
mod band_stream;
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

pub use auto_window::auto_window;
pub use band_stream::BandStream;
pub use bands::{Bands, shrink_until_accepted};
pub use check::{ValidBlock, check_block};
pub use derived::{Derivation, DerivedBytes, cached_etags_hash, read_derived};
pub use plan::{
    PlanError, PlannedSlice, SliceDelivery, SlicePlanner, SliceRefusal, Streaming, has_capacity_for, max_buffered_bytes,
};
pub use read_stats::{Fingerprint, ReadStats, fingerprint};
pub use sample::{DatasetPart, SamplePlan, SampleStatistics, plan_sample, plan_sample_of, sample_statistics};
pub use slice_reader::{ReadPurpose, SliceRead, SliceReader};

#[cfg(test)]
mod tests;
