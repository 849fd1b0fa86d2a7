//! Opening the log of a database (invariants 1, 2 and 44).
//!
//! A connection that makes a log needs EXCLUSIVE for a moment. So does a connection that checkpoints an
//! ordinary `-wal` that a program without Duralite has left. If two connections that hold SHARED both want
//! EXCLUSIVE, one of them has to release SHARED. This VFS cannot do that without SQLite's knowledge, because
//! SQLite relies on what it has read under SHARED. So this VFS does all such work in [`begin`], when SQLite
//! asks for SHARED and relies on nothing yet. When SQLite opens the WAL, under the same SHARED, [`open_wal`]
//! finds what [`begin`] has prepared.
//!
//! [`decide`] says what the database needs, and changes nothing. [`Opening`] and [`open_wal`] do what it
//! says. The first row of this table that fits applies:
//!
//! | the file's header | what it needs |
//! | --- | --- |
//! | plain, rollback mode | nothing: SQLite's own files serve it |
//! | plain, WAL mode, and no log can be made | nothing: SQLite's own `-wal` serves it |
//! | plain, WAL mode, and another file has its path | nothing: an error says why |
//! | guarded, not attached yet, and a copy that names the same log has its path | nothing: an error says why |
//! | plain, WAL mode, with a hot rollback journal | another connection, in which SQLite plays the journal back; if that fails, SQLite plays it back in this connection |
//! | plain, WAL mode, read-only connection | a connection that may write, to make the log |
//! | plain, WAL mode, with an ordinary `-wal`, but its pages have reserved bytes, or this user may not write the `-wal` | nothing: SQLite's own `-wal` serves it |
//! | plain, WAL mode, with an ordinary `-wal` | stock SQLite checkpoints the `-wal`, if nobody uses it |
//! | plain, WAL mode | a new log |
//! | guard of rollback mode | nothing: the log is attached when SQLite looks for the journal |
//! | guard of WAL mode, but its log holds nothing and does not fit | the log is deleted, and another look |
//! | guard of WAL mode, and its log can be attached | that log |
//! | a provisional guard whose log cannot be attached | the guard is taken off, by a connection that may write |
//! | any other guard whose log cannot be attached, or a damaged guard | nothing: an error says why |
//!
//! A decision holds only as long as the lock under which it was made. If the VFS releases the lock, it looks
//! at the database again, or the open ends in `SQLITE_BUSY`.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Instant;

use duralite_format::LogId;
use duralite_format::guard::{self, DatabaseHeader, JournalKind};
use duralite_locks::file::{Concluded, Held, Level, Own};
use duralite_medium::SegmentUse;
use duralite_sqlite_ffi as ffi;
use duralite_wal::LogPlacement;

use super::places::{self, attach};
use super::states::{Guard, Raised, check_journal, check_path, forget, is_guarded_by, lift, moved, raise};
use super::waits::{Alone, Gate, Turn, contended, in_use, out_of_date, take_alone};
use super::{helper, journal};
use crate::attachment::{Attachment, Entering, Use};
use crate::background;
use crate::database::{Db, Prepared, Serving, lock};
use crate::errors::Failure;
use crate::sqlite::base::BaseFile;
use crate::sqlite::connection::OwnConnection;

/// How many times [`open_wal`] may examine a database under the same lock. If it has deleted a log, it must
/// examine the database again before it makes another log.
const LOOKS: u32 = 4;

/// Takes a lock for SQLite (`xLock`). When SQLite has got EXCLUSIVE, it is about to change the database. So
/// this function then moves SQLite's rollback journal into the log before it returns.
pub fn lock(db: &Db, level: Level) -> Result<c_int, Failure> {
    let before = db.lock.believed();
    if before == Level::None && level == Level::Shared {
        return begin(db);
    }
    let concurrent = db.concurrent().filter(|_| level >= Level::Exclusive);
    if concurrent.as_ref().is_some_and(|concurrent| concurrent.is_reading()) {
        let message = format!(
            "locking_mode=EXCLUSIVE cannot begin on a connection to {} with concurrent=on; use concurrent=off",
            db.path.display()
        );
        // Do not return busy, because this connection's own snapshot prevents the lock, and asking its busy
        // handler would not help.
        return Err(Failure::new(ffi::LOCKED, message));
    }
    let code = lock::lock(db, level);
    if code == ffi::OK
        && let Some(concurrent) = concurrent
        && let Err(failure) = concurrent.put_home(db)
    {
        lock::refuse_exclusive(db, before);
        return Err(failure);
    }
    if code == ffi::OK
        && level >= Level::Exclusive
        && let Err(failure) = journal::raise_for_journal(db)
    {
        lock::refuse_exclusive(db, before);
        return Err(failure);
    }
    Ok(code)
}

