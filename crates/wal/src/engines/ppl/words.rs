//! The words in the segment that the processes using a log share, and the lock of the log's structure.
//!
//! The words are lost when the last process ends. The next process computes them from the log.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duralite_format::ppl::{MOST_SLOTS, TransactionRecord};
use duralite_medium::{MediumError, Segment};

use crate::engine::descriptor::SharedBytes;

/// The process that holds the structure lock, or 0. The holder may change chains, slots, free lists and the page table.
/// The lower half is the holder's process slot plus 1. The upper half distinguishes the holder from earlier processes
/// in the same process slot.
pub(super) const LOCK: u64 = 0;
/// The epoch. A process advances the epoch before it reuses anything that a reader may be looking at. The highest bit is
/// set while a process rebuilds the page table.
pub(super) const EPOCH: u64 = 8;
/// The newest committed transaction.
pub(super) const SEALED: u64 = 16;
/// The transaction that is being stored, or 0.
pub(super) const OPEN: u64 = 24;
/// The generation: 1 when a process attaches a log that no other process uses, and one more each time the log starts over.
pub(super) const GENERATION: u64 = 32;
/// The home position that all pages share: every page is home up to this transaction. A single page may be home up to a
/// later one.
pub(super) const FLOOR: u64 = 40;
/// The number of pages of the database according to its home; 0 means as many as the file has.
pub(super) const HOME_PAGES: u64 = 48;
/// The number of pages of the database after the newest transaction; 0 means as many as the file has.
pub(super) const DB_PAGES: u64 = 56;
/// The heads of the free lists of log sectors and of pieces, as links. Then the numbers of sectors and of pieces in
/// use.
pub(super) const FREE_SECTOR: u64 = 64;
pub(super) const FREE_PIECE: u64 = 72;
pub(super) const SECTORS_USED: u64 = 80;
pub(super) const PIECES_USED: u64 = 88;
/// The last piece of the generation's frames, as a link, and the offset of the next entry in this piece. Valid only if the
/// generation has frames.
pub(super) const FRAMES_LAST: u64 = 104;
pub(super) const FRAMES_END: u64 = 112;
/// Followers can no longer read the transactions up to this one, because merges may have dropped some of their records.
pub(super) const LOST: u64 = 120;
/// The values stored at the beginning of a generation, in one area for even generations and one for odd ones. An area
/// holds, in this order: the transaction before the generation; the time at which the generation began; 1 if the
/// generation has a WAL header, else 0; that header; and a link to the first piece of the generation's frames.
const ORIGINS: u64 = 128;
const ORIGIN_BYTES: u64 = 64;
/// Counts of merged pages (a word for each cause), of checkpointed pages, and of frames. They begin at 0 when a process
/// attaches a log that no other process uses.
pub(super) const MERGED: u64 = 256;
pub(super) const CHECKPOINTED: u64 = 288;
pub(super) const FRAMES: u64 = 296;
/// [`FRAMES_LAST`] and [`FRAMES_END`] as they were before the open transaction.
pub(super) const UNDO_LAST: u64 = 304;
pub(super) const UNDO_END: u64 = 312;
/// For each slot, the process that is merging the slot's page, in the form of [`LOCK`]. While that process lives, no
/// other process uses the slot. The process clears this word before it erases the slot.
pub(super) const SLOT_OWNERS: u64 = 320;
/// The largest number of slots that a log can have.
pub(super) const SLOTS: u64 = MOST_SLOTS as u64;
/// The number of threads that sleep until the lock is released.
const SLEEPERS: u64 = SLOT_OWNERS + 8 * SLOTS;
/// 1 if some process has to check whether pages are due for a merge. A process stores 1 when a page's log becomes full,
/// or when a merge was not completed.
pub(super) const DUE: u64 = SLEEPERS + 8;
/// 1 if some process has synced the database file since the first of the present processes attached the log.
pub(super) const FILE_SYNCED: u64 = DUE + 8;
/// The number of times that a process has attached the log.
const ATTACHED: u64 = FILE_SYNCED + 8;
/// The number of bytes that were in use when the log last started over.
pub(super) const USED_BEFORE: u64 = ATTACHED + 8;
const BYTES: u64 = USED_BEFORE + 8;

/// All words begin as zeros.
pub(super) const SHARED: SharedBytes = SharedBytes { zeroed: BYTES, all: BYTES };

const REBUILDING: u64 = 1 << 63;

/// How a thread waits for the lock: it tries `SPINS` times in a loop. Then it sleeps `SLICES` times for a `SLICE`, and
/// tries again after each sleep.
const SLICE: Duration = Duration::from_millis(1);
const SLICES: u32 = 5000;
const SPINS: u32 = 2000;

