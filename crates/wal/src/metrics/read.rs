//! Reading the metrics of processes, as an observer.

use duralite_medium::{MediumError, PROCESS_SLOTS, Segment};

use super::histogram::Histogram;
use super::layout::{
    BEFORE, BLOCK_BYTES, COUNTERS, FILLED, Filled, JOINED, LATENCIES, LATENCY, LIMIT, PID, TAG, tag_of,
};
use super::record::Counter;
use crate::engine::Fill;

/// The metrics of a process, and of the earlier processes in its slot.
#[derive(Debug, Clone)]
pub struct ProcessMetrics {
    /// The process slot.
    pub slot: usize,
    /// The process id, as the process stored it: in its own namespace.
    pub pid: u64,
    /// Whether the process lives. If not, the slot is free, and the counts are of processes that have ended.
    pub is_alive: bool,
    /// When the process joined, by the segment's clock, in nanoseconds.
    pub joined_ns: u64,
    /// Commits of this process alone.
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
    /// The number of events of a kind.
    #[must_use]
    pub fn counted(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    #[cfg(test)]
    pub(super) fn set_filled(&mut self, used_bytes: u64, clock_ns: u64) {
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
        counters: std::array::from_fn(|counter| word(COUNTERS + 8 * counter as u64)),
        filled: Filled::unpack(word(FILLED)),
        limit_bytes: word(LIMIT),
    })
}

/// The metrics of all processes that have counted since this beginning of the segment, including those that have ended.
///
/// # Errors
/// When the kernel does not report which processes live.
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

/// How full the log was at the newest commit of these processes, where `clock_ns` is the time now by the segment's
/// clock; `None` before the first commit.
#[must_use]
pub fn fill(processes: &[ProcessMetrics], clock_ns: u64) -> Option<Fill> {
    let age = |process: &&ProcessMetrics| Filled::time_of(clock_ns).wrapping_sub(process.filled.time);
    let newest = processes.iter().filter(|process| process.limit_bytes > 0).min_by_key(age)?;
    Some(Fill { used_bytes: newest.filled.used_bytes, limit_bytes: newest.limit_bytes })
}
