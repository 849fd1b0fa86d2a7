//! The words that processes share, and their offsets.

use duralite_logfmt::sqlite_wal::WAL_HEADER_BYTES;
use duralite_medium::PROCESS_SLOTS;

use super::framing::AREA_BYTES;

/// Offsets relative to the group's part of the segment. Frequently written words are on cache lines of their own.
pub(super) const GENERATION: u64 = 0;
pub(super) const TAIL: u64 = 128;
pub(super) const DURABLE: u64 = 256;
pub(super) const FRONTIER: u64 = 384;
/// The leader word. From [`EPOCH`] up: an epoch that every acquisition advances. Below: the leader's process slot + 1
/// (0 if there is no leader), and the flag [`ALONE`].
pub(super) const LEADER: u64 = 512;
pub(super) const POISON: u64 = 640;
pub(super) const HARDENED: u64 = 768;
pub(super) const DIRECT_END: u64 = 896;
pub(super) const SLEEPERS: [u64; 2] = [1024, 1152];
/// Offset from a word of [`SLEEPERS`] to its count of threads that sleep on it or are about to. The count is too high
/// after the death of a sleeping process.
pub(super) const SLEEPING: u64 = 8;
pub(super) const STARTS: [u64; 2] = [1280, 1288];
/// The end of a closed group, by the parity of its number, once the next group is open.
pub(super) const ENDS: [u64; 2] = [1296, 1304];
/// A switch of generation that has begun: the new generation's number, and the contents of its slot.
pub(super) const INTENT: u64 = 1408;
pub(super) const INTENT_STATE: u64 = 1416;
pub(super) const INTENT_HEADER: u64 = 1424;
pub(super) const INTENT_POSITION: u64 = 1456;
pub(super) const INTENT_TIME: u64 = 1464;
pub(super) const SETTINGS: u64 = 1536;
/// The length of the file in bytes that is known to be durable. A process that sees a longer file may see space that
/// another process was preallocating when it died. 0 if unknown.
pub(super) const LENGTH: u64 = 1544;
/// A word for each process slot: how many of its threads may write groups or generations to the device.
const WRITING: u64 = 2048;
/// Bytes of the segment that must be zeros initially. The ring after them need not be: only bytes that were written to
/// it are read.
pub(crate) const STATE_BYTES: u64 = RING;
pub(super) const RING: u64 = 4096;

/// Size of the ring, which holds sealed transactions until a leader has written them; a power of two.
pub(crate) const RING_BYTES: u64 = 1 << 20;
/// Bytes of the segment that the group's part occupies.
pub(crate) const SHARED_BYTES: u64 = RING + RING_BYTES;
/// A larger transaction bypasses the ring.
pub(crate) const RING_SHARE: u64 = RING_BYTES / 4;

pub(super) const EPOCH: u64 = 1 << 16;
/// The leader switches the generation, or is about to: no other thread may be writing.
pub(super) const ALONE: u64 = 1 << 8;

/// The process slot of the leader.
pub(super) fn process_of(leader: u64) -> Option<usize> {
    (leader % ALONE).checked_sub(1).map(|process| process as usize)
}

/// Offset of a process slot's count of writers.
pub(super) fn writing(process: usize) -> u64 {
    WRITING + 8 * process as u64
}

/// A position with the number of its group, as `TAIL` and `DURABLE` store it: the position in units of 8 bytes from bit
/// 7 up, the group number in bits 1 to 6, and in bit 0 whether the group is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) position: u64,
    pub(super) group: u64,
    pub(super) closed: bool,
}

/// Group numbers wrap: at most two groups are not durable at any time.
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
