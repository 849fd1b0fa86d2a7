//! What the users of a log tell each other through its segment: which guard is on and whether it is confirmed,
//! whether the database file is synced, and SQLite's own header of the wal-index.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use duralite_format::guard::JournalKind;
use duralite_format::wal_index::BACKFILLED_WORD;
use duralite_medium::{MediumError, Segment as _};
use duralite_wal::placement::{GUARD_CONFIRMED, GUARD_KIND, HOME_FAILURES, HOME_SYNCED, HOME_WRITES};

use super::Attachment;

/// Values of the word that names the guard.
const GUARD_WAL: u64 = 1;
const GUARD_ROLLBACK: u64 = 2;
/// Another log takes the place of this one. Its users look at the database's header before they begin
/// anything.
const REPLACED: u64 = 3;

/// The offset, in the first region of the wal-index, of the number of changes of the database.
const CHANGES: usize = 8;
/// The offset there of the number of committed frames.
const FRAMES: usize = 16;
/// The offset there of the number of frames that are home.
const BACKFILLED: usize = BACKFILLED_WORD * 4;

impl Attachment {
    /// The guard in the database's header, as it was last put there. `None` where the header has to be looked
    /// at.
    pub fn guard_kind(&self) -> Option<JournalKind> {
        match self.segment.load(GUARD_KIND) {
            GUARD_WAL => Some(JournalKind::Wal),
            GUARD_ROLLBACK => Some(JournalKind::Rollback),
            _ => None,
        }
    }

    /// Notes which guard is in the header, or that it is about to change. Called under EXCLUSIVE.
    pub fn set_guard_kind(&self, kind: Option<JournalKind>) {
        let word = match kind {
            None => 0,
            Some(JournalKind::Wal) => GUARD_WAL,
            Some(JournalKind::Rollback) => GUARD_ROLLBACK,
        };
        self.segment.store(GUARD_KIND, word);
    }

    /// Notes that another log is about to take the place of this one. Called under EXCLUSIVE, while this log
    /// holds nothing that counts.
    pub fn set_replaced(&self) {
        self.segment.store(GUARD_KIND, REPLACED);
    }

    /// Whether another log may have taken this one's place. A connection that has this one attached and
    /// begins anything then looks whether the database still names it.
    #[inline]
    pub fn may_be_replaced(&self) -> bool {
        self.segment.load(GUARD_KIND) == REPLACED
    }

    /// Whether log and guard are known to be durable, and the guard is final.
    pub fn guard_is_confirmed(&self) -> bool {
        self.segment.load(GUARD_CONFIRMED) != 0
    }

    /// Notes that log and guard are durable, and that the guard is final.
    pub fn confirm_guard(&self) {
        self.segment.store(GUARD_CONFIRMED, 1);
    }

    /// How often syncing the database has failed, in any process, since everything was last written to it
    /// anew.
    pub fn home_failures(&self) -> u64 {
        self.segment.load(HOME_FAILURES)
    }

    /// Notes that syncing the database has failed (invariant 6).
    pub fn home_failed(&self) {
        self.segment.fetch_add(HOME_FAILURES, 1);
    }

    /// Notes that the database file has been written to. A process that dies between the write and this note
    /// has not finished its checkpoint, and the next checkpoint writes the page again.
    pub fn home_written(&self) {
        self.segment.fetch_add(HOME_WRITES, 1);
    }

    /// The number of writes so far, to be taken before a sync begins, for [`Self::home_synced`].
    pub fn home_writes(&self) -> u64 {
        self.segment.load(HOME_WRITES)
    }

    /// Notes that the database file has been synced, with at least this many writes in it.
    pub fn home_synced(&self, writes: u64) {
        self.segment.store(HOME_SYNCED, writes + 1);
    }

    /// Notes that something is about to be written to the file and synced at once. Until that sync the file
    /// counts as not synced.
    pub fn home_in_doubt(&self) {
        self.segment.store(HOME_SYNCED, 0);
    }

    /// Whether everything in the database file is durable, the guard with it. A process that has begun the
    /// shared memory anew does not know: another one may have died before its sync.
    pub fn home_is_synced(&self) -> bool {
        self.home_failures() == 0 && self.segment.load(HOME_SYNCED) == self.home_writes() + 1
    }

    /// Notes that everything in the log has been written to the database anew and synced, unless syncing has
    /// failed again since the `failures`-th failure.
    pub fn home_settled(&self, failures: u64) {
        let _ = self.segment.compare_exchange(HOME_FAILURES, failures, 0);
    }

    /// A region of the wal-index. It belongs to the log, so index and log cannot part, whatever the
    /// database's paths are (invariant 15).
    pub fn index_region(&self, number: u64, extend: bool) -> Result<Option<NonNull<u8>>, MediumError> {
        self.segment.index_region(number, extend)
    }

    /// How often the database has been changed, by SQLite's count. By this count SQLite knows that a snapshot
    /// is old.
    pub fn changes(&self) -> u32 {
        self.word_of_index(CHANGES)
    }

    /// How many frames are committed. Another process may have started the log over since this one last
    /// looked.
    pub fn indexed_frames(&self) -> u32 {
        self.word_of_index(FRAMES)
    }

    /// Completes a start over of the log whose process has died. SQLite first says in the header that the log has no
    /// frames, and then that none of them are home. If it dies in between, the first frames of the next commits would
    /// be taken for home (invariant 15). The caller has just got WRITE, so nobody is between these two stores. Returns
    /// whether there was anything to complete: a connection that has begun to read before that looks for frames behind
    /// those that seemed to be home.
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

    /// A word of the header, in the first region.
    #[allow(unsafe_code, reason = "memory that others change")]
    fn word(&self, first: NonNull<u8>, offset: usize) -> &AtomicU32 {
        // SAFETY: inside the region, which stays mapped as long as `self` lives, and aligned. SQLite's own accesses are
        // those of its protocol.
        unsafe { AtomicU32::from_ptr(first.add(offset).cast().as_ptr()) }
    }

    /// A clock that is the same for all users of the log.
    pub fn clock_ns(&self) -> u64 {
        self.segment.clock_ns()
    }
}
