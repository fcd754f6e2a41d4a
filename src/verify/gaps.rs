//! Missing blocks of a directory, as ranges.

use std::collections::BTreeMap;

use n5_format::Coords;

/// Maximum number of runs that are kept. With more of them, only the number of missing blocks is reported.
const MAX_RUNS: usize = 1 << 16;

/// The numbers present in one directory of a grid, as runs without gaps.
#[derive(Debug, Default)]
pub(super) struct IntervalSet {
    /// First number of each run, mapped to the number after its last.
    runs: BTreeMap<u64, u64>,
    has_overflowed: bool,
}

impl IntervalSet {
    /// Adds `number`. Numbers may come in any order, each of them once.
    pub(super) fn add(&mut self, number: u64) {
        if self.has_overflowed {
            return;
        }
        let mut end = number.saturating_add(1);
        if let Some(next_end) = self.runs.remove(&end) {
            end = next_end;
        }
        let previous = self.runs.range(..=number).next_back().map(|(from, to)| (*from, *to));
        match previous {
            Some((_, to)) if to > number => {}
            Some((from, to)) if to == number => {
                self.runs.insert(from, end);
            }
            Some(_) | None => {
                self.runs.insert(number, end);
            }
        }
        if self.runs.len() > MAX_RUNS {
            self.has_overflowed = true;
            self.runs = BTreeMap::new();
        }
    }

    /// Returns the first and last number of each gap below `count`, or `None` if there were too many runs to keep.
    pub(super) fn gaps(&self, count: u64) -> Option<Vec<(u64, u64)>> {
        if self.has_overflowed {
            return None;
        }
        let mut gaps = Vec::new();
        let mut next = 0;
        for (from, to) in &self.runs {
            let from = (*from).min(count);
            if from > next {
                gaps.push((next, from.saturating_sub(1)));
            }
            next = (*to).max(next);
        }
        if next < count {
            gaps.push((next, count.saturating_sub(1)));
        }
        Some(gaps)
    }
}

/// A box of blocks that are not stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MissingRange {
    /// First position.
    pub(super) first: Coords,
    /// Last position, inclusive.
    pub(super) last: Coords,
}

impl MissingRange {
    /// Creates the range of blocks below `prefix` whose next number is `from` to `to`, in a grid of `shape` blocks.
    pub(super) fn new(prefix: &[u64], (from, to): (u64, u64), shape: &[u64]) -> Self {
        let further_sizes = shape.get(prefix.len().saturating_add(1)..).unwrap_or_default();
        let first = prefix.iter().copied().chain([from]).chain(further_sizes.iter().map(|_| 0)).collect();
        let last =
            prefix.iter().copied().chain([to]).chain(further_sizes.iter().map(|n| n.saturating_sub(1))).collect();
        Self { first, last }
    }

    /// Returns the number of blocks, saturating.
    pub(super) fn block_count(&self) -> u64 {
        let axis_length = |(first, last): (&u64, &u64)| last.saturating_sub(*first).saturating_add(1);
        self.first.iter().zip(&self.last).map(axis_length).fold(1, u64::saturating_mul)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_the_numbers_that_were_not_added() {
        let gaps = |numbers: &[u64], count| {
            let mut set = IntervalSet::default();
            for number in numbers {
                set.add(*number);
            }
            set.gaps(count).unwrap()
        };
        assert_eq!(gaps(&[], 3), [(0, 2)]);
        assert_eq!(gaps(&[0, 1, 10, 11, 2, 3], 12), [(4, 9)]);
        assert_eq!(gaps(&[2, 0, 1], 3), []);
        assert_eq!(gaps(&[5, 3, 4], 9), [(0, 2), (6, 8)]);
        assert_eq!(gaps(&[1, 20, u64::MAX], 4), [(0, 0), (2, 3)]);
        assert_eq!(gaps(&[], 0), []);
    }

    #[test]
    fn too_many_runs_are_discarded() {
        let mut set = IntervalSet::default();
        for n in 0..=MAX_RUNS as u64 {
            set.add(2 * n);
        }
        assert_eq!((set.gaps(9), set.runs.len()), (None, 0));
    }

    #[test]
    fn a_missing_range_spans_all_further_axes() {
        let range = MissingRange::new(&[4], (2, 3), &[5, 6, 7]);
        assert_eq!((range.first.as_slice(), range.last.as_slice()), (&[4, 2, 0][..], &[4, 3, 6][..]));
        assert_eq!(range.block_count(), 14);
    }
}
