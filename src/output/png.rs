//! `png`: lossless grey images of 8 or 16 bits, and colour images of several channels.
//!
//! The crate png-gray encodes a few rows at a time: it puts them into PNG's byte order, filters and compresses them
//! while they are in the core's cache. No second image is held in memory.

use std::ops::Range;

use bytes::Bytes;
use png_gray::{BitDepth, ImageLayout, MAX_SIDE, PieceChecksum, Pixels};

use super::composite::RowBlender;
use super::encoding::{EncodeError, EncodeOptions, EncodedPiece, buffer_from};
use super::image::{append_windowed, check_window, plane_size};
use super::{Format, PiecewiseFormat};
use n5_format::{Array, DataType};

/// A plane or a line as a grey image, or the channels of a plane as a colour image.
///
/// The first axis longer than 1 runs to the right and the second one down, regardless of the requested order. uint8 and
/// uint16 are shown unchanged unless a window is given. A window makes an image of 8 bits: its first value is black,
/// its second white, and values between them are mapped linearly. Values beyond the window are clipped; NaN is black.
#[derive(Debug)]
pub(super) struct PngFormat;

impl Format for PngFormat {
    fn name(&self) -> &'static str {
        "png"
    }

    fn is_shown_by_browsers(&self) -> bool {
        true
    }

    fn media_type(&self) -> &'static str {
        "image/png"
    }

    fn supports(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> Result<(), String> {
        if let Some(composite) = &options.composite {
            composite.check(self.name(), shape)?;
            return plane_size(self.name(), &composite.image_shape(shape), MAX_SIDE.into()).map(|_| ());
        }
        plane_size(self.name(), shape, MAX_SIDE.into())?;
        check_window(self.name(), &[DataType::UInt8, DataType::UInt16], data_type, options)
    }

    fn parameters(&self) -> &'static [&'static str] {
        &["window", "channels", "colors"]
    }

    fn encoder_bytes(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> u64 {
        layout(shape, data_type, options).map_or(u64::MAX, |layout| {
            let blender_bytes = options.composite.as_ref().map_or(0, |composite| {
                let width = composite.image_shape(shape).into_iter().find(|size| *size > 1).unwrap_or(1);
                RowBlender::memory_bytes(width, data_type.size_bytes().unwrap_or(1) as u64)
            });
            let piece_bytes =
                layout.max_piece_bytes().saturating_add(layout.scratch_bytes(is_converted(data_type, options)));
            let piece_bytes = piece_bytes.saturating_add(blender_bytes);
            piece_bytes.saturating_mul(layout.piece_count() as u64)
        })
    }

    fn encode(&self, array: &Array, options: &EncodeOptions) -> Result<Vec<Bytes>, EncodeError> {
        let piece_numbers = 0..self.piece_count(&array.shape, &array.data_type, options);
        let pieces: Vec<EncodedPiece> =
            piece_numbers.map(|n| self.encode_piece(n, &|_| Vec::new(), array, options)).collect::<Result<_, _>>()?;
        let trailer = self.trailer(&pieces);
        Ok(pieces.into_iter().map(|piece| piece.bytes).chain([trailer]).collect())
    }

    fn as_piecewise(&self) -> Option<&dyn PiecewiseFormat> {
        Some(self)
    }
}

