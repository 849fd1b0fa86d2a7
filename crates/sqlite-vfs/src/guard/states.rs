//! The states of a guard, and the steps between them (invariants 1, 2 and 6).
//!
//! | state | what it means | the steps that leave it |
//! | --- | --- | --- |
//! | off | the database is plain | [`raise`], which makes a log |
//! | provisional | the log has no commits; neither the log nor the guard need be durable | [`Provisional::make_final`], before the first frame; [`lift`]; [`forget`], if the log cannot be attached |
//! | unconfirmed | the guard is final, and nobody knows whether it is durable | [`Unconfirmed::put_again`], before the first frame; [`lift`] |
//! | confirmed | log and guard are durable, and the log may get commits | [`lift`] |
//!
//! The header in the file and one word of the segment hold the state, so the state is the same for all
//! processes. Each step from *off* or to *off* needs EXCLUSIVE, which [`Alone`] proves. The holder of WRITE
//! takes the other two steps. No step leads back to *provisional*.

use std::ffi::{CString, c_int};
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use duralite_format::LogId;
use duralite_format::guard::{self, DatabaseHeader, HEADER_BYTES, JournalKind, LOG_ID, VERSIONS};
use duralite_medium::SegmentUse;
use duralite_sqlite_ffi as ffi;
use duralite_wal::placement::sync_names;
use duralite_wal::{DatabaseIdentity, Log, LogError, LogPlacement};

use super::waits::Alone;
use super::{line, places};
use crate::attachment::Attachment;
use crate::database::Db;
use crate::errors::{During, Failure};
use crate::settings::Settings;

/// The guard of an attached log, as this process finds it.
pub enum Guard<'a> {
    /// The guard is provisional. The log has no commits, and nothing in it or in the database needs a sync
    /// yet.
    Provisional(Provisional<'a>),
    /// The guard is final, but may not be durable.
    Unconfirmed(Unconfirmed<'a>),
    /// The guard is final, and both guard and log are durable.
    Confirmed,
}

/// A provisional guard.
pub struct Provisional<'a> {
    db: &'a Db,
    attachment: &'a Attachment,
}

/// A final guard that may not be durable.
pub struct Unconfirmed<'a> {
    db: &'a Db,
    attachment: &'a Attachment,
}

impl<'a> Guard<'a> {
    /// Returns the state of the guard for this log. The state does not show whether the guard is still on.
    /// [`is_guarded_by`] looks at the header for that.
    pub fn of(db: &'a Db, attachment: &'a Attachment) -> Result<Self, Failure> {
        if attachment.guard_is_confirmed() {
            return Ok(Self::Confirmed);
        }
        let id = attachment.id();
        Ok(match db.header()? {
            DatabaseHeader::Guarded { log_id, provisional: true, .. } if log_id == id => {
                Self::Provisional(Provisional { db, attachment })
            }
            _ => Self::Unconfirmed(Unconfirmed { db, attachment }),
        })
    }

    /// Returns whether the guard is provisional, so that the log has no commits.
    pub fn is_provisional(&self) -> bool {
        matches!(self, Self::Provisional(_))
    }
}

/// Returns whether the header has a guard that names this log.
pub fn is_guarded_by(db: &Db, id: LogId) -> Result<bool, Failure> {
    Ok(matches!(db.header()?, DatabaseHeader::Guarded { log_id, .. } if log_id == id))
}

/// The outcome of one attempt to put the guard on.
pub enum Raised {
    /// The guard is on, and this is the log.
    Log(Arc<Attachment>),
    /// The database has changed. The caller has to look at it again.
    LookAgain,
}

/// The header of a database without a guard.
struct Plain {
    header: [u8; HEADER_BYTES],
    page_bytes: u32,
    /// The kind of guard for the journal mode that the header shows.
    kind: JournalKind,
}

impl Plain {
    /// Reads the header. Returns `None` if the database cannot get a guard now, because another connection
    /// has changed the header.
    fn of(db: &Db) -> Result<Option<Self>, Failure> {
        let (header, len) = db.raw_header()?;
        let DatabaseHeader::Plain { page_bytes, .. } = guard::inspect(&header[..len]) else {
            return Ok(None);
        };
        Ok(guard::kind_of_page(0, &header).map(|kind| Self { header, page_bytes, kind }))
    }

