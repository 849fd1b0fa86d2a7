//! Where each word of the lock table is in the segment.

use duralite_medium::PROCESS_SLOTS;

/// The number of locks of a wal-index.
pub const SLOTS: usize = 8;
/// The lock of the connection that writes.
pub const WRITE: usize = 0;
/// The lock of the connection that checkpoints.
pub const CHECKPOINT: usize = 1;
/// The first of the locks that are readers' marks. A connection that reads holds one of these locks shared.
pub const FIRST_READ: usize = 3;
/// The offset of the word that is not 0 if some users may read the segment but not write it. Processes that
/// map the segment set this word.
pub const OUTSIDE: u64 = 8;
/// The number of bytes that the table takes in the segment. The table begins at a multiple of 64.
pub const LAYOUT_BYTES: u64 = PLACES_OFFSET + WAITERS as u64 * LINE;

pub(crate) const LINE: u64 = 64;
/// The offset of the word that holds the highest process slot ever used, plus 1.
pub(crate) const HIGH: u64 = 0;

const MEMBERS_OFFSET: u64 = 8 * LINE;

/// Returns the offset of the cache line that describes a process. The first word of that line contains the
/// locks that the process holds (shared in the lowest bits, exclusive from [`HELD`] up), the locks that it
/// claims ([`CLAIMED`]), the flags [`RESERVED`] and [`BOTH`], and the [`EPOCH`].
pub(crate) const fn member(process: usize) -> u64 {
    MEMBERS_OFFSET + process as u64 * LINE
}

pub(crate) const HELD: u32 = 8;
pub(crate) const CLAIMED: u32 = 16;
/// The flag that says that the process holds WRITE only as a reservation for one of its connections, which
/// has not taken it up yet.
pub(crate) const RESERVED: u64 = 1 << 24;
/// The flag that says that one connection of the process holds both WRITE and CHECKPOINT.
pub(crate) const BOTH: u64 = 1 << 25;
pub(crate) const EPOCH: u64 = 1 << 32;

/// The offset, in the cache line of a process, of the time at which the process's reservation of WRITE ends.
pub(crate) const RESERVED_UNTIL: u64 = 8;

/// Returns the offset of the word that says since when the process has held a read mark.
pub(crate) const fn read_since(process: usize, slot: usize) -> u64 {
    member(process) + 16 + 8 * (slot - FIRST_READ) as u64
}

/// The offset, in the cache line of a process, of the time at which another process last asked the kernel
/// whether this process is alive. A process asks only if it wants a lock that this process holds.
pub(crate) const EXAMINED: u64 = 56;

/// The number of connections that can have a place in the queue at once. Any further connections sleep
/// without a place.
pub(crate) const WAITERS: usize = 256;
pub(crate) const WAITERS_OFFSET: u64 = MEMBERS_OFFSET + PROCESS_SLOTS as u64 * LINE;
pub(crate) const PLACES_OFFSET: u64 = WAITERS_OFFSET + WAITERS as u64 * 8;
