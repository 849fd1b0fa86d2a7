//! Group commit: sealed transactions wait in shared memory, and one thread, the leader, writes them for all.
//!
//! **Byte positions.** The place of a transaction in the log is a byte position. Byte positions only grow while
//! processes share the segment. Each generation maps its byte positions to offsets in the file, from
//! [`Geometry::data_offset`] on. The ring in the segment holds the newest bytes, in the form that they have on the
//! device. In this folder `position` means a byte position, with three exceptions: in [`Generation`], in
//! [`NewGeneration`] and in the word `INTENT_POSITION` it is the log's position, a number of transactions.
//!
//! **Words.** `TAIL` is the end of the last sealed transaction. `DURABLE` is the end of the last group that is as
//! durable as the log's `durability` makes it. Both words also hold the number of a group, and `TAIL` whether that
//! group is closed. While a closed group is not yet durable, the next group may already be open; `ENDS` then says where
//! the closed group ends.
//!
//! The holder of SQLite's WRITE lock appends: it writes to the ring after `TAIL` and moves `TAIL` by one
//! compare-and-exchange. The holder of the leader lock closes the open group by another compare-and-exchange, writes
//! the group with one write, flushes it, and moves `DURABLE`. Either process may die at any instruction. If it dies
//! before its exchange, it may have changed `FRONTIER`, `ENDS`, `DIRECT_END` and `LENGTH`, bytes of the ring, and bytes
//! of the device after the last durable group. None of these changes has an effect, because the next process overwrites
//! them. If it dies after the exchange, the words say what remains to be done, and the next leader does it with the
//! bytes in the ring (invariants 4, 7, 9). Another thread may replace a leader whose process is stopped: see
//! [`Group::take_over`], and "Stopped leaders" in `commit.rs`.
//!
//! **The leader** is a thread: mostly a committer, sometimes another thread that needs everything sealed to be durable.
//! The leader word holds the slot of the thread's process. [`Group::wait_for`] has the code for leading, sleeping and
//! replacing a leader. One other thread may write beside the leader: the holder of WRITE itself writes and flushes a
//! transaction that bypasses the ring, between [`Group::begin_direct`] and [`Group::publish_direct`], without the
//! leader lock.
//!
//! **Sleeping.** A committer sleeps on one of two words, chosen by the parity of its group. Two words are enough, because at
//! any time at most two groups are not durable, one closed and one open. The leader wakes all committers of its own group,
//! and one committer of the next group, which becomes the next leader.

mod commit;
mod generation;
mod left;
#[cfg(test)]
mod weak;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use duralite_format::sqlite_wal::WAL_HEADER_BYTES;
use duralite_medium::block::{AlignedBuf, Block, Durability};
use duralite_medium::{MediumError, PROCESS_SLOTS, Segment, Words};

use crate::LogError;
pub(crate) use commit::{Content, Placing};
pub(crate) use left::left;

// The words that processes share, and their offsets.

// Offsets relative to the group's part of the segment. Words that are written often are on cache lines of their own.

