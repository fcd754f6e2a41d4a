//! Output formats, which encode a decoded array as a media type: one file and one row of [`FORMATS`] each.
//!
//! This module is synchronous and without I/O. It knows nothing of datasets, stores or HTTP responses.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod accept;
mod colours;
mod composite;
mod encoding;
mod image;
mod image_stack;
mod imagej_metadata;
mod jpeg;
mod json;
mod n5_block;
mod npy;
mod png;
mod raw;
mod thumbnail;
mod tiff;

use std::fmt;

use bytes::Bytes;

use n5_format::{Array, DataType};

pub use accept::{accept_weight, best_media_type};
pub use colours::{Colour, Composite, CompositeChannel, MAX_CHANNELS, colour_names, label_colour, parse_colour};
pub use encoding::{
    AxisOrder, EncodeError, EncodeOptions, EncodedPiece, Endian, StackAxis, StackAxisKind, StackChannel,
};
pub use imagej_metadata::MAX_STACK_CHANNELS;

pub use thumbnail::{Thumbnail, ThumbnailContent, ThumbnailFormat, empty_plane};

use encoding::element_count;

/// An output format, which encodes arrays as a media type.
///
/// Shapes are those of the response, in N5 axis order regardless of [`EncodeOptions::order`], without dropped axes. The
/// caller ensures that the data type can be decoded; no format accepts another.
///
/// # Adding a format
/// Write one file with a type that implements this trait, and add one row to [`FORMATS`]. `CONTRIBUTING.md` lists the
/// documents and tests to extend. A format that is sent whole needs neither [`StreamedFormat`] nor [`PiecewiseFormat`].
/// The following is such a format: comma-separated values, with one line for each index of the second axis.
///
/// ```
/// use std::fmt::Write;
///
/// use bytes::Bytes;
/// use n5_format::{Array, DataType, convert};
/// use n5_server::output::{EncodeError, EncodeOptions, Format};
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
///     fn supports(&self, shape: &[u64], _: &DataType, _: &EncodeOptions) -> Result<(), String> {
///         if shape.len() == 2 { Ok(()) } else { Err("csv shows two axes; give the others to select".to_owned()) }
///     }
///
///     // The numbers as float64, plus at most 25 bytes of text each.
///     fn encoder_bytes(&self, shape: &[u64], _: &DataType, _: &EncodeOptions) -> u64 {
///         shape.iter().fold(8 + 25, |bytes, size| bytes.saturating_mul(*size))
///     }
///
///     fn encode(&self, array: &Array, options: &EncodeOptions) -> Result<Vec<Bytes>, EncodeError> {
///         self.check(array, options)?;
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
/// let data = vec![1, 2, 3, 4, 5, 60].into();
/// let array = Array { shape: [3, 2].as_slice().into(), data_type: DataType::UInt8, data };
/// let parts = Csv.encode(&array, &EncodeOptions::default()).unwrap();
/// assert_eq!(parts.concat(), b"1e0,2e0,3e0\n4e0,5e0,6e1\n");
/// ```
pub trait Format: fmt::Debug + Send + Sync {
    /// Returns the value of the query parameter `format` that selects this format.
    fn name(&self) -> &'static str;

    /// Returns the media type, without parameters.
    fn media_type(&self) -> &'static str;

