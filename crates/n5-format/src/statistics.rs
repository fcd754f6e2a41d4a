//! Statistics of the elements of a dataset: extremes, mean, percentiles and a histogram.
//!
//! Elements are kept as integer keys, which sort in the same order as the elements. Keys of up to 16 bits are counted
//! by value. Longer keys are listed, and sorted at the end. No element is rounded, not even integers above 2^53.

use std::num::FpCategory;

use crate::strided::{StridedLoop, StridedLoops, for_each_offset};
use crate::{Coords, DataType};

/// Maximum number of distinct values that are reported.
const MAX_DISTINCT: u64 = 1 << 16;

/// Collects elements and computes their statistics.
#[derive(Debug)]
pub struct StatisticsAccumulator {
    key_encoding: KeyEncoding,
    /// Number of occurrences of each 16-bit key if elements are counted by value. Otherwise, the keys of all elements
    /// that are kept.
    tally: Vec<u64>,
    /// Sampling interval: every `step`-th element is kept. Always 1 for types that are counted by value.
    step: usize,
    /// Number of elements to skip before the next one that is kept.
    skip: usize,
    elements: u64,
    nan: u64,
    infinite: u64,
}

/// Statistics of elements. The optional values are `None` if there is no finite element.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Statistics {
    /// Number of elements examined.
    pub elements: u64,
    /// Number of examined elements that are NaN.
    pub nan: u64,
    /// Number of examined elements that are infinite.
    pub infinite: u64,
    /// Number of elements that are 0.
    pub zeros: u64,
    /// Smallest finite element.
    pub min: Option<ElementValue>,
    /// Largest finite element.
    pub max: Option<ElementValue>,
    /// Mean of the finite elements; also `None` if their sum exceeds the range of `f64`.
    pub mean: Option<f64>,
    /// Percentiles of the finite elements, one for each requested percentage: the smallest element that is greater than
    /// or equal to at least this percentage of the elements.
    pub percentiles: Option<Vec<ElementValue>>,
    /// Number of finite elements per bin: `bins` intervals of equal width from `min` to `max`. The last includes `max`.
    pub histogram: Option<Vec<u64>>,
    /// Number of distinct finite elements, at most 2^16.
    pub distinct: u64,
    /// True if there are more than 2^16 distinct finite elements.
    pub distinct_capped: bool,
}

impl StatisticsAccumulator {
    /// Returns the memory in bytes that `elements` elements need, or `None` for a type that is not decoded.
    pub fn memory_bytes(data_type: &DataType, elements: u64) -> Option<u64> {
        Some(if KeyEncoding::for_type(data_type)?.counts_by_value() { 8 << 16 } else { elements.saturating_mul(8) })
    }

    /// Returns true if elements of this type are counted by value, so that memory does not depend on their number.
    pub fn counts_by_value(data_type: &DataType) -> bool {
        KeyEncoding::for_type(data_type).is_some_and(KeyEncoding::counts_by_value)
    }

    /// Creates an accumulator for about `elements` elements. Types that are not counted by value keep at most `limit`
    /// of them, evenly spaced. Returns `None` for a type that is not decoded.
    pub fn new(data_type: &DataType, elements: u64, limit: usize) -> Option<Self> {
        let key_encoding = KeyEncoding::for_type(data_type)?;
        let elements = usize::try_from(elements).unwrap_or(usize::MAX);
        let (tally, step) = if key_encoding.counts_by_value() {
            (vec![0; 1 << 16], 1)
        } else {
            (Vec::with_capacity(elements.min(limit)), elements.div_ceil(limit.max(1)).max(1))
        };
        Some(Self { key_encoding, tally, step, skip: 0, elements: 0, nan: 0, infinite: 0 })
    }

    /// Returns true if every element is examined.
    pub fn is_exhaustive(&self) -> bool {
        self.step == 1
    }

