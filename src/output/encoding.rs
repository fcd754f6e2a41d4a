//! Options, pieces, buffers and errors of the encoding of arrays.

use bytes::Bytes;

use super::colours::{Colour, Composite};
use n5_format::{DataType, swap_byte_order};

/// Options that the client sets, and properties of the region that some formats write into the response.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EncodeOptions {
    /// Axis order in which the shape is labelled.
    pub order: AxisOrder,
    /// Byte order of elements in `raw`.
    pub endian: Endian,
    /// Values shown as black and as white in `png` and `jpeg`.
    pub window: Option<(f64, f64)>,
    /// Channels that are shown in one colour image, in `png` and `jpeg`.
    pub composite: Option<Composite>,
    /// Quality of `jpeg`, 1 to 100.
    pub quality: Option<u8>,
    /// First sample along every axis of the dataset, in N5 axis order.
    pub start: Vec<i64>,
    /// Distance between samples along every axis of the dataset, in N5 axis order.
    pub step: Vec<u64>,
    /// Meaning and calibration of the axes of the response, for `tiff`; empty if they are unknown.
    pub axes: Vec<StackAxis>,
    /// Display of the channels of the response, for `tiff`; empty if there is nothing to say about them.
    pub stack_channels: Vec<StackChannel>,
}

/// Display of a channel in a stack of images.
#[derive(Debug, Clone, PartialEq)]
pub struct StackChannel {
    /// Name of the channel; empty if no channel has one.
    pub name: String,
    /// Colour of elements at the window's second value.
    pub colour: Colour,
    /// Values shown as black and in the full colour, if they are known.
    pub window: Option<(f64, f64)>,
}

/// Meaning of an axis in a stack of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StackAxisKind {
    /// A direction in space, or an axis of unknown meaning.
    #[default]
    Space,
    /// The direction in space that runs to the right.
    Right,
    /// The direction in space that runs down.
    Down,
    /// Channels.
    Channel,
    /// Time.
    Time,
}

impl StackAxisKind {
    /// Returns true for a direction in space.
    pub(super) fn is_space(self) -> bool {
        matches!(self, Self::Space | Self::Right | Self::Down)
    }
}

/// An axis of an array that is shown as a stack of images.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StackAxis {
    /// Meaning of the axis.
    pub kind: StackAxisKind,
    /// Distance between samples, in the axis's unit; `None` if it is unknown.
    pub spacing: Option<f64>,
    /// The unit in metres or seconds; `None` if it is unknown.
    pub unit: Option<f64>,
    /// Position of the first sample, in the axis's unit.
    pub position: f64,
}

/// Axis order in which a shape is labelled. The bytes are the same in both orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AxisOrder {
    /// First axis fastest: the shape is in N5 axis order.
    #[default]
    F,
    /// Last axis fastest: the shape is reversed.
    C,
}

impl AxisOrder {
    /// Names of both orders.
    pub const NAMES: [&'static str; 2] = ["F", "C"];

    /// Returns the order named `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "F" => Some(Self::F),
            "C" => Some(Self::C),
            _ => None,
        }
    }

    /// Returns `F` or `C`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F => "F",
            Self::C => "C",
        }
    }

    /// Returns the sizes of `shape`, which is in N5 axis order, in this order.
    pub fn label(self, shape: &[u64]) -> Vec<u64> {
        match self {
            Self::F => shape.to_vec(),
            Self::C => shape.iter().rev().copied().collect(),
        }
    }
}

/// Byte order of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Endian {
    /// Least significant byte first.
    #[default]
    Little,
    /// Most significant byte first.
    Big,
}

impl Endian {
    /// Names of both byte orders.
    pub const NAMES: [&'static str; 2] = ["little", "big"];

    /// Returns the byte order named `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "little" => Some(Self::Little),
            "big" => Some(Self::Big),
            _ => None,
        }
    }

    /// Returns `little` or `big`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Little => "little",
            Self::Big => "big",
        }
    }

    /// Returns little-endian elements in this byte order. Their length is unchanged.
    pub fn arrange(self, elements: Bytes, data_type: &DataType) -> Bytes {
        match self.swapped_width(data_type) {
            Some(width) => swap_byte_order(elements, width),
            None => elements,
        }
    }

    /// Returns the width of the elements if [`Self::arrange`] reverses their bytes; `None` if it changes nothing.
    pub fn swapped_width(self, data_type: &DataType) -> Option<usize> {
        data_type.size_bytes().filter(|width| *width > 1 && self == Self::Big)
    }

    /// Returns the size of the elements in bytes if [`Self::arrange`] reverses their bytes, otherwise 0.
    pub(super) fn swapped_bytes(self, shape: &[u64], data_type: &DataType) -> u64 {
        self.swapped_width(data_type).map_or(0, |width| element_count(shape).saturating_mul(width as u64))
    }
}

/// A piece of an encoded array.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncodedPiece {
    /// Bytes that the piece adds to the encoding.
    pub bytes: Bytes,
    /// Checksum of the piece's content, in the format's own algorithm.
    pub checksum: u32,
    /// Number of bytes that the checksum covers.
    pub checked_bytes: u64,
}

/// Reason why an array cannot be encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The format cannot represent such arrays. The text is for the client.
    #[error("{0}")]
    Refused(String),
    /// The length of the array's data does not match its shape and type.
    #[error("the array has {found} bytes, but its shape and type require {expected}")]
    Length {
        /// Length that the shape and type require, in bytes.
        expected: u64,
        /// Length of the data in bytes.
        found: usize,
    },
    /// There is not enough memory for the given number of encoded bytes.
    #[error("no memory for {0} bytes of encoded data")]
    Memory(u64),
    /// The encoder of a format failed.
    #[error("the {format} encoder: {reason}")]
    Encoder {
        /// Name of the format.
        format: &'static str,
        /// Message of the encoder.
        reason: String,
    },
}

/// Returns the number of elements of an array of `shape`, saturated at `u64::MAX`. The number is 1 for rank 0.
pub(super) fn element_count(shape: &[u64]) -> u64 {
    // A size of zero makes the product zero, even if the product of other sizes overflows.
    if shape.contains(&0) { 0 } else { shape.iter().fold(1, |n: u64, size| n.saturating_mul(*size)) }
}

/// Returns an empty buffer with capacity for `bytes`. The capacity is reserved at once, because a buffer that grows
/// copies the data and briefly holds them twice. Pages that are never written take no memory.
pub(super) fn buffer(bytes: u64) -> Result<Vec<u8>, EncodeError> {
    buffer_from(&|_| Vec::new(), bytes)
}

/// Like [`buffer`], but reuses the buffer that `take_buffer` returns if its capacity suffices.
pub(super) fn buffer_from(take_buffer: &dyn Fn(usize) -> Vec<u8>, bytes: u64) -> Result<Vec<u8>, EncodeError> {
    let mut buffer = usize::try_from(bytes).map(take_buffer).unwrap_or_default();
    buffer.clear();
    let is_reserved = usize::try_from(bytes).is_ok_and(|bytes| buffer.try_reserve_exact(bytes).is_ok());
    if is_reserved { Ok(buffer) } else { Err(EncodeError::Memory(bytes)) }
}
