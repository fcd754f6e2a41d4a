//! A rolling distribution of times in constant memory.

use std::time::Duration;

/// Buckets per doubling, so a bucket is at most 12.5 % wide.
const BUCKETS_PER_OCTAVE: u32 = 8;

/// Octaves from 64 µs on; the last bucket also counts all longer times (from about two minutes).
const OCTAVES: u32 = 21;

/// Number of buckets.
const BUCKETS: usize = (BUCKETS_PER_OCTAVE * OCTAVES) as usize;

/// Binary logarithm of the first octave's beginning, in microseconds.
const FIRST_OCTAVE: u32 = 6;

/// Number of counted times at which all counts are halved, so that old times lose their weight.
const WINDOW: u32 = 2_048;

/// Counts of times in logarithmic buckets. After every `WINDOW / 2` times all counts are halved, so a quantile follows
/// a change of the distribution within a few thousand times.
#[derive(Debug, Clone)]
pub(super) struct LatencyHistogram {
    counts: [u32; BUCKETS],
    total: u32,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], total: 0 }
    }
}

impl LatencyHistogram {
    /// Counts a time.
    pub(super) fn record(&mut self, time: Duration) {
        if let Some(count) = self.counts.get_mut(bucket_of(time)) {
            *count += 1;
            self.total += 1;
        }
        if self.total >= WINDOW {
            for count in &mut self.counts {
                *count /= 2;
            }
            self.total = self.counts.iter().sum();
        }
    }

    /// Returns the number of times that still count.
    pub(super) fn len(&self) -> u32 {
        self.total
    }

    /// Returns a time that at least `permille` thousandths of the recorded times do not exceed. It is exact to one
    /// bucket, upwards. Returns `None` if the histogram is empty.
    pub(super) fn quantile(&self, permille: u32) -> Option<Duration> {
        let target = u64::from(self.total) * u64::from(permille);
        let mut sum = 0;
        let bucket = self.counts.iter().position(|count| {
            sum += u64::from(*count) * 1_000;
            sum >= target && sum > 0
        })?;
        Some(end_of_bucket(bucket))
    }
}

/// Returns the index of the bucket of a time.
fn bucket_of(time: Duration) -> usize {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let octave = micros.checked_ilog2().unwrap_or(0);
    if octave < FIRST_OCTAVE {
        return 0;
    }
    // The three bits after the leading one.
    let step = (micros >> (octave - 3)) & u64::from(BUCKETS_PER_OCTAVE - 1);
    let bucket = u64::from((octave - FIRST_OCTAVE) * BUCKETS_PER_OCTAVE) + step;
    usize::try_from(bucket).unwrap_or(usize::MAX).min(BUCKETS - 1)
}

/// Returns the time at which a bucket ends.
fn end_of_bucket(bucket: usize) -> Duration {
    let bucket = u64::try_from(bucket).unwrap_or(0) + 1;
    let (octave, step) = (bucket / u64::from(BUCKETS_PER_OCTAVE), bucket % u64::from(BUCKETS_PER_OCTAVE));
    Duration::from_micros((u64::from(BUCKETS_PER_OCTAVE) + step) << (octave + u64::from(FIRST_OCTAVE) - 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_lies_in_its_bucket() {
        for micros in (0..200).chain((200..200_000_000).step_by(9_973)) {
            let time = Duration::from_micros(micros);
            let bucket = bucket_of(time);
            let begin = if bucket == 0 { Duration::ZERO } else { end_of_bucket(bucket - 1) };
            assert!(begin <= time, "{time:?} before {begin:?}");
            let end = end_of_bucket(bucket);
            assert!(time < end || bucket == BUCKETS - 1, "{time:?} after {end:?}");
            assert!(bucket == 0 || bucket == BUCKETS - 1 || end <= begin * 9 / 8 + Duration::from_micros(1));
        }
        assert_eq!(bucket_of(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_quantile_is_exact_to_one_bucket() {
        let mut histogram = LatencyHistogram::default();
        assert_eq!(histogram.quantile(950), None);
        for millis in 1..=1_000 {
            histogram.record(Duration::from_millis(millis));
        }
        for (permille, exact) in [(1, 1), (500, 500), (950, 950), (1_000, 1_000)] {
            let (time, exact) = (histogram.quantile(permille).unwrap(), Duration::from_millis(exact));
            assert!(time >= exact && time <= exact * 9 / 8 + Duration::from_millis(1), "{permille}: {time:?}");
        }
    }

    #[test]
    fn a_quantile_follows_a_change_within_a_few_thousand_times() {
        let mut histogram = LatencyHistogram::default();
        for _ in 0..1_000_000 {
            histogram.record(Duration::from_millis(10));
        }
        for _ in 0..4 * WINDOW {
            histogram.record(Duration::from_millis(100));
        }
        assert!(histogram.quantile(100).unwrap() >= Duration::from_millis(100));
        assert!(histogram.len() < WINDOW);
    }
}
