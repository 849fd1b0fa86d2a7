//! The logs that this process has attached. All its connections to a database share one attachment.
//!
//! An [`Attachment`] is the log as this process uses it. This module defines and makes attachments. The other
//! modules add what an attachment can do:
//!
//! | module | holds |
//! | --- | --- |
//! | [`commit`] | what a commit asks of the log, from the first write to the acknowledgement |
//! | [`shared`] | what all users of the log tell each other: the guard, syncs of the database, the wal-index |
//! | [`size`] | when the log is too large or short of room, and whose turn it is to start it over |
//! | [`usage`] | which connections use the log |
//! | [`leases`] | free pages that concurrent connections have reserved |
//! | [`conflicts`] | the pages on which transactions were overtaken |
//! | [`maintenance`] | requests to the background thread |

mod commit;
pub mod conflicts;
pub mod leases;
pub mod maintenance;
mod shared;
pub mod size;
mod usage;

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use duralite_format::LogId;
use duralite_locks::Table;
use duralite_medium::process::PerProcess;
use duralite_medium::{FileSegment, Segment, SegmentUse};
use duralite_sqlite_ffi as ffi;
use duralite_wal::engine::DurabilityWaiter;
use duralite_wal::engine::home::Home;
use duralite_wal::engine::rollback::{self, RollbackJournal};
use duralite_wal::metrics::Recorder;
use duralite_wal::placement::{
    BEGINS_AFTER, LOCKS_BYTES, LOCKS_OFFSET, OVERDUE_BEFORE, Outside, Pause, READABLE, RESTART_UNTIL,
};
use duralite_wal::shared::pins::Followers;
use duralite_wal::{DatabaseIdentity, Log, LogError};

use crate::account::{self, Accounted, Summary};
use crate::errors::{During, Failure};
use crate::settings::Settings;
use conflicts::Conflicts;
use leases::Leases;
use maintenance::Maintenance;
use size::{Bound, Room, TimedTurn};
pub use usage::Entering;
use usage::{Usage, in_use};

const _: () = assert!(duralite_locks::LAYOUT_BYTES <= LOCKS_BYTES);
const _: () = assert!(LOCKS_OFFSET + duralite_locks::OUTSIDE == READABLE);

/// The identity of an attached log: the database file, and the log's id. The id alone is not enough. A
/// snapshot or a clone of the database file, which is on another device, may name a copy of the log with the
/// same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    /// [`DatabaseIdentity::numbers`].
    file: (u64, u64, u64),
    log: LogId,
}

impl Key {
    fn of(identity: &DatabaseIdentity, log: LogId) -> Self {
        Self { file: identity.numbers(), log }
    }
}

/// The attachment of one log. A thread holds the mutex while it makes the attachment, so that only the
/// threads that want this log wait.
type Slot = Arc<Mutex<Weak<Attachment>>>;

/// The attachments of this process. If two copies of SQLite in one process load this library, they share
/// these attachments. A forked child begins with no attachments.
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

/// The rights of this process's user on a log.
enum Access {
    /// The user may read and write. A commit uses this waiter to wait until it is durable, without holding
    /// the log's mutex. `None` if the engine makes transactions durable when they are sealed.
    Full(Option<Arc<dyn DurabilityWaiter>>),
    /// The user may only read. Such a user can make nothing durable, and cannot wait for a process that makes
    /// commits durable, so there is no waiter.
    Outside(Arc<Outside>),
}

/// The age up to which a provisional guard may be lifted without a sync. A younger guard is hardly ever on the disk: the
/// kernel writes a changed page after some 30 seconds, or if memory is short, or for somebody who calls `sync`.
const BRIEF: Duration = Duration::from_secs(1);

