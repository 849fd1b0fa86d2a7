//! One open main database: which log it uses, in which state, and what it commits there.
//!
//! A connection has no log, or it has one attached in one of three states ([`State`]):
//!
//! | state | SQLite | begins with | ends with |
//! | --- | --- | --- | --- |
//! | WAL | has the WAL open | [`Db::attach`] | [`Db::wal_closed`] |
//! | lingering | has closed the WAL under EXCLUSIVE, and is about to delete it | [`Db::wal_closed`], [`Db::attach`] | [`Db::detach`] |
//! | journal | has its rollback journals in the log, or has looked for one | [`Db::attach`] | [`Db::leave_journal`], [`Db::end_outside`], [`Db::detach`] |
//!
//! Only [`Db::change_state`] changes the state. The connection also keeps, as bits, four facts that every
//! call of SQLite needs. A call can read these bits without the mutex of the state. A user who may only read
//! the log ([`Attachment::outside`]) attaches the log for the WAL or for journals. For such a user
//! the log never lingers, because the VFS refuses EXCLUSIVE to the user as long as the database has a log.

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use duralite_format::LogId;
use duralite_locks::file::{FileLock, Level};
use duralite_medium::process::ProcessId;
use duralite_wal::engine::home::Home;
use duralite_wal::log::Sealed;
use duralite_wal::metrics::Counter;
use duralite_wal::{DatabaseIdentity, ErrorKind, LogError, LogPlacement};

use super::concurrent::{Concurrent, Host};
use super::file::{Mappable, OpenedFile, names_log};
use super::journal::{Journal, begins_journal};
use super::super_journal;
use super::waiting::Patience;
use super::wal_index::Index;
use crate::account;
use crate::attachment::maintenance::{HoldOff, Maintenance};
use crate::attachment::{Attachment, Use};
use crate::errors::{During, Failure};
use crate::settings::{self, Settings};
use crate::sqlite::base::{BaseFile, PagerName};
use crate::sqlite::{Sqlite, connection};

/// An open main database: the base VFS's file, and the VFS's state for it.
pub struct Db {
    pub sqlite: &'static Sqlite,
    pub base: BaseFile,
    pub path: PathBuf,
    /// SQLite's own strings, which stay alive until the file is closed.
    pub names: Names,
    pub read_only: bool,
    opened: Opened,
    /// The file that the base VFS has opened.
    file: OpenedFile,
    /// The lock of the database file (invariant 44).
    pub lock: FileLock<BaseFile>,
    mode: Mode,
    pub(super) index: Index,
    service: Service,
    pub(crate) journal: Journal,
    pub(super) commit: Commit,
    pub(crate) patience: Patience,
    /// The SQLite connection.
    pub(crate) host: Host,
}

/// The process that opened the database, and the settings for the database.
struct Opened {
    /// The process that opened the database. In a child of that process this connection fails, releases
    /// nothing and writes nothing (invariant 14).
    process: ProcessId,
    /// Whether one of the VFS's own connections opened the database.
    is_helper: bool,
    /// Whether plain SQLite must not serve this database (`strict=on`).
    is_strict: bool,
    settings: Mutex<Settings>,
    /// The place of a new log, determined at the first use.
    placement: OnceLock<Result<LogPlacement, String>>,
}

/// What this connection knows about SQLite's journal mode and about the guard.
#[derive(Default)]
struct Mode {
    /// Whether SQLite has deleted the WAL, and has done nothing since.
    leaving_wal: AtomicBool,
    /// Whether SQLite has left WAL mode and has not checked its cache since. [`Db::show_change`] answers that
    /// check, which is a read of the change counter. In exclusive locking mode that read is the first thing
    /// that SQLite does after it has left WAL mode.
    doubts_cache: AtomicBool,
    /// Whether this connection has seen a guard which says that the rollback journal is in a log. That log
    /// may belong to another engine than the one that the settings name. So the settings do not tell whether
    /// this connection has to look for such a guard.
    saw_rollback_guard: AtomicBool,
    /// Whether a sync has failed, so that it is not known whether the guard is on disk.
    header_in_doubt: AtomicBool,
    /// Whether this connection has lifted a guard without a sync, and has opened no rollback journal since.
    owes_sync: AtomicBool,
}