/// What a database needs before SQLite may read it.
enum Need<'h, 'd> {
    /// Nothing more. If SQLite opens a WAL, this value says which file or log serves the WAL.
    Served(Concluded<'h, Prepared>),
    /// Nothing. The VFS attaches the database's log when SQLite looks for the rollback journal.
    Journal,
    /// Nothing yet, because SQLite first plays back the rollback journal that exists. The failure says why
    /// the open cannot continue without that.
    Playback(Failure),
    /// A new log in this place.
    NewLog(&'d LogPlacement),
    /// A checkpoint of the ordinary `-wal`.
    Absorb,
    /// A connection that may write. If a guard names a log that cannot be attached, the failure says why.
    Writer(Option<Failure>),
    /// The removal of the provisional guard of this log. The failure says why the log cannot be attached.
    Forget(LogId, Failure),
    /// The deletion of this log, which holds nothing and does not fit the database.
    PutAway(Arc<Attachment>),
    /// A new decision, because the guard has changed just now.
    Look,
}

/// Decides by the table above what the database needs. Changes nothing, but attaches a log that it finds.
fn decide<'h, 'd>(db: &'d Db, held: &'h Held<'_, BaseFile>) -> Result<Need<'h, 'd>, Failure> {
    let base = || Need::Served(held.conclude(Prepared::Base));
    // Is there a guard?
    match db.header()? {
        DatabaseHeader::Plain { page_bytes, wal: true } if guard::page_size_is_valid(page_bytes) => {
            // There is no guard. May a log serve the database, and does anything prevent a log?
            let Ok(placement) = db.placement() else { return Ok(base()) };
            check_path(db)?;
            Ok(match check_journal(db) {
                Err(hot) => Need::Playback(hot),
                _ if db.read_only => Need::Writer(None),
                _ if has_base_wal(db)? => {
                    if can_absorb(db)? {
                        Need::Absorb
                    } else {
                        base()
                    }
                }
                _ => Need::NewLog(placement),
            })
        }
        DatabaseHeader::Plain { .. } | DatabaseHeader::Empty | DatabaseHeader::NotSqlite => Ok(base()),
        DatabaseHeader::Damaged => Err(places::damaged(db)),
        // A copy has taken the file's path and names the same log. Recovery would move commits from the log
        // into this file, but the copy needs them.
        DatabaseHeader::Guarded { log_id, .. }
            if db.attached().is_none() && db.is_replaced_by_copy(log_id) =>
        {
            Err(moved(db))
        }
        DatabaseHeader::Guarded { kind: JournalKind::Rollback, .. } => Ok(Need::Journal),
        // There is a guard. Can its log be attached (which also recovers the log), and does the log fit?
        DatabaseHeader::Guarded { log_id, page_bytes, provisional, .. } => match attach(db, log_id) {
            Ok(log) if !fits(db, &log, page_bytes)? => Ok(Need::PutAway(log)),
            Ok(log) => Ok(Need::Served(held.conclude(Prepared::Log(log.enter(Entering::Wal)?)))),
            // The log's last user has just closed the log, or has replaced it by another log. SQLite's locks
            // do not prevent that here, so look at the database again.
            Err(_) if !is_guarded_by(db, log_id)? => Ok(Need::Look),
            Err(failure) if !provisional || failure.code & 0xff == ffi::BUSY => Err(failure),
            Err(failure) if db.read_only => Ok(Need::Writer(Some(failure))),
            Err(failure) => Ok(Need::Forget(log_id, failure)),
        },
    }
}

/// Returns whether an ordinary `-wal` has anything in it.
fn has_base_wal(db: &Db) -> Result<bool, Failure> {
    Ok(db.base_wal_bytes()?.is_some_and(|bytes| bytes > 0))
}

/// Returns whether stock SQLite can checkpoint the ordinary `-wal` for this connection. Stock SQLite must not
/// do so if pages end in reserved bytes, because only the application's SQLite checkpoints through the VFS
/// above this one that fills those bytes.
fn can_absorb(db: &Db) -> Result<bool, Failure> {
    Ok(!db.reserves_bytes()? && helper::may_write_base_wal(db))
}

/// Returns whether the log fits the database. It does if it is made for pages of the database's page size,
/// and is not outdated ([`is_outdated`]).
fn fits(db: &Db, log: &Attachment, page_bytes: u32) -> Result<bool, Failure> {
    let has_size = log.log().page_bytes() == page_bytes;
    Ok(has_size && !is_outdated(db, log)?)
}

/// Does what the database needs, and then takes SHARED for SQLite, which has no lock and relies on nothing
/// yet. Returns `SQLITE_BUSY` if other connections prevent this for longer than
/// [`crate::database::Db::patience`] lasts.
pub fn begin(db: &Db) -> Result<c_int, Failure> {
    let mut opening =
        Opening { db, turn: None, writer: Writer::NotAsked, reads_base: false, is_in_use: false };
    for tries in 0.. {
        match db.lock.own() {
            Ok(own) => {
                if opening.step(own, tries)? == Step::Begun {
                    db.patience.renew();
                    return Ok(ffi::OK);
                }
            }
            // Another connection may be just opening or closing the log, and will have finished in a moment.
            Err(code) if code & 0xff == ffi::BUSY && may_be_opening(db) && db.patience.pause(tries) => {}
            Err(code) => return Ok(code),
        }
    }
    Err(contended(db))
}

/// Returns whether the connection that prevents SHARED may be opening or closing the log, so that it makes
/// sense to wait. With a guard of rollback mode, SQLite also commits under EXCLUSIVE. If this connection has
/// the log attached already, the other one is not opening the log but committing. This connection then
/// reports busy at once, as stock SQLite does.
fn may_be_opening(db: &Db) -> bool {
    db.is_capable()
        && match db.header() {
            Ok(DatabaseHeader::Guarded { kind: JournalKind::Rollback, .. }) => db.attached().is_none(),
            Ok(DatabaseHeader::Guarded { .. } | DatabaseHeader::Plain { wal: true, .. }) => true,
            _ => false,
        }
}

/// The outcome of a step towards SHARED for SQLite.
#[derive(PartialEq, Eq)]
enum Step {
    /// SQLite has SHARED.
    Begun,
    /// This connection has released the lock, so it has to look at everything again.
    Again,
}

/// A second connection, which may write. It makes the log for a read-only connection, or plays a hot journal
/// back for a connection in which SQLite must not do that.
enum Writer {
    NotAsked,
    /// The connection is open until this value is dropped; `None` if it could not be opened.
    Asked {
        _open: Option<OwnConnection<'static>>,
    },
}

/// A database whose log is being opened. SQLite believes meanwhile that it has no lock.
struct Opening<'d> {
    db: &'d Db,
    /// This thread's turn among the threads of this process.
    turn: Option<Turn>,
    writer: Writer,
    /// Whether this user lacks a right that a checkpoint of an ordinary `-wal` needs. SQLite's
    /// own `-wal` then serves the database, as without this library.
    reads_base: bool,
    /// Whether another connection kept this one from taking EXCLUSIVE at the last attempt.
    is_in_use: bool,
}

impl Opening<'_> {
    /// Does what the database needs, and passes the lock on to SQLite when the database needs nothing more.
    fn step(&mut self, own: Own<'_, BaseFile>, tries: u32) -> Result<Step, Failure> {
        let db = self.db;
        if !db.is_capable() {
            return Ok(pass(own));
        }
        if db.attached().is_some() {
            journal::renew(db)?;
            if !opens_wal_next(db)? {
                return Ok(pass(own));
            }
        }
        #[cfg(feature = "controls")]
        if super::controls::leaves_log_for_later(db)? {
            return Ok(pass(own));
        }
        match decide(db, own.held())? {
            Need::Served(prepared) => {
                db.prepare(prepared.keep());
                return Ok(pass(own));
            }
            Need::Playback(_) if matches!(self.writer, Writer::NotAsked) => return Ok(self.play_back(own)),
            Need::Journal | Need::Playback(_) => return Ok(pass(own)),
            Need::Writer(refused) => return self.with_writer(own, refused),
            Need::Look => drop(own),
            Need::Forget(id, refused) => return self.forget(own, id, refused, tries),
            Need::PutAway(attachment) => {
                let mut own = own;
                put_away(db, own.held_mut(), attachment)?;
            }
            Need::Absorb if self.reads_base => {
                db.prepare(own.held().conclude(Prepared::Base).keep());
                return Ok(pass(own));
            }
            Need::Absorb => self.absorb(own)?,
            Need::NewLog(placement) => {
                if let Some(own) = self.make_log(own, placement)? {
                    return Ok(pass(own));
                }
            }
        }
        self.again(tries)
    }

