//! `jpeg`: small, lossy images of 8 bits: grey, or the colours of several channels.

use bytes::Bytes;
use jpeg_encoder::{ColorType, Encoder, ImageBuffer, JpegColorType, SamplingFactor, rgb_to_ycbcr};

use super::Format;
use super::colours::Composite;
use super::composite::RowBlender;
use super::encoding::{EncodeError, EncodeOptions, buffer};
use super::image::{append_windowed, check_window, plane_size};
use n5_format::{Array, DataType};

/// A plane or a line as a grey image, like `png` but with 8 bits only.
///
/// uint8 elements are shown unchanged unless a window is given. Every other type needs a window. The parameter
/// `quality` ranges from 1 to 100.
#[derive(Debug)]
pub(super) struct JpegFormat;

/// Maximum number of pixels per side. Source: ITU-T T.81 §B.2.2 (two-byte numbers of lines and samples).
const MAX_SIDE: u64 = 65_535;

/// Value of `quality` if none is given.
const DEFAULT_QUALITY: u8 = 90;

/// Maximum number of bytes for 8 by 8 pixels. 63 coefficients of 26 bits and one of 20 bits take 208 bytes. In
/// addition, a zero byte follows every byte of 255. Each code of 16 bits has at most one such byte.
const MAX_BLOCK_BYTES: u64 = 288;

impl Format for JpegFormat {
    fn name(&self) -> &'static str {
        "jpeg"
    }

    fn file_suffix(&self) -> &'static str {
        "jpg"
    }

    fn is_shown_by_browsers(&self) -> bool {
        true
    }

    fn media_type(&self) -> &'static str {
        "image/jpeg"
    }

    fn parameters(&self) -> &'static [&'static str] {
        &["window", "channels", "colors", "quality"]
    }

    fn is_lossy(&self) -> bool {
        true
    }

    fn supports(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> Result<(), String> {
        if let Some(composite) = &options.composite {
            composite.check(self.name(), shape)?;
            return plane_size(self.name(), &composite.image_shape(shape), MAX_SIDE).map(|_| ());
        }
        plane_size(self.name(), shape, MAX_SIDE)?;
        check_window(self.name(), &[DataType::UInt8], data_type, options)
    }

    /// Returns the combined size of the largest possible file, eight encoder rows for each of four components, and one
    /// row of pixels.
    fn encoder_bytes(&self, shape: &[u64], data_type: &DataType, options: &EncodeOptions) -> u64 {
        let Some(composite) = &options.composite else { return max_encoder_bytes(shape, 1) };
        let shape = composite.image_shape(shape);
        let width = shape.iter().copied().find(|size| *size > 1).unwrap_or(1);
        let element_bytes = data_type.size_bytes().unwrap_or(1) as u64;
        // A row of pixels is held beside the blender.
        let row_bytes = RowBlender::memory_bytes(width, element_bytes).saturating_add(width.saturating_mul(3));
        max_encoder_bytes(&shape, 3).saturating_add(row_bytes)
    }

    fn encode(&self, array: &Array, options: &EncodeOptions) -> Result<Vec<Bytes>, EncodeError> {
        self.check(array, options)?;
        let encoder_error = |reason: String| EncodeError::Encoder { format: self.name(), reason };
        let shape = match &options.composite {
            Some(composite) => composite.image_shape(&array.shape),
            None => array.shape.to_vec(),
        };
        let (width, height) = plane_size(self.name(), &shape, MAX_SIDE).map_err(EncodeError::Refused)?;
        let side = |pixels: u32| u16::try_from(pixels).map_err(|error| encoder_error(error.to_string()));
        let (width, height) = (side(width)?, side(height)?);
        let rows = LazyGreyImage { array, window: options.window, width, height };
        let mut out = buffer(self.encoder_bytes(&array.shape, &array.data_type, options))?;
        let mut encoder = Encoder::new(&mut out, options.quality.unwrap_or(DEFAULT_QUALITY));
        // All components are encoded at full resolution: the edges of channels are as sharp as those of grey images.
        encoder.set_sampling_factor(SamplingFactor::F_1_1);
        let encoded = match &options.composite {
            Some(composite) => encoder.encode_image(LazyColourImage { array, composite, width, height }),
            None => encoder.encode_image(rows),
        };
        encoded.map_err(|error| encoder_error(error.to_string()))?;
        Ok(vec![out.into()])
    }
}

