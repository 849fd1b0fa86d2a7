//! The errors of log operations, worded for the person who has to resolve them.

use std::path::PathBuf;

use duralite_format::scratchpad::RegionId;
use duralite_format::{FormatError, LogId};
use duralite_medium::MediumError;
use rustix::io::Errno;

/// Any error of a log operation.
#[derive(Debug, Clone, thiserror::Error)]
pub enum LogError {
    /// The log directory's file system is full.
    #[error("no space left for the log in {}; free space there, or run a checkpoint", dir.display())]
    NoSpace {
        /// The log directory, or the log file.
        dir: PathBuf,
    },
    /// The log has reached its configured limit (invariant 10).
    #[error(
        "the log has reached its limit of {limit_bytes} bytes: end the oldest read transaction so that a \
         checkpoint can recycle it, or set a larger log_limit for a new log"
    )]
    LimitReached {
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// The logs in a region use the whole region (invariant 10), and some of these logs are no longer in the region's
    /// directory.
    #[error(
        "the logs in region {} use all of its {limit_bytes} bytes, and {missing_bytes} of these bytes belong \
         to logs that are no longer beside it: open their databases, wherever they are now; if the logs were \
         deleted, run `duralite reclaim --discard DIRECTORY`",
        region.display()
    )]
    RegionFull {
        /// The region.
        region: PathBuf,
        /// The region's limit in bytes.
        limit_bytes: u64,
        /// Bytes that belong to the missing logs.
        missing_bytes: u64,
    },
    /// The log's bytes contradict themselves in a way that no crash can have caused.
    #[error(
        "log damaged at offset {offset}: {what}; `duralite verify` shows the transactions before the damage, \
         and `duralite salvage` saves them"
    )]
    Corrupt {
        /// Offset in the log file in bytes.
        offset: u64,
        /// What is wrong.
        what: FormatError,
    },
    /// SQLite wrote something to its log that this library cannot store.
    #[error("unexpected write to the log: {0}")]
    Unexpected(&'static str),
    /// SQLite wrote frames of a transaction that the log has dropped. The log dropped it because its commit failed
    /// while the log was busy.
    #[error("the log was busy when the transaction was to be committed, and has dropped it: run it again")]
    Dropped,
    /// The database names a log that Duralite cannot find.
    #[error(
        "the newest commits of {} are in log {id}, which is not in {}: set nvram or nvram_dir to the \
         directory of the log; if the log is lost for good, `duralite checkpoint --discard-log` opens the \
         database as of its last checkpoint", database.display(), searched.display()
    )]
    Missing {
        /// The database.
        database: PathBuf,
        /// The log that the database names.
        id: LogId,
        /// Where Duralite looked for the log.
        searched: PathBuf,
    },
    /// The database names no log.
    #[error("{} names no log: no program has the database open through Duralite", .0.display())]
    NoLog(PathBuf),
    /// A follower asked for transactions that the log no longer has.
    #[error(
        "the log no longer has the transactions after position {position}; it begins at {oldest}: copy the \
         database again, and follow the log from that copy on"
    )]
    LostPlace {
        /// The follower asked for the transactions after this position.
        position: u64,
        /// The position before the first transaction in the log.
        oldest: u64,
    },
    /// Log and database do not belong together (invariant 3).
    #[error(
        "log {} belongs to another file than {} (it was made for {}): use the file that the log was made \
         for; if this file is a copy that should take over the log, or the same database on another file \
         system, run `duralite checkpoint --adopt`",
        log.display(), database.display(), owner.display()
    )]
    Foreign {
        /// The log.
        log: PathBuf,
        /// The database that asked for the log.
        database: PathBuf,
        /// The path of the database that the log was made for.
        owner: PathBuf,
    },
    /// A copy of a database was to take over the log of its original. That would move pages from the log into the copy,
    /// but the original still needs these pages.
    #[error(
        "log {} holds pages of its own database, which that database would lose: copy the log beside {} as \
         {}-duralite, and checkpoint that copy", log.display(), database.display(), database.display()
    )]
    NotToAdopt {
        /// The log.
        log: PathBuf,
        /// The copy.
        database: PathBuf,
    },
    /// A new file has replaced the log's database, while programs went on using the old file. The log no longer has
    /// every commit since it was made: it has started over, or has merged changes into the old file. So some commits
    /// may be in neither the log nor the new file, and applying the log to the new file would give a mixture.
    #[error(
        "{} has replaced the database of {} while that was in use, and this log no longer has all commits that the new \
         file may lack: restore a backup, or write what the log has into the file by duralite checkpoint --adopt",
        database.display(), log.display()
    )]
    Replaced {
        /// The log.
        log: PathBuf,
        /// The file that has replaced the database.
        database: PathBuf,
    },
    /// The first page of a database is damaged and does not name the log, and several logs were made for the database,
    /// each of which may be the newest (invariant 3).
    #[error(
        "the first page of {} is damaged, and its newest commits may be in {} or in {}: Duralite applies none of the two, \
         because the older one would take the database back: look at both with `duralite verify LOG`, and give the \
         database the newer one by `duralite checkpoint LOG`",
        database.display(), first.display(), second.display()
    )]
    TwoLogs {
        /// The database.
        database: PathBuf,
        /// A log that was made for the database.
        first: PathBuf,
        /// Another log, which was made for the database or is illegible.
        second: PathBuf,
    },
    /// Only a part of the first page of a database was written, and no other copy of the page exists.
    #[error(
        "the first page of {} is damaged, and its log does not hold that page: restore the database from a \
         backup", .0.display()
    )]
    NoFirstPage(PathBuf),
    /// The log's format is one that this build does not read, or the file is not a log.
    #[error("{}: {source}", log.display())]
    Format {
        /// The log.
        log: PathBuf,
        /// The fault that the decoder found.
        source: FormatError,
    },
    /// Duralite cannot find the region that holds a log's pages.
    #[error(
        "the newest commits in {} are in region {region}, which is in none of {searched}: put the region \
         back where it was; if the region is lost for good, `duralite checkpoint --discard-log` opens the \
         database as of its last checkpoint", log.display()
    )]
    NoRegion {
        /// The log.
        log: PathBuf,
        /// The region.
        region: RegionId,
        /// Where Duralite looked for the region.
        searched: String,
    },
    /// Another process or thread holds a file that the operation needs.
    #[error("{}: {what}", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
        /// What holds the file, and what the user can do.
        what: &'static str,
    },
    /// The log was deleted while it was in use (invariant 9).
    #[error(
        "log {} was deleted while it was in use: Duralite refuses new commits, because they would be lost, \
         and writes the earlier commits to the database file: end all transactions, close every connection \
         to the database, and open it again",
        .0.display()
    )]
    Deleted(PathBuf),
    /// Another process uses the log with different settings.
    #[error(
        "another process uses the log with another durability or group_synch, or as another kind of memory \
         (nvram=DIR, nvram=emulate): use the same settings, or close the database there first"
    )]
    Settings,
    /// The log file belongs to neither the owner of the database nor this user (invariant 13).
    #[error(
        "{} belongs to neither the owner of the database nor this user; Duralite refuses to use it", .0.display()
    )]
    Owner(PathBuf),
    /// A file operation failed.
    #[error("{op} {}: {message}", path.display())]
    Io {
        /// The operation.
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error message.
        message: String,
        /// The kind of error.
        kind: std::io::ErrorKind,
    },
    /// A file could not be opened because too many files are open already.
    #[error("{op} {}: {message}", path.display())]
    NoDescriptors {
        /// The operation.
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// The error message, which says whether the limit of the process or that of the system was reached.
        message: String,
    },
    /// The VFS below this library failed to read or write the database file. SQLite gets that VFS's result code.
    #[error("SQLite's own VFS returned error {code} for {op} of the database file")]
    BaseVfs {
        /// The operation.
        op: &'static str,
        /// SQLite's extended result code.
        code: i32,
    },
    /// An operation of the medium failed.
    #[error("{}: {source}", path.display())]
    Medium {
        /// The log.
        path: PathBuf,
        /// The medium's error.
        source: MediumError,
    },
    /// An earlier failure stopped this log (invariant 9).
    #[error("the log stopped after an earlier error ({0}); close the database and open it again")]
    Poisoned(String),
}

