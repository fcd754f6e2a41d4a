//! Thumbnails: a plane of a volume, reduced to a few hundred pixels.

use std::ops::Range;

use bytes::Bytes;

use super::colours::{Colour, label_colour};
use super::composite::RowBlender;
use super::encoding::{EncodeError, element_count};
use super::image::append_windowed;
use super::{jpeg, png};
use n5_format::{Array, Coords, DataType, Statistics, StatisticsAccumulator};

/// Format of a thumbnail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThumbnailFormat {
    /// PNG.
    Png,
    /// JPEG.
    Jpeg,
}

/// Meaning of the elements of a plane.
#[derive(Debug, Clone, PartialEq)]
pub enum ThumbnailContent {
    /// Labels, each shown in a colour of its own.
    Labels,
    /// Intensities, shown in grey.
    Grey,
    /// Channels along an axis, added. Each is given by its index along the axis and its colour.
    Channels(usize, Vec<(u64, Colour)>),
}

/// Description of a thumbnail: how the elements of a plane become pixels.
#[derive(Debug, Clone, PartialEq)]
pub struct Thumbnail {
    /// Shape of the elements, in N5 axis order.
    pub shape: Coords,
    /// Type of the elements.
    pub data_type: DataType,
    /// Axes that run to the right and down. All other axes except the channels' have one element.
    pub axes: (Option<usize>, Option<usize>),
    /// Width and height in pixels.
    pub size: (u32, u32),
    /// Meaning of the elements.
    pub content: ThumbnailContent,
    /// Values that are black and white; `None` for a window from percentiles of the elements of each channel.
    pub window: Option<(f64, f64)>,
    /// Format of the image.
    pub format: ThumbnailFormat,
}

/// Maximum number of elements from which the percentiles of a channel are computed.
const MAX_COUNTED_ELEMENTS: usize = 1 << 16;

/// Upper bound of the memory for counting elements, in bytes.
const COUNTING_BYTES: u64 = 8 << 16;

impl ThumbnailFormat {
    /// Both formats. The first is the default.
    pub const ALL: [Self; 2] = [Self::Png, Self::Jpeg];

    /// Returns the value of the parameter `format`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Png => "png",
            Self::Jpeg => "jpeg",
        }
    }

    /// Returns the media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
        }
    }
}

