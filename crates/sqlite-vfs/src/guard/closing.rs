//! Takes the guard off when SQLite deletes the WAL. If the log may stay, takes the guard off later, when
//! SQLite shows that it continues with the database (invariants 1 and 6).

use std::ffi::c_int;

use duralite_format::guard::{DatabaseHeader, JournalKind};
use duralite_locks::file::Level;
use duralite_medium::SegmentUse;
use duralite_sqlite_ffi as ffi;

use super::places::attach;
use super::states::lift;
use crate::attachment::Entering;
use crate::database::{Db, Serving, lock};
use crate::errors::Failure;

/// Answers SQLite's deletion of the WAL: takes the guard off if the database file holds everything that the
/// log holds (invariant 1). If the log may stay after the last close, does nothing yet: SQLite's next call
/// shows whether it is closing the database (see [`lift_kept`]). Returns `false` if the database has no guard
/// of WAL mode. The base VFS then deletes the file.
pub fn delete_wal(db: &Db) -> Result<bool, Failure> {
    let DatabaseHeader::Guarded { log_id, kind: JournalKind::Wal, provisional, .. } = db.header()? else {
        db.detach_lingering();
        return Ok(false);
    };
    if db.attached().is_none_or(|attachment| attachment.id() != log_id) {
        db.leave_journal();
        db.attach(attach(db, log_id)?.enter(Entering::WalAlone)?, Serving::Lingering);
    }
    if db.lock.sqlites_exclusive().is_some() && !provisional && db.keep_log() {
        return Ok(true);
    }
    lift_and_detach(db)
}

/// Lifts the guard of a log that was kept. SQLite has deleted the WAL and continues with the database, so it
/// is not closing the database but leaving WAL mode. SQLite still holds EXCLUSIVE, so the guard can come off.
/// If this function cannot lift the guard, guard and log stay, as they do when [`delete_wal`] fails.
#[cold]
pub fn lift_kept(db: &Db) {
    if db.end_keeping()
        && let Err(failure) = lift_and_detach(db)
    {
        db.sqlite.report(ffi::WARNING, &failure.message);
    }
}

/// Releases a lock for SQLite, down to `level`.
pub fn unlock(db: &Db, level: Level) -> c_int {
    // When SQLite closes the database, it releases its whole lock at once. If SQLite keeps SHARED, it is not
    // closing the database.
    if level > Level::None && db.is_kept() {
        lift_kept(db);
    }
    lock::unlock(db, level)
}

/// Does the same as [`lift_kept`], but fails if the guard stays. SQLite is about to open a rollback journal
/// in a file, and a database with the guard must never have such a journal.
pub fn lift_for_journal(db: &Db) -> Result<(), Failure> {
    lift_kept(db);
    match db.header()? {
        DatabaseHeader::Guarded { .. } => Err(Failure::new(
            ffi::IOERR_DELETE,
            format!(
                "the guard of {} could not be lifted; nothing is lost: open the database again",
                db.path.display()
            ),
        )),
        _ => Ok(()),
    }
}

/// Lifts the guard of the attached log, and detaches the log whether or not the guard comes off. Returns
/// `false` if no log is attached.
fn lift_and_detach(db: &Db) -> Result<bool, Failure> {
    let Some(attachment) = db.attached() else { return Ok(false) };
    let lifted = match db.lock.sqlites_exclusive() {
        None => Err(Failure::new(
            ffi::IOERR_DELETE,
            "SQLite deletes the WAL without holding EXCLUSIVE; guard and log stay",
        )),
        Some(alone) if attachment.take_alone(SegmentUse::Wal)? => lift(db, &alone, &attachment),
        Some(_) => Err(Failure::new(ffi::BUSY, "another connection uses the log; guard and log stay")),
    };
    if lifted.is_ok()
        && let Some(maintenance) = attachment.maintenance()
    {
        maintenance.stop();
    }
    // Drop this reference first, so that `detach` drops the last reference while the background thread does
    // not use the log.
    drop(attachment);
    db.detach();
    if lifted.is_ok() {
        db.set_leaving_wal(true);
    }
    lifted.map(|()| true)
}