/// The log that serves a database, and how this connection uses it.
#[derive(Default)]
struct Service {
    /// The file or log that will serve the WAL when SQLite opens it. This VFS determined it when SQLite took
    /// SHARED.
    prepared: Mutex<Option<Prepared>>,
    state: Mutex<State>,
    /// The result of [`State::at_a_glance`] for `state`.
    at_a_glance: AtomicU8,
    /// A value that keeps background checkpoints from beginning while this connection holds EXCLUSIVE or asks
    /// for it.
    hold_off: Mutex<Option<HoldOff>>,
    past: Mutex<Past>,
}

/// The facts about the logs of a database that this VFS needs when the database is closed.
#[derive(Default)]
enum Past {
    #[default]
    Unserved,
    Served,
    /// Other connections used the log when this connection was refused EXCLUSIVE, so this connection was not
    /// the last one to close. The path is that of the log's shared memory.
    Refused(PathBuf),
}

/// The state of a connection's commit to its log.
#[derive(Default)]
pub(super) struct Commit {
    pub(super) clock: CommitClock,
    /// The transaction that this connection has sealed and that is not acknowledged yet.
    sealed: Mutex<Option<Sealed>>,
    /// Whether a connection has attached this database (`ATTACH`) to a main database of another VFS, or may
    /// have. That VFS opens the super-journals, and this VFS does not see them.
    has_main_elsewhere: AtomicBool,
    /// Whether this connection has written to the database file in a transaction that no log serves, and has
    /// not committed that transaction yet.
    has_written_plain: AtomicBool,
}

/// The names by which SQLite's pager opens the files beside a database.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    pub journal: PagerName,
    pub wal: PagerName,
}

/// The file or log that serves a database's WAL.
pub enum Prepared {
    /// The base VFS's own `-wal` file serves the WAL, because the database has no log, and may get none.
    Base,
    /// A log.
    Log(Use),
}

/// The purpose of an attached log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// The WAL, which is open.
    Wal,
    /// The WAL, which is closed already. SQLite is about to delete it.
    Lingering,
    /// Rollback journals.
    Journal,
}

/// An attached log.
struct Attached {
    used: Use,
    /// Whether SQLite accesses the database file through the engine's home. That never changes for an
    /// attached log.
    has_home: bool,
}

/// The log that a connection has attached, and its purpose.
#[derive(Default)]
enum State {
    #[default]
    Without,
    /// The WAL is open.
    Wal(Attached),
    /// The WAL is closed. SQLite holds EXCLUSIVE and will delete the WAL next. That deletion needs the log.
    Lingering {
        log: Attached,
        /// Whether guard and log stay if SQLite's next call closes the database. This is `true` only after
        /// SQLite has deleted the WAL.
        is_kept: bool,
    },
    /// The log serves rollback journals until the database is closed.
    Journal(Attached),
}

/// [`State::at_a_glance`]: the WAL is open and served by a log.
const WAL_IS_OPEN: u8 = 1;
/// The attached log has a home.
const HAS_HOME: u8 = 2;
/// This user may only read the log.
const IS_OUTSIDE: u8 = 4;
/// Guard and log stay if SQLite closes the database next.
const IS_KEPT: u8 = 8;

impl State {
    fn attached(&self) -> Option<&Attached> {
        match self {
            Self::Without => None,
            Self::Wal(log) | Self::Lingering { log, .. } | Self::Journal(log) => Some(log),
        }
    }

    fn attachment(&self) -> Option<&Arc<Attachment>> {
        self.attached().map(|log| log.used.attachment())
    }

    fn serving(&self) -> Option<Serving> {
        match self {
            Self::Without => None,
            Self::Wal(_) => Some(Serving::Wal),
            Self::Lingering { .. } => Some(Serving::Lingering),
            Self::Journal(_) => Some(Serving::Journal),
        }
    }

