//! `png`: grey images of 8 or 16 bit, without loss.

use std::io::Write;

use bytes::Bytes;
use png::{BitDepth, ColorType, Compression, Encoder};

use super::image::{plane, window_shows, windowed};
use super::{EncodeError, Format, Options, accepts_common, buffer, check, elements};
use crate::n5::{Array, DataType};

/// A plane or a line as a grey image.
///
/// Of the axes longer than 1 the first goes to the right and the second down, whatever the order asked for.
/// uint8 and uint16 are shown as they are unless a window is given; a window makes 8 bit: its first value
/// black, its second white, linear between them, values beyond it cut off, NaN black.
#[derive(Debug)]
pub(super) struct Png;

/// Most pixels of a side. Source: PNG specification §11.2.1 (four-byte integers end at 2^31 - 1).
const MAX_SIDE: u64 = (1 << 31) - 1;

/// Bytes of compressed data in one chunk of the file.
const CHUNK_BYTES: u32 = 64 * 1024;

impl Format for Png {
    fn name(&self) -> &'static str {
        "png"
    }

    fn media_type(&self) -> &'static str {
        "image/png"
    }

    fn accepts(&self, shape: &[u64], data_type: &DataType, options: &Options) -> Result<(), String> {
        accepts_common(self, data_type, options)?;
        plane(self.name(), shape, MAX_SIDE)?;
        window_shows(self.name(), &[DataType::UInt8, DataType::UInt16], data_type, options)
    }

    fn parameters(&self) -> &'static [&'static str] {
        &["window"]
    }

    /// At worst 12 bits for each byte of the image, and the encoder's rows.
    fn extra_bytes(&self, shape: &[u64], data_type: &DataType, options: &Options) -> u64 {
        let row_bytes = shape.iter().copied().find(|size| *size > 1).unwrap_or(1).saturating_mul(2);
        let pixel_bytes = if depth(data_type, options) == Some(BitDepth::Sixteen) { 2 } else { 1 };
        let rows = elements(shape).checked_div(row_bytes.saturating_div(2)).unwrap_or(0).saturating_add(1);
        let image = elements(shape).saturating_mul(pixel_bytes).saturating_add(rows);
        let compressed = image.saturating_add(image.div_ceil(2));
        let chunks = compressed.div_ceil(u64::from(CHUNK_BYTES)).saturating_mul(12);
        let fixed = u64::from(CHUNK_BYTES).saturating_add(1024);
        compressed.saturating_add(chunks).saturating_add(row_bytes.saturating_mul(5)).saturating_add(fixed)
    }

    fn header(&self, _: &[u64], _: &DataType, _: &Options) -> Option<Bytes> {
        None
    }

    fn encode(&self, array: &Array, options: &Options) -> Result<Vec<Bytes>, EncodeError> {
        check(self, array, options)?;
        let (width, height) = plane(self.name(), &array.shape, MAX_SIDE).map_err(EncodeError::Refused)?;
        let mut out = buffer(self.extra_bytes(&array.shape, &array.data_type, options))?;
        image(&mut out, array, options, width, height)
            .map_err(|error| EncodeError::Encoder { format: self.name(), reason: error.to_string() })?;
        Ok(vec![out.into()])
    }
}

/// Bits of a pixel; `None` where a window is needed and missing.
fn depth(data_type: &DataType, options: &Options) -> Option<BitDepth> {
    match (options.window, data_type) {
        (Some(_), _) | (None, DataType::UInt8) => Some(BitDepth::Eight),
        (None, DataType::UInt16) => Some(BitDepth::Sixteen),
        (None, _) => None,
    }
}

