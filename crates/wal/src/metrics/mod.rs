//! The metrics of processes. Each process counts its use of a log in memory that other processes can read: its commits
//! by latency, and other events.
//!
//! Each process slot has a block of its own, to which only the slot's process writes. So no two processes write the
//! same cache line, and a commit stores its counts without a system call. A reader may find numbers that a dying
//! process left half updated, or even invented numbers. That does no harm, because no decision depends on them.
//!
//! **A process that takes over a slot** continues the counts of the slot's earlier process. So the sums over all blocks
//! only grow until the segment is initialised again. Each initialisation has a number
//! ([`INCARNATION`](crate::placement)). Each block stores the number of the initialisation after which it began to
//! count, and readers ignore a block with an old number. So nobody has to clear all blocks when the segment is
//! initialised: each process clears its own block when it joins.
//!
//! The blocks are at the end of the segment, after the engine's part. They are lost when the last process ends.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duralite_medium::{MediumError, PROCESS_SLOTS, Segment, Words};

use crate::engine::{Fill, Led};

// The layout of a process's block. The constants for its fields are offsets in the block, in bytes.

/// The size in bytes of all blocks together. In the segment the blocks lie one after the other, and the first begins at
/// an offset that is a multiple of 64.
pub const METRICS_BYTES: u64 = PROCESS_SLOTS as u64 * BLOCK_BYTES;
const BLOCK_BYTES: u64 = LATENCIES + 8 * BUCKETS as u64;

/// The tag, which says after which initialisation of the segment the block began to count; see [`tag_of`].
const TAG: u64 = 0;
const PID: u64 = 8;
/// The time at which the process joined, by the segment's clock, in nanoseconds.
const JOINED: u64 = 16;
/// The number of commits of the earlier processes in this slot.
const BEFORE: u64 = 24;
/// The sum of all latencies in nanoseconds.
const LATENCY: u64 = 32;
/// The first of the counters, in the order of [`Counter`](super::Counter).
const COUNTERS: u64 = 40;
/// How full the log was at the newest commit; see [`Filled`].
const FILLED: u64 = 128;
/// The log's limit in bytes.
const LIMIT: u64 = 136;
/// The counters that found no place before [`FILLED`].
const MORE_COUNTERS: u64 = 144;
/// The number of latencies in each bucket.
const LATENCIES: u64 = 192;

const _: () = assert!(Counter::ALL[Counter::ALL.len() - 1].at() + 8 <= LATENCIES);

/// The number that distinguishes a block from other bytes, such as those of a segment with another layout.
const METRICS: u64 = u64::from_le_bytes(*b"DURAFIGS");

/// Returns the tag of a block that began to count after the segment's initialisation number `beginning`.
fn tag_of(beginning: u64) -> u64 {
    METRICS ^ beginning
}

/// How much of the log was in use, and at which time. One word holds both, so a reader never combines values of two
/// moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Filled {
    used_bytes: u64,
    /// The time, in units of 2^20 ns of the segment's clock. It wraps after 52 days.
    time: u32,
}

impl Filled {
    fn time_of(clock_ns: u64) -> u32 {
        (clock_ns >> 20) as u32
    }

    fn pack(self) -> u64 {
        u64::from(self.time) << 32 | (self.used_bytes / 1024).min(u64::from(u32::MAX))
    }

    fn unpack(word: u64) -> Self {
        Self { used_bytes: (word & 0xffff_ffff) * 1024, time: (word >> 32) as u32 }
    }
}

// A histogram of times. Each interval between two powers of two (in nanoseconds) is divided into eight buckets, so
// longer times have wider buckets.
//
// A bucket counts the times above the limit of the bucket before it, up to its own limit. From 256 ns on, a bucket's
// width is at most an eighth of any time in it. So a reported percentile exceeds the true one by at most an eighth. The
// last bucket also counts times above its limit, 137 seconds.

/// Number of buckets in a histogram.
pub const BUCKETS: usize = 240;
/// The base-2 logarithm of the width of the narrowest buckets, in nanoseconds.
const UNIT_BITS: u32 = 5;
/// The base-2 logarithm of the number of buckets between two consecutive powers of two (in nanoseconds).
const PART_BITS: u32 = 3;
const PARTS: u64 = 1 << PART_BITS;

/// Returns the bucket of a time.
#[must_use]
pub fn bucket_of(ns: u64) -> usize {
    let units = ns.saturating_sub(1) >> UNIT_BITS;
    let shift = (units | PARTS).ilog2() - PART_BITS;
    let bucket = u64::from(shift) * PARTS + (units >> shift);
    (bucket as usize).min(BUCKETS - 1)
}

/// Returns the longest time that belongs to a bucket, in nanoseconds. The last bucket also counts longer times.
#[must_use]
pub fn limit_of(bucket: usize) -> u64 {
    let bucket = bucket.min(BUCKETS - 1) as u64;
    let shift = (bucket / PARTS).saturating_sub(1);
    let first = bucket - shift * PARTS;
    (first + 1) << shift << UNIT_BITS
}

