//! Filters: rows as differences from what is left of them or above them, where that makes them simpler.

/// What a row is written as. Source: PNG specification §9.2; the two filters that are left out, of averages and of
/// Paeth, cost more than they give on data of microscopes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filter {
    /// As it is.
    None,
    /// The difference from the pixel to the left.
    Sub,
    /// The difference from the pixel above.
    Up,
}

/// Rows of pixels below each other, in PNG's byte order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<'a> {
    /// All their bytes.
    pub(super) bytes: &'a [u8],
    /// The row before the first, where there is one.
    pub(super) above: Option<&'a [u8]>,
    /// Bytes of a row.
    pub(super) row_bytes: usize,
    /// Bytes of a pixel.
    pub(super) pixel_bytes: usize,
}

/// Bytes of a piece that stands for those around it when a filter is chosen.
const PIECE_BYTES: usize = 512;

/// Pieces that are looked at.
const PIECES: usize = 4;

impl<'a> Rows<'a> {
    /// Each row and the one above it.
    fn pairs(self) -> impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)> {
        let rows = self.bytes.chunks_exact(self.row_bytes.max(1));
        rows.clone().zip(std::iter::once(self.above).chain(rows.map(Some)))
    }

    /// Appends the rows, each with the filter's number before it. Rows like the one above become zeros, whatever the
    /// filter, unless they are one run as they are.
    pub(super) fn write(self, out: &mut Vec<u8>, filter: Filter) {
        for (row, above) in self.pairs() {
            let is_run = row.split_last().map(|(_, before)| before) == row.get(1..);
            let repeats = above == Some(row) && !is_run;
            match (if repeats { Filter::Up } else { filter }, above) {
                (Filter::None, _) => {
                    out.push(0);
                    out.extend_from_slice(row);
                }
                (Filter::Sub, _) => {
                    let (first, others) = row.split_at_checked(self.pixel_bytes).unwrap_or((row, &[]));
                    out.push(1);
                    out.extend_from_slice(first);
                    out.extend(differences(others, row));
                }
                // Above the first row lie zeros.
                (Filter::Up, None) => {
                    out.push(2);
                    out.extend_from_slice(row);
                }
                (Filter::Up, Some(above)) => {
                    out.push(2);
                    out.extend(differences(row, above));
                }
            }
        }
    }

    /// The filter after which the rows take the fewest bits, as pieces of them let expect, but for those that are like
    /// the one above.
    pub(super) fn best_filter(self) -> Filter {
        let pieces = self.pairs().flat_map(|(row, above)| {
            let piece = |row: &'a [u8], n| row.chunks(PIECE_BYTES).nth(n).unwrap_or_default();
            let numbers = 0..row.len().div_ceil(PIECE_BYTES);
            numbers.map(move |n| (piece(row, n), above.map(|above| piece(above, n))))
        });
        let all = self.bytes.len().div_ceil(self.row_bytes.clamp(1, PIECE_BYTES));
        let mut counts = [[0u32; 256]; 3];
        let [none, sub, up] = &mut counts;
        // An odd distance: not the same columns of every row.
        let some = pieces.filter(|(piece, above)| *above != Some(*piece)).step_by(all.div_ceil(PIECES) | 1);
        for (piece, above) in some {
            count(none, piece.iter().copied());
            let (first, others) = piece.split_at_checked(self.pixel_bytes).unwrap_or((piece, &[]));
            count(sub, first.iter().copied());
            count(sub, differences(others, piece));
            match above {
                Some(above) => count(up, differences(piece, above)),
                None => count(up, piece.iter().copied()),
            }
        }
        let [none, sub, up] = counts.map(|counts| bits(&counts));
        // What is hardly simpler is not worth its pass.
        let as_it_is = none.saturating_sub(none >> 6);
        match () {
            () if sub < as_it_is && sub < up => Filter::Sub,
            () if up < as_it_is => Filter::Up,
            () => Filter::None,
        }
    }
}

fn differences(bytes: &[u8], before: &[u8]) -> impl Iterator<Item = u8> {
    bytes.iter().zip(before).map(|(byte, before)| byte.wrapping_sub(*before))
}

