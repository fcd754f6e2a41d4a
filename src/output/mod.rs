//! Output formats: a decoded array as bytes of a media type, one file and one row of [`FORMATS`] each.
//!
//! Sync and without I/O; imports `n5` only and knows nothing of datasets, stores or HTTP answers.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod image;
mod jpeg;
mod json;
mod n5;
mod negotiate;
mod npy;
mod png;
mod raw;
mod tiff;

use std::fmt;

use bytes::Bytes;

use crate::n5::{Array, DataType};

pub use negotiate::{NegotiationError, best_of, negotiate, weight_of};

/// A representation of an array.
///
/// Shapes are those of the answer, in N5 axis order whatever [`Options::order`] says, with dropped axes left out.
/// The caller has made sure that the data type is one that is decoded; no format accepts another.
///
/// # Adding a format
/// One file with a type that implements this, and one row in [`FORMATS`]. All of a format of comma-separated
/// values, a line for each index of the second axis:
///
/// ```
/// use std::fmt::Write;
///
/// use bytes::Bytes;
/// use n5_server::n5::{Array, DataType, convert};
/// use n5_server::output::{EncodeError, Format, Options};
///
/// #[derive(Debug)]
/// struct Csv;
///
/// impl Format for Csv {
///     fn name(&self) -> &'static str {
///         "csv"
///     }
///
///     fn media_type(&self) -> &'static str {
///         "text/csv"
///     }
///
///     fn accepts(&self, shape: &[u64], _: &DataType, _: &Options) -> Result<(), String> {
///         if shape.len() == 2 { Ok(()) } else { Err("csv shows two axes; give the others to select".to_owned()) }
///     }
///
///     // The numbers as float64, and the text of at most 25 bytes each.
///     fn extra_bytes(&self, shape: &[u64], _: &DataType, _: &Options) -> u64 {
///         shape.iter().fold(8 + 25, |bytes, size| bytes.saturating_mul(*size))
///     }
///
///     fn header(&self, _: &[u64], _: &DataType, _: &Options) -> Option<Bytes> {
///         None // It needs the whole array, and is not streamed.
///     }
///
///     fn encode(&self, array: &Array, options: &Options) -> Result<Vec<Bytes>, EncodeError> {
///         self.accepts(&array.shape, &array.data_type, options).map_err(EncodeError::Refused)?;
///         let fault = |reason: String| EncodeError::Encoder { format: self.name(), reason };
///         let numbers = convert(array.data.clone(), &array.data_type, &DataType::Float64);
///         let numbers = numbers.map_err(|error| fault(error.to_string()))?;
///         let mut text = String::new();
///         for (n, number) in numbers.as_chunks().0.iter().enumerate() {
///             let ends_line = (n as u64 + 1) % array.shape[0] == 0;
///             let end = if ends_line { '\n' } else { ',' };
///             write!(text, "{:e}{end}", f64::from_le_bytes(*number)).map_err(|error| fault(error.to_string()))?;
///         }
///         Ok(vec![text.into()])
///     }
/// }
///
/// let array = Array { shape: [3, 2].as_slice().into(), data_type: DataType::UInt8, data: vec![1, 2, 3, 4, 5, 60].into() };
/// let parts = Csv.encode(&array, &Options::default()).unwrap();
/// assert_eq!(parts.concat(), b"1e0,2e0,3e0\n4e0,5e0,6e1\n");
/// ```
pub trait Format: fmt::Debug + Send + Sync {
    /// Value of the parameter `format`.
    fn name(&self) -> &'static str;

    /// The media type, without parameters.
    fn media_type(&self) -> &'static str;

