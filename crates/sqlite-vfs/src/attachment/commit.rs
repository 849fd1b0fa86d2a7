//! Serves commits: locks the log for the writes of a commit, waits until the commit is durable, and
//! acknowledges it. Before each write and each acknowledgement, this module checks that the log is not known
//! to have been deleted.
//!
//! People delete files. A process that has a deleted log open could continue to write to that log, and
//! everything that the process commits would be lost when it dies. So each process looks now and then whether
//! its log still has a name. If the log has no name, the process sets a word of the segment. A process that
//! copies the log to save it sets that word too. Every connection loads the word before it writes a commit
//! and before it acknowledges a commit. Once the word is set, no connection commits or acknowledges anything
//! (invariant 9). Readers, checkpoints and the last close still work, so that everything committed gets into
//! the database file.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, MutexGuard};

use duralite_format::LogId;
use duralite_medium::Segment as _;
use duralite_wal::engine::{Fill, Ticket};
use duralite_wal::log::{Sealed, follow};
use duralite_wal::metrics::Counter;
use duralite_wal::placement::{DELETED_LOG_COPIED, DELETION_SEEN, LOG_DELETED};
use duralite_wal::shared::archived::{ARCHIVED_OFFSET, ArchivedWords};
use duralite_wal::{DatabaseIdentity, Log, LogError};

use super::{Attachment, Key, attached};

/// The least time in nanoseconds between two checks of whether the log was deleted. A commit between two
/// checks costs no system call for this purpose, so a connection acknowledges it even if the log has just
/// been deleted.
const LOOK_EVERY_NS: u64 = 100_000_000;

