//! A histogram of times with buckets of growing width: each power of two of nanoseconds is divided into eight.
//!
//! A bucket counts the times above the limit of the bucket before it, up to its own limit. From 256 ns on, the width of
//! a bucket is at most an eighth of the times in it, so a percentile is too long by at most an eighth. Times above the
//! last limit, 137 seconds, are counted in the last bucket.

use std::time::Duration;

/// Number of buckets in a histogram.
pub const BUCKETS: usize = 240;
/// The width of the narrowest buckets, as a power of two in nanoseconds.
const UNIT_BITS: u32 = 5;
/// Number of buckets for each power of two, as a power of two.
const PART_BITS: u32 = 3;
const PARTS: u64 = 1 << PART_BITS;

/// The bucket of a time.
#[must_use]
pub fn bucket_of(ns: u64) -> usize {
    let units = ns.saturating_sub(1) >> UNIT_BITS;
    let shift = (units | PARTS).ilog2() - PART_BITS;
    let bucket = u64::from(shift) * PARTS + (units >> shift);
    (bucket as usize).min(BUCKETS - 1)
}

/// The longest time that belongs to a bucket, in nanoseconds. The last bucket also counts longer times.
#[must_use]
pub fn limit_of(bucket: usize) -> u64 {
    let bucket = bucket.min(BUCKETS - 1) as u64;
    let shift = (bucket / PARTS).saturating_sub(1);
    let first = bucket - shift * PARTS;
    (first + 1) << shift << UNIT_BITS
}

/// The number of times in each bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS] }
    }
}

impl Histogram {
    /// A histogram with these counts, by bucket.
    #[must_use]
    pub fn new(count: impl FnMut(usize) -> u64) -> Self {
        Self { counts: std::array::from_fn(count) }
    }

    /// Counts a time.
    pub fn record(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket_of(ns)] += 1;
    }

    /// The number of all times.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.up_to(u64::MAX)
    }

    /// The number of times in buckets whose limits are at most `ns`.
    #[must_use]
    pub fn up_to(&self, ns: u64) -> u64 {
        let within = self.buckets().take_while(|(limit, _)| *limit <= ns);
        within.fold(0, |sum: u64, (_, count)| sum.wrapping_add(count))
    }

    /// The limit of each bucket in nanoseconds, and the number of times in it.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        self.counts.iter().enumerate().map(|(bucket, count)| (limit_of(bucket), *count))
    }

    /// The difference from an earlier state of the same histogram.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self::new(|bucket| self.counts[bucket].saturating_sub(earlier.counts[bucket]))
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.wrapping_add(*more);
        }
    }

    /// The percentile `part`, from 0 to 1, in nanoseconds: the limit of the bucket in which it is. `None` when there
    /// are no times.
    #[must_use]
    pub fn percentile(&self, part: f64) -> Option<u64> {
        let count = self.count();
        // The rank is rounded up: the half of two times is the first one.
        let rank = ((part.clamp(0.0, 1.0) * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0_u64;
        self.buckets().find_map(|(limit, count)| {
            seen = seen.wrapping_add(count);
            (count > 0 && seen >= rank).then_some(limit)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        assert_eq!([0, 1, 32, 33, 256, 257, 288].map(bucket_of), [0, 0, 0, 1, 7, 8, 8]);
        for bucket in 0..BUCKETS {
            let limit = limit_of(bucket);
            assert_eq!(bucket_of(limit), bucket);
            let after = bucket_of(limit + 1);
            assert_eq!(after, (bucket + 1).min(BUCKETS - 1), "after {limit}");
        }
        assert_eq!(limit_of(BUCKETS - 1), 1 << 37);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn every_power_of_two_is_a_limit() {
        let limits: Vec<u64> = (0..BUCKETS).map(limit_of).collect();
        assert!((UNIT_BITS..=37).all(|bits| limits.contains(&(1 << bits))));
    }

    /// Marsaglia's xorshift generator: the same numbers in every run.
    fn xorshift(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_times_up_to_an_eighth() {
        let mut state = 0x2545_f491_4f6c_dd1d;
        for count in [1, 2, 3, 10, 1000, 5000] {
            // Times of every order of magnitude up to a minute, equally often.
            let mut times: Vec<u64> =
                (0..count).map(|_| xorshift(&mut state) >> (28 + xorshift(&mut state) % 30)).collect();
            let mut histogram = Histogram::default();
            for time in &times {
                histogram.record(Duration::from_nanos(*time));
            }
            times.sort_unstable();
            assert_eq!(histogram.count(), count as u64);
            for part in [0.0, 0.001, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0] {
                let rank = ((part * count as f64).ceil() as usize).max(1);
                let exact = times[rank - 1];
                let found = histogram.percentile(part).unwrap();
                let widest = (exact / 8).max(1 << UNIT_BITS);
                assert!(exact <= found && found <= exact + widest, "{part} of {count}: {exact}, {found}");
            }
            let within = times.iter().filter(|time| **time <= 1 << 20).count() as u64;
            assert_eq!(histogram.up_to(1 << 20), within, "exact where the limit of a bucket is");
        }
    }

    #[test]
    fn counts_are_added_and_subtracted_by_bucket() {
        let one = Histogram::new(|bucket| bucket as u64);
        let mut both = one.clone();
        both.add(&one);
        assert_eq!(both.since(&one), one);
        assert_eq!(one.since(&both), Histogram::default(), "what has begun anew is not negative");
        assert_eq!(Histogram::default().percentile(0.5), None);
        let torn = Histogram::new(|_| u64::MAX);
        assert!(torn.percentile(0.99).is_some(), "whatever the memory holds");
    }
}
