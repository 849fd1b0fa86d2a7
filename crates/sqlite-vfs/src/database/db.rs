//! One open main database.

use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use duralite_journal::engine::{Fill, Ticket};
use duralite_journal::home::Home;
use duralite_journal::{DatabaseIdentity, ErrorKind, JournalError, LogDirectory};
use duralite_locks::file::{FileLock, Level};
use duralite_medium::in_words;
use duralite_medium::process::{ProcessId, off_standard_streams};
use duralite_sqlite_ffi as ffi;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::commit_clock::CommitClock;
use super::first_region::FirstRegion;
use super::index_locks::IndexLocks;
use super::journal_store::JournalStore;
use super::patience::Patience;
use super::super_journal;
use crate::account;
use crate::attachment::maintenance::{HoldOff, Maintenance};
use crate::attachment::{Attachment, Use};
use crate::errors::{During, Failure};
use crate::settings::{Journal, Settings};
use crate::sqlite::Sqlite;
use crate::sqlite::base::{BaseFile, PagerName};
use crate::sqlite::connection;

/// An open main database: the base VFS's file and what stands above it.
pub struct Db {
    pub sqlite: &'static Sqlite,
    pub base: BaseFile,
    pub path: PathBuf,
    /// SQLite's own strings, alive until the file is closed.
    pub names: Names,
    pub read_only: bool,
    /// Nothing may end as plain SQLite.
    pub strict: bool,
    /// Whether a connection of the VFS's own opened it.
    pub(crate) is_helper: bool,
    /// The process that opened it. In a child it is dead: it fails, releases nothing and writes nothing
    /// (invariant 14).
    process: ProcessId,
    /// Tells which file it is, wherever its path leads to by now. It is opened for nothing else: closing it
    /// gives none of the locks back that SQLite holds of the file.
    pub(super) file: Option<OwnedFd>,
    /// Why it could not be opened.
    no_file: Option<Errno>,
    /// Whether this connection has had it mapped.
    pub(super) mapped: AtomicBool,
    settings: Mutex<Settings>,
    /// Where a new log goes; found out once.
    log_dir: OnceLock<Result<LogDirectory, String>>,
    /// The lock of the database file (invariant 44).
    pub lock: FileLock<BaseFile>,
    /// Whether SQLite has deleted the WAL, and done nothing since.
    leaving_wal: AtomicBool,
    /// Whether SQLite has left WAL mode, and not looked at the change counter since.
    doubts_cache: AtomicBool,
    /// What was made ready as SQLite took SHARED, for the moment in which it opens the WAL.
    prepared: Mutex<Option<Prepared>>,
    /// Set when the guard may or may not be on, on disk.
    header_in_doubt: AtomicBool,
    /// The transaction that this connection has sealed and that is not acknowledged yet.
    sealed: Mutex<Option<Sealed>>,
    pub(crate) commit_clock: CommitClock,
    /// What this connection holds of the wal-index's locks.
    pub(crate) index_locks: Mutex<Option<Arc<IndexLocks>>>,
    /// The log whose wal-index SQLite has mapped.
    pub(crate) index: Mutex<Option<Arc<Attachment>>>,
    /// What SQLite has instead of that index's first region, for a user who may only read it.
    pub(crate) first_region: Mutex<Option<FirstRegion>>,
    /// How often the database had been changed when SQLite last took a read mark.
    pub(crate) seen_changes: AtomicU32,
    state: Mutex<State>,
    /// While EXCLUSIVE is held or asked for.
    hold_off: Mutex<Option<HoldOff>>,
    /// Whether a log has served it.
    served: AtomicBool,
    /// Set when EXCLUSIVE was refused while a log served it.
    refused_exclusive: Mutex<Option<PathBuf>>,
    /// Whether the attached log has something before the database file.
    has_home: AtomicBool,
    /// Whether this user may only read that log.
    outside: AtomicBool,
    /// SQLite has deleted the WAL, and guard and log are to stay should it close the database next.
    kept: AtomicBool,
    /// The rollback journal that SQLite has open, where it is not the base's.
    pub(crate) journal: Mutex<Option<JournalStore>>,
    /// Whether the last one was never put there.
    pub(crate) closed_in_memory: AtomicBool,
    /// Whether its first page is being made, with a rollback journal of the base's.
    pub(crate) makes_database: AtomicBool,
    /// Whether the log of another engine may have its rollback journal: a guard that says so has been seen.
    pub(crate) saw_rollback_guard: AtomicBool,
    pub(crate) patience: Patience,
    /// Whether a connection has it attached whose super-journals are not seen here.
    has_main_elsewhere: AtomicBool,
}