    /// Which of the parameters `endian`, `window` and `quality` it has a use for; others are refused.
    fn parameters(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether values are lost beyond what the client asked for: such a format is never the one that `Accept`
    /// picks where another is welcome.
    fn is_lossy(&self) -> bool {
        false
    }

    /// Whether arrays of this shape and type can be shown with these options.
    ///
    /// # Errors
    /// What is in the way and what to do about it, as text for the client.
    fn accepts(&self, shape: &[u64], data_type: &DataType, options: &Options) -> Result<(), String>;

    /// Upper bound of the bytes that encoding allocates besides the array, whether whole or one band;
    /// `u64::MAX` where it does not fit. Headers and row buffers of a few hundred bytes are not counted.
    fn extra_bytes(&self, shape: &[u64], data_type: &DataType, options: &Options) -> u64;

    /// What comes before the elements where the encoding is a header and then the elements as they are in
    /// memory, so that it can be sent in bands; `None` where it needs the whole array.
    ///
    /// Bands follow it in the order of memory, each through [`Format::finish_band`].
    fn header(&self, shape: &[u64], data_type: &DataType, options: &Options) -> Option<Bytes>;

    /// Whether [`Format::finish_band`] gives other bytes than it is given.
    fn changes_bands(&self, _data_type: &DataType, _options: &Options) -> bool {
        false
    }

    /// A band's little-endian elements as this format sends them: the same number of bytes.
    fn finish_band(&self, band: Bytes, _data_type: &DataType, _options: &Options) -> Bytes {
        band
    }

    /// The array encoded, in parts to be sent one after the other; the elements are not copied where
    /// [`Format::extra_bytes`] is 0.
    ///
    /// # Errors
    /// [`EncodeError`] when the array is one that [`Format::accepts`] refuses or breaks its own shape.
    fn encode(&self, array: &Array, options: &Options) -> Result<Vec<Bytes>, EncodeError>;

    /// How many pieces the encoding of such an array consists of, each made by [`Format::encode_piece`]; 1 where it is
    /// made by [`Format::encode`] alone. The same on every machine.
    fn pieces(&self, _shape: &[u64], _data_type: &DataType, _options: &Options) -> usize {
        1
    }

    /// The piece of that number, from 0 on, in a buffer of `room`: that is asked for a number of bytes, and gives a
    /// buffer of any content, which need not have room for them. Pieces can be made side by side.
    ///
    /// # Errors
    /// As [`Format::encode`].
    fn encode_piece(
        &self,
        _number: usize,
        _room: &dyn Fn(usize) -> Vec<u8>,
        array: &Array,
        options: &Options,
    ) -> Result<Piece, EncodeError> {
        Ok(Piece { bytes: self.encode(array, options)?.concat().into(), ..Piece::default() })
    }

    /// What comes after all pieces: a few bytes.
    fn after_pieces(&self, _pieces: &[Piece]) -> Bytes {
        Bytes::new()
    }
}

/// A part of an encoded array.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Piece {
    /// What it adds to the encoding.
    pub bytes: Bytes,
    /// Checksum of what it holds, as the format has it.
    pub checksum: u32,
    /// Number of bytes that the checksum is of.
    pub checked_bytes: u64,
}

/// Every output format; the first is the default, and of formats equally welcome the first wins.
pub static FORMATS: &[&dyn Format] = &[&raw::Raw, &npy::Npy, &json::Json, &png::Png, &jpeg::Jpeg, &tiff::Tiff, &n5::N5];

/// What a client asked for besides the region, and what an answer says about it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Options {
    /// How the shape is labelled.
    pub order: Order,
    /// Byte order of `raw`.
    pub endian: Endian,
    /// Values shown as black and as white, in `png` and `jpeg`.
    pub window: Option<(f64, f64)>,
    /// Quality of `jpeg`, 1 to 100.
    pub quality: Option<u8>,
    /// First sample along every axis of the dataset, N5 axis order.
    pub start: Vec<i64>,
    /// Distance of samples along every axis of the dataset, N5 axis order.
    pub step: Vec<u64>,
}

/// How a shape is labelled; the bytes are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// First axis fastest: the shape in N5 axis order.
    #[default]
    F,
    /// Last axis fastest: the shape reversed.
    C,
}

impl Order {
    /// Both, by name.
    pub const NAMES: [&'static str; 2] = ["F", "C"];

    /// The order of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "F" => Some(Self::F),
            "C" => Some(Self::C),
            _ => None,
        }
    }

    /// `F` or `C`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F => "F",
            Self::C => "C",
        }
    }

    /// A shape in N5 axis order as this order labels it.
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
    /// Both, by name.
    pub const NAMES: [&'static str; 2] = ["little", "big"];

    /// The byte order of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "little" => Some(Self::Little),
            "big" => Some(Self::Big),
            _ => None,
        }
    }

    /// `little` or `big`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Little => "little",
            Self::Big => "big",
        }
    }
}

