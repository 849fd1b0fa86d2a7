//! One open main database.

use std::ffi::c_int;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use duralite_locks::file::{FileLock, Level};
use duralite_medium::in_words;
use duralite_medium::process::{ProcessId, off_standard_streams};
use duralite_sqlite_ffi as ffi;
use duralite_wal::engine::home::Home;
use duralite_wal::log::Sealed;
use duralite_wal::{DatabaseIdentity, ErrorKind, LogError, LogPlacement};
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
use crate::sqlite::base::{BaseFile, PagerName};
use crate::sqlite::{Sqlite, connection};

/// An open main database: the base VFS's file, and what stands above it.
pub struct Db {
    pub sqlite: &'static Sqlite,
    pub base: BaseFile,
    pub path: PathBuf,
    /// SQLite's own strings, alive until the file is closed.
    pub names: Names,
    pub read_only: bool,
    /// Whether nothing may end as plain SQLite.
    pub strict: bool,
    /// Whether a connection of the VFS's own opened the database.
    pub(crate) is_helper: bool,
    /// The process that opened it. In a child of it this connection fails, releases nothing and writes
    /// nothing (invariant 14).
    process: ProcessId,
    /// Tells which file this is, wherever its path leads by now. The descriptor is opened for nothing else
    /// (`O_PATH`), so closing it gives back none of the locks that SQLite holds of the file.
    pub(super) file: Option<OwnedFd>,
    /// Why that descriptor could not be opened.
    no_file: Option<Errno>,
    /// Whether this connection has had the file mapped.
    pub(super) mapped: AtomicBool,
    settings: Mutex<Settings>,
    /// Where a new log goes. It is found out once.
    placement: OnceLock<Result<LogPlacement, String>>,
    /// The lock of the database file (invariant 44).
    pub lock: FileLock<BaseFile>,
    /// Whether SQLite has deleted the WAL, and has done nothing since.
    leaving_wal: AtomicBool,
    /// Whether SQLite has left WAL mode, and has not looked at the change counter since.
    doubts_cache: AtomicBool,
    /// What was prepared when SQLite took SHARED, for the moment at which it opens the WAL.
    prepared: Mutex<Option<Prepared>>,
    /// Set when it is not known whether the guard on disk is on.
    header_in_doubt: AtomicBool,
    /// The transaction that this connection has sealed and that is not acknowledged yet.
    sealed: Mutex<Option<Sealed>>,
    pub(crate) commit_clock: CommitClock,
    /// The locks of the wal-index that this connection holds.
    pub(crate) index_locks: Mutex<Option<Arc<IndexLocks>>>,
    /// The log whose wal-index SQLite has mapped.
    pub(crate) index: Mutex<Option<Arc<Attachment>>>,
    /// SQLite's substitute for that index's first region, for a user who may only read it.
    pub(crate) first_region: Mutex<Option<FirstRegion>>,
    /// How often the database had been changed when SQLite last took a read mark.
    pub(crate) seen_changes: AtomicU32,
    state: Mutex<State>,
    /// Present while EXCLUSIVE is held or asked for.
    hold_off: Mutex<Option<HoldOff>>,
    /// Whether a log has served the database.
    served: AtomicBool,
    /// Set when EXCLUSIVE was refused while a log served it.
    refused_exclusive: Mutex<Option<PathBuf>>,
    /// Whether something stands before the database file, in the attached log.
    has_home: AtomicBool,
    /// Whether this user may only read that log.
    outside: AtomicBool,
    /// SQLite has deleted the WAL, and guard and log are to stay if it closes the database next.
    kept: AtomicBool,
    /// The rollback journal that SQLite has open, where it is not the base's.
    pub(crate) journal: Mutex<Option<JournalStore>>,
    /// Whether the journal that was open last never left memory.
    pub(crate) closed_in_memory: AtomicBool,
    /// Whether SQLite is making the database's first page, with a rollback journal of the base's.
    pub(crate) makes_database: AtomicBool,
    /// Whether the log of another engine may have the rollback journal: a guard that says so was seen.
    pub(crate) saw_rollback_guard: AtomicBool,
    pub(crate) patience: Patience,
    /// Whether a connection has the database attached whose super-journals this VFS does not see.
    has_main_elsewhere: AtomicBool,
}

