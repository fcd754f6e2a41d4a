#![doc = include_str!("../README.md")]

/// Version of the N5 specification that this crate follows when it writes data.
pub const VERSION: &str = "4.0.0";

mod array;
mod attributes;
mod block;
mod compression;
mod convert;
mod data_type;
mod document;
mod grid;
mod json;
mod json_object;
mod range_reads;
mod statistics;
mod strided;

pub use array::{Array, SampleLayout, paste, paste_big_endian, paste_zeros, transpose};
pub use attributes::{AttributesError, DatasetAttributes, DescribedDataset, MAX_RANK};
pub use block::{Block, BlockDecoder, BlockError, BlockHeader, BlockMode, block_header, encode_block, swap_byte_order};
pub use compression::{BlockEncoding, CancelCheck, Codec, CodecError, Codecs, Compression, Scratch};
pub use convert::{ConvertError, convert};
pub use data_type::DataType;
pub use document::{AttributesDocument, DocumentError, MAX_INTERPRETED_BYTES};
pub use grid::{BlockGrid, Coords, CoveringBlocks, GridPosition, Region, RegionError, SignedCoords};
pub use json::{JsonError, JsonMember, JsonMembers, MAX_DEPTH, MAX_VALUES};
pub use json_object::{JsonObjectBuilder, attributes_text, for_each_member};
pub use range_reads::{RangeRead, RangeReads};
pub use statistics::{ElementValue, Statistics, StatisticsAccumulator};