    /// Returns the header with a guard that names this log. The guard is provisional if the log is not
    /// durable yet.
    fn masked(&self, log: &Log) -> [u8; HEADER_BYTES] {
        let mut masked = self.header;
        if log.is_provisional() {
            guard::mask_provisionally(self.kind, &mut masked, log.id());
        } else {
            guard::mask_as(self.kind, 0, &mut masked, log.id());
        }
        masked
    }
}

/// Makes a log, and puts on the guard for the database's journal mode. The guard is provisional if the log is
/// not durable yet. Otherwise the guard is confirmed, and both guard and log are durable on return.
pub fn raise(db: &Db, alone: &Alone<'_>, placement: &LogPlacement) -> Result<Raised, Failure> {
    check_path(db)?;
    if !remove_base_files(db)? {
        return Ok(Raised::LookAgain);
    }
    let Some(plain) = Plain::of(db)? else { return Ok(Raised::LookAgain) };
    if placement.engine.writes_home && db.reserves_bytes()? {
        return Err(Failure::cannot_open(format!(
            "journal={} writes pages past a VFS above this one, and {} keeps bytes at the ends of pages for \
             such a VFS (cksumvfs): use another journal",
            placement.engine.name,
            db.path.display()
        )));
    }
    // A process may have lifted an earlier guard and died before it synced the header. Then the header that
    // was just read is not durable, and a power loss may bring that guard back. So the log that the earlier
    // guard names must still exist, although that log holds nothing. `make_log` deletes that log only after it
    // has made the header durable without a guard.
    remove_leftover_journal(db)?;
    let identity = db.identity()?;
    let settings = db.settings().clone();
    let intact = line::is_intact(db, alone, plain.kind, plain.page_bytes);
    let mut log = make_log(db, placement, &settings, &identity, plain.page_bytes)?;
    let masked = plain.masked(&log);
    line::begin(db, alone, log.id(), intact);
    let at = Instant::now();
    let guarded = if log.is_provisional() {
        put(db, &masked, &[WHOLE])
    } else {
        sync_names_beside(db, &log).and_then(|()| write_header(db, &masked))
    };
    if let Err(failure) = guarded {
        // Delete the log only if the plain header is durable. Otherwise the database may still name the log.
        if write_header(db, &plain.header).is_ok()
            && let Err(error) = log.unlink()
        {
            db.sqlite.fail(&Failure::of(&error, During::Delete));
        }
        return Err(failure);
    }
    let (id, is_provisional) = (log.id(), log.is_provisional());
    let raised = Attachment::get(&identity, id, &settings, &|tries| db.patience.pause(tries), || Ok(log))?;
    raised.set_guard_kind(Some(plain.kind));
    if is_provisional {
        raised.set_guarded_at(at);
    } else {
        raised.home_synced(raised.home_writes());
        raised.confirm_guard();
    }
    Ok(Raised::Log(raised))
}

/// Refuses a database whose path now leads to another file. The files beside that path belong to the other
/// file, and EXCLUSIVE on this file does not show whether a program uses those files (invariant 2). In WAL
/// mode stock SQLite would read and write that program's `-wal` as its own. When stock SQLite makes a
/// rollback journal, it refuses a moved file with the same code that this function returns.
pub fn check_path(db: &Db) -> Result<(), Failure> {
    if db.path_is_anothers() { Err(moved(db)) } else { Ok(()) }
}

/// Returns the failure of a connection whose file was replaced.
pub fn moved(db: &Db) -> Failure {
    let message = format!(
        "{} is another file now than the one that this connection has opened: close the connection, and open \
         the database again",
        db.path.display()
    );
    Failure::new(ffi::READONLY_DBMOVED, message)
}

/// Deletes an empty `-wal` and the `-shm` of the base VFS. No connection uses these files now, and the log
/// has a wal-index of its own. Returns `false` if the `-wal` is not empty.
fn remove_base_files(db: &Db) -> Result<bool, Failure> {
    match db.base_wal_bytes()? {
        None => {}
        Some(0) => match db.sqlite.parent.delete(db.names.wal.as_ptr(), 1) {
            ffi::OK => {}
            code => {
                return Err(Failure::new(code, format!("cannot delete the -wal of {}", db.path.display())));
            }
        },
        Some(_) => return Ok(false),
    }
    drop(std::fs::remove_file(db.beside("-shm")));
    Ok(true)
}

