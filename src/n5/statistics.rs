//! What the elements of a dataset are like: extremes, mean, percentiles, a histogram.
//!
//! Elements are kept as keys that sort as the elements do: types of up to 16 bits are counted by value,
//! others listed and sorted in the end, so that nothing is rounded, not even beyond 2^53.

mod key;

pub use key::Number;

use super::{Coords, DataType};
use key::{Key, Kind};

/// Most different values that are told apart.
const MOST_DISTINCT: u64 = 1 << 16;

/// Takes elements and says in the end what they are like.
#[derive(Debug)]
pub struct Accumulator {
    kind: Kind,
    tally: Tally,
    /// Of the elements given every how many counts, in sorted lists only.
    step: usize,
    /// Elements to be passed over before the next one that counts.
    skip: usize,
    elements: u64,
    nan: u64,
    infinite: u64,
}

#[derive(Debug)]
enum Tally {
    /// How often each key of 16 bits came.
    Counts(Vec<u64>),
    /// Every key.
    Keys(Vec<u64>),
}

/// What the elements are like. `None` where there was none, or none that is finite.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Elements looked at.
    pub elements: u64,
    /// Of these those that are no number.
    pub nan: u64,
    /// Of these those that are infinite.
    pub infinite: u64,
    /// Of these those that are 0.
    pub zeros: u64,
    /// The least finite element.
    pub min: Option<Number>,
    /// The greatest finite element.
    pub max: Option<Number>,
    /// Mean of the finite elements; `None` also where their sum exceeds the type's range.
    pub mean: Option<f64>,
    /// Per percentage asked for the least element that at least as many percent of the finite elements do not exceed.
    pub percentiles: Option<Vec<Number>>,
    /// Finite elements by value: `bins` intervals of equal width from `min` to `max`, which belongs to the last.
    pub histogram: Option<Vec<u64>>,
    /// Different finite elements, at most 2^16 of them.
    pub distinct: u64,
    /// Whether there may be more.
    pub distinct_capped: bool,
}

impl Accumulator {
    /// Bytes that are needed for `elements` elements; `None` for a type that is not decoded.
    pub fn bytes(data_type: &DataType, elements: u64) -> Option<u64> {
        Some(if Kind::of(data_type)?.is_counted() { 8 << 16 } else { elements.saturating_mul(8) })
    }

    /// Whether elements of this type are counted by value, so that any number of them takes the same memory.
    pub fn is_counted(data_type: &DataType) -> bool {
        Kind::of(data_type).is_some_and(Kind::is_counted)
    }

    /// For about `elements` elements, of which no more than `limit` are kept where they are not counted:
    /// every so many-th. `None` for a type that is not decoded.
    pub fn new(data_type: &DataType, elements: u64, limit: usize) -> Option<Self> {
        let kind = Kind::of(data_type)?;
        let elements = usize::try_from(elements).unwrap_or(usize::MAX);
        let (tally, step) = if kind.is_counted() {
            (Tally::Counts(vec![0; 1 << 16]), 1)
        } else {
            (Tally::Keys(Vec::with_capacity(elements.min(limit))), elements.div_ceil(limit.max(1)).max(1))
        };
        Some(Self { kind, tally, step, skip: 0, elements: 0, nan: 0, infinite: 0 })
    }

    /// Whether every element given is looked at.
    pub fn takes_all(&self) -> bool {
        self.step == 1
    }

    /// Adds the elements of a block that lie within `clip`, both N5 axis order. `data` are the block's
    /// elements, little-endian, first axis fastest. Answers how many elements that are, looked at or not.
    pub fn push_block(&mut self, data: &[u8], size: &Coords, clip: &Coords) -> u64 {
        let width = self.kind.width();
        let inside: Vec<usize> =
            size.iter().zip(clip).map(|(size, clip)| usize::try_from(*size.min(clip)).unwrap_or(usize::MAX)).collect();
        if inside.contains(&0) {
            return 0;
        }
        let sizes: Vec<usize> = size.iter().map(|size| usize::try_from(*size).unwrap_or(usize::MAX)).collect();
        // Leading axes that are whole make longer runs.
        let whole = inside.iter().zip(&sizes).take_while(|(inside, size)| inside == size).count();
        let run_axes = (whole + 1).min(sizes.len());
        let product = |list: &[usize]| list.iter().copied().fold(1_usize, usize::saturating_mul);
        let (run_axes, outer) =
            (inside.get(..run_axes).unwrap_or_default(), inside.get(run_axes..).unwrap_or_default());
        let run = product(run_axes).saturating_mul(width);
        let mut stride = product(sizes.get(..run_axes.len()).unwrap_or_default()).saturating_mul(width);
        let mut strides = Vec::with_capacity(outer.len());
        for size in sizes.get(run_axes.len()..).unwrap_or_default() {
            strides.push(stride);
            stride = stride.saturating_mul(*size);
        }
        let (mut index, mut offset) = (vec![0_usize; outer.len()], 0_usize);
        loop {
            self.push(data.get(offset..offset.saturating_add(run)).unwrap_or_default());
            let mut axes = index.iter_mut().zip(outer).zip(&strides);
            let advanced = axes.find_map(|((n, count), stride)| {
                *n += 1;
                offset = offset.saturating_add(*stride);
                if *n < *count {
                    return Some(());
                }
                offset = offset.saturating_sub(stride.saturating_mul(*n));
                *n = 0;
                None
            });
            if advanced.is_none() {
                return inside.iter().fold(1_u64, |n, size| n.saturating_mul(*size as u64));
            }
        }
    }

