//! Which pages are written through, and which are written back (paper, section 5.2.3).
//!
//! A page that is written again before the next sync costs one flush for both writes if it is written back; one that is not
//! costs nothing more if it goes past the cache at once, and leaves the cache to others. At first every page is written
//! back, and writes are counted. At the end of the sampling phase the pages that were written less than the average become
//! write-through, those too that were not written at all. The paper stops there; here the sampling is repeated, since
//! what is hot changes.

use std::collections::{HashMap, HashSet};

/// Writes of pages that are counted: as many as some hundred transactions make, so that the average means something.
const SAMPLE_WRITES: u32 = 2048;
/// Writes of pages from the end of one sampling to the beginning of the next: sampling then costs write-back, at worst, for
/// a sixteenth of all writes.
const INTERVAL_WRITES: u32 = 15 * SAMPLE_WRITES;

/// What a page's writes have shown. It has at most [`SAMPLE_WRITES`] pages, whatever the database's size is.
#[derive(Debug, Default)]
pub(super) struct Policy {
    /// Writes since this phase began.
    writes: u32,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// How often each page has been written.
    Sampling(HashMap<u64, u32>),
    /// The pages that are written back.
    Decided(HashSet<u64>),
}

impl Default for Phase {
    fn default() -> Self {
        Self::Sampling(HashMap::new())
    }
}

impl Policy {
    /// A page is being written: whether past the cache.
    pub(super) fn written(&mut self, page: u64) -> bool {
        self.writes += 1;
        match &mut self.phase {
            Phase::Sampling(counts) => {
                *counts.entry(page).or_default() += 1;
                if self.writes >= SAMPLE_WRITES {
                    let hot = at_least_average(counts);
                    *self = Self { writes: 0, phase: Phase::Decided(hot) };
                }
                false
            }
            Phase::Decided(hot) => {
                let through = !hot.contains(&page);
                if self.writes >= INTERVAL_WRITES {
                    *self = Self::default();
                }
                through
            }
        }
    }

    /// Pages that are written back once sampling has ended; `None` while it goes on.
    pub(super) fn written_back(&self) -> Option<usize> {
        match &self.phase {
            Phase::Sampling(_) => None,
            Phase::Decided(hot) => Some(hot.len()),
        }
    }
}

/// The pages that were written at least as often as the average of those that were written.
fn at_least_average(counts: &HashMap<u64, u32>) -> HashSet<u64> {
    let writes: u64 = counts.values().copied().map(u64::from).sum();
    let pages = counts.len() as u64;
    let hot = counts.iter().filter(|(_, count)| u64::from(**count) * pages >= writes);
    hot.map(|(page, _)| *page).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_below_the_average_become_write_through_until_the_next_sampling() {
        let mut policy = Policy::default();
        // Half of the writes are of two pages, the others of one page each.
        for n in 0..SAMPLE_WRITES {
            let page = if n % 2 == 0 { u64::from(n / 2 % 2) } else { 100 + u64::from(n) };
            assert!(!policy.written(page));
        }
        assert_eq!(policy.written_back(), Some(2));
        assert!(!policy.written(0) && !policy.written(1));
        assert!(policy.written(101), "a cold page");
        assert!(policy.written(1 << 40), "one that was never written");
        for _ in 4..INTERVAL_WRITES {
            assert!(policy.written(7));
        }
        assert_eq!(policy.written_back(), None);
        assert!(!policy.written(7), "sampled anew");
    }

    #[test]
    fn pages_that_are_written_alike_are_all_written_back() {
        let mut policy = Policy::default();
        for n in 0..SAMPLE_WRITES {
            policy.written(u64::from(n % 64));
        }
        assert_eq!(policy.written_back(), Some(64));
    }
}