    /// Adds the elements of a block that lie within `clip`, a box at the block's origin. Returns the number of elements
    /// within `clip`, including those that sampling skips.
    ///
    /// `size` and `clip` are in elements, N5 axis order. `data` holds the block's elements, little-endian, first axis
    /// fastest.
    pub fn push_block(&mut self, data: &[u8], size: &Coords, clip: &Coords) -> u64 {
        let width = self.key_encoding.width();
        let clipped: Vec<usize> =
            size.iter().zip(clip).map(|(size, clip)| usize::try_from(*size.min(clip)).unwrap_or(usize::MAX)).collect();
        if clipped.contains(&0) {
            return 0;
        }
        let sizes: Vec<usize> = size.iter().map(|size| usize::try_from(*size).unwrap_or(usize::MAX)).collect();
        // Leading axes that are not clipped form longer contiguous runs.
        let whole_axes = clipped.iter().zip(&sizes).take_while(|(inside, size)| inside == size).count();
        let run_axes = (whole_axes + 1).min(sizes.len());
        let product = |list: &[usize]| list.iter().copied().fold(1_usize, usize::saturating_mul);
        let (run, outer) = clipped.split_at_checked(run_axes).unwrap_or_default();
        let (run_sizes, outer_sizes) = sizes.split_at_checked(run_axes).unwrap_or_default();
        let run_bytes = product(run).saturating_mul(width);
        let mut from_stride = product(run_sizes).saturating_mul(width);
        let mut loops = StridedLoops::new();
        for (count, size) in outer.iter().zip(outer_sizes) {
            loops.push(StridedLoop { count: *count, from_stride, to_stride: 0 });
            from_stride = from_stride.saturating_mul(*size);
        }
        for_each_offset(&loops, (0, 0), |_, offset| {
            self.push(data.get(offset..offset.saturating_add(run_bytes)).unwrap_or_default());
        });
        clipped.iter().fold(1_u64, |elements, size| elements.saturating_mul(*size as u64))
    }

    /// Adds little-endian elements.
    fn push(&mut self, data: &[u8]) {
        let key_encoding = self.key_encoding;
        let width = key_encoding.width();
        let elements = data.len() / width;
        if key_encoding.counts_by_value() {
            let mut count = |key: u16| {
                if let Some(count) = self.tally.get_mut(usize::from(key)) {
                    *count += 1;
                }
            };
            match key_encoding {
                KeyEncoding::Unsigned(1) => data.iter().for_each(|byte| count(u16::from(*byte))),
                KeyEncoding::Signed(1) => data.iter().for_each(|byte| count(u16::from(*byte ^ 0x80))),
                KeyEncoding::Unsigned(_) => u16_elements(data).for_each(count),
                KeyEncoding::Signed(_) | KeyEncoding::Float32 | KeyEncoding::Float64 => {
                    u16_elements(data).for_each(|key| count(key ^ 0x8000));
                }
            }
            self.elements += elements as u64;
        } else if self.skip >= elements {
            self.skip -= elements;
        } else {
            let sampled = (elements - self.skip).div_ceil(self.step);
            let items = data.chunks_exact(width).skip(self.skip).step_by(self.step);
            self.skip = self.skip + sampled * self.step - elements;
            self.elements += sampled as u64;
            for item in items {
                match key_encoding.encode(item) {
                    Ok(key) => self.tally.push(key),
                    Err(FpCategory::Infinite) => self.infinite += 1,
                    Err(_) => self.nan += 1,
                }
            }
        }
    }

