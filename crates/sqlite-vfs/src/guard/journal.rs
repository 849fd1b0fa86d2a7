//! Rollback journals that a log keeps. This module finds them, puts the guard on for such a journal, and
//! takes the guard off at the last close.
//!
//! Invariant 21: a journal in a log counts only while the guard names that log. So the guard goes on, and is
//! synced, under SQLite's EXCLUSIVE, before any page of the database changes. The guard comes off when no
//! connection has the log attached, no journal is hot, and the database file has every page that the engine
//! holds. A connection that has the log attached keeps the guard on until it is closed, so it need not look
//! at the guard again.
//!
//! | where the open journal is | guard | what happens next |
//! | --- | --- | --- |
//! | in a file of the base VFS: the database is just being made | none | [`begin`], for the next transaction |
//! | in memory: nothing of the database has changed | none, or on already | [`raise_for_journal`], under EXCLUSIVE |
//! | in the log | on | [`delete`], which commits |
//!
//! The guard comes off as the last connection is closed: [`close`].

use std::sync::Arc;

use duralite_format::guard::{self, DatabaseHeader, HEADER_BYTES, JournalKind};
use duralite_locks::file::Level;
use duralite_medium::SegmentUse;
use duralite_sqlite_ffi as ffi;
use duralite_wal::engine::rollback::{RollbackJournal, counts};

use super::line;
use super::places::attach;
use super::states::{Raised, is_guarded_by, lift, raise};
use super::waits::{out_of_date, take_alone};
use crate::attachment::{Attachment, Entering};
use crate::database::{Db, JournalStore, Serving};
use crate::errors::{During, Failure};

/// Returns the rollback journal in the log of this database. Attaches the log first if necessary. Returns
/// `None` if the base VFS would keep the journal. SQLite holds SHARED.
fn journal_of(db: &Db) -> Result<Option<Arc<dyn RollbackJournal>>, Failure> {
    if let Some(attachment) = db.attached() {
        return Ok(attachment.rollback_journal());
    }
    if !db.looks_for_rollback_guard() {
        return Ok(None);
    }
    for tries in 0.. {
        // Under a provisional guard the log has no journal, and a power loss may have left no log at all. So
        // there is no journal to find.
        let DatabaseHeader::Guarded { log_id, provisional: false, .. } = db.header()? else {
            return Ok(None);
        };
        let attachment = match attach(db, log_id) {
            Ok(attachment) => attachment,
            // The log's last user has just closed the log, so look at the database again.
            Err(_) if !is_guarded_by(db, log_id)? && db.patience.pause(tries) => continue,
            Err(failure) => return Err(failure),
        };
        let Some(journal) = attachment.rollback_journal() else { return Ok(None) };
        // Even if SQLite holds EXCLUSIVE, the log may have other users. So this connection does not enter as
        // the log's only user.
        match attachment.enter(Entering::Journal) {
            Ok(used) => db.attach(used, Serving::Journal),
            // Another connection is about to close the log. That connection will not get EXCLUSIVE, because
            // this connection has SHARED. So this connection tries again.
            Err(failure) if failure.code == ffi::BUSY && db.patience.pause(tries) => continue,
            Err(failure) => return Err(failure),
        }
        db.patience.renew();
        return Ok(Some(journal));
    }
    Ok(None)
}

/// Detaches a log that another connection has replaced by a new log. The caller holds SHARED, and begins a
/// transaction. If SQLite has a journal open, this function opens that journal in the new log, or in memory
/// if the database has no log.
pub fn renew(db: &Db) -> Result<(), Failure> {
    let replaced = db.attached_for(Serving::Journal).filter(|attachment| attachment.may_be_replaced());
    let Some(attachment) = replaced else { return Ok(()) };
    if is_guarded_by(db, attachment.id())? {
        // The connection that was about to replace the log has died, or has failed to replace it. So this log
        // stays in use.
        attachment.set_guard_kind(None);
        return Ok(());
    }
    drop(attachment);
    db.leave_journal();
    let journal = journal_of(db)?;
    if db.journal.is_open() {
        db.journal.set(journal.map_or_else(|| JournalStore::Memory(Vec::new()), JournalStore::Log));
    }
    Ok(())
}

