//! The logs that this process has attached. All its connections to a database share one attachment.

pub mod bound;
mod found;
mod home_state;
mod index_header;
mod looks;
pub mod maintenance;
mod metrics;
pub mod room;
mod turn;

use std::collections::HashMap;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::time::Duration;

use duralite_format::LogId;
use duralite_format::guard::JournalKind;
use duralite_locks::Table;
use duralite_medium::process::PerProcess;
use duralite_medium::{FileSegment, MediumError, Segment as _, SegmentUse};
use duralite_sqlite_ffi as ffi;
use duralite_wal::engine::home::Home;
use duralite_wal::engine::rollback::{self, RollbackJournal};
use duralite_wal::engine::{DurabilityWaiter, Ticket};
use duralite_wal::metrics::Recorder;
use duralite_wal::placement::{GUARD_KIND, LOCKS_BYTES, LOCKS_OFFSET, Outside, Pause, READABLE};
use duralite_wal::{DatabaseIdentity, Log, LogError};

use crate::account::{self, Accounted, Summary};
use crate::errors::{During, Failure};
use crate::settings::Settings;
use bound::Bound;
use looks::Looks;
use maintenance::Maintenance;
use room::Room;
use turn::RestartTurn;

const _: () = assert!(duralite_locks::LAYOUT_BYTES <= LOCKS_BYTES);
const _: () = assert!(LOCKS_OFFSET + duralite_locks::OUTSIDE == READABLE);

/// Values of the word that names the guard.
const GUARD_WAL: u64 = 1;
const GUARD_ROLLBACK: u64 = 2;
/// Another log takes the place of this one. Its users look at the database's header before they begin
/// anything.
const REPLACED: u64 = 3;

/// Tells one attached log from another: the database file, and the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    inode: u64,
    birth_ns: u64,
    log: LogId,
}

/// The attachment of one log, or the place where one is being made. A thread that wants the same attachment
/// meanwhile waits here; no other thread does.
type Slot = Arc<Mutex<Weak<Attachment>>>;

/// The attachments belong to no single SQLite of the process. A child attaches anew.
static ATTACHED: PerProcess<Mutex<HashMap<Key, Slot>>> = PerProcess::new();

fn attached() -> MutexGuard<'static, HashMap<Key, Slot>> {
    ATTACHED.get().lock().unwrap_or_else(PoisonError::into_inner)
}

fn lock_slot<'a>(slot: &'a Slot, pause: Pause<'_>) -> Result<MutexGuard<'a, Weak<Attachment>>, Failure> {
    for tries in 0.. {
        match slot.try_lock() {
            Ok(place) => return Ok(place),
            Err(TryLockError::Poisoned(place)) => return Ok(place.into_inner()),
            Err(TryLockError::WouldBlock) if pause(tries) => {}
            Err(TryLockError::WouldBlock) => break,
        }
    }
    Err(Failure::new(ffi::BUSY, "another thread is opening the log; try again"))
}

/// A log in use. It is detached when the last connection lets go of it.
pub struct Attachment {
    key: Key,
    log: Mutex<Log>,
    /// Makes sealed transactions durable. A commit waits for it without the lock of the log.
    committer: Option<Arc<dyn DurabilityWaiter>>,
    segment: Arc<FileSegment>,
    /// What keeps the database's rollback journals, if the engine does.
    journal: Option<Arc<dyn RollbackJournal>>,
    /// What stands before the database file, if anything does.
    home: Mutex<Option<Arc<dyn Home>>>,
    /// Why the content of the home has lost its worth.
    home_cut: OnceLock<String>,
    /// Where this process counts its use of the log.
    recorder: Option<Arc<Recorder>>,
    /// Set for a user who may only read the log.
    outside: Option<Arc<Outside>>,
    /// The locks of the wal-index.
    locks: Arc<Table>,
    usage: Mutex<Usage>,
    bound: Bound,
    room: Room,
    looks: Looks,
    maintenance: OnceLock<Arc<Maintenance>>,
    in_force: Mutex<Settings>,
    /// The longest time for which an acknowledged commit may be undurable, if it may be at all.
    flush_interval: Option<Duration>,
}

/// The connections of this process that use a log in one way.
#[derive(Default, Clone, Copy)]
struct Users {
    count: u32,
    /// Whether the only one of them is the only one of all processes.
    alone: bool,
}

/// The connections of this process that use a log at all, and those that have its WAL open.
#[derive(Default)]
struct Usage {
    any: Users,
    wal: Users,
}

impl Usage {
    fn of(&mut self, kind: SegmentUse) -> &mut Users {
        match kind {
            SegmentUse::Any => &mut self.any,
            SegmentUse::Wal => &mut self.wal,
        }
    }
}

