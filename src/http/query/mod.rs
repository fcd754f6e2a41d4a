//! Query strings: their syntax, and the samples that the query of a slice selects. Nothing here depends on requests,
//! stores or statuses.

pub(crate) mod lenient;
pub(crate) mod numpy_index;
pub(crate) mod slice_query;
pub(crate) mod strict;
