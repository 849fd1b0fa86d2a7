//! The log directory: a directory of log files, and the rules by which a log and a database belong
//! together (invariants 3 and 13).

mod attach;
mod boot;
mod create;
mod deleted;
mod find;
mod head;
mod leftovers;
mod looking;
mod names;
mod open;
mod outside;
mod segment_files;
mod shared;
mod watch;
mod words;

use std::path::{Path, PathBuf};

use duralite_format::LogId;

use crate::engine::Engine;
use crate::engine::descriptor::{Descriptor, LogPlacement, OpenFile};
use crate::engine::home::DatabaseFile;
use crate::engine::salvage::{Later, Salvaged};
use crate::engine::walk::{WalkSummary, WalkedTransaction};
pub use crate::hooks::{FileStep, Hook, Hooked, hook, nvm as hooked_nvm};
use crate::shared::log_file;
pub(crate) use crate::shared::log_file::pause;
pub use crate::shared::log_file::{Pause, pause_for};
use crate::{DatabaseIdentity, LogError};
pub(crate) use attach::{attach, remove_unused};
pub(crate) use create::{collect_leftovers, create};
pub(crate) use deleted::is_deleted;
pub use deleted::{DeletedLog, find_deleted};
pub use find::{Claim, FoundLog, claim, made_for};
use head::Head;
pub(crate) use leftovers::where_now;
pub use looking::{Looked, Reading, look, look_through};
pub use names::is_log_name;
pub(crate) use names::segment as segment_path;
use open::open_log;
pub use outside::Outside;
pub(crate) use shared::OpenLog;
pub use watch::{Glance, Watch};
pub use words::{
    ACKNOWLEDGED, DELETED_LOG_COPIED, DELETION_SEEN, GUARD_KIND, HARDENED, HOME_FAILURES, HOME_SYNCED,
    HOME_WRITES, LOCKS_BYTES, LOCKS_OFFSET, LOG_DELETED, READABLE, RESTART_UNTIL,
};

impl LogPlacement {
    /// The path of the log with this id and of the directory's engine, which the database at this path names; `None`
    /// when the log is not in this directory.
    ///
    /// # Errors
    /// `Io` where that cannot be determined: a log that cannot be opened at present is not missing.
    pub fn find(&self, database: &Path, id: LogId) -> Result<Option<PathBuf>, LogError> {
        find::by_id(self, database, id)
    }
}

/// Whether an attached log was made for this very database.
pub(crate) fn is_own(open: &OpenLog, db: &DatabaseIdentity) -> Result<bool, LogError> {
    Head::read(&open.path, &open.file).map(|head| head.is_of(db))
}

/// What a log file says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// The engine that wrote it.
    pub engine: &'static Descriptor,
    /// The log's id.
    pub id: LogId,
    /// Where the log's database was when the log was made.
    pub database: PathBuf,
}

/// Reads what a log file says about itself.
///
/// # Errors
/// `Io`, `Format`.
pub fn describe(path: &Path) -> Result<About, LogError> {
    let head = Head::read(path, &open_log(path, false)?)?;
    Ok(About { engine: head.engine, id: head.log_id, database: head.database() })
}

/// Opens a log of any engine for inspection, in the state in which recovery would find it. Writes nothing, and takes no
/// lock.
///
/// # Errors
/// As for attaching, except that the log may belong to any database.
pub fn open_log_read_only(path: &Path) -> Result<Box<dyn Engine>, LogError> {
    let file = open_log(path, false)?;
    let head = Head::read(path, &file)?;
    (head.engine.open_read_only)(&OpenFile { path, file: &file })
}

/// Visits every committed transaction of a log in order, with the code that recovers logs. Then rebuilds every page and
/// checks SQLite's checksums. Writes nothing, and reads from the database what the pages need;
/// [`crate::engine::home::NoDatabase`] is enough for engines whose pages are all in the log.
///
/// # Errors
/// The one with which recovery would fail. The transactions before it have been visited.
pub fn walk(
    path: &Path,
    database: &dyn DatabaseFile,
    visit: &mut dyn FnMut(&WalkedTransaction),
) -> Result<WalkSummary, LogError> {
    let file = open_log(path, false)?;
    let head = Head::read(path, &file)?;
    (head.engine.walk)(&OpenFile { path, file: &file }, database, visit)
}

/// Opens a log to salvage its contents, and passes every intact transaction after the damage to `later`. Also reads the
/// database file, to determine which of its pages are newer than the damage. Writes nothing, and takes no lock.
///
/// # Errors
/// `Format` for a log whose head is damaged, `NoRegion`; the errors that `later` returns; those of reading the files.
pub fn salvage(path: &Path, database: &dyn DatabaseFile, later: Later<'_>) -> Result<Salvaged, LogError> {
    let file = open_log(path, false)?;
    let head = Head::read(path, &file)?;
    let log = OpenFile { path, file: &file };
    crate::engine::salvage::read(&|later| (head.engine.salvage)(&log, database, later), database, later)
}

/// Makes the names in a file's directory durable.
///
/// # Errors
/// `Io`.
pub fn sync_names(path: &Path) -> Result<(), LogError> {
    log_file::sync_names(path).map_err(|error| LogError::io("sync the directory of", path, &error))
}
