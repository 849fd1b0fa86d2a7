//! Functions that tools use on a database and its log, without SQLite, while no process has them open.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use duralite_format::LogId;
use duralite_format::guard::{self, DatabaseHeader, HEADER_BYTES};
use duralite_medium::process::OwnFile;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::engine::descriptor::LogPlacement;
use crate::engine::home::{DatabaseAt, DatabaseFile, Header, Homed, OpenDatabase};
use crate::engine::rollback::play_back;
use crate::log::recover::{WriteHome, inspect_file, is_provisional, recovered, write_home};
use crate::placement::{self, OpenLog, Pause, Relation, pause};
use crate::{DatabaseIdentity, EngineOptions, ErrorKind, Log, LogError};

/// The result of checkpointing a log into its database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpointed {
    /// Pages written to the database file.
    pub pages: usize,
    /// Size of the database in pages after the checkpoint; 0 if the log had no commit.
    pub db_pages: u32,
    /// The path to which an adopted log was renamed.
    pub kept: Option<PathBuf>,
}

/// Reads and classifies a database file's header. A process that has the database open through SQLite must not call this
/// function, because closing the file here would release all POSIX locks that the process holds on the file.
///
/// # Errors
/// `Io`.
pub fn inspect(database: &Path) -> Result<DatabaseHeader, LogError> {
    inspect_file(&DatabaseAt::new(database))
}

/// What happens to a log that has been checkpointed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Afterwards {
    /// The log is deleted.
    Delete,
    /// The log still belongs to another database, and is put aside.
    Keep,
}

/// Rolls back a hot rollback journal in the log, writes all committed pages in the log to the database file, lifts the
/// guard and deletes the log. On return the file is an ordinary SQLite database and synced, and the log's home holds
/// nothing that the file lacks. With `adopt`, the database may be a copy of the database that the log was made for. In
/// that case the log is put aside instead of deleted. No other process may have the database open.
///
/// # Errors
/// `Busy` if a process has the database open; otherwise as [`checkpoint_into`].
pub fn checkpoint(
    placement: &LogPlacement,
    database: &Path,
    id: LogId,
    adopt: bool,
) -> Result<Checkpointed, LogError> {
    let db = DatabaseIdentity::of(database)?;
    let file = open_alone(database)?;
    let afterwards = if adopt { Afterwards::Keep } else { Afterwards::Delete };
    checkpoint_into(&file, placement, &db, id, adopt, afterwards, &pause())
}

/// Like [`checkpoint`], for a database that was copied together with its log. Deletes this copy of the log, because no
/// other database needs it.
///
/// # Errors
/// As [`checkpoint`].
pub fn checkpoint_copy(
    placement: &LogPlacement,
    database: &Path,
    id: LogId,
) -> Result<Checkpointed, LogError> {
    let db = DatabaseIdentity::of(database)?;
    let file = open_alone(database)?;
    checkpoint_into(&file, placement, &db, id, true, Afterwards::Delete, &pause())
}