impl PiecewiseFormat for PngFormat {
    fn piece_count(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> usize {
        layout(shape, data_type, options).map_or(1, |layout| layout.piece_count())
    }

    fn encode_piece(
        &self,
        number: usize,
        take_buffer: &dyn Fn(usize) -> Vec<u8>,
        array: &Array,
        options: &EncodeOptions,
    ) -> Result<EncodedPiece, EncodeError> {
        self.check(array, options)?;
        let encoder_error = |reason: String| EncodeError::Encoder { format: self.name(), reason };
        let layout = layout(&array.shape, &array.data_type, options)
            .ok_or_else(|| encoder_error(format!("no image has the shape {:?}", array.shape)))?;
        let row_count = layout.height().max(1) as usize;
        let row_bytes = array.data.len().checked_div(row_count).unwrap_or(0);
        let convert = |rows: Range<u32>, pixels: &mut Vec<u8>| {
            if let Some(composite) = &options.composite {
                let mut blender = RowBlender::default();
                let elements = (array.data.as_ref(), array.shape.as_slice(), &array.data_type);
                for row in rows {
                    composite.append_row(&mut blender, elements, (row as usize, layout.width() as usize), pixels);
                }
                return;
            }
            let offset = |row: u32| (row as usize).saturating_mul(row_bytes);
            let elements = array.data.get(offset(rows.start)..offset(rows.end)).unwrap_or_default();
            match options.window {
                Some(window) => append_windowed(pixels, elements, &array.data_type, window),
                None => pixels.extend(elements.as_chunks().0.iter().flat_map(|e| u16::from_le_bytes(*e).to_be_bytes())),
            }
        };
        let pixels = if is_converted(&array.data_type, options) {
            Pixels::Converted(&convert)
        } else {
            Pixels::Stored(&array.data)
        };
        let mut out = buffer_from(take_buffer, layout.max_piece_bytes())?;
        let checksum = layout.encode_piece(number, pixels, &mut out).map_err(|error| match error {
            png_gray::PngError::Memory(bytes) => EncodeError::Memory(bytes),
            error @ (png_gray::PngError::Size { .. } | png_gray::PngError::Length { .. }) => {
                encoder_error(error.to_string())
            }
        })?;
        Ok(EncodedPiece { bytes: out.into(), checksum: checksum.adler32, checked_bytes: checksum.bytes })
    }

    fn trailer(&self, pieces: &[EncodedPiece]) -> Bytes {
        let checksum = |piece: &EncodedPiece| PieceChecksum { adler32: piece.checksum, bytes: piece.checked_bytes };
        png_gray::trailer(&pieces.iter().map(checksum).collect::<Vec<_>>()).into()
    }
}

/// Returns the layout of a plane as an image; `None` if the shape is not a plane.
fn layout(shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> Option<ImageLayout> {
    if let Some(composite) = &options.composite {
        let (width, height) = plane_size("png", &composite.image_shape(shape), MAX_SIDE.into()).ok()?;
        return ImageLayout::rgb(width, height);
    }
    let (width, height) = plane_size("png", shape, MAX_SIDE.into()).ok()?;
    let is_wide = *data_type == DataType::UInt16 && options.window.is_none();
    ImageLayout::new(width, height, if is_wide { BitDepth::Sixteen } else { BitDepth::Eight })
}

/// Returns true if the elements must be converted to get the pixels.
fn is_converted(data_type: &DataType, options: &EncodeOptions) -> bool {
    options.composite.is_some() || options.window.is_some() || *data_type == DataType::UInt16
}

/// Encodes an image whose pixels are ready: grey values, or red, green and blue.
///
/// # Errors
/// Returns [`EncodeError`] if the pixels do not match the size, or if there is no memory.
pub(super) fn encode_pixels((width, height): (u32, u32), is_rgb: bool, pixels: &[u8]) -> Result<Bytes, EncodeError> {
    let fault = |reason: String| EncodeError::Encoder { format: "png", reason };
    let layout =
        if is_rgb { ImageLayout::rgb(width, height) } else { ImageLayout::new(width, height, BitDepth::Eight) };
    let layout = layout.ok_or_else(|| fault(format!("no image has {width} x {height} pixels")))?;
    let mut file = Vec::new();
    let mut checksums = Vec::new();
    for number in 0..layout.piece_count() {
        let piece = layout.encode_piece(number, Pixels::Stored(pixels), &mut file);
        checksums.push(piece.map_err(|error| fault(error.to_string()))?);
    }
    file.extend_from_slice(&png_gray::trailer(&checksums));
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use png::ColorType;

    use super::super::check_supported;
    use super::*;

    fn options(window: Option<(f64, f64)>) -> EncodeOptions {
        EncodeOptions { window, ..EncodeOptions::default() }
    }

    /// Encodes and decodes an array. Returns width, height, bit depth and the bytes of the pixels.
    fn encode_and_decode(
        shape: &[u64],
        data_type: DataType,
        data: Vec<u8>,
        window: Option<(f64, f64)>,
    ) -> (u32, u32, png::BitDepth, Vec<u8>) {
        let array = Array { shape: shape.into(), data_type, data: data.into() };
        let file = PngFormat.encode(&array, &options(window)).unwrap().concat();
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!(info.color_type, ColorType::Grayscale);
        (info.width, info.height, info.bit_depth, pixels)
    }

    fn refusal(shape: &[u64], data_type: &DataType, window: Option<(f64, f64)>) -> String {
        check_supported(&PngFormat, shape, data_type, &options(window)).unwrap_err()
    }

    #[test]
    fn the_first_long_axis_goes_right_and_the_second_down() {
        let data: Vec<u8> = (0..6).collect();
        for shape in [&[3, 2][..], &[1, 3, 1, 2], &[3, 1, 2, 1]] {
            assert_eq!(
                encode_and_decode(shape, DataType::UInt8, data.clone(), None),
                (3, 2, png::BitDepth::Eight, data.clone())
            );
        }
    }

    #[test]
    fn a_line_is_one_pixel_high_and_an_element_one_pixel() {
        assert_eq!(
            encode_and_decode(&[1, 3], DataType::UInt8, vec![1, 2, 3], None),
            (3, 1, png::BitDepth::Eight, vec![1, 2, 3])
        );
        assert_eq!(encode_and_decode(&[], DataType::UInt8, vec![9], None), (1, 1, png::BitDepth::Eight, vec![9]));
    }

    #[test]
    fn uint16_keeps_16_bits() {
        let data: Vec<u8> = [0u16, 258, 65535].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(encode_and_decode(&[3], DataType::UInt16, data, None).2, png::BitDepth::Sixteen);
        let data: Vec<u8> = [0u16, 258, 65535].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(encode_and_decode(&[3], DataType::UInt16, data, None).3, [0, 0, 1, 2, 255, 255]);
    }

    #[test]
    fn a_window_maps_every_type_to_8_bits() {
        for name in DataType::names() {
            let data_type = DataType::from_name(name);
            let width = data_type.size_bytes().unwrap();
            let data: Vec<u8> = [0.0f64, 50.0, 100.0]
                .iter()
                .flat_map(|v| match name {
                    "float32" => {
                        f32::from(u8::try_from(v.to_string().parse::<u16>().unwrap()).unwrap()).to_le_bytes().to_vec()
                    }
                    "float64" => v.to_le_bytes().to_vec(),
                    _ => v.to_string().parse::<u64>().unwrap().to_le_bytes()[..width].to_vec(),
                })
                .collect();
            assert_eq!(encode_and_decode(&[3], data_type, data, Some((0.0, 100.0))).3, [0, 128, 255], "{name}");
        }
    }

    #[test]
    fn other_types_are_refused_with_a_remedy() {
        for name in ["int8", "int16", "int32", "int64", "uint32", "uint64", "float32", "float64"] {
            assert!(refusal(&[2, 2], &DataType::from_name(name), None).contains("window=lo,hi"), "{name}");
        }
    }

    #[test]
    fn shapes_that_are_not_planes_are_refused() {
        assert!(refusal(&[2, 2, 2], &DataType::UInt8, None).contains("two axes"));
        assert!(refusal(&[2, 0], &DataType::UInt8, None).contains("empty"));
        assert!(refusal(&[1 << 31, 2], &DataType::UInt8, None).contains("2147483647"));
        assert_eq!(check_supported(&PngFormat, &[(1 << 31) - 1, 1], &DataType::UInt8, &options(None)), Ok(()));
    }

    #[test]
    fn a_window_without_width_is_refused() {
        for window in [(1.0, 1.0), (0.0, -0.0), (f64::NAN, 1.0), (0.0, f64::INFINITY)] {
            assert!(refusal(&[2, 2], &DataType::UInt8, Some(window)).contains("no width"), "{window:?}");
        }
    }

    #[test]
    fn pieces_form_the_whole_encoding() {
        let data: Vec<u8> = (0..700 * 900u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24).to_le_bytes()[0]).collect();
        let array = Array { shape: [700, 900].as_slice().into(), data_type: DataType::UInt8, data: data.into() };
        let count = PngFormat.piece_count(&array.shape, &array.data_type, &options(None));
        assert_eq!(count, 4);
        let used_buffer = |bytes| vec![7; bytes];
        let pieces: Vec<EncodedPiece> =
            (0..count).map(|n| PngFormat.encode_piece(n, &used_buffer, &array, &options(None)).unwrap()).collect();
        let trailer = PngFormat.trailer(&pieces);
        let parts: Vec<Bytes> = pieces.into_iter().map(|piece| piece.bytes).chain([trailer]).collect();
        assert_eq!(parts.concat(), PngFormat.encode(&array, &options(None)).unwrap().concat());
    }
}
