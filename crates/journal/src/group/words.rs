//! The words that processes share, and where they are.

use duralite_logfmt::sqlite_wal::WAL_HEADER_BYTES;
use duralite_medium::PROCESS_SLOTS;

use super::framing::AREA_BYTES;

/// Words, each on lines of its own, relative to where the group's part of the segment begins.
pub(super) const GENERATION: u64 = 0;
pub(super) const TAIL: u64 = 128;
pub(super) const DURABLE: u64 = 256;
pub(super) const FRONTIER: u64 = 384;
/// Who leads: [`EPOCH`] and above a number that every acquisition advances, below it the process slot + 1
/// (0 for nobody) and whether it is alone.
pub(super) const LEADER: u64 = 512;
pub(super) const POISON: u64 = 640;
pub(super) const HARDENED: u64 = 768;
pub(super) const DIRECT_END: u64 = 896;
pub(super) const SLEEPERS: [u64; 2] = [1024, 1152];
/// How many sleep, or are about to, beside their word; more than there are when some have died.
pub(super) const SLEEPING: u64 = 8;
pub(super) const STARTS: [u64; 2] = [1280, 1288];
/// Where a closed group ends, by its parity, once the next is open.
pub(super) const ENDS: [u64; 2] = [1296, 1304];
/// A switch of generation that has begun: the number, and what its slot is to hold.
pub(super) const INTENT: u64 = 1408;
pub(super) const INTENT_STATE: u64 = 1416;
pub(super) const INTENT_HEADER: u64 = 1424;
pub(super) const INTENT_POSITION: u64 = 1456;
pub(super) const INTENT_TIME: u64 = 1464;
pub(super) const SETTINGS: u64 = 1536;
/// Bytes that the file has durably, as far as is known: whoever sees a longer one may see what a
/// process left that died while it preallocated. 0 where nobody has said yet.
pub(super) const LENGTH: u64 = 1544;
/// A word for each process: how many of its threads may write groups or generations to the device.
const WRITING: u64 = 2048;
/// Bytes of the segment that have to be zeros at first. The ring behind them need not be: only what has
/// been written to it is read.
pub(crate) const STATE_BYTES: u64 = RING;
pub(super) const RING: u64 = 4096;

/// Bytes of sealed transactions that may wait for a leader; a power of two.
pub(crate) const RING_BYTES: u64 = 1 << 20;
/// Bytes that the group's part takes in the segment.
pub(crate) const SHARED_BYTES: u64 = RING + RING_BYTES;
/// A transaction above this is written past the ring.
pub(crate) const RING_SHARE: u64 = RING_BYTES / 4;

pub(super) const EPOCH: u64 = 1 << 16;
/// The leader switches the generation, or is about to: nobody else may be writing.
pub(super) const ALONE: u64 = 1 << 8;

/// The process that leads.
pub(super) fn process_of(leader: u64) -> Option<usize> {
    (leader % ALONE).checked_sub(1).map(|process| process as usize)
}

/// Where a process's count of writers is.
pub(super) fn writing(process: usize) -> u64 {
    WRITING + 8 * process as u64
}

/// A position with the number of its group, as `TAIL` and `DURABLE` hold it: bits 7.. position in
/// units of 8 bytes, bits 1..7 group number, bit 0 whether the group is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) position: u64,
    pub(super) group: u64,
    pub(super) closed: bool,
}

/// Group numbers wrap: only two groups are ever not durable.
pub(super) const GROUP_NUMBERS: u64 = 1 << 6;

impl Mark {
    pub(super) fn pack(self) -> u64 {
        (self.position / 8) << 7 | (self.group % GROUP_NUMBERS) << 1 | u64::from(self.closed)
    }

    pub(super) fn unpack(word: u64) -> Self {
        Self { position: (word >> 7) * 8, group: word >> 1 & (GROUP_NUMBERS - 1), closed: word & 1 != 0 }
    }
}

const _: () = assert!(RING_BYTES.is_power_of_two() && RING.is_multiple_of(AREA_BYTES));
const _: () = assert!(LENGTH < WRITING && WRITING + 8 * PROCESS_SLOTS as u64 <= RING);
const _: () = assert!((PROCESS_SLOTS as u64) < ALONE && ALONE < EPOCH);
const _: () = assert!(INTENT_HEADER + WAL_HEADER_BYTES as u64 <= INTENT_POSITION);
const _: () = assert!(INTENT_TIME + 8 <= SETTINGS);