/// What a connection begins to use a log for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entering {
    /// For rollback journals. An idle connection of this kind is in nobody's way.
    Journal,
    /// For the WAL, beside other connections.
    Wal,
    /// For the WAL, which no other connection has open.
    WalAlone,
}

impl Attachment {
    /// The attachment of this log, made by `attach` if this process has none yet. If another thread is just
    /// making it, this one waits as long as `pause` allows.
    pub fn get(
        identity: &DatabaseIdentity,
        id: LogId,
        settings: &Settings,
        pause: Pause<'_>,
        attach: impl FnOnce() -> Result<Log, Failure>,
    ) -> Result<Arc<Self>, Failure> {
        let key = Key { inode: identity.inode, birth_ns: identity.birth_ns, log: id };
        let slot = Arc::clone(attached().entry(key).or_default());
        let mut place = lock_slot(&slot, pause)?;
        if let Some(found) = place.upgrade() {
            drop(place);
            let conflict = settings.conflict_with(&found.in_force());
            // The background thread has connections too, and those do not ask for a thread.
            if conflict.is_none() && settings.background_checkpoint > 0 {
                found.in_force().background_checkpoint = settings.background_checkpoint;
            }
            if settings.size_limit.is_some() {
                found.log().limit_size(settings.size_limit);
            }
            return conflict.map_or(Ok(found), |message| Err(Failure::cannot_open(message)));
        }
        let mut log = attach()?;
        log.limit_size(settings.size_limit);
        let outside = log.outside().cloned();
        if outside.is_some() && settings.read_durable {
            let message = "read_durable=on needs the right to write the log, and this user may only read it";
            return Err(Failure::cannot_open(message));
        }
        let room = Room::default();
        let (fill, is_short) = log.fill();
        room.seen(fill, is_short);
        let new = Arc::new(Self {
            key,
            // A user who may only read can make nothing durable, and cannot wait for a process that does.
            committer: log.durability_waiter().filter(|_| outside.is_none()),
            outside,
            journal: log.rollback_journal(),
            home: Mutex::new(log.home()),
            home_cut: OnceLock::new(),
            segment: Arc::clone(log.segment()),
            recorder: log.recorder(),
            locks: Table::join(log.segment().clone(), LOCKS_OFFSET),
            usage: Mutex::default(),
            bound: Bound::default(),
            room,
            looks: Looks::default(),
            maintenance: OnceLock::new(),
            flush_interval: settings.flush_interval(log.engine()),
            log: Mutex::new(log),
            in_force: Mutex::new(settings.clone()),
        });
        *place = Arc::downgrade(&new);
        Ok(new)
    }

