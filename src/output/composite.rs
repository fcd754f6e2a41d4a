//! Composites: images that add several channels, each in a colour of its own.

use super::colours::{Colour, Composite};
use super::encoding::element_count;
use super::image::append_windowed;
use n5_format::DataType;

/// Position of the pixels of an image in the elements of an array: distances in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PixelStrides {
    /// Distance from a pixel to the one at its right.
    right: usize,
    /// Distance from a pixel to the one below.
    down: usize,
}

/// Adds colours to the pixels of a row, channel by channel.
#[derive(Debug, Default)]
pub(super) struct RowBlender {
    sums: Vec<u32>,
    grey: Vec<u8>,
    gathered: Vec<u8>,
}

impl RowBlender {
    /// Returns the memory in bytes of a blender of rows of `width` pixels of `element_bytes` each.
    pub(super) fn memory_bytes(width: u64, element_bytes: u64) -> u64 {
        width.saturating_mul(element_bytes.saturating_add(3 * 4 + 1))
    }

    /// Begins a row of `width` pixels, which are black.
    pub(super) fn begin(&mut self, width: usize) {
        self.sums.clear();
        self.sums.resize(width.saturating_mul(3), 0);
    }

    /// Adds a channel. `elements` begins with the row's first element of the channel; the others follow at distances of
    /// `stride` elements.
    pub(super) fn add(
        &mut self,
        elements: &[u8],
        stride: usize,
        data_type: &DataType,
        colour: Colour,
        window: (f64, f64),
    ) {
        let width = self.sums.len() / 3;
        let size = data_type.size_bytes().unwrap_or(1);
        let row = if stride == 1 {
            elements.get(..width.saturating_mul(size)).unwrap_or_default()
        } else {
            self.gathered.clear();
            let picked = elements.chunks_exact(size).step_by(stride.max(1)).take(width);
            self.gathered.extend(picked.flatten());
            &self.gathered
        };
        self.grey.clear();
        append_windowed(&mut self.grey, row, data_type, window);
        self.add_grey(colour);
    }

    /// Adds grey values that are already made, one for each pixel.
    pub(super) fn add_levels(&mut self, levels: &[u8], colour: Colour) {
        self.grey.clear();
        self.grey.extend_from_slice(levels);
        self.add_grey(colour);
    }

    fn add_grey(&mut self, colour: Colour) {
        let [red, green, blue] = colour.map(u32::from);
        for (sums, level) in self.sums.as_chunks_mut::<3>().0.iter_mut().zip(&self.grey) {
            let level = u32::from(*level);
            let [sum_red, sum_green, sum_blue] = sums;
            // At most 8 channels of 255 * 255 each.
            *sum_red = sum_red.saturating_add(level.saturating_mul(red));
            *sum_green = sum_green.saturating_add(level.saturating_mul(green));
            *sum_blue = sum_blue.saturating_add(level.saturating_mul(blue));
        }
    }

    /// Appends the row to `out`: red, green and blue of every pixel. Sums beyond 255 are cut off.
    pub(super) fn finish(&self, out: &mut Vec<u8>) {
        let byte = |sum: &u32| u8::try_from(sum.saturating_add(127) / 255).unwrap_or(u8::MAX);
        out.extend(self.sums.iter().map(byte));
    }
}

impl Composite {
    /// Returns the distances between pixels and between channels in elements. Of the axes longer than 1, the first runs
    /// to the right and the second down; the axis of the channels does not count.
    fn strides(&self, shape: &[u64]) -> (PixelStrides, usize) {
        let stride_of =
            |axis: usize| usize::try_from(element_count(shape.get(..axis).unwrap_or_default())).unwrap_or(usize::MAX);
        let mut long_axes =
            shape.iter().enumerate().filter(|(axis, size)| *axis != self.axis && **size > 1).map(|(axis, _)| axis);
        let right = long_axes.next().map_or(1, stride_of);
        let down = long_axes.next().map_or(0, stride_of);
        (PixelStrides { right, down }, stride_of(self.axis))
    }

    /// Appends one row of the image of `data`, an array of `shape`.
    pub(super) fn append_row(
        &self,
        blender: &mut RowBlender,
        (data, shape, data_type): (&[u8], &[u64], &DataType),
        (row, width): (usize, usize),
        out: &mut Vec<u8>,
    ) {
        let (strides, channel_stride) = self.strides(shape);
        let size = data_type.size_bytes().unwrap_or(1);
        blender.begin(width);
        for channel in &self.channels {
            let index = usize::try_from(channel.index).unwrap_or(usize::MAX);
            let start = index.saturating_mul(channel_stride).saturating_add(row.saturating_mul(strides.down));
            let elements = data.get(start.saturating_mul(size)..).unwrap_or_default();
            blender.add(elements, strides.right, data_type, channel.colour, channel.window);
        }
        blender.finish(out);
    }
}

#[cfg(test)]
mod tests {
    use super::super::colours::CompositeChannel;
    use super::*;

    #[test]
    fn channels_are_added_and_cut_off() {
        let composite = Composite {
            axis: 1,
            channels: vec![
                CompositeChannel { index: 0, colour: [255, 0, 0], window: (0.0, 10.0) },
                CompositeChannel { index: 2, colour: [255, 255, 0], window: (0.0, 100.0) },
            ],
        };
        // Two columns, three channels, two rows.
        let data = [0, 10, 99, 99, 0, 50, 5, 20, 99, 99, 100, 255];
        let shape = [2, 3, 2];
        let mut rows = [Vec::new(), Vec::new()];
        let mut blender = RowBlender::default();
        for (row, out) in rows.iter_mut().enumerate() {
            composite.append_row(&mut blender, (&data, &shape, &DataType::UInt8), (row, 2), out);
        }
        assert_eq!(rows[0], [0, 0, 0, 255, 128, 0]);
        assert_eq!(rows[1], [255, 255, 0, 255, 255, 0]);
        assert_eq!(composite.image_shape(&shape), [2, 1, 2]);
    }

    #[test]
    fn a_channel_axis_may_be_the_first() {
        let channel = |index, colour| CompositeChannel { index, colour, window: (0.0, 255.0) };
        let composite = Composite {
            axis: 0,
            channels: vec![channel(0, [255, 0, 0]), channel(1, [0, 255, 0]), channel(2, [0, 0, 255])],
        };
        let mut out = Vec::new();
        let data = [1, 2, 3, 4, 5, 6];
        composite.append_row(&mut RowBlender::default(), (&data, &[3, 2, 1], &DataType::UInt8), (0, 2), &mut out);
        assert_eq!(out, data);
    }
}
