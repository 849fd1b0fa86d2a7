//! The pool: a directory of log files, and the rules by which a log and a database belong
//! together (invariants 3 and 13).

mod attach;
mod create;
mod disk;
mod files;
mod find;
mod head;
mod identity;
mod leftovers;
mod names;
mod nvram;
mod outside;
mod shared;
mod tap;

use std::path::{Path, PathBuf};

use duralite_logfmt::LogId;

use crate::JournalError;
use crate::engine::Engine;
pub(crate) use attach::{attach, remove_unused};
pub(crate) use create::create;
pub use disk::{open_blocks_read_only, open_disk_read_only};
pub(crate) use files::remove;
pub use find::{Claim, FoundLog, claim, made_for};
use head::Head;
pub use identity::DatabaseIdentity;
pub(crate) use leftovers::where_now;
pub use names::is_log_name;
pub(crate) use names::segment as segment_path;
pub use nvram::{map_read_only, open_read_only};
pub use outside::Outside;
pub(crate) use shared::OpenLog;
pub use shared::{ACKNOWLEDGED, HOME_FAILURES, READABLE, RESTART_UNTIL};
pub use tap::{FileStep, Tap, Tapped, tap};

/// Where the locks of the database are in the shared segment, and how much is theirs.
pub const LOCKS_OFFSET: u64 = 4096;
/// Bytes of the shared segment that are the locks'.
pub const LOCKS_BYTES: u64 = 64 << 10;
const ENGINE_OFFSET: u64 = LOCKS_OFFSET + LOCKS_BYTES;

/// What kind of medium the pool is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolKind {
    /// Persistent memory, on a DAX file system: `nvwal`.
    Dax,
    /// Memory that any file system backs; what it holds survives a process crash, not a power
    /// loss: `nvwal`.
    Emulate,
    /// A block device: `waldio`.
    Disk,
}

impl PoolKind {
    fn word(self) -> u64 {
        match self {
            Self::Dax => 1,
            Self::Emulate => 2,
            Self::Disk => 3,
        }
    }
}

/// Where logs are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolConfig {
    /// The kind of medium.
    pub kind: PoolKind,
    /// The directory.
    pub dir: PathBuf,
}

impl PoolConfig {
    /// The log of this id and of the pool's kind, which the database at this path names; `None` when it is not
    /// here.
    #[must_use]
    pub fn find(&self, database: &Path, id: LogId) -> Option<PathBuf> {
        find::by_id(self, database, id)
    }
}

/// What a log file says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFile {
    /// The engine that wrote it.
    pub engine: &'static str,
    /// Its identity.
    pub id: LogId,
    /// Where its database was when it was made.
    pub database: PathBuf,
}

/// Reads what a log file says about itself.
///
/// # Errors
/// `Io`, `Format`.
pub fn describe(path: &Path) -> Result<LogFile, JournalError> {
    let head = Head::read(path, &*files::open(path, false)?)?;
    Ok(LogFile { engine: head.engine(), id: head.log_id, database: head.database() })
}

/// Opens a log of either engine to look at it, as recovery would find it: nothing is written, no
/// lock is taken.
///
/// # Errors
/// As for attaching, but whatever database it belongs to.
pub fn open_log_read_only(path: &Path) -> Result<Box<dyn Engine>, JournalError> {
    if describe(path)?.engine == "waldio" {
        return Ok(Box::new(open_disk_read_only(path)?));
    }
    Ok(Box::new(open_read_only(path)?))
}

/// Makes the names in a file's directory durable.
///
/// # Errors
/// `Io`.
pub fn sync_names(path: &Path) -> Result<(), JournalError> {
    files::sync_names(path).map_err(|error| JournalError::io("sync the directory of", path, &error))
}

/// Deletes what a crash has left in the pool of a database that names no log. Costs one look at a name where
/// the pool is the database's own directory.
pub fn collect_leftovers(pool: &PoolConfig, db: &DatabaseIdentity) {
    leftovers::collect(&pool.dir, db, db.path.parent() != Some(&*pool.dir));
}