fn count(counts: &mut [u32; 256], bytes: impl Iterator<Item = u8>) {
    for byte in bytes {
        if let Some(count) = counts.get_mut(usize::from(byte)) {
            *count = count.wrapping_add(1);
        }
    }
}

/// Least bits of a text with these counts, whatever the order of its symbols, in 256ths of a bit a symbol.
fn bits(counts: &[u32; 256]) -> u64 {
    let total: u32 = counts.iter().fold(0, |sum, count| sum.wrapping_add(*count));
    let rarity = |count: u32| u64::from(count).saturating_mul(logarithm(total).saturating_sub(logarithm(count)));
    // A symbol that is all there is still takes a bit.
    counts.iter().fold(u64::from(total), |sum, count| sum.saturating_add(rarity(*count)))
}

/// The binary logarithm, 0 for 0, in 256ths; between powers of 2 a straight line.
fn logarithm(number: u32) -> u64 {
    let Some(power) = number.checked_ilog2() else { return 0 };
    let mantissa = number.wrapping_shl(31u32.wrapping_sub(power)) >> 23;
    u64::from(power << 8 | mantissa & 0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDTH: usize = 100;

    fn best(pixel_bytes: usize, pixel: impl Fn(usize, usize) -> u8) -> Filter {
        let bytes: Vec<u8> = (0..60).flat_map(|y| (0..WIDTH).map(move |x| (x, y))).map(|(x, y)| pixel(x, y)).collect();
        Rows { bytes: &bytes, above: None, row_bytes: WIDTH, pixel_bytes }.best_filter()
    }

    fn noise(x: usize, y: usize) -> u8 {
        let number = u32::try_from(y * 1000 + x).unwrap().wrapping_mul(2_654_435_761);
        (number ^ number >> 15).wrapping_mul(2_246_822_519).to_be_bytes()[0]
    }

    fn low(n: usize) -> u8 {
        n.to_le_bytes()[0]
    }

    #[test]
    fn the_filter_is_the_one_that_fits() {
        assert_eq!(best(1, |_, _| 7), Filter::None);
        assert_eq!(best(1, noise), Filter::None);
        assert_eq!(best(1, |x, y| low(x * 3) ^ noise(0, y) & 1), Filter::Sub);
        assert_eq!(best(1, |x, y| noise(x, 0).wrapping_add(noise(x, y) & 3)), Filter::Up);
        // Two bytes a pixel: the one before is the other half of the same.
        assert_eq!(best(2, |x, y| if x % 2 == 0 { low(x / 2) } else { 200u8.wrapping_sub(low(y * x)) }), Filter::Sub);
    }

    #[test]
    fn rows_are_written_as_differences() {
        let rows = Rows { bytes: &[1, 2, 4, 8, 9, 9, 9, 7], above: None, row_bytes: 4, pixel_bytes: 1 };
        let written = |rows: Rows<'_>, filter| {
            let mut out = Vec::new();
            rows.write(&mut out, filter);
            out
        };
        assert_eq!(written(rows, Filter::None), [0, 1, 2, 4, 8, 0, 9, 9, 9, 7]);
        assert_eq!(written(rows, Filter::Sub), [1, 1, 1, 2, 4, 1, 9, 0, 0, 254]);
        assert_eq!(written(rows, Filter::Up), [2, 1, 2, 4, 8, 2, 8, 7, 5, 255]);
        let rows = Rows { above: Some(&[1, 1, 1, 1]), pixel_bytes: 2, ..rows };
        assert_eq!(written(rows, Filter::Sub), [1, 1, 2, 3, 6, 1, 9, 9, 0, 254]);
        assert_eq!(written(rows, Filter::Up)[..5], [2, 0, 1, 3, 7]);
    }

    #[test]
    fn a_row_shorter_than_a_pixel_is_kept() {
        let rows = Rows { bytes: &[5, 6], above: None, row_bytes: 2, pixel_bytes: 2 };
        let mut out = Vec::new();
        rows.write(&mut out, Filter::Sub);
        assert_eq!((out, rows.best_filter()), (vec![1, 5, 6], Filter::None));
    }
}