/// The number of the generation in force.
const GENERATION: u64 = 0;
/// The end of the last sealed transaction, as a [`Mark`]. The holder of SQLite's WRITE lock moves it when sealing a
/// transaction; a leader sets its bit *closed*.
const TAIL: u64 = 128;
/// The end of the last group that a leader, or the writer of a large transaction, has finished, as a [`Mark`].
/// Committers of transactions up to this end need not wait any more. The group is as durable as the setting
/// `durability` demands. With `durability=normal` it is only written, and [`FLUSHED`] says what survives a power loss.
const DURABLE: u64 = 256;
/// The end of the bytes that are in the ring, or that a writer is about to store in it. A writer raises this word
/// before it overwrites old bytes. So a reader knows that bytes more than [`RING_BYTES`] before `FRONTIER` have left
/// the ring.
const FRONTIER: u64 = 384;
/// The leader word. The bits from [`EPOCH`] up are an epoch that every acquisition advances. The lower bits are the
/// slot of the leader's process plus 1 (0 if there is no leader), and the flag [`ALONE`].
const LEADER: u64 = 512;
/// Not 0 once a write or flush of the log has failed in any process, or a group was inconsistent. No process uses the log after
/// that (invariant 9).
const POISON: u64 = 640;
/// The byte position up to which the log is flushed, and so survives a power loss. It moves with [`DURABLE`], but with
/// `durability=normal` only [`Group::force`] moves it.
const FLUSHED: u64 = 768;
/// The end of the last transaction that bypassed the ring; at first the end of the log that recovery found. Bytes
/// before this end are on the device, and not in the ring. So a leader has nothing to write if its group ends here. The
/// word is beyond [`TAIL`] while a writer seals a transaction that bypasses the ring, and after such a writer has died.
const DIRECT_END: u64 = 896;
/// The words on which committers sleep, by the parity of their group's number. The thread that wakes them adds 1 first.
const SLEEPERS: [u64; 2] = [1024, 1152];
/// Offset from a word of [`SLEEPERS`] to the count of threads that sleep on that word or are about to. If a sleeping
/// process dies, the count stays too high.
const SLEEPING: u64 = 8;
/// The byte position at which a generation begins, by the parity of its number.
const STARTS: [u64; 2] = [1280, 1288];
/// The byte position at which a closed group ends, by the parity of the group's number. The word is valid once the next
/// group is open.
const ENDS: [u64; 2] = [1296, 1304];
/// The number of the newest generation. If it differs from [`GENERATION`], a switch to the newest generation has begun, and the
/// words `INTENT_...` are the contents of that generation's slot.
const INTENT: u64 = 1408;
/// Whether the new generation has no WAL header, and whether the log is retired.
const INTENT_STATE: u64 = 1416;
/// SQLite's WAL header of the new generation. It takes as many bytes as in SQLite's own log.
const INTENT_HEADER: u64 = 1424;
/// The number of transactions sealed before the new generation. It is the log's position, not a byte position.
const INTENT_POSITION: u64 = 1456;
/// When the new generation begins, in milliseconds since 1970.
const INTENT_TIME: u64 = 1464;
/// The settings with which the log is used: see [`GroupOptions::settings`].
const SETTINGS: u64 = 1536;
/// The length of the file in bytes that is known to be durable; 0 if unknown. The file itself may be longer, because a
/// process may have died while it preallocated space.
const LENGTH: u64 = 1544;
/// A word for each process slot: how many threads of that process may write groups or generations to the device.
const WRITING: u64 = 2048;
/// Bytes of the segment that must be zeros initially. The ring, which follows these bytes, need not be zeros, because nobody
/// reads bytes of the ring that were not written.
pub(crate) const STATE_BYTES: u64 = RING;
/// Where the ring begins. Each byte is in the ring at its byte position modulo [`RING_BYTES`].
const RING: u64 = 4096;

/// Size of the ring, which holds sealed transactions until a leader has written them; a power of two.
pub(crate) const RING_BYTES: u64 = 1 << 20;
/// Bytes of the segment that the group's part occupies.
pub(crate) const SHARED_BYTES: u64 = RING + RING_BYTES;
/// A transaction larger than this bypasses the ring.
pub(crate) const RING_SHARE: u64 = RING_BYTES / 4;

/// The unit of the epoch in the leader word.
const EPOCH: u64 = 1 << 16;
/// A flag: the leader switches the generation, or is about to, and no other thread may be writing.
const ALONE: u64 = 1 << 8;

/// Returns the slot of the leader's process; `None` if there is no leader.
fn process_of(leader: u64) -> Option<usize> {
    (leader % ALONE).checked_sub(1).map(|process| process as usize)
}

/// Returns the offset of a process slot's count of writers.
fn writing(process: usize) -> u64 {
    WRITING + 8 * process as u64
}

/// A byte position with the number of its group, as `TAIL` and `DURABLE` store it: the position in units of 8 bytes from
/// bit 7 up, the group number in bits 1 to 6, and in bit 0 whether the group is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mark {
    /// A byte position, a multiple of 8.
    position: u64,
    group: u64,
    closed: bool,
}

/// Group numbers wrap, which is safe because at most two groups are not durable at any time.
const GROUP_NUMBERS: u64 = 1 << 6;

impl Mark {
    fn pack(self) -> u64 {
        (self.position / 8) << 7 | (self.group % GROUP_NUMBERS) << 1 | u64::from(self.closed)
    }

    fn unpack(word: u64) -> Self {
        Self { position: (word >> 7) * 8, group: word >> 1 & (GROUP_NUMBERS - 1), closed: word & 1 != 0 }
    }
}