/// A log in use. The log is detached when the last connection drops its reference.
pub struct Attachment {
    key: Key,
    log: Mutex<Log>,
    access: Access,
    segment: Arc<FileSegment>,
    /// The database's rollback journal in the log, if the engine keeps such journals.
    journal: Option<Arc<dyn RollbackJournal>>,
    /// The engine's view of the database file (its home), through which SQLite and this VFS access the file.
    /// `None` if the engine has no such view.
    home: Mutex<Option<Arc<dyn Home>>>,
    /// Set once some program has truncated the database file while the home had it mapped. From then on every
    /// commit gets this error.
    home_cut: OnceLock<String>,
    /// The counters of this process's use of the log.
    recorder: Option<Arc<Recorder>>,
    /// The locks of the wal-index.
    locks: Arc<Table>,
    /// The free pages of the database that concurrent connections of this process have leased.
    leases: Leases,
    /// The pages on which transactions of other connections overtook transactions of this process.
    conflicts: Conflicts,
    /// The thread of this process that holds WRITE; 0 if none is known.
    writer: AtomicU64,
    usage: Usage,
    bound: Bound,
    room: Room,
    /// Whether this process has looked for an archive of the database. If it has found one, it has also
    /// written the records that the archive needs.
    has_looked_for_line: AtomicBool,
    /// The time at which this process last checked whether the log was deleted, in nanoseconds of the
    /// segment's clock.
    looked_ns: AtomicU64,
    /// The time at which this process last tried to save a deleted log to the database file, in nanoseconds
    /// of the segment's clock.
    saved_ns: AtomicU64,
    maintenance: OnceLock<Arc<Maintenance>>,
    /// The time at which this process put on the provisional guard of this log; unset if it did not.
    guarded_at: OnceLock<Instant>,
    in_force: Mutex<Settings>,
    /// The value that [`Attachment::flush_interval`] returns.
    flush_interval: Option<Duration>,
}