fn make_log(
    db: &Db,
    placement: &LogPlacement,
    settings: &Settings,
    identity: &DatabaseIdentity,
    page_bytes: u32,
) -> Result<Log, Failure> {
    let log = Log::create(&db.mappable(), placement, &settings.options, identity, page_bytes)
        .map_err(|error| Failure::of(&error, During::Open))?;
    for (from, to) in log.moved() {
        let (from, to) = (from.display(), to.display());
        let message =
            format!("{from} is the log of another database, or of an earlier one: it is kept as {to}");
        db.sqlite.report(ffi::WARNING, &message);
    }
    Ok(log)
}

/// Refuses a database if a rollback journal beside it may be hot. Returns whether there is a journal that is
/// not hot, because its file is empty or begins with a zero.
pub fn check_journal(db: &Db) -> Result<bool, Failure> {
    let name = db.beside("-journal");
    let failed =
        |code: i32, what: &str| Failure::new(code, format!("cannot delete {}: {what}", name.display()));
    let mut first = [0];
    match File::open(&name).and_then(|journal| journal.read_at(&mut first, 0)) {
        Ok(0) => Ok(true),
        Ok(_) if first == [0] => Ok(true),
        Ok(_) => Err(failed(ffi::BUSY, "a transaction is using it, or a crash has left it")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(match Failure::of(&LogError::io("open", &name, &error), During::Delete) {
            out_of_descriptors if out_of_descriptors.code == ffi::CANTOPEN => out_of_descriptors,
            other => failed(ffi::IOERR_DELETE, &other.message),
        }),
    }
}

/// Deletes a rollback journal that SQLite has emptied but not deleted, as it does with TRUNCATE and PERSIST.
/// Otherwise a power loss could bring the journal's content back. Emptying the journal again is not enough,
/// because an earlier sync of the journal may have failed (invariant 6). The deletion is durable after the
/// caller's sync of the directory.
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

/// Syncs the database's directory, unless the log is in the same directory, which is synced already. SQLite
/// has deleted the rollback journal with which it set WAL mode. Without this sync a power loss could bring
/// the journal back, and SQLite would play it back over the guard.
fn sync_names_beside(db: &Db, log: &Log) -> Result<(), Failure> {
    if db.path.parent() == log.path().parent() {
        return Ok(());
    }
    sync_names(&db.path).map_err(|error| Failure::of(&error, During::Write))
}

impl Provisional<'_> {
    /// Makes the log durable, then makes the guard final. The holder of WRITE calls this before it accepts
    /// the first frame. On return the guard is durable, and so confirmed (invariant 1).
    pub fn make_final(self) -> Result<(), Failure> {
        let Self { db, attachment } = self;
        let mut log = attachment.log();
        log.harden().map_err(|error| Failure::of(&error, During::Write))?;
        sync_names_beside(db, &log)?;
        drop(log);
        let (mut header, len) = db.raw_header()?;
        let DatabaseHeader::Guarded { log_id, kind, .. } = guard::inspect(&header[..len]) else {
            return Err(places::damaged(db));
        };
        guard::mask_as(kind, 0, &mut header, log_id);
        confirm(db, attachment, &header)
    }
}

impl Unconfirmed<'_> {
    /// Writes and syncs the guard once more. The process that put the guard on may have died before its sync,
    /// or the sync may have failed. In both cases the visible guard may not be on disk, and a sync without a
    /// new write might not put it there. On return the guard is durable, and so confirmed.
    pub fn put_again(self) -> Result<(), Failure> {
        let Self { db, attachment } = self;
        let (header, len) = db.raw_header()?;
        let found = guard::inspect(&header[..len]);
        if matches!(found, DatabaseHeader::Guarded { log_id, .. } if log_id == attachment.id()) {
            return confirm(db, attachment, &header);
        }
        // The header may have looked damaged because a checkpoint was just writing the first page.
        // `is_guarded_by` reads the header again until it no longer looks damaged.
        if is_guarded_by(db, attachment.id())? { Ok(()) } else { Err(places::unguarded(db)) }
    }
}

/// Makes a final guard durable, and notes for all processes that it is confirmed. Writes only the bytes of
/// the guard, because another connection may have written page 1 in a checkpoint since the caller read this
/// header.
fn confirm(db: &Db, attachment: &Attachment, header: &[u8; HEADER_BYTES]) -> Result<(), Failure> {
    // Until the sync the file counts as not synced. If this process dies before the sync, the next process
    // therefore syncs the file.
    attachment.home_in_doubt();
    let writes = attachment.home_writes();
    // Write the log's id first. So even if the second write fails and a power loss follows, the disk never
    // has the guard's version numbers without the log's id.
    put_durably(db, header, &[LOG_ID, VERSIONS])?;
    attachment.home_synced(writes);
    attachment.confirm_guard();
    Ok(())
}

