//! Records a database's logs in `app.db-archive`, so that the database's archive continues from log to log
//! without a new snapshot, as long as nothing but these logs has changed the database (invariant 72).
//!
//! The caller of each function holds EXCLUSIVE. For a database without that file, each call only checks
//! whether the file exists. If a function cannot write a record, the VFS serves the database all the same,
//! because a record that is missing only makes the archive take a snapshot.

use duralite_format::LogId;
use duralite_format::archive::{Record, Stamp};
use duralite_format::guard::JournalKind;
use duralite_sqlite_ffi as ffi;
use duralite_wal::archive::{self, ArchiveFile, backlog};
use duralite_wal::{DatabaseIdentity, Log, LogError};

use super::waits::Alone;
use crate::attachment::Attachment;
use crate::database::Db;
use crate::errors::{During, Failure};

/// Returns whether the database file is still in the state in which the last of its logs has left it. The new
/// log then continues the line of logs. The caller asks before it makes the new log, because making a log may
/// allocate space for the database file.
pub fn is_intact(db: &Db, _alone: &Alone<'_>, kind: JournalKind, page_bytes: u32) -> bool {
    if kind == JournalKind::Rollback || db.journal.is_open() {
        // A transaction that commits with a rollback journal is in no log, so it ends the line. The header
        // alone does not show this: it still says WAL mode while such a transaction changes the journal mode.
        return false;
    }
    unless_it_fails(db, |db| {
        let Some((file, identity)) = open(db)? else { return Ok(false) };
        let stamp = stamp(db, &identity, page_bytes)?;
        Ok(stamp.is_some_and(|stamp| file.records.rests_at(stamp)))
    })
    .unwrap_or(false)
}

/// Returns whether the database has an archive, so that its logs are recorded.
pub fn is_recorded(db: &Db) -> bool {
    unless_it_fails(db, |db| Ok(open(db)?.is_some())).unwrap_or(false)
}

/// Notes that this connection makes a log. The caller does so before the log's guard goes on.
pub fn begin(db: &Db, _alone: &Alone<'_>, log: LogId, intact: bool) {
    unless_it_fails(db, |db| {
        let Some((file, identity)) = open(db)? else { return Ok(()) };
        file.begin(&identity, log, intact).map_err(failed)
    });
}

/// Writes the backlog: the commits that the archive may not have yet. Some engines can rebuild older versions
/// of pages only from the unchanged database file (invariant 73). So the caller writes the pages that a home
/// holds to the file only after this call. Returns whether there is a backlog, or `None` if `app.db-archive`
/// needs no record of the log.
pub fn keep(db: &Db, attachment: &Attachment, log: &mut Log) -> Option<bool> {
    unless_it_fails(db, |db| {
        let Some((file, identity)) = open(db)? else { return Ok(None) };
        if log.position() == 0 && file.records.tail_of(log.id()).is_some() {
            // The log has had no commits, so [`rest`] removes its record.
            return Ok(None);
        }
        let archived = attachment.archived().look().position;
        Ok(Some(backlog::write(log, &db.base, &identity, archived).unwrap_or_else(|error| {
            // Without the backlog these commits are missing in the archive, which then has a gap.
            db.sqlite.report(ffi::WARNING, &failed(error).message);
            false
        })))
    })
    .flatten()
}

/// Notes that everything in the log is in the database file. The caller does so before it gives the log up.
/// `backlog` is the value that [`keep`] has returned.
pub fn end(db: &Db, log: &Log, backlog: bool) {
    unless_it_fails(db, |db| {
        let Some((mut file, _)) = open(db)? else { return Ok(()) };
        file.append(&[Record::End { log: log.id(), position: log.position(), backlog }]).map_err(failed)
    });
}

/// Records the state of the database file, after the caller has taken off the guard of the log. If the log
/// has had no commits (`is_empty`), this function removes the log's own record. If the log has had commits
/// and [`end`] could not write their record, the line of logs ends here.
pub fn rest(db: &Db, _alone: &Alone<'_>, log: LogId, page_bytes: u32, is_empty: bool) {
    unless_it_fails(db, |db| {
        let Some((mut file, identity)) = open(db)? else { return Ok(()) };
        let Some(stamp) = stamp(db, &identity, page_bytes)? else { return Ok(()) };
        let begun = Record::Begin { log, intact: true };
        match file.records.tail_of(log) {
            Some((at, earlier)) if is_empty => {
                file.cut(at).map_err(failed)?;
                file.append(&[Record::Rest { log: earlier, stamp }]).map_err(failed)
            }
            // The record of the beginning has to stay, and [`end`] was not called, because a power loss has taken the
            // log. Only the guard has changed the file since that record.
            None if is_empty && file.records.logs().last() == Some(&begun) => {
                let end = Record::End { log, position: 0, backlog: false };
                file.append(&[end, Record::Rest { log, stamp }]).map_err(failed)
            }
            _ => file.append(&[Record::Rest { log, stamp }]).map_err(failed),
        }
    });
}

/// Notes that a transaction with a rollback journal is about to change the database while the log is in use.
/// The log has no commit for that change.
///
/// # Errors
/// An error if the record cannot be written. The transaction must then not begin, because the archive would
/// not notice its change.
pub fn break_off(db: &Db, log: LogId) -> Result<(), Failure> {
    let identity = db.identity()?;
    let Some(mut file) = ArchiveFile::open(&identity).map_err(failed)? else { return Ok(()) };
    // The file may belong to a database of which this database is a copy.
    if !file.is_of(&identity) || file.records.is_broken(log) {
        return Ok(());
    }
    file.append(&[Record::Begin { log, intact: false }]).map_err(failed)
}

/// Returns the file, if the database has an archive.
fn open(db: &Db) -> Result<Option<(ArchiveFile, DatabaseIdentity)>, Failure> {
    let identity = db.identity()?;
    let Some(file) = ArchiveFile::open(&identity).map_err(failed)? else { return Ok(None) };
    if file.is_of(&identity) {
        return Ok(Some((file, identity)));
    }
    let message = format!(
        "{} was written for another database file, of which this one is a copy: to archive this one, run `duralite enable \
         --archive URL` for it; else delete the file",
        archive::path_of(&identity.path).display()
    );
    Err(Failure::new(ffi::WARNING, message))
}

fn stamp(db: &Db, identity: &DatabaseIdentity, page_bytes: u32) -> Result<Option<Stamp>, Failure> {
    let mut page_1 = vec![0; page_bytes as usize];
    match db.base.read(&mut page_1, 0) {
        ffi::OK => archive::stamp(identity, &page_1).map_err(failed),
        _ => Ok(None),
    }
}

fn failed(error: LogError) -> Failure {
    Failure::of(&error, During::Write)
}

fn unless_it_fails<T>(db: &Db, write: impl FnOnce(&Db) -> Result<T, Failure>) -> Option<T> {
    write(db).map_err(|failure| db.sqlite.report(ffi::WARNING, &failure.message)).ok()
}