/// The words that the log's users share, and this process's part of the lock.
pub(super) struct Words {
    segment: Arc<dyn Segment>,
    base: u64,
    /// The word that this process stores in the lock when it takes it.
    id: u64,
    turn: Mutex<()>,
}

/// The lock. Its holder may change the structure.
pub(super) struct Turn<'a> {
    words: &'a Words,
    _own: MutexGuard<'a, ()>,
    /// Whether the previous holder died while it held the lock.
    pub(super) inherited: bool,
}

/// The values that a process stores when it begins a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct GenerationWords {
    pub(super) position: u64,
    pub(super) time_ms: u64,
    pub(super) header: Option<[u8; 32]>,
}

/// Returns the process slot in a word that has the form of [`LOCK`].
fn slot_of(word: u64) -> usize {
    (word & 0xffff_ffff).saturating_sub(1) as usize
}

impl Words {
    pub(super) fn new(segment: Arc<dyn Segment>, base: u64) -> Self {
        let attached = segment.fetch_add(base + ATTACHED, 1).wrapping_add(1) & 0x7fff_ffff;
        let id = attached << 32 | (segment.process_slot() as u64 + 1);
        Self { segment, base, id, turn: Mutex::new(()) }
    }

    pub(super) fn load(&self, word: u64) -> u64 {
        self.segment.load(self.base + word)
    }

    pub(super) fn store(&self, word: u64, value: u64) {
        self.segment.store(self.base + word, value);
    }

    /// Returns a word, and sets it to 0.
    pub(super) fn take(&self, word: u64) -> u64 {
        self.segment.fetch_and(self.base + word, 0)
    }

    pub(super) fn add(&self, word: u64, value: u64) {
        self.segment.fetch_add(self.base + word, value);
    }

    /// Makes sure that all reads before this fence happen before the loads of words after it.
    pub(super) fn fence(&self) {
        self.segment.fence();
    }

    /// Returns the epoch; `None` while a process rebuilds the page table.
    pub(super) fn epoch(&self) -> Option<u64> {
        let epoch = self.load(EPOCH);
        (epoch & REBUILDING == 0).then_some(epoch)
    }

    /// Begins or ends a rebuild of the page table. In between, no reader may use the table.
    pub(super) fn set_rebuilding(&self, rebuilding: bool) {
        self.add(EPOCH, 1);
        if rebuilding {
            self.segment.fetch_or(self.base + EPOCH, REBUILDING);
        } else {
            self.segment.fetch_and(self.base + EPOCH, !REBUILDING);
        }
    }

    pub(super) fn segment(&self) -> &Arc<dyn Segment> {
        &self.segment
    }

