//! Taking the guard off (invariants 1, 2 and 6).

use std::ffi::c_int;

use duralite_format::LogId;
use duralite_format::guard::{self, DatabaseHeader, JournalKind, VERSIONS};
use duralite_locks::file::Level;
use duralite_medium::SegmentUse;
use duralite_sqlite_ffi as ffi;
use duralite_wal::{Log, LogError};

use super::header::{Alone, is_provisional, write_header};
use super::places::attach;
use crate::attachment::{Attachment, Entering};
use crate::database::{Db, Serving, lock};
use crate::errors::{During, Failure};

/// Takes off a provisional guard whose log is gone, or is not what it was. No connection uses that log, so it
/// has no commits, and a power loss has left it like this.
pub fn forget(db: &Db, _alone: &Alone<'_>, id: LogId) -> Result<(), Failure> {
    let (mut header, len) = db.raw_header()?;
    let found = guard::inspect(&header[..len]);
    if matches!(found, DatabaseHeader::Guarded { log_id, provisional: true, .. } if log_id == id) {
        guard::lift(&mut header);
        write_header(db, &header)?;
    }
    Ok(())
}

/// Deletes the WAL: lifts the guard if the database holds all that the log holds (invariant 1). Leaves a log
/// that stays at the last close as it is, until SQLite has shown whether it closes: see [`lift_kept`].
/// `false` when the database is not guarded; the deletion is then the base's.
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

/// Lifts the guard of a log that was kept, because SQLite goes on with the database after it has deleted the
/// WAL. So that was no close: SQLite leaves WAL mode. It still holds EXCLUSIVE, so the guard comes off now.
/// If it cannot, it stays, as where [`delete_wal`] fails.
#[cold]
pub fn lift_kept(db: &Db) {
    if db.end_keeping()
        && let Err(failure) = lift_and_detach(db)
    {
        db.sqlite.report(ffi::WARNING, &failure.message);
    }
}

/// Gives a lock back for SQLite.
pub fn unlock(db: &Db, level: Level) -> c_int {
    // SQLite gives all of its lock back at once when it closes.
    if level > Level::None && db.is_kept() {
        lift_kept(db);
    }
    lock::unlock(db, level)
}

/// As [`lift_kept`], before SQLite opens a rollback journal, which must never meet the guard.
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

/// Lifts the guard of the attached log, and lets go of the log whether or not that succeeds. `false` where no
/// log is attached.
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
    // The last reference goes with the turn that `detach` takes.
    drop(attachment);
    db.detach();
    if lifted.is_ok() {
        db.set_leaving_wal(true);
    }
    lifted.map(|()| true)
}

/// Takes the guard off and deletes the log, after SQLite has checkpointed. Idle connections that have had
/// rollback journals in the log may still have it attached. They are told, and look at the guard before they
/// begin anything.
pub fn lift(db: &Db, alone: &Alone<'_>, attachment: &Attachment) -> Result<(), Failure> {
    if attachment.take_alone(SegmentUse::Any)? {
        return lift_alone(db, alone, attachment);
    }
    attachment.set_replaced();
    // After an error they find the guard as it was.
    lift_alone(db, alone, attachment)
}