    /// Returns, as bits, the facts that callbacks need at each call.
    fn at_a_glance(&self) -> u8 {
        let Some(log) = self.attached() else { return 0 };
        let of_log = if log.has_home { HAS_HOME } else { 0 }
            | if log.used.outside().is_some() { IS_OUTSIDE } else { 0 };
        match self {
            Self::Wal(_) => of_log | WAL_IS_OPEN,
            Self::Lingering { is_kept: true, .. } => of_log | IS_KEPT,
            _ => of_log,
        }
    }

    /// Detaches the log while the background thread does not use it. On return this connection has released
    /// the log, so the next connection that opens the database does not find the log in use.
    fn let_go(self) {
        let Some(log) = self.attached() else { return };
        let _turn = log.used.maintenance().and_then(Maintenance::turn);
        drop(self);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Db {
    pub fn new(
        sqlite: &'static Sqlite,
        base: BaseFile,
        path: PathBuf,
        names: Names,
        read_only: bool,
        settings: Settings,
    ) -> Self {
        Self {
            sqlite,
            base,
            file: OpenedFile::of(base, &path),
            path,
            names,
            read_only,
            opened: Opened {
                process: ProcessId::current(),
                is_helper: connection::is_opening(),
                is_strict: settings.strict,
                settings: Mutex::new(settings),
                placement: OnceLock::new(),
            },
            lock: FileLock::new(base),
            mode: Mode::default(),
            index: Index::default(),
            service: Service::default(),
            journal: Journal::default(),
            commit: Commit::default(),
            patience: Patience::default(),
            host: Host::default(),
        }
    }

    /// Fails with `code` in a child of the process that opened the database.
    #[inline]
    pub fn check_process(&self, code: c_int) -> Result<(), c_int> {
        if self.is_own() { Ok(()) } else { Err(self.refuse_child(code)) }
    }

    /// Returns whether this process opened the database.
    #[inline]
    pub fn is_own(&self) -> bool {
        self.opened.process.is_current()
    }

    #[cold]
    fn refuse_child(&self, code: c_int) -> c_int {
        let message = format!(
            "this connection to {} was opened before a fork, by the parent of this process: open the database \
             again in the child",
            self.path.display()
        );
        self.sqlite.fail(&Failure::new(code, message))
    }

    /// Returns whether one of the VFS's own connections opened the database.
    pub fn is_helper(&self) -> bool {
        self.opened.is_helper
    }

    /// Returns whether plain SQLite must not serve this database (`strict=on`).
    pub fn is_strict(&self) -> bool {
        self.opened.is_strict
    }

    pub fn settings(&self) -> MutexGuard<'_, Settings> {
        locked(&self.opened.settings)
    }

    /// Returns where a new log of this database goes, or a message that says why there can be none.
    pub fn placement(&self) -> Result<&LogPlacement, &str> {
        let found = self.opened.placement.get_or_init(|| self.settings().placement(&self.path));
        found.as_ref().map_err(String::as_str)
    }

    /// Returns the identity by which a log recognises this file.
    pub fn identity(&self) -> Result<DatabaseIdentity, Failure> {
        self.file.identity(&self.path)
    }

    /// Returns whether the file has no name any more, and only open descriptors lead to it.
    pub fn has_no_name(&self) -> bool {
        self.file.has_no_name()
    }

    /// Returns whether another file has the path by which this database was opened.
    pub fn path_is_anothers(&self) -> bool {
        self.base.has_moved() && !matches!(self.path.try_exists(), Ok(false))
    }

    /// Returns whether somebody has put a copy of the database file in the file's place. The file itself then
    /// has no name any more, and the copy, which has the file's path, names the same log. So the copy needs
    /// what the log holds (invariant 3).
    pub fn is_replaced_by_copy(&self, id: LogId) -> bool {
        self.has_no_name() && names_log(self.sqlite.parent, &self.path, id)
    }

    /// Returns the database file for code that attaches a log and may map the file.
    pub fn mappable(&self) -> Mappable<'_> {
        self.file.mappable(self.base, &self.path)
    }

    /// Returns this connection's concurrent state, if it is a concurrent connection.
    #[inline]
    pub fn concurrent(&self) -> Option<&Concurrent> {
        self.index.concurrent()
    }

    /// Calls [`OpenedFile::close_left_mapping`] for this database.
    pub fn close_left_mapping(&self) {
        self.file.close_left_mapping(&self.lock, self.was_served());
    }

