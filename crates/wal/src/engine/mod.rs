//! The interface of an engine, as the WAL stream uses it: an engine stores frames, and makes transactions durable.
//!
//! Frames are numbered from 1 as in SQLite's wal-index. An engine knows nothing of byte offsets in the `-wal` file. It
//! has three parts: [`LogWriter`] takes frames and seals transactions, [`LogReader`] reads committed frames and follows
//! other processes' commits, and [`LogFile`] is the log as a file, with its generations. Only one writer at a time
//! calls `stage`, `seal` and `begin_generation` (invariant 11); SQLite's WRITE lock ensures this, across processes too.
//!
//! An engine may store a page as a difference from the page in the database file. So every method that stores, reads or
//! drops frames gets that `file`. The engine gets the bytes that are in the file, including the guard, and not those
//! that a home returns. The file belongs to the connection, so an engine never keeps the reference. Nor does an engine
//! open the file a second time: inside SQLite, closing a second descriptor would release the locks held through the
//! first. An engine may read the file from any thread, under the same locks as a [`crate::engine::home`], while other
//! processes write other pages.

pub mod checksums;
pub mod descriptor;
pub mod home;
pub mod media;
pub mod rollback;
pub mod salvage;
pub mod settings;
pub mod walk;

use duralite_format::sqlite_wal::{Checksum, WalHeader};

use std::sync::Arc;

use duralite_format::{LogId, Origin};
use duralite_medium::Guarantee;

use crate::LogError;
use crate::engine::home::{DatabaseFile, Home};
use crate::engine::rollback::RollbackJournal;

/// A committed frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The database page that the frame holds.
    pub page_number: u32,
    /// Database size in pages for a commit frame, else 0.
    pub db_pages: u32,
    /// SQLite's cumulative checksum after this frame, as SQLite computed it; zeros if SQLite has written no checksum. The
    /// log stores it only for commit frames.
    pub checksum: Option<Checksum>,
    /// Size of the frame's record in the log, in bytes, including the record's header. `None` if the log does not store
    /// one record per frame.
    pub record_bytes: Option<u32>,
}

/// A committed transaction that no later transaction has replaced. Only a transaction whose process died before it
/// acknowledged the commit can be replaced (invariant 15).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transaction {
    /// The transaction's number in the generation, from 1.
    pub sequence: u32,
    /// The transaction's first frame.
    pub first_frame: u32,
    /// The transaction's commit frame.
    pub last_frame: u32,
    /// Database size in pages after the transaction.
    pub db_pages: u32,
    /// The time at which the transaction was sealed, in milliseconds since 1970; 0 if it is not known.
    pub time_ms: u64,
}

/// How much of a log is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    /// The number of bytes that the current generation occupies.
    pub used_bytes: u64,
    /// The number of bytes that a generation may occupy.
    pub limit_bytes: u64,
}

/// A clock: returns the time in milliseconds since 1970.
pub type Clock = fn() -> u64;

/// Returns the time of the system's clock at its last tick, a few milliseconds ago. A commit takes two microseconds, and
/// reading the exact time would add a twentieth of a microsecond.
#[must_use]
pub fn wall_clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000)
}

/// What a writer passes to `seal` to turn the staged frames into a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// The first frame.
    pub first_frame: u32,
    /// The commit frame. Sealing drops staged frames with higher numbers.
    pub last_frame: u32,
    /// Database size in pages after the commit.
    pub db_pages: u32,
    /// SQLite's cumulative checksum after the commit frame; zeros if SQLite has written no checksum.
    pub checksum: Checksum,
}

/// Identifies a sealed transaction to a [`DurabilityWaiter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

impl Ticket {
    pub(crate) fn new(word: u64) -> Self {
        Self(word)
    }

    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

/// How much this process has made durable, for itself and for other processes, since it attached the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Led {
    /// The number of groups that this process has written as leader.
    pub groups: u64,
    /// The number of transactions in those groups. `waldio` counts each group of the layout `embedded` as one transaction.
    pub transactions: u64,
}

/// Makes sealed transactions durable, without the lock of the stream that sealed them.
pub trait DurabilityWaiter: Send + Sync {
    /// Returns when the transaction is as durable as the setting `durability` demands. With `durability=normal` the
    /// leader only writes the transaction, and does not flush it.
    ///
    /// # Errors
    /// Fails if the transaction could not be made durable. Whether the transaction is durable is in doubt until the log is
    /// attached again. The log acknowledges no transaction that was sealed later (invariant 9).
    fn wait(&self, ticket: Ticket) -> Result<(), LogError>;

    /// Returns when all transactions sealed before the call are as durable as [`DurabilityWaiter::wait`] makes them.
    ///
    /// # Errors
    /// As [`DurabilityWaiter::wait`].
    fn wait_all(&self) -> Result<(), LogError>;