    /// Waits a little before the next step. The caller has released the lock.
    fn again(&self, tries: u32) -> Result<Step, Failure> {
        if self.db.patience.pause(tries) {
            return Ok(Step::Again);
        }
        Err(if self.is_in_use { in_use(self.db) } else { contended(self.db) })
    }

    /// Takes the turn for this thread, so that no other thread of this process opens the log. Returns `own`,
    /// the lock of the database file. If another thread has the turn, this function releases `own`, because
    /// that lock would keep the other thread from EXCLUSIVE. It then waits until the other thread's turn
    /// ends, and returns `None`.
    fn with_turn<'l>(&mut self, own: Own<'l, BaseFile>) -> Result<Option<Own<'l, BaseFile>>, Failure> {
        if self.turn.is_some() {
            return Ok(Some(own));
        }
        let gate = Gate::of(self.db)?;
        self.turn = gate.enter();
        if self.turn.is_some() {
            return Ok(Some(own));
        }
        drop(own);
        let start = Instant::now();
        gate.wait(self.db.patience.left());
        self.db.patience.spend(start.elapsed());
        Ok(None)
    }

    /// Makes a log. Returns `own`, the lock of the database file, if there is a log now. Otherwise releases
    /// that lock.
    fn make_log<'l>(
        &mut self,
        own: Own<'l, BaseFile>,
        placement: &LogPlacement,
    ) -> Result<Option<Own<'l, BaseFile>>, Failure> {
        let db = self.db;
        let Some(mut own) = self.with_turn(own)? else { return Ok(None) };
        self.is_in_use = true;
        let Some(alone) = take_alone(db, own.held_mut())? else { return Ok(None) };
        self.is_in_use = false;
        let Raised::Log(attachment) = raise(db, &alone, placement)? else { return Ok(None) };
        // From here on SHARED is enough to keep the guard on, so release EXCLUSIVE.
        drop(alone);
        db.prepare(Prepared::Log(attachment.enter(Entering::Wal)?));
        Ok(Some(own))
    }

    /// Has stock SQLite checkpoint an ordinary `-wal` that a program without Duralite has left, unless a
    /// connection uses it. Stock SQLite does so in another connection, so this connection releases its lock
    /// first.
    fn absorb(&mut self, own: Own<'_, BaseFile>) -> Result<(), Failure> {
        let Some(mut own) = self.with_turn(own)? else { return Ok(()) };
        let is_unused = take_alone(self.db, own.held_mut())?.is_some();
        self.is_in_use = !is_unused;
        drop(own);
        if !is_unused {
            return Ok(());
        }
        match helper::checkpoint_base_wal(self.db) {
            // Another process has checkpointed the `-wal` already and made a log, so stock SQLite has met the
            // guard of that log.
            Err(failure) if failure.code & 0xff == ffi::NOTADB => Ok(()),
            Err(failure) if failure.code & 0xff == ffi::READONLY => {
                self.reads_base = true;
                Ok(())
            }
            absorbed => absorbed,
        }
    }

    /// Gets a log for a read-only connection, which cannot make one itself. If this user may write, a second
    /// connection makes the log, and this connection shares it. If the guard names a log that could not be
    /// attached, `refused` says why.
    fn with_writer(&mut self, own: Own<'_, BaseFile>, refused: Option<Failure>) -> Result<Step, Failure> {
        let db = self.db;
        match (&self.writer, refused) {
            (Writer::NotAsked, _) => {
                drop(own);
                let writer = db.placement().is_ok().then(|| helper::writer(db, "cannot open the log"));
                self.writer = Writer::Asked { _open: writer.flatten() };
                Ok(Step::Again)
            }
            // Other connections may use that log, so SQLite must not make an ordinary `-wal` beside it.
            (Writer::Asked { .. }, Some(refused)) => Err(refused),
            (Writer::Asked { .. }, None) => {
                db.prepare(own.held().conclude(Prepared::Base).keep());
                Ok(pass(own))
            }
        }
    }

    /// Has SQLite play a hot rollback journal back in another connection of this VFS. If SQLite played it
    /// back in this connection, SQLite would keep its lock and might then open an ordinary `-wal` under that
    /// lock. If the other connection fails, SQLite plays the journal back in this connection after all.
    fn play_back(&mut self, own: Own<'_, BaseFile>) -> Step {
        drop(own);
        self.writer =
            Writer::Asked { _open: helper::writer(self.db, "cannot roll back what a crash has left") };
        Step::Again
    }

    /// Takes off a provisional guard whose log cannot be attached.
    fn forget(
        &self,
        mut own: Own<'_, BaseFile>,
        id: LogId,
        refused: Failure,
        tries: u32,
    ) -> Result<Step, Failure> {
        let db = self.db;
        if let Some(alone) = take_alone(db, own.held_mut())? {
            forget(db, &alone, id)?;
            return Ok(Step::Again);
        }
        drop(own);
        // Another connection prevents EXCLUSIVE. If the guard is still on when no patience is left, that
        // connection uses the database with other settings. In that case report why the log cannot be
        // attached, because that says more than *busy*. If the guard is gone, that connection has taken it
        // off.
        self.again(tries).or_else(|busy| Err(if is_guarded_by(db, id)? { refused } else { busy }))
    }
}