    /// Takes the lock. Returns `None` if a living process, perhaps a stopped one, holds the lock for several seconds.
    ///
    /// # Errors
    /// If the kernel does not report which processes are alive.
    pub(super) fn lock(&self) -> Result<Option<Turn<'_>>, MediumError> {
        let own = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = self.id;
        let at = self.base + LOCK;
        for tries in 0..SPINS + SLICES {
            let holder = match self.segment.compare_exchange(at, 0, mine) {
                Ok(_) => return Ok(Some(Turn { words: self, _own: own, inherited: false })),
                Err(holder) => holder,
            };
            // If the holder has this process's slot number, it is a dead process that had the slot before.
            let is_dead = slot_of(holder) == slot_of(mine) || !self.segment.is_alive(slot_of(holder))?;
            if is_dead && self.segment.compare_exchange(at, holder, mine).is_ok() {
                return Ok(Some(Turn { words: self, _own: own, inherited: true }));
            }
            if tries < SPINS {
                std::hint::spin_loop();
            } else {
                self.add(SLEEPERS, 1);
                self.segment.wait(at, (holder & 0xffff_ffff) as u32, SLICE);
                self.add(SLEEPERS, u64::MAX);
            }
        }
        Ok(None)
    }

    /// Returns whether a living process is merging the page of a slot.
    ///
    /// # Errors
    /// If the kernel does not report which processes are alive.
    pub(super) fn is_merged_by_another(&self, slot: u32) -> Result<bool, MediumError> {
        let owner = self.load(SLOT_OWNERS + 8 * u64::from(slot));
        if owner == 0 {
            return Ok(false);
        }
        self.segment.is_alive(slot_of(owner))
    }

    /// An earlier process with this process's slot may have died while it owned slots for page images. Clears these
    /// owners. Returns whether the dead process held the lock. If so, the caller has to take the lock, which repairs
    /// what the dead process left.
    pub(super) fn forget_predecessor(&self) -> bool {
        let is_predecessor = |word: u64| word != 0 && word != self.id && slot_of(word) == slot_of(self.id);
        for slot in 0..SLOTS {
            let owner = self.load(SLOT_OWNERS + 8 * slot);
            if is_predecessor(owner) {
                let _ = self.segment.compare_exchange(self.base + SLOT_OWNERS + 8 * slot, owner, 0);
            }
        }
        is_predecessor(self.load(LOCK))
    }

    /// Records whether this process is merging the page of a slot.
    pub(super) fn own_slot(&self, slot: u32, owned: bool) {
        let owner = if owned { self.id } else { 0 };
        self.store(SLOT_OWNERS + 8 * u64::from(slot), owner);
    }

    /// Returns the current generation, and the values stored at its beginning.
    pub(super) fn generation(&self) -> (u64, GenerationWords) {
        loop {
            let generation = self.load(GENERATION);
            let at = self.base + ORIGINS + generation % 2 * ORIGIN_BYTES;
            let mut header = [0; 32];
            self.segment.read(at + 24, &mut header);
            let has_header = self.segment.load(at + 16) == 1;
            let found = GenerationWords {
                position: self.segment.load(at),
                time_ms: self.segment.load(at + 8),
                header: has_header.then_some(header),
            };
            self.segment.fence();
            if self.load(GENERATION) == generation {
                return (generation, found);
            }
        }
    }

    /// Initialises the words for the log after its newest commit: SQLite has checkpointed every page, and its log is
    /// empty. No other process may be using the log.
    pub(super) fn begin_after(&self, last: &TransactionRecord) {
        let pages = u64::from(last.db_pages);
        let number = last.number;
        for (word, value) in [(SEALED, number), (FLOOR, number), (DB_PAGES, pages), (HOME_PAGES, pages)] {
            self.store(word, value);
        }
        let begun = GenerationWords { position: number, time_ms: last.time_ms, header: None };
        self.begin_generation(1, &begun);
    }

    /// Returns the first piece of the frames of a generation, as a link; 0 if the generation has no frames.
    pub(super) fn first_frames(&self, generation: u64) -> u64 {
        self.load(Self::first_frames_at(generation))
    }

    pub(super) fn set_first_frames(&self, generation: u64, link: u64) {
        self.store(Self::first_frames_at(generation), link);
    }

    /// Returns a link to the last piece of the current generation's frames, and the offset at which the entries end; zeros
    /// if there are no frames.
    pub(super) fn last_frames(&self) -> (u64, u64) {
        if self.first_frames(self.load(GENERATION)) == 0 {
            return (0, 0);
        }
        (self.load(FRAMES_LAST), self.load(FRAMES_END))
    }

    fn first_frames_at(generation: u64) -> u64 {
        ORIGINS + generation % 2 * ORIGIN_BYTES + 56
    }

    /// Begins a generation without frames. A process that sees the new generation sees none of the old generation's words.
    pub(super) fn begin_generation(&self, generation: u64, begun: &GenerationWords) {
        let at = self.base + ORIGINS + generation % 2 * ORIGIN_BYTES;
        self.segment.store(at, begun.position);
        self.segment.store(at + 8, begun.time_ms);
        self.segment.write(at + 24, &begun.header.unwrap_or_default());
        self.segment.store(at + 16, u64::from(begun.header.is_some()));
        self.set_first_frames(generation, 0);
        self.segment.fence();
        self.store(GENERATION, generation);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let _ = self.words.segment.compare_exchange(self.words.base + LOCK, self.words.id, 0);
        // If a sleeping thread died, the count stays too high. That only costs a system call now and then.
        if self.words.load(SLEEPERS) > 0 {
            self.words.segment.wake(self.words.base + LOCK, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use duralite_medium::LocalSegment;

    use super::*;

    /// A process has died, and another process now has its process slot.
    #[test]
    fn inv11_a_process_slot_that_is_used_again_is_another_process() {
        let segment: Arc<dyn Segment> = Arc::new(LocalSegment::new(SHARED.all));
        let dead = Words::new(Arc::clone(&segment), 0);
        let held = dead.lock().ok().flatten();
        assert!(held.as_ref().is_some_and(|turn| !turn.inherited));
        dead.own_slot(3, true);
        let alive = Words::new(segment, 0);
        alive.own_slot(5, true);
        assert!(alive.forget_predecessor(), "it died while it held the lock");
        assert_eq!(alive.is_merged_by_another(3), Ok(false));
        assert_eq!(alive.is_merged_by_another(5), Ok(true), "what is its own it keeps");
        let taken = alive.lock().ok().flatten();
        assert!(taken.as_ref().is_some_and(|turn| turn.inherited), "there is something to repair");
        // The first process may still be alive, and release its lock late. It must not release the lock of the second
        // process.
        drop(held);
        assert_eq!(alive.load(LOCK), alive.id);
        drop(taken);
        assert_eq!(alive.load(LOCK), 0);
        assert!(!alive.forget_predecessor());
    }
}
