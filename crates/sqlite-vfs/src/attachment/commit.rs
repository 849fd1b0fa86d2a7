//! What a commit asks of a log: a place to write, durability, and the acknowledgement. In between it asks
//! whether the log is still where the next open of the database would find it.
//!
//! People delete files. A process that has a deleted log open goes on with it, and everything that it commits
//! is lost when it dies. So each process looks now and then whether its log has a name. A process that finds
//! none tells the others by a word of the segment, and so does whoever saves the log. Every connection loads
//! that word before it writes a commit and before it acknowledges one. From then on nothing is committed or
//! acknowledged (invariant 9). Readers, checkpoints and the last close go on, so that everything committed
//! gets into the database file.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, MutexGuard};

use duralite_format::LogId;
use duralite_medium::Segment as _;
use duralite_wal::engine::{Fill, Ticket};
use duralite_wal::log::follow;
use duralite_wal::metrics::Counter;
use duralite_wal::placement::{DELETED_LOG_COPIED, DELETION_SEEN, LOG_DELETED};
use duralite_wal::{DatabaseIdentity, Log, LogError};

use super::{Attachment, Key, attached};

/// The time between two looks. Commits in between cost no system call, and are acknowledged although the log
/// may be gone.
const LOOK_EVERY_NS: u64 = 100_000_000;

/// Whether it is time. Of the threads that ask at the same time one gets `true`.
fn is_due(last: &AtomicU64, now_ns: u64) -> bool {
    let before = last.load(Ordering::Relaxed);
    now_ns.saturating_sub(before) >= LOOK_EVERY_NS
        && last.compare_exchange(before, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok()
}

impl Attachment {
    /// The log, for a write of `bytes` bytes by the holder of the WRITE lock. If such a write has to wait for
    /// anything, it waits here, where it keeps no reader waiting.
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

    /// Tells the background thread that the log has `frames` frames, and whether a commit may have been
    /// acknowledged that is not durable yet.
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

    /// Waits until a sealed transaction is as durable as the log's `durability` makes it.
    pub fn wait(&self, ticket: Ticket) -> Result<(), LogError> {
        self.durability_waiter().map_or(Ok(()), |waiter| waiter.wait(ticket))
    }

    /// Notes that a commit is acknowledged, as [`Log::newest_commit`] names it (invariant 15). Counts it, with
    /// the time at which SQLite began to write it and with how full the log was after it.
    pub fn acknowledge(&self, commit: u64, began_ns: u64, fill: Fill) {
        follow::acknowledge(&*self.segment, commit);
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

    /// Makes durable what Group Synch has acknowledged. Until then that is in memory that goes with the last
    /// process.
    pub fn flush_group(&self) {
        if self.flush_interval.is_some()
            && let Some(waiter) = self.durability_waiter()
        {
            // An error has poisoned the log, and the next commit reports it.
            let _ = waiter.wait_all();
        }
    }

    /// Whether this process has this log attached, and the log was deleted.
    pub fn is_here_deleted(identity: &DatabaseIdentity, log: LogId) -> bool {
        let key = Key { inode: identity.inode, birth_ns: identity.birth_ns, log };
        let slot = attached().get(&key).map(Arc::clone);
        let here = slot.and_then(|slot| slot.try_lock().ok().and_then(|place| place.upgrade()));
        here.is_some_and(|attachment| attachment.is_deleted())
    }

    /// Looks whether the log has been deleted, unless this process has looked within the last tenth of a
    /// second. The log of a database that itself `has_no_name` does not count: it goes with its last user, as
    /// SQLite's files do.
    pub fn look_for_log(&self, now_ns: u64, has_no_name: impl FnOnce() -> bool) {
        if is_due(&self.looked_ns, now_ns) {
            self.look_for_log_now(has_no_name);
        }
    }

    /// As [`Self::look_for_log`], whenever the last look was.
    pub fn look_for_log_now(&self, has_no_name: impl FnOnce() -> bool) {
        if self.outside().is_none() && self.log().is_deleted() && !has_no_name() {
            self.segment.fetch_or(LOG_DELETED, DELETION_SEEN);
        }
    }

    /// Whether the log is known to have been deleted.
    #[inline]
    pub fn is_deleted(&self) -> bool {
        self.segment.load(LOG_DELETED) != 0
    }

    /// Refuses to commit to a log that is known to have been deleted.
    #[inline]
    pub fn check_found(&self) -> Result<(), LogError> {
        if self.is_deleted() { Err(self.deleted()) } else { Ok(()) }
    }

    /// Refuses to acknowledge what is in a log that is known to have been deleted. Whoever saves the log says
    /// that it was deleted and copies it then; a committer does the same the other way round, so that one of
    /// the two sees what the other did. A commit that is refused here may have been saved.
    #[inline]
    pub fn check_found_after_commit(&self) -> Result<(), LogError> {
        fence(Ordering::SeqCst);
        self.check_found()
    }

    /// As [`Self::check_found_after_commit`], where a commit that nobody copies is in the database file already:
    /// with a rollback journal.
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

    /// Whether this thread is to write home what is in a deleted log. It is asked each time that a commit is
    /// refused, since readers may have been in the way before, but not more often than the log is looked for.
    pub fn is_to_be_saved(&self) -> bool {
        is_due(&self.saved_ns, self.clock_ns())
    }
}
