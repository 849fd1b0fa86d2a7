//! Rollback journals: an engine may keep SQLite's `-journal`, as it keeps its `-wal`.
//!
//! In the journal modes DELETE, TRUNCATE and PERSIST SQLite writes the pages that a transaction is about to change into
//! a journal, syncs it, changes the database, and commits by making the journal worth nothing: by deleting it, by cutting
//! it to nothing, or by zeroing its header. One that a crash leaves is *hot*: whoever reads the database next writes the
//! pages back. An engine that gives a [`RollbackJournal`] keeps those bytes; what they say is SQLite's affair, and
//! that of [`play_back`], which does the same without SQLite.
//!
//! It counts only under the guard (invariant 21): a database that names no log is as its file says.

mod playback;

use std::sync::Arc;

use crate::JournalError;
pub(crate) use playback::MAGIC;
pub use playback::{PlayedBack, play_back};

/// The rollback journal of one database: a file of SQLite's that is kept in the log. All processes that have the log
/// attached see the same one. It is called on any thread, without the process's mutex of the log.
pub trait RollbackJournal: Send + Sync {
    /// Its size in bytes; `None` while there is none. For whoever holds SHARED, in any process.
    ///
    /// # Errors
    /// Any; the statement fails.
    fn size(&self) -> Result<Option<u64>, JournalError>;

    /// Makes an empty one, by the holder of RESERVED; there is none. What it makes counts for nothing before something
    /// is written.
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached` become `SQLITE_FULL`.
    fn create(&self) -> Result<(), JournalError>;

    /// Fills `buf` from byte `offset` on, as far as the journal reaches; returns how many bytes that were.
    ///
    /// # Errors
    /// Any; the statement fails.
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, JournalError>;

    /// Writes all of `bytes` from byte `offset` on, which is within the journal or at its end; SQLite may leave a gap up
    /// to the next sector, which then holds anything. Durable after [`RollbackJournal::sync`]. The 8 bytes from 0 on, by
    /// which a journal counts, are on the medium as a whole or not at all.
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached` become `SQLITE_FULL`: what was written before is there still.
    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), JournalError>;

    /// Cuts it to so many bytes. Durable on return: cut to nothing it is a commit of SQLite's.
    ///
    /// # Errors
    /// Any; whether it was cut is in doubt then.
    fn truncate(&self, bytes: u64) -> Result<(), JournalError>;

    /// Makes durable what has been written.
    ///
    /// # Errors
    /// Any; nothing is written to the database then.
    fn sync(&self) -> Result<(), JournalError>;

    /// Deletes it, if there is one. Durable on return: it is a commit of SQLite's.
    ///
    /// # Errors
    /// Any; whether it is there is in doubt then.
    fn delete(&self) -> Result<(), JournalError>;
}

/// Whether a journal may be hot, by what SQLite looks at: one that is empty, or whose first byte is zero, is not.
///
/// # Errors
/// As [`RollbackJournal::read`].
pub fn counts(journal: &Arc<dyn RollbackJournal>) -> Result<bool, JournalError> {
    if journal.size()?.is_none_or(|bytes| bytes == 0) {
        return Ok(false);
    }
    let mut first = [0];
    Ok(journal.read(&mut first, 0)? == 1 && first != [0])
}