/// Takes off a provisional guard whose log a power loss has destroyed, wholly or in part. No connection uses
/// that log, and it never had commits. The change is durable on return.
pub fn forget(db: &Db, alone: &Alone<'_>, id: LogId) -> Result<(), Failure> {
    let (mut header, len) = db.raw_header()?;
    let found = guard::inspect(&header[..len]);
    if let DatabaseHeader::Guarded { log_id, provisional: true, page_bytes, .. } = found
        && log_id == id
    {
        guard::lift(&mut header);
        write_header(db, &header)?;
        line::rest(db, alone, id, page_bytes, true);
    }
    Ok(())
}

/// Takes the guard off and deletes the log, after SQLite has checkpointed. Idle connections that have had
/// rollback journals in the log may still have the log attached. A word of the segment tells these
/// connections to look at the guard before they begin anything. If a copy that needs the log has taken the
/// database's place, guard and log stay.
pub fn lift(db: &Db, alone: &Alone<'_>, attachment: &Attachment) -> Result<(), Failure> {
    if db.is_replaced_by_copy(attachment.id()) {
        let message = format!(
            "a copy of {} has replaced it, and needs its log: guard and log stay; open the database again",
            db.path.display()
        );
        return Err(Failure::new(ffi::IOERR_DELETE, message));
    }
    if attachment.take_alone(SegmentUse::Any)? {
        return lift_alone(db, alone, attachment);
    }
    attachment.set_replaced();
    // If lifting the guard fails, the idle connections look at the guard, find it still on, and continue with
    // the log.
    lift_alone(db, alone, attachment)
}

fn lift_alone(db: &Db, alone: &Alone<'_>, attachment: &Attachment) -> Result<(), Failure> {
    let failed = |error: LogError| Failure::of(&error, During::Delete);
    if attachment.has_hot_journal()? {
        let message =
            format!("a crash has left a rollback journal of {}: open the database again", db.path.display());
        return Err(Failure::new(ffi::IOERR_DELETE, message));
    }
    let is_provisional = Guard::of(db, attachment)?.is_provisional();
    let mut log = attachment.log();
    let mut versions = find_all(db, &mut log, |buf, offset| db.read(buf, offset));
    if versions.is_err() && log.frames() > attachment.indexed_frames() {
        // A process has sealed a transaction, and has died before it entered the transaction into the
        // wal-index. So SQLite has not checkpointed this transaction.
        drop(log);
        db.put_home_alone(attachment)?;
        log = attachment.log();
        versions = find_all(db, &mut log, |buf, offset| db.read(buf, offset));
    }
    let versions = versions?;
    // A log in which no transaction has ever begun holds nothing. A log without commits may still hold what a
    // process wrote before it died. No later open may find those remains, so retire the log here.
    let holds_anything =
        !is_provisional && (log.was_begun() || db.has_home() || attachment.rollback_journal().is_some());
    let backlog = line::keep(db, attachment, &mut log);
    if holds_anything {
        db.sync_home(attachment, Some(&mut log), ffi::SYNC_FULL)?;
    }
    if db.drain()? {
        // The engine had pages in its own view of the file (the home), and has now written them to the file.
        // Check that they are there, because programs without Duralite read only the file.
        find_all(db, &mut log, |buf, offset| Ok(db.base.read(buf, offset)))?;
    }
    if let Some(backlog) = backlog {
        line::end(db, &log, backlog);
    }
    // A journal that is still in the log is not hot. With PERSIST SQLite leaves such a journal.
    if let Some(journal) = attachment.rollback_journal() {
        journal.delete().map_err(failed)?;
    }
    if holds_anything {
        log.retire().map_err(failed)?;
    }
    // If the engine's home held the header, the call of `drain` above has written the header to the file.
    let (mut header, _) = db.raw_header()?;
    guard::lift(&mut header);
    if let Some(versions) = versions {
        header[VERSIONS].copy_from_slice(&versions);
    }
    let lifted = if is_provisional && attachment.was_guarded_just_now() && !line::is_recorded(db) {
        // The disk has hardly seen this guard, so a program that only reads need not wait for a flush. If the disk
        // has the guard all the same, and the power fails before the disk gets this header, the guard comes back.
        // It names no log that anybody needs, and the next connection takes it off (`forget`). But nobody could tell
        // then whether the file had been changed before the power failed. That would end the line of logs of an
        // archive, which would need a snapshot. And the records of such a line take flushes anyway.
        db.owe_sync();
        put(db, &header, &[WHOLE])
    } else {
        write_header(db, &header)
    };
    if lifted.is_ok() {
        line::rest(db, alone, log.id(), log.page_bytes(), log.position() == 0);
    }
    // If a final guard was not lifted durably, it may still be on disk, so its log must stay. A provisional
    // guard, too, may come back after a power loss, but needs no log.
    if lifted.is_ok() || is_provisional {
        log.unlink().map_err(failed)?;
    }
    lifted
}