/// Why an array is not encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The format does not show such arrays; the text is for the client.
    #[error("{0}")]
    Refused(String),
    /// The array holds another number of bytes than its shape says.
    #[error("the array holds {found} bytes, its shape and type say {expected}")]
    Length {
        /// Bytes by shape and type.
        expected: u64,
        /// Bytes there are.
        found: usize,
    },
    /// No memory for the encoded form.
    #[error("no memory for {0} bytes of encoded data")]
    Memory(u64),
    /// The encoder of the format failed.
    #[error("the {format} encoder: {reason}")]
    Encoder {
        /// Name of the format.
        format: &'static str,
        /// What it says.
        reason: String,
    },
}

/// Product of the sizes, at most `u64::MAX`; the empty product is 1.
fn elements(shape: &[u64]) -> u64 {
    // A zero makes the product zero even where a part of it would overflow.
    if shape.contains(&0) { 0 } else { shape.iter().fold(1, |n: u64, size| n.saturating_mul(*size)) }
}

/// Refuses what no format can show and options that are another format's.
fn accepts_common(format: &dyn Format, data_type: &DataType, options: &Options) -> Result<(), String> {
    if data_type.size_bytes().is_none() {
        return Err(format!("elements of type {data_type} are not decoded; read the blocks as stored"));
    }
    let given = [
        ("endian", options.endian == Endian::Big),
        ("window", options.window.is_some()),
        ("quality", options.quality.is_some()),
    ];
    for (parameter, is_given) in given {
        if is_given && !format.parameters().contains(&parameter) {
            let takers = FORMATS.iter().filter(|format| format.parameters().contains(&parameter));
            let names: Vec<&str> = takers.map(|format| format.name()).collect();
            return Err(format!(
                "{parameter} is for format={} only, the format is {}",
                names.join(" or "),
                format.name()
            ));
        }
    }
    Ok(())
}

/// Checks that `format` accepts the array and that the array is as long as its shape says.
fn check(format: &dyn Format, array: &Array, options: &Options) -> Result<(), EncodeError> {
    format.accepts(&array.shape, &array.data_type, options).map_err(EncodeError::Refused)?;
    let expected = elements(&array.shape).saturating_mul(array.data_type.size_bytes().unwrap_or(0) as u64);
    if array.data.len() as u64 == expected {
        Ok(())
    } else {
        Err(EncodeError::Length { expected, found: array.data.len() })
    }
}

/// An empty buffer that never has to grow as long as it stays within `bytes`: growing would copy, and hold
/// twice the data while it does. Pages that are never written take no memory.
fn buffer(bytes: u64) -> Result<Vec<u8>, EncodeError> {
    buffer_in(&|_| Vec::new(), bytes)
}

