//! PNG's filters, which write a row as differences from the pixels to the left or above if these compress better.

/// Filter of a row. Source: PNG specification §9.2. The other two filters, Average and Paeth, cost more than they gain
/// on microscopy data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowFilter {
    /// The row is written unchanged.
    None,
    /// The row is written as differences from the pixels to the left.
    Sub,
    /// The row is written as differences from the pixels above.
    Up,
}

/// Consecutive rows of pixels, in PNG's byte order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PixelRows<'a> {
    /// Bytes of all rows.
    pub(crate) bytes: &'a [u8],
    /// Row above the first one, if there is one.
    pub(crate) above: Option<&'a [u8]>,
    /// Bytes per row.
    pub(crate) row_bytes: usize,
    /// Bytes per pixel.
    pub(crate) pixel_bytes: usize,
}

/// Size of a sample in bytes. The choice of the filter is based on samples.
const SAMPLE_BYTES: usize = 512;

/// Maximum number of samples.
const MAX_SAMPLES: usize = 4;

impl<'a> PixelRows<'a> {
    /// Iterates over the rows, each with the row above it.
    fn with_above(self) -> impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> {
        let rows = self.bytes.chunks_exact(self.row_bytes.max(1));
        rows.clone().zip(std::iter::once(self.above).chain(rows.map(Some)))
    }

    /// Appends the rows, each preceded by its filter byte. A row equal to the one above becomes zeros regardless of
    /// `filter`, unless the row itself is a run of one byte.
    pub(crate) fn write_filtered(self, out: &mut Vec<u8>, filter: RowFilter) {
        for (row, above) in self.with_above() {
            let is_run = row.split_last().map(|(_, before)| before) == row.get(1..);
            let is_repeated = above == Some(row) && !is_run;
            match (if is_repeated { RowFilter::Up } else { filter }, above) {
                (RowFilter::None, _) => {
                    out.push(0);
                    out.extend_from_slice(row);
                }
                (RowFilter::Sub, _) => {
                    let (first, others) = row.split_at_checked(self.pixel_bytes).unwrap_or((row, &[]));
                    out.push(1);
                    out.extend_from_slice(first);
                    out.extend(differences(others, row));
                }
                // The row above the first one counts as zeros.
                (RowFilter::Up, None) => {
                    out.push(2);
                    out.extend_from_slice(row);
                }
                (RowFilter::Up, Some(above)) => {
                    out.push(2);
                    out.extend(differences(row, above));
                }
            }
        }
    }

    /// Returns the filter for which the rows probably take the fewest bits, estimated from samples. Samples equal to
    /// the row above are skipped.
    pub(crate) fn best_filter(self) -> RowFilter {
        let samples = self.with_above().flat_map(|(row, above)| {
            let sample_of = |row: &'a [u8], n| row.chunks(SAMPLE_BYTES).nth(n).unwrap_or_default();
            let numbers = 0..row.len().div_ceil(SAMPLE_BYTES);
            numbers.map(move |n| (sample_of(row, n), above.map(|above| sample_of(above, n))))
        });
        let sample_count = self.bytes.len().div_ceil(self.row_bytes.clamp(1, SAMPLE_BYTES));
        let mut counts = [[0u32; 256]; 3];
        let [none, sub, up] = &mut counts;
        // The step is odd, so that samples do not come from the same columns of every row.
        let chosen =
            samples.filter(|(sample, above)| *above != Some(*sample)).step_by(sample_count.div_ceil(MAX_SAMPLES) | 1);
        for (sample, above) in chosen {
            count_bytes(none, sample.iter().copied());
            let (first, others) = sample.split_at_checked(self.pixel_bytes).unwrap_or((sample, &[]));
            count_bytes(sub, first.iter().copied());
            count_bytes(sub, differences(others, sample));
            match above {
                Some(above) => count_bytes(up, differences(sample, above)),
                None => count_bytes(up, sample.iter().copied()),
            }
        }
        let [none, sub, up] = counts.map(|counts| entropy(&counts));
        // A filter that saves less than 1/64 is not worth its pass.
        let unfiltered = none.saturating_sub(none >> 6);
        match () {
            () if sub < unfiltered && sub < up => RowFilter::Sub,
            () if up < unfiltered => RowFilter::Up,
            () => RowFilter::None,
        }
    }
}