impl Attachment {
    /// Returns the attachment of this log. Makes the attachment with `attach` if this process has none yet.
    /// If another thread is just making the attachment, this thread waits as long as `pause` allows.
    pub fn get(
        identity: &DatabaseIdentity,
        id: LogId,
        settings: &Settings,
        pause: Pause<'_>,
        attach: impl FnOnce() -> Result<Log, Failure>,
    ) -> Result<Arc<Self>, Failure> {
        let key = Key::of(identity, id);
        let slot = Arc::clone(attached().entry(key).or_default());
        let mut place = lock_slot(&slot, pause)?;
        if let Some(found) = place.upgrade() {
            drop(place);
            let conflict = settings.conflict_with(&found.in_force());
            // The background thread's own connections have this setting at 0. They do not change the log's
            // setting, because that would stop the thread.
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
        let access = match log.outside().cloned() {
            None => Access::Full(log.durability_waiter()),
            Some(_) if settings.read_durable => {
                let message =
                    "read_durable=on needs the right to write the log, and this user may only read it";
                return Err(Failure::cannot_open(message));
            }
            Some(outside) => Access::Outside(outside),
        };
        let room = Room::default();
        let (fill, is_short) = log.fill();
        room.seen(fill, is_short);
        let new = Arc::new(Self {
            key,
            access,
            journal: log.rollback_journal(),
            home: Mutex::new(log.home()),
            home_cut: OnceLock::new(),
            segment: Arc::clone(log.segment()),
            recorder: log.recorder(),
            locks: Table::join(log.segment().clone(), LOCKS_OFFSET),
            leases: Leases::default(),
            conflicts: Conflicts::default(),
            writer: AtomicU64::default(),
            usage: Usage::new(id, Arc::clone(log.segment())),
            bound: Bound::default(),
            room,
            has_looked_for_line: AtomicBool::default(),
            looked_ns: AtomicU64::default(),
            saved_ns: AtomicU64::default(),
            maintenance: OnceLock::new(),
            guarded_at: OnceLock::new(),
            flush_interval: settings.flush_interval(log.engine()),
            log: Mutex::new(log),
            in_force: Mutex::new(settings.clone()),
        });
        *place = Arc::downgrade(&new);
        Ok(new)
    }

    /// Notes that this process has put on the provisional guard of this log, not before `at`.
    pub fn set_guarded_at(&self, at: Instant) {
        self.guarded_at.get_or_init(|| at);
    }

    /// Returns whether this process put on the provisional guard less than [`BRIEF`] ago.
    pub fn was_guarded_just_now(&self) -> bool {
        self.guarded_at.get().is_some_and(|at| at.elapsed() < BRIEF)
    }

    /// Returns the log.
    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes everything sealed durable. Callers must call this before they write a page to the database file
    /// (invariant 5).
    pub fn before_home_write(&self) -> Result<(), LogError> {
        self.check_home()?;
        match self.durability_waiter() {
            Some(waiter) => {
                waiter.force()?;
                self.log().check()
            }
            None => self.log().before_home_write(),
        }
    }

    /// Returns whether the log can start over. The holder of the WRITE lock asks this. After an error the
    /// answer is `true`, because the write that starts the log over meets the same error and can report it.
    pub fn may_start_over(&self) -> bool {
        let settled = self.durability_waiter().is_none_or(|waiter| waiter.settle().unwrap_or(true));
        settled && self.log().may_start_over().unwrap_or(true)
    }

    /// Asks followers to read the log to its end, so that the log can start over. After an error the result
    /// is the same as without followers, because an attempt to start the log over meets the same error.
    pub fn ask_followers(&self) -> Followers {
        self.log().ask_followers().unwrap_or(Followers::None)
    }

    /// Returns the home: the engine's view of the database file, through which all accesses to that file go.
    /// Returns `None` if the log's engine has none. Whether a log has a home never changes.
    pub fn home(&self) -> Option<Arc<dyn Home>> {
        self.home.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the database's rollback journal in the log, or `None` if SQLite keeps rollback journals in
    /// files.
    pub fn rollback_journal(&self) -> Option<Arc<dyn RollbackJournal>> {
        self.journal.clone()
    }

    /// Returns whether the log has a rollback journal that may be hot.
    pub fn has_hot_journal(&self) -> Result<bool, Failure> {
        let hot = self.journal.as_ref().map(rollback::counts).transpose();
        hot.map(|hot| hot.unwrap_or(false)).map_err(|error| Failure::of(&error, During::Delete))
    }

    /// Returns whether the log has commits, or a rollback journal that may be hot. The caller must keep such
    /// a log. If a crash has left them there, the next reader of the database needs them.
    pub fn holds_anything(&self) -> Result<bool, Failure> {
        let pages = self.log().db_pages().map_err(|error| Failure::of(&error, During::Delete))?;
        Ok(pages > 0 || self.has_hot_journal()?)
    }

    /// For a user who may only read the log: attaches the log again if necessary, as [`Log::look_again`]
    /// does. The log may then have a new home object, so this function renews the object that [`Self::home`]
    /// returns.
    pub fn look_again(&self, pause: Pause<'_>) -> Result<bool, LogError> {
        let mut log = self.log();
        let is_live = log.look_again(pause)?;
        *self.home.lock().unwrap_or_else(PoisonError::into_inner) = log.home();
        Ok(is_live)
    }

    /// Returns the settings that the log runs with.
    pub fn in_force(&self) -> MutexGuard<'_, Settings> {
        self.in_force.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the object through which a commit waits for durability, or `None` if transactions are durable
    /// when they are sealed, or if this user may only read.
    pub fn durability_waiter(&self) -> Option<&dyn DurabilityWaiter> {
        match &self.access {
            Access::Full(waiter) => waiter.as_deref(),
            Access::Outside(_) => None,
        }
    }

    /// Returns the view of the log for a user who may only read it. Returns `None` for a user who may write.
    pub fn outside(&self) -> Option<&Outside> {
        match &self.access {
            Access::Full(_) => None,
            Access::Outside(outside) => Some(outside),
        }
    }

    /// Notes the background thread of this log.
    ///
    /// # Errors
    /// Returns `started` if the log has such a thread already.
    pub fn set_maintenance(&self, started: Arc<Maintenance>) -> Result<(), Arc<Maintenance>> {
        self.maintenance.set(started)
    }

    /// Returns the longest time between the acknowledgement of a commit and the background thread's flush of
    /// that commit (Group Synch). Returns `None` if no commit needs a flush in the background.
    pub fn flush_interval(&self) -> Option<Duration> {
        self.flush_interval
    }

    /// Returns the background thread, if there is one.
    pub fn maintenance(&self) -> Option<&Arc<Maintenance>> {
        self.maintenance.get()
    }

    /// Returns the locks of the wal-index.
    pub fn locks(&self) -> &Arc<Table> {
        &self.locks
    }

    /// Returns the free pages of the database that concurrent connections of this process have leased.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Returns the pages on which transactions of other connections overtook transactions of this process,
    /// and this process's counts of events.
    pub fn conflicts(&self) -> &Conflicts {
        &self.conflicts
    }

    /// Returns this process's attachment of a log of this file. Returns `None` if the process has no such
    /// attachment, or if one of its threads is just making it.
    pub fn here(identity: &DatabaseIdentity) -> Option<Arc<Self>> {
        let is_its = |key: &Key| key.file == identity.numbers();
        let slots: Vec<Slot> = {
            let attached = attached();
            attached.iter().filter(|(key, _)| is_its(key)).map(|(_, slot)| Arc::clone(slot)).collect()
        };
        slots.iter().find_map(|slot| slot.try_lock().ok()?.upgrade())
    }

    /// Notes that this thread has taken WRITE, or, if `has_write` is `false`, that it releases WRITE.
    pub fn set_writer(&self, has_write: bool) {
        self.writer.store(if has_write { this_thread() } else { 0 }, Ordering::Relaxed);
    }

    /// Returns whether the connection that holds WRITE took it on this thread. That connection may be on another
    /// thread by now.
    pub fn writer_is_here(&self) -> bool {
        self.writer.load(Ordering::Relaxed) == this_thread()
    }

    /// Notes that some program has truncated the database file while the log's home had it mapped. From now
    /// on commits to the WAL and checkpoints fail, with the error `why`. As with [`Self::home_failed`], the
    /// next process that attaches the log must first write all committed pages to the file again. That
    /// process maps the file at its new size.
    pub fn home_cut(&self, why: &str) {
        if self.home_cut.set(why.to_owned()).is_ok() {
            self.home_failed();
        }
    }

    fn check_home(&self) -> Result<(), LogError> {
        self.home_cut.get().map_or(Ok(()), |why| Err(LogError::Poisoned(why.clone())))
    }

    /// Returns what this process knows about the size of the log.
    pub fn bound(&self) -> &Bound {
        &self.bound
    }

    /// Returns what this process knows about the room that is left in the log.
    pub fn room(&self) -> &Room {
        &self.room
    }

    /// Returns the turn to start the log over. At most one connection among all processes has it at a time.
    pub fn restart_turn(&self) -> TimedTurn<'_> {
        TimedTurn { segment: &*self.segment, word: RESTART_UNTIL }
    }

    /// Returns the gate: a turn that a connection takes to keep concurrent connections from beginning
    /// transactions. As with [`Self::restart_turn`], at most one connection among all processes has the gate
    /// at a time.
    pub fn gate(&self) -> TimedTurn<'_> {
        TimedTurn { segment: &*self.segment, word: BEGINS_AFTER }
    }

