//! The facts that the users of a log tell each other through its segment: which guard is on and whether the
//! guard is confirmed, whether the database file is synced, and SQLite's own header of the wal-index.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use duralite_format::guard::JournalKind;
use duralite_format::wal_index::BACKFILLED_WORD;
use duralite_medium::{FileSegment, MediumError, Segment as _};
use duralite_wal::placement::{GUARD_CONFIRMED, GUARD_KIND, HOME_FAILURES, HOME_SYNCED, HOME_WRITES};

use super::Attachment;

/// The values of the segment's word that says which kind of guard is in the database's header.
const GUARD_WAL: u64 = 1;
const GUARD_ROLLBACK: u64 = 2;
/// The value of the word for the guard's kind while another log is about to replace this one. A user of this
/// log that finds this value first reads the database's header, to see which log the header names now.
const REPLACED: u64 = 3;

/// The offset in bytes, in the first region of the wal-index, of SQLite's count of changes of the database
/// (`iChange`).
const CHANGES: usize = 8;
/// The offset in bytes, in the first region of the wal-index, of the number of committed frames (`mxFrame`).
const FRAMES: usize = 16;
/// The offset in bytes, in the first region of the wal-index, of the number of frames that checkpoints have
/// written to the database file.
const BACKFILLED: usize = BACKFILLED_WORD * 4;

impl Attachment {
    /// Returns the kind of guard that was last put into the database's header. Returns `None` if the caller
    /// has to look at the header.
    pub fn guard_kind(&self) -> Option<JournalKind> {
        match self.segment.load(GUARD_KIND) {
            GUARD_WAL => Some(JournalKind::Wal),
            GUARD_ROLLBACK => Some(JournalKind::Rollback),
            _ => None,
        }
    }

    /// Notes which guard is in the header. `None` notes that the guard is about to change. The caller holds
    /// EXCLUSIVE.
    pub fn set_guard_kind(&self, kind: Option<JournalKind>) {
        let word = match kind {
            None => 0,
            Some(JournalKind::Wal) => GUARD_WAL,
            Some(JournalKind::Rollback) => GUARD_ROLLBACK,
        };
        self.segment.store(GUARD_KIND, word);
    }

    /// Notes that another log is about to replace this one. The caller holds EXCLUSIVE, and nothing in this
    /// log is needed any more.
    pub fn set_replaced(&self) {
        self.segment.store(GUARD_KIND, REPLACED);
    }

    /// Returns whether another log may have replaced this one. If so, a connection that has this log attached
    /// checks that the database still names the log before it begins anything.
    #[inline]
    pub fn may_be_replaced(&self) -> bool {
        self.segment.load(GUARD_KIND) == REPLACED
    }

    /// Returns whether log and guard are known to be durable, and the guard is known to be final, not
    /// provisional.
    pub fn guard_is_confirmed(&self) -> bool {
        self.segment.load(GUARD_CONFIRMED) != 0
    }

    /// Notes that log and guard are durable, and that the guard is final.
    pub fn confirm_guard(&self) {
        self.segment.store(GUARD_CONFIRMED, 1);
    }

    /// Returns how often a sync of the database file, or a write through a home that maps it, has failed in any
    /// process. The count begins again at 0 when a process has written all committed pages to the file again
    /// and has synced it.
    pub fn home_failures(&self) -> u64 {
        self.segment.load(HOME_FAILURES)
    }

    /// Notes that a sync of the database, or a write through its home, has failed (invariant 6).
    pub fn home_failed(&self) {
        self.segment.fetch_add(HOME_FAILURES, 1);
    }

    /// Notes a write to the database file. A process may die between the write and this note. The missing
    /// note does no harm, because the checkpoint is then unfinished, and the next checkpoint writes the page
    /// again.
    pub fn home_written(&self) {
        self.segment.fetch_add(HOME_WRITES, 1);
    }

    /// Returns the number of writes to the database file so far. The caller of [`Self::home_synced`] reads
    /// this number before the sync begins.
    pub fn home_writes(&self) -> u64 {
        self.segment.load(HOME_WRITES)
    }

