//! The N5 format as bytes and JSON: attributes, grid arithmetic, blocks, codecs, and the one strided copy.
//!
//! Implements the N5 specification 4.0.0 and what programs that precede or stretch it wrote
//! (<https://github.com/saalfeldlab/n5>). Pure: no I/O, no async, no logging, no clock; imports nothing
//! else of this crate.

/// Version of the specification that what is written follows.
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
mod object_text;
mod parts;
mod statistics;

pub use array::{Array, clear, paste, paste_stored};
pub use attributes::{AttributesError, DatasetAttributes, DescribedDataset, MAX_RANK};
pub use block::{Block, BlockError, BlockHeader, Mode, Room, Unpacked};
pub use compression::{CODECS, Codec, CodecError, Compression, Encoding, Scratch, Watch};
pub use convert::{ConvertError, convert};
pub use data_type::DataType;
pub use document::{Document, DocumentError, INTERPRETED_BYTES, Outline, Unread};
pub use encode::{big_endian, block_header, encode_block};
pub use grid::{BlockGrid, Coords, Covering, GridPosition, Region, RegionError, Start};
pub use json::{JsonError, MAX_DEPTH, MAX_VALUES, Member, Members};
pub use object_text::{ObjectText, attributes_text, for_each_member};
pub use parts::{RawLayout, RawPart, RawParts};
pub use statistics::{Accumulator, Number, Summary};
