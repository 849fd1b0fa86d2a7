//! What can go wrong with a log, in words for the person who has to mend it.

use std::path::PathBuf;

use duralite_logfmt::scratchpad::RegionId;
use duralite_logfmt::{FormatError, LogId};
use duralite_medium::MediumError;
use rustix::io::Errno;

/// Everything a log operation can fail with.
#[derive(Debug, Clone, thiserror::Error)]
pub enum JournalError {
    /// The log directory's file system is full.
    #[error("no space left for the log in {}; make room there, or checkpoint", dir.display())]
    NoSpace {
        /// The log directory, or the log.
        dir: PathBuf,
    },
    /// The log has reached its stated limit (invariant 10).
    #[error(
        "the log has reached its limit of {limit_bytes} bytes: end the oldest read transaction so that a \
         checkpoint can recycle it, or set a larger log_limit for a new log"
    )]
    LimitReached {
        /// The limit.
        limit_bytes: u64,
    },
    /// Logs that share a region have all of it (invariant 10), and some of them are not where they were.
    #[error(
        "the logs in {} have all of its {limit_bytes} bytes, and {missing_bytes} of them are of logs that are not beside it any          more: open their databases, wherever they are now, or if they were deleted, run `duralite reclaim --discard DIRECTORY`",
        region.display()
    )]
    RegionFull {
        /// The region.
        region: PathBuf,
        /// Its limit.
        limit_bytes: u64,
        /// Bytes of logs that are missing.
        missing_bytes: u64,
    },
    /// The log's bytes contradict themselves where no crash can have left them so.
    #[error(
        "log damaged at offset {offset}: {what}; `duralite verify` shows what is before that, and `duralite salvage` saves it"
    )]
    Corrupt {
        /// Offset in the log file in bytes.
        offset: u64,
        /// What is wrong.
        what: FormatError,
    },
    /// SQLite wrote something to its log that this stream cannot hold.
    #[error("unexpected write to the log: {0}")]
    Unexpected(&'static str),
    /// The database names a log that is nowhere to be found.
    #[error(
        "the newest commits of {} are in log {id}, which is not in {}: point nvram or nvram_dir at the \
         directory that holds it; if it is lost for good, `duralite checkpoint --discard-log` opens the \
         database as of its last checkpoint", database.display(), searched.display()
    )]
    Missing {
        /// The database.
        database: PathBuf,
        /// Its log.
        id: LogId,
        /// Where it was looked for.
        searched: PathBuf,
    },
    /// The database names no log.
    #[error("{} names no log: it is open in no program that uses Duralite", .0.display())]
    NoLog(PathBuf),
    /// A follower asked for what the log no longer has.
    #[error(
        "the log no longer has what follows position {position}, it begins at {oldest}: copy the database \
         anew, and follow it from there"
    )]
    LostPlace {
        /// What was asked for.
        position: u64,
        /// The position before the first transaction in the log.
        oldest: u64,
    },
    /// Log and database do not belong together (invariant 3).
    #[error(
        "log {} belongs to another file than {} (it was made for {}): use that one; or if this is a copy that should \
         take the log over, or that very database on another file system, run `duralite checkpoint --adopt`",
        log.display(), database.display(), owner.display()
    )]
    Foreign {
        /// The log.
        log: PathBuf,
        /// The database that was to use it.
        database: PathBuf,
        /// Where its own database was.
        owner: PathBuf,
    },
    /// A copy was to adopt a log that cannot be emptied into it and be kept for its own database as well.
    #[error(
        "log {} holds pages of its own database, and would hold them no more: copy it beside {} as {}-duralite, and \
         checkpoint that", log.display(), database.display(), database.display()
    )]
    NotToAdopt {
        /// The log.
        log: PathBuf,
        /// The copy.
        database: PathBuf,
    },
    /// The first page of a database was torn, and no copy of it is left.
    #[error(
        "the first page of {} is damaged, and its log does not hold that page: restore the database from a \
         backup", .0.display()
    )]
    NoFirstPage(PathBuf),
    /// The log is of a format this build does not read, or no log at all.
    #[error("{}: {source}", log.display())]
    Format {
        /// The log.
        log: PathBuf,
        /// Why.
        source: FormatError,
    },
    /// The region that a log's pages are in is nowhere to be found.
    #[error(
        "the newest commits in {} are in region {region}, which is in none of {searched}: put it back where it was; if it is \
         lost for good, `duralite checkpoint --discard-log` opens the database as of its last checkpoint", log.display()
    )]
    NoRegion {
        /// The log.
        log: PathBuf,
        /// The region.
        region: RegionId,
        /// Where it was looked for.
        searched: String,
    },
    /// Somebody else holds what is needed.
    #[error("{}: {what}", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
        /// Who, and what to do.
        what: &'static str,
    },
    /// Somebody has deleted the log while it was in use (invariant 9).
    #[error(
        "log {} was deleted while it was in use: nothing more is committed, since nothing would be left of it; what was committed goes \
         into the database file: end all transactions and close every connection to the database, then open it again",
        .0.display()
    )]
    Deleted(PathBuf),
    /// Other processes use the log with other settings.
    #[error(
        "another process uses the log with another durability or group_synch, or as another kind of memory \
         (nvram=DIR, nvram=emulate): use the same settings, or close it there first"
    )]
    Settings,
    /// Log file and database have different owners (invariant 13).
    #[error("{} belongs to neither the owner of the database nor this user; refused", .0.display())]
    Owner(PathBuf),
    /// A file operation failed.
    #[error("{op} {}: {message}", path.display())]
    Io {
        /// The operation.
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's words.
        message: String,
        /// The kind of error.
        kind: std::io::ErrorKind,
    },
    /// A file could not be opened because too many are open already.
    #[error("{op} {}: {message}", path.display())]
    NoDescriptors {
        /// The operation.
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// Whose limit it is.
        message: String,
    },
    /// SQLite's VFS below this library refused to read or write the database file. SQLite is told its code.
    #[error("SQLite's own VFS answers {code} to {op} of the database file")]
    BaseVfs {
        /// The operation.
        op: &'static str,
        /// SQLite's result code, an extended one.
        code: i32,
    },
    /// The medium refused.
    #[error("{}: {source}", path.display())]
    Medium {
        /// The log.
        path: PathBuf,
        /// Why.
        source: MediumError,
    },
    /// An earlier failure stopped this log (invariant 9).
    #[error("the log stopped after an earlier error ({0}); close the database and open it again")]
    Poisoned(String),
}