    /// Returns when there is space to seal a transaction of ordinary size without waiting. Only the holder of the WRITE
    /// lock calls this method, so no other writer takes the space before the holder seals.
    ///
    /// # Errors
    /// As [`DurabilityWaiter::wait`].
    fn make_room(&self) -> Result<(), LogError>;

    /// Returns when everything sealed before the call survives a power loss. It waits even if the settings let the log
    /// acknowledge commits earlier (invariant 5).
    ///
    /// # Errors
    /// As [`DurabilityWaiter::wait`].
    fn force(&self) -> Result<(), LogError>;

    /// Prepares the log to start over. Returns `false` if the log must not start over yet, because a stopped process could
    /// still complete a write to it. The holder of the WRITE lock calls this method.
    ///
    /// # Errors
    /// As [`DurabilityWaiter::wait`].
    fn settle(&self) -> Result<bool, LogError>;

    /// Returns counts of what this process has made durable as leader. The counts are zeros for an engine that makes each
    /// transaction durable separately, and so has no leader.
    fn led(&self) -> Led {
        Led::default()
    }
}

/// The log as a file: its identity, its medium, and its generations.
pub trait LogFile: Send {
    /// Returns the engine's name in settings.
    fn name(&self) -> &'static str;

    /// Returns the identity of the log.
    fn id(&self) -> LogId;

    /// Returns the page size in bytes.
    fn page_bytes(&self) -> u32;

    /// Returns the survival guarantee of an acknowledged commit.
    fn guarantee(&self) -> Guarantee;

    /// Returns a description of the medium, for people.
    fn describe(&self) -> String;