    /// Notes that a process has synced the database file. At least `writes` writes came before the sync.
    pub fn home_synced(&self, writes: u64) {
        self.segment.store(HOME_SYNCED, writes + 1);
    }

    /// Notes that this process is about to write to the file, and to sync it right after that. Until that
    /// sync [`Self::home_is_synced`] returns `false`.
    pub fn home_in_doubt(&self) {
        self.segment.store(HOME_SYNCED, 0);
    }

    /// Returns whether everything in the database file is durable, including the guard. Each time that a
    /// process sets up the shared memory again, the answer is `false` at first, because an earlier process
    /// may have died before it synced the file.
    pub fn home_is_synced(&self) -> bool {
        self.home_failures() == 0 && self.segment.load(HOME_SYNCED) == self.home_writes() + 1
    }

    /// Notes that this process has written everything in the log to the database file again and has synced
    /// the file. Does nothing if the number of failed syncs is no longer `failures`.
    pub fn home_settled(&self, failures: u64) {
        let _ = self.segment.compare_exchange(HOME_FAILURES, failures, 0);
    }

    /// Returns the address of a region of the wal-index. The wal-index belongs to the log, so all users of a
    /// log share one wal-index, by whatever path they opened the database (invariant 15).
    pub fn index_region(&self, number: u64, extend: bool) -> Result<Option<NonNull<u8>>, MediumError> {
        self.segment.index_region(number, extend)
    }

    /// Returns SQLite's count of the changes of the database. If this count has changed since a snapshot was
    /// taken, SQLite treats the snapshot as old.
    pub fn changes(&self) -> u32 {
        self.word_of_index(CHANGES)
    }

    /// Returns the number of committed frames, as the wal-index says. If this number is smaller than the last
    /// one that this process read there, another process has started the log over.
    pub fn indexed_frames(&self) -> u32 {
        self.word_of_index(FRAMES)
    }

    /// If a process has died while it started the log over, finishes what that process began. SQLite starts
    /// the log over with two stores: first, that the log has no frames, and then, that checkpoints have
    /// written no frames to the database file. If the process dies between these stores, connections would
    /// believe that the first frames of the next commits are in the database file already (invariant 15). The
    /// caller has just got WRITE, so no living process is between the two stores.
    ///
    /// Returns whether there was such a process. If so, a connection that began to read before this call must
    /// begin its transaction again, because it looks only for frames after those that it believes to be in
    /// the database file.
    pub fn complete_start_over(&self) -> bool {
        let Some(first) = self.first_of_index() else { return false };
        let [frames, backfilled] = [FRAMES, BACKFILLED].map(|offset| self.word(first, offset));
        let is_cut_short = backfilled.load(Ordering::SeqCst) > frames.load(Ordering::SeqCst);
        if is_cut_short {
            backfilled.store(0, Ordering::SeqCst);
        }
        is_cut_short
    }

    fn word_of_index(&self, offset: usize) -> u32 {
        self.first_of_index().map_or(0, |first| self.word(first, offset).load(Ordering::Relaxed))
    }

    fn first_of_index(&self) -> Option<NonNull<u8>> {
        self.index_region(0, false).ok().flatten()
    }

    /// Returns a word of the header, in the first region.
    #[allow(unsafe_code, reason = "memory that others change")]
    fn word(&self, first: NonNull<u8>, offset: usize) -> &AtomicU32 {
        // SAFETY: the word lies inside the region, which stays mapped as long as `self` lives, and is
        // aligned. SQLite's own accesses follow its protocol.
        unsafe { AtomicU32::from_ptr(first.add(offset).cast().as_ptr()) }
    }

    /// Returns the memory that all users of the log share.
    pub fn segment(&self) -> &FileSegment {
        &self.segment
    }

    /// Returns the time in nanoseconds, by a clock that is the same for all users of the log.
    pub fn clock_ns(&self) -> u64 {
        self.segment.clock_ns()
    }
}
