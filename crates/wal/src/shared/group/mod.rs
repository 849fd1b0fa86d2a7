//! Group commit: sealed transactions wait in shared memory, and one thread, the leader, writes them for all.
//!
//! **Byte positions.** A transaction's place is a byte position, which only grows while processes share the segment. A
//! generation maps its byte positions to the file, from [`Geometry::data_offset`] on. The ring in the segment holds the
//! newest bytes, in the form that they get on the device. In this folder `position` is a byte position, except in
//! [`Generation`], [`NewGeneration`] and the word `INTENT_POSITION`: there it is the log's position, a number of
//! transactions.
//!
//! **Words.** `TAIL` is the end of the last sealed transaction, `DURABLE` the end of the last durable group. Both carry
//! a group number, and `TAIL` also whether its group is closed. The holder of SQLite's WRITE lock appends: it writes to
//! the ring after `TAIL` and moves `TAIL` by one compare-and-exchange. The holder of the leader lock closes the open
//! group by another compare-and-exchange, writes the group with one write, and moves `DURABLE`. Either process may die
//! at any instruction. Before its exchange nothing has happened. After the exchange the words say what is left to do,
//! and the next leader redoes it from the ring (invariants 4, 7, 9). Another thread may replace a leader whose process
//! is stopped: see [`lead`]. While a closed group is not yet durable, the next group may already be open; `ENDS` then
//! says where the closed group ends.
//!
//! **The leader** is a thread: a committer, mostly, or another thread that needs everything sealed to be durable. The
//! leader word holds the slot of its process.
//!
//! **Sleeping.** A committer sleeps on one of two words, chosen by the parity of its group: at any time at most one
//! closed and one open group are not durable. The leader wakes its whole group, and one committer of the next group to
//! lead it.

mod append;
mod flush;
mod framing;
mod generation;
mod lead;
mod left;
mod read;
#[cfg(test)]
mod weak;
mod words;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use duralite_medium::block::{AlignedBuf, Block, Durability};
use duralite_medium::{MediumError, Segment};

use crate::LogError;
pub(crate) use append::{Content, Placing};
pub(crate) use framing::{AREA_BYTES, Framing, Generation, Geometry, GroupOptions, NewGeneration};
pub(crate) use left::left;
use words::{
    DIRECT_END, DURABLE, FRONTIER, GENERATION, HARDENED, INTENT, LENGTH, Mark, POISON, SETTINGS, SLEEPERS,
    STARTS, TAIL,
};
pub(crate) use words::{RING_SHARE, SHARED_BYTES, STATE_BYTES};

/// Counts of what group commit has done in this process.
#[derive(Debug, Default)]
pub(crate) struct GroupActivity {
    pub(crate) groups: AtomicU64,
    pub(crate) led_transactions: AtomicU64,
    pub(crate) sleeps: AtomicU64,
}

/// A log's group commit, with the words and the ring that processes share.
pub(crate) struct Group {
    segment: Arc<dyn Segment>,
    base: u64,
    block: Arc<dyn Block>,
    geometry: Geometry,
    framing: Arc<dyn Framing>,
    options: GroupOptions,
    /// The buffer from which the leader writes.
    buffer: Mutex<AlignedBuf>,
    /// Why this process poisoned the log.
    reason: Mutex<Option<LogError>>,
    /// Whether a thread of this process panicked while it waited or led. This process then stops using the log. The
    /// other processes continue as after its death, which may also come at any instruction.
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
        self.segment.load(self.base + word)
    }

    fn set(&self, word: u64, value: u64) {
        self.segment.store(self.base + word, value);
    }

    fn exchange(&self, word: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.segment.compare_exchange(self.base + word, current, new)
    }

    /// Raises a word to a value, unless the word is already higher.
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

    /// Joins the processes that share the log, or begins the sharing with the state that recovery found.
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
            group.set(HARDENED, end);
            // The ring is empty.
            group.set(DIRECT_END, end);
            group.set(SETTINGS, group.options.settings);
            // The size is durable: the flush that ends recovery made it so, or it was known to be so before.
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
        self.segment.process_slot() as u64 + 1
    }

    fn block_bytes(&self) -> u64 {
        u64::from(self.geometry.block_bytes)
    }

    pub(crate) fn block(&self) -> &dyn Block {
        self.block.as_ref()
    }

    /// The generation in force.
    pub(crate) fn generation(&self) -> u64 {
        self.get(GENERATION)
    }

    /// End of the last sealed transaction, a byte position.
    pub(crate) fn sealed(&self) -> u64 {
        self.tail().position
    }

    /// End of the last durable group, a byte position.
    pub(crate) fn durable_end(&self) -> u64 {
        self.durable().position
    }

    /// Orders earlier reads before the loads of words that follow.
    pub(crate) fn fence(&self) {
        self.segment.fence();
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    /// The byte position at which a generation begins.
    pub(crate) fn start_of(&self, generation: u64) -> u64 {
        self.get(STARTS[(generation % 2) as usize])
    }

    /// The file offset of a byte position of a generation.
    pub(crate) fn offset_of(&self, generation: u64, position: u64) -> u64 {
        position.wrapping_sub(self.start_of(generation)).wrapping_add(self.geometry.data_offset)
    }

    /// The byte position of a group that is appended after `end`.
    fn group_start(&self, end: u64) -> u64 {
        end.next_multiple_of(self.block_bytes()).max(self.start_of(self.generation()))
    }

    /// Bytes between the beginning of a group and its first transaction.
    pub(crate) fn group_header_bytes(&self) -> u64 {
        self.framing.header_bytes()
    }

    /// Whether every group is durable before the next group is written.
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

    /// Poisons the log for all processes: what the device holds is in doubt (invariant 9). Returns the error.
    pub(crate) fn poison(&self, error: LogError) -> LogError {
        let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        let message = LogError::Poisoned(error.to_string());
        reason.get_or_insert(message);
        self.set(POISON, 1);
        for word in SLEEPERS {
            self.segment.fetch_add(self.base + word, 1);
            self.segment.wake(self.base + word, u32::MAX >> 1);
        }
        error
    }
}