/// Returns the combined size of the largest possible file with this number of components, of the encoder's rows, and of
/// one row of grey values, in bytes.
fn max_encoder_bytes(shape: &[u64], components: u64) -> u64 {
    let mut long_sizes = shape.iter().copied().filter(|size| *size > 1);
    let width = long_sizes.next().unwrap_or(1).div_ceil(8);
    let blocks = long_sizes.map(|size| size.div_ceil(8)).fold(width, u64::saturating_mul);
    let rows = width.saturating_mul(8 * 8 * 4 + 8);
    let file_bytes = blocks.saturating_mul(MAX_BLOCK_BYTES).saturating_mul(components);
    file_bytes.saturating_add(rows).saturating_add(1024)
}

/// Encodes an image whose pixels are ready: grey values, or red, green and blue.
///
/// # Errors
/// Returns [`EncodeError`] if the image is too large, or if there is no memory.
pub(super) fn encode_pixels((width, height): (u32, u32), is_rgb: bool, pixels: &[u8]) -> Result<Bytes, EncodeError> {
    let fault = |reason: String| EncodeError::Encoder { format: "jpeg", reason };
    let side = |pixels: u32| u16::try_from(pixels).map_err(|error| fault(error.to_string()));
    let mut out = buffer(max_encoder_bytes(&[width.into(), height.into()], if is_rgb { 3 } else { 1 }))?;
    let mut encoder = Encoder::new(&mut out, DEFAULT_QUALITY);
    encoder.set_sampling_factor(SamplingFactor::F_1_1);
    let colours = if is_rgb { ColorType::Rgb } else { ColorType::Luma };
    encoder.encode(pixels, side(width)?, side(height)?, colours).map_err(|error| fault(error.to_string()))?;
    Ok(out.into())
}

/// An image whose rows are blended from channels when the encoder requests them.
struct LazyColourImage<'a> {
    array: &'a Array,
    composite: &'a Composite,
    width: u16,
    height: u16,
}

impl ImageBuffer for LazyColourImage<'_> {
    fn get_jpeg_color_type(&self) -> JpegColorType {
        JpegColorType::Ycbcr
    }

    fn width(&self) -> u16 {
        self.width
    }

    fn height(&self) -> u16 {
        self.height
    }

    fn fill_buffers(&self, y: u16, [luma, blue, red, _]: &mut [Vec<u8>; 4]) {
        let Array { data, shape, data_type } = self.array;
        let mut row = Vec::with_capacity(usize::from(self.width).saturating_mul(3));
        let position = (usize::from(y), usize::from(self.width));
        self.composite.append_row(&mut RowBlender::default(), (data, shape, data_type), position, &mut row);
        for [r, g, b] in row.as_chunks::<3>().0 {
            let (y, cb, cr) = rgb_to_ycbcr(*r, *g, *b);
            luma.push(y);
            blue.push(cb);
            red.push(cr);
        }
    }
}

/// An image whose rows are converted to grey values when the encoder requests them. No second image is held in memory.
struct LazyGreyImage<'a> {
    array: &'a Array,
    window: Option<(f64, f64)>,
    width: u16,
    height: u16,
}

