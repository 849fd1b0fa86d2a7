//! The layout of a process's block.

use duralite_medium::PROCESS_SLOTS;

use super::histogram::BUCKETS;

/// Bytes of the segment that the blocks occupy, beginning at a multiple of 64.
pub const METRICS_BYTES: u64 = PROCESS_SLOTS as u64 * BLOCK_BYTES;
pub(super) const BLOCK_BYTES: u64 = LATENCIES + 8 * BUCKETS as u64;

/// The beginning of the segment from which the block counts; see [`tag_of`].
pub(super) const TAG: u64 = 0;
pub(super) const PID: u64 = 8;
/// When the process joined, by the segment's clock, in nanoseconds.
pub(super) const JOINED: u64 = 16;
/// Commits of the earlier processes in this slot.
pub(super) const BEFORE: u64 = 24;
/// The sum of all latencies in nanoseconds.
pub(super) const LATENCY: u64 = 32;
/// The first of the counters, in the order of [`Counter`](super::Counter).
pub(super) const COUNTERS: u64 = 40;
/// How full the log was at the newest commit; see [`Filled`].
pub(super) const FILLED: u64 = 72;
/// The log's limit in bytes.
pub(super) const LIMIT: u64 = 80;
/// The number of latencies in each bucket.
pub(super) const LATENCIES: u64 = 128;

/// Distinguishes a block from other bytes, such as those of a file with another layout.
const METRICS: u64 = u64::from_le_bytes(*b"DURAFIGS");

/// The tag of blocks that count from this beginning of the segment.
pub(super) fn tag_of(beginning: u64) -> u64 {
    METRICS ^ beginning
}

/// How full the log was, and when. Both are in one word, so that they belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Filled {
    pub(super) used_bytes: u64,
    /// In units of 2^20 ns of the segment's clock; wraps after 52 days.
    pub(super) time: u32,
}

impl Filled {
    pub(super) fn time_of(clock_ns: u64) -> u32 {
        (clock_ns >> 20) as u32
    }

    pub(super) fn pack(self) -> u64 {
        u64::from(self.time) << 32 | (self.used_bytes / 1024).min(u64::from(u32::MAX))
    }

    pub(super) fn unpack(word: u64) -> Self {
        Self { used_bytes: (word & 0xffff_ffff) * 1024, time: (word >> 32) as u32 }
    }
}
