//! What an engine does for the WAL stream: keep frames, and make transactions durable.
//!
//! Frames are numbered from 1 as in SQLite's wal-index. An engine knows nothing of byte offsets
//! in the `-wal` file. It has three parts: [`LogWriter`] takes frames and seals transactions,
//! [`LogReader`] reads and follows what is committed, and [`LogFile`] is the log as a file, with its
//! generations. One writer at a time calls `stage`, `seal` and `begin_generation`
//! (invariant 11); SQLite's WRITE lock sees to that, across processes too.
//!
//! A page may be kept as what makes it from the page in the database file. So whatever stores, reads or drops frames
//! is given that `file`, as it is: no home is before it, and the guard shows. It is the connection's own, and never
//! kept: inside SQLite another descriptor would take the locks of this one with it. It is read with the locks that
//! a [`crate::home`] is read with, on any thread, while other processes may write other pages.

use duralite_logfmt::sqlite_wal::{Checksum, WalHeader};

use std::sync::Arc;

use duralite_logfmt::{LogId, Origin};
use duralite_medium::Guarantee;

use crate::JournalError;
use crate::home::{DatabaseFile, Home};
use crate::rollback::RollbackJournal;

/// A committed frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Database page in it.
    pub page_number: u32,
    /// Database size in pages if it is a commit frame, else 0.
    pub db_pages: u32,
    /// SQLite's cumulative checksum after it, as SQLite believed it to be; kept for commit frames only. Zeros where
    /// it has written none.
    pub checksum: Option<Checksum>,
    /// Size of its record in the log, with the record's header, in bytes; `None` where the log does not keep a record for
    /// each frame.
    pub record_bytes: Option<u32>,
}

/// A committed transaction that no later one has taken the place of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transaction {
    /// Its number in the generation, from 1.
    pub sequence: u32,
    /// Its first frame.
    pub first_frame: u32,
    /// Its commit frame.
    pub last_frame: u32,
    /// Database size in pages after it.
    pub db_pages: u32,
    /// When it was sealed, in milliseconds since 1970; 0 if that is not known.
    pub time_ms: u64,
}

/// How much of a log is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    /// Bytes that the generation takes.
    pub used_bytes: u64,
    /// Bytes that it may take.
    pub limit_bytes: u64,
}

/// Tells the time in milliseconds since 1970.
pub type Clock = fn() -> u64;

/// The system's clock, as of its last tick, a few milliseconds ago: a commit takes two microseconds, and
/// to ask exactly would take another twentieth of one.
#[must_use]
pub fn wall_clock() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000)
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
    /// SQLite's cumulative checksum after the commit frame; zeros where it has written none.
    pub checksum: Checksum,
}

/// What a sealed transaction's durability is waited for by.
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

/// What a process has made durable for itself and others, since it attached the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Led {
    /// Groups that it has written.
    pub groups: u64,
    /// Transactions in them.
    pub transactions: u64,
}

/// Makes sealed transactions durable, without the lock of the stream they came by.
pub trait DurabilityWaiter: Send + Sync {
    /// Returns when the transaction is durable.
    ///
    /// # Errors
    /// When it could not be made durable: then nothing sealed after it is either (invariant 9).
    fn wait(&self, ticket: Ticket) -> Result<(), JournalError>;

    /// Returns when everything that is sealed now is durable.
    ///
    /// # Errors
    /// As [`DurabilityWaiter::wait`].
    fn wait_all(&self) -> Result<(), JournalError>;

    /// Returns when a transaction of ordinary size can be sealed without waiting. Called by the
    /// holder of the WRITE lock, who alone uses up what there is room for.
    ///
    /// # Errors
    /// As [`DurabilityWaiter::wait`].
    fn make_room(&self) -> Result<(), JournalError>;

    /// Returns when everything that is sealed now survives a power loss, even where commits are
    /// acknowledged before they do (invariant 5).
    ///
    /// # Errors
    /// As [`DurabilityWaiter::wait`].
    fn force(&self) -> Result<(), JournalError>;

    /// Prepares for the log to start over, which the holder of the WRITE lock may ask for; whether it
    /// can. Not while a process is stopped in a write of its own that it may still do.
    ///
    /// # Errors
    /// As [`DurabilityWaiter::wait`].
    fn settle(&self) -> Result<bool, JournalError>;

    /// What this process has made durable; nothing where each transaction is so by itself.
    fn led(&self) -> Led {
        Led::default()
    }
}

/// The log as a file: whose it is, what it is on, and its generations.
pub trait LogFile: Send {
    /// The engine's name in settings.
    fn name(&self) -> &'static str;

    /// Identity of the log.
    fn id(&self) -> LogId;

    /// Page size in bytes.
    fn page_bytes(&self) -> u32;

    /// What an acknowledged commit survives.
    fn guarantee(&self) -> Guarantee;

