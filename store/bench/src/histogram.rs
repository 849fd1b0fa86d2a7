//! A histogram of times, with eight buckets for each doubling.

use std::time::Duration;

/// Buckets of each doubling.
const PARTS: usize = 8;
const BUCKETS: usize = 64 * PARTS;

/// Counts of times, in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Histogram(Box<[u64]>);

impl Default for Histogram {
    fn default() -> Self {
        Self(vec![0; BUCKETS].into())
    }
}

fn bucket(ns: u64) -> usize {
    let ns = ns.max(PARTS as u64);
    let doubling = ns.ilog2() as usize;
    let part = (ns >> (doubling - PARTS.ilog2() as usize)) as usize - PARTS;
    (doubling * PARTS + part).min(BUCKETS - 1)
}

/// The upper end of a bucket.
fn end(bucket: usize) -> f64 {
    let (doubling, part) = (bucket / PARTS, bucket % PARTS);
    2_f64.powi(doubling as i32) * (1.0 + (part + 1) as f64 / PARTS as f64)
}

impl Histogram {
    pub(crate) fn count(&mut self, time: Duration) {
        self.0[bucket(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))] += 1;
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(all, one)| *all += one);
    }

    /// The time in nanoseconds that this share of all times does not exceed. It may be up to an eighth too
    /// high.
    pub(crate) fn percentile(&self, part: f64) -> f64 {
        let wanted = (self.0.iter().sum::<u64>() as f64 * part).ceil() as u64;
        let mut below = 0;
        let found = self.0.iter().position(|count| {
            below += count;
            below >= wanted.max(1)
        });
        found.map_or(0.0, end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_an_eighth_too_high_at_most() {
        let mut all = Histogram::default();
        for us in 1..=1000 {
            all.count(Duration::from_micros(us));
        }
        for (part, us) in [(0.5, 500.0), (0.99, 990.0), (0.999, 999.0)] {
            let found = all.percentile(part) / 1000.0;
            assert!((us..=us * 1.125).contains(&found), "{part}: {found} us");
        }
        assert_eq!(Histogram::default().percentile(0.99), 0.0);
    }
}