/// Returns whether there is a rollback journal that may be hot. Returns `None` if only the base VFS can tell.
pub fn is_there(db: &Db) -> Result<Option<bool>, Failure> {
    match journal_of(db)? {
        Some(journal) => counts(&journal).map(Some).map_err(|error| Failure::of(&error, During::Open)),
        None => Ok(None),
    }
}

/// How a rollback journal is open for SQLite.
pub enum Opened {
    /// The journal is in memory or in the log, and this VFS has it open.
    Here,
    /// The journal is in a file of the base VFS, but SQLite's calls go through this VFS.
    Wrapped,
    /// The journal is in a file of the base VFS, and SQLite calls the base VFS directly.
    Base,
}

/// Opens the rollback journal for SQLite, unless the base VFS opens it.
pub fn open(db: &Db, flags: std::ffi::c_int) -> Result<Opened, Failure> {
    let failed = |error| Failure::of(&error, During::Open);
    let makes = flags & ffi::OPEN_CREATE != 0;
    if let Some(journal) = journal_of(db)? {
        if makes {
            check_no_commits(db)?;
            if let Some(attachment) = db.attached().filter(|attachment| attachment.may_be_archived()) {
                line::break_off(db, attachment.id())?;
                attachment.has_looked_for_line();
            }
            if journal.size().map_err(failed)?.is_none() {
                journal.create().map_err(failed)?;
            }
        }
        db.journal.set(JournalStore::Log(journal));
        return Ok(Opened::Here);
    }
    if !makes || !db.may_raise_for_journal() {
        return Ok(Opened::Base);
    }
    // The first transaction of a new database makes its first page, so there is no page for a guard yet.
    let (header, len) = db.raw_header()?;
    let found = guard::inspect(&header[..len]);
    db.journal.set_makes_database(found == DatabaseHeader::Empty);
    let page_bytes = match found {
        DatabaseHeader::Empty => return Ok(Opened::Wrapped),
        DatabaseHeader::Plain { page_bytes, .. } => page_bytes,
        _ => return Ok(Opened::Base),
    };
    if !can_carry_guard(&header, page_bytes) {
        return Ok(Opened::Base);
    }
    db.journal.set(JournalStore::Memory(Vec::new()));
    if db.lock.believed() >= Level::Exclusive
        && let Err(failure) = raise_for_journal(db)
    {
        db.journal.unset();
        return Err(failure);
    }
    Ok(Opened::Here)
}

/// Returns whether this header can carry a guard. It can if SQLite wrote it for a journal mode that has a
/// kind of guard.
fn can_carry_guard(header: &[u8; HEADER_BYTES], page_bytes: u32) -> bool {
    guard::page_size_is_valid(page_bytes) && guard::kind_of_page(0, header).is_some()
}

/// Prepares for a transaction that SQLite begins by writing a journal's header. In exclusive locking mode
/// SQLite has kept EXCLUSIVE, and has the previous journal still open. If that journal is in the base VFS's
/// file, because its transaction has made the database, the next journal goes into the log.
pub fn begin(db: &Db) -> Result<(), Failure> {
    if db.journal.is_base() {
        let (header, len) = db.raw_header()?;
        let DatabaseHeader::Plain { page_bytes, .. } = guard::inspect(&header[..len]) else { return Ok(()) };
        if !can_carry_guard(&header, page_bytes) {
            return Ok(());
        }
        // Close the base VFS's file here. The file is deleted before the guard goes on. If it were left
        // beside a guard, SQLite could take it for a hot journal and undo commits that came later.
        db.journal.leave_base();
        db.journal.set_makes_database(false);
    }
    if db.lock.believed() >= Level::Exclusive { raise_for_journal(db) } else { Ok(()) }
}