    /// The log.
    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log, for a write of `bytes` bytes by the holder of the WRITE lock. If such a write has to wait for
    /// anything, it waits here, where it keeps no reader waiting.
    pub fn log_for_write(&self, bytes: usize) -> Result<MutexGuard<'_, Log>, LogError> {
        self.check_home()?;
        self.check_found()?;
        let Some(committer) = self.durability_waiter() else { return Ok(self.log()) };
        committer.make_room()?;
        let log = self.log();
        if !log.outgrows(bytes) {
            return Ok(log);
        }
        drop(log);
        committer.wait_all()?;
        Ok(self.log())
    }

    /// Must be called before a page is written to the database file (invariant 5).
    pub fn before_home_write(&self) -> Result<(), LogError> {
        self.check_home()?;
        match self.durability_waiter() {
            Some(committer) => {
                committer.force()?;
                self.log().check()
            }
            None => self.log().before_home_write(),
        }
    }

    /// Whether the log can start over. Asked by the holder of the WRITE lock. An error has poisoned the log,
    /// and comes back from the write that starts it over.
    pub fn may_start_over(&self) -> bool {
        let settled = self.durability_waiter().is_none_or(|committer| committer.settle().unwrap_or(true));
        settled && self.log().may_start_over().unwrap_or(true)
    }

    /// What stands before the database file; `None` where nothing does. Whether there is anything never
    /// changes.
    pub fn home(&self) -> Option<Arc<dyn Home>> {
        self.home.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What keeps the database's rollback journals; `None` where SQLite keeps them in files.
    pub fn rollback_journal(&self) -> Option<Arc<dyn RollbackJournal>> {
        self.journal.clone()
    }

    /// Whether the log has a rollback journal that may be hot.
    pub fn has_hot_journal(&self) -> Result<bool, Failure> {
        let hot = self.journal.as_ref().map(rollback::counts).transpose();
        hot.map(|hot| hot.unwrap_or(false)).map_err(|error| Failure::of(&error, During::Delete))
    }

    /// Whether the log has such a journal, or commits. What a crash has left belongs to the next reader of
    /// the database.
    pub fn holds_anything(&self) -> Result<bool, Failure> {
        let pages = self.log().db_pages().map_err(|error| Failure::of(&error, During::Delete))?;
        Ok(pages > 0 || self.has_hot_journal()?)
    }

    /// The guard in the database's header, as it was last put there. `None` where the header has to be looked
    /// at.
    pub fn guard_kind(&self) -> Option<JournalKind> {
        match self.segment.load(GUARD_KIND) {
            GUARD_WAL => Some(JournalKind::Wal),
            GUARD_ROLLBACK => Some(JournalKind::Rollback),
            _ => None,
        }
    }

    /// Notes which guard is in the header, or that it is about to change. Called under EXCLUSIVE.
    pub fn set_guard_kind(&self, kind: Option<JournalKind>) {
        let word = match kind {
            None => 0,
            Some(JournalKind::Wal) => GUARD_WAL,
            Some(JournalKind::Rollback) => GUARD_ROLLBACK,
        };
        self.segment.store(GUARD_KIND, word);
    }

    /// Notes that another log is about to take the place of this one. Called under EXCLUSIVE, while this log
    /// holds nothing that counts.
    pub fn set_replaced(&self) {
        self.segment.store(GUARD_KIND, REPLACED);
    }

    /// Whether another log may have taken this one's place. A connection that has this one attached and
    /// begins anything then looks whether the database still names it.
    #[inline]
    pub fn may_be_replaced(&self) -> bool {
        self.segment.load(GUARD_KIND) == REPLACED
    }

    /// As [`Log::look_again`], which may bring another home.
    pub fn look_again(&self, pause: Pause<'_>) -> Result<bool, LogError> {
        let mut log = self.log();
        let is_live = log.look_again(pause)?;
        *self.home.lock().unwrap_or_else(PoisonError::into_inner) = log.home();
        Ok(is_live)
    }

    /// The settings that the log runs with.
    pub fn in_force(&self) -> MutexGuard<'_, Settings> {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What makes sealed transactions durable.
    pub fn durability_waiter(&self) -> Option<&dyn DurabilityWaiter> {
        self.committer.as_deref()
    }

    /// How a user who may only read the log has it; `None` for all others.
    pub fn outside(&self) -> Option<&Outside> {
        self.outside.as_deref()
    }

    /// Notes the background thread of this log.
    ///
    /// # Errors
    /// Returns `started` where the log has such a thread already.
    pub fn set_maintenance(&self, started: Arc<Maintenance>) -> Result<(), Arc<Maintenance>> {
        self.maintenance.set(started)
    }

    /// The longest time for which an acknowledged commit is undurable; `None` where every commit is durable.
    pub fn flush_interval(&self) -> Option<Duration> {
        self.flush_interval
    }

    /// The background thread, if there is one.
    pub fn maintenance(&self) -> Option<&Arc<Maintenance>> {
        self.maintenance.get()
    }

    /// Tells the background thread that the log has `frames` frames, and whether a commit may have been
    /// acknowledged that is not durable yet.
    pub fn committed(&self, frames: u32, undurable: bool) {
        self.bound.committed(frames);
        let Some(maintenance) = self.maintenance.get() else { return };
        let limit = self.in_force().background_checkpoint;
        if limit > 0 && frames >= limit {
            maintenance.checkpoint();
        }
        if undurable && self.flush_interval.is_some() {
            maintenance.flush();
        }
    }

    /// The locks of the wal-index.
    pub fn locks(&self) -> &Arc<Table> {
        &self.locks
    }

    /// A region of the wal-index. It belongs to the log, so index and log cannot part, whatever the
    /// database's paths are (invariant 15).
    pub fn index_region(&self, number: u64, extend: bool) -> Result<Option<NonNull<u8>>, MediumError> {
        self.segment.index_region(number, extend)
    }

    /// Waits until a sealed transaction is as durable as the log's `durability` makes it.
    pub fn wait(&self, ticket: Ticket) -> Result<(), LogError> {
        self.durability_waiter().map_or(Ok(()), |committer| committer.wait(ticket))
    }

    /// Notes that the file was truncated under the home that has it mapped. Everything committed then has to
    /// be written anew, into a mapping of the present file, once the log has been attached again.
    pub fn home_cut(&self, why: &str) {
        if self.home_cut.set(why.to_owned()).is_ok() {
            self.home_failed();
        }
    }

    fn check_home(&self) -> Result<(), LogError> {
        self.home_cut.get().map_or(Ok(()), |why| Err(LogError::Poisoned(why.clone())))
    }

    /// What this process knows of the log's size.
    pub fn bound(&self) -> &Bound {
        &self.bound
    }

    /// What this process knows of the room that is left in the log.
    pub fn room(&self) -> &Room {
        &self.room
    }

    /// Which connection has the turn to start the log over.
    pub fn restart_turn(&self) -> RestartTurn<'_> {
        RestartTurn(&*self.segment)
    }

    /// A clock that is the same for all users of the log.
    pub fn clock_ns(&self) -> u64 {
        self.segment.clock_ns()
    }

    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to use the log for a connection. SQLite's locks of the database belong to a process and go by
    /// its own bookkeeping. A child inherits that bookkeeping, and two copies of SQLite do not share it. This
    /// account goes by the log.
    pub fn enter(self: &Arc<Self>, entering: Entering) -> Result<Use, Failure> {
        let is_wal = entering != Entering::Journal;
        {
            let mut usage = self.usage();
            self.add_user(&mut usage, SegmentUse::Any)?;
            if is_wal && let Err(failure) = self.add_user(&mut usage, SegmentUse::Wal) {
                usage.any.count -= 1;
                return Err(failure);
            }
        }
        let used = Use { attachment: Arc::clone(self), is_wal };
        if entering == Entering::WalAlone && !self.take_alone(SegmentUse::Wal)? {
            return Err(in_use());
        }
        Ok(used)
    }

    fn add_user(&self, usage: &mut Usage, kind: SegmentUse) -> Result<(), Failure> {
        let users = usage.of(kind);
        if users.alone || users.count == 0 && !self.ask(self.segment.share_use(kind))? {
            return Err(in_use());
        }
        users.count += 1;
        Ok(())
    }

    /// Makes the only connection of this process that uses the log in this way the only one of all processes.
    /// Returns whether it is. With [`SegmentUse::Wal`] other connections may still have the log attached that
    /// have had rollback journals in it.
    pub fn take_alone(&self, kind: SegmentUse) -> Result<bool, Failure> {
        if self.outside.is_some() {
            return Ok(false);
        }
        let mut usage = self.usage();
        let users = usage.of(kind);
        if !users.alone {
            users.alone = users.count == 1 && self.ask(self.segment.take_use(kind))?;
        }
        Ok(users.alone)
    }

    /// Lets other connections in again.
    pub fn share(&self) {
        let mut usage = self.usage();
        for kind in [SegmentUse::Any, SegmentUse::Wal] {
            if std::mem::take(&mut usage.of(kind).alone) {
                // This cannot fail: a lock that is held only gets weaker.
                let _ = self.segment.share_use(kind);
            }
        }
    }

    fn ask(&self, answer: Result<bool, MediumError>) -> Result<bool, Failure> {
        answer.map_err(|error| {
            Failure::new(
                ffi::IOERR_LOCK,
                format!("cannot lock the shared memory of log {}: {error}", self.key.log),
            )
        })
    }

    /// Makes durable what Group Synch has acknowledged. Until then that is in memory that goes with the last
    /// process.
    pub fn flush_group(&self) {
        if self.flush_interval.is_some()
            && let Some(committer) = self.durability_waiter()
        {
            // An error has poisoned the log, and the next commit reports it.
            let _ = committer.wait_all();
        }
    }

    pub fn id(&self) -> LogId {
        self.key.log
    }
}