/// A histogram of times: the number of times in each bucket.
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
    /// Returns a histogram with these counts, by bucket.
    #[must_use]
    pub fn new(count: impl FnMut(usize) -> u64) -> Self {
        Self { counts: std::array::from_fn(count) }
    }

    /// Counts one time.
    pub fn record(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket_of(ns)] += 1;
    }

    /// Returns the number of all times counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.up_to(u64::MAX)
    }

    /// Returns the number of times in buckets whose limits are at most `ns`.
    #[must_use]
    pub fn up_to(&self, ns: u64) -> u64 {
        let within = self.buckets().take_while(|(limit, _)| *limit <= ns);
        within.fold(0, |sum: u64, (_, count)| sum.wrapping_add(count))
    }

    /// Returns the limit of each bucket in nanoseconds, and the number of times in it.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        self.counts.iter().enumerate().map(|(bucket, count)| (limit_of(bucket), *count))
    }

    /// Returns only the times that were counted after `earlier`, an earlier state of the same histogram.
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

    /// Returns the percentile `part`, from 0 to 1, in nanoseconds: the limit of the bucket that contains the
    /// percentile. Returns `None` if no time was counted.
    #[must_use]
    pub fn percentile(&self, part: f64) -> Option<u64> {
        let count = self.count();
        // Round the rank up. So the median of two times is the first.
        let rank = ((part.clamp(0.0, 1.0) * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0_u64;
        self.buckets().find_map(|(limit, count)| {
            seen = seen.wrapping_add(count);
            (count > 0 && seen >= rank).then_some(limit)
        })
    }
}

// Counting events, in a process that uses the log.

/// The events that processes count besides commits. The sums over all processes only grow until the segment is
/// initialised again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// Requests for locks of the wal-index that were refused.
    Refusals,
    /// Checkpoints that wrote something to the database.
    Checkpoints,
    /// Groups that this process has written as leader, each with one write and at most one flush.
    Groups,
    /// Transactions in the groups that [`Counter::Groups`] counts, as [`Led::transactions`] counts them.
    Grouped,
    /// Transactions that were validated and committed although other transactions had committed since they began.
    Merged,
    /// Transactions that failed validation because another transaction had written a page that they use, other than
    /// page 1.
    PageConflicts,
    /// Transactions that failed validation because page 1 had changed, and with it the schema, the free list or the
    /// size of the database.
    SchemaConflicts,
    /// Transactions that failed validation because the database had become smaller.
    ShrinkConflicts,
    /// Transactions and waiting checkpoints that were refused because it was no longer known which pages others had
    /// written.
    UnknownConflicts,
    /// Transactions that began by reading and later had to wait for the WRITE lock, and got it.
    UpgradesWaited,
    /// Transactions that got the newest commit as their snapshot when they began to write.
    SnapshotsMoved,
    /// Transactions that were refused as busy because the log was nearly full and about to start over.
    RoomWaits,
    /// Writes to the log that failed because the log, or its file system, was full.
    RoomFailures,
}

impl Counter {
    /// All events, in the order of their words in the block.
    pub const ALL: [Self; 13] = [
        Self::Refusals,
        Self::Checkpoints,
        Self::Groups,
        Self::Grouped,
        Self::Merged,
        Self::PageConflicts,
        Self::SchemaConflicts,
        Self::ShrinkConflicts,
        Self::UnknownConflicts,
        Self::UpgradesWaited,
        Self::SnapshotsMoved,
        Self::RoomWaits,
        Self::RoomFailures,
    ];

    /// Returns the offset of the event's word in the block.
    const fn at(self) -> u64 {
        let word = 8 * self as u64;
        let first = FILLED - COUNTERS;
        if word < first { COUNTERS + word } else { MORE_COUNTERS + word - first }
    }
}

/// The metrics block of this process.
pub struct Recorder {
    words: Words,
    /// The counts that this process has already added to its block: groups, and transactions in them (see [`Led`]).
    told: [AtomicU64; 2],
}

impl Recorder {
    /// Returns the block of a process that has a slot, among the blocks that begin at `base`. The process has called
    /// [`Recorder::join`] before.
    #[must_use]
    pub fn new(segment: Arc<dyn Segment>, base: u64) -> Self {
        let block = base + segment.process_slot() as u64 * BLOCK_BYTES;
        Self { words: Words::new(segment, block, (BLOCK_BYTES / 8) as usize), told: Default::default() }
    }

    /// Takes over the block for a process that has just got its slot. `beginning` identifies the current initialisation
    /// of the segment; a block with another tag is stale, and this call clears it.
    pub fn join(segment: Arc<dyn Segment>, base: u64, beginning: u64) {
        let own = Self::new(segment, base).words;
        let tag = tag_of(beginning);
        if own.load(TAG) != tag {
            // While the tag is 0, observers ignore the block.
            own.store(TAG, 0);
            (8..BLOCK_BYTES).step_by(8).for_each(|word| own.store(word, 0));
        }
        let buckets = (0..BUCKETS as u64).map(|bucket| own.load(LATENCIES + 8 * bucket));
        own.store(BEFORE, buckets.fold(0, u64::wrapping_add));
        own.store(JOINED, own.segment().clock_ns());
        own.store(PID, u64::from(std::process::id()));
        own.store(TAG, tag);
    }

