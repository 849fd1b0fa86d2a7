//! Whether the log is still where the next open of the database would find it.
//!
//! People delete files. A process that has a deleted log open goes on with it, and everything that it commits
//! is lost when it dies. So each process looks now and then whether its log has a name. A process that finds
//! none tells the others by a word of the segment, and so does whoever saves the log. Every connection loads
//! that word before it writes a commit and before it acknowledges one. From
//! then on nothing is committed or acknowledged (invariant 9). Readers, checkpoints and the last close go on,
//! so that everything committed gets into the database file.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use duralite_format::LogId;
use duralite_medium::Segment as _;
use duralite_wal::placement::{DELETED_LOG_COPIED, DELETION_SEEN, LOG_DELETED};
use duralite_wal::{DatabaseIdentity, LogError};

use super::{Attachment, Key, attached};

impl Attachment {
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
        if self.looks.is_due(now_ns) {
            self.look_for_log_now(has_no_name);
        }
    }

    /// As [`Self::look_for_log`], whenever the last look was.
    pub fn look_for_log_now(&self, has_no_name: impl FnOnce() -> bool) {
        if self.outside.is_none() && self.log().is_deleted() && !has_no_name() {
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
        self.looks.is_to_be_saved(self.clock_ns())
    }
}