/// The classes of error a caller acts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// No space, on the medium or below the limit: the statement fails, nothing is lost.
    Full,
    /// Damaged or unreadable content.
    Corrupt,
    /// The log is not there.
    NotFound,
    /// It may not be used: foreign, wrong version or medium.
    CantOpen,
    /// Not writable.
    ReadOnly,
    /// In use.
    Busy,
    /// A follower's place is lost.
    LostPlace,
    /// Everything else the system refused.
    Io,
}

impl JournalError {
    /// Whether it says for certain that there is no such file, or that what is called like it is none of ours.
    pub(crate) fn says_none(&self) -> bool {
        let is_none = |kind: std::io::ErrorKind| {
            matches!(kind, std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
        };
        matches!(self, Self::Format { .. }) || matches!(self, Self::Io { kind, .. } if is_none(*kind))
    }

    /// Whether a log or a region is of another version of its format: the build that wrote it reads it, so it is neither damaged nor lost.
    #[must_use]
    pub fn is_other_version(&self) -> bool {
        let Self::Format { source, .. } = self else { return false };
        matches!(source, FormatError::LogVersion { .. } | FormatError::Version(_))
    }

    /// The class of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSpace { .. } | Self::LimitReached { .. } | Self::RegionFull { .. } => ErrorKind::Full,
            Self::Corrupt { .. } => ErrorKind::Corrupt,
            Self::Missing { .. } | Self::NoLog(_) => ErrorKind::NotFound,
            Self::LostPlace { .. } => ErrorKind::LostPlace,
            Self::Foreign { .. }
            | Self::NotToAdopt { .. }
            | Self::Format { .. }
            | Self::NoRegion { .. }
            | Self::Settings
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
            | Self::Deleted(_)
            | Self::Poisoned(_) => ErrorKind::Io,
        }
    }

    /// A file operation that failed.
    #[must_use]
    pub fn io(op: &'static str, path: &std::path::Path, error: &std::io::Error) -> Self {
        let (path, message) = (path.to_path_buf(), duralite_medium::in_words(error));
        match Errno::from_io_error(error) {
            Some(Errno::MFILE | Errno::NFILE) => Self::NoDescriptors { op, path, message },
            _ => Self::Io { op, path, message, kind: error.kind() },
        }
    }
}
