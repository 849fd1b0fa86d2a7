//! Finds the log of a database. If a database file is a copy and its log was copied too, writes that log's
//! commits to the database file at `xOpen`.

use std::path::Path;
use std::sync::Arc;

use duralite_format::LogId;
use duralite_format::guard::{self, DatabaseHeader};
use duralite_sqlite_ffi as ffi;
use duralite_wal::engine::media::{MediaSet, SHARED_MEMORY_DIR};
use duralite_wal::log::offline::{self, Afterwards};
use duralite_wal::placement::{self, Claim, FoundLog};
use duralite_wal::{DatabaseIdentity, Log, LogError, LogPlacement, engines};

use super::waits::{cannot_lock, in_use, take_alone};
use crate::attachment::Attachment;
use crate::database::Db;
use crate::errors::{During, Failure};
use crate::settings::{Journal, Settings};

/// Checks at `xOpen`, before anything else, that this VFS can serve a database. Writes the log's commits to
/// the database file in two cases: if the database was copied together with its log, and if an interrupted
/// checkpoint has torn the first page of the database.
pub fn check_open(db: &Db, ignores_wal: bool) -> Result<(), Failure> {
    let check = |header| check_header(db, header, ignores_wal);
    once_settled(|| db.header(), check, |tries| db.patience.pause(tries))
}

/// Calls `check` with the result of `look`. This connection holds no lock here, so another connection may at
/// the same time write the log's commits to the database file, or close the log. So if the check fails, this
/// function calls both again, as long as the failure is *busy* or a second `look` returns something else than
/// the first. When `pause` allows no more attempts, the failure's code becomes `SQLITE_BUSY`, and its text
/// stays.
fn once_settled<Seen: PartialEq + Copy>(
    mut look: impl FnMut() -> Result<Seen, Failure>,
    mut check: impl FnMut(Seen) -> Result<(), Failure>,
    mut pause: impl FnMut(u32) -> bool,
) -> Result<(), Failure> {
    for tries in 0.. {
        let seen = look()?;
        let Err(failure) = check(seen) else { return Ok(()) };
        let is_busy = failure.code & 0xff == ffi::BUSY;
        if !is_busy && look().ok() == Some(seen) {
            return Err(failure);
        }
        if !pause(tries) {
            return Err(if is_busy { failure } else { Failure::new(ffi::BUSY, failure.message) });
        }
    }
    Ok(())
}

fn check_header(db: &Db, header: DatabaseHeader, ignores_wal: bool) -> Result<(), Failure> {
    match header {
        DatabaseHeader::Guarded { log_id, provisional, .. } => {
            match check_guarded(db, log_id, ignores_wal) {
                // No transaction has committed under a provisional guard, so the connection that opens the
                // WAL can take the guard off.
                Err(failure) if provisional && !ignores_wal && db.is_capable() => {
                    if failure.code & 0xff == ffi::BUSY { Err(failure) } else { Ok(()) }
                }
                checked => checked,
            }
        }
        DatabaseHeader::Damaged => put_torn_home(db)?.ok_or_else(|| damaged(db)),
        DatabaseHeader::NotSqlite => put_torn_home(db).map(|_| ()),
        DatabaseHeader::Plain { page_bytes, .. } if !guard::page_size_is_valid(page_bytes) => {
            put_torn_home(db).map(|_| ())
        }
        DatabaseHeader::Empty | DatabaseHeader::Plain { .. } => {
            // `placement` locks the settings itself, so call it before locking them below.
            let placement = db.placement();
            check_log_dir(&db.settings(), placement)
        }
    }
}

