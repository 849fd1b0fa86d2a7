//! What processes hold, for any program that may read the segment.

use duralite_medium::Segment;

use crate::layout::{FIRST_READ, HELD, HIGH, LINE, MEMBERS_OFFSET, RESERVED, SLOTS, WRITE};

/// What the process of a slot holds. A dead process may have left this so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The process slot.
    pub process: usize,
    /// The locks that the process holds shared, a bit each.
    pub shared: u8,
    /// The locks that it holds exclusively, a bit each.
    pub exclusive: u8,
    /// Whether WRITE, among those, is reserved for a connection that has not come back for it yet.
    pub is_reserved: bool,
    /// Since when the process has held the oldest of its read marks without a break, by the segment's clock,
    /// in nanoseconds. `None` when it holds none.
    pub reads_since: Option<u64>,
}

/// One more than the highest process slot that was ever used.
pub(crate) fn high(segment: &dyn Segment, base: u64) -> usize {
    (segment.load(base + HIGH) as usize).min(duralite_medium::PROCESS_SLOTS)
}

/// Where the words of a process are.
pub(crate) fn process_slot(base: u64, process: usize) -> u64 {
    base + MEMBERS_OFFSET + process as u64 * LINE
}

/// Where a process's line says since when it has held a read mark.
pub(crate) fn read_since(base: u64, process: usize, slot: usize) -> u64 {
    process_slot(base, process) + 16 + 8 * (slot - FIRST_READ) as u64
}

/// Lists what each process holds in the table at `base`, without the processes that hold nothing. Changes
/// nothing, and keeps no process waiting.
#[must_use]
pub fn observe(segment: &dyn Segment, base: u64) -> Vec<Held> {
    let held = |process: usize| {
        let word = segment.load(process_slot(base, process));
        let (shared, exclusive) = (word as u8, (word >> HELD) as u8);
        let marks = (FIRST_READ..SLOTS).filter(|slot| shared & 1 << slot != 0);
        let reads_since = marks.map(|slot| segment.load(read_since(base, process, slot))).min();
        let is_reserved = word & RESERVED != 0 && exclusive & 1 << WRITE != 0;
        Held { process, shared, exclusive, is_reserved, reads_since }
    };
    let all = (0..high(segment, base)).map(held);
    all.filter(|held| held.shared != 0 || held.exclusive != 0).collect()
}
