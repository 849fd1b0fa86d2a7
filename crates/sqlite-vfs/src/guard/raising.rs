//! Putting the guard on (invariants 1 and 2).

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use duralite_format::guard::{self, DatabaseHeader, HEADER_BYTES};
use duralite_sqlite_ffi as ffi;
use duralite_wal::placement::sync_names;
use duralite_wal::{Log, LogPlacement};

use super::header::{Alone, check_journal, is_guarded_by, put_header, write_header};
use super::places;
use crate::attachment::Attachment;
use crate::database::Db;
use crate::errors::{During, Failure};

/// The outcome of one attempt to put the guard on.
pub enum Raised {
    /// The guard is on, and this is the log.
    Log(Arc<Attachment>),
    /// The database is not what it was. Look again.
    LookAgain,
}

/// Makes a log, and puts on the guard of the mode that the database is in.
pub fn raise(db: &Db, _alone: &Alone<'_>, placement: &LogPlacement) -> Result<Raised, Failure> {
    match db.base_wal_bytes()? {
        None => {}
        Some(0) => match db.sqlite.parent.delete(db.names.wal.as_ptr(), 1) {
            ffi::OK => {}
            code => {
                return Err(Failure::new(code, format!("cannot delete the -wal of {}", db.path.display())));
            }
        },
        Some(_) => return Ok(Raised::LookAgain),
    }
    // No connection uses SQLite's own wal-index now, and the log has one of its own.
    drop(std::fs::remove_file(db.beside("-shm")));
    let (plain, len) = db.raw_header()?;
    let DatabaseHeader::Plain { page_bytes, .. } = guard::inspect(&plain[..len]) else {
        return Ok(Raised::LookAgain);
    };
    let Some(kind) = guard::kind_of_page(0, &plain) else { return Ok(Raised::LookAgain) };
    if placement.engine.writes_home && db.reserves_bytes()? {
        return Err(Failure::cannot_open(format!(
            "journal={} writes pages past a VFS above this one, and {} keeps bytes at the ends of pages for \
             such a VFS (cksumvfs): use another journal",
            placement.engine.name,
            db.path.display()
        )));
    }
    // What is read here may not be durable, if the process that lifted the guard has died. A power loss may
    // then bring the guard back. The log that it names still exists, and holds nothing: making a log deletes
    // it only after the header has been made durable.
    remove_leftover_journal(db)?;
    let identity = db.identity()?;
    let settings = db.settings().clone();
    let mut log = Log::create(&db.mappable(), placement, &settings.options, &identity, page_bytes)
        .map_err(|error| Failure::of(&error, During::Open))?;
    for (from, to) in log.moved() {
        let (from, to) = (from.display(), to.display());
        let message =
            format!("{from} is the log of another database, or of an earlier one: it is kept as {to}");
        db.sqlite.report(ffi::WARNING, &message);
    }
    let id = log.id();
    let mut masked = plain;
    let guarded = if log.is_provisional() {
        guard::mask_provisionally(kind, &mut masked, id);
        put_header(db, &masked)
    } else {
        guard::mask_as(kind, 0, &mut masked, id);
        sync_names_beside(db, &log).and_then(|()| write_header(db, &masked))
    };
    if let Err(failure) = guarded {
        // The log may go only if the database does not name it.
        if write_header(db, &plain).is_ok()
            && let Err(error) = log.unlink()
        {
            db.sqlite.fail(&Failure::of(&error, During::Delete));
        }
        return Err(failure);
    }
    let is_provisional = log.is_provisional();
    let raised = Attachment::get(&identity, id, &settings, &|tries| db.patience.pause(tries), || Ok(log))?;
    raised.set_guard_kind(Some(kind));
    if !is_provisional {
        raised.home_synced(raised.home_writes());
        raised.set_hardened();
    }
    Ok(Raised::Log(raised))
}

/// Makes durable which files the database's directory has. If it is the log's directory as well, that has
/// been done. The rollback journal under which the database came to be in WAL mode is deleted. But a power
/// loss may bring its name back, and SQLite would roll the guard back.
fn sync_names_beside(db: &Db, log: &Log) -> Result<(), Failure> {
    if db.path.parent() == log.path().parent() {
        return Ok(());
    }
    sync_names(&db.path).map_err(|error| Failure::of(&error, During::Write))
}

/// Makes a provisional guard one for good, after its log has been made durable. The holder of WRITE does so
/// before the first frame is accepted. Durable on return (invariant 1).
pub fn harden(db: &Db, attachment: &Attachment) -> Result<(), Failure> {
    let mut log = attachment.log();
    log.harden().map_err(|error| Failure::of(&error, During::Write))?;
    sync_names_beside(db, &log)?;
    drop(log);
    let (mut header, len) = db.raw_header()?;
    let DatabaseHeader::Guarded { log_id, kind, .. } = guard::inspect(&header[..len]) else {
        return Err(places::damaged(db));
    };
    guard::mask_as(kind, 0, &mut header, log_id);
    put_for_good(db, attachment, &header)
}

/// Writes once more a guard that is on for good. The process that put it on may have seen its syncs fail, or
/// have died before them. Then the guard that shows need not be on the disk, and another sync need not write
/// it back. Durable on return.
pub fn put_again(db: &Db, attachment: &Attachment) -> Result<(), Failure> {
    let (header, len) = db.raw_header()?;
    let found = guard::inspect(&header[..len]);
    if matches!(found, DatabaseHeader::Guarded { log_id, .. } if log_id == attachment.id()) {
        return put_for_good(db, attachment, &header);
    }
    // A checkpoint may be writing the first page just now.
    if is_guarded_by(db, attachment.id())? { Ok(()) } else { Err(places::unguarded(db)) }
}

fn put_for_good(db: &Db, attachment: &Attachment, header: &[u8; HEADER_BYTES]) -> Result<(), Failure> {
    // If this process dies before the sync, the next one syncs what it finds.
    attachment.home_in_doubt();
    let writes = attachment.home_writes();
    write_header(db, header)?;
    attachment.home_synced(writes);
    attachment.set_hardened();
    Ok(())
}

/// Deletes a rollback journal that SQLite has emptied and left, as with TRUNCATE and PERSIST: a power loss
/// could bring its content back. Emptying it again is not enough, since a sync may have failed before
/// (invariant 6). Its name is gone for good with the sync of names that follows.
fn remove_leftover_journal(db: &Db) -> Result<(), Failure> {
    if !check_journal(db)? {
        return Ok(());
    }
    let name = db.beside("-journal");
    let failed =
        |what: String| Failure::new(ffi::IOERR_DELETE, format!("cannot delete {}: {what}", name.display()));
    let c_name = CString::new(name.as_os_str().as_bytes()).map_err(|error| failed(error.to_string()))?;
    match db.sqlite.parent.delete(c_name.as_ptr(), 0) {
        ffi::OK => Ok(()),
        code => Err(failed(format!("code {code}"))),
    }
}