    /// Counts `more` events of a kind.
    pub fn count(&self, counter: Counter, more: u64) {
        self.words.fetch_add(counter.at(), more);
    }

    /// Counts an acknowledged commit. `began_ns` is when the process began to write the commit, and `fill` is how full
    /// the log was after the commit. This method reads the clock once and writes three words.
    pub fn committed(&self, began_ns: u64, fill: Fill) {
        let now = self.words.segment().clock_ns();
        let latency = now.saturating_sub(began_ns);
        self.words.fetch_add(LATENCIES + 8 * bucket_of(latency) as u64, 1);
        self.words.fetch_add(LATENCY, latency);
        let filled = Filled { used_bytes: fill.used_bytes, time: Filled::time_of(now) };
        self.words.store(FILLED, filled.pack());
        if self.words.load(LIMIT) != fill.limit_bytes {
            self.words.store(LIMIT, fill.limit_bytes);
        }
    }

    /// Adds the groups that this process has led since the last call, and their transactions.
    pub fn led(&self, led: Led) {
        let both = [(Counter::Groups, led.groups), (Counter::Grouped, led.transactions)];
        for ((counter, so_far), told) in both.into_iter().zip(&self.told) {
            // Several threads may call this method at once. Each thread adds only what no other thread has added.
            if told.load(Ordering::Relaxed) < so_far {
                let before = told.fetch_max(so_far, Ordering::Relaxed);
                self.count(counter, so_far.saturating_sub(before));
            }
        }
    }
}

// Reading the metrics of processes, as an observer.

/// The metrics of a process, and of the earlier processes in its slot.
#[derive(Debug, Clone)]
pub struct ProcessMetrics {
    /// The process slot.
    pub slot: usize,
    /// The process id in the process's own namespace, as the process stored it.
    pub pid: u64,
    /// Whether the process is alive. If it is not, the slot is free, and the counts are those of processes that have
    /// ended.
    pub is_alive: bool,
    /// When the process joined, by the segment's clock, in nanoseconds.
    pub joined_ns: u64,
    /// The number of commits of this process, without those of the earlier processes in its slot.
    pub commits: u64,
    /// The latencies of the commits.
    pub latencies: Histogram,
    /// The sum of all latencies in nanoseconds.
    pub latency_ns: u64,
    counters: [u64; Counter::ALL.len()],
    filled: Filled,
    limit_bytes: u64,
}

impl ProcessMetrics {
    /// Returns the number of events of a kind.
    #[must_use]
    pub fn counted(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    #[cfg(test)]
    fn set_filled(&mut self, used_bytes: u64, clock_ns: u64) {
        self.filled = Filled { used_bytes, time: Filled::time_of(clock_ns) };
    }
}

fn read(segment: &dyn Segment, slot: usize, block: u64) -> Result<ProcessMetrics, MediumError> {
    let word = |word: u64| segment.load(block + word);
    let latencies = Histogram::new(|bucket| word(LATENCIES + 8 * bucket as u64));
    Ok(ProcessMetrics {
        slot,
        pid: word(PID),
        is_alive: segment.is_alive(slot)?,
        joined_ns: word(JOINED),
        commits: latencies.count().wrapping_sub(word(BEFORE)),
        latencies,
        latency_ns: word(LATENCY),
        counters: Counter::ALL.map(|counter| word(counter.at())),
        filled: Filled::unpack(word(FILLED)),
        limit_bytes: word(LIMIT),
    })
}

/// Returns the metrics of all processes that have used the segment since its current initialisation, including
/// processes that have ended.
///
/// # Errors
/// If the kernel does not report which processes are alive.
pub(crate) fn read_all(
    segment: &dyn Segment,
    base: u64,
    beginning: u64,
) -> Result<Vec<ProcessMetrics>, MediumError> {
    let blocks = (0..PROCESS_SLOTS).map(|slot| (slot, base + slot as u64 * BLOCK_BYTES));
    blocks
        .filter(|(_, block)| segment.load(block + TAG) == tag_of(beginning))
        .map(|(slot, block)| read(segment, slot, block))
        .collect()
}

/// Returns how full the log was at the newest commit of these processes; `None` before the first commit. `clock_ns` is
/// the present time by the segment's clock.
#[must_use]
pub fn fill(processes: &[ProcessMetrics], clock_ns: u64) -> Option<Fill> {
    let age = |process: &&ProcessMetrics| Filled::time_of(clock_ns).wrapping_sub(process.filled.time);
    let newest = processes.iter().filter(|process| process.limit_bytes > 0).min_by_key(age)?;
    Some(Fill { used_bytes: newest.filled.used_bytes, limit_bytes: newest.limit_bytes })
}

#[cfg(test)]
mod histogram_tests {
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

    /// Advances Marsaglia's xorshift generator, which yields the same numbers in every run.
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
            // Times of all orders of magnitude up to a minute, each equally often.
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