    /// Returns the metrics, each with its name. Counters count what this process has done since it attached the log.
    fn metrics(&self) -> Vec<(&'static str, String)>;

    /// Applies the settings that may change while a log is in use.
    fn configure(&mut self, options: &crate::EngineOptions);

    /// Takes the time of commits from this clock instead of the system's.
    fn set_clock(&mut self, clock: Clock);

    /// Returns how full the log is, relative to its limit.
    fn fill(&self) -> Fill;

    /// Returns how full the log is, relative to its usual size. The usual size is the log's limit, unless the engine
    /// lets a log grow beyond its usual size when a transaction needs more.
    fn room(&self) -> Fill {
        self.fill()
    }

    /// Returns whether the log should start over soon, so that the next transactions find space. The VFS then runs a
    /// checkpoint before the next transaction begins.
    fn is_short(&self) -> bool {
        let fill = self.fill();
        fill.used_bytes >= fill.limit_bytes / 2
    }

    /// Returns SQLite's header of the log's current generation; `None` while the log is empty.
    fn wal_header(&self) -> Option<&WalHeader>;

    /// Starts the log over, with this header, or as an empty log without a header. The new generation is durable on
    /// return, with one exception: in a log that has no blocks yet, a generation with a header becomes durable together
    /// with the first blocks. The caller has written everything committed to the database file, and has synced it
    /// (invariant 6).
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached`, and `Busy` while a stopped process may still write to the log. On an error the old
    /// generation stays in force.
    fn begin_generation(
        &mut self,
        file: &dyn DatabaseFile,
        header: Option<&WalHeader>,
    ) -> Result<(), LogError>;

    /// Starts the log over with an empty generation, which is durable on return. Then shrinks the file to `keep_bytes`,
    /// or to the size of a new log if that is larger. The caller has written everything committed to the database file,
    /// and has synced it (invariant 6).
    ///
    /// # Errors
    /// As [`LogFile::begin_generation`]. Failing to shrink the file is not an error.
    fn clear(&mut self, file: &dyn DatabaseFile, keep_bytes: u64) -> Result<(), LogError>;

    /// Returns whether [`LogFile::clear`] would shrink the file.
    fn has_surplus(&self, keep_bytes: u64) -> bool;

    /// Declares that everything committed is in the database file and synced, so that a home may discard its pages. The
    /// declaration is durable on return.
    ///
    /// # Errors
    /// `Corrupt`, or an error of the medium.
    fn retire(&mut self) -> Result<(), LogError>;
}

/// Reads committed frames, and follows what other processes commit.
pub trait LogReader: Send {
    /// Adds to this reader's index what other processes have committed. The call is cheap when there is nothing new. Drops
    /// the staged frames if another process has committed, or has started the log over, since they were staged.
    ///
    /// # Errors
    /// `Corrupt` when the log contradicts itself.
    fn refresh(&mut self) -> Result<(), LogError>;

    /// Returns a version number of the set of committed frames. The upper half is the low half of the generation, and the
    /// lower half is a number that changes with every commit.
    fn version(&self) -> u64;

    /// Returns the number of committed frames, as of the last refresh.
    fn committed(&self) -> u32;

    /// Returns the committed frame with this number, if there is one.
    fn frame(&self, number: u32) -> Option<Frame>;

    /// Returns the pages that have committed frames, each with the number of its newest frame, in ascending order of pages.
    fn newest_frames(&self) -> Vec<(u32, u32)>;

    /// Returns the origin of the generation that was last read: how many transactions came before it, and when it began.
    fn origin(&self) -> Origin;

    /// Returns the number of transactions sealed in this generation, as of the last refresh, including those whose
    /// frames a later transaction has replaced.
    fn transactions(&self) -> u32;

    /// Returns the number of transactions sealed since the log was made, as of the last refresh. This number only grows.
    fn position(&self) -> u64 {
        self.origin().position.saturating_add(u64::from(self.transactions()))
    }

    /// Returns the first transaction of this generation with a number above `sequence`.
    fn transaction_after(&self, sequence: u32) -> Option<Transaction>;

    /// Returns whether a committed frame is as durable as the setting `durability` demands.
    fn is_durable(&self, frame: u32) -> bool;

    /// Returns whether the generation that the last refresh found is still in force. If it is not, frames read since that
    /// refresh may belong to another generation.
    fn is_current(&self) -> bool;

    /// Reads the page of a frame, which may be staged or committed. If frames of both kinds have this number, reads the
    /// staged one.
    ///
    /// # Errors
    /// `Unexpected` for a frame that does not exist; `Corrupt`.
    fn read_page(&mut self, file: &dyn DatabaseFile, frame: u32, page: &mut [u8]) -> Result<(), LogError>;

    /// Prepares for a caller that reads the pages of all transactions next, in the order of the transactions. An engine
    /// may then read its log in large pieces, and build each page from the page's version before. Any page can still be
    /// read.
    fn read_in_order(&mut self) {}
}

/// Takes the frames of a transaction and seals it.
pub trait LogWriter: Send {
    /// Stores a frame of the open transaction. The frame is not yet durable, nor visible to other processes. Staging the
    /// same frame again replaces it.
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached`: the frame is not staged; the frames staged before it still are.
    fn stage(
        &mut self,
        file: &dyn DatabaseFile,
        frame: u32,
        page_number: u32,
        page: &[u8],
    ) -> Result<(), LogError>;

    /// Returns whether frames are staged.
    fn has_staged(&self) -> bool;

    /// Returns whether the staged transaction, after growing by `bytes` bytes, may be so large that sealing it has to
    /// wait until all earlier transactions are durable.
    fn outgrows(&self, bytes: usize) -> bool;

    /// Drops everything staged.
    ///
    /// # Errors
    /// `Corrupt`.
    fn discard_staged(&mut self) -> Result<(), LogError>;

    /// Seals the staged frames. On return every process can see them. The committer passes the ticket to
    /// [`DurabilityWaiter::wait`], which waits until the frames are durable. Returns `None` if the committer has nothing
    /// to wait for, because the transaction is durable already, or because Group Synch or [`crate::SyncMode::Async`]
    /// acknowledges it before it is durable.
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached`: nothing is committed.
    fn seal(&mut self, file: &dyn DatabaseFile, commit: &Commit) -> Result<Option<Ticket>, LogError>;

    /// Returns the waiter that makes sealed transactions durable. Returns `None` if sealing itself makes a transaction
    /// durable, so that no commit has to wait (but see [`crate::SyncMode::Async`]).
    fn durability_waiter(&self) -> Option<Arc<dyn DurabilityWaiter>>;

    /// Makes every committed frame durable, if sealing alone does not (invariant 5).
    ///
    /// # Errors
    /// An error of the medium.
    fn force(&mut self) -> Result<(), LogError>;

    /// Makes a new log durable, so that the caller need not sync its file, and allocates space for the log's first
    /// transactions. Returns `false` if the engine cannot do this. The caller then has to sync the file.
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached`; an error of the medium.
    fn harden(&mut self) -> Result<bool, LogError> {
        Ok(false)
    }
}

/// A store of WAL frames: a log that is read and written.
pub trait Engine: LogFile + LogReader + LogWriter {
    /// Returns the layer in front of the database file, or `None` if SQLite reads and writes the file itself. A log has
    /// a home during its whole life, or never.
    fn home(&self) -> Option<Arc<dyn Home>> {
        None
    }

    /// Returns the store of the database's rollback journal, or `None` if SQLite stores the journal in a file. The answer
    /// never changes for an engine, and the engine's descriptor gives the same answer
    /// ([`rollback_journals`](crate::Descriptor::rollback_journals)).
    fn rollback_journal(&self) -> Option<Arc<dyn RollbackJournal>> {
        None
    }
}

/// The methods of an engine's parts, for callers that hold an engine of a known type.
pub mod prelude {
    pub use super::{LogFile as _, LogReader as _, LogWriter as _};
}