/// Returns whether this connection has used the log for rollback journals, and SQLite is about to open the
/// WAL.
fn opens_wal_next(db: &Db) -> Result<bool, Failure> {
    match db.attached_for(Serving::Journal) {
        Some(attachment) => Ok(db.guard_kind(&attachment)? == JournalKind::Wal),
        None => Ok(false),
    }
}

fn pass(own: Own<'_, BaseFile>) -> Step {
    own.pass_to_sqlite();
    Step::Begun
}

/// Deletes a log that holds nothing and does not fit the database, so that this connection can make another
/// log. Either the old log was made for pages of another size (SQLite can change the page size in rollback
/// mode), or it is outdated ([`is_outdated`]).
fn put_away(db: &Db, held: &mut Held<'_, BaseFile>, attachment: Arc<Attachment>) -> Result<(), Failure> {
    let used = attachment.enter(Entering::Wal)?;
    drop(attachment);
    let old = used.attachment().clone();
    db.attach(used, Serving::Journal);
    let lifted = match take_alone(db, held) {
        Ok(Some(alone)) => lift_empty(db, &old, &alone),
        Ok(None) => Ok(()),
        Err(failure) => Err(failure),
    };
    drop(old);
    db.detach();
    lifted
}

fn lift_empty(db: &Db, old: &Attachment, alone: &Alone<'_>) -> Result<(), Failure> {
    if !old.take_alone(SegmentUse::Wal)? || old.holds_anything()? || !is_guarded_by(db, old.id())? {
        return Ok(());
    }
    lift(db, alone, old)
}