    /// Returns whether an engine may serve this database, that is, whether the setting `journal` is not
    /// `off`.
    pub fn is_capable(&self) -> bool {
        self.settings().journal != settings::Journal::Off
    }

    /// Returns whether a transaction with a rollback journal may put the guard on.
    pub fn may_raise_for_journal(&self) -> bool {
        !self.read_only && self.may_keep_rollback_journals()
    }

    fn may_keep_rollback_journals(&self) -> bool {
        self.is_capable() && self.placement().is_ok_and(|placement| placement.engine.rollback_journals)
    }

    /// Returns whether the log keeps the database's rollback journals, or would keep the next one.
    pub fn keeps_rollback_journals(&self) -> bool {
        match self.attached() {
            Some(attachment) => attachment.rollback_journal().is_some(),
            None => self.may_raise_for_journal(),
        }
    }

    /// Returns whether the VFS has to look for a guard which says that the rollback journal is in a log. It
    /// has to if the engine of this database keeps rollback journals, or if this connection has seen such a
    /// guard.
    pub fn looks_for_rollback_guard(&self) -> bool {
        self.mode.saw_rollback_guard.load(Ordering::Relaxed) || self.may_keep_rollback_journals()
    }

    /// Notes that this connection has seen a guard which says that the rollback journal is in a log.
    pub fn set_saw_rollback_guard(&self) {
        self.mode.saw_rollback_guard.store(true, Ordering::Relaxed);
    }

    /// Notes that SQLite has deleted the WAL, or, if `leaving` is `false`, that SQLite has done something
    /// else after that.
    pub fn set_leaving_wal(&self, leaving: bool) {
        self.mode.leaving_wal.store(leaving, Ordering::Relaxed);
        if leaving {
            self.mode.doubts_cache.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether SQLite has left WAL mode, so that its cache may be out of date. Only the first call
    /// after SQLite has left WAL mode returns `true`.
    pub fn end_doubting_cache(&self) -> bool {
        self.mode.doubts_cache.load(Ordering::Relaxed)
            && self.mode.doubts_cache.swap(false, Ordering::Relaxed)
    }

    /// Returns whether SQLite has deleted the WAL and has done nothing since. Only the first call after the
    /// deletion returns `true`.
    pub fn end_leaving_wal(&self) -> bool {
        self.mode.leaving_wal.swap(false, Ordering::Relaxed)
    }

    /// Notes what will serve the WAL when SQLite opens it. The note is valid as long as SQLite keeps the lock
    /// that it is taking now.
    pub fn prepare(&self, prepared: Prepared) {
        let previous = locked(&self.service.prepared).replace(prepared);
        drop(previous);
    }

    /// Returns what [`Self::prepare`] noted, if the note is still valid. If a log was noted, only the first
    /// call returns it, because that caller takes it.
    pub fn take_prepared(&self) -> Option<Prepared> {
        let mut prepared = locked(&self.service.prepared);
        match &*prepared {
            Some(Prepared::Base) => Some(Prepared::Base),
            _ => prepared.take(),
        }
    }

    /// Returns whether [`Self::prepare`] noted a log. Returns `None` if it noted nothing.
    pub fn prepared_log(&self) -> Option<bool> {
        locked(&self.service.prepared).as_ref().map(|prepared| matches!(prepared, Prepared::Log(_)))
    }

    /// Forgets what [`Self::prepare`] noted, if the note is not valid under `level`, the lock that SQLite has
    /// now. Without SHARED no note is valid. With a stronger lock than SHARED, SQLite may set WAL mode
    /// itself, so a note that there is no log is not valid.
    pub fn forget_prepared(&self, level: Level) {
        let mut prepared = locked(&self.service.prepared);
        let lasts = match &*prepared {
            None => return,
            Some(Prepared::Log(_)) => level >= Level::Shared,
            Some(Prepared::Base) => level == Level::Shared,
        };
        let forgotten = if lasts { None } else { prepared.take() };
        drop(prepared);
        if let Some(Prepared::Log(used)) = &forgotten {
            // Until now the note has kept the log attached. Another connection that closed in that time was
            // not the log's last user, so it left guard and log in place. Therefore this connection must
            // check at its close whether a log is left, as after it was refused EXCLUSIVE.
            self.set_refused_exclusive(used.log().segment_path().to_path_buf());
        }
        drop(forgotten);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.service.state)
    }

    /// Changes the state. `change` must not lock anything of this connection, and must not drop a log.
    fn change_state<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let changed = change(&mut state);
        self.service.at_a_glance.store(state.at_a_glance(), Ordering::Relaxed);
        changed
    }