/// The names that SQLite's pager has for the files beside a database.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    pub journal: PagerName,
    pub wal: PagerName,
}

/// What serves a database's WAL.
pub enum Prepared {
    /// The base VFS's own files serve the WAL: no log has the database, or may have it.
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
    /// The WAL, which is closed already. SQLite is about to delete it.
    Lingering,
    /// Rollback journals.
    Journal,
}

#[derive(Default)]
struct State {
    /// The log. For a WAL it is here while the WAL is open, and from its closing until SQLite deletes it; for
    /// rollback journals, until the database is closed.
    attached: Option<Use>,
    serving: Serving,
}

impl State {
    /// Lets go of the log while the background thread has no hold of it. So the next connection that opens
    /// the database finds the log released.
    fn let_go(self) {
        let Some(used) = self.attached else { return };
        let _turn = used.maintenance().and_then(Maintenance::turn);
        drop(used);
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
            placement: OnceLock::new(),
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

    /// Fails with this code in a child of the process that opened the database.
    #[inline]
    pub fn check_process(&self, code: c_int) -> Result<(), c_int> {
        if self.is_own() { Ok(()) } else { Err(self.refuse_child(code)) }
    }

    /// Whether this process opened the database.
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

    /// Where a new log of this database goes. A message says why it goes nowhere.
    pub fn placement(&self) -> Result<&LogPlacement, &str> {
        let found = self.placement.get_or_init(|| self.settings().placement(&self.path));
        found.as_ref().map_err(String::as_str)
    }

    /// The identity by which a log belongs to this file.
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

    /// Whether the file has no name any more, and only open descriptors lead to it.
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

    /// Whether SQLite has left WAL mode, so that its cache may be older than a commit. `true` only once.
    pub fn end_doubting_cache(&self) -> bool {
        self.doubts_cache.load(Ordering::Relaxed) && self.doubts_cache.swap(false, Ordering::Relaxed)
    }

    /// Whether SQLite has deleted the WAL and has done nothing since. `true` only once.
    pub fn end_leaving_wal(&self) -> bool {
        self.leaving_wal.swap(false, Ordering::Relaxed)
    }

    /// Notes what serves the WAL when SQLite opens it next, under the lock that SQLite gets now.
    pub fn prepare(&self, prepared: Prepared) {
        let previous = locked(&self.prepared).replace(prepared);
        drop(previous);
    }

    /// What was noted, if the lock under which it was concluded has lasted. Hands a log over.
    pub fn take_prepared(&self) -> Option<Prepared> {
        let mut prepared = locked(&self.prepared);
        match &*prepared {
            Some(Prepared::Base) => Some(Prepared::Base),
            _ => prepared.take(),
        }
    }

    /// Whether a log was noted; `None` where nothing was.
    pub fn prepared_log(&self) -> Option<bool> {
        locked(&self.prepared).as_ref().map(|prepared| matches!(prepared, Prepared::Log(_)))
    }

    /// Forgets what was noted, if it no longer holds. When SQLite gives SHARED back, nothing holds any more.
    /// When SQLite is about to write, the note that there is no log holds no more: SQLite itself may set WAL
    /// mode then.
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
            // A connection that closed the log meanwhile was not its last user. This one lifts the log when
            // it closes.
            self.served.store(true, Ordering::Relaxed);
            self.set_refused_exclusive(used.log().segment_path().to_path_buf());
        }
        drop(forgotten);
    }

    /// The log, whatever it serves.
    pub fn attached(&self) -> Option<Arc<Attachment>> {
        self.state().attached.as_ref().map(|used| Arc::clone(used.attachment()))
    }

    /// The log, if the WAL is open.
    pub fn active(&self) -> Option<Arc<Attachment>> {
        self.attached_for(Serving::Wal)
    }

    /// Whether the WAL is open, and is a log's.
    pub fn is_active(&self) -> bool {
        self.with_active(|_| ()).is_some()
    }

    /// Calls `look` with the log, if the WAL is open. `look` must not lock anything of this connection.
    pub fn with_active<T>(&self, look: impl FnOnce(&Arc<Attachment>) -> T) -> Option<T> {
        let state = self.state();
        let used = state.attached.as_ref().filter(|_| state.serving == Serving::Wal);
        used.map(|used| look(used.attachment()))
    }

    /// The log, if it serves this.
    pub fn attached_for(&self, serving: Serving) -> Option<Arc<Attachment>> {
        let state = self.state();
        let used = state.attached.as_ref().filter(|_| state.serving == serving);
        used.map(|used| Arc::clone(used.attachment()))
    }

    /// The log, and what it serves.
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

    /// Whether something stands before the database file, in the attached log.
    #[inline]
    pub fn has_home(&self) -> bool {
        self.has_home.load(Ordering::Relaxed)
    }

    /// What stands there.
    pub fn attached_home(&self) -> Option<Arc<dyn Home>> {
        self.attached().and_then(|attachment| attachment.home())
    }

    /// Notes that a connection has this database attached to a main database of another VFS, which opens the
    /// super-journals. Whether it does is not known, so every transaction is made durable when it is sealed.
    pub fn set_main_elsewhere(&self) {
        self.has_main_elsewhere.store(true, Ordering::Relaxed);
    }

    /// Whether this user may only read the log.
    pub fn is_outside(&self) -> bool {
        self.outside.load(Ordering::Relaxed)
    }

    /// Notes that other connections kept this one from having the database to itself, as the last one to
    /// close has it. `segment` is the shared memory of the log that they use.
    pub fn set_refused_exclusive(&self, segment: PathBuf) {
        *locked(&self.refused_exclusive) = Some(segment);
    }

    /// That shared memory, if there were such connections.
    pub fn refused_exclusive(&self) -> Option<PathBuf> {
        locked(&self.refused_exclusive).clone()
    }

    /// Whether a log has ever served the database.
    pub fn was_served(&self) -> bool {
        self.served.load(Ordering::Relaxed)
    }

    /// The WAL is closed. Under EXCLUSIVE its deletion follows, and needs the log again.
    pub fn wal_closed(&self) {
        if self.lock.believed() >= Level::Exclusive {
            self.state().serving = Serving::Lingering;
        } else {
            self.detach();
        }
    }

    /// Lets go of the log. SQLite neither checkpoints nor deletes the WAL of a database that has been
    /// deleted, so the log of a database without a name goes with its last user.
    pub fn detach(&self) {
        let previous = std::mem::take(&mut *self.state());
        self.has_home.store(false, Ordering::Relaxed);
        self.kept.store(false, Ordering::Relaxed);
        // A ticket of this log is none of the next one's.
        *locked(&self.sealed) = None;
        let Some(used) = &previous.attached else { return };
        used.flush_group();
        let nameless = if self.has_no_name() { used.log().path_now().ok().flatten() } else { None };
        let id = used.id();
        previous.let_go();
        if let Some(path) = nameless {
            duralite_wal::Log::remove_unused(&path, id);
        }
    }

    /// Keeps background checkpoints from beginning, before EXCLUSIVE is asked for.
    pub fn hold_off_checkpoints(&self) {
        let hold_off = self.attached().and_then(|attachment| attachment.maintenance()?.hold_off());
        if hold_off.is_some() {
            *locked(&self.hold_off) = hold_off;
        }
    }

    /// Lets background checkpoints begin again, unless EXCLUSIVE is held.
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

    /// Stops using a log for rollback journals, because SQLite is about to open its WAL.
    pub fn leave_journal(&self) {
        if self.attached_for(Serving::Journal).is_some() {
            let previous = std::mem::take(&mut *self.state());
            self.has_home.store(false, Ordering::Relaxed);
            previous.let_go();
        }
    }

    /// Lets go of a log in which a user who may only read it has only looked for a rollback journal: without
    /// SHARED nothing keeps the log from being put home.
    pub fn end_outside(&self) {
        if self.is_outside() && self.attached_for(Serving::Journal).is_some() {
            self.detach();
        }
    }

    /// SQLite deletes the WAL of a log that may stay at the last close. Only SQLite's next call shows whether
    /// this is the last close. `false` where the log does not stay.
    pub fn keep_log(&self) -> bool {
        let state = self.state();
        let stays = state.serving == Serving::Lingering
            && state.attached.as_ref().is_some_and(|used| used.log().stays_at_close());
        self.kept.store(stays, Ordering::Relaxed);
        stays
    }

    /// Whether guard and log stay if SQLite closes the database next.
    #[inline]
    pub fn is_kept(&self) -> bool {
        self.kept.load(Ordering::Relaxed)
    }

    /// SQLite goes on. Returns whether the log was kept until now.
    pub fn end_keeping(&self) -> bool {
        self.kept.swap(false, Ordering::Relaxed)
    }

    /// Writes to the log for SQLite. A transaction that this completes is sealed, and may be durable only after
    /// [`Db::wait_durable`] (invariant 4).
    pub fn write_log(&self, attachment: &Attachment, offset: u64, data: &[u8]) -> Result<(), LogError> {
        if let Some(now_ns) = self.commit_clock.written(offset, || attachment.clock_ns()) {
            attachment.look_for_log(now_ns, || self.has_no_name());
        }
        let mut log = attachment.log_for_write(data.len())?;
        let before = log.version();
        let written = log.write(&self.base, offset, data).inspect_err(|error| {
            if error.kind() == ErrorKind::Full {
                attachment.room().refused();
            }
        });
        let sealed = written?;
        // Also where nothing was sealed the log may have changed: it has started over, or the write has found
        // other processes' commits.
        if sealed.is_none() && log.version() == before {
            return Ok(());
        }
        let (frames, (fill, is_short)) = (log.frames(), log.fill());
        drop(log);
        let ticket = sealed.as_ref().and_then(|sealed| sealed.ticket);
        attachment.room().seen(fill, is_short);
        attachment.committed(frames, ticket.is_none());
        if let Some(ticket) = ticket
            && (super_journal::is_open() || self.has_main_elsewhere.load(Ordering::Relaxed))
        {
            attachment.wait(ticket)?;
        }
        // A transaction that was sealed before, and whose commit SQLite has given up, is not waited for any more.
        *locked(&self.sealed) = sealed;
        Ok(())
    }

    /// Waits until the transaction that this connection sealed last is durable. By now SQLite has passed the
    /// WRITE lock on, and it returns an error from here to the committer. A transaction with a rollback journal
    /// is durable already.
    pub fn wait_durable(&self) -> Result<(), Failure> {
        let sealed = locked(&self.sealed).take();
        let Some((sealed, attachment)) = sealed.zip(self.attached()) else {
            let found =
                self.attached_for(Serving::Journal).map_or(Ok(()), |log| log.check_not_copied_after_commit());
            return found.map_err(|error| Failure::of(&error, During::Sync));
        };
        if let Some(ticket) = sealed.ticket {
            attachment.wait(ticket).map_err(|error| Failure::of(&error, During::Sync))?;
        }
        attachment.check_found_after_commit().map_err(|error| Failure::of(&error, During::Sync))?;
        attachment.acknowledge(sealed.commit, self.commit_clock.committed(), sealed.fill);
        Ok(())
    }

    /// The path of SQLite's file beside the database whose name has this end.
    pub fn beside(&self, end: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(end);
        name.into()
    }

    /// Notes that a change of the guard could not be made durable.
    pub fn set_header_in_doubt(&self) {
        self.header_in_doubt.store(true, Ordering::Relaxed);
    }

    pub fn header_is_in_doubt(&self) -> bool {
        self.header_in_doubt.load(Ordering::Relaxed)
    }
}

/// The file that the base has just opened by this path. `None` when the path leads to another file by now.
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
