//! Putting the guard on when the WAL is opened, taking it off when the WAL is deleted.

use std::ffi::{CString, c_int};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use duralite_journal::pool::sync_names;
use duralite_journal::{DatabaseIdentity, JournalError, Log, PoolConfig, PoolKind};
use duralite_logfmt::LogId;
use duralite_logfmt::guard::{self, DatabaseHeader, HEADER_BYTES, VERSIONS};
use duralite_sqlite_ffi as ffi;

use crate::absorb;
use crate::attachment::Attachment;
use crate::db::Db;
use crate::errors::{During, Failure};
use crate::settings::{Journal, SHARED_MEMORY_DIR, Settings};

/// How long others may be in the way of EXCLUSIVE.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a pending EXCLUSIVE waits for those it keeps from starting.
const PENDING_TRIES: u32 = 100;
const PENDING_PAUSE_US: c_int = 1000;
/// Base and spread of the pause of whoever steps back.
const STEP_BACK_US: c_int = 1000;
const STEP_BACK_SPREAD_US: c_int = 7000;

/// Who serves a WAL.
pub enum WalServer {
    Base,
    Log(Arc<Attachment>),
}

/// What became of one attempt to put the guard on.
enum Attempt {
    Raised(Arc<Attachment>),
    /// The database is not what it was; look again.
    LookAgain,
}

/// Finds or makes what serves the WAL of `db`. SQLite holds at least SHARED.
pub fn open_wal(db: &Db) -> Result<WalServer, Failure> {
    let deadline = Instant::now() + PATIENCE;
    let pool = db.pool();
    loop {
        match db.header()? {
            DatabaseHeader::Guarded { log_id, .. } => {
                let attachment = attach(db, log_id)?;
                attachment.maintain(db)?;
                return Ok(WalServer::Log(attachment));
            }
            DatabaseHeader::Damaged => return Err(damaged(db)),
            DatabaseHeader::Plain { page_bytes, wal: true } if guard::page_size_is_valid(page_bytes) => {}
            _ => return Ok(WalServer::Base),
        }
        let Some(pool) = pool.ok().filter(|_| !db.read_only) else {
            return Ok(WalServer::Base);
        };
        if db.base_wal_bytes()?.is_some_and(|bytes| bytes > 0) {
            // Only a `-wal` that nobody uses: a live one stays as it is, and the open is refused.
            match under_exclusive(db, || ())? {
                Some(()) => absorb::checkpoint_base_wal(db)?,
                None => step_back(db, deadline)?,
            }
            continue_before(deadline, db)?;
            continue;
        }
        if let Some(attempt) = under_exclusive(db, || raise(db, pool))? {
            if let Attempt::Raised(attachment) = attempt? {
                attachment.maintain(db)?;
                return Ok(WalServer::Log(attachment));
            }
        } else {
            step_back(db, deadline)?;
        }
        continue_before(deadline, db)?;
    }
}

/// Checks at `xOpen` that a guarded database can be served, before anything is done.
pub fn check_open(db: &Db, ignores_wal: bool) -> Result<(), Failure> {
    match db.header()? {
        DatabaseHeader::Damaged => Err(damaged(db)),
        DatabaseHeader::Guarded { log_id, .. } => {
            let path = db.path.display();
            if !db.is_capable() {
                return Err(Failure::cannot_open(format!(
                    "{path} has its newest commits in log {log_id}, and journal=off was asked for; use \
                     journal=auto, or run `duralite checkpoint` first"
                )));
            }
            if ignores_wal {
                return Err(Failure::cannot_open(format!(
                    "{path} has its newest commits in log {log_id}, which immutable and nolock would ignore; \
                     open it without them"
                )));
            }
            find_pool(db, log_id).map(|_| ()).or_else(|missing| match db.header()? {
                // Its last user has just closed it, or another log has taken the place of this.
                DatabaseHeader::Guarded { log_id: now, .. } if now != log_id => {
                    find_pool(db, now).map(|_| ())
                }
                DatabaseHeader::Guarded { .. } => Err(missing),
                _ => Ok(()),
            })
        }
        DatabaseHeader::Empty | DatabaseHeader::NotSqlite | DatabaseHeader::Plain { .. } => {
            let pool = db.pool();
            check_pool(&db.settings(), pool)
        }
    }
}

/// The same for a database that is not there yet, and is not made if it could not be served.
pub fn check_new(settings: &Settings, path: &Path) -> Result<(), Failure> {
    let pool = settings.pool(path);
    check_pool(settings, pool.as_ref().map_err(String::as_str))
}