    #[inline]
    fn is_so_at_a_glance(&self, bit: u8) -> bool {
        self.service.at_a_glance.load(Ordering::Relaxed) & bit != 0
    }

    /// Returns the log, whatever it serves.
    pub fn attached(&self) -> Option<Arc<Attachment>> {
        self.state().attachment().map(Arc::clone)
    }

    /// Returns the log, if the WAL is open.
    pub fn active(&self) -> Option<Arc<Attachment>> {
        self.attached_for(Serving::Wal)
    }

    /// Returns whether the WAL is open and served by a log.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.is_so_at_a_glance(WAL_IS_OPEN)
    }

    /// Calls `look` with the log, if the WAL is open. `look` must not lock anything of this connection.
    pub fn with_active<T>(&self, look: impl FnOnce(&Arc<Attachment>) -> T) -> Option<T> {
        match &*self.state() {
            State::Wal(log) => Some(look(log.used.attachment())),
            _ => None,
        }
    }

    /// Returns the log, if its purpose is `serving`.
    pub fn attached_for(&self, serving: Serving) -> Option<Arc<Attachment>> {
        let state = self.state();
        state.attachment().filter(|_| state.serving() == Some(serving)).map(Arc::clone)
    }

    /// Returns the log, and its purpose.
    pub fn serving(&self) -> Option<(Arc<Attachment>, Serving)> {
        let state = self.state();
        state.attachment().map(Arc::clone).zip(state.serving())
    }

    /// Returns the log that serves SQLite's WAL or its rollback journals now.
    pub fn in_service(&self) -> Option<Arc<Attachment>> {
        let serving = self.serving().filter(|(_, serving)| *serving != Serving::Lingering);
        serving.map(|(attachment, _)| attachment)
    }

    /// Begins to use a log.
    pub fn attach(&self, used: Use, serving: Serving) {
        self.note_served();
        if account::is_on() {
            let log: Weak<Attachment> = Arc::downgrade(used.attachment());
            account::serves(&self.path, used.id(), log);
        }
        let log = Attached { has_home: used.home().is_some(), used };
        let begun = match serving {
            Serving::Wal => State::Wal(log),
            Serving::Lingering => State::Lingering { log, is_kept: false },
            Serving::Journal => State::Journal(log),
        };
        let previous = self.change_state(|state| std::mem::replace(state, begun));
        previous.let_go();
    }

    /// Returns whether the attached log has a home: the engine's view of the database file, through which
    /// accesses to the file go.
    #[inline]
    pub fn has_home(&self) -> bool {
        self.is_so_at_a_glance(HAS_HOME)
    }

    /// Returns the home of the attached log, if it has one.
    pub fn attached_home(&self) -> Option<Arc<dyn Home>> {
        self.attached().and_then(|attachment| attachment.home())
    }

    /// Notes that a connection may have attached this database to a main database of another VFS. That VFS opens
    /// the super-journals, so this VFS cannot see whether a super-journal is open. Therefore every
    /// transaction becomes durable when it is sealed.
    pub fn set_main_elsewhere(&self) {
        self.commit.has_main_elsewhere.store(true, Ordering::Relaxed);
    }

    /// Returns whether this user may only read the attached log.
    #[inline]
    pub fn is_outside(&self) -> bool {
        self.is_so_at_a_glance(IS_OUTSIDE)
    }

    fn note_served(&self) {
        let mut past = locked(&self.service.past);
        if matches!(*past, Past::Unserved) {
            *past = Past::Served;
        }
    }

    /// Notes that this connection did not get EXCLUSIVE, because other connections use the log. So this
    /// connection is not the last one to close. `segment` is the path of the log's shared memory.
    pub fn set_refused_exclusive(&self, segment: PathBuf) {
        *locked(&self.service.past) = Past::Refused(segment);
    }

    /// Returns the path that [`Self::set_refused_exclusive`] noted last, if it noted any.
    pub fn refused_exclusive(&self) -> Option<PathBuf> {
        match &*locked(&self.service.past) {
            Past::Refused(segment) => Some(segment.clone()),
            Past::Unserved | Past::Served => None,
        }
    }

    /// Returns whether a log has ever served the database.
    pub fn was_served(&self) -> bool {
        !matches!(*locked(&self.service.past), Past::Unserved)
    }

    /// Notes that SQLite has closed the WAL. Under EXCLUSIVE the log stays attached, because SQLite deletes
    /// the WAL next. Otherwise the log is detached.
    pub fn wal_closed(&self) {
        if self.lock.believed() < Level::Exclusive {
            self.detach();
            return;
        }
        self.change_state(|state| {
            *state = match std::mem::take(state) {
                State::Wal(log) => State::Lingering { log, is_kept: false },
                other => other,
            }
        });
    }

    /// Detaches the log. If the database file has no name any more, the last user also removes the log,
    /// because SQLite neither checkpoints nor deletes the WAL of a deleted database. If a copy was put in the
    /// file's place, the log stays for that copy.
    pub fn detach(&self) {
        let previous = self.change_state(std::mem::take);
        // Forget the ticket, because a ticket of this log means nothing to the next log.
        *locked(&self.commit.sealed) = None;
        let Some(Attached { used, .. }) = previous.attached() else { return };
        used.flush_acknowledged();
        let id = used.id();
        let is_unneeded = self.has_no_name() && !self.is_replaced_by_copy(id);
        let unneeded = if is_unneeded { used.log().path_now().ok().flatten() } else { None };
        previous.let_go();
        if let Some(path) = unneeded {
            duralite_wal::Log::remove_unused(&path, id);
        }
    }

    /// Keeps background checkpoints from beginning. The caller is about to ask for EXCLUSIVE.
    pub fn hold_off_checkpoints(&self) {
        let hold_off = self.attached().and_then(|attachment| attachment.maintenance()?.hold_off());
        if hold_off.is_some() {
            *locked(&self.service.hold_off) = hold_off;
        }
    }

    /// Lets background checkpoints begin again, unless SQLite holds EXCLUSIVE.
    pub fn allow_checkpoints(&self) {
        if self.lock.believed() < Level::Exclusive {
            let hold_off = locked(&self.service.hold_off).take();
            drop(hold_off);
        }
    }

    /// Returns whether SQLite writes the log into this file when the last user closes the WAL. SQLite does so
    /// even if the file was moved, unless a copy of the file needs the log.
    pub fn takes_log_home(&self) -> bool {
        let serving = self.serving().filter(|(_, serving)| *serving != Serving::Journal);
        serving.is_some_and(|(attachment, _)| !self.is_replaced_by_copy(attachment.id()))
    }

    fn is_serving(&self, serving: Serving) -> bool {
        self.state().serving() == Some(serving)
    }

    /// Detaches a log that stayed attached because SQLite was about to delete the WAL, if SQLite has not
    /// deleted it.
    pub fn detach_lingering(&self) {
        if self.is_serving(Serving::Lingering) {
            self.detach();
        }
    }

    /// Stops using a log for rollback journals, because SQLite is about to open its WAL.
    pub fn leave_journal(&self) {
        let left = self.change_state(|state| match state {
            State::Journal(_) => std::mem::take(state),
            _ => State::Without,
        });
        left.let_go();
    }

    /// Detaches a log in which a user who may only read has looked for a rollback journal. Once SQLite has
    /// given SHARED back, other connections may write the log's commits to the database file and delete the
    /// log.
    pub fn end_outside(&self) {
        if self.is_outside() && self.is_serving(Serving::Journal) {
            self.detach();
        }
    }

    /// Answers SQLite's deletion of the WAL. Returns whether the log may stay after the last close
    /// (`on_close=keep`). If so, this connection keeps the log for now, because only SQLite's next call shows
    /// whether this is the last close.
    pub fn keep_log(&self) -> bool {
        self.change_state(|state| match state {
            State::Lingering { log, is_kept } => {
                *is_kept = log.used.log().stays_at_close();
                *is_kept
            }
            _ => false,
        })
    }

    /// Returns whether guard and log stay if SQLite closes the database next.
    #[inline]
    pub fn is_kept(&self) -> bool {
        self.is_so_at_a_glance(IS_KEPT)
    }

    /// Stops keeping a log, because SQLite continues with the database. Returns whether the log was kept
    /// until now.
    pub fn end_keeping(&self) -> bool {
        self.change_state(|state| match state {
            State::Lingering { is_kept, .. } => std::mem::take(is_kept),
            _ => false,
        })
    }

    /// Writes to the rollback journal for SQLite. The write is durable after [`Journal::sync`].
    pub fn write_journal(&self, data: &[u8], offset: u64) -> Result<(), Failure> {
        if begins_journal(data, offset) {
            self.check_log()?;
        }
        self.journal.write(data, offset)
    }

    /// Refuses to begin a transaction whose rollback journal would be in a deleted log, because after a crash
    /// no connection could find the journal to roll the transaction back.
    fn check_log(&self) -> Result<(), Failure> {
        let Some(attachment) = self.attached() else { return Ok(()) };
        attachment.look_for_log(attachment.clock_ns(), || self.has_no_name());
        attachment.check_found().map_err(|error| Failure::of(&error, During::Write))
    }

    /// Writes to the log for SQLite. If the write completes a transaction, it seals the transaction. The
    /// transaction may not be durable before [`Db::wait_durable`] returns (invariant 4).
    pub fn write_log(&self, attachment: &Attachment, offset: u64, data: &[u8]) -> Result<(), LogError> {
        if let Some(now_ns) = self.commit.clock.written(offset, || attachment.clock_ns()) {
            attachment.look_for_log(now_ns, || self.has_no_name());
        }
        let mut log = attachment.log_for_write(data.len())?;
        let before = log.version();
        let written = log.write(&self.base, offset, data).inspect_err(|error| {
            if error.kind() == ErrorKind::Full {
                attachment.room().refused();
                attachment.count(Counter::RoomFailures);
            }
        });
        let sealed = written?;
        // The log may have changed even if the write sealed nothing: the log may have started over, or the
        // write may have found commits of other processes. In both cases the background thread must learn the
        // log's size too.
        if sealed.is_none() && log.version() == before {
            return Ok(());
        }
        let (frames, (fill, is_short)) = (log.frames(), log.fill());
        drop(log);
        let ticket = sealed.as_ref().and_then(|sealed| sealed.ticket);
        attachment.room().seen(fill, is_short);
        attachment.committed(frames, ticket.is_none());
        if let Some(ticket) = ticket
            && (super_journal::is_open() || self.commit.has_main_elsewhere.load(Ordering::Relaxed))
        {
            attachment.wait(ticket)?;
        }
        // SQLite may have given up the commit of an earlier transaction after the transaction was sealed.
        // This store then replaces the earlier transaction's ticket, for which no commit waits any more.
        *locked(&self.commit.sealed) = sealed;
        Ok(())
    }

    /// Forgets the transaction that this connection sealed last.
    pub(in crate::database) fn forget_sealed(&self) {
        *locked(&self.commit.sealed) = None;
    }

    /// Waits until the transaction that this connection sealed last is as durable as the log's setting
    /// `durability` requires, and acknowledges the transaction. Then calls `replicate` with the position
    /// after the transaction; `replicate` waits for the archive (invariant 70). SQLite has already released
    /// WRITE (except in exclusive locking mode), and returns an error from here to the committer. A
    /// transaction with a rollback journal is durable already, so this function does not wait for it.
    pub fn wait_durable(
        &self,
        replicate: impl FnOnce(&Attachment, u64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let sealed = locked(&self.commit.sealed).take();
        let Some((sealed, attachment)) = sealed.zip(self.attached()) else {
            let found =
                self.attached_for(Serving::Journal).map_or(Ok(()), |log| log.check_not_copied_after_commit());
            return found.map_err(|error| Failure::of(&error, During::Sync));
        };
        if let Some(ticket) = sealed.ticket {
            attachment.wait(ticket).map_err(|error| Failure::of(&error, During::Sync))?;
        }
        attachment.check_found_after_commit().map_err(|error| Failure::of(&error, During::Sync))?;
        attachment.acknowledge(&sealed);
        let replicated = replicate(&attachment, sealed.position);
        attachment.count_commit(self.commit.clock.committed(), sealed.fill);
        replicated
    }

    /// Notes that this connection writes to the database file in a transaction that no log serves.
    pub fn note_plain_write(&self) {
        self.commit.has_written_plain.store(true, Ordering::Relaxed);
    }

    /// Returns whether [`Self::note_plain_write`] has been called since the last call of this function.
    pub fn end_plain_write(&self) -> bool {
        self.commit.has_written_plain.swap(false, Ordering::Relaxed)
    }

    /// Returns the path of a file beside the database. The file's name is the database's name followed by
    /// `end`.
    pub fn beside(&self, end: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(end);
        name.into()
    }

    /// Notes that this connection could not make a change of the guard durable.
    pub fn set_header_in_doubt(&self) {
        self.mode.header_in_doubt.store(true, Ordering::Relaxed);
    }

    pub fn header_is_in_doubt(&self) -> bool {
        self.mode.header_in_doubt.load(Ordering::Relaxed)
    }

    /// Notes that this connection lifts a guard without a sync.
    pub fn owe_sync(&self) {
        self.mode.owes_sync.store(true, Ordering::Relaxed);
    }

    /// Returns whether this connection has lifted a guard without a sync. The caller syncs the header now.
    pub fn pay_sync(&self) -> bool {
        self.mode.owes_sync.swap(false, Ordering::Relaxed)
    }
}