/// Checks that `read` returns every committed page as the log has it. Returns the format versions (bytes 18
/// and 19) of page 1, if the log has that page.
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

/// The result of comparing the database file with the log.
enum Comparison {
    /// The file holds every committed page. `versions` are the format versions of page 1, if the log has that
    /// page.
    Same { versions: Option<[u8; 2]> },
    /// The file lacks a committed page. `page_number` is the first such page.
    Differs { page_number: u32 },
}

/// Compares every committed page with the database as `read` returns it.
///
/// This function does not compare the format versions of page 1, because in the file the guard takes their
/// place. The log may have versions that are not those of WAL mode. That happens if the VFS could not lift
/// the guard for a change of the journal mode: SQLite finds that the WAL still exists, opens it again, and
/// commits the new mode through the WAL.
fn compare(
    db: &Db,
    log: &mut Log,
    read: impl Fn(&mut [u8], u64) -> Result<c_int, Failure>,
) -> Result<Comparison, Failure> {
    let failed = |error: LogError| Failure::of(&error, During::Read);
    let pages = log.committed_pages(None).map_err(failed)?;
    let page_bytes = log.page_bytes() as usize;
    let (mut home, mut logged) = (vec![0; page_bytes], vec![0; page_bytes]);
    let mut versions = None;
    // A VFS above this one may keep bytes at the end of pages (checksums, for example), and may change them
    // when SQLite checkpoints. So do not compare the reserved bytes.
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

/// Makes durable a header from which this connection has lifted the guard without a sync. SQLite is about to open a
/// rollback journal. If the disk still had the guard after a power loss, stock SQLite could not play the journal back.
pub fn sync_lifted(db: &Db) -> Result<(), Failure> {
    if db.pay_sync() { sync(db).inspect_err(|_| db.set_header_in_doubt()) } else { Ok(()) }
}

/// The whole header.
const WHOLE: Range<usize> = 0..HEADER_BYTES;

/// Writes and syncs the header. Everything else in the file is durable already.
fn write_header(db: &Db, header: &[u8; HEADER_BYTES]) -> Result<(), Failure> {
    put_durably(db, header, &[WHOLE])
}

/// Writes and syncs parts of the header.
///
/// If the sync fails, this function writes the header again and syncs again, because SQLite continues even
/// after an error, in the mode that the header shows. A second sync that succeeds proves that the header is
/// on disk. It proves nothing about other pages, so the failure of the first sync still counts (invariant 6).
/// If the second sync fails too, it is not known whether the guard is on disk. After a power loss the guard
/// could keep SQLite from playing a rollback journal back, so this connection gets no rollback journal any
/// more.
fn put_durably(db: &Db, header: &[u8; HEADER_BYTES], parts: &[Range<usize>]) -> Result<(), Failure> {
    put(db, header, parts)?;
    if db.sync_file(ffi::SYNC_FULL) == ffi::OK {
        return Ok(());
    }
    let synced = put(db, header, parts).and_then(|()| sync(db));
    if synced.is_err() {
        db.set_header_in_doubt();
    }
    synced
}

fn sync(db: &Db) -> Result<(), Failure> {
    match db.sync_file(ffi::SYNC_FULL) {
        ffi::OK => Ok(()),
        code => Err(Failure::new(code, format!("cannot sync {}", db.path.display()))),
    }
}

fn put(db: &Db, header: &[u8; HEADER_BYTES], parts: &[Range<usize>]) -> Result<(), Failure> {
    let written = parts.iter().map(|part| db.base.write(&header[part.clone()], part.start as u64));
    match written.into_iter().find(|code| *code != ffi::OK) {
        None => Ok(()),
        Some(code) => Err(Failure::new(code, format!("cannot write the header of {}", db.path.display()))),
    }
}