/// Refuses a pool that could not hold a log, before the application relies on it.
fn check_pool(settings: &Settings, pool: Result<&PoolConfig, &str>) -> Result<(), Failure> {
    let pool = match pool {
        Ok(pool) => pool,
        Err(why) if matches!(settings.journal, Journal::Waldio | Journal::Nvwal) => {
            return Err(Failure::cannot_open(why));
        }
        // SQLite's own log serves it, and `PRAGMA duralite` says why.
        Err(_) => return Ok(()),
    };
    let dir = pool.dir.display();
    if !pool.dir.is_dir() {
        return Err(Failure::cannot_open(format!("{dir} is no directory; make it, or name another")));
    }
    if pool.kind == PoolKind::Dax && !duralite_medium::is_dax(&pool.dir) {
        return Err(Failure::cannot_open(format!(
            "{dir} is not on a DAX file system, so a commit there would not survive a power loss; name a DAX \
             directory, or choose nvram=emulate with nvram_dir={dir}"
        )));
    }
    Ok(())
}

/// Deletes the WAL: lifts the guard if the database holds all that the log holds (invariant 1).
/// `false` when the database is not guarded, and the deletion is the base's.
pub fn delete_wal(db: &Db) -> Result<bool, Failure> {
    let DatabaseHeader::Guarded { log_id, .. } = db.header()? else {
        db.detach_lingering();
        return Ok(false);
    };
    let attachment = match db.attached().filter(|attachment| attachment.id() == log_id) {
        Some(attachment) => attachment,
        None => attach(db, log_id)?,
    };
    let lifted = if db.lock_level() >= ffi::LOCK_EXCLUSIVE {
        lift(db, &attachment)
    } else {
        Err(Failure::new(ffi::IOERR_DELETE, "the WAL is deleted without EXCLUSIVE; guard and log stay"))
    };
    if lifted.is_ok()
        && let Some(maintenance) = attachment.maintenance()
    {
        maintenance.stop();
    }
    // The last reference goes with the turn that `detach` takes.
    drop(attachment);
    db.detach();
    lifted.map(|()| true)
}

fn continue_before(deadline: Instant, db: &Db) -> Result<(), Failure> {
    if Instant::now() < deadline { Ok(()) } else { Err(in_use(db)) }
}

fn in_use(db: &Db) -> Failure {
    Failure::new(
        ffi::BUSY,
        format!(
            "{} is open in another program, or another connection, without this log; close that one, or open \
             it with the same settings",
            db.path.display()
        ),
    )
}

fn damaged(db: &Db) -> Failure {
    Failure::cannot_open(format!(
        "the guard in the first page of {} is damaged: it does not say which log holds the newest commits; \
         restore the file from a backup, or inspect it with `duralite info`",
        db.path.display()
    ))
}

fn identity_of(db: &Db) -> Result<DatabaseIdentity, Failure> {
    DatabaseIdentity::of(&db.path).map_err(|error| Failure::of(&error, During::Open))
}

/// Where a log may be: as configured, in shared memory, beside the database.
fn find_pool(db: &Db, id: LogId) -> Result<PoolConfig, Failure> {
    let configured = db.pool().ok().cloned();
    if let Some(pool) = configured.clone().filter(|pool| Log::exists(pool, id)) {
        return Ok(pool);
    }
    let settings = db.settings();
    let beside = db.path.parent().map(Path::to_path_buf);
    let named =
        [settings.nvram_dir.clone(), Some(SHARED_MEMORY_DIR.into()), settings.log_dir.clone(), beside];
    let dirs: Vec<_> = named.into_iter().flatten().collect();
    let searched = configured.map(|pool| pool.dir).or_else(|| dirs.first().cloned()).unwrap_or_default();
    let mut found = dirs.into_iter().flat_map(|dir| {
        [PoolKind::Emulate, PoolKind::Disk].map(|kind| PoolConfig { kind, dir: dir.clone() })
    });
    let Some(mut pool) = found.find(|pool| Log::exists(pool, id)) else {
        let missing = JournalError::Missing { database: db.path.clone(), id, searched };
        return Err(Failure::of(&missing, During::Open));
    };
    // Logs in memory have the same name on both kinds of it.
    if pool.kind == PoolKind::Emulate && duralite_medium::is_dax(&pool.dir) {
        pool.kind = PoolKind::Dax;
    }
    Ok(pool)
}

fn attach(db: &Db, id: LogId) -> Result<Arc<Attachment>, Failure> {
    let identity = identity_of(db)?;
    let settings = db.settings().clone();
    let pool = find_pool(db, id)?;
    Attachment::get(&identity, id, &settings, || Log::attach(&pool, &settings.options, &identity, id))
}