    /// Adds little-endian elements.
    fn push(&mut self, data: &[u8]) {
        let kind = self.kind;
        match &mut self.tally {
            Tally::Counts(counts) => {
                let mut count = |key: u16| {
                    if let Some(count) = counts.get_mut(usize::from(key)) {
                        *count += 1;
                    }
                };
                match kind {
                    Kind::Unsigned(1) => data.iter().for_each(|byte| count(u16::from(*byte))),
                    Kind::Signed(1) => data.iter().for_each(|byte| count(u16::from(*byte ^ 0x80))),
                    Kind::Unsigned(_) => halves(data).for_each(count),
                    Kind::Signed(_) | Kind::Float32 | Kind::Float64 => {
                        halves(data).for_each(|key| count(key ^ 0x8000));
                    }
                }
                self.elements += (data.len() / kind.width()) as u64;
            }
            Tally::Keys(keys) => {
                let (width, step) = (kind.width(), self.step);
                let elements = data.len() / width;
                if self.skip >= elements {
                    self.skip -= elements;
                    return;
                }
                let counted = (elements - self.skip).div_ceil(step);
                let items = data.chunks_exact(width).skip(self.skip).step_by(step);
                self.skip = self.skip + counted * step - elements;
                self.elements += counted as u64;
                for item in items {
                    match kind.key(item) {
                        Key::Finite(key) => keys.push(key),
                        Key::Nan => self.nan += 1,
                        Key::Infinite => self.infinite += 1,
                    }
                }
            }
        }
    }

    /// What the elements are like; `percentages` lie between 0 and 100.
    pub fn finish(self, bins: usize, percentages: &[f64]) -> Summary {
        let Self { kind, tally, elements, nan, infinite, .. } = self;
        let mut summary = Summary {
            elements,
            nan,
            infinite,
            zeros: 0,
            min: None,
            max: None,
            mean: None,
            percentiles: None,
            histogram: None,
            distinct: 0,
            distinct_capped: false,
        };
        match tally {
            Tally::Counts(counts) => {
                let present = |count: &u64| *count > 0;
                let ends = counts.iter().position(present).zip(counts.iter().rposition(present));
                let ends = ends.map(|(low, high)| (low as u64, high as u64));
                let runs = (0_u64..).zip(counts).filter(|(_, count)| present(count));
                summary.fill(kind, ends, runs, bins, percentages);
            }
            Tally::Keys(mut keys) => {
                keys.sort_unstable();
                let ends = keys.first().copied().zip(keys.last().copied());
                let runs = keys.chunk_by(|a, b| a == b).filter_map(|run| Some((*run.first()?, run.len() as u64)));
                summary.fill(kind, ends, runs, bins, percentages);
            }
        }
        summary
    }
}

impl Summary {
    /// That of `elements` zeros, which is what holes read as.
    pub fn of_zeros(data_type: &DataType, elements: u64, bins: usize, percentages: &[f64]) -> Option<Self> {
        let mut one = Accumulator::new(data_type, 1, 1)?;
        one.push(&vec![0; one.kind.width()]);
        let mut summary = one.finish(bins, percentages);
        (summary.elements, summary.zeros) = (0, elements);
        summary.histogram = summary.histogram.map(|bins| bins.iter().map(|count| count * elements).collect());
        Some(summary)
    }

