//! The N5 format as bytes and JSON: attributes, grid arithmetic, blocks, codecs, and the strided copy.
//!
//! Implements the N5 specification 4.0.0, and the forms written by programs that predate or extend it
//! (<https://github.com/saalfeldlab/n5>). This module is pure: no I/O, no async, no logging, no clock. It imports
//! nothing else from this crate.

/// Version of the specification that written data follows.
pub const VERSION: &str = "4.0.0";

mod array;
mod attributes;
mod block;
mod compression;
mod convert;
mod data_type;
mod document;
mod encode;
mod grid;
mod json;
mod json_object;
mod range_reads;
mod statistics;

pub use array::{Array, paste, paste_big_endian, paste_zeros};
pub use attributes::{AttributesError, DatasetAttributes, DescribedDataset, MAX_RANK};
pub use block::{Block, BlockError, BlockHeader, BlockMode, DecodeBuffers, DecompressedBlock};
pub use compression::{BlockEncoding, CODECS, CancelCheck, Codec, CodecError, Compression, Scratch};
pub use convert::{ConvertError, convert};
pub use data_type::DataType;
pub use document::{AttributesDocument, DocumentError, MAX_INTERPRETED_BYTES, ScannedDocument, UnreadableMember};
pub use encode::{block_header, encode_block, to_big_endian};
pub use grid::{BlockGrid, Coords, CoveringBlocks, GridPosition, Region, RegionError, SignedCoords};
pub use json::{JsonError, JsonMember, JsonMembers, MAX_DEPTH, MAX_VALUES};
pub use json_object::{JsonObjectBuilder, attributes_text, for_each_member};
pub use range_reads::{RangeRead, RangeReads, RawLayout};
pub use statistics::{ElementValue, Statistics, StatisticsAccumulator};