/// Row by row, so that no second image is held in memory.
fn image(
    out: &mut Vec<u8>,
    array: &Array,
    options: &Options,
    width: u32,
    height: u32,
) -> Result<(), png::EncodingError> {
    let depth = depth(&array.data_type, options).unwrap_or(BitDepth::Eight);
    let mut encoder = Encoder::new(out, width, height);
    encoder.set_color(ColorType::Grayscale);
    encoder.set_depth(depth);
    encoder.set_compression(Compression::Fast);
    let mut writer = encoder.write_header()?;
    let mut pixels = writer.stream_writer_with_size(CHUNK_BYTES as usize)?;
    let element_bytes = array.data_type.size_bytes().unwrap_or(1);
    let row_bytes = (width as usize).saturating_mul(element_bytes).max(1);
    let mut row = Vec::with_capacity((width as usize).saturating_mul(2));
    for elements in array.data.chunks_exact(row_bytes) {
        match options.window {
            None if depth == BitDepth::Eight => pixels.write_all(elements)?,
            None => {
                row.clear();
                row.extend(elements.as_chunks().0.iter().flat_map(|e| u16::from_le_bytes(*e).to_be_bytes()));
                pixels.write_all(&row)?;
            }
            Some(window) => {
                row.clear();
                windowed(&mut row, elements, &array.data_type, window);
                pixels.write_all(&row)?;
            }
        }
    }
    pixels.finish()?;
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(window: Option<(f64, f64)>) -> Options {
        Options { window, ..Options::default() }
    }

    /// Width, height, depth and the bytes of the pixels.
    fn decoded(
        shape: &[u64],
        data_type: DataType,
        data: Vec<u8>,
        window: Option<(f64, f64)>,
    ) -> (u32, u32, BitDepth, Vec<u8>) {
        let array = Array { shape: shape.into(), data_type, data: data.into() };
        let file = Png.encode(&array, &options(window)).unwrap().concat();
        let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!(info.color_type, ColorType::Grayscale);
        (info.width, info.height, info.bit_depth, pixels)
    }

    fn refusal(shape: &[u64], data_type: &DataType, window: Option<(f64, f64)>) -> String {
        Png.accepts(shape, data_type, &options(window)).unwrap_err()
    }

    #[test]
    fn the_first_long_axis_goes_right_and_the_second_down() {
        let data: Vec<u8> = (0..6).collect();
        for shape in [&[3, 2][..], &[1, 3, 1, 2], &[3, 1, 2, 1]] {
            assert_eq!(decoded(shape, DataType::UInt8, data.clone(), None), (3, 2, BitDepth::Eight, data.clone()));
        }
    }

    #[test]
    fn a_line_is_one_pixel_high_and_an_element_one_pixel() {
        assert_eq!(decoded(&[1, 3], DataType::UInt8, vec![1, 2, 3], None), (3, 1, BitDepth::Eight, vec![1, 2, 3]));
        assert_eq!(decoded(&[], DataType::UInt8, vec![9], None), (1, 1, BitDepth::Eight, vec![9]));
    }

    #[test]
    fn uint16_keeps_16_bits() {
        let data: Vec<u8> = [0u16, 258, 65535].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(decoded(&[3], DataType::UInt16, data, None).2, BitDepth::Sixteen);
        let data: Vec<u8> = [0u16, 258, 65535].iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(decoded(&[3], DataType::UInt16, data, None).3, [0, 0, 1, 2, 255, 255]);
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
            assert_eq!(decoded(&[3], data_type, data, Some((0.0, 100.0))).3, [0, 128, 255], "{name}");
        }
    }

    #[test]
    fn other_types_are_refused_with_the_way_out() {
        for name in ["int8", "int16", "int32", "int64", "uint32", "uint64", "float32", "float64"] {
            assert!(refusal(&[2, 2], &DataType::from_name(name), None).contains("window=lo,hi"), "{name}");
        }
    }

    #[test]
    fn shapes_that_are_no_plane_are_refused() {
        assert!(refusal(&[2, 2, 2], &DataType::UInt8, None).contains("two axes"));
        assert!(refusal(&[2, 0], &DataType::UInt8, None).contains("empty"));
        assert!(refusal(&[1 << 31, 2], &DataType::UInt8, None).contains("2147483647"));
        assert_eq!(Png.accepts(&[(1 << 31) - 1, 1], &DataType::UInt8, &options(None)), Ok(()));
    }

    #[test]
    fn a_window_without_width_is_refused() {
        for window in [(1.0, 1.0), (0.0, -0.0), (f64::NAN, 1.0), (0.0, f64::INFINITY)] {
            assert!(refusal(&[2, 2], &DataType::UInt8, Some(window)).contains("no width"), "{window:?}");
        }
    }
}