fn lift_alone(db: &Db, _alone: &Alone<'_>, attachment: &Attachment) -> Result<(), Failure> {
    let failed = |error: LogError| Failure::of(&error, During::Delete);
    if attachment.has_hot_journal()? {
        let message =
            format!("a crash has left a rollback journal of {}: open the database again", db.path.display());
        return Err(Failure::new(ffi::IOERR_DELETE, message));
    }
    let provisional = is_provisional(db, attachment)?;
    let mut log = attachment.log();
    let versions = find_all(db, &mut log, |buf, offset| db.read(buf, offset))?;
    // A log in which no transaction has ever begun has nothing to forget: it was only read through. A log
    // that has no commits any more may hold what a process wrote before it died, and that must never be found
    // again.
    let holds_anything =
        !provisional && (log.was_begun() || db.has_home() || attachment.rollback_journal().is_some());
    if holds_anything {
        db.settle(attachment, Some(&mut log), ffi::SYNC_FULL)?;
    }
    if db.drain()? {
        // Now the pages must be in the file itself, where programs without the home find them.
        find_all(db, &mut log, |buf, offset| Ok(db.base.read(buf, offset)))?;
    }
    // A journal that is left is worth nothing, as PERSIST leaves it.
    if let Some(journal) = attachment.rollback_journal() {
        journal.delete().map_err(failed)?;
    }
    if holds_anything {
        log.retire().map_err(failed)?;
    }
    // What a home has held of the header is in the file by now.
    let (mut header, _) = db.raw_header()?;
    guard::lift(&mut header);
    if let Some(versions) = versions {
        header[VERSIONS].copy_from_slice(&versions);
    }
    let lifted = write_header(db, &header);
    // A provisional guard may come back, and then needs no log.
    if lifted.is_ok() || provisional {
        log.unlink().map_err(failed)?;
    }
    lifted
}

/// Checks that every committed page is in what `read` reads of the database. Returns the versions in page 1,
/// if the log has that page.
fn find_all(
    db: &Db,
    log: &mut Log,
    read: impl Fn(&mut [u8], u64) -> Result<c_int, Failure>,
) -> Result<Option<[u8; 2]>, Failure> {
    match compare(db, log, read)? {
        Comparison::Same { versions } => Ok(versions),
        Comparison::Differs { page_number } => Err(Failure::new(
            ffi::IOERR_DELETE,
            format!(
                "page {page_number} of {} differs from that page in the log; guard and log stay, and nothing \
                 is lost: open the database again, or run `duralite checkpoint`",
                db.path.display()
            ),
        )),
    }
}

/// Whether the database file holds what the log holds.
enum Comparison {
    /// It holds every committed page. `versions` are those of page 1, where the log has it.
    Same { versions: Option<[u8; 2]> },
    /// It holds all pages before this one.
    Differs { page_number: u32 },
}

/// Looks for every committed page in the database file.
///
/// The versions of page 1 are not compared: the guard stands in their place, and the log may say that the
/// database is not in WAL mode. That happens when the guard could not be lifted for a change of the journal
/// mode. SQLite then finds the WAL still there, opens it again, and commits the new mode through it.
fn compare(
    db: &Db,
    log: &mut Log,
    read: impl Fn(&mut [u8], u64) -> Result<c_int, Failure>,
) -> Result<Comparison, Failure> {
    let failed = |error: LogError| Failure::of(&error, During::Read);
    let pages = log.committed_pages().map_err(failed)?;
    let page_bytes = log.page_bytes() as usize;
    let (mut home, mut logged) = (vec![0; page_bytes], vec![0; page_bytes]);
    let mut versions = None;
    // A VFS above this one may keep bytes at the end of pages (checksums, for example), and may change them
    // on the way home.
    let mut reserved = [0];
    if !matches!(read(&mut reserved, guard::RESERVED_BYTES as u64)?, ffi::OK | ffi::IOERR_SHORT_READ) {
        return Err(Failure::new(ffi::IOERR_READ, format!("cannot read {}", db.path.display())));
    }
    let used = page_bytes - usize::from(reserved[0]).min(page_bytes);
    for (page_number, frame) in pages {
        log.read_page(&db.base, frame, &mut logged).map_err(failed)?;
        let offset = u64::from(page_number.saturating_sub(1)) * page_bytes as u64;
        match read(&mut home, offset)? {
            ffi::OK => {}
            ffi::IOERR_SHORT_READ => return Ok(Comparison::Differs { page_number }),
            code => return Err(Failure::new(code, format!("cannot read {}", db.path.display()))),
        }
        if page_number == 1 {
            guard::unmask(0, &mut home);
            home[VERSIONS].copy_from_slice(&logged[VERSIONS]);
            versions = Some([logged[VERSIONS.start], logged[VERSIONS.start + 1]]);
        }
        if home[..used] != logged[..used] {
            return Ok(Comparison::Differs { page_number });
        }
    }
    Ok(Comparison::Same { versions })
}
