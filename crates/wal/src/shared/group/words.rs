//! The words that processes share, and their offsets.

use duralite_format::sqlite_wal::WAL_HEADER_BYTES;
use duralite_medium::PROCESS_SLOTS;

use super::framing::AREA_BYTES;

// Offsets relative to the group's part of the segment. Frequently written words are on cache lines of their own.

/// The number of the generation in force.
pub(super) const GENERATION: u64 = 0;
/// The end of the last sealed transaction, as a [`Mark`]. The holder of SQLite's WRITE lock moves it when it seals a
/// transaction; a leader sets its bit *closed*.
pub(super) const TAIL: u64 = 128;
/// The end of the last group that a leader has finished, as a [`Mark`]: committers up to here need not wait any more. The
/// group is as durable as the log's `durability` makes it. With `durability=normal` it is only written, and
/// [`HARDENED`] says what survives a power loss.
pub(super) const DURABLE: u64 = 256;
/// The end of the bytes that the ring has, or that a writer is about to store in it. A writer raises this word before it
/// overwrites old bytes: those more than [`RING_BYTES`] before it have left the ring.
pub(super) const FRONTIER: u64 = 384;
/// The leader word. From [`EPOCH`] up: an epoch that every acquisition advances. Below: the slot of the leader's process,
/// plus 1 (0 if there is no leader), and the flag [`ALONE`].
pub(super) const LEADER: u64 = 512;
/// Not 0 once a write or flush of the log has failed in any process, or a group made no sense: no process uses the log
/// any more (invariant 9).
pub(super) const POISON: u64 = 640;
/// The byte position up to which the log survives a power loss. It follows [`DURABLE`] where each group is flushed. With
/// `durability=normal` only [`Group::force`](super::Group::force) moves it. The word of the same name in
/// `directory/words.rs` is about the log's file and the guard.
pub(super) const HARDENED: u64 = 768;
/// The end of the last transaction that bypassed the ring; at first the end of the log that recovery found. Bytes before it
/// are on the device, and not in the ring. A leader that finds here the end of its group has nothing to write. The word may
/// be beyond [`TAIL`] while the writer seals such a transaction, or after that writer's death.
pub(super) const DIRECT_END: u64 = 896;
/// The words on which committers sleep, by the parity of their group's number. The thread that wakes them first adds 1.
pub(super) const SLEEPERS: [u64; 2] = [1024, 1152];
/// Offset from a word of [`SLEEPERS`] to its count of threads that sleep on it or are about to. The count is too high
/// after the death of a sleeping process.
pub(super) const SLEEPING: u64 = 8;
/// The byte position at which a generation begins, by the parity of its number.
pub(super) const STARTS: [u64; 2] = [1280, 1288];
/// The byte position at which a closed group ends, by the parity of its number, once the next group is open.
pub(super) const ENDS: [u64; 2] = [1296, 1304];
/// The number of the newest generation. While it differs from [`GENERATION`], a switch to that generation has begun, and
/// the words `INTENT_...` are the contents of the new generation's slot.
pub(super) const INTENT: u64 = 1408;
/// Whether the new generation has no WAL header, and whether the log is retired.
pub(super) const INTENT_STATE: u64 = 1416;
/// SQLite's WAL header, in as many bytes.
pub(super) const INTENT_HEADER: u64 = 1424;
/// Transactions sealed before the new generation: the log's position, not a byte position.
pub(super) const INTENT_POSITION: u64 = 1456;
/// When the new generation began, in milliseconds since 1970.
pub(super) const INTENT_TIME: u64 = 1464;
/// The settings with which the log is used: see [`GroupOptions::settings`](super::GroupOptions::settings).
pub(super) const SETTINGS: u64 = 1536;
/// The length of the file in bytes that is known to be durable. A process that sees a longer file may see space that
/// another process was preallocating when it died. 0 if unknown.
pub(super) const LENGTH: u64 = 1544;
/// A word for each process slot: how many of its threads may write groups or generations to the device.
const WRITING: u64 = 2048;
/// Bytes of the segment that must be zeros initially. The ring after them need not be: only bytes that were written to
/// it are read.
pub(crate) const STATE_BYTES: u64 = RING;
/// Where the ring begins. The byte at a byte position is at that position modulo [`RING_BYTES`] of it.
pub(super) const RING: u64 = 4096;

/// Size of the ring, which holds sealed transactions until a leader has written them; a power of two.
pub(crate) const RING_BYTES: u64 = 1 << 20;
/// Bytes of the segment that the group's part occupies.
pub(crate) const SHARED_BYTES: u64 = RING + RING_BYTES;
/// A larger transaction bypasses the ring.
pub(crate) const RING_SHARE: u64 = RING_BYTES / 4;

/// The unit of the epoch in the leader word.
pub(super) const EPOCH: u64 = 1 << 16;
/// The leader switches the generation, or is about to: no other thread may be writing.
pub(super) const ALONE: u64 = 1 << 8;

/// The slot of the leader's process.
pub(super) fn process_of(leader: u64) -> Option<usize> {
    (leader % ALONE).checked_sub(1).map(|process| process as usize)
}

/// Offset of a process slot's count of writers.
pub(super) fn writing(process: usize) -> u64 {
    WRITING + 8 * process as u64
}

/// A byte position with the number of its group, as `TAIL` and `DURABLE` store it: the position in units of 8 bytes from
/// bit 7 up, the group number in bits 1 to 6, and in bit 0 whether the group is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mark {
    /// A byte position, a multiple of 8.
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