/// The kinds of errors that callers distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// There is no space, because the medium is full or the log's limit is reached: the statement fails, and nothing is
    /// lost.
    Full,
    /// The content is damaged or unreadable.
    Corrupt,
    /// The log does not exist.
    NotFound,
    /// The log may not be used: it is foreign, or of the wrong version or medium.
    CantOpen,
    /// The file is not writable.
    ReadOnly,
    /// The log is in use.
    Busy,
    /// The log no longer has the transactions that a follower needs next.
    LostPlace,
    /// Any other error that the system reported.
    Io,
}

impl LogError {
    /// Returns whether the error proves that the file does not exist or is not a log.
    pub(crate) fn says_none(&self) -> bool {
        let is_none = |kind: std::io::ErrorKind| {
            matches!(kind, std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
        };
        matches!(self, Self::Format { .. }) || matches!(self, Self::Io { kind, .. } if is_none(*kind))
    }

    /// Returns whether a log or a region has another version of its format. Such a file is neither damaged nor lost,
    /// because a build that knows this version can read it.
    #[must_use]
    pub fn is_other_version(&self) -> bool {
        let Self::Format { source, .. } = self else { return false };
        matches!(source, FormatError::LogVersion { .. } | FormatError::Version(_))
    }

    /// Returns the class of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSpace { .. } | Self::LimitReached { .. } | Self::RegionFull { .. } => ErrorKind::Full,
            Self::Corrupt { .. } => ErrorKind::Corrupt,
            Self::Missing { .. } | Self::NoLog(_) => ErrorKind::NotFound,
            Self::LostPlace { .. } => ErrorKind::LostPlace,
            Self::Foreign { .. }
            | Self::NotToAdopt { .. }
            | Self::Replaced { .. }
            | Self::Format { .. }
            | Self::NoRegion { .. }
            | Self::Settings
            | Self::TwoLogs { .. }
            | Self::NoFirstPage(_)
            | Self::NoDescriptors { .. }
            | Self::Medium { source: MediumError::Io { source: Errno::MFILE | Errno::NFILE, .. }, .. }
            | Self::Owner(_) => ErrorKind::CantOpen,
            Self::Busy { .. } | Self::Medium { source: MediumError::Crowded { .. }, .. } => ErrorKind::Busy,
            Self::Io { kind, .. } => match kind {
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::Full,
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
                    ErrorKind::ReadOnly
                }
                _ => ErrorKind::Io,
            },
            Self::Medium { source: MediumError::NoSpace, .. } => ErrorKind::Full,
            Self::Medium { source: MediumError::NotDax { .. } | MediumError::Unsupported { .. }, .. } => {
                ErrorKind::CantOpen
            }
            Self::BaseVfs { .. }
            | Self::Medium { .. }
            | Self::Unexpected(_)
            | Self::Dropped
            | Self::Deleted(_)
            | Self::Poisoned(_) => ErrorKind::Io,
        }
    }

    /// Returns the error of a file operation that failed.
    #[must_use]
    pub fn io(op: &'static str, path: &std::path::Path, error: &std::io::Error) -> Self {
        let (path, message) = (path.to_path_buf(), duralite_medium::in_words(error));
        match Errno::from_io_error(error) {
            Some(Errno::MFILE | Errno::NFILE) => Self::NoDescriptors { op, path, message },
            _ => Self::Io { op, path, message, kind: error.kind() },
        }
    }
}