const _: () = assert!(RING_BYTES.is_power_of_two() && RING.is_multiple_of(AREA_BYTES));
const _: () = assert!(LENGTH < WRITING && WRITING + 8 * PROCESS_SLOTS as u64 <= RING);
const _: () = assert!((PROCESS_SLOTS as u64) < ALONE && ALONE < EPOCH);
const _: () = assert!(INTENT_HEADER + WAL_HEADER_BYTES as u64 <= INTENT_POSITION);
const _: () = assert!(INTENT_TIME + 8 <= SETTINGS);

// The interface between group commit and the log that it serves. Group commit knows byte positions, groups and
// generations, but no format.

/// Each generation begins at a multiple of this number of bytes, and the file's length is such a multiple too. No
/// device has larger blocks.
pub(crate) const AREA_BYTES: u64 = 4096;

/// The layout of groups in the file.
#[derive(Debug, Clone)]
pub(crate) struct Geometry {
    /// Size of a block in bytes. The size of every write is a multiple of it.
    pub(crate) block_bytes: u32,
    /// The file offset at which every generation begins.
    pub(crate) data_offset: u64,
    /// The maximum length of the file in bytes.
    pub(crate) limit_bytes: u64,
    /// The path that errors name.
    pub(crate) path: PathBuf,
}

/// The options from the settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupOptions {
    /// How a group becomes durable.
    pub(crate) durability: Durability,
    /// How long other threads wait for a leader that makes no progress before they replace it.
    pub(crate) leader_patience: Duration,
    /// A number that encodes the settings on which all processes that use a log have to agree.
    pub(crate) settings: u64,
}

/// The beginning of a generation, as the log stores it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Generation {
    pub(crate) number: u64,
    /// SQLite's WAL header; `None` for an empty log.
    pub(crate) wal_header: Option<[u8; WAL_HEADER_BYTES]>,
    /// Whether everything committed is in the database file.
    pub(crate) retired: bool,
    /// The length in bytes that the file has at least.
    pub(crate) file_bytes: u64,
    /// The number of transactions sealed before this generation. It is the log's position, not a byte position.
    pub(crate) position: u64,
    /// When the generation began, in milliseconds since 1970.
    pub(crate) time_ms: u64,
}

/// The caller's parameters of a switch to a new generation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewGeneration {
    /// SQLite's WAL header; `None` for an empty log.
    pub(crate) wal_header: Option<[u8; WAL_HEADER_BYTES]>,
    /// Whether everything committed is in the database file.
    pub(crate) retired: bool,
    /// The number of bytes to which the file may be shrunk; `None` to keep its length.
    pub(crate) keep_bytes: Option<u64>,
    /// The number of transactions sealed before the new generation. It is the log's position, not a byte position.
    pub(crate) position: u64,
    /// When the new generation begins, in milliseconds since 1970.
    pub(crate) time_ms: u64,
}

/// The format of groups and generations on the device.
pub(crate) trait Framing: Send + Sync {
    /// Returns the number of bytes between the beginning of a group and its first transaction, a multiple of 8.
    fn header_bytes(&self) -> u64;

    /// Returns the bytes that take the place of a group's header until the group is closed. The group was opened at
    /// `time_ms`.
    fn placeholder(&self, generation: u64, time_ms: u64) -> Vec<u8>;

    /// Completes the header of a closed group that is about to be written at an offset of the file. `ordered` says whether
    /// everything before the group is durable. Returns the number of transactions in the group, for metrics, or 1 if counting
    /// them would cost too much.
    ///
    /// # Errors
    /// `Corrupt`.
    fn complete(
        &self,
        group: &mut [u8],
        generation: u64,
        offset: u64,
        ordered: bool,
    ) -> Result<u64, LogError>;

    /// Writes the beginning of a generation. It is durable on return. With `later`, it becomes durable only with the
    /// next flush or preallocation.
    ///
    /// # Errors
    /// An error of the device.
    fn begin(&self, block: &dyn Block, generation: &Generation, later: bool) -> Result<(), MediumError>;
}

/// Counts of what group commit has done in this process.
#[derive(Debug, Default)]
pub(crate) struct GroupActivity {
    pub(crate) groups: AtomicU64,
    pub(crate) led_transactions: AtomicU64,
    pub(crate) sleeps: AtomicU64,
}

