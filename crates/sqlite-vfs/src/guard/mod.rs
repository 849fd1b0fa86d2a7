//! Putting the guard on when the WAL is opened, taking it off when the WAL is deleted.

mod absorb;
pub mod child;
pub mod helper;
pub mod journal;
mod opening;
pub mod places;

use std::ffi::{CString, c_int};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use duralite_journal::directory::sync_names;
use duralite_journal::{JournalError, Log, LogDirectory};
use duralite_logfmt::LogId;
use duralite_logfmt::guard::{self, DatabaseHeader, HEADER_BYTES, JournalKind, VERSIONS};
use duralite_medium::SegmentUse;
use duralite_sqlite_ffi as ffi;

use crate::attachment::{Attachment, Entering, Use};
use crate::background::worker;
use crate::database::{Db, Serving};
use crate::errors::{During, Failure};
use opening::Turn;

/// Where the header says how many bytes at the end of each page are not SQLite's.
const RESERVED_BYTES: u64 = 20;

/// Who serves a WAL.
pub enum WalServer {
    Base,
    Log(Use),
}

/// What became of one attempt to put the guard on.
enum Attempt {
    Raised(Arc<Attachment>),
    /// The database is not what it was; look again.
    LookAgain,
}

/// Finds or makes what serves the WAL of `db`. SQLite holds at least SHARED.
pub fn open_wal(db: &Db) -> Result<WalServer, Failure> {
    let log_dir = db.log_dir();
    let mut refused = None;
    for tries in 0.. {
        match db.header()? {
            // SQLite opens a WAL where page 1 asks for one.
            DatabaseHeader::Guarded { kind: JournalKind::Rollback, .. } => return Ok(WalServer::Base),
            DatabaseHeader::Guarded { log_id, page_bytes, provisional, .. } => match attach(db, log_id) {
                Ok(attachment)
                    if attachment.log().page_bytes() != page_bytes || is_outdated(db, &attachment)? =>
                {
                    put_away(db, attachment, tries)?;
                    continue;
                }
                Ok(attachment) => return serve(db, attachment),
                // Its last user has just closed it, or another log has taken the place of this.
                Err(_) if !is_guarded_by(db, log_id)? && db.patience.pause(tries) => continue,
                Err(failure) if provisional && failure.code & 0xff != ffi::BUSY && !db.read_only => {
                    match opening::under_exclusive(db, || forget(db, log_id))? {
                        Some(forgotten) => forgotten?,
                        // Somebody uses it with other settings, or is about to do the same.
                        None => opening::step_back(db, tries).or_else(|in_use| {
                            Err(if is_guarded_by(db, log_id)? { failure } else { in_use })
                        })?,
                    }
                    continue;
                }
                // A connection that may write forgets it, and makes a log for this one.
                Err(failure) if provisional && failure.code & 0xff != ffi::BUSY => refused = Some(failure),
                Err(failure) => {
                    db.patience.refuse();
                    return Err(failure);
                }
            },
            DatabaseHeader::Damaged => return Err(places::damaged(db)),
            DatabaseHeader::Plain { page_bytes, wal: true } if guard::page_size_is_valid(page_bytes) => {}
            _ => return Ok(WalServer::Base),
        }
        if db.read_only {
            match open_by_helper(db, log_dir.is_ok(), refused.take())? {
                Some(server) => return Ok(server),
                None if db.patience.pause(tries) => continue,
                None => break,
            }
        }
        let Ok(log_dir) = log_dir else { return Ok(WalServer::Base) };
        let attempt = match opening::turn(db)? {
            Turn::Own(_turn) if db.base_wal_bytes()?.is_some_and(|bytes| bytes > 0) => {
                absorb(db)?;
                None
            }
            Turn::Own(_turn) => opening::under_exclusive(db, || raise(db, log_dir))?,
            // Somebody in this process has raised it meanwhile.
            Turn::Waited => continue,
        };
        match attempt.transpose()? {
            Some(Attempt::Raised(attachment)) => return serve(db, attachment),
            Some(Attempt::LookAgain) => {}
            None => opening::step_back(db, tries)?,
        }
        if !db.patience.pause(0) {
            return Err(opening::in_use(db));
        }
    }
    Err(opening::in_use(db))
}