    /// The medium, for people.
    fn describe(&self) -> String;

    /// Figures, by name. Those of work done are this process's since it attached.
    fn metrics(&self) -> Vec<(&'static str, String)>;

    /// Takes settings that may change while a log is in use.
    fn configure(&mut self, options: &crate::EngineOptions);

    /// Takes the time of commits from another clock than the system's.
    fn set_clock(&mut self, clock: Clock);

    /// How near the log is to its limit.
    fn fill(&self) -> Fill;

    /// Whether the log is to start over before long, so that transactions go on finding room: the VFS then runs a checkpoint
    /// before one begins.
    fn is_short(&self) -> bool {
        let fill = self.fill();
        fill.used_bytes >= fill.limit_bytes / 2
    }

    /// SQLite's header of the log's current generation; `None` while the log is empty.
    fn wal_header(&self) -> Option<&WalHeader>;

    /// Starts the log over, with this header or empty. Durable when it returns. The caller has
    /// synced everything committed so far into the database file (invariant 6).
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached`, and `Busy` while a stopped process may still write to the log; with
    /// the old generation still in force.
    fn begin_generation(
        &mut self,
        file: &dyn DatabaseFile,
        header: Option<&WalHeader>,
    ) -> Result<(), JournalError>;

    /// Starts the log over, empty, and gives back what its file has beyond so many bytes and more than a
    /// new log's. The new generation is durable on return. The caller has synced everything
    /// committed so far into the database file (invariant 6).
    ///
    /// # Errors
    /// As [`LogFile::begin_generation`]. What cannot be given back stays, without an error.
    fn clear(&mut self, file: &dyn DatabaseFile, keep_bytes: u64) -> Result<(), JournalError>;

    /// Whether [`LogFile::clear`] would give something back.
    fn has_surplus(&self, keep_bytes: u64) -> bool;

    /// Declares that everything is in the database file and synced: what a home still holds may go. Durable on
    /// return.
    ///
    /// # Errors
    /// `Corrupt`, or an error of the medium.
    fn retire(&mut self) -> Result<(), JournalError>;
}

/// What reads committed frames, and follows what other processes commit.
pub trait LogReader: Send {
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

    /// The pages with committed frames, each with the number of its newest one; ascending.
    fn newest_frames(&self) -> Vec<(u32, u32)>;

    /// Where the generation that was read stands in the log's history.
    fn origin(&self) -> Origin;

    /// Transactions sealed in this generation, known since the last refresh; those too that a later one
    /// has taken the place of.
    fn transactions(&self) -> u32;

    /// Transactions sealed in the log since it was made, known since the last refresh. It only grows.
    fn position(&self) -> u64 {
        self.origin().position.saturating_add(u64::from(self.transactions()))
    }

    /// The first transaction of this generation with a number above `sequence`.
    fn transaction_after(&self, sequence: u32) -> Option<Transaction>;

    /// Whether a committed frame is durable.
    fn is_durable(&self, frame: u32) -> bool;

    /// Whether the generation that was read is still the one in force: if not, what has been read of it
    /// meanwhile may be of another.
    fn is_current(&self) -> bool;

    /// The page of a staged or committed frame, staged first.
    ///
    /// # Errors
    /// `Unexpected` for a frame that does not exist; `Corrupt`.
    fn read_page(&mut self, file: &dyn DatabaseFile, frame: u32, page: &mut [u8])
    -> Result<(), JournalError>;
}

/// What takes the frames of a transaction and seals it.
pub trait LogWriter: Send {
    /// Stores a frame of the open transaction; nothing is durable or visible yet.
    /// A frame staged again replaces the one before.
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached`: the frame is not staged, those before it still are.
    fn stage(
        &mut self,
        file: &dyn DatabaseFile,
        frame: u32,
        page_number: u32,
        page: &[u8],
    ) -> Result<(), JournalError>;

    /// Whether frames are staged.
    fn has_staged(&self) -> bool;

    /// Whether the staged transaction, with so many bytes more, may have to wait until everything
    /// sealed is durable before it can go on.
    fn outgrows(&self, bytes: usize) -> bool;

    /// Forgets everything staged.
    ///
    /// # Errors
    /// `Corrupt`.
    fn discard_staged(&mut self) -> Result<(), JournalError>;

    /// Seals the staged frames. When it returns they are visible to every process; they are
    /// durable too (but see [`crate::SyncMode::Async`]), unless it returns a ticket to wait for.
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached`: nothing is committed.
    fn seal(&mut self, file: &dyn DatabaseFile, commit: &Commit) -> Result<Option<Ticket>, JournalError>;

    /// Who makes sealed transactions durable; `None` where sealing does.
    fn durability_waiter(&self) -> Option<Arc<dyn DurabilityWaiter>>;

    /// Makes every committed frame durable, where sealing alone does not (invariant 5).
    ///
    /// # Errors
    /// An error of the medium.
    fn force(&mut self) -> Result<(), JournalError>;

    /// Makes a new log durable whose file has not been synced yet, with room for its first transactions. `false`: that is left
    /// to a sync of the file.
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached`; an error of the medium.
    fn harden(&mut self) -> Result<bool, JournalError> {
        Ok(false)
    }
}

/// A store of WAL frames: a log that is read and written.
pub trait Engine: LogFile + LogReader + LogWriter {
    /// What stands before the database file; `None` where SQLite reads and writes the file itself. Whether there
    /// is one never changes for a log.
    fn home(&self) -> Option<Arc<dyn Home>> {
        None
    }