    /// Goes once through keys in ascending order, each with how often it came.
    fn fill(
        &mut self,
        kind: Kind,
        ends: Option<(u64, u64)>,
        runs: impl Iterator<Item = (u64, u64)>,
        bins: usize,
        percentages: &[f64],
    ) {
        let Some((low, high)) = ends else { return };
        let (min, max) = (kind.number(low), kind.number(high));
        let total = self.elements - self.nan - self.infinite;
        let mut ranks: Vec<(u64, usize)> = percentages.iter().map(|p| rank(*p, total)).zip(0..).collect();
        ranks.sort_unstable();
        let mut ranks = ranks.into_iter().peekable();
        let mut percentiles = vec![min; percentages.len()];
        let mut histogram = vec![0_u64; bins];
        let (mut seen, mut sum) = (0_u64, Sum::new(kind));
        for (key, count) in runs {
            let number = kind.number(key);
            self.distinct += 1;
            if number.as_f64() == 0.0 {
                self.zeros += count;
            }
            sum.add(number, count);
            seen += count;
            while let Some((_, place)) = ranks.next_if(|(rank, _)| *rank <= seen) {
                if let Some(percentile) = percentiles.get_mut(place) {
                    *percentile = number;
                }
            }
            if let Some(bin) = histogram.get_mut(bin(number, min, max, bins)) {
                *bin += count;
            }
        }
        self.distinct_capped = self.distinct > MOST_DISTINCT;
        self.distinct = self.distinct.min(MOST_DISTINCT);
        (self.min, self.max, self.mean) = (Some(min), Some(max), sum.mean(total));
        (self.percentiles, self.histogram) = (Some(percentiles), Some(histogram));
    }
}

/// The number, from 1 on, of the element that is the percentile: NumPy's method `inverted_cdf`.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 2^53")]
fn rank(percentage: f64, total: u64) -> u64 {
    (((percentage / 100.0) * total as f64).ceil() as u64).clamp(1, total.max(1))
}

/// The interval that a number falls in.
fn bin(number: Number, min: Number, max: Number, bins: usize) -> usize {
    let last = bins.saturating_sub(1);
    let part = |above: u128, range: u128| {
        let product = above.saturating_mul(bins as u128);
        product.checked_div(range).map_or(0, |bin| usize::try_from(bin).unwrap_or(last))
    };
    let bin = match (number, min, max) {
        (Number::Unsigned(n), Number::Unsigned(min), Number::Unsigned(max)) => {
            part(u128::from(n.saturating_sub(min)), u128::from(max.saturating_sub(min)))
        }
        (Number::Signed(n), Number::Signed(min), Number::Signed(max)) => {
            part(u128::from(n.abs_diff(min)), u128::from(max.abs_diff(min)))
        }
        (number, min, max) => {
            // Halves: the range of float64 is wider than float64.
            let (number, min, max) = (number.as_f64() / 2.0, min.as_f64() / 2.0, max.as_f64() / 2.0);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "a part of bins; NaN, of 0 by 0, becomes 0"
            )]
            let bin = ((number - min) / (max - min) * bins as f64) as usize;
            bin
        }
    };
    bin.min(last)
}

/// A sum: of integers exact, else compensated.
enum Sum {
    Whole(i128),
    Float { sum: f64, lost: f64 },
}

impl Sum {
    fn new(kind: Kind) -> Self {
        match kind {
            Kind::Unsigned(_) | Kind::Signed(_) => Self::Whole(0),
            Kind::Float32 | Kind::Float64 => Self::Float { sum: 0.0, lost: 0.0 },
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are below 2^53")]
    fn add(&mut self, number: Number, count: u64) {
        match (self, number) {
            (Self::Whole(sum), Number::Unsigned(n)) => *sum += i128::from(n) * i128::from(count),
            (Self::Whole(sum), Number::Signed(n)) => *sum += i128::from(n) * i128::from(count),
            (Self::Whole(_), Number::Float(_)) => {}
            (Self::Float { sum, lost }, number) => {
                // After Neumaier.
                let term = number.as_f64() * count as f64;
                let next = *sum + term;
                *lost += if sum.abs() >= term.abs() { (*sum - next) + term } else { (term - next) + *sum };
                *sum = next;
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a mean is rounded")]
    fn mean(self, total: u64) -> Option<f64> {
        let mean = match self {
            Self::Whole(sum) => sum as f64 / total as f64,
            Self::Float { sum, lost } => (sum + lost) / total as f64,
        };
        mean.is_finite().then_some(mean)
    }
}

fn halves(data: &[u8]) -> impl Iterator<Item = u16> {
    data.as_chunks::<2>().0.iter().map(|pair| u16::from_le_bytes(*pair))
}

#[cfg(test)]
mod tests;