/// Like [`checkpoint`], for a database file to which the caller has exclusive access. With `adopt` the log may be one
/// that was made for another file.
///
/// # Errors
/// `Busy` if a process uses the log. `NoFirstPage` if the database's first page is damaged and neither the log nor its
/// home holds that page. `Replaced` if the file has replaced the log's database, and some changes may be in neither the
/// file nor the log; `Afterwards::Keep` ignores this. `NotToAdopt` if the log has to be kept for another database, but
/// the checkpoint would empty the log's home or remove its rollback journal. Otherwise as [`Log::attach`]. After a
/// crash or an error, the database can be checkpointed again.
pub fn checkpoint_into(
    file: &dyn DatabaseFile,
    placement: &LogPlacement,
    db: &DatabaseIdentity,
    id: LogId,
    adopt: bool,
    afterwards: Afterwards,
    pause: Pause<'_>,
) -> Result<Checkpointed, LogError> {
    let database = &db.path;
    let options = EngineOptions::default();
    let Some(open) =
        or_nothing(placement::attach(file, placement, &options, db, id, adopt, pause), file, id)?
    else {
        lift_guard(file, database)?;
        return Ok(Checkpointed { pages: 0, db_pages: 0, kept: None });
    };
    let _lock = lock_alone(&open, database)?;
    let relation = placement::relation(&open, db)?;
    let own = relation == Relation::Own;
    let mut log = recovered(open, file, WriteHome::NotAllowed, &options, database)?;
    let names = || (log.path().to_path_buf(), database.clone());
    match (relation, afterwards) {
        (Relation::Other, Afterwards::Keep) if loses_by_checkpoint(&log)? => {
            let (log, database) = names();
            return Err(LogError::NotToAdopt { log, database });
        }
        (Relation::Replaced, Afterwards::Delete) if !has_every_change(&log) => {
            let (log, database) = names();
            return Err(LogError::Replaced { log, database });
        }
        _ => {}
    }
    let played = match log.rollback_journal() {
        Some(journal) => play_back(&*journal, &Homed::new(file, log.home()), log.id())?.pages,
        None => 0,
    };
    let pages = played + write_home(&mut log, file, database)?;
    let db_pages = log.db_pages()?;
    // Do not retire a log of another database, which is only put aside. If this process dies before the log has its new
    // name, the log's own database finds the log unchanged.
    if own || afterwards == Afterwards::Delete {
        log.retire()?;
    }
    lift_guard(file, database)?;
    let kept = dispose(&mut log, own, afterwards)?;
    Ok(Checkpointed { pages, db_pages, kept })
}

/// Returns whether no process has the database open at the moment.
///
/// # Errors
/// `Io`.
pub fn is_unused(database: &Path) -> Result<bool, LogError> {
    match open_alone(database) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::Busy => Ok(false),
        Err(error) => Err(error),
    }
}

/// Lifts the guard of a database whose log is lost. After that the database is what the last checkpoint left. It lacks
/// all later commits, and may be inconsistent if that checkpoint was interrupted. `examined` is the header
/// ([`inspect`]) that names the lost log. If the database was used after `inspect`, its header may name another log,
/// which may have commits. So this function lifts no other guard (invariant 1).
///
/// # Errors
/// `Busy` if a process has the database open, or the header is not the one that was examined; `Io`.
pub fn discard_log(database: &Path, examined: DatabaseHeader) -> Result<(), LogError> {
    let file = open_alone(database)?;
    if inspect_file(&file)? != examined {
        let what = "the database has been used since this command examined it; run the command again";
        return Err(LogError::Busy { path: database.to_path_buf(), what });
    }
    lift_guard(&file, database)
}

/// Deletes a log that has been checkpointed, or puts it aside and returns its new path.
fn dispose(log: &mut Log, own: bool, afterwards: Afterwards) -> Result<Option<PathBuf>, LogError> {
    match afterwards {
        Afterwards::Keep => {
            let mut aside = log.path().to_path_buf().into_os_string();
            aside.push(".adopted");
            let aside = PathBuf::from(aside);
            std::fs::rename(log.path(), &aside)
                .map_err(|error| LogError::io("rename", log.path(), &error))?;
            drop(std::fs::remove_file(log.segment_path()));
            Ok(Some(aside))
        }
        Afterwards::Delete => {
            let path = log.path_now()?;
            log.unlink()?;
            // Sync the directory, so that a power loss does not bring the log back. Nobody would delete a log that came
            // back, because it belongs to another database.
            if let Some(path) = path.filter(|_| !own) {
                placement::sync_names(&path)?;
            }
            Ok(None)
        }
    }
}

/// Returns the attached log. Returns `None` if attaching failed and the database has a provisional guard: the file is
/// only what a power loss has left of a new log, in which nothing was ever committed.
fn or_nothing(
    attached: Result<OpenLog, LogError>,
    file: &dyn DatabaseFile,
    id: LogId,
) -> Result<Option<OpenLog>, LogError> {
    match attached {
        Err(error) if error.kind() != ErrorKind::Busy && is_provisional(file, id)? => Ok(None),
        attached => attached.map(Some),
    }
}

