//! Counts of what was done to a medium.

use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};

/// What has been done to a medium through one object. Subtract two to get what lies between.
///
/// Counts are exact for one writer; concurrent readers may lose counts of each other in
/// `read_bytes` and `lines_read`, and so may writers of disjoint bytes in the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes stored or streamed.
    pub stored_bytes: u64,
    /// Calls that stored or streamed.
    pub stores: u64,
    /// Lines flushed, and lines that a stream touched. A line flushed twice counts twice. Where
    /// the persistency model has no flushes, none is counted.
    pub flushed_lines: u64,
    /// Of those, the lines that were stored past the cache.
    pub streamed_lines: u64,
    /// Persist barriers. Where the persistency model has none, none is counted.
    pub fences: u64,
    /// Bytes read, without single words loaded.
    pub read_bytes: u64,
    /// Lines that reads touched.
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

/// The writer's half, on lines of its own: readers in other threads must not take them away.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Written {
    bytes: AtomicU64,
    stores: AtomicU64,
    flushed_lines: AtomicU64,
    streamed_lines: AtomicU64,
    fences: AtomicU64,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Read {
    bytes: AtomicU64,
    lines: AtomicU64,
}

/// Counters that are kept with plain loads and stores.
///
/// Where there is one writer at a time nothing is lost; a locked addition would cost more than
/// the flush that it counts.
#[derive(Debug, Default)]
pub(crate) struct CounterCells {
    written: Written,
    read: Read,
}

#[inline(always)]
fn bump(cell: &AtomicU64, by: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl CounterCells {
    #[inline(always)]
    pub(crate) fn stored(&self, bytes: u64) {
        bump(&self.written.bytes, bytes);
        bump(&self.written.stores, 1);
    }

    #[inline(always)]
    pub(crate) fn flushed(&self, lines: u64) {
        bump(&self.written.flushed_lines, lines);
    }

    /// Lines that were stored past the cache, which count as flushed too.
    #[inline(always)]
    pub(crate) fn streamed(&self, lines: u64) {
        self.flushed(lines);
        bump(&self.written.streamed_lines, lines);
    }

    #[inline(always)]
    pub(crate) fn fenced(&self) {
        bump(&self.written.fences, 1);
    }

    #[inline(always)]
    pub(crate) fn read(&self, bytes: u64, lines: u64) {
        bump(&self.read.bytes, bytes);
        bump(&self.read.lines, lines);
    }

    pub(crate) fn get(&self) -> Counters {
        Counters {
            stored_bytes: self.written.bytes.load(Ordering::Relaxed),
            stores: self.written.stores.load(Ordering::Relaxed),
            flushed_lines: self.written.flushed_lines.load(Ordering::Relaxed),
            streamed_lines: self.written.streamed_lines.load(Ordering::Relaxed),
            fences: self.written.fences.load(Ordering::Relaxed),
            read_bytes: self.read.bytes.load(Ordering::Relaxed),
            lines_read: self.read.lines.load(Ordering::Relaxed),
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