/// As [`buffer`], one of `room` where that has it.
fn buffer_in(room: &dyn Fn(usize) -> Vec<u8>, bytes: u64) -> Result<Vec<u8>, EncodeError> {
    let mut buffer = usize::try_from(bytes).map(room).unwrap_or_default();
    buffer.clear();
    let reserved = usize::try_from(bytes).is_ok_and(|bytes| buffer.try_reserve_exact(bytes).is_ok());
    if reserved { Ok(buffer) } else { Err(EncodeError::Memory(bytes)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_types() -> Vec<DataType> {
        DataType::names().map(DataType::from_name).collect()
    }

    #[test]
    fn names_and_media_types_are_distinct() {
        for (i, a) in FORMATS.iter().enumerate() {
            for b in &FORMATS[..i] {
                assert_ne!(a.name(), b.name());
                assert_ne!(a.media_type(), b.media_type());
            }
        }
    }

    #[test]
    fn a_type_that_is_not_decoded_is_refused_by_every_format() {
        let other = DataType::from_name("string");
        for format in FORMATS {
            assert!(format.accepts(&[2, 2], &other, &Options::default()).is_err(), "{format:?}");
        }
    }

    #[test]
    fn parameters_are_for_the_formats_that_take_them() {
        let endian = Options { endian: Endian::Big, ..Options::default() };
        let window = Options { window: Some((0.0, 1.0)), ..Options::default() };
        let quality = Options { quality: Some(50), ..Options::default() };
        for (options, takers) in [(endian, &["raw"][..]), (window, &["png", "jpeg"]), (quality, &["jpeg"])] {
            for format in FORMATS {
                let accepted = format.accepts(&[2, 2], &DataType::UInt8, &options);
                assert_eq!(accepted.is_ok(), takers.contains(&format.name()), "{format:?}");
                if let Err(why) = accepted {
                    assert!(why.contains(&format!("format={} only", takers.join(" or "))), "{why}");
                }
            }
        }
    }

    #[test]
    fn an_array_that_breaks_its_shape_is_an_error_in_every_format() {
        let array = Array { shape: [2, 2].as_slice().into(), data_type: DataType::UInt8, data: vec![0; 7].into() };
        for format in FORMATS {
            let result = format.encode(&array, &Options::default());
            assert_eq!(result, Err(EncodeError::Length { expected: 4, found: 7 }), "{format:?}");
        }
    }

    #[test]
    fn what_encoding_allocates_stays_within_the_bound() {
        for format in FORMATS {
            for data_type in all_types() {
                for shape in [&[][..], &[1], &[7, 1, 5], &[300, 40], &[2, 3, 70]] {
                    for order in [Order::F, Order::C] {
                        let takes = |parameter| format.parameters().contains(&parameter);
                        let window = takes("window").then_some((-1.0, 300.0));
                        let quality = takes("quality").then_some(100);
                        let rank = shape.len();
                        let options = Options {
                            order,
                            window,
                            quality,
                            start: vec![i64::MIN; rank],
                            step: vec![u64::MAX; rank],
                            ..Options::default()
                        };
                        if format.accepts(shape, &data_type, &options).is_err() {
                            assert!(window.is_some() && shape.len() == 3, "{format:?} {data_type} {shape:?}");
                            continue;
                        }
                        let bytes = usize::try_from(elements(shape)).unwrap() * data_type.size_bytes().unwrap();
                        // A congruential generator: what no encoder can compress.
                        let mut state = 1u32;
                        let data: Vec<u8> = (0..bytes)
                            .map(|_| {
                                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                                state.to_be_bytes()[0]
                            })
                            .collect();
                        let array = Array { shape: shape.into(), data_type: data_type.clone(), data: data.into() };
                        let parts = format.encode(&array, &options).unwrap();
                        let made: u64 =
                            parts.iter().filter(|p| p.as_ptr() != array.data.as_ptr()).map(|p| p.len() as u64).sum();
                        let bound = format.extra_bytes(shape, &data_type, &options).max(1024);
                        assert!(made <= bound, "{format:?} {data_type} {shape:?}: {made} > {bound}");
                    }
                }
            }
        }
    }

    #[test]
    fn bounds_saturate() {
        for format in FORMATS {
            let bound = format.extra_bytes(&[u64::MAX, 3, 1 << 40], &DataType::Float64, &Options::default());
            assert!(bound == 0 || bound == u64::MAX, "{format:?}: {bound}");
        }
    }

    #[test]
    fn streamed_formats_say_the_same_in_bands_as_whole() {
        for format in FORMATS {
            let data: Bytes = (0..48u8).collect::<Vec<u8>>().into();
            let array = Array { shape: [3, 4, 2].as_slice().into(), data_type: DataType::UInt16, data: data.clone() };
            for endian in [Endian::Little, Endian::Big] {
                let options = Options { endian, ..Options::default() };
                let Some(header) = format.header(&array.shape, &array.data_type, &options) else { continue };
                if format.accepts(&array.shape, &array.data_type, &options).is_err() {
                    continue;
                }
                let bands =
                    [data.slice(..24), data.slice(24..)].map(|b| format.finish_band(b, &DataType::UInt16, &options));
                let streamed = [&header[..], &bands[0], &bands[1]].concat();
                assert_eq!(streamed, format.encode(&array, &options).unwrap().concat(), "{format:?} {endian:?}");
            }
        }
    }
}