impl Thumbnail {
    /// Returns an upper bound of the memory that [`Self::encode`] takes, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let (width, height) = (u64::from(self.size.0), u64::from(self.size.1));
        let pixels = width.saturating_mul(height);
        // JPEG takes at most 288 bytes for 64 pixels of a component, and PNG less. Sides are rounded up to whole blocks.
        let file_bytes = (width.saturating_add(8)).saturating_mul(height.saturating_add(8)).saturating_mul(3 * 5);
        let row_elements = self.extent(self.axes.0);
        let row_bytes = (row_elements.saturating_add(width)).saturating_mul(32);
        pixels.saturating_mul(3).saturating_add(file_bytes).saturating_add(row_bytes).saturating_add(COUNTING_BYTES)
    }

    /// Returns the size along an axis; 1 without an axis.
    fn extent(&self, axis: Option<usize>) -> u64 {
        axis.and_then(|axis| self.shape.get(axis).copied()).unwrap_or(1)
    }

    /// Returns the distance in elements between neighbours along an axis.
    fn stride(&self, axis: Option<usize>) -> usize {
        let elements = axis.map_or(0, |axis| element_count(self.shape.get(..axis).unwrap_or_default()));
        usize::try_from(elements).unwrap_or(usize::MAX)
    }

    /// Draws and encodes the thumbnail from the elements: little-endian, first axis fastest.
    ///
    /// # Errors
    /// Returns [`EncodeError`] if `data` does not have the length of the elements, or if the encoder fails.
    pub fn encode(&self, data: &[u8]) -> Result<Bytes, EncodeError> {
        let width = self.data_type.size_bytes().unwrap_or(1) as u64;
        let expected = element_count(&self.shape).saturating_mul(width);
        if data.len() as u64 != expected {
            return Err(EncodeError::Length { expected, found: data.len() });
        }
        let pixels = match &self.content {
            ThumbnailContent::Labels => self.labels(data),
            ThumbnailContent::Grey => self.grey(data),
            ThumbnailContent::Channels(axis, channels) => self.channels(data, *axis, channels),
        };
        let is_rgb = self.content != ThumbnailContent::Grey;
        match self.format {
            ThumbnailFormat::Png => png::encode_pixels(self.size, is_rgb, &pixels),
            ThumbnailFormat::Jpeg => jpeg::encode_pixels(self.size, is_rgb, &pixels),
        }
    }

    fn pixel_buffer(&self, pixel_bytes: usize) -> Vec<u8> {
        let pixels = (self.size.0 as usize).saturating_mul(self.size.1 as usize);
        Vec::with_capacity(pixels.saturating_mul(pixel_bytes))
    }

    fn labels(&self, data: &[u8]) -> Vec<u8> {
        let mut out = self.pixel_buffer(3);
        let (right, down) = (self.stride(self.axes.0), self.stride(self.axes.1));
        let columns: Vec<usize> = centres(self.extent(self.axes.0), self.size.0).collect();
        for row in centres(self.extent(self.axes.1), self.size.1) {
            for column in &columns {
                let element = column.saturating_mul(right).saturating_add(row.saturating_mul(down));
                out.extend(label_colour(label_at(data, &self.data_type, element)));
            }
        }
        out
    }

    fn grey(&self, data: &[u8]) -> Vec<u8> {
        let mut out = self.pixel_buffer(1);
        let mut reducer = Reducer::new(self, data, self.window.unwrap_or_else(|| self.auto_window(data, None)));
        for row in 0..self.size.1 {
            out.extend_from_slice(reducer.row(row, 0));
        }
        out
    }

    fn channels(&self, data: &[u8], axis: usize, channels: &[(u64, Colour)]) -> Vec<u8> {
        let mut out = self.pixel_buffer(3);
        let stride = self.stride(Some(axis));
        let mut layers: Vec<(Reducer<'_>, usize, Colour)> = Vec::new();
        for (index, colour) in channels {
            let window = self.window.unwrap_or_else(|| self.auto_window(data, Some((axis, *index))));
            let offset = usize::try_from(*index).unwrap_or(usize::MAX).saturating_mul(stride);
            layers.push((Reducer::new(self, data, window), offset, *colour));
        }
        let mut blender = RowBlender::default();
        for row in 0..self.size.1 {
            blender.begin(self.size.0 as usize);
            for (reducer, offset, colour) in &mut layers {
                blender.add_levels(reducer.row(row, *offset), *colour);
            }
            blender.finish(&mut out);
        }
        out
    }

    /// Returns the window from percentiles of all elements, or of those with one index along an axis.
    fn auto_window(&self, data: &[u8], part: Option<(usize, u64)>) -> (f64, f64) {
        let mut clip = self.shape.clone();
        let mut offset = 0usize;
        if let Some((axis, index)) = part {
            let width = self.data_type.size_bytes().unwrap_or(1);
            let index = usize::try_from(index).unwrap_or(usize::MAX);
            offset = index.saturating_mul(self.stride(Some(axis))).saturating_mul(width);
            if let Some(size) = clip.get_mut(axis) {
                *size = 1;
            }
        }
        let elements = element_count(&clip);
        let Some(mut accumulator) = StatisticsAccumulator::new(&self.data_type, elements, MAX_COUNTED_ELEMENTS) else {
            return (0.0, 1.0);
        };
        accumulator.push_block(data.get(offset..).unwrap_or_default(), &self.shape, &clip);
        accumulator.finish(1, &Statistics::WINDOW_PERCENTAGES).auto_window()
    }
}

/// Returns the indices of the samples in the middle of each pixel along an axis.
fn centres(samples: u64, pixels: u32) -> impl Iterator<Item = usize> {
    let pixels = u64::from(pixels).max(1);
    (0..pixels).map(move |pixel| {
        let twice = pixel.saturating_mul(2).saturating_add(1).saturating_mul(samples);
        let index = twice.checked_div(pixels.saturating_mul(2)).unwrap_or(0);
        usize::try_from(index.min(samples.saturating_sub(1))).unwrap_or(0)
    })
}