    /// Computes the statistics. `percentages` lie between 0 and 100.
    pub fn finish(self, bins: usize, percentages: &[f64]) -> Statistics {
        let Self { key_encoding, mut tally, elements, nan, infinite, .. } = self;
        let mut summary = Statistics { elements, nan, infinite, ..Statistics::default() };
        if key_encoding.counts_by_value() {
            let present = |count: &u64| *count > 0;
            let ends = tally.iter().position(present).zip(tally.iter().rposition(present));
            let ends = ends.map(|(low, high)| (low as u64, high as u64));
            let runs = (0_u64..).zip(tally).filter(|(_, count)| present(count));
            summary.fill(key_encoding, ends, runs, bins, percentages);
        } else {
            tally.sort_unstable();
            let ends = tally.first().copied().zip(tally.last().copied());
            let runs = tally.chunk_by(|a, b| a == b).filter_map(|run| Some((*run.first()?, run.len() as u64)));
            summary.fill(key_encoding, ends, runs, bins, percentages);
        }
        summary
    }
}

impl Statistics {
    /// Percentages for which percentiles must be computed before [`Self::auto_window`] is called.
    pub const WINDOW_PERCENTAGES: [f64; 2] = [1.0, 99.9];

    /// Returns the values that a picture shows as black and as white: the 1st and the 99.9th percentile. A few extreme
    /// elements, such as hot pixels, then do not determine the contrast.
    ///
    /// If both are equal, the window is from the smallest to the largest finite element. If these are equal, too, it
    /// lies between 0 and this value; without a finite element, or if all are 0, it is from 0 to 1. The statistics must
    /// have the percentiles for [`Self::WINDOW_PERCENTAGES`].
    pub fn auto_window(&self) -> (f64, f64) {
        let percentiles = self.percentiles.as_deref().unwrap_or_default();
        let ends = [(percentiles.first(), percentiles.last()), (self.min.as_ref(), self.max.as_ref())];
        let ends = ends.map(|(low, high)| low.zip(high).map(|(low, high)| (low.as_f64(), high.as_f64())));
        if let Some(window) = ends.into_iter().flatten().find(|(low, high)| high - low > 0.0) {
            return window;
        }
        match ends.into_iter().flatten().next() {
            Some((value, _)) if value > 0.0 => (0.0, value),
            Some((value, _)) if value < 0.0 => (value, 0.0),
            _ => (0.0, 1.0),
        }
    }

    /// Returns the statistics of `elements` elements that are zero because their blocks are missing. These elements do
    /// not count as examined.
    pub fn of_zeros(data_type: &DataType, elements: u64, bins: usize, percentages: &[f64]) -> Option<Self> {
        let mut accumulator = StatisticsAccumulator::new(data_type, 1, 1)?;
        accumulator.push(&vec![0; accumulator.key_encoding.width()]);
        let mut summary = accumulator.finish(bins, percentages);
        summary.elements = 0;
        summary.zeros = elements;
        summary.histogram = summary.histogram.map(|bins| bins.iter().map(|count| count * elements).collect());
        Some(summary)
    }

    /// Fills in the statistics in one pass over `runs`, which yields the keys in ascending order, each with its number
    /// of occurrences.
    #[expect(clippy::cast_precision_loss, reason = "counts are below 2^53, and the mean is rounded")]
    fn fill(
        &mut self,
        key_encoding: KeyEncoding,
        ends: Option<(u64, u64)>,
        runs: impl Iterator<Item = (u64, u64)>,
        bins: usize,
        percentages: &[f64],
    ) {
        let Some((low, high)) = ends else { return };
        let min = key_encoding.decode(low);
        let max = key_encoding.decode(high);
        let total = self.elements - self.nan - self.infinite;
        let ranks = percentages.iter().map(|percentage| percentile_rank(*percentage, total));
        let mut ranks: Vec<(u64, usize)> = ranks.zip(0..).collect();
        ranks.sort_unstable();
        let mut ranks = ranks.into_iter().peekable();
        let mut percentiles = vec![min; percentages.len()];
        let mut histogram = vec![0_u64; bins];
        let mut cumulative_count = 0_u64;
        let mut sum = ElementSum::default();
        for (key, count) in runs {
            let number = key_encoding.decode(key);
            self.distinct += 1;
            if number.as_f64() == 0.0 {
                self.zeros += count;
            }
            sum.add(number, count);
            cumulative_count += count;
            while let Some((_, index)) = ranks.next_if(|(rank, _)| *rank <= cumulative_count) {
                if let Some(percentile) = percentiles.get_mut(index) {
                    *percentile = number;
                }
            }
            if let Some(bin) = histogram.get_mut(histogram_bin(number, min, max, bins)) {
                *bin += count;
            }
        }
        self.distinct_capped = self.distinct > MAX_DISTINCT;
        self.distinct = self.distinct.min(MAX_DISTINCT);
        let mean = sum.total() / total as f64;
        self.min = Some(min);
        self.max = Some(max);
        self.mean = mean.is_finite().then_some(mean);
        self.percentiles = Some(percentiles);
        self.histogram = Some(histogram);
    }
}

