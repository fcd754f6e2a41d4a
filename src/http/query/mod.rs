//! Query strings: their syntax, and the samples that the query of a slice selects. Nothing here reads a dataset.

pub(crate) mod numpy_index;
pub(crate) mod params;
pub(crate) mod slice_query;