/// Returns the samples that one pixel covers along an axis; at least one.
fn covered(samples: u64, pixels: u32, pixel: u32) -> Range<usize> {
    let pixels = u64::from(pixels).max(1);
    let edge = |pixel: u64| pixel.saturating_mul(samples).checked_div(pixels).unwrap_or(0);
    let start = edge(pixel.into()).min(samples.saturating_sub(1));
    let end = edge(u64::from(pixel).saturating_add(1)).max(start.saturating_add(1)).min(samples.max(1));
    usize::try_from(start).unwrap_or(0)..usize::try_from(end).unwrap_or(0)
}

/// Returns a label: the element at an index, sign-extended to 32 bits if it is narrower.
fn label_at(data: &[u8], data_type: &DataType, index: usize) -> u64 {
    let width = data_type.size_bytes().unwrap_or(1);
    let start = index.saturating_mul(width);
    let bytes = data.get(start..start.saturating_add(width)).unwrap_or_default();
    let number = bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    if *data_type == DataType::Int8 && number > 0x7f {
        number | 0xffff_ff00
    } else if *data_type == DataType::Int16 && number > 0x7fff {
        number | 0xffff_0000
    } else {
        number
    }
}

/// Reduces the rows of a channel: every pixel is the mean of the grey values that it covers.
struct Reducer<'a> {
    thumbnail: &'a Thumbnail,
    data: &'a [u8],
    window: (f64, f64),
    columns: Vec<Range<usize>>,
    gathered: Vec<u8>,
    grey: Vec<u8>,
    sums: Vec<u32>,
    levels: Vec<u8>,
}

impl<'a> Reducer<'a> {
    fn new(thumbnail: &'a Thumbnail, data: &'a [u8], window: (f64, f64)) -> Self {
        let width = thumbnail.size.0;
        let columns = (0..width).map(|pixel| covered(thumbnail.extent(thumbnail.axes.0), width, pixel)).collect();
        let empty = || Vec::with_capacity(width as usize);
        Self { thumbnail, data, window, columns, gathered: empty(), grey: empty(), sums: Vec::new(), levels: empty() }
    }

    /// Returns the pixels of a row. The channel begins `offset` elements after the start of the data.
    fn row(&mut self, row: u32, offset: usize) -> &[u8] {
        let Thumbnail { data_type, axes, size, .. } = self.thumbnail;
        let element_bytes = data_type.size_bytes().unwrap_or(1);
        let (right, down) = (self.thumbnail.stride(axes.0).max(1), self.thumbnail.stride(axes.1));
        let samples = usize::try_from(self.thumbnail.extent(axes.0)).unwrap_or(usize::MAX);
        self.sums.clear();
        self.sums.resize(self.columns.len(), 0);
        let rows = covered(self.thumbnail.extent(axes.1), size.1, row);
        let row_count = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        for source_row in rows {
            let start = source_row.saturating_mul(down).saturating_add(offset).saturating_mul(element_bytes);
            let elements = self.data.get(start..).unwrap_or_default();
            self.grey.clear();
            if right == 1 {
                let elements = elements.get(..samples.saturating_mul(element_bytes)).unwrap_or_default();
                append_windowed(&mut self.grey, elements, data_type, self.window);
            } else {
                self.gathered.clear();
                self.gathered.extend(elements.chunks_exact(element_bytes).step_by(right).take(samples).flatten());
                append_windowed(&mut self.grey, &self.gathered, data_type, self.window);
            }
            for (sum, columns) in self.sums.iter_mut().zip(&self.columns) {
                let covered = self.grey.get(columns.clone()).unwrap_or_default();
                *sum = covered.iter().fold(*sum, |sum, level| sum.saturating_add((*level).into()));
            }
        }
        self.levels.clear();
        for (sum, columns) in self.sums.iter().zip(&self.columns) {
            let count = u32::try_from(columns.len()).unwrap_or(u32::MAX).saturating_mul(row_count).max(1);
            let mean = sum.saturating_add(count / 2).checked_div(count).unwrap_or(0);
            self.levels.push(u8::try_from(mean).unwrap_or(u8::MAX));
        }
        &self.levels
    }
}