fn check_guarded(db: &Db, log_id: LogId, ignores_wal: bool) -> Result<(), Failure> {
    let path = db.path.display();
    if !db.is_capable() {
        return Err(Failure::cannot_open(format!(
            "{path} has its newest commits in log {log_id}, but the settings say journal=off; use \
             journal=auto, or run `duralite checkpoint` first"
        )));
    }
    if ignores_wal {
        return Err(Failure::cannot_open(format!(
            "{path} has its newest commits in log {log_id}, which immutable and nolock would ignore; open \
             the database without them"
        )));
    }
    let identity = db.identity()?;
    let log = match find(db, &identity, log_id) {
        // The log was deleted, but this process still has it open and continues to use it.
        Err(_) if Attachment::is_here_deleted(&identity, log_id) => return Ok(()),
        found => found?,
    };
    match placement::claim(&log, &identity).map_err(|error| Failure::of(&error, During::Open))? {
        Claim::Own => Ok(()),
        Claim::Copy => put_home(db, &identity, &log, true),
        // Attaching the log of another database would fail with this error too.
        Claim::Foreign => Err(Failure::of(
            &LogError::Foreign {
                owner: placement::describe(&log.path).map(|log| log.database).unwrap_or_default(),
                log: log.path,
                database: db.path.clone(),
            },
            During::Open,
        )),
    }
}

/// If the file's torn header no longer names a log, finds the log that was made for this file, and writes the
/// log's commits to the file. Returns `None` if there is no such log.
fn put_torn_home(db: &Db) -> Result<Option<()>, Failure> {
    if !db.is_capable() {
        return Ok(None);
    }
    let identity = db.identity()?;
    let made_for = placement::made_for(&log_dirs(db), &identity);
    let Some(log) = made_for.map_err(|error| Failure::of(&error, During::Open))? else { return Ok(None) };
    put_home(db, &identity, &log, false).map(Some)
}

fn put_home(db: &Db, identity: &DatabaseIdentity, log: &FoundLog, adopt: bool) -> Result<(), Failure> {
    let mut own = db.lock.own().map_err(cannot_lock(db))?;
    let alone = take_alone(db, own.held_mut())?;
    if alone.is_none() {
        return Err(in_use(db));
    }
    let pause = |tries| db.patience.pause(tries);
    let (file, placement) = (db.mappable(), &log.placement);
    let checkpointed =
        offline::checkpoint_into(&file, placement, identity, log.id, adopt, Afterwards::Delete, &pause)
            .map_err(|error| Failure::of(&error, During::Open))?;
    drop(alone);
    let message = format!(
        "{}: {} pages written to the database file from {}",
        db.path.display(),
        checkpointed.pages,
        log.path.display()
    );
    db.sqlite.report(ffi::NOTICE, &message);
    Ok(())
}

/// Does the same as [`check_open`], for a database that does not exist yet. Fails before SQLite makes the
/// file, if this VFS could not serve the database.
pub fn check_new(settings: &Settings, path: &Path) -> Result<(), Failure> {
    let placement = settings.placement(path);
    check_log_dir(settings, placement.as_ref().map_err(String::as_str))
}

/// Refuses a log directory that cannot hold a log, before the application relies on it.
fn check_log_dir(settings: &Settings, placement: Result<&LogPlacement, &str>) -> Result<(), Failure> {
    let placement = match placement {
        Ok(placement) => placement,
        Err(why) if matches!(settings.journal, Journal::Engine(_)) => {
            return Err(Failure::cannot_open(why));
        }
        // No log can be made here, so SQLite's own `-wal` serves the database. `PRAGMA duralite` says why.
        Err(_) => return Ok(()),
    };
    placement.check().map_err(Failure::cannot_open)
}

/// Returns the places where a log may be: the configured ones, shared memory, and the database's directory.
fn log_dirs(db: &Db) -> Vec<LogPlacement> {
    // `placement` locks the settings itself, so call it before locking them below.
    let configured = db.placement().ok();
    log_dirs_with(&db.settings(), &db.path, configured)
}

fn log_dirs_with(settings: &Settings, path: &Path, configured: Option<&LogPlacement>) -> Vec<LogPlacement> {
    let beside = path.parent().map(Path::to_path_buf);
    let named = &settings.options.media;
    let media = MediaSet::named(named, path);
    let named = [named.nvram_dir.clone(), Some(SHARED_MEMORY_DIR.into()), named.log_dir.clone(), beside];
    let mut log_dirs: Vec<_> = configured.cloned().into_iter().collect();
    for dir in named.into_iter().flatten() {
        for engine in engines::all() {
            let placement = LogPlacement::at(engine, &dir, &media);
            if !log_dirs.contains(&placement) {
                log_dirs.push(placement);
            }
        }
    }
    log_dirs
}