/// Runs `work` under EXCLUSIVE and returns to the lock before. `None`: somebody is in the way.
fn under_exclusive<T>(db: &Db, work: impl FnOnce() -> T) -> Result<Option<T>, Failure> {
    let before = db.lock_level();
    if before >= ffi::LOCK_EXCLUSIVE {
        return Ok(Some(work()));
    }
    if !take_exclusive(db)? {
        return Ok(None);
    }
    let result = work();
    match db.base.unlock(before.max(ffi::LOCK_SHARED)) {
        ffi::OK => Ok(Some(result)),
        code => Err(Failure::new(code, format!("cannot go back to SHARED on {}", db.path.display()))),
    }
}

/// Takes EXCLUSIVE (invariant 2). Who holds PENDING keeps others from starting, and waits for
/// those that are about to step back.
fn take_exclusive(db: &Db) -> Result<bool, Failure> {
    for _ in 0..PENDING_TRIES {
        match db.base.lock(ffi::LOCK_EXCLUSIVE) {
            ffi::OK => return Ok(true),
            code if code & 0xff == ffi::BUSY => {}
            code => {
                db.base.unlock(ffi::LOCK_SHARED);
                return Err(Failure::new(code, format!("cannot lock {}", db.path.display())));
            }
        }
        if db.base.lock_state().is_some_and(|state| state < ffi::LOCK_PENDING) {
            break;
        }
        db.registration.parent.sleep(PENDING_PAUSE_US);
    }
    db.base.unlock(ffi::LOCK_SHARED);
    Ok(false)
}

/// Gives SHARED up for a moment: two that want EXCLUSIVE would block each other for ever. SQLite
/// reads nothing before the WAL is open, and what it knew is looked at again afterwards.
fn step_back(db: &Db, deadline: Instant) -> Result<(), Failure> {
    if db.lock_level() > ffi::LOCK_SHARED {
        return Err(in_use(db));
    }
    db.base.unlock(ffi::LOCK_NONE);
    let spread = c_int::try_from(std::process::id() % 8191).unwrap_or(0) * 31
        + c_int::try_from(Instant::now().duration_since(deadline - PATIENCE).subsec_micros() % 8191)
            .unwrap_or(0);
    db.registration.parent.sleep(STEP_BACK_US + spread % STEP_BACK_SPREAD_US);
    loop {
        match db.base.lock(ffi::LOCK_SHARED) {
            ffi::OK => return Ok(()),
            code if code & 0xff == ffi::BUSY => continue_before(deadline, db)?,
            code => return Err(Failure::new(code, format!("cannot lock {}", db.path.display()))),
        }
        db.registration.parent.sleep(PENDING_PAUSE_US);
    }
}

/// Under EXCLUSIVE: makes a log and puts the guard on.
fn raise(db: &Db, pool: &PoolConfig) -> Result<Attempt, Failure> {
    match db.base_wal_bytes()? {
        None => {}
        Some(0) => match db.registration.parent.delete(db.wal_name.as_ptr(), 1) {
            ffi::OK => {}
            code => {
                return Err(Failure::new(code, format!("cannot delete the -wal of {}", db.path.display())));
            }
        },
        Some(_) => return Ok(Attempt::LookAgain),
    }
    let (plain, len) = db.raw_header()?;
    let DatabaseHeader::Plain { page_bytes, wal: true } = guard::inspect(&plain[..len]) else {
        return Ok(Attempt::LookAgain);
    };
    // What is read here may not be durable: a process may have died that had lifted the guard, or its sync
    // have failed, after which only bytes that are written anew are sure to be synced. Making a log
    // deletes a spent one, which after a power loss the guard would name.
    put_header(db, &plain)?;
    db.sync(ffi::SYNC_FULL)?;
    remove_leftover_journal(db)?;
    let identity = identity_of(db)?;
    let settings = db.settings().clone();
    let mut log = Log::create(pool, &settings.options, &identity, page_bytes)
        .map_err(|error| Failure::of(&error, During::Open))?;
    let id = log.id();
    let mut masked = plain;
    guard::mask(0, &mut masked, id);
    // The rollback journal under which the database came to be in WAL mode is deleted, but its name
    // may come back with a power loss, and SQLite would roll the guard back.
    let guarded = match sync_names(&db.path) {
        Ok(()) => write_header(db, &masked),
        Err(error) => Err(Failure::of(&error, During::Open)),
    };
    if let Err(failure) = guarded {
        // The log may go only if the database does not name it.
        if write_header(db, &plain).is_ok()
            && let Err(error) = log.unlink()
        {
            db.registration.fail(&Failure::of(&error, During::Delete));
        }
        return Err(failure);
    }
    Attachment::get(&identity, id, &settings, || Ok(log)).map(Attempt::Raised)
}