fn in_use() -> Failure {
    Failure::new(ffi::BUSY, "another connection uses the database exclusively, or is closing it")
}

/// The counts of this process's use of the log.
fn summary_of(log: &Log) -> Summary {
    let commits = log.metrics().into_iter().find(|(name, _)| *name == "commits");
    let commits = commits.and_then(|(_, value)| value.parse().ok()).unwrap_or_default();
    Summary { engine: log.engine().name, guarantee: log.guarantee().as_str(), commits }
}

impl Accounted for Attachment {
    fn summary(&self) -> Option<Summary> {
        self.log.try_lock().ok().map(|log| summary_of(&log))
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if account::is_on() {
            account::ended(self.key.log, summary_of(&self.log()));
        }
        if let Some(maintenance) = self.maintenance.get() {
            maintenance.stop();
        }
        let mut attached = attached();
        // The slot stays if another thread is about to put the next attachment there.
        let unused = |slot: &Slot| {
            Arc::strong_count(slot) == 1 && slot.try_lock().is_ok_and(|place| place.strong_count() == 0)
        };
        if attached.get(&self.key).is_some_and(unused) {
            attached.remove(&self.key);
        }
    }
}

/// A connection's use of a log.
pub struct Use {
    attachment: Arc<Attachment>,
    is_wal: bool,
}

impl Use {
    pub fn attachment(&self) -> &Arc<Attachment> {
        &self.attachment
    }
}

impl Deref for Use {
    type Target = Attachment;

    fn deref(&self) -> &Attachment {
        &self.attachment
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.attachment.share();
        let mut usage = self.attachment.usage();
        usage.any.count -= 1;
        if self.is_wal {
            usage.wal.count -= 1;
            if usage.wal.count == 0 {
                self.attachment.segment.end_use(SegmentUse::Wal);
            }
        }
    }
}