/// The time, by the segment's clock, at which the commit of this connection's transaction began.
///
/// The latency of a commit is measured from this time, at which SQLite writes the transaction's first page to
/// the WAL. The statements of the transaction run before this time, so they do not count. If a transaction
/// outgrows SQLite's cache, SQLite writes pages before the commit. The latency is then measured from the
/// first of these pages.
#[derive(Default)]
pub struct CommitClock {
    /// The time in nanoseconds; 0 while SQLite has written nothing since the last commit.
    began: AtomicU64,
    /// The offset in the WAL of the transaction's first write.
    offset: AtomicU64,
}

impl CommitClock {
    /// Notes that SQLite writes at this offset of the WAL. If this is the first write of a transaction, asks
    /// for the time and returns it. It is the first write if SQLite has written nothing since the last
    /// commit. It also is if its offset is not greater than that of the current transaction's first write:
    /// SQLite has then rolled that transaction back, and begins another one. (In exclusive locking mode
    /// SQLite does not tell the VFS of a rollback.)
    pub fn written(&self, offset: u64, clock_ns: impl FnOnce() -> u64) -> Option<u64> {
        if self.began.load(Ordering::Relaxed) != 0 && offset > self.offset.load(Ordering::Relaxed) {
            return None;
        }
        let now_ns = clock_ns();
        self.began.store(now_ns, Ordering::Relaxed);
        self.offset.store(offset, Ordering::Relaxed);
        Some(now_ns)
    }

    /// Notes that the writes so far are committed. Returns the time at which they began.
    pub fn committed(&self) -> u64 {
        let began = self.began.load(Ordering::Relaxed);
        self.forget();
        began
    }

    /// Forgets the writes so far, because another transaction begins and these writes were not committed.
    pub fn forget(&self) {
        self.began.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_counted_from_its_own_first_write() {
        let clock = CommitClock::default();
        for (offset, now) in [(32, 10), (4152, 11), (8272, 12)] {
            clock.written(offset, || now);
        }
        assert_eq!(clock.committed(), 10);
        clock.written(12_392, || 20);
        clock.written(16_512, || 21);
        // The transaction was rolled back. The next one begins at the same place, much later.
        clock.written(12_392, || 90);
        clock.written(16_512, || 91);
        assert_eq!(clock.committed(), 90);
        // The log has started over.
        clock.written(32, || 95);
        assert_eq!(clock.committed(), 95);
    }
}