impl ImageBuffer for LazyGreyImage<'_> {
    fn get_jpeg_color_type(&self) -> JpegColorType {
        JpegColorType::Luma
    }

    fn width(&self) -> u16 {
        self.width
    }

    fn height(&self) -> u16 {
        self.height
    }

    fn fill_buffers(&self, y: u16, [grey, ..]: &mut [Vec<u8>; 4]) {
        let row_bytes = usize::from(self.width).saturating_mul(self.array.data_type.size_bytes().unwrap_or(1));
        let start = usize::from(y).saturating_mul(row_bytes);
        let elements = self.array.data.get(start..start.saturating_add(row_bytes)).unwrap_or_default();
        match self.window {
            None => grey.extend_from_slice(elements),
            Some(window) => append_windowed(grey, elements, &self.array.data_type, window),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check_supported;
    use super::*;

    fn file(shape: &[u64], data: Vec<u8>, data_type: DataType, options: &EncodeOptions) -> Vec<u8> {
        let array = Array { shape: shape.into(), data_type, data: data.into() };
        JpegFormat.encode(&array, options).unwrap().concat()
    }

    /// Returns height, width and number of components from the frame header. Source: ITU-T T.81 §B.2.2.
    fn frame(file: &[u8]) -> (u16, u16, u8) {
        let marker = file.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
        let number = |n: usize| u16::from_be_bytes([file[marker + n], file[marker + n + 1]]);
        (number(5), number(7), file[marker + 9])
    }

    #[test]
    fn the_first_long_axis_goes_right_and_the_second_down() {
        for shape in [&[3, 20][..], &[1, 3, 1, 20], &[3, 1, 20, 1]] {
            let file = file(shape, vec![9; 60], DataType::UInt8, &EncodeOptions::default());
            assert_eq!((&file[..2], &file[file.len() - 2..]), (&[0xff, 0xd8][..], &[0xff, 0xd9][..]));
            assert_eq!(frame(&file), (20, 3, 1));
        }
        assert_eq!(frame(&file(&[], vec![9], DataType::UInt8, &EncodeOptions::default())), (1, 1, 1));
    }

    #[test]
    fn a_lower_quality_makes_a_smaller_file() {
        let noise: Vec<u8> = (0..64u32 * 64).map(|n| (n.wrapping_mul(2_654_435_761) >> 24).to_le_bytes()[0]).collect();
        let size = |quality| {
            let options = EncodeOptions { quality, ..EncodeOptions::default() };
            file(&[64, 64], noise.clone(), DataType::UInt8, &options).len()
        };
        assert!(size(Some(1)) < size(Some(50)) && size(Some(50)) < size(None) && size(None) < size(Some(100)));
        assert_eq!(size(None), size(Some(DEFAULT_QUALITY)));
    }

    #[test]
    fn a_windowed_image_equals_the_image_of_its_grey_values() {
        let options = EncodeOptions { window: Some((0.0, 1.0)), ..EncodeOptions::default() };
        let values: Vec<u8> = [0.0f32, 1.0, 2.0, f32::NAN].iter().flat_map(|value| value.to_le_bytes()).collect();
        let windowed = file(&[2, 2], values, DataType::Float32, &options);
        assert_eq!(windowed, file(&[2, 2], vec![0, 255, 255, 0], DataType::UInt8, &EncodeOptions::default()));
    }

    #[test]
    fn shapes_that_are_not_images_are_refused_with_a_remedy() {
        let refusal = |shape: &[u64], data_type| {
            check_supported(&JpegFormat, shape, &data_type, &EncodeOptions::default()).unwrap_err()
        };
        assert!(refusal(&[65_536, 2], DataType::UInt8).contains("65535"));
        assert!(refusal(&[2, 2, 2], DataType::UInt8).contains("two axes"));
        assert!(refusal(&[2, 0], DataType::UInt8).contains("empty"));
        assert!(refusal(&[2, 2], DataType::UInt16).contains("window=lo,hi"));
        assert_eq!(
            check_supported(&JpegFormat, &[65_535, 65_535], &DataType::UInt8, &EncodeOptions::default()),
            Ok(())
        );
    }
}
