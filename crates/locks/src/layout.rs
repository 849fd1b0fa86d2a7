//! Where what stands in the segment.

use duralite_medium::PROCESS_SLOTS;

/// Locks of a wal-index.
pub const SLOTS: usize = 8;
/// The lock of whoever writes.
pub const WRITE: usize = 0;
/// The lock of whoever checkpoints.
pub const CHECKPOINT: usize = 1;
/// The first of the locks that are readers' marks.
pub const FIRST_READ: usize = 3;
/// The word that is not 0 where somebody may read the segment who may not write it. Who maps the segment sets it.
pub const OUTSIDE: u64 = 8;
/// Bytes that the table takes in the segment, from a multiple of 64 on.
pub const LAYOUT_BYTES: u64 = WAITERS_OFFSET + WAITERS as u64 * LINE;

pub(crate) const LINE: u64 = 64;
/// One more than the highest process slot that was ever used.
pub(crate) const HIGH: u64 = 0;
pub(crate) const MEMBERS_OFFSET: u64 = 8 * LINE;
pub(crate) const HELD: u32 = 8;
pub(crate) const CLAIMED: u32 = 16;
/// WRITE is held for a connection that has not come back for it yet.
pub(crate) const RESERVED: u64 = 1 << 24;
pub(crate) const EPOCH: u64 = 1 << 32;
/// Within a process's line: when anybody last asked the kernel whether it lives, because it was in the way.
pub(crate) const EXAMINED: u64 = 56;
/// Connections that can queue at once; more of them sleep without a place.
pub(crate) const WAITERS: usize = 256;
pub(crate) const WAITERS_OFFSET: u64 = MEMBERS_OFFSET + PROCESS_SLOTS as u64 * LINE;
