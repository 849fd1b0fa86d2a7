//! Rollback journals: an engine may keep SQLite's `-journal`, as it keeps its `-wal`.
//!
//! In the journal modes DELETE, TRUNCATE and PERSIST SQLite writes the pages that a transaction is about to change into a
//! journal, syncs the journal, and changes the database. To commit, SQLite invalidates the journal: it deletes the journal,
//! truncates it to nothing, or zeroes its header. A journal that a crash leaves is *hot*: the next connection that reads the
//! database writes the pages back. An engine with a [`RollbackJournal`] stores the journal's bytes. Only SQLite interprets them,
//! and [`play_back`], which does the same without SQLite.
//!
//! The journal counts only under the guard (invariant 21): a database that names no log has no journal in a log.

mod playback;

use std::sync::Arc;

use crate::LogError;
pub(crate) use playback::MAGIC;
pub use playback::{PlayedBack, play_back};

/// The rollback journal of one database: a file of SQLite's that is kept in the log. All processes that have the log attached see
/// the same journal. The methods are called on any thread, without the process's mutex of the log.
pub trait RollbackJournal: Send + Sync {
    /// Size of the journal in bytes; `None` while there is no journal. The caller holds SHARED.
    ///
    /// # Errors
    /// Any; the statement fails.
    fn size(&self) -> Result<Option<u64>, LogError>;

    /// Creates an empty journal. The caller holds RESERVED, and there is no journal. The new journal counts for nothing until
    /// something is written to it.
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached` become `SQLITE_FULL`.
    fn create(&self) -> Result<(), LogError>;

    /// Fills `buf` from byte `offset` on, as far as the journal reaches. Returns the number of bytes read.
    ///
    /// # Errors
    /// Any; the statement fails.
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, LogError>;

    /// Writes all of `bytes` from byte `offset` on. The offset is within the journal or at its end, but SQLite may leave a gap up
    /// to the next sector, whose content is then undefined. Durable after [`RollbackJournal::sync`]. The first 8 bytes of the
    /// journal, which make it count, reach the medium as a whole or not at all.
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached` become `SQLITE_FULL`: what was written before is still there.
    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), LogError>;

    /// Truncates the journal to `bytes` bytes. Durable on return, since to truncate the journal to nothing is a commit of
    /// SQLite's.
    ///
    /// # Errors
    /// Any; it is then in doubt whether the journal was truncated.
    fn truncate(&self, bytes: u64) -> Result<(), LogError>;

    /// Makes all writes to the journal durable.
    ///
    /// # Errors
    /// Any; SQLite then writes nothing to the database.
    fn sync(&self) -> Result<(), LogError>;

    /// Deletes the journal, if there is one. Durable on return, since the deletion is a commit of SQLite's.
    ///
    /// # Errors
    /// Any; it is then in doubt whether the journal still exists.
    fn delete(&self) -> Result<(), LogError>;
}

/// Whether a journal may be hot, by SQLite's own criterion: a journal that is empty, or whose first byte is zero, is not hot.
///
/// # Errors
/// As [`RollbackJournal::read`].
pub fn counts(journal: &Arc<dyn RollbackJournal>) -> Result<bool, LogError> {
    if journal.size()?.is_none_or(|bytes| bytes == 0) {
        return Ok(false);
    }
    let mut first = [0];
    Ok(journal.read(&mut first, 0)? == 1 && first != [0])
}