fn differences(bytes: &[u8], reference: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().zip(reference).map(|(byte, reference)| byte.wrapping_sub(*reference))
}

fn count_bytes(counts: &mut [u32; 256], bytes: impl Iterator<Item = u8>) {
    for byte in bytes {
        if let Some(count) = counts.get_mut(usize::from(byte)) {
            *count = count.wrapping_add(1);
        }
    }
}

/// Lower bound of the encoded size of bytes with these counts in any order, in 256ths of a bit.
fn entropy(counts: &[u32; 256]) -> u64 {
    let total: u32 = counts.iter().fold(0, |sum, count| sum.wrapping_add(*count));
    let cost = |count: u32| u64::from(count).saturating_mul(log2_fixed(total).saturating_sub(log2_fixed(count)));
    // Each byte costs an additional 1/256 bit, because even equal bytes take some space.
    counts.iter().fold(u64::from(total), |sum, count| sum.saturating_add(cost(*count)))
}

/// Binary logarithm in 256ths, linear between powers of 2; 0 for 0.
fn log2_fixed(number: u32) -> u64 {
    let Some(power) = number.checked_ilog2() else { return 0 };
    let mantissa = number.wrapping_shl(31u32.wrapping_sub(power)) >> 23;
    u64::from(power << 8 | mantissa & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: usize = 100;

    fn best(pixel_bytes: usize, pixel: impl Fn(usize, usize) -> u8) -> RowFilter {
        let bytes: Vec<u8> = (0..60).flat_map(|y| (0..WIDTH).map(move |x| (x, y))).map(|(x, y)| pixel(x, y)).collect();
        PixelRows { bytes: &bytes, above: None, row_bytes: WIDTH, pixel_bytes }.best_filter()
    }

    fn noise(x: usize, y: usize) -> u8 {
        let number = u32::try_from(y * 1000 + x).unwrap().wrapping_mul(2_654_435_761);
        (number ^ number >> 15).wrapping_mul(2_246_822_519).to_be_bytes()[0]
    }

    fn low_byte(n: usize) -> u8 {
        n.to_le_bytes()[0]
    }

    #[test]
    fn the_best_filter_is_chosen() {
        assert_eq!(best(1, |_, _| 7), RowFilter::None);
        assert_eq!(best(1, noise), RowFilter::None);
        assert_eq!(best(1, |x, y| low_byte(x * 3) ^ noise(0, y) & 1), RowFilter::Sub);
        assert_eq!(best(1, |x, y| noise(x, 0).wrapping_add(noise(x, y) & 3)), RowFilter::Up);
        // With two bytes per pixel, the previous byte is the other half of the same pixel.
        assert_eq!(
            best(2, |x, y| if x % 2 == 0 { low_byte(x / 2) } else { 200u8.wrapping_sub(low_byte(y * x)) }),
            RowFilter::Sub
        );
    }

    #[test]
    fn rows_are_written_as_differences() {
        let rows = PixelRows { bytes: &[1, 2, 4, 8, 9, 9, 9, 7], above: None, row_bytes: 4, pixel_bytes: 1 };
        let written = |rows: PixelRows<'_>, filter| {
            let mut out = Vec::new();
            rows.write_filtered(&mut out, filter);
            out
        };
        assert_eq!(written(rows, RowFilter::None), [0, 1, 2, 4, 8, 0, 9, 9, 9, 7]);
        assert_eq!(written(rows, RowFilter::Sub), [1, 1, 1, 2, 4, 1, 9, 0, 0, 254]);
        assert_eq!(written(rows, RowFilter::Up), [2, 1, 2, 4, 8, 2, 8, 7, 5, 255]);
        let rows = PixelRows { above: Some(&[1, 1, 1, 1]), pixel_bytes: 2, ..rows };
        assert_eq!(written(rows, RowFilter::Sub), [1, 1, 2, 3, 6, 1, 9, 9, 0, 254]);
        assert_eq!(written(rows, RowFilter::Up)[..5], [2, 0, 1, 3, 7]);
    }

    #[test]
    fn a_row_shorter_than_a_pixel_is_kept() {
        let rows = PixelRows { bytes: &[5, 6], above: None, row_bytes: 2, pixel_bytes: 2 };
        let mut out = Vec::new();
        rows.write_filtered(&mut out, RowFilter::Sub);
        assert_eq!((out, rows.best_filter()), (vec![1, 5, 6], RowFilter::None));
    }
}