/// Refuses to make a rollback journal beside a WAL with commits, because recovery of one of them would ignore
/// the other. SQLite itself makes such a journal only if it could not delete the WAL.
fn check_no_commits(db: &Db) -> Result<(), Failure> {
    let Some(attachment) = db.attached() else { return Ok(()) };
    if db.guard_kind(&attachment)? == JournalKind::Wal {
        let pages = attachment.log().db_pages().map_err(|error| Failure::of(&error, During::Open))?;
        if pages > 0 {
            return Err(Failure::new(
                ffi::BUSY,
                format!("{} has commits in its WAL, which could not be deleted", db.path.display()),
            ));
        }
    }
    Ok(())
}

/// Puts the guard on, makes the guard durable, and moves the open journal from memory into the log. The
/// caller holds EXCLUSIVE, and SQLite has not changed the database yet.
pub fn raise_for_journal(db: &Db) -> Result<(), Failure> {
    if !db.journal.is_in_memory() {
        return Ok(());
    }
    if db.attached().is_none() {
        let placement = db.placement().map_err(Failure::cannot_open)?;
        let alone = db.lock.sqlites_exclusive().ok_or_else(|| out_of_date(db))?;
        match raise(db, &alone, placement)? {
            Raised::Log(attachment) => db.attach(attachment.enter(Entering::Journal)?, Serving::Journal),
            Raised::LookAgain => return Err(out_of_date(db)),
        }
    }
    let journal = db.attached().and_then(|attachment| attachment.rollback_journal());
    let journal = journal.ok_or_else(|| Failure::cannot_open("the engine keeps no rollback journals"))?;
    db.journal.pour(journal).map_err(|error| Failure::of(&error, During::Write))
}

/// Deletes the rollback journal. This deletion is SQLite's commit. Returns `false` if the base VFS has to
/// delete the journal.
pub fn delete(db: &Db) -> Result<bool, Failure> {
    if db.journal.forget_closed() {
        // The base VFS may have a journal file from before there was a guard. No transaction needs that file
        // any more.
        let _ = db.sqlite.parent.delete(db.names.journal.as_ptr(), 0);
        return Ok(true);
    }
    match journal_of(db)? {
        Some(journal) => journal.delete().map(|()| true).map_err(|error| Failure::of(&error, During::Delete)),
        None => Ok(false),
    }
}

/// Takes the guard off when the database is closed, if no other connection has the log attached. SQLite no
/// longer holds any lock.
pub fn close(db: &Db) {
    let Some(attachment) = db.attached_for(Serving::Journal) else { return };
    if attachment.outside().is_some() || db.read_only {
        return;
    }
    if attachment.may_be_replaced() && !is_guarded_by(db, attachment.id()).unwrap_or(true) {
        return;
    }
    match lift_if_last(db, &attachment) {
        Ok(true) => {
            if let Some(maintenance) = attachment.maintenance() {
                maintenance.stop();
            }
        }
        // Other connections have the log attached. The last of them to close lifts the guard. If all of them
        // close at the same time, each may keep the others from being the last. So each connection looks
        // again after its close, and the connection that looks last lifts the guard.
        Ok(false) => db.set_refused_exclusive(attachment.log().segment_path().to_path_buf()),
        Err(failure) => db.sqlite.report(ffi::WARNING, &failure.message),
    }
}

/// Lifts the guard if this connection is the log's last user. Returns whether it is.
fn lift_if_last(db: &Db, attachment: &Attachment) -> Result<bool, Failure> {
    if !attachment.take_alone(SegmentUse::Any)? {
        return Ok(false);
    }
    let Ok(mut own) = db.lock.own() else { return Ok(false) };
    let Some(alone) = take_alone(db, own.held_mut())? else {
        return Ok(false);
    };
    if attachment.holds_anything()? || !is_guarded_by(db, attachment.id())? {
        return Ok(true);
    }
    lift(db, &alone, attachment).map(|()| true)
}
