//! Opening the log of a database (invariants 1, 2 and 44).
//!
//! To make a log takes the database alone for a moment, and so does putting an ordinary `-wal` home that a program without
//! Duralite has left. Two connections that want the database alone have to let go of it in turns. SQLite cannot: what it has read
//! under SHARED it believes until it gives SHARED back. So all of that is done in [`begin`], when SQLite asks for SHARED
//! and believes nothing yet. When SQLite opens the WAL, under the same SHARED, [`open_wal`] finds what [`begin`] has prepared.
//!
//! [`look`] decides, and changes nothing:
//!
//! | the file's header | what it needs |
//! | --- | --- |
//! | plain, rollback mode | nothing: SQLite's own files serve it |
//! | plain, WAL mode, with a hot rollback journal | another connection, in which SQLite plays the journal back; else SQLite does in this one |
//! | plain, WAL mode, and no log can be made | nothing: SQLite's own `-wal` serves it |
//! | plain, WAL mode, read-only connection | a connection that may write, to make the log |
//! | plain, WAL mode, with an ordinary `-wal` | stock SQLite puts the `-wal` home, if nobody uses it |
//! | the same, with reserved bytes in its pages, or which this user may not write | nothing: SQLite's own `-wal` serves it |
//! | plain, WAL mode | a new log |
//! | guard of rollback mode | nothing: the log is attached when SQLite looks for the journal |
//! | guard of WAL mode, and the log can be attached | that log |
//! | the same, but the log has nothing and does not fit | the log is put away |
//! | a provisional guard without its log | the guard is forgotten; by a connection that may write |
//! | a guard without its log, or a damaged one | an error says so |
//!
//! What lapses while the lock is not held is looked at again, or ends in `SQLITE_BUSY`.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Instant;

use duralite_journal::LogDirectory;
use duralite_locks::file::{Concluded, Held, Level, Own};
use duralite_logfmt::LogId;
use duralite_logfmt::guard::{self, DatabaseHeader, JournalKind};
use duralite_medium::SegmentUse;
use duralite_sqlite_ffi as ffi;

use super::gate::{Gate, Turn};
use super::header::{Alone, check_journal, is_guarded_by, is_provisional};
use super::lifting::{forget, lift};
use super::places::{self, attach};
use super::raising::{Raised, raise};
use super::waits::{in_use, take_alone};
use super::{absorb, helper, journal};
use crate::attachment::{Attachment, Entering, Use};
use crate::background::worker;
use crate::database::{Db, Prepared, Serving, lock};
use crate::errors::Failure;
use crate::sqlite::base::BaseFile;
use crate::sqlite::connection::OwnConnection;

/// How often a database is looked at under one lock: a log is put away, then another one is made.
const LOOKS: u32 = 4;