/// Sum of elements: exact for integers, compensated for floating-point numbers. The unused part of the sum is 0.
#[derive(Default)]
struct ElementSum {
    integers: i128,
    floats: f64,
    compensation: f64,
}

#[expect(clippy::cast_precision_loss, reason = "counts are below 2^53, and the total is rounded")]
impl ElementSum {
    fn add(&mut self, number: ElementValue, count: u64) {
        match number {
            ElementValue::Unsigned(number) => self.integers += i128::from(number) * i128::from(count),
            ElementValue::Signed(number) => self.integers += i128::from(number) * i128::from(count),
            ElementValue::Float(number) => {
                // Neumaier's variant of compensated summation.
                let sum = self.floats;
                let term = number * count as f64;
                let next = sum + term;
                self.compensation += if sum.abs() >= term.abs() { (sum - next) + term } else { (term - next) + sum };
                self.floats = next;
            }
        }
    }

    fn total(&self) -> f64 {
        self.integers as f64 + (self.floats + self.compensation)
    }
}

/// Returns the rank of the element at a percentile, counted from 1, as in NumPy's method `inverted_cdf`.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts are below 2^53"
)]
fn percentile_rank(percentage: f64, total: u64) -> u64 {
    (((percentage / 100.0) * total as f64).ceil() as u64).clamp(1, total.max(1))
}

/// Returns the index of the bin that a number falls in.
fn histogram_bin(number: ElementValue, min: ElementValue, max: ElementValue, bins: usize) -> usize {
    let last = bins.saturating_sub(1);
    let bin_of = |distance: u128, range: u128| {
        let product = distance.saturating_mul(bins as u128);
        product.checked_div(range).map_or(0, |bin| usize::try_from(bin).unwrap_or(last))
    };
    let bin = match (number, min, max) {
        (ElementValue::Unsigned(number), ElementValue::Unsigned(min), ElementValue::Unsigned(max)) => {
            bin_of(u128::from(number.saturating_sub(min)), u128::from(max.saturating_sub(min)))
        }
        (ElementValue::Signed(number), ElementValue::Signed(min), ElementValue::Signed(max)) => {
            bin_of(u128::from(number.abs_diff(min)), u128::from(max.abs_diff(min)))
        }
        (number, min, max) => {
            // The values are halved, because `max - min` of `f64` values may exceed the range of `f64`.
            let [number, min, max] = [number, min, max].map(|value| value.as_f64() / 2.0);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "the result is clamped to the last bin; NaN from 0 / 0 becomes 0"
            )]
            let bin = ((number - min) / (max - min) * bins as f64) as usize;
            bin
        }
    };
    bin.min(last)
}

fn u16_elements(data: &[u8]) -> impl Iterator<Item = u16> {
    data.as_chunks::<2>().0.iter().map(|pair| u16::from_le_bytes(*pair))
}

/// Value of an element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ElementValue {
    /// Value of an unsigned type.
    Unsigned(u64),
    /// Value of a signed type.
    Signed(i64),
    /// Finite value of a floating-point type.
    Float(f64),
}