/// Returns whether [`LOOK_EVERY_NS`] have passed since the time in `last`. If so, stores `now_ns` there. If
/// several threads ask at the same time, only one of them gets `true`.
fn is_due(last: &AtomicU64, now_ns: u64) -> bool {
    let before = last.load(Ordering::Relaxed);
    now_ns.saturating_sub(before) >= LOOK_EVERY_NS
        && last.compare_exchange(before, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

impl Attachment {
    /// Locks the log for a write of `bytes` bytes, and returns it. The caller holds the WRITE lock. If the
    /// write has to wait for a flush, this function waits before it locks the log, because readers need the
    /// mutex too.
    pub fn log_for_write(&self, bytes: usize) -> Result<MutexGuard<'_, Log>, LogError> {
        self.check_home()?;
        self.check_found()?;
        let Some(waiter) = self.durability_waiter() else { return Ok(self.log()) };
        waiter.make_room()?;
        let log = self.log();
        if !log.outgrows(bytes) {
            return Ok(log);
        }
        drop(log);
        waiter.wait_all()?;
        Ok(self.log())
    }

    /// Tells the background thread that the log has `frames` frames, and whether an acknowledged commit may
    /// not be durable yet.
    pub fn committed(&self, frames: u32, undurable: bool) {
        self.bound.committed(frames);
        let Some(maintenance) = self.maintenance.get() else { return };
        let limit = self.in_force().background_checkpoint;
        if limit > 0 && frames >= limit {
            maintenance.checkpoint();
        }
        if undurable && self.flush_interval.is_some() {
            maintenance.flush();
        }
    }

    /// Waits until a sealed transaction is as durable as the log's setting `durability` requires.
    pub fn wait(&self, ticket: Ticket) -> Result<(), LogError> {
        self.durability_waiter().map_or(Ok(()), |waiter| waiter.wait(ticket))
    }

    /// Tells other processes that a commit is acknowledged (invariant 15).
    pub fn acknowledge(&self, sealed: &Sealed) {
        follow::acknowledge(&*self.segment, sealed.commit);
        self.archived().committed(sealed.position);
    }

    /// Returns the words of the segment that say how much of the log is archived.
    pub fn archived(&self) -> ArchivedWords<'_> {
        ArchivedWords::new(&*self.segment, ARCHIVED_OFFSET)
    }

    /// Returns whether the caller must look for an archive of the database. If there is one, the caller must
    /// record in the archive's file what it is about to do to the database. The answer is `false` if this
    /// process has already looked ([`Self::has_looked_for_line`]) and no sidecar has set the archive's words
    /// in the segment. A database that gets an archive later gets a sidecar first, and the sidecar sets these
    /// words before it archives anything of the log.
    pub fn may_be_archived(&self) -> bool {
        !self.has_looked_for_line.load(Ordering::Relaxed) || self.archived().have_been_set()
    }

    /// Notes that this process has looked for an archive of the database. If it has found one, it has also
    /// written the records that the archive needs.
    pub fn has_looked_for_line(&self) {
        self.has_looked_for_line.store(true, Ordering::Relaxed);
    }

    /// Counts a commit. `began_ns` is the time at which SQLite began to write the commit, and `fill` says how
    /// full the log was afterwards.
    pub fn count_commit(&self, began_ns: u64, fill: Fill) {
        let Some(recorder) = &self.recorder else { return };
        recorder.committed(began_ns, fill);
        if let Some(waiter) = self.durability_waiter() {
            recorder.led(waiter.led());
        }
    }

    /// Counts an event other than a commit.
    pub fn count(&self, counter: Counter) {
        self.conflicts.event(counter);
        if let Some(recorder) = &self.recorder {
            recorder.count(counter, 1);
        }
    }

    /// Makes the commits durable that Group Synch has acknowledged. Until then these commits are only in
    /// memory, and that memory is gone when the last process that uses the log ends.
    pub fn flush_acknowledged(&self) {
        if self.flush_interval.is_some()
            && let Some(waiter) = self.durability_waiter()
        {
            // An error poisons the log, so the next commit reports it.
            let _ = waiter.wait_all();
        }
    }

    /// Returns whether this process has this log attached and knows that the log was deleted.
    pub fn is_here_deleted(identity: &DatabaseIdentity, log: LogId) -> bool {
        let slot = attached().get(&Key::of(identity, log)).map(Arc::clone);
        let here = slot.and_then(|slot| slot.try_lock().ok().and_then(|place| place.upgrade()));
        here.is_some_and(|attachment| attachment.is_deleted())
    }

    /// Checks whether the log has been deleted, unless this process has checked within the last tenth of a
    /// second. Ignores a deleted log if the database itself has no name either (`has_no_name`): as with stock
    /// SQLite, the files of a deleted database disappear when its last user closes it.
    pub fn look_for_log(&self, now_ns: u64, has_no_name: impl FnOnce() -> bool) {
        if is_due(&self.looked_ns, now_ns) {
            self.look_for_log_now(has_no_name);
        }
    }

    /// Does the same as [`Self::look_for_log`], but checks even if the last check was within the last tenth
    /// of a second.
    pub fn look_for_log_now(&self, has_no_name: impl FnOnce() -> bool) {
        if self.outside().is_none() && self.log().is_deleted() && !has_no_name() {
            self.segment.fetch_or(LOG_DELETED, DELETION_SEEN);
        }
    }

    /// Returns whether the log is known to have been deleted.
    #[inline]
    pub fn is_deleted(&self) -> bool {
        self.segment.load(LOG_DELETED) != 0
    }

    /// Refuses to commit to a log that is known to have been deleted.
    #[inline]
    pub fn check_found(&self) -> Result<(), LogError> {
        if self.is_deleted() { Err(self.deleted()) } else { Ok(()) }
    }

    /// Refuses to acknowledge a commit in a log that is known to have been deleted. A process that saves a
    /// deleted log first sets a word of the segment (`LOG_DELETED`), and then copies the log. A committer
    /// first writes the log and then loads that word. So either the copy has the commit, or this function
    /// refuses the commit. The copy may also have a commit that this function refuses.
    #[inline]
    pub fn check_found_after_commit(&self) -> Result<(), LogError> {
        fence(Ordering::SeqCst);
        self.check_found()
    }

    /// Does the same as [`Self::check_found_after_commit`], for a commit with a rollback journal. Such a
    /// commit is in the database file already, so this function refuses the commit only if a process has
    /// copied the deleted log.
    #[inline]
    pub fn check_not_copied_after_commit(&self) -> Result<(), LogError> {
        fence(Ordering::SeqCst);
        let is_copied = self.segment.load(LOG_DELETED) & DELETED_LOG_COPIED != 0;
        if is_copied { Err(self.deleted()) } else { Ok(()) }
    }

    #[cold]
    fn deleted(&self) -> LogError {
        LogError::Deleted(self.log().path().to_path_buf())
    }

    /// Returns whether this thread should now try to write the commits of a deleted log to the database file.
    /// The caller asks each time that a commit is refused, because readers may have kept earlier attempts
    /// from writing everything. The answer is `true` at most once in a tenth of a second.
    pub fn is_to_be_saved(&self) -> bool {
        is_due(&self.saved_ns, self.clock_ns())
    }
}
