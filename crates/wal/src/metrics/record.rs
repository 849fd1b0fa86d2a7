//! Counting events, in a process that uses the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use duralite_medium::Segment;

use super::histogram::{BUCKETS, bucket_of};
use super::layout::{
    BEFORE, BLOCK_BYTES, COUNTERS, FILLED, Filled, JOINED, LATENCIES, LATENCY, LIMIT, PID, TAG, tag_of,
};
use crate::engine::{Fill, Led};

/// The events that are counted besides commits. The sums over all processes only grow until the segment begins anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// Requests for locks of the wal-index that were refused.
    Refusals,
    /// Checkpoints that wrote something to the database.
    Checkpoints,
    /// Groups that this process has written as leader, each with one write and at most one flush.
    Groups,
    /// Transactions in those groups, as [`Led::transactions`] counts them.
    Grouped,
}

impl Counter {
    /// All events, in the order of their words.
    pub const ALL: [Self; 4] = [Self::Refusals, Self::Checkpoints, Self::Groups, Self::Grouped];
}

/// The metrics block of this process.
pub struct Recorder {
    segment: Arc<dyn Segment>,
    block: u64,
    /// How much of what this process has led it has already counted.
    told: [AtomicU64; 2],
}

impl Recorder {
    /// The block of a process that has a slot, among the blocks that begin at `base`. The process has called
    /// [`Recorder::join`].
    #[must_use]
    pub fn new(segment: Arc<dyn Segment>, base: u64) -> Self {
        let block = base + segment.process_slot() as u64 * BLOCK_BYTES;
        Self { segment, block, told: Default::default() }
    }

    /// Takes the block over for a process that has just got its slot, in a segment with this beginning.
    pub fn join(segment: Arc<dyn Segment>, base: u64, beginning: u64) {
        let own = Self::new(segment, base);
        let tag = tag_of(beginning);
        if own.load(TAG) != tag {
            // An observer that looks meanwhile sees no block.
            own.store(TAG, 0);
            (8..BLOCK_BYTES).step_by(8).for_each(|word| own.store(word, 0));
        }
        let buckets = (0..BUCKETS as u64).map(|bucket| own.load(LATENCIES + 8 * bucket));
        own.store(BEFORE, buckets.fold(0, u64::wrapping_add));
        own.store(JOINED, own.segment.clock_ns());
        own.store(PID, u64::from(std::process::id()));
        own.store(TAG, tag);
    }

    fn load(&self, word: u64) -> u64 {
        self.segment.load(self.block + word)
    }

    fn store(&self, word: u64, value: u64) {
        self.segment.store(self.block + word, value);
    }

    fn add(&self, word: u64, value: u64) {
        self.segment.fetch_add(self.block + word, value);
    }

    /// Counts `more` events.
    pub fn count(&self, counter: Counter, more: u64) {
        self.add(COUNTERS + 8 * counter as u64, more);
    }

    /// Counts an acknowledged commit: `began_ns` is when the writing of it began, and `fill` how full the log was after
    /// it. This reads the clock once and writes three words.
    pub fn committed(&self, began_ns: u64, fill: Fill) {
        let now = self.segment.clock_ns();
        let latency = now.saturating_sub(began_ns);
        self.add(LATENCIES + 8 * bucket_of(latency) as u64, 1);
        self.add(LATENCY, latency);
        let filled = Filled { used_bytes: fill.used_bytes, time: Filled::time_of(now) };
        self.store(FILLED, filled.pack());
        if self.load(LIMIT) != fill.limit_bytes {
            self.store(LIMIT, fill.limit_bytes);
        }
    }

    /// Adds what this process has led since the last call.
    pub fn led(&self, led: Led) {
        let both = [(Counter::Groups, led.groups), (Counter::Grouped, led.transactions)];
        for ((counter, so_far), told) in both.into_iter().zip(&self.told) {
            // Of several threads that call this at once, each counts what is new to it.
            if told.load(Ordering::Relaxed) < so_far {
                let before = told.fetch_max(so_far, Ordering::Relaxed);
                self.count(counter, so_far.saturating_sub(before));
            }
        }
    }
}