/// For who may not write, where no log could be attached: a connection that may makes one, if this user may, and this one shares it. `refused`
/// says why one that is named could not be. `None`: look again.
fn open_by_helper(db: &Db, may_make: bool, refused: Option<Failure>) -> Result<Option<WalServer>, Failure> {
    let helper = if may_make { helper::writer(db, "cannot open the log") } else { None };
    match (db.header()?, helper, refused) {
        (DatabaseHeader::Guarded { log_id, .. }, Some(_), _) => serve(db, attach(db, log_id)?).map(Some),
        // Others may use that log: a WAL of the base's would be beside it.
        (DatabaseHeader::Guarded { .. }, None, Some(failure)) => Err(failure),
        // Made meanwhile.
        (DatabaseHeader::Guarded { .. }, None, None) => Ok(None),
        _ => Ok(Some(WalServer::Base)),
    }
}

/// Whether there is a WAL; `None` where the base knows.
pub fn has_wal(db: &Db) -> Result<Option<bool>, Failure> {
    if let Some(attachment) = db.attached_for(Serving::Journal) {
        return db.guard_kind(&attachment).map(|kind| Some(kind == JournalKind::Wal));
    }
    Ok(match db.header()? {
        DatabaseHeader::Guarded { kind, .. } => Some(kind == JournalKind::Wal),
        _ => None,
    })
}

fn serve(db: &Db, attachment: Arc<Attachment>) -> Result<WalServer, Failure> {
    worker::start_if_wanted(db, &attachment)?;
    let alone = db.lock_level() >= ffi::LOCK_EXCLUSIVE;
    if alone {
        // It would be in its own way.
        db.leave_journal();
    }
    let used = attachment.enter(if alone { Entering::WalAlone } else { Entering::Wal })?;
    db.patience.renew();
    Ok(WalServer::Log(used))
}

/// Whether commits are in an ordinary `-wal` while the log has none. There is no such file when a guard is put on, nor can there be
/// one under it: the guard was lifted by a process that died before that was durable, stock SQLite has used the database, and
/// a power loss has brought the guard back. The log was retired before.
fn is_outdated(db: &Db, attachment: &Attachment) -> Result<bool, Failure> {
    let may_be = !db.read_only && attachment.outside().is_none();
    let has_none = may_be && (!attachment.log().was_begun() || is_provisional(db, attachment)?);
    Ok(has_none && db.base_wal_bytes()?.is_some_and(|bytes| bytes > 0))
}

/// Takes a log away that has nothing, and is not what the database needs: it was made for pages of another size (with a rollback journal
/// SQLite can change that size, which a WAL depends on), or [`is_outdated`]. Another log takes its place.
fn put_away(db: &Db, attachment: Arc<Attachment>, tries: u32) -> Result<(), Failure> {
    db.leave_journal();
    let used = attachment.enter(Entering::Wal)?;
    drop(attachment);
    let old = used.attachment().clone();
    db.attach(used, Serving::Journal);
    let lifted = opening::under_exclusive(db, || {
        if !old.take_alone(SegmentUse::Wal)? || old.holds_anything()? || !is_guarded_by(db, old.id())? {
            return Ok(false);
        }
        lift(db, &old).map(|()| true)
    });
    drop(old);
    db.detach();
    match lifted?.transpose()? {
        Some(true) => Ok(()),
        _ if db.patience.pause(tries) => opening::step_back(db, tries),
        _ => Err(opening::in_use(db)),
    }
}