/// A log's group commit, with the words and the ring that processes share.
pub(crate) struct Group {
    /// The words of the group's part of the segment.
    words: Words,
    /// This process's slot.
    process: usize,
    /// The segment, for copying bytes, and the offset at which the group's part of it begins.
    segment: Arc<dyn Segment>,
    base: u64,
    block: Arc<dyn Block>,
    geometry: Geometry,
    framing: Arc<dyn Framing>,
    options: GroupOptions,
    /// The buffer that the leader writes to the device.
    buffer: Mutex<AlignedBuf>,
    /// Why this process poisoned the log.
    reason: Mutex<Option<LogError>>,
    /// Whether a thread of this process panicked while it waited or led. If so, this process stops using the log. To
    /// the other processes it is as if this process had died at that instruction, which the protocol permits.
    panicked: AtomicBool,
    pub(crate) activity: GroupActivity,
}

/// The end of a log when the first process attaches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Recovered {
    pub(crate) generation: u64,
    /// Offset in the file just after the last committed transaction.
    pub(crate) end: u64,
}

impl Group {
    fn get(&self, word: u64) -> u64 {
        self.words.load(word)
    }

    fn set(&self, word: u64, value: u64) {
        self.words.store(word, value);
    }

    fn exchange(&self, word: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.words.compare_exchange(word, current, new)
    }

    /// Raises a word to a value. Does nothing if the word is already higher.
    fn advance(&self, word: u64, value: u64) {
        let mut seen = self.get(word);
        while seen < value {
            match self.exchange(word, seen, value) {
                Ok(_) => return,
                Err(current) => seen = current,
            }
        }
    }

    fn tail(&self) -> Mark {
        Mark::unpack(self.get(TAIL))
    }

    fn durable(&self) -> Mark {
        Mark::unpack(self.get(DURABLE))
    }

    /// Joins the processes that share the log. The first process sets the shared words from the state that recovery
    /// found (`recovered`).
    pub(crate) fn join(
        segment: Arc<dyn Segment>,
        base: u64,
        block: Arc<dyn Block>,
        geometry: Geometry,
        framing: Arc<dyn Framing>,
        options: GroupOptions,
        recovered: Option<Recovered>,
    ) -> Result<Self, LogError> {
        let group = Self {
            words: Words::new(Arc::clone(&segment), base, (STATE_BYTES / 8) as usize),
            process: segment.process_slot(),
            segment,
            base,
            block,
            geometry,
            framing,
            options,
            buffer: Mutex::default(),
            reason: Mutex::default(),
            panicked: AtomicBool::new(false),
            activity: GroupActivity::default(),
        };
        if let Some(Recovered { generation, end }) = recovered {
            let end = end.next_multiple_of(8);
            let closed = Mark { position: end, group: 0, closed: true };
            group.set(STARTS[(generation % 2) as usize], group.geometry.data_offset);
            group.set(GENERATION, generation);
            group.set(INTENT, generation);
            group.set(TAIL, closed.pack());
            group.set(DURABLE, Mark { closed: false, ..closed }.pack());
            group.set(FRONTIER, end);
            group.set(FLUSHED, end);
            // The ring is empty: everything before `end` is on the device.
            group.set(DIRECT_END, end);
            group.set(SETTINGS, group.options.settings);
            // The file's size is durable: the flush at the end of recovery made it so, or it was known to be durable before.
            group.set(LENGTH, group.block.len());
        } else if !group.segment.is_read_only() {
            group.bury_predecessor();
            if group.get(SETTINGS) != group.options.settings {
                return Err(LogError::Settings);
            }
        }
        Ok(group)
    }

    fn own(&self) -> u64 {
        self.process as u64 + 1
    }

    fn block_bytes(&self) -> u64 {
        u64::from(self.geometry.block_bytes)
    }

    pub(crate) fn block(&self) -> &dyn Block {
        self.block.as_ref()
    }

    /// Returns the generation in force.
    pub(crate) fn generation(&self) -> u64 {
        self.get(GENERATION)
    }

    /// Returns the end of the last sealed transaction, a byte position.
    pub(crate) fn sealed(&self) -> u64 {
        self.tail().position
    }

    /// Returns the end of the last group that is as durable as the setting `durability` demands, a byte position.
    pub(crate) fn durable_end(&self) -> u64 {
        self.durable().position
    }