/// `xLock`. Under EXCLUSIVE SQLite goes on to change the database: then its rollback journal is in its place.
pub fn lock(db: &Db, level: Level) -> Result<c_int, Failure> {
    let before = db.lock.believed();
    if before == Level::None && level == Level::Shared {
        return begin(db);
    }
    let code = lock::lock(db, level);
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
    /// Nothing more: this serves its WAL, if SQLite opens one.
    Served(Concluded<'h, Prepared>),
    /// Nothing: its log is attached when SQLite looks for the rollback journal.
    Journal,
    /// Nothing yet: SQLite first plays the rollback journal back that is there, for this reason not to go on without.
    Playback(Failure),
    /// A new log, made there.
    NewLog(&'d LogDirectory),
    /// That the ordinary `-wal` goes home.
    Absorb,
    /// A connection that may write. With the reason why the log that the guard names cannot be attached, where one does.
    Writer(Option<Failure>),
    /// That a provisional guard goes whose log is not what it was; with the reason why that cannot be attached.
    Forget(LogId, Failure),
    /// That a log goes which has nothing, and is not what the database needs.
    PutAway(Arc<Attachment>),
    /// Another look: the guard has changed just now.
    Look,
}

/// Finds out what the database needs (the table above). Changes nothing but the log that it attaches.
fn look<'h, 'd>(db: &'d Db, held: &'h Held<'_, BaseFile>) -> Result<Need<'h, 'd>, Failure> {
    let base = || Need::Served(held.conclude(Prepared::Base));
    Ok(match db.header()? {
        DatabaseHeader::Guarded { kind: JournalKind::Rollback, .. } => Need::Journal,
        DatabaseHeader::Guarded { log_id, page_bytes, provisional, .. } => match attach(db, log_id) {
            Ok(attachment)
                if attachment.log().page_bytes() != page_bytes || is_outdated(db, &attachment)? =>
            {
                Need::PutAway(attachment)
            }
            Ok(attachment) => Need::Served(held.conclude(Prepared::Log(attachment.enter(Entering::Wal)?))),
            // Its last user has just closed it, or another log has taken the place of this, past SQLite's locks.
            Err(_) if !is_guarded_by(db, log_id)? => Need::Look,
            Err(failure) if !provisional || failure.code & 0xff == ffi::BUSY => return Err(failure),
            Err(failure) if db.read_only => Need::Writer(Some(failure)),
            Err(failure) => Need::Forget(log_id, failure),
        },
        DatabaseHeader::Damaged => return Err(places::damaged(db)),
        DatabaseHeader::Plain { page_bytes, wal: true } if guard::page_size_is_valid(page_bytes) => {
            match (db.log_dir(), check_journal(db)) {
                (Err(_), _) => base(),
                (Ok(_), Err(hot)) => Need::Playback(hot),
                _ if db.read_only => Need::Writer(None),
                _ if db.base_wal_bytes()?.is_some_and(|bytes| bytes > 0) => {
                    // SQLite puts that home itself, through whatever VFS is above this one and fills those bytes.
                    if db.reserves_bytes()? || !absorb::may_write(db) { base() } else { Need::Absorb }
                }
                (Ok(log_dir), _) => Need::NewLog(log_dir),
            }
        }
        _ => base(),
    })
}

/// Takes SHARED for SQLite, which has no lock and relies on nothing, and sees to the database's log before.
/// `SQLITE_BUSY` where somebody is in the way for longer than [`crate::database::Db::patience`] lasts.
pub fn begin(db: &Db) -> Result<c_int, Failure> {
    let mut opening = Opening { db, turn: None, writer: None, reads_base: false };
    for tries in 0.. {
        match db.lock.own() {
            Ok(own) => {
                if opening.step(own, tries)? == Step::Begun {
                    db.patience.renew();
                    return Ok(ffi::OK);
                }
            }
            // Somebody opens or closes the log just now, and is done in a moment.
            Err(code) if code & 0xff == ffi::BUSY && may_be_opening(db) && db.patience.pause(tries) => {}
            Err(code) => return Ok(code),
        }
    }
    Err(in_use(db))
}

/// Whether whoever is in the way may be opening or closing the log. With a rollback journal EXCLUSIVE is also how SQLite
/// commits: then who has the log attached already is busy, as without one.
fn may_be_opening(db: &Db) -> bool {
    db.is_capable()
        && match db.header() {
            Ok(DatabaseHeader::Guarded { kind: JournalKind::Rollback, .. }) => db.attached().is_none(),
            Ok(DatabaseHeader::Guarded { .. } | DatabaseHeader::Plain { wal: true, .. }) => true,
            _ => false,
        }
}

/// What became of a step towards SHARED for SQLite.
#[derive(PartialEq, Eq)]
enum Step {
    /// SQLite has SHARED.
    Begun,
    /// The lock was given back. What was known is to be looked at again.
    Again,
}

/// A database whose log is being opened, while SQLite believes to have no lock.
struct Opening<'d> {
    db: &'d Db,
    /// Among the threads of this process.
    turn: Option<Turn>,
    /// The connection that may write, once one was asked for.
    writer: Option<Option<OwnConnection<'static>>>,
    /// Whether this user may not write what it takes to put an ordinary `-wal` home, and reads as without this library.
    reads_base: bool,
}

impl Opening<'_> {
    /// Does what the database needs, and passes the lock on to SQLite where that is nothing.
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
        match look(db, own.held())? {
            Need::Served(prepared) => {
                db.prepare(prepared.keep());
                return Ok(pass(own));
            }
            Need::Playback(_) if self.writer.is_none() => return Ok(self.play_back(own)),
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
            Need::NewLog(log_dir) => {
                if let Some(own) = self.make_log(own, log_dir)? {
                    return Ok(pass(own));
                }
            }
        }
        self.again(tries)
    }

    /// Nothing is held: waits a little before the next step.
    fn again(&self, tries: u32) -> Result<Step, Failure> {
        if self.db.patience.pause(tries) { Ok(Step::Again) } else { Err(in_use(self.db)) }
    }

    /// Takes the turn among the threads of this process, or gives the lock back, which is in the way of the thread that has the
    /// turn, and waits for that one.
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

    /// Makes a log; the lock again, if there is one now.
    fn make_log<'l>(
        &mut self,
        own: Own<'l, BaseFile>,
        log_dir: &LogDirectory,
    ) -> Result<Option<Own<'l, BaseFile>>, Failure> {
        let db = self.db;
        let Some(mut own) = self.with_turn(own)? else { return Ok(None) };
        let Some(alone) = take_alone(db, own.held_mut())? else {
            return Ok(None);
        };
        let Raised::Log(attachment) = raise(db, &alone, log_dir)? else { return Ok(None) };
        // From here on SHARED keeps the guard on.
        drop(alone);
        db.prepare(Prepared::Log(attachment.enter(Entering::Wal)?));
        Ok(Some(own))
    }

    /// Has stock SQLite checkpoint an ordinary `-wal` that a program without Duralite has left. Only one that nobody uses: a
    /// live one stays as it is. The checkpoint is another connection's, so this one holds nothing meanwhile.
    fn absorb(&mut self, own: Own<'_, BaseFile>) -> Result<(), Failure> {
        let Some(mut own) = self.with_turn(own)? else { return Ok(()) };
        let is_unused = take_alone(self.db, own.held_mut())?.is_some();
        drop(own);
        if !is_unused {
            return Ok(());
        }
        match absorb::checkpoint_base_wal(self.db) {
            // Another process has done it and had a log by then, whose guard stock SQLite has met.
            Err(failure) if failure.code & 0xff == ffi::NOTADB => Ok(()),
            Err(failure) if failure.code & 0xff == ffi::READONLY => {
                self.reads_base = true;
                Ok(())
            }
            absorbed => absorbed,
        }
    }

    /// For who may not write, where no log could be attached: a connection that may write makes one, if this user may, and this
    /// connection shares the log. `refused` says why one that is named could not be attached.
    fn with_writer(&mut self, own: Own<'_, BaseFile>, refused: Option<Failure>) -> Result<Step, Failure> {
        let db = self.db;
        match (&self.writer, refused) {
            (None, _) => {
                drop(own);
                let writer = db.log_dir().is_ok().then(|| helper::writer(db, "cannot open the log"));
                self.writer = Some(writer.flatten());
                Ok(Step::Again)
            }
            // Others may use that log: a WAL of the base's would be beside it.
            (Some(_), Some(refused)) => Err(refused),
            (Some(_), None) => {
                db.prepare(own.held().conclude(Prepared::Base).keep());
                Ok(pass(own))
            }
        }
    }

    /// Has SQLite play a hot rollback journal back, in another connection of this VFS: there may be a `-wal` as well, and once SQLite has played
    /// back in this one it opens that under the same lock. Where that connection cannot, SQLite here does what stock SQLite does.
    fn play_back(&mut self, own: Own<'_, BaseFile>) -> Step {
        drop(own);
        self.writer = Some(helper::writer(self.db, "cannot roll back what a crash has left"));
        Step::Again
    }

    /// Takes a provisional guard off whose log is not what it was.
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
        // Somebody uses it with other settings, or is about to do the same.
        self.again(tries).or_else(|in_use| Err(if is_guarded_by(db, id)? { refused } else { in_use }))
    }
}

