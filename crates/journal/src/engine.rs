//! What an engine does for the WAL stream: keep frames, and make transactions durable.
//!
//! Frames are numbered from 1 as in SQLite's wal-index. An engine knows nothing of byte offsets
//! in the `-wal` file. One writer at a time calls `stage`, `seal` and `begin_generation`
//! (invariant 11); SQLite's WRITE lock sees to that, across processes too.

use duralite_logfmt::sqlite_wal::{Checksum, WalHeader};

use crate::JournalError;

/// A committed frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Database page in it.
    pub page_number: u32,
    /// Database size in pages if it is a commit frame, else 0.
    pub db_pages: u32,
    /// SQLite's cumulative checksum after it; kept for commit frames only.
    pub checksum: Option<Checksum>,
}

/// What makes the staged frames a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// The first frame.
    pub first_frame: u32,
    /// The commit frame; staged frames above it are dropped.
    pub last_frame: u32,
    /// Database size in pages after the commit.
    pub db_pages: u32,
    /// SQLite's cumulative checksum after the commit frame.
    pub checksum: Checksum,
}

/// A store of WAL frames.
pub trait Engine: Send {
    /// SQLite's header of the log's current generation; `None` while the log is empty.
    fn wal_header(&self) -> Option<&WalHeader>;

    /// Takes in what other processes have committed. Cheap when there is nothing new.
    /// Drops staged frames if the log has moved on since they were staged.
    ///
    /// # Errors
    /// `Corrupt` when the log contradicts itself.
    fn refresh(&mut self) -> Result<(), JournalError>;

    /// A number that differs whenever the committed frames do.
    fn version(&self) -> u64;

    /// Number of committed frames known since the last refresh.
    fn committed(&self) -> u32;

    /// A committed frame, if there is one of this number.
    fn frame(&self, number: u32) -> Option<Frame>;

    /// The page of a staged or committed frame, staged first.
    ///
    /// # Errors
    /// `Unexpected` for a frame that does not exist; `Corrupt`.
    fn read_page(&mut self, frame: u32, page: &mut [u8]) -> Result<(), JournalError>;

    /// Starts the log over, with this header or empty. Durable when it returns. The caller has
    /// synced everything committed so far into the database file (invariant 6).
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached`, with the old generation still in force.
    fn begin_generation(&mut self, header: Option<&WalHeader>) -> Result<(), JournalError>;

    /// Whether frames are staged.
    fn has_staged(&self) -> bool;

    /// Stores a frame of the open transaction; nothing is durable or visible yet.
    /// A frame staged again replaces the one before.
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached`: the frame is not staged, those before it still are.
    fn stage(&mut self, frame: u32, page_number: u32, page: &[u8]) -> Result<(), JournalError>;

    /// Forgets everything staged.
    ///
    /// # Errors
    /// `Corrupt`.
    fn discard_staged(&mut self) -> Result<(), JournalError>;

    /// Commits the staged frames. When it returns they are visible to every process, and
    /// durable (but see [`crate::SyncMode::Async`]).
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached`: nothing is committed.
    fn seal(&mut self, commit: &Commit) -> Result<(), JournalError>;

    /// Makes every committed frame durable, where sealing alone does not (invariant 5).
    fn harden(&mut self);
}