impl ElementValue {
    /// Returns the nearest `f64`.
    #[expect(clippy::cast_precision_loss, reason = "rounding to the nearest value is intended")]
    pub fn as_f64(self) -> f64 {
        match self {
            Self::Unsigned(number) => number as f64,
            Self::Signed(number) => number as f64,
            Self::Float(number) => number,
        }
    }
}

/// Encoding of the elements of a type as sort keys.
#[derive(Debug, Clone, Copy)]
enum KeyEncoding {
    /// Unsigned integers of this many bytes.
    Unsigned(usize),
    /// Signed integers of this many bytes.
    Signed(usize),
    Float32,
    Float64,
}

impl KeyEncoding {
    /// Returns the encoding for a data type, or `None` for a type that is not decoded.
    fn for_type(data_type: &DataType) -> Option<Self> {
        let width = data_type.size_bytes()?;
        Some(match data_type {
            DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => Self::Unsigned(width),
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => Self::Signed(width),
            DataType::Float32 => Self::Float32,
            DataType::Float64 => Self::Float64,
            DataType::Other(_) => return None,
        })
    }

    /// Returns the size of an element in bytes.
    fn width(self) -> usize {
        match self {
            Self::Unsigned(width) | Self::Signed(width) => width,
            Self::Float32 => 4,
            Self::Float64 => 8,
        }
    }

    /// Returns true if the type has at most 2^16 distinct values, so that they are counted by value.
    fn counts_by_value(self) -> bool {
        self.width() <= 2
    }

    /// Returns the key of a little-endian element of more than 16 bits.
    ///
    /// # Errors
    /// Returns [`FpCategory::Nan`] and [`FpCategory::Infinite`] for elements that are not finite.
    fn encode(self, item: &[u8]) -> Result<u64, FpCategory> {
        let mut wide = [0; 8];
        wide.iter_mut().zip(item).for_each(|(to, from)| *to = *from);
        let bits = u64::from_le_bytes(wide);
        match self {
            Self::Unsigned(_) => Ok(bits),
            Self::Signed(width) => Ok(bits ^ Self::sign_bit(width)),
            Self::Float32 | Self::Float64 => {
                let width = self.width();
                let exponent = if width == 4 { 0x7f80_0000 } else { 0x7ff0_0000_0000_0000 };
                if bits & exponent == exponent {
                    let fraction = if width == 4 { 0x007f_ffff } else { 0x000f_ffff_ffff_ffff };
                    return Err(if bits & fraction == 0 { FpCategory::Infinite } else { FpCategory::Nan });
                }
                // Negative zero has the same key as zero.
                let bits = if bits == Self::sign_bit(width) { 0 } else { bits };
                // All bits of negative numbers are inverted, so that the smallest number has the smallest key.
                let width_mask = u64::MAX >> (64 - 8 * width);
                Ok(if bits & Self::sign_bit(width) == 0 { bits | Self::sign_bit(width) } else { !bits & width_mask })
            }
        }
    }

    /// Returns the element of a key.
    fn decode(self, key: u64) -> ElementValue {
        match self {
            Self::Unsigned(_) => ElementValue::Unsigned(key),
            // The key is the distance from the smallest value of the type.
            Self::Signed(width) => {
                let min = -(1_i128 << (8 * width - 1));
                ElementValue::Signed(i64::try_from(i128::from(key) + min).unwrap_or(i64::MAX))
            }
            Self::Float32 | Self::Float64 => {
                let width = self.width();
                let width_mask = u64::MAX >> (64 - 8 * width);
                let bits =
                    if key & Self::sign_bit(width) == 0 { !key & width_mask } else { key ^ Self::sign_bit(width) };
                ElementValue::Float(match u32::try_from(bits) {
                    Ok(bits) if width == 4 => f64::from(f32::from_bits(bits)),
                    _ => f64::from_bits(bits),
                })
            }
        }
    }

    fn sign_bit(width: usize) -> u64 {
        1 << (8 * width - 1)
    }
}

#[cfg(test)]
mod tests;
