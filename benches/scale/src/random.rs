//! Random numbers that are the same in every run, and a hash of integers.

/// A SplitMix64 generator.
#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        let hash = hash(self.0);
        self.0 = self.0.wrapping_add(GAMMA);
        hash
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // The bias of the remainder is 2^-40 for the bounds in use.
        self.next().checked_rem(bound).unwrap_or_default()
    }
}

/// Increment of SplitMix64.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns a well-mixed hash: one step of SplitMix64.
pub(crate) fn hash(value: u64) -> u64 {
    let mixed = value.wrapping_add(GAMMA);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Zipf's law with exponent 1: item `i` is chosen in proportion to `1 / (i + 1)`.
pub(crate) struct Zipf {
    cumulative: Vec<u64>,
}

impl Zipf {
    pub(crate) fn new(count: u64) -> Self {
        let mut total = 0;
        let cumulative = (1..=count).map(|rank| {
            total += 1_000_000_000 / rank;
            total
        });
        Self { cumulative: cumulative.collect() }
    }

    /// Returns the index of an item.
    pub(crate) fn choose(&self, random: &mut Random) -> u64 {
        let at = random.below(self.cumulative.last().copied().unwrap_or_default());
        self.cumulative.partition_point(|end| *end <= at) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_evenly() {
        let mut random = Random::new(1);
        let mut counts = [0_u32; 10];
        for _ in 0..100_000 {
            counts[usize::try_from(random.below(10)).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| (9_600..=10_400).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_first_item_is_chosen_twice_as_often_as_the_second() {
        let (zipf, mut random) = (Zipf::new(16), Random::new(1));
        let mut counts = [0_u64; 16];
        for _ in 0..100_000 {
            counts[usize::try_from(zipf.choose(&mut random)).unwrap()] += 1;
        }
        assert!((counts[1] * 19 / 10..=counts[1] * 21 / 10).contains(&counts[0]), "{counts:?}");
        assert!(counts[15] > 0 && counts.is_sorted_by(|a, b| a * 11 / 10 >= *b), "{counts:?}");
    }
}