/// The names that SQLite's pager has for files beside a database.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    pub journal: PagerName,
    pub wal: PagerName,
}

/// What serves a database's WAL.
pub enum Prepared {
    /// No log has the database, or may have it: the base VFS's own files serve it.
    Base,
    /// A log.
    Log(Use),
}

/// What an attached log is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Serving {
    /// The WAL, which is open.
    #[default]
    Wal,
    /// The WAL, which is closed already: SQLite is about to delete it.
    Lingering,
    /// Rollback journals.
    Journal,
}

#[derive(Default)]
struct State {
    /// The log: while the WAL is open, and from closing it until SQLite deletes it; for rollback journals until the
    /// database is closed.
    attached: Option<Use>,
    serving: Serving,
}

impl State {
    /// Lets go of the log while nothing in the background has a hold of it: who opens the database next
    /// finds it let go of.
    fn let_go(self) {
        let Some(used) = self.attached else { return };
        let _turn = used.maintenance().and_then(Maintenance::turn);
        drop(used);
    }
}

/// A transaction in the log, visible to all.
struct Sealed {
    /// What is waited for until it is durable; `None` when it is.
    ticket: Option<Ticket>,
    /// Its name for [`Attachment::acknowledge`].
    commit: u64,
    /// How full the log is with it.
    fill: Fill,
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
        let named = named_file(base, &path);
        let no_file = named.as_ref().err().copied();
        Self {
            sqlite,
            base,
            path,
            names,
            read_only,
            process: ProcessId::current(),
            file: named.ok().flatten(),
            no_file,
            mapped: AtomicBool::new(false),
            strict: settings.strict,
            is_helper: connection::is_opening(),
            settings: Mutex::new(settings),
            log_dir: OnceLock::new(),
            lock: FileLock::new(base),
            leaving_wal: AtomicBool::new(false),
            doubts_cache: AtomicBool::new(false),
            prepared: Mutex::default(),
            header_in_doubt: AtomicBool::new(false),
            sealed: Mutex::default(),
            commit_clock: CommitClock::default(),
            index_locks: Mutex::default(),
            index: Mutex::default(),
            first_region: Mutex::default(),
            seen_changes: AtomicU32::new(0),
            state: Mutex::default(),
            hold_off: Mutex::default(),
            served: AtomicBool::new(false),
            refused_exclusive: Mutex::default(),
            has_home: AtomicBool::new(false),
            outside: AtomicBool::new(false),
            kept: AtomicBool::new(false),
            journal: Mutex::default(),
            closed_in_memory: AtomicBool::new(false),
            makes_database: AtomicBool::new(false),
            saw_rollback_guard: AtomicBool::new(false),
            patience: Patience::default(),
            has_main_elsewhere: AtomicBool::new(false),
        }
    }

    /// Refuses with this code in a child of the process that opened it.
    #[inline]
    pub fn check_process(&self, code: c_int) -> Result<(), c_int> {
        if self.is_own() { Ok(()) } else { Err(self.refuse_child(code)) }
    }

    /// Whether this process opened it.
    #[inline]
    pub fn is_own(&self) -> bool {
        self.process.is_current()
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

    pub fn settings(&self) -> MutexGuard<'_, Settings> {
        locked(&self.settings)
    }

    /// Where a new log of this database goes; a message says why it goes nowhere.
    pub fn log_dir(&self) -> Result<&LogDirectory, &str> {
        let found = self.log_dir.get_or_init(|| self.settings().log_dir(&self.path));
        found.as_ref().map_err(String::as_str)
    }

    /// What ties a log to this file.
    pub fn identity(&self) -> Result<DatabaseIdentity, Failure> {
        let Some(file) = &self.file else {
            let path = self.path.display();
            return Err(match self.no_file {
                Some(errno) => Failure::cannot_open(format!(
                    "cannot open {path}: {}; then open it again",
                    in_words(&errno.into())
                )),
                None => Failure::new(
                    ffi::BUSY,
                    format!("{path} was replaced while it was being opened; open it again"),
                ),
            });
        };
        DatabaseIdentity::of_open(file, &self.path).map_err(|error| Failure::of(&error, During::Open))
    }

    /// Whether nothing leads to the file any more but those that have it open.
    pub fn has_no_name(&self) -> bool {
        let links = self.file.as_ref().and_then(|file| rustix::fs::fstat(file).ok());
        links.is_some_and(|stat| stat.st_nlink == 0)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Whether an engine may serve this database.
    pub fn is_capable(&self) -> bool {
        self.settings().journal != Journal::Off
    }

    /// Notes that SQLite has deleted the WAL, or that it has gone on since.
    pub fn set_leaving_wal(&self, leaving: bool) {
        self.leaving_wal.store(leaving, Ordering::Relaxed);
        if leaving {
            self.doubts_cache.store(true, Ordering::Relaxed);
        }
    }

    /// Whether SQLite has left WAL mode, and what it has cached may be from before a commit; not a second time.
    pub fn end_doubting_cache(&self) -> bool {
        self.doubts_cache.load(Ordering::Relaxed) && self.doubts_cache.swap(false, Ordering::Relaxed)
    }

    /// Whether SQLite has deleted the WAL and done nothing since; not a second time.
    pub fn end_leaving_wal(&self) -> bool {
        self.leaving_wal.swap(false, Ordering::Relaxed)
    }

    /// Notes what serves the WAL when SQLite opens it next, under the lock that SQLite gets now.
    pub fn prepare(&self, prepared: Prepared) {
        let previous = locked(&self.prepared).replace(prepared);
        drop(previous);
    }

    /// What was noted, if the lock has lasted under which it was concluded. A log is handed over.
    pub fn take_prepared(&self) -> Option<Prepared> {
        let mut prepared = locked(&self.prepared);
        match &*prepared {
            Some(Prepared::Base) => Some(Prepared::Base),
            _ => prepared.take(),
        }
    }

    /// Whether it was a log that was noted; `None` where nothing was.
    pub fn prepared_log(&self) -> Option<bool> {
        locked(&self.prepared).as_ref().map(|prepared| matches!(prepared, Prepared::Log(_)))
    }

    /// Forgets what was noted that no longer follows: all of it where SQLite gives SHARED back; that there is no log where SQLite
    /// is about to write, since SQLite itself may set WAL mode then.
    pub fn forget_prepared(&self, level: Level) {
        let mut prepared = locked(&self.prepared);
        let lasts = match &*prepared {
            None => return,
            Some(Prepared::Log(_)) => level >= Level::Shared,
            Some(Prepared::Base) => level == Level::Shared,
        };
        let forgotten = if lasts { None } else { prepared.take() };
        drop(prepared);
        if let Some(Prepared::Log(used)) = &forgotten {
            // Whoever closed the log meanwhile was not the last to use it: this connection sees to that when it closes.
            self.served.store(true, Ordering::Relaxed);
            self.set_refused_exclusive(used.log().segment_path().to_path_buf());
        }
        drop(forgotten);
    }

    /// The log, whatever it is for.
    pub fn attached(&self) -> Option<Arc<Attachment>> {
        self.state().attached.as_ref().map(|used| Arc::clone(used.attachment()))
    }

    /// The log, if the WAL is open.
    pub fn active(&self) -> Option<Arc<Attachment>> {
        self.attached_for(Serving::Wal)
    }

    /// Whether the WAL is open, and a log's.
    pub fn is_active(&self) -> bool {
        self.with_active(|_| ()).is_some()
    }

    /// The log, if the WAL is open, for as long as `look` takes, which locks nothing of this connection.
    pub fn with_active<T>(&self, look: impl FnOnce(&Arc<Attachment>) -> T) -> Option<T> {
        let state = self.state();
        let used = state.attached.as_ref().filter(|_| state.serving == Serving::Wal);
        used.map(|used| look(used.attachment()))
    }

    /// The log, if it is for this.
    pub fn attached_for(&self, serving: Serving) -> Option<Arc<Attachment>> {
        let state = self.state();
        let used = state.attached.as_ref().filter(|_| state.serving == serving);
        used.map(|used| Arc::clone(used.attachment()))
    }

    /// The log, with what it is for.
    pub fn serving(&self) -> Option<(Arc<Attachment>, Serving)> {
        let state = self.state();
        state.attached.as_ref().map(|used| (Arc::clone(used.attachment()), state.serving))
    }

    /// The log that serves SQLite now: its WAL, or its rollback journals.
    pub fn in_service(&self) -> Option<Arc<Attachment>> {
        self.active().or_else(|| self.attached_for(Serving::Journal))
    }

    pub fn attach(&self, used: Use, serving: Serving) {
        self.served.store(true, Ordering::Relaxed);
        if account::is_on() {
            let log: Weak<Attachment> = Arc::downgrade(used.attachment());
            account::serves(&self.path, used.id(), log);
        }
        self.outside.store(used.outside().is_some(), Ordering::Relaxed);
        self.has_home.store(used.home().is_some(), Ordering::Relaxed);
        let previous = std::mem::replace(&mut *self.state(), State { attached: Some(used), serving });
        previous.let_go();
    }

    /// Whether the attached log has something before the database file.
    #[inline]
    pub fn has_home(&self) -> bool {
        self.has_home.load(Ordering::Relaxed)
    }

    /// What that is.
    pub fn attached_home(&self) -> Option<Arc<dyn Home>> {
        self.attached().and_then(|attachment| attachment.home())
    }

    /// Notes that a connection has it attached to a main database of another VFS, which is the one that opens
    /// super-journals. Whether it does is not known: every transaction is durable when it is sealed.
    pub fn set_main_elsewhere(&self) {
        self.has_main_elsewhere.store(true, Ordering::Relaxed);
    }

    /// Whether this user may only read the log.
    pub fn is_outside(&self) -> bool {
        self.outside.load(Ordering::Relaxed)
    }

    /// Notes that others were in the way of having the database to itself, as somebody is who closes it last; and
    /// the shared memory of the log that they use.
    pub fn set_refused_exclusive(&self, segment: PathBuf) {
        *locked(&self.refused_exclusive) = Some(segment);
    }

    /// That shared memory, if others were.
    pub fn refused_exclusive(&self) -> Option<PathBuf> {
        locked(&self.refused_exclusive).clone()
    }

    /// Whether a log has ever served it.
    pub fn was_served(&self) -> bool {
        self.served.load(Ordering::Relaxed)
    }

    /// The WAL is closed. Under EXCLUSIVE its deletion follows, which needs the log again.
    pub fn wal_closed(&self) {
        if self.lock.believed() >= Level::Exclusive {
            self.state().serving = Serving::Lingering;
        } else {
            self.detach();
        }
    }

    /// Lets go of the log. SQLite neither checkpoints nor deletes the WAL of a database that has been deleted: the
    /// log of one without a name goes with its last user.
    pub fn detach(&self) {
        let previous = std::mem::take(&mut *self.state());
        self.has_home.store(false, Ordering::Relaxed);
        self.kept.store(false, Ordering::Relaxed);
        let Some(used) = &previous.attached else { return };
        used.flush_group();
        let nameless = if self.has_no_name() { used.log().path_now().ok().flatten() } else { None };
        let id = used.id();
        previous.let_go();
        if let Some(path) = nameless {
            duralite_journal::Log::remove_unused(&path, id);
        }
    }

    /// Keeps checkpoints in the background from beginning, before EXCLUSIVE is asked for.
    pub fn hold_off_checkpoints(&self) {
        let hold_off = self.attached().and_then(|attachment| attachment.maintenance()?.hold_off());
        if hold_off.is_some() {
            *locked(&self.hold_off) = hold_off;
        }
    }

    /// Lets them begin again, unless EXCLUSIVE is held.
    pub fn allow_checkpoints(&self) {
        if self.lock.believed() < Level::Exclusive {
            let hold_off = locked(&self.hold_off).take();
            drop(hold_off);
        }
    }

    /// Lets go of a log that was kept for a deletion which did not come.
    pub fn detach_lingering(&self) {
        if self.attached_for(Serving::Lingering).is_some() {
            self.detach();
        }
    }

    /// Stops using a log for rollback journals, which its WAL is about to be opened of.
    pub fn leave_journal(&self) {
        if self.attached_for(Serving::Journal).is_some() {
            let previous = std::mem::take(&mut *self.state());
            self.has_home.store(false, Ordering::Relaxed);
            previous.let_go();
        }
    }

    /// Lets go of a log of which a user who may only read it has no more than looked whether there is a rollback
    /// journal: without SHARED nothing keeps it from being put home.
    pub fn end_outside(&self) {
        if self.is_outside() && self.attached_for(Serving::Journal).is_some() {
            self.detach();
        }
    }

    /// SQLite deletes the WAL of a log that stays at the last close: whether this is one, it shows only by what
    /// SQLite calls next. `false` where the log does not stay.
    pub fn keep_log(&self) -> bool {
        let state = self.state();
        let stays = state.serving == Serving::Lingering
            && state.attached.as_ref().is_some_and(|used| used.log().stays_at_close());
        self.kept.store(stays, Ordering::Relaxed);
        stays
    }

    /// Whether guard and log stay should SQLite close the database next.
    #[inline]
    pub fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed)
    }

    /// SQLite goes on: whether the log was kept until now.
    pub fn end_keeping(&self) -> bool {
        self.kept.swap(false, Ordering::Relaxed)
    }

    /// Writes to the log for SQLite. A transaction that this completes is sealed, and durable only
    /// after [`Db::wait_durable`] (invariant 4).
    pub fn write_log(&self, attachment: &Attachment, offset: u64, data: &[u8]) -> Result<(), JournalError> {
        if let Some(now_ns) = self.commit_clock.written(offset, || attachment.clock_ns()) {
            attachment.look_for_log(now_ns, || self.has_no_name());
        }
        let mut log = attachment.log_for_write(data.len())?;
        let before = log.version();
        if let Err(error) = log.write(&self.base, offset, data) {
            if error.kind() == ErrorKind::Full {
                attachment.room().refused();
            }
            return Err(error);
        }
        // Not by the number of frames: a transaction may take the place of one whose process died.
        if log.version() == before {
            return Ok(());
        }
        let (frames, ticket, commit) = (log.frames(), log.take_ticket(), log.newest_commit());
        let (fill, is_short) = log.fill();
        drop(log);
        attachment.room().seen(fill, is_short);
        attachment.committed(frames, ticket.is_none());
        if let Some(ticket) = ticket
            && (super_journal::is_open() || self.has_main_elsewhere.load(Ordering::Relaxed))
        {
            attachment.wait(ticket)?;
        }
        *locked(&self.sealed) = Some(Sealed { ticket, commit, fill });
        Ok(())
    }

    /// Waits until the transaction that this connection sealed last is durable: SQLite has passed
    /// the WRITE lock on, and returns an error from here to the committer.
    pub fn wait_durable(&self) -> Result<(), Failure> {
        let sealed = locked(&self.sealed).take();
        let Some((sealed, attachment)) = sealed.zip(self.attached()) else { return Ok(()) };
        if let Some(ticket) = sealed.ticket {
            attachment.wait(ticket).map_err(|error| Failure::of(&error, During::Sync))?;
        }
        attachment.check_found().map_err(|error| Failure::of(&error, During::Sync))?;
        attachment.acknowledge(sealed.commit, self.commit_clock.committed(), sealed.fill);
        Ok(())
    }

    /// The path of a file of SQLite's beside the database, by what its name ends with.
    pub fn beside(&self, end: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(end);
        name.into()
    }

    /// Whether the guard is on could not be made durable.
    pub fn set_header_in_doubt(&self) {
        self.header_in_doubt.store(true, Ordering::Relaxed);
    }

    pub fn header_is_in_doubt(&self) -> bool {
        self.header_in_doubt.load(Ordering::Relaxed)
    }
}

/// The file that the base has just opened by this path; `None` when the path has come to lead to another one
/// meanwhile.
pub fn named_file(base: BaseFile, path: &std::path::Path) -> Result<Option<OwnedFd>, Errno> {
    let file = match rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => {
            off_standard_streams(file).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?
        }
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    Ok((!base.has_moved()).then_some(file))
}