    /// Returns the suffix of files in this format, without a dot.
    fn file_suffix(&self) -> &'static str {
        self.name()
    }

    /// Returns true if browsers show this format themselves. They save other formats.
    fn is_shown_by_browsers(&self) -> bool {
        false
    }

    /// Returns those of the parameters `endian`, `window`, `channels`, `colors` and `quality` that this format uses. A
    /// request that has one of these parameters is refused if the format does not use it.
    fn parameters(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns true if encoding loses values beyond what the client asked for. `Accept` selects such a format only if
    /// no other is acceptable.
    fn is_lossy(&self) -> bool {
        false
    }

    /// Returns true if HTTP compression is worthwhile. It is not for a format that is compressed already, or whose
    /// usual clients do not decompress responses.
    fn is_compressible(&self) -> bool {
        false
    }

    /// Returns true if this format uses [`EncodeOptions::axes`].
    fn is_calibrated(&self) -> bool {
        false
    }

    /// Checks the requirements of this format. [`check_supported`] calls this after checking the data type and the
    /// parameters.
    ///
    /// # Errors
    /// Returns the same errors as [`check_supported`].
    fn supports(&self, _shape: &[u64], _data_type: &DataType, _options: &EncodeOptions) -> Result<(), String> {
        Ok(())
    }

    /// Checks that this format can encode the array with these options, and that the array's length matches its shape.
    /// Not to be overridden.
    ///
    /// # Errors
    /// Returns [`EncodeError::Refused`] or [`EncodeError::Length`].
    fn check(&self, array: &Array, options: &EncodeOptions) -> Result<(), EncodeError> {
        check_supported(self, &array.shape, &array.data_type, options).map_err(EncodeError::Refused)?;
        let expected = element_count(&array.shape).saturating_mul(array.data_type.size_bytes().unwrap_or(0) as u64);
        if array.data.len() as u64 == expected {
            Ok(())
        } else {
            Err(EncodeError::Length { expected, found: array.data.len() })
        }
    }

    /// Returns an upper bound of the bytes that encoding allocates in addition to the array or band. Returns `u64::MAX`
    /// if the bound overflows. Headers and row buffers of a few hundred bytes are not counted.
    fn encoder_bytes(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> u64;

    /// Encodes the array, in parts that are sent one after another. The elements are not copied if
    /// [`Format::encoder_bytes`] is 0.
    ///
    /// # Errors
    /// Returns [`EncodeError`] if [`Format::check`] refuses the array or the encoder fails.
    fn encode(&self, array: &Array, options: &EncodeOptions) -> Result<Vec<Bytes>, EncodeError>;

    /// Returns this format if it can be sent in bands. Other formats are sent whole.
    fn as_streamed(&self) -> Option<&dyn StreamedFormat> {
        None
    }

    /// Returns this format if it can encode the pieces of one array in parallel.
    fn as_piecewise(&self) -> Option<&dyn PiecewiseFormat> {
        None
    }
}

/// A format whose encoding is a header followed by the elements, with their axes in the format's order.
///
/// An array can be sent in bands: first the header, then the bands, each with its elements in the format's order of axes
/// and of bytes.
/// Such a format returns itself from [`Format::as_streamed`], and its [`Format::encode`] calls
/// [`StreamedFormat::encode_whole`].
pub trait StreamedFormat: Format {
    /// Returns the bytes before the elements. Returns `None` if the format cannot represent the shape or the type.
    fn header(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> Option<Bytes>;

    /// Returns the exact length of [`StreamedFormat::header`] in bytes. A format with a large header must compute the
    /// length without building the header, because this is called before memory is taken.
    fn header_bytes(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> Option<u64> {
        self.header(shape, data_type, options).map(|header| header.len() as u64)
    }

    /// Returns the order of the axes of `shape` in the encoding, fastest first, if it is not the order in memory. The
    /// list is a permutation of all axes. Such a format counts the rearranged elements in [`Format::encoder_bytes`].
    fn axis_order(&self, _shape: &[u64], _options: &EncodeOptions) -> Option<Vec<usize>> {
        None
    }

    /// Returns the byte order of the elements that are sent.
    fn byte_order(&self, _options: &EncodeOptions) -> Endian {
        Endian::Little
    }

    /// Implements [`Format::encode`]: returns the header and the elements in the format's order of axes and of bytes. Not
    /// to be overridden.
    ///
    /// # Errors
    /// Returns the same errors as [`Format::encode`].
    fn encode_whole(&self, array: &Array, options: &EncodeOptions) -> Result<Vec<Bytes>, EncodeError> {
        self.check(array, options)?;
        let Array { shape, data_type, data } = array;
        let header = self.header(shape, data_type, options).ok_or_else(|| EncodeError::Encoder {
            format: self.name(),
            reason: format!("cannot make a header for the shape {shape:?} of {data_type}"),
        })?;
        let elements = match self.axis_order(shape, options) {
            None => data.clone(),
            Some(axes) => n5_format::transpose(data, shape, data_type.size_bytes().unwrap_or(1), &axes).into(),
        };
        let elements = self.byte_order(options).arrange(elements, data_type);
        Ok(if header.is_empty() { vec![elements] } else { vec![header, elements] })
    }
}

/// A format whose encoding is a sequence of pieces, which can be encoded in parallel, and a trailer.
pub trait PiecewiseFormat: Format {
    /// Returns the number of pieces of an array of this shape. The number does not depend on the machine.
    fn piece_count(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> usize;

    /// Encodes the piece of the given number, counted from 0.
    ///
    /// `take_buffer` supplies the piece's buffer: it takes a number of bytes and returns a buffer of any content and
    /// any capacity.
    ///
    /// # Errors
    /// Returns the same errors as [`Format::encode`].
    fn encode_piece(
        &self,
        number: usize,
        take_buffer: &dyn Fn(usize) -> Vec<u8>,
        array: &Array,
        options: &EncodeOptions,
    ) -> Result<EncodedPiece, EncodeError>;

    /// Returns the few bytes that follow all pieces.
    fn trailer(&self, pieces: &[EncodedPiece]) -> Bytes;
}

/// Checks that `format` can encode arrays of this shape and type with these options.
///
/// # Errors
/// Returns a text for the client: why the array is refused, and what to request instead.
pub fn check_supported<F: Format + ?Sized>(
    format: &F,
    shape: &[u64],
    data_type: &DataType,
    options: &EncodeOptions,
) -> Result<(), String> {
    if data_type.size_bytes().is_none() {
        return Err(format!("elements of type {data_type} cannot be decoded; request the stored blocks instead"));
    }
    let parameters = [
        ("endian", options.endian == Endian::Big),
        ("window", options.window.is_some()),
        ("channels", options.composite.is_some()),
        ("quality", options.quality.is_some()),
    ];
    for (parameter, _) in parameters.iter().filter(|(_, is_given)| *is_given) {
        check_parameter(format, parameter)?;
    }
    format.supports(shape, data_type, options)
}

/// Checks that `format` uses a parameter.
///
/// # Errors
/// Returns a text for the client: the formats that use the parameter.
pub fn check_parameter<F: Format + ?Sized>(format: &F, parameter: &str) -> Result<(), String> {
    if format.parameters().contains(&parameter) {
        return Ok(());
    }
    let supporting_formats = FORMATS.iter().filter(|format| format.parameters().contains(&parameter));
    let names: Vec<&str> = supporting_formats.map(|format| format.name()).collect();
    Err(format!("{parameter} is for format={} only, but the format is {}", names.join(" or "), format.name()))
}

/// All output formats. The first one is the default, and wins among equally acceptable ones.
pub static FORMATS: &[&dyn Format] = &[
    &raw::RawFormat,
    &npy::NpyFormat,
    &json::JsonFormat,
    &png::PngFormat,
    &jpeg::JpegFormat,
    &tiff::TiffFormat,
    &n5_block::N5BlockFormat,
];

/// Reason why no format can be selected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NegotiationError {
    /// No format has the requested name.
    #[error("unknown format {requested:?}; known: {}", known.join(", "))]
    UnknownFormat {
        /// Requested name, cut to 40 characters.
        requested: String,
        /// Names of all formats.
        known: Vec<&'static str>,
    },
    /// `Accept` excludes every available media type.
    #[error("Accept matches none of the media types served here: {}", known.join(", "))]
    NotAcceptable {
        /// All available media types.
        known: Vec<&'static str>,
    },
}

/// Selects the format named `format`, if the client gives a name. Otherwise selects the format whose media type has the
/// highest weight in `accept`.
///
/// [`best_media_type`] has the rules for `accept`, the header's value. A lossy format is selected only if no other is
/// acceptable, because Java names image/jpeg in every request by default.
///
/// # Errors
/// Returns [`NegotiationError`] if the name is unknown or `Accept` excludes every format.
pub fn negotiate(format: Option<&str>, accept: Option<&str>) -> Result<&'static dyn Format, NegotiationError> {
    if let Some(name) = format {
        let selected = FORMATS.iter().copied().find(|format| format.name() == name);
        return selected.ok_or_else(|| NegotiationError::UnknownFormat {
            requested: name.chars().take(40).collect(),
            known: FORMATS.iter().map(|format| format.name()).collect(),
        });
    }
    let best = [false, true].into_iter().find_map(|is_lossy| {
        let formats: Vec<_> = FORMATS.iter().copied().filter(|format| format.is_lossy() == is_lossy).collect();
        let known: Vec<&'static str> = formats.iter().map(|format| format.media_type()).collect();
        let best = best_media_type(&known, accept)?;
        formats.into_iter().find(|format| format.media_type() == best)
    });
    best.ok_or_else(|| NegotiationError::NotAcceptable {
        known: FORMATS.iter().map(|format| format.media_type()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
    fn an_undecodable_type_is_refused_by_every_format() {
        let other = DataType::from_name("string");
        for format in FORMATS {
            assert!(check_supported(*format, &[2, 2], &other, &EncodeOptions::default()).is_err(), "{format:?}");
        }
    }

    #[test]
    fn parameters_are_accepted_only_by_their_formats() {
        let endian = EncodeOptions { endian: Endian::Big, ..EncodeOptions::default() };
        let window = EncodeOptions { window: Some((0.0, 1.0)), ..EncodeOptions::default() };
        let quality = EncodeOptions { quality: Some(50), ..EncodeOptions::default() };
        for (options, supporting_formats) in
            [(endian, &["raw"][..]), (window, &["png", "jpeg", "tiff"]), (quality, &["jpeg"])]
        {
            for format in FORMATS {
                let accepted = check_supported(*format, &[2, 2], &DataType::UInt8, &options);
                assert_eq!(accepted.is_ok(), supporting_formats.contains(&format.name()), "{format:?}");
                if let Err(message) = accepted {
                    assert!(message.contains(&format!("format={} only", supporting_formats.join(" or "))), "{message}");
                }
            }
        }
    }

    #[test]
    fn an_array_of_the_wrong_length_is_an_error_in_every_format() {
        let array = Array { shape: [2, 2].as_slice().into(), data_type: DataType::UInt8, data: vec![0; 7].into() };
        for format in FORMATS {
            let result = format.encode(&array, &EncodeOptions::default());
            assert_eq!(result, Err(EncodeError::Length { expected: 4, found: 7 }), "{format:?}");
        }
    }

    #[test]
    fn encoding_allocates_no_more_than_the_bound() {
        for format in FORMATS {
            for data_type in all_types() {
                for shape in [&[][..], &[1], &[7, 1, 5], &[300, 40], &[2, 3, 70]] {
                    for order in [AxisOrder::F, AxisOrder::C] {
                        let takes = |parameter| format.parameters().contains(&parameter);
                        let window = takes("window").then_some((-1.0, 300.0));
                        let quality = takes("quality").then_some(100);
                        let rank = shape.len();
                        let options = EncodeOptions {
                            order,
                            window,
                            quality,
                            start: vec![i64::MIN; rank],
                            step: vec![u64::MAX; rank],
                            ..EncodeOptions::default()
                        };
                        if check_supported(*format, shape, &data_type, &options).is_err() {
                            assert!(window.is_some() && shape.len() == 3, "{format:?} {data_type} {shape:?}");
                            continue;
                        }
                        let bytes = usize::try_from(element_count(shape)).unwrap() * data_type.size_bytes().unwrap();
                        // A linear congruential generator makes data that no encoder can compress.
                        let mut state = 1u32;
                        let data: Vec<u8> = (0..bytes)
                            .map(|_| {
                                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                                state.to_be_bytes()[0]
                            })
                            .collect();
                        let array = Array { shape: shape.into(), data_type: data_type.clone(), data: data.into() };
                        let parts = format.encode(&array, &options).unwrap();
                        let allocated_bytes: u64 =
                            parts.iter().filter(|p| p.as_ptr() != array.data.as_ptr()).map(|p| p.len() as u64).sum();
                        let bound = format.encoder_bytes(shape, &data_type, &options).max(1024);
                        assert!(
                            allocated_bytes <= bound,
                            "{format:?} {data_type} {shape:?}: {allocated_bytes} > {bound}"
                        );
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn the_length_of_a_header_is_known_without_building_it(
            shape in prop::collection::vec(prop_oneof![0u64..4, 1u64..3000, any::<u64>()], 0..6),
            pages in prop_oneof![1u64..20, 60_000u64..66_000],
            data_type in prop::sample::select(all_types()),
            order in prop::sample::select(vec![AxisOrder::F, AxisOrder::C]),
        ) {
            let options = EncodeOptions { order, ..EncodeOptions::default() };
            for shape in [&shape[..], &[1 << 15, 7, pages], &[1 << 31, 1 << 31, 1 << 31, 1]] {
                for format in FORMATS.iter().filter_map(|format| format.as_streamed()) {
                    let header = format.header(shape, &data_type, &options).map(|header| header.len() as u64);
                    prop_assert_eq!(format.header_bytes(shape, &data_type, &options), header, "{:?} {:?}", format, shape);
                }
            }
        }
    }

    #[test]
    fn bounds_saturate() {
        for format in FORMATS {
            let bound = format.encoder_bytes(&[u64::MAX, 3, 1 << 40], &DataType::Float64, &EncodeOptions::default());
            assert!(bound == 0 || bound == u64::MAX, "{format:?}: {bound}");
        }
    }

    #[test]
    fn formats_that_can_be_streamed_or_encoded_in_parallel_say_so() {
        let names = |is_selected: fn(&dyn Format) -> bool| -> Vec<&str> {
            FORMATS.iter().filter(|format| is_selected(**format)).map(|format| format.name()).collect()
        };
        assert_eq!(names(|format| format.as_streamed().is_some()), ["raw", "npy", "tiff", "n5"]);
        assert_eq!(names(|format| format.as_piecewise().is_some()), ["png"]);
    }

    #[test]
    fn streamed_bands_equal_the_whole_encoding() {
        for format in FORMATS.iter().filter_map(|format| format.as_streamed()) {
            let data: Bytes = (0..48u8).collect::<Vec<u8>>().into();
            let array = Array { shape: [3, 4, 2].as_slice().into(), data_type: DataType::UInt16, data: data.clone() };
            for endian in [Endian::Little, Endian::Big] {
                let options = EncodeOptions { endian, ..EncodeOptions::default() };
                if check_supported(format, &array.shape, &array.data_type, &options).is_err() {
                    continue;
                }
                let header = format.header(&array.shape, &array.data_type, &options).unwrap();
                let bands = [data.slice(..24), data.slice(24..)]
                    .map(|band| format.byte_order(&options).arrange(band, &DataType::UInt16));
                let streamed = [&header[..], &bands[0], &bands[1]].concat();
                assert_eq!(streamed, format.encode(&array, &options).unwrap().concat(), "{format:?} {endian:?}");
            }
        }
    }
}