    /// What keeps the database's rollback journal; `None` where SQLite keeps it in a file. Whether there is one never
    /// changes for an engine, which says so in its descriptor too
    /// ([`rollback_journals`](crate::Descriptor::rollback_journals)).
    fn rollback_journal(&self) -> Option<Arc<dyn RollbackJournal>> {
        None
    }
}

/// The methods of an engine's parts, for who has one of a known type.
pub mod prelude {
    pub use super::{LogFile as _, LogReader as _, LogWriter as _};
}

/// A boxed engine is an engine.
macro_rules! delegate {
    ($part:ident:
     shared { $(fn $name:ident(&self $(, $arg:ident: $type:ty)*) -> $result:ty;)* }
     exclusive { $(fn $mut_name:ident(&mut self $(, $mut_arg:ident: $mut_type:ty)*) -> $mut_result:ty;)* }) => {
        impl $part for Box<dyn Engine> {
            $(fn $name(&self $(, $arg: $type)*) -> $result { (**self).$name($($arg),*) })*
            $(fn $mut_name(&mut self $(, $mut_arg: $mut_type)*) -> $mut_result {
                (**self).$mut_name($($mut_arg),*)
            })*
        }
    };
}

impl Engine for Box<dyn Engine> {
    fn home(&self) -> Option<Arc<dyn Home>> {
        (**self).home()
    }

    fn rollback_journal(&self) -> Option<Arc<dyn RollbackJournal>> {
        (**self).rollback_journal()
    }
}

delegate! {
    LogFile:
    shared {
        fn name(&self) -> &'static str;
        fn id(&self) -> LogId;
        fn page_bytes(&self) -> u32;
        fn guarantee(&self) -> Guarantee;
        fn describe(&self) -> String;
        fn metrics(&self) -> Vec<(&'static str, String)>;
        fn wal_header(&self) -> Option<&WalHeader>;
        fn has_surplus(&self, keep_bytes: u64) -> bool;
        fn fill(&self) -> Fill;
        fn is_short(&self) -> bool;
    }
    exclusive {
        fn configure(&mut self, options: &crate::EngineOptions) -> ();
        fn set_clock(&mut self, clock: Clock) -> ();
        fn begin_generation(
            &mut self, file: &dyn DatabaseFile, header: Option<&WalHeader>
        ) -> Result<(), JournalError>;
        fn clear(&mut self, file: &dyn DatabaseFile, keep_bytes: u64) -> Result<(), JournalError>;
        fn retire(&mut self) -> Result<(), JournalError>;
    }
}

delegate! {
    LogReader:
    shared {
        fn version(&self) -> u64;
        fn committed(&self) -> u32;
        fn frame(&self, number: u32) -> Option<Frame>;
        fn newest_frames(&self) -> Vec<(u32, u32)>;
        fn origin(&self) -> Origin;
        fn transactions(&self) -> u32;
        fn transaction_after(&self, sequence: u32) -> Option<Transaction>;
        fn is_durable(&self, frame: u32) -> bool;
        fn is_current(&self) -> bool;
    }
    exclusive {
        fn refresh(&mut self) -> Result<(), JournalError>;
        fn read_page(&mut self, file: &dyn DatabaseFile, frame: u32, page: &mut [u8]) -> Result<(), JournalError>;
    }
}

delegate! {
    LogWriter:
    shared {
        fn has_staged(&self) -> bool;
        fn outgrows(&self, bytes: usize) -> bool;
        fn durability_waiter(&self) -> Option<Arc<dyn DurabilityWaiter>>;
    }
    exclusive {
        fn stage(
            &mut self, file: &dyn DatabaseFile, frame: u32, page_number: u32, page: &[u8]
        ) -> Result<(), JournalError>;
        fn discard_staged(&mut self) -> Result<(), JournalError>;
        fn seal(&mut self, file: &dyn DatabaseFile, commit: &Commit) -> Result<Option<Ticket>, JournalError>;
        fn force(&mut self) -> Result<(), JournalError>;
        fn harden(&mut self) -> Result<bool, JournalError>;
    }
}