    /// Makes sure that earlier reads happen before later loads of words.
    pub(crate) fn fence(&self) {
        self.segment.fence();
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// Returns the byte position at which a generation begins.
    pub(crate) fn start_of(&self, generation: u64) -> u64 {
        self.get(STARTS[(generation % 2) as usize])
    }

    /// Returns the file offset of a generation's byte position.
    pub(crate) fn offset_of(&self, generation: u64, position: u64) -> u64 {
        position.wrapping_sub(self.start_of(generation)).wrapping_add(self.geometry.data_offset)
    }

    /// Returns the byte position of a group that follows `end`.
    fn group_start(&self, end: u64) -> u64 {
        end.next_multiple_of(self.block_bytes()).max(self.start_of(self.generation()))
    }

    /// Returns the number of bytes between the beginning of a group and its first transaction.
    pub(crate) fn group_header_bytes(&self) -> u64 {
        self.framing.header_bytes()
    }

    /// Returns whether every group is flushed before the next group is written, which is so unless `durability=normal`
    /// is set. This is the flag *ordered* of a group. It is not the guarantee `ordered` of a log, which a log has under
    /// Group Synch, and often with `durability=normal`.
    pub(crate) fn is_ordered(&self) -> bool {
        self.options.durability != Durability::Normal
    }

    pub(crate) fn failed(&self, source: MediumError) -> LogError {
        LogError::Medium { path: self.geometry.path.clone(), source }
    }

    /// Fails if any process has poisoned the log (invariant 9).
    pub(crate) fn check(&self) -> Result<(), LogError> {
        if self.panicked.load(Ordering::Relaxed) {
            return Err(LogError::Poisoned("a thread panicked; the panic's message says why".to_owned()));
        }
        if self.get(POISON) == 0 {
            return Ok(());
        }
        let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        Err(reason.clone().unwrap_or_else(|| {
            LogError::Poisoned(
                "another process could not write the log; that process's error message says why".to_owned(),
            )
        }))
    }

    /// Poisons the log for all processes, because the contents of the device are in doubt (invariant 9). Returns the error.
    pub(crate) fn poison(&self, error: LogError) -> LogError {
        let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        let message = LogError::Poisoned(error.to_string());
        reason.get_or_insert(message);
        self.set(POISON, 1);
        for word in SLEEPERS {
            self.words.fetch_add(word, 1);
            self.words.wake(word, u32::MAX >> 1);
        }
        error
    }
}

// Reading sealed bytes: from the ring, or from the device if they have left the ring.

impl Group {
    /// Copies bytes of the current generation to `buf`, from the ring, or from the device if the bytes have left the ring.
    /// The caller must not ask for bytes beyond [`Group::sealed`].
    pub(crate) fn read(&self, generation: u64, position: u64, buf: &mut [u8]) -> Result<(), LogError> {
        if self.read_sealed(position, buf) {
            return Ok(());
        }
        let offset = self.offset_of(generation, position);
        self.learn_len(offset + buf.len() as u64)?;
        self.block.read(offset, buf).map_err(|source| self.failed(source))
    }

    /// Copies sealed bytes from the ring. Returns `false` if they have left the ring; then the contents of `buf` are undefined.
    pub(crate) fn read_sealed(&self, position: u64, buf: &mut [u8]) -> bool {
        let in_ring = |frontier: u64| frontier.wrapping_sub(position) <= RING_BYTES && position < frontier;
        if !in_ring(self.get(FRONTIER)) || position < self.get(DIRECT_END) {
            return false;
        }
        self.read_ring(position, buf);
        // If a writer has overwritten any of these bytes, the load of `FRONTIER` after this fence shows it.
        self.segment.fence();
        in_ring(self.get(FRONTIER))
    }

    /// Returns the byte position up to which all bytes have left the ring and are on the device.
    pub(crate) fn past_ring(&self) -> u64 {
        self.get(DIRECT_END).max(self.get(FRONTIER).saturating_sub(RING_BYTES))
    }

    /// Asks for the file's length again if `end` is beyond the length that this process knows, because another process
    /// may have extended the file.
    fn learn_len(&self, end: u64) -> Result<(), LogError> {
        if end <= self.block.len() {
            return Ok(());
        }
        self.block.refresh_len().map_err(|source| self.failed(source))
    }

    fn read_ring(&self, position: u64, buf: &mut [u8]) {
        let at = position % RING_BYTES;
        let first = buf.len().min((RING_BYTES - at) as usize);
        let (head, rest) = buf.split_at_mut(first);
        self.segment.read(self.base + RING + at, head);
        self.segment.read(self.base + RING, rest);
    }

    fn write_ring(&self, position: u64, bytes: &[u8]) {
        let at = position % RING_BYTES;
        let first = bytes.len().min((RING_BYTES - at) as usize);
        let (head, rest) = bytes.split_at(first);
        self.segment.write(self.base + RING + at, head);
        self.segment.write(self.base + RING, rest);
    }
}
