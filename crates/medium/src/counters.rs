//! Counts of what was done to a medium.

use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of the operations on a medium through one object. To count what a piece of work does, read the
/// counts before and after it, and subtract.
///
/// Counts are exact as long as one thread at a time uses the object. If several threads store or read at the
/// same time, some counts may be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The number of bytes stored or streamed.
    pub stored_bytes: u64,
    /// The number of calls that stored or streamed.
    pub stores: u64,
    /// The number of lines flushed, and of lines touched by non-temporal stores. A line flushed twice counts
    /// twice. The count stays 0 under a persistency model without flushes.
    pub flushed_lines: u64,
    /// The number of the flushed lines that non-temporal stores touched.
    pub streamed_lines: u64,
    /// The number of persist barriers. They are not counted under a persistency model without barriers.
    pub fences: u64,
    /// The number of bytes read, except words that were loaded one by one.
    pub read_bytes: u64,
    /// The number of lines that reads touched.
    pub lines_read: u64,
}

impl Sub for Counters {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            stored_bytes: self.stored_bytes.wrapping_sub(earlier.stored_bytes),
            stores: self.stores.wrapping_sub(earlier.stores),
            flushed_lines: self.flushed_lines.wrapping_sub(earlier.flushed_lines),
            streamed_lines: self.streamed_lines.wrapping_sub(earlier.streamed_lines),
            fences: self.fences.wrapping_sub(earlier.fences),
            read_bytes: self.read_bytes.wrapping_sub(earlier.read_bytes),
            lines_read: self.lines_read.wrapping_sub(earlier.lines_read),
        }
    }
}

/// The counts of some of the threads. Each shard is on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    stored_bytes: AtomicU64,
    stores: AtomicU64,
    flushed_lines: AtomicU64,
    streamed_lines: AtomicU64,
    fences: AtomicU64,
    read_bytes: AtomicU64,
    lines_read: AtomicU64,
}

const SHARDS: usize = 16;

/// Counters that are kept with plain loads and stores.
///
/// No count is lost as long as one thread at a time counts in a shard. An atomic addition would lose no count
/// even with several threads, but would cost more than the flush that it counts. Threads usually count in
/// separate shards, because if two cores write the same cache line, moving the line between them takes longer
/// than the store that is counted.
#[derive(Debug, Default)]
pub(crate) struct CounterCells {
    shards: [Shard; SHARDS],
}

#[inline(always)]
fn bump(cell: &AtomicU64, by: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl CounterCells {
    /// Returns the shard of this thread. The address of the thread's stack selects the shard, because that
    /// costs less than a thread-local variable in a loaded library. So one thread may use several shards, and
    /// two threads may share one.
    #[inline(always)]
    fn own(&self) -> &Shard {
        let on_the_stack = 0_u8;
        let stack = std::ptr::from_ref(&on_the_stack).addr() as u64 >> 21;
        let mixed = stack.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - SHARDS.trailing_zeros());
        &self.shards[mixed as usize % SHARDS]
    }

    #[inline(always)]
    pub(crate) fn stored(&self, bytes: u64) {
        let own = self.own();
        bump(&own.stored_bytes, bytes);
        bump(&own.stores, 1);
    }

    #[inline(always)]
    pub(crate) fn flushed(&self, lines: u64) {
        bump(&self.own().flushed_lines, lines);
    }

    /// Counts lines of non-temporal stores. They count as flushed, too.
    #[inline(always)]
    pub(crate) fn streamed(&self, lines: u64) {
        self.flushed(lines);
        bump(&self.own().streamed_lines, lines);
    }

    #[inline(always)]
    pub(crate) fn fenced(&self) {
        bump(&self.own().fences, 1);
    }

    #[inline(always)]
    pub(crate) fn read(&self, bytes: u64, lines: u64) {
        let own = self.own();
        bump(&own.read_bytes, bytes);
        bump(&own.lines_read, lines);
    }

    pub(crate) fn get(&self) -> Counters {
        let sum = |cell: fn(&Shard) -> &AtomicU64| {
            let counts = self.shards.iter().map(|shard| cell(shard).load(Ordering::Relaxed));
            counts.fold(0, u64::wrapping_add)
        };
        Counters {
            stored_bytes: sum(|shard| &shard.stored_bytes),
            stores: sum(|shard| &shard.stores),
            flushed_lines: sum(|shard| &shard.flushed_lines),
            streamed_lines: sum(|shard| &shard.streamed_lines),
            fences: sum(|shard| &shard.fences),
            read_bytes: sum(|shard| &shard.read_bytes),
            lines_read: sum(|shard| &shard.lines_read),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences() {
        let cells = CounterCells::default();
        cells.stored(10);
        cells.flushed(2);
        let earlier = cells.get();
        cells.stored(7);
        cells.fenced();
        cells.read(100, 3);
        assert_eq!(
            cells.get() - earlier,
            Counters {
                stored_bytes: 7,
                stores: 1,
                flushed_lines: 0,
                streamed_lines: 0,
                fences: 1,
                read_bytes: 100,
                lines_read: 3,
            }
        );
    }
}
