//! Where the log of a database is, and what is done with one that does not fit, before SQLite sees the database.

use std::path::Path;

use duralite_journal::media::{MediaSet, SHARED_MEMORY_DIR};
use duralite_journal::offline::{self, Afterwards};
use duralite_journal::pool::{self, Claim, FoundLog};
use duralite_journal::{DatabaseIdentity, JournalError, LogDirectory, engines};
use duralite_logfmt::LogId;
use duralite_logfmt::guard::{self, DatabaseHeader};
use duralite_sqlite_ffi as ffi;

use super::opening;
use crate::database::Db;
use crate::errors::{During, Failure};
use crate::settings::{Journal, Settings};

/// Checks at `xOpen` that a database can be served, before anything else is done. Puts a log home that came along
/// with a copy of its database, or whose database's first page an interrupted checkpoint has torn.
pub fn check_open(db: &Db, ignores_wal: bool) -> Result<(), Failure> {
    for tries in 0.. {
        let header = db.header()?;
        let checked = check_header(db, header, ignores_wal);
        let busy = |failure: &Failure| failure.code & 0xff == ffi::BUSY || db.header().ok() != Some(header);
        match checked {
            // Somebody else is just putting it home, or has closed it.
            Err(failure) if busy(&failure) && db.patience.pause(tries) => {}
            other => return other,
        }
    }
    Ok(())
}

fn check_header(db: &Db, header: DatabaseHeader, ignores_wal: bool) -> Result<(), Failure> {
    match header {
        DatabaseHeader::Guarded { log_id, .. } => check_guarded(db, log_id, ignores_wal),
        DatabaseHeader::Damaged => put_torn_home(db)?.ok_or_else(|| damaged(db)),
        DatabaseHeader::NotSqlite => put_torn_home(db).map(|_| ()),
        DatabaseHeader::Plain { page_bytes, .. } if !guard::page_size_is_valid(page_bytes) => {
            put_torn_home(db).map(|_| ())
        }
        DatabaseHeader::Empty | DatabaseHeader::Plain { .. } => {
            let pool = db.pool();
            check_pool(&db.settings(), pool)?;
            // One look at a name; other directories are looked through when a log is made there.
            if let (Ok(pool), Ok(identity), false) = (pool, db.identity(), db.read_only)
                && db.path.parent() == Some(&*pool.dir)
            {
                pool::collect_leftovers(pool, &identity);
            }
            Ok(())
        }
    }
}

fn check_guarded(db: &Db, log_id: LogId, ignores_wal: bool) -> Result<(), Failure> {
    let path = db.path.display();
    if !db.is_capable() {
        return Err(Failure::cannot_open(format!(
            "{path} has its newest commits in log {log_id}, and journal=off was asked for; use journal=auto, or \
             run `duralite checkpoint` first"
        )));
    }
    if ignores_wal {
        return Err(Failure::cannot_open(format!(
            "{path} has its newest commits in log {log_id}, which immutable and nolock would ignore; open it \
             without them"
        )));
    }
    let identity = db.identity()?;
    let log = find(db, &identity, log_id)?;
    match pool::claim(&log, &identity) {
        Claim::Own => Ok(()),
        Claim::Copy => put_home(db, &identity, &log, true),
        // Attaching it says why not.
        Claim::Foreign => Err(Failure::of(
            &JournalError::Foreign {
                owner: pool::describe(&log.path).map(|log| log.database).unwrap_or_default(),
                log: log.path,
                database: db.path.clone(),
            },
            During::Open,
        )),
    }
}

/// Puts the log home that was made for this file, whose header does not say so any more; `None` when there is no
/// such log.
fn put_torn_home(db: &Db) -> Result<Option<()>, Failure> {
    if !db.is_capable() {
        return Ok(None);
    }
    let identity = db.identity()?;
    let Some(log) = pool::made_for(&pools(db), &identity) else { return Ok(None) };
    put_home(db, &identity, &log, false).map(Some)
}

fn put_home(db: &Db, identity: &DatabaseIdentity, log: &FoundLog, adopt: bool) -> Result<(), Failure> {
    let failed = |code: i32| Failure::new(code, format!("cannot lock {}", db.path.display()));
    match db.base.lock(ffi::LOCK_SHARED) {
        ffi::OK => {}
        code => return Err(failed(code)),
    }
    let folded = opening::take_exclusive(db).and_then(|alone| {
        if !alone {
            return Err(opening::in_use(db));
        }
        let pause = |tries| db.patience.pause(tries);
        offline::fold_into(&db.base, &log.pool, identity, log.id, adopt, Afterwards::Delete, &pause)
            .map_err(|error| Failure::of(&error, During::Open))
    });
    db.base.unlock(ffi::LOCK_NONE);
    let folded = folded?;
    let message =
        format!("{}: {} pages put home from {}", db.path.display(), folded.pages, log.path.display());
    db.sqlite.report(ffi::NOTICE, &message);
    Ok(())
}

/// The same for a database that is not there yet, and is not made if it could not be served.
pub fn check_new(settings: &Settings, path: &Path) -> Result<(), Failure> {
    let pool = settings.pool(path);
    check_pool(settings, pool.as_ref().map_err(String::as_str))
}

/// Refuses a pool that could not hold a log, before the application relies on it.
fn check_pool(settings: &Settings, pool: Result<&LogDirectory, &str>) -> Result<(), Failure> {
    let pool = match pool {
        Ok(pool) => pool,
        Err(why) if matches!(settings.journal, Journal::Engine(_)) => {
            return Err(Failure::cannot_open(why));
        }
        // SQLite's own log serves it, and `PRAGMA duralite` says why.
        Err(_) => return Ok(()),
    };
    pool.check().map_err(Failure::cannot_open)
}

/// Where a log may be: as configured, in shared memory, beside the database.
fn pools(db: &Db) -> Vec<LogDirectory> {
    let settings = db.settings();
    let beside = db.path.parent().map(Path::to_path_buf);
    let named = &settings.options.media;
    let media = MediaSet::named(named, &db.path);
    let named = [named.nvram_dir.clone(), Some(SHARED_MEMORY_DIR.into()), named.log_dir.clone(), beside];
    drop(settings);
    let mut pools: Vec<_> = db.pool().ok().cloned().into_iter().collect();
    for dir in named.into_iter().flatten() {
        for engine in engines::all() {
            let pool = LogDirectory::at(engine, &dir, &media);
            if !pools.contains(&pool) {
                pools.push(pool);
            }
        }
    }
    pools
}

/// The log that a database names.
pub fn find(db: &Db, identity: &DatabaseIdentity, id: LogId) -> Result<FoundLog, Failure> {
    let pools = pools(db);
    let configured = db.pool().ok();
    let found = pools.iter().find_map(|pool| Some((pool, pool.find(&identity.path, id)?)));
    let Some((pool, path)) = found else {
        let searched = pools.first().map(|pool| pool.dir.clone()).unwrap_or_default();
        let missing = JournalError::Missing { database: db.path.clone(), id, searched };
        return Err(Failure::of(&missing, During::Open));
    };
    let pool = if configured == Some(pool) { pool.clone() } else { pool.clone().as_found() };
    Ok(FoundLog { pool, path, id })
}

pub fn damaged(db: &Db) -> Failure {
    Failure::cannot_open(format!(
        "the guard in the first page of {} is damaged: it does not say which log holds the newest commits; \
         restore the file from a backup, or inspect it with `duralite info`",
        db.path.display()
    ))
}