/// Whether SQLite is about to open the WAL, of a database whose log has kept rollback journals for this connection until now.
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

/// Takes a log away that has nothing, and is not what the database needs: it was made for pages of another size (with a rollback
/// journal SQLite can change that size, which a WAL depends on), or [`is_outdated`]. Another log takes its place.
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

/// Whether there is a WAL; `None` where the base knows.
pub fn has_wal(db: &Db) -> Result<Option<bool>, Failure> {
    match db.prepared_log() {
        Some(true) => return Ok(Some(true)),
        // No guard is on, nor goes on under SQLite's lock.
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

/// Finds what serves the WAL that SQLite opens, under the lock that SQLite holds. Whatever would need that lock given back is
/// `SQLITE_BUSY`: SQLite begins anew, and [`begin`] sees to it.
pub fn open_wal(db: &Db) -> Result<Prepared, Failure> {
    #[cfg(feature = "controls")]
    if let Some(served) = super::controls::open_wal(db)? {
        return Ok(served);
    }
    let mut held = db.lock.sqlites().ok_or_else(|| in_use(db))?;
    // In exclusive locking mode SQLite opens a WAL again that it could not checkpoint: the log that was kept for its deletion.
    db.detach_lingering();
    db.set_leaving_wal(false);
    // It could not leave WAL mode, and goes on in it: what was kept for that would keep everybody out.
    db.lock.end_keeping();
    match db.take_prepared() {
        Some(Prepared::Log(used)) => return serve(db, used),
        Some(Prepared::Base) => return Ok(Prepared::Base),
        None => {}
    }
    for _ in 0..LOOKS {
        match look(db, &held)? {
            Need::Served(prepared) => {
                return match prepared.keep() {
                    Prepared::Log(used) => serve(db, used),
                    Prepared::Base => Ok(Prepared::Base),
                };
            }
            // SQLite opens a WAL where page 1 asks for one.
            Need::Journal => return Ok(Prepared::Base),
            Need::Playback(hot) => return Err(hot),
            Need::NewLog(log_dir) => {
                let alone = take_alone(db, &mut held)?;
                let Some(alone) = alone else { return Err(in_use(db)) };
                if let Raised::Log(attachment) = raise(db, &alone, log_dir)? {
                    return serve(db, attachment.enter(Entering::Wal)?);
                }
            }
            Need::PutAway(attachment) => put_away(db, &mut held, attachment)?,
            Need::Forget(id, refused) => match take_alone(db, &mut held)? {
                Some(alone) => forget(db, &alone, id)?,
                None => return Err(refused),
            },
            Need::Look => {}
            Need::Absorb | Need::Writer(_) => return Err(in_use(db)),
        }
    }
    Err(in_use(db))
}

fn serve(db: &Db, used: Use) -> Result<Prepared, Failure> {
    worker::start_if_wanted(db, used.attachment())?;
    if db.lock.believed() >= Level::Exclusive {
        // It would be in its own way.
        db.leave_journal();
        if !used.take_alone(SegmentUse::Wal)? {
            return Err(in_use(db));
        }
    }
    Ok(Prepared::Log(used))
}

/// Whether commits are in an ordinary `-wal` while the log has none. There is no such file when a guard is put on, nor can there be
/// one under it: the guard was lifted by a process that died before that was durable, stock SQLite has used the database, and
/// a power loss has brought the guard back. The log was retired before.
fn is_outdated(db: &Db, attachment: &Attachment) -> Result<bool, Failure> {
    let may_be = !db.read_only && attachment.outside().is_none();
    let has_none = may_be && (!attachment.log().was_begun() || is_provisional(db, attachment)?);
    Ok(has_none && db.base_wal_bytes()?.is_some_and(|bytes| bytes > 0))
}