/// Attaches the log that the database names.
pub fn attach(db: &Db, id: LogId) -> Result<Arc<Attachment>, Failure> {
    let identity = db.identity()?;
    let settings = db.settings().clone();
    let placement = match find(db, &identity, id) {
        Err(missing) if !Attachment::is_here_deleted(&identity, id) => return Err(missing),
        found => found.map(|found| found.placement),
    };
    let pause = |tries| db.patience.pause(tries);
    // If this connection cannot write the database, this VFS leaves the recovery of the database's pages to
    // SQLite. The VFS also does so if the pages have reserved bytes, because SQLite writes such pages through
    // the VFS above this one that fills those bytes.
    let attach = if db.read_only || db.reserves_bytes()? { Log::attach } else { duralite_wal::log::recover };
    let attach = || {
        attach(&db.mappable(), &placement?, &settings.options, &identity, id, &pause)
            .map_err(|error| Failure::of(&error, During::Open))
    };
    Attachment::get(&identity, id, &settings, &pause, attach)
}

/// Returns the log that a database names.
pub fn find(db: &Db, identity: &DatabaseIdentity, id: LogId) -> Result<FoundLog, Failure> {
    find_in(log_dirs(db), db.placement().ok(), &db.path, identity, id)
}

/// Does the same as [`find`], for a database that is not open. Looks in the places that these settings name.
pub fn find_with(
    settings: &Settings,
    path: &Path,
    identity: &DatabaseIdentity,
    id: LogId,
) -> Result<FoundLog, Failure> {
    let configured = settings.placement(path).ok();
    find_in(log_dirs_with(settings, path, configured.as_ref()), configured.as_ref(), path, identity, id)
}

fn find_in(
    log_dirs: Vec<LogPlacement>,
    configured: Option<&LogPlacement>,
    database: &Path,
    identity: &DatabaseIdentity,
    id: LogId,
) -> Result<FoundLog, Failure> {
    let (mut found, mut unknown) = (None, None);
    for placement in &log_dirs {
        match placement.find(&identity.path, id) {
            Ok(None) => {}
            Ok(Some(path)) => {
                found = Some((placement, path));
                break;
            }
            // If this function could not search a directory, report that error, and not that the log is
            // missing.
            Err(error) => {
                unknown.get_or_insert(error);
            }
        }
    }
    let Some((placement, path)) = found else {
        let searched = log_dirs.first().map(|placement| placement.dir.clone()).unwrap_or_default();
        let missing = LogError::Missing { database: database.to_path_buf(), id, searched };
        return Err(Failure::of(&unknown.unwrap_or(missing), During::Open));
    };
    let placement =
        if configured == Some(placement) { placement.clone() } else { placement.clone().as_found() };
    Ok(FoundLog { placement, path, id })
}

pub fn damaged(db: &Db) -> Failure {
    Failure::cannot_open(format!(
        "the guard in the first page of {} is damaged: it does not say which log holds the newest commits; \
         restore the file from a backup, or inspect it with `duralite info`",
        db.path.display()
    ))
}

/// Returns the failure of a commit to a log that the database does not name any more.
pub fn unguarded(db: &Db) -> Failure {
    let message =
        format!("{} does not name its log any more: close the database and open it again", db.path.display());
    Failure::new(ffi::IOERR_WRITE, message)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_goes_on_changing_is_busy_and_what_stays_is_what_it_is() {
        let missing = |_| Err(Failure::cannot_open("its log is not there"));
        let looks = Cell::new(0);
        let changing = || Ok(looks.replace(looks.get() + 1));
        let failure = once_settled(changing, missing, |tries| tries < 7).unwrap_err();
        assert_eq!((failure.code, failure.message.as_str()), (ffi::BUSY, "its log is not there"));
        let failure = once_settled(|| Ok(1), missing, |_| panic!("nothing to wait for")).unwrap_err();
        assert_eq!(failure.code, ffi::CANTOPEN);
        let checks = Cell::new(0);
        let until_third = |_| {
            checks.set(checks.get() + 1);
            if checks.get() == 3 { Ok(()) } else { Err(Failure::new(ffi::BUSY, "somebody is there")) }
        };
        assert!(once_settled(|| Ok(1), until_third, |_| true).is_ok());
    }
}