/// Returns the elements of a plane whose blocks are all missing, as a thumbnail needs them.
pub fn empty_plane(thumbnail: &Thumbnail) -> Array {
    let width = thumbnail.data_type.size_bytes().unwrap_or(1) as u64;
    let bytes = usize::try_from(element_count(&thumbnail.shape).saturating_mul(width)).unwrap_or(0);
    Array { shape: thumbnail.shape.clone(), data_type: thumbnail.data_type.clone(), data: vec![0; bytes].into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thumbnail(shape: &[u64], size: (u32, u32), content: ThumbnailContent) -> Thumbnail {
        Thumbnail {
            shape: shape.into(),
            data_type: DataType::UInt8,
            axes: (Some(0), Some(1)),
            size,
            content,
            window: Some((0.0, 255.0)),
            format: ThumbnailFormat::Png,
        }
    }

    /// Decodes a PNG. Returns width, height, number of components and the pixels.
    fn decoded(file: &[u8]) -> (u32, u32, usize, Vec<u8>) {
        let mut reader = ::png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        (info.width, info.height, info.color_type.samples(), pixels)
    }

    #[test]
    fn a_pixel_is_the_mean_of_what_it_covers() {
        let grey = thumbnail(&[4, 2], (2, 1), ThumbnailContent::Grey);
        let file = grey.encode(&[0, 10, 100, 100, 20, 30, 200, 200]).unwrap();
        assert_eq!(decoded(&file), (2, 1, 1, vec![15, 150]));
        let larger = Thumbnail { size: (4, 2), ..thumbnail(&[2, 1], (4, 2), ThumbnailContent::Grey) };
        assert_eq!(decoded(&larger.encode(&[7, 9]).unwrap()).3, [7, 7, 9, 9, 7, 7, 9, 9]);
    }

    #[test]
    fn axes_may_run_in_any_direction() {
        let turned = Thumbnail { axes: (Some(1), Some(0)), ..thumbnail(&[2, 3], (3, 2), ThumbnailContent::Grey) };
        assert_eq!(decoded(&turned.encode(&[1, 2, 3, 4, 5, 6]).unwrap()).3, [1, 3, 5, 2, 4, 6]);
        let line = Thumbnail { axes: (Some(0), None), ..thumbnail(&[3], (3, 1), ThumbnailContent::Grey) };
        assert_eq!(decoded(&line.encode(&[1, 2, 3]).unwrap()).3, [1, 2, 3]);
    }

    #[test]
    fn labels_are_never_mixed() {
        let labels = thumbnail(&[3, 1], (3, 1), ThumbnailContent::Labels);
        let expected = [0, 1, 2].map(label_colour).concat();
        assert_eq!(decoded(&labels.encode(&[0, 1, 2]).unwrap()), (3, 1, 3, expected));
        let reduced = Thumbnail { size: (1, 1), ..labels };
        assert_eq!(decoded(&reduced.encode(&[0, 1, 2]).unwrap()).3, label_colour(1));
    }

    #[test]
    fn every_channel_has_its_own_automatic_window() {
        let content = ThumbnailContent::Channels(2, vec![(0, [255, 0, 0]), (1, [0, 255, 0])]);
        let channels = Thumbnail { window: None, ..thumbnail(&[2, 1, 2], (2, 1), content) };
        // The second channel is darker, but its largest value is shown as brightly.
        assert_eq!(decoded(&channels.encode(&[0, 200, 0, 10]).unwrap()).3, [0, 0, 0, 255, 255, 0]);
    }

    #[test]
    fn jpeg_has_the_same_size_and_memory_is_bounded() {
        for format in ThumbnailFormat::ALL {
            let content = ThumbnailContent::Channels(2, vec![(0, [255, 0, 0]), (1, [0, 255, 0])]);
            let data: Vec<u8> =
                (0..200 * 100 * 2u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24).to_le_bytes()[0]).collect();
            let noise = Thumbnail { format, ..thumbnail(&[200, 100, 2], (200, 100), content) };
            let file = noise.encode(&data).unwrap();
            assert!((file.len() as u64) < noise.memory_bytes());
            assert_eq!(file[..2], if format == ThumbnailFormat::Png { [0x89, b'P'] } else { [0xff, 0xd8] });
        }
        let short = thumbnail(&[4, 2], (2, 1), ThumbnailContent::Grey).encode(&[0; 7]);
        assert_eq!(short, Err(EncodeError::Length { expected: 8, found: 7 }));
    }
}