/// Deletes a rollback journal that SQLite has emptied and left, as with TRUNCATE and PERSIST: a power loss
/// could bring back what it held. Emptying it again would not do, since a sync may have failed before
/// (invariant 6); its name is gone for good with the sync of names that follows.
fn remove_leftover_journal(db: &Db) -> Result<(), Failure> {
    let name = db.beside("-journal");
    let failed =
        |what: String| Failure::new(ffi::IOERR_DELETE, format!("cannot delete {}: {what}", name.display()));
    let mut first = [0];
    match File::open(&name).and_then(|journal| journal.read_at(&mut first, 0)) {
        Ok(_) if first == [0] => {}
        Ok(_) => return Err(failed("it is in use".to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error.to_string())),
    }
    let name = CString::new(name.as_os_str().as_bytes()).map_err(|error| failed(error.to_string()))?;
    match db.registration.parent.delete(name.as_ptr(), 0) {
        ffi::OK => Ok(()),
        code => Err(failed(format!("code {code}"))),
    }
}

/// Under EXCLUSIVE, after SQLite has checkpointed: takes the guard off and deletes the log.
fn lift(db: &Db, attachment: &Attachment) -> Result<(), Failure> {
    let mut log = attachment.log();
    let failed = |error: JournalError| Failure::of(&error, During::Delete);
    let versions = match compare(db, &mut log)? {
        Comparison::Same { versions } => versions,
        Comparison::Differs { page_number } => {
            return Err(Failure::new(
                ffi::IOERR_DELETE,
                format!(
                    "page {page_number} of {} is not what the log holds; guard and log stay, nothing is lost: \
                     open the database again, or run `duralite checkpoint`",
                    db.path.display()
                ),
            ));
        }
    };
    db.sync(ffi::SYNC_FULL)?;
    log.retire().map_err(failed)?;
    let (mut header, _) = db.raw_header()?;
    guard::lift(&mut header);
    if let Some(versions) = versions {
        header[VERSIONS].copy_from_slice(&versions);
    }
    write_header(db, &header)?;
    log.unlink().map_err(failed)
}

/// Whether the database file holds what the log holds.
enum Comparison {
    /// Every committed page. `versions` are those of page 1, where the log has it.
    Same { versions: Option<[u8; 2]> },
    /// All before this one.
    Differs { page_number: u32 },
}

/// Looks for every committed page in the database file.
///
/// The versions of page 1 are not compared: the guard stands in their place, and the log may say that
/// the database is not in WAL mode. When the guard could not be lifted for a change of the journal mode,
/// SQLite finds the WAL still there, opens it again, and commits the new mode through it.
fn compare(db: &Db, log: &mut Log) -> Result<Comparison, Failure> {
    let failed = |error: JournalError| Failure::of(&error, During::Read);
    let pages = log.committed_pages().map_err(failed)?;
    let page_bytes = log.page_bytes() as usize;
    let (mut home, mut logged) = (vec![0; page_bytes], vec![0; page_bytes]);
    let mut versions = None;
    for (page_number, frame) in pages {
        log.read_page(frame, &mut logged).map_err(failed)?;
        let offset = u64::from(page_number.saturating_sub(1)) * page_bytes as u64;
        match db.base.read(&mut home, offset) {
            ffi::OK => {}
            ffi::IOERR_SHORT_READ => return Ok(Comparison::Differs { page_number }),
            code => return Err(Failure::new(code, format!("cannot read {}", db.path.display()))),
        }
        if page_number == 1 {
            guard::unmask(0, &mut home);
            home[VERSIONS].copy_from_slice(&logged[VERSIONS]);
            versions = Some([logged[VERSIONS.start], logged[VERSIONS.start + 1]]);
        }
        if home != logged {
            return Ok(Comparison::Differs { page_number });
        }
    }
    Ok(Comparison::Same { versions })
}

/// Writes and syncs the header as it is to be on disk; everything else in the file is durable.
///
/// SQLite goes on as the header reads now, whatever is answered, so a sync that failed is tried again:
/// with the guard in doubt on disk, a rollback journal that comes back with it could not be rolled back.
/// A second sync proves something here, because the bytes are written anew before it. If that fails too,
/// this connection gets no rollback journal any more.
fn write_header(db: &Db, header: &[u8; HEADER_BYTES]) -> Result<(), Failure> {
    put_header(db, header)?;
    if db.base.sync(ffi::SYNC_FULL) == ffi::OK {
        return Ok(());
    }
    let synced = put_header(db, header).and_then(|()| db.sync(ffi::SYNC_FULL));
    if synced.is_err() {
        db.header_is_in_doubt();
    }
    synced
}

fn put_header(db: &Db, header: &[u8; HEADER_BYTES]) -> Result<(), Failure> {
    match db.base.write(header, 0) {
        ffi::OK => Ok(()),
        code => Err(Failure::new(code, format!("cannot write the header of {}", db.path.display()))),
    }
}