/// Locks a log that this process has opened and no other process uses, so that no other process can begin to use it.
fn lock_alone(open: &OpenLog, database: &Path) -> Result<OwnFile, LogError> {
    if !open.alone {
        return Err(busy(database));
    }
    let lock = open.file.try_clone().map_err(|error| LogError::io("lock", database, &error))?;
    lock.try_lock().map_err(|_| busy(database))?;
    Ok(lock)
}

fn busy(database: &Path) -> LogError {
    LogError::Busy { path: database.to_path_buf(), what: "a process has the database open; close it first" }
}

/// Returns whether writing the log into a copy of its database would take something from the original. It would, if the
/// log has a home that stores pages outside the file, because the checkpoint would empty that home. It also would, if
/// the log holds a rollback journal, because the checkpoint would play the journal back into the copy and remove it.
fn loses_by_checkpoint(log: &Log) -> Result<bool, LogError> {
    let holds_pages = log.home().is_some_and(|home| home.header() != Header::Shared);
    let has_journal = log.rollback_journal().map_or(Ok(None), |journal| journal.size())?.is_some();
    Ok(holds_pages || has_journal)
}

/// Returns whether the log has every change of its database since the log was made. That is so if the log has never
/// started over, and no home has taken changes from it. Such a log brings any later copy of the database up to date.
fn has_every_change(log: &Log) -> bool {
    log.first_position() == 0 && log.home().is_none()
}

/// Opens a database that no other process has open. Excludes other processes by a lock on the whole file, including the
/// bytes that SQLite locks.
fn open_alone(database: &Path) -> Result<OpenDatabase, LogError> {
    let file = OpenOptions::new().read(true).write(true).open(database);
    let file = file.map_err(|error| LogError::io("open", database, &error))?;
    match rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(OpenDatabase::new(file, database)),
        Err(Errno::AGAIN | Errno::ACCESS) => Err(busy(database)),
        Err(errno) => Err(LogError::io("lock", database, &errno.into())),
    }
}

/// Lifts the guard in the file itself, because the guard never belongs to a home. The rest of the header in the file is
/// correct already.
fn lift_guard(file: &dyn DatabaseFile, database: &Path) -> Result<(), LogError> {
    let mut header = [0; HEADER_BYTES];
    if file.read(&mut header, 0)? < HEADER_BYTES {
        return Err(LogError::io("read", database, &std::io::ErrorKind::UnexpectedEof.into()));
    }
    guard::lift(&mut header);
    file.write(&header, 0).and_then(|()| file.sync())
}

#[cfg(test)]
mod tests {
    use duralite_format::guard::JournalKind;

    use super::*;

    #[test]
    fn inv01_only_the_guard_that_was_examined_is_discarded() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path();
        let mut plain = [0; 4096];
        plain[..20].copy_from_slice(b"SQLite format 3\0\x10\0\x02\x02");
        let provisional = |id| {
            let mut page = plain;
            let header = page.first_chunk_mut().unwrap();
            guard::mask_provisionally(JournalKind::Wal, header, LogId([id; 16]));
            page
        };
        let guarded = |id| {
            let mut page = plain;
            guard::mask(0, &mut page, LogId([id; 16]));
            page
        };
        std::fs::write(path, provisional(1)).unwrap();
        let examined = inspect(path).unwrap();
        for since in [guarded(1), provisional(2), guarded(2), plain] {
            std::fs::write(path, since).unwrap();
            let refused = discard_log(path, examined).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
            assert!(std::fs::read(path).unwrap() == since);
        }
        std::fs::write(path, provisional(1)).unwrap();
        discard_log(path, examined).unwrap();
        assert!(std::fs::read(path).unwrap() == plain);
    }
}