    /// Notes that there is a concurrent connection.
    pub fn has_concurrent_from_now_on(&self) {
        let _ = self.segment.compare_exchange(OVERDUE_BEFORE, 0, 1);
    }

    /// Returns whether there has been a concurrent connection since the log was opened.
    pub fn has_had_concurrent(&self) -> bool {
        self.segment.load(OVERDUE_BEFORE) != 0
    }

    /// Asks every transaction of a concurrent connection to end if it began to write before `time_ns`, a time
    /// of [`Self::clock_ns`].
    pub fn end_writers_since(&self, time_ns: u64) {
        self.segment.store(OVERDUE_BEFORE, time_ns);
    }

    /// Returns whether a transaction that began to write at `since_ns` has been asked to end.
    pub fn is_overdue(&self, since_ns: u64) -> bool {
        since_ns < self.segment.load(OVERDUE_BEFORE)
    }

    /// Begins to use the log for a connection.
    pub fn enter(self: &Arc<Self>, entering: Entering) -> Result<Use, Failure> {
        let is_wal = entering != Entering::Journal;
        self.usage.join(is_wal)?;
        let used = Use { attachment: Arc::clone(self), is_wal };
        if entering == Entering::WalAlone && !self.take_alone(SegmentUse::Wal)? {
            return Err(in_use());
        }
        Ok(used)
    }

    /// Tries to make this connection the only one, in all processes, that uses the log for the purpose
    /// `kind`. Returns whether that succeeded. The attempt fails if another connection uses the log for that
    /// purpose. With [`SegmentUse::Wal`], connections that have used only rollback journals may keep the log
    /// attached.
    pub fn take_alone(&self, kind: SegmentUse) -> Result<bool, Failure> {
        if self.outside().is_some() { Ok(false) } else { self.usage.take_alone(kind) }
    }

    /// Lets other connections use the log again, after [`Self::take_alone`].
    pub fn share(&self) {
        self.usage.share();
    }

    pub fn id(&self) -> LogId {
        self.key.log
    }
}

/// Returns a number above 0 that identifies this thread in this process.
fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static OWN: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    OWN.try_with(|own| *own).unwrap_or(u64::MAX)
}

/// Returns what the log has done for this process.
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
        // Keep the slot if another thread is about to put the next attachment in it.
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
        self.attachment.usage.leave(self.is_wal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inv03_a_snapshot_does_not_get_the_attachment_of_its_original() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let original = DatabaseIdentity::of(file.path()).unwrap();
        let snapshot = DatabaseIdentity { device: original.device + 1, ..original.clone() };
        let renamed = DatabaseIdentity { path: "/moved.db".into(), ..original.clone() };
        let key = |identity| Key::of(identity, LogId([7; 16]));
        assert_ne!(key(&original), key(&snapshot));
        assert_eq!(key(&original), key(&renamed));
    }
}