/// Under EXCLUSIVE: takes a provisional guard off whose log is not what it was, or not there any more. Nobody uses it, so it has no
/// commits, and a power loss has left this of it.
fn forget(db: &Db, id: LogId) -> Result<(), Failure> {
    let (mut header, len) = db.raw_header()?;
    let found = guard::inspect(&header[..len]);
    if matches!(found, DatabaseHeader::Guarded { log_id, provisional: true, .. } if log_id == id) {
        guard::lift(&mut header);
        write_header(db, &header)?;
    }
    Ok(())
}

fn is_guarded_by(db: &Db, id: LogId) -> Result<bool, Failure> {
    Ok(matches!(db.header()?, DatabaseHeader::Guarded { log_id, .. } if log_id == id))
}

fn attach(db: &Db, id: LogId) -> Result<Arc<Attachment>, Failure> {
    let identity = db.identity()?;
    let settings = db.settings().clone();
    let log_dir = places::find(db, &identity, id)?.log_dir;
    let pause = |tries| db.patience.pause(tries);
    // Who may not write the database leaves recovery to SQLite.
    let attach = if db.read_only { Log::attach } else { duralite_journal::recover };
    let attach = || attach(&db.mappable(), &log_dir, &settings.options, &identity, id, &pause);
    Attachment::get(&identity, id, &settings, &pause, attach)
}

/// Has stock SQLite checkpoint an ordinary `-wal` that a program without Duralite left behind. Only one that
/// nobody uses: a live one stays as it is, and the open is refused.
fn absorb(db: &Db) -> Result<(), Failure> {
    let before = db.lock_level();
    match opening::under_exclusive(db, || ())? {
        Some(()) => {}
        None => return opening::step_back(db, 0),
    }
    if before > ffi::LOCK_SHARED {
        // In exclusive locking mode: that checkpoint is another connection's, which needs SHARED.
        opening::go_back(db, ffi::LOCK_SHARED)?;
    }
    let absorbed = absorb::checkpoint_base_wal(db);
    if before > ffi::LOCK_SHARED && !opening::take_exclusive(db)? {
        return Err(opening::in_use(db));
    }
    absorbed
}

/// Deletes the WAL: lifts the guard if the database holds all that the log holds (invariant 1). One that stays at the
/// last close is left as it is until SQLite has shown whether it closes: [`lift_kept`].
/// `false` when the database is not guarded, and the deletion is the base's.
pub fn delete_wal(db: &Db) -> Result<bool, Failure> {
    let DatabaseHeader::Guarded { log_id, kind: JournalKind::Wal, provisional, .. } = db.header()? else {
        db.detach_lingering();
        return Ok(false);
    };
    if db.attached().is_none_or(|attachment| attachment.id() != log_id) {
        db.leave_journal();
        db.attach(attach(db, log_id)?.enter(Entering::WalAlone)?, Serving::Lingering);
    }
    if db.lock_level() >= ffi::LOCK_EXCLUSIVE && !provisional && db.keep_log() {
        return Ok(true);
    }
    lift_and_detach(db)
}

/// SQLite goes on with a database after it has deleted the WAL whose log was kept: it was no close, but leaves WAL
/// mode. EXCLUSIVE is held still, so the guard comes off now. If it cannot, it stays, as where [`delete_wal`] fails.
#[cold]
pub fn lift_kept(db: &Db) {
    if db.end_keeping()
        && let Err(failure) = lift_and_detach(db)
    {
        db.sqlite.report(ffi::WARNING, &failure.message);
    }
}

/// As [`lift_kept`], before SQLite opens a rollback journal, which never meets the guard.
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