/// Returns whether there is a WAL. Returns `None` if only the base VFS can tell.
pub fn has_wal(db: &Db) -> Result<Option<bool>, Failure> {
    match db.prepared_log() {
        Some(true) => return Ok(Some(true)),
        // This VFS has noted that there is no log, because no guard was on. While SQLite holds its lock, no
        // guard can go on. So only the base VFS can tell.
        Some(false) => return Ok(None),
        None => {}
    }
    if let Some(attachment) = db.attached_for(Serving::Journal) {
        return db.guard_kind(&attachment).map(|kind| Some(kind == JournalKind::Wal));
    }
    Ok(match db.header()? {
        DatabaseHeader::Guarded { kind, .. } => Some(kind == JournalKind::Wal),
        _ => None,
    })
}

/// Finds what serves the WAL that SQLite opens, under the lock that SQLite holds. If the work would require
/// releasing that lock, the answer is `SQLITE_BUSY`. SQLite then begins again, and [`begin`] does the work.
pub fn open_wal(db: &Db) -> Result<Prepared, Failure> {
    #[cfg(feature = "controls")]
    if let Some(served) = super::controls::open_wal(db)? {
        return Ok(served);
    }
    let mut held = db.lock.sqlites().ok_or_else(|| out_of_date(db))?;
    // In exclusive locking mode, SQLite opens a WAL again if it could not checkpoint it. The log has stayed
    // attached because SQLite was about to delete that WAL. SQLite does not delete it now, so detach the log.
    db.detach_lingering();
    db.set_leaving_wal(false);
    // If SQLite could not leave WAL mode, it continues in that mode. The lock that this VFS has kept for the
    // change of mode would then keep all other connections out, so give that lock back.
    db.lock.end_keeping();
    match db.take_prepared() {
        Some(Prepared::Log(used)) => return serve(db, used),
        Some(Prepared::Base) => return Ok(Prepared::Base),
        None => {}
    }
    for _ in 0..LOOKS {
        match decide(db, &held)? {
            Need::Served(prepared) => {
                return match prepared.keep() {
                    Prepared::Log(used) => serve(db, used),
                    Prepared::Base => Ok(Prepared::Base),
                };
            }
            // SQLite opens a WAL only if page 1 says WAL mode, which a guard of rollback mode does not.
            Need::Journal => return Ok(Prepared::Base),
            Need::Playback(hot) => return Err(hot),
            Need::NewLog(placement) => {
                let alone = take_alone(db, &mut held)?;
                let Some(alone) = alone else { return Err(in_use(db)) };
                if let Raised::Log(attachment) = raise(db, &alone, placement)? {
                    return serve(db, attachment.enter(Entering::Wal)?);
                }
            }
            Need::PutAway(attachment) => put_away(db, &mut held, attachment)?,
            Need::Forget(id, refused) => match take_alone(db, &mut held)? {
                Some(alone) => forget(db, &alone, id)?,
                None => return Err(refused),
            },
            Need::Look => {}
            Need::Absorb | Need::Writer(_) => return Err(out_of_date(db)),
        }
    }
    Err(contended(db))
}

fn serve(db: &Db, used: Use) -> Result<Prepared, Failure> {
    background::start_if_wanted(db, used.attachment())?;
    if db.lock.believed() >= Level::Exclusive {
        // This connection must be the log's only user. Its own use of the log for journals would count as
        // another user.
        db.leave_journal();
        if !used.take_alone(SegmentUse::Wal)? {
            return Err(contended(db));
        }
    }
    Ok(Prepared::Log(used))
}

/// Returns whether an ordinary `-wal` has commits while the log has none. No such file exists when a
/// connection puts a guard on, and no connection can make such a file under a guard. So such a file exists
/// only after three events. A process lifted the guard and died before the change was durable. Stock SQLite
/// then used the database. Finally a power loss brought the guard back. The first process had retired the log
/// before it lifted the guard, so the log holds nothing that could be lost.
fn is_outdated(db: &Db, attachment: &Attachment) -> Result<bool, Failure> {
    let may_be = !db.read_only && attachment.outside().is_none();
    let has_none = may_be && (!attachment.log().was_begun() || Guard::of(db, attachment)?.is_provisional());
    Ok(has_none && has_base_wal(db)?)
}
