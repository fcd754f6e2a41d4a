//! `jpeg`: grey images of 8 bit, small, with loss.

use bytes::Bytes;
use jpeg_encoder::{Encoder, ImageBuffer, JpegColorType, SamplingFactor};

use super::image::{plane, window_shows, windowed};
use super::{EncodeError, Format, Options, accepts_common, buffer, check};
use crate::n5::{Array, DataType};

/// A plane or a line as a grey image, like `png` but of 8 bit only.
///
/// uint8 is shown as it is unless a window is given; every other type needs a window. The parameter `quality`
/// goes from 1 to 100.
#[derive(Debug)]
pub(super) struct Jpeg;

/// Most pixels of a side. Source: ITU-T T.81 §B.2.2 (two-byte numbers of lines and samples).
const MAX_SIDE: u64 = 65_535;

/// `quality` where none is given.
const QUALITY: u8 = 90;

/// Most bytes of 8 by 8 pixels: 63 coefficients of 26 bits and one of 20 make 208, and after every byte of 255,
/// of which a code of 16 bits begins with at most one, comes a zero.
const BLOCK_BYTES: u64 = 288;

impl Format for Jpeg {
    fn name(&self) -> &'static str {
        "jpeg"
    }

    fn media_type(&self) -> &'static str {
        "image/jpeg"
    }

    fn parameters(&self) -> &'static [&'static str] {
        &["window", "quality"]
    }

    fn is_lossy(&self) -> bool {
        true
    }

    fn accepts(&self, shape: &[u64], data_type: &DataType, options: &Options) -> Result<(), String> {
        accepts_common(self, data_type, options)?;
        plane(self.name(), shape, MAX_SIDE)?;
        window_shows(self.name(), &[DataType::UInt8], data_type, options)
    }

    /// The worst image, and the encoder's rows: eight of each of four components, and one of grey values.
    fn extra_bytes(&self, shape: &[u64], _: &DataType, _: &Options) -> u64 {
        let mut long = shape.iter().copied().filter(|size| *size > 1);
        let width = long.next().unwrap_or(1).div_ceil(8);
        let blocks = long.map(|size| size.div_ceil(8)).fold(width, u64::saturating_mul);
        let rows = width.saturating_mul(8 * 8 * 4 + 8);
        blocks.saturating_mul(BLOCK_BYTES).saturating_add(rows).saturating_add(1024)
    }

    fn header(&self, _: &[u64], _: &DataType, _: &Options) -> Option<Bytes> {
        None
    }

    fn encode(&self, array: &Array, options: &Options) -> Result<Vec<Bytes>, EncodeError> {
        check(self, array, options)?;
        let fault = |reason: String| EncodeError::Encoder { format: self.name(), reason };
        let (width, height) = plane(self.name(), &array.shape, MAX_SIDE).map_err(EncodeError::Refused)?;
        let side = |pixels: u32| u16::try_from(pixels).map_err(|error| fault(error.to_string()));
        let rows = Rows { array, window: options.window, width: side(width)?, height: side(height)? };
        let mut out = buffer(self.extra_bytes(&array.shape, &array.data_type, options))?;
        let mut encoder = Encoder::new(&mut out, options.quality.unwrap_or(QUALITY));
        // One component: nothing is subsampled.
        encoder.set_sampling_factor(SamplingFactor::F_1_1);
        encoder.encode_image(rows).map_err(|error| fault(error.to_string()))?;
        Ok(vec![out.into()])
    }
}

/// The image, made grey as its rows are asked for, so that no second one is held in memory.
struct Rows<'a> {
    array: &'a Array,
    window: Option<(f64, f64)>,
    width: u16,
    height: u16,
}

impl ImageBuffer for Rows<'_> {
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
            Some(window) => windowed(grey, elements, &self.array.data_type, window),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(shape: &[u64], data: Vec<u8>, data_type: DataType, options: &Options) -> Vec<u8> {
        let array = Array { shape: shape.into(), data_type, data: data.into() };
        Jpeg.encode(&array, options).unwrap().concat()
    }

    /// Height, width and components, from the frame header. Source: ITU-T T.81 §B.2.2.
    fn frame(file: &[u8]) -> (u16, u16, u8) {
        let at = file.windows(2).position(|marker| marker == [0xff, 0xc0]).unwrap();
        let number = |n: usize| u16::from_be_bytes([file[at + n], file[at + n + 1]]);
        (number(5), number(7), file[at + 9])
    }

    #[test]
    fn the_first_long_axis_goes_right_and_the_second_down() {
        for shape in [&[3, 20][..], &[1, 3, 1, 20], &[3, 1, 20, 1]] {
            let file = file(shape, vec![9; 60], DataType::UInt8, &Options::default());
            assert_eq!((&file[..2], &file[file.len() - 2..]), (&[0xff, 0xd8][..], &[0xff, 0xd9][..]));
            assert_eq!(frame(&file), (20, 3, 1));
        }
        assert_eq!(frame(&file(&[], vec![9], DataType::UInt8, &Options::default())), (1, 1, 1));
    }

    #[test]
    fn a_lower_quality_is_smaller() {
        let noise: Vec<u8> = (0..64u32 * 64).map(|n| (n.wrapping_mul(2_654_435_761) >> 24).to_le_bytes()[0]).collect();
        let size = |quality| {
            let options = Options { quality, ..Options::default() };
            file(&[64, 64], noise.clone(), DataType::UInt8, &options).len()
        };
        assert!(size(Some(1)) < size(Some(50)) && size(Some(50)) < size(None) && size(None) < size(Some(100)));
        assert_eq!(size(None), size(Some(QUALITY)));
    }

    #[test]
    fn a_window_makes_the_image_that_its_grey_values_make() {
        let options = Options { window: Some((0.0, 1.0)), ..Options::default() };
        let values: Vec<u8> = [0.0f32, 1.0, 2.0, f32::NAN].iter().flat_map(|value| value.to_le_bytes()).collect();
        let windowed = file(&[2, 2], values, DataType::Float32, &options);
        assert_eq!(windowed, file(&[2, 2], vec![0, 255, 255, 0], DataType::UInt8, &Options::default()));
    }

    #[test]
    fn what_is_no_image_is_refused_with_the_way_out() {
        let refusal = |shape: &[u64], data_type| Jpeg.accepts(shape, &data_type, &Options::default()).unwrap_err();
        assert!(refusal(&[65_536, 2], DataType::UInt8).contains("65535"));
        assert!(refusal(&[2, 2, 2], DataType::UInt8).contains("two axes"));
        assert!(refusal(&[2, 0], DataType::UInt8).contains("empty"));
        assert!(refusal(&[2, 2], DataType::UInt16).contains("window=lo,hi"));
        assert_eq!(Jpeg.accepts(&[65_535, 65_535], &DataType::UInt8, &Options::default()), Ok(()));
    }
}