/// Lifts the guard of the attached log and lets go of it, lifted or not; `false` where none is attached.
fn lift_and_detach(db: &Db) -> Result<bool, Failure> {
    let Some(attachment) = db.attached() else { return Ok(false) };
    let lifted = if db.lock_level() < ffi::LOCK_EXCLUSIVE {
        Err(Failure::new(ffi::IOERR_DELETE, "the WAL is deleted without EXCLUSIVE; guard and log stay"))
    } else if attachment.take_alone(SegmentUse::Wal)? {
        lift(db, &attachment)
    } else {
        Err(Failure::new(ffi::BUSY, "another connection uses the log; guard and log stay"))
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

/// Under EXCLUSIVE: makes a log and puts the guard on, that of the mode that the database is in.
fn raise(db: &Db, log_dir: &LogDirectory) -> Result<Attempt, Failure> {
    match db.base_wal_bytes()? {
        None => {}
        Some(0) => match db.sqlite.parent.delete(db.names.wal.as_ptr(), 1) {
            ffi::OK => {}
            code => {
                return Err(Failure::new(code, format!("cannot delete the -wal of {}", db.path.display())));
            }
        },
        Some(_) => return Ok(Attempt::LookAgain),
    }
    // SQLite's own wal-index is nobody's now, and the log has one of its own.
    drop(std::fs::remove_file(db.beside("-shm")));
    let (plain, len) = db.raw_header()?;
    let DatabaseHeader::Plain { page_bytes, .. } = guard::inspect(&plain[..len]) else {
        return Ok(Attempt::LookAgain);
    };
    let Some(kind) = guard::kind_of_page(0, &plain) else { return Ok(Attempt::LookAgain) };
    // What is read here may not be durable, if whoever lifted the guard has died. The guard that a power loss then brings back names
    // a log that is there still, and holds nothing: making a log deletes it only after the header has been made durable.
    remove_leftover_journal(db)?;
    let identity = db.identity()?;
    let settings = db.settings().clone();
    let mut log = Log::create(&db.mappable(), log_dir, &settings.options, &identity, page_bytes)
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
    Ok(Attempt::Raised(raised))
}

/// Makes durable which files the database's directory has, unless it is the log's, for which that has been done. The rollback
/// journal under which the database came to be in WAL mode is deleted, but its name may come back with a power loss, and SQLite
/// would roll the guard back.
fn sync_names_beside(db: &Db, log: &Log) -> Result<(), Failure> {
    if db.path.parent() == log.path().parent() {
        return Ok(());
    }
    sync_names(&db.path).map_err(|error| Failure::of(&error, During::Write))
}

/// Whether the guard that is on is provisional: the log has no commits then, and nothing in it or in the database waits for a
/// sync. Once it is not, it never is again; but that it is not does not say that it is durable.
pub fn is_provisional(db: &Db, attachment: &Attachment) -> Result<bool, Failure> {
    if attachment.is_hardened() {
        return Ok(false);
    }
    let header = db.header()?;
    let id = attachment.id();
    Ok(matches!(header, DatabaseHeader::Guarded { log_id, provisional: true, .. } if log_id == id))
}

/// Puts a guard on for good that is provisional, after its log has been made durable: before the first frame is accepted, by
/// whoever holds WRITE. Durable on return (invariant 1).
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

/// Writes the guard once more that is on for good. Whoever put it on may have seen its syncs fail, or have died before: what shows it
/// then need not be on the disk, nor be written back by another sync. Durable on return.
pub fn put_again(db: &Db, attachment: &Attachment) -> Result<(), Failure> {
    let (header, len) = db.raw_header()?;
    let found = guard::inspect(&header[..len]);
    if matches!(found, DatabaseHeader::Guarded { log_id, .. } if log_id == attachment.id()) {
        put_for_good(db, attachment, &header)?;
    }
    Ok(())
}

fn put_for_good(db: &Db, attachment: &Attachment, header: &[u8; HEADER_BYTES]) -> Result<(), Failure> {
    // Should this process die before the sync, the next one syncs what it finds.
    attachment.home_in_doubt();
    let writes = attachment.home_writes();
    write_header(db, header)?;
    attachment.home_synced(writes);
    attachment.set_hardened();
    Ok(())
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
    match db.sqlite.parent.delete(name.as_ptr(), 0) {
        ffi::OK => Ok(()),
        code => Err(failed(format!("code {code}"))),
    }
}

/// Under EXCLUSIVE, after SQLite has checkpointed: takes the guard off and deletes the log. Idle connections that have had
/// rollback journals in it may have it attached still: they are told, and look at the guard before they begin
/// anything.
fn lift(db: &Db, attachment: &Attachment) -> Result<(), Failure> {
    if attachment.take_alone(SegmentUse::Any)? {
        return lift_alone(db, attachment);
    }
    attachment.set_replaced();
    // After an error they find the guard as it was.
    lift_alone(db, attachment)
}

fn lift_alone(db: &Db, attachment: &Attachment) -> Result<(), Failure> {
    let failed = |error: JournalError| Failure::of(&error, During::Delete);
    if attachment.has_hot_journal()? {
        let message = format!("a crash has left a rollback journal of {}: open it again", db.path.display());
        return Err(Failure::new(ffi::IOERR_DELETE, message));
    }
    let provisional = is_provisional(db, attachment)?;
    let mut log = attachment.log();
    let versions = find_all(db, &mut log, |buf, offset| db.read(buf, offset))?;
    // A log in which no transaction has ever begun has nothing to forget: it was only read through. One that has no commits any more
    // may have what a process had written that died: it must never be found again.
    let holds_anything =
        !provisional && (log.was_begun() || db.has_home() || attachment.rollback_journal().is_some());
    if holds_anything {
        db.settle(attachment, Some(&mut log), ffi::SYNC_FULL)?;
    }
    if db.drain()? {
        // Now in the file itself, as those find it who come without the home.
        find_all(db, &mut log, |buf, offset| Ok(db.base.read(buf, offset)))?;
    }
    // One that is left is worth nothing, as PERSIST leaves it.
    if let Some(journal) = attachment.rollback_journal() {
        journal.delete().map_err(failed)?;
    }
    if holds_anything {
        log.retire().map_err(failed)?;
    }
    // What a home has held of it is there now too.
    let (mut header, _) = db.raw_header()?;
    guard::lift(&mut header);
    if let Some(versions) = versions {
        header[VERSIONS].copy_from_slice(&versions);
    }
    let lifted = write_header(db, &header);
    // A provisional guard may come back, and needs no log then.
    if lifted.is_ok() || provisional {
        log.unlink().map_err(failed)?;
    }
    lifted
}

/// Finds every committed page in what `read` reads of the database; the versions that page 1 has in the log, if it
/// is there.
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
                "page {page_number} of {} is not what the log holds; guard and log stay, nothing is lost: \
                 open the database again, or run `duralite checkpoint`",
                db.path.display()
            ),
        )),
    }
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
fn compare(
    db: &Db,
    log: &mut Log,
    read: impl Fn(&mut [u8], u64) -> Result<c_int, Failure>,
) -> Result<Comparison, Failure> {
    let failed = |error: JournalError| Failure::of(&error, During::Read);
    let pages = log.committed_pages().map_err(failed)?;
    let page_bytes = log.page_bytes() as usize;
    let (mut home, mut logged) = (vec![0; page_bytes], vec![0; page_bytes]);
    let mut versions = None;
    // What a VFS above this one keeps at the end of pages (checksums, say) it may change on the way home.
    let mut reserved = [0];
    if !matches!(read(&mut reserved, RESERVED_BYTES)?, ffi::OK | ffi::IOERR_SHORT_READ) {
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
    let synced = put_header(db, header).and_then(|()| sync(db));
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

fn put_header(db: &Db, header: &[u8; HEADER_BYTES]) -> Result<(), Failure> {
    match db.base.write(header, 0) {
        ffi::OK => Ok(()),
        code => Err(Failure::new(code, format!("cannot write the header of {}", db.path.display()))),
    }
}
