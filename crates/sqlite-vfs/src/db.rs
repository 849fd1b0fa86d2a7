//! One open main database.

use std::ffi::c_int;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use duralite_journal::engine::{Committer, Ticket};
use duralite_journal::{JournalError, PoolConfig};
use duralite_locks::{FIRST_READ, Holder, LockError, SLOTS, WRITE};
use duralite_logfmt::guard::{self, DatabaseHeader, HEADER_BYTES};
use duralite_sqlite_ffi as ffi;

use crate::attachment::Attachment;
use crate::base::{BaseFile, PagerName};
use crate::errors::{During, Failure};
use crate::maintenance::{HoldOff, Maintenance};
use crate::registration::Registration;
use crate::settings::{Journal, Settings};
use crate::waiting;

/// The parts of page 1 that differ between disk and what SQLite sees.
const VERSIONS: std::ops::Range<u64> = guard::VERSIONS.start as u64..guard::VERSIONS.end as u64;
const LOG_ID: std::ops::Range<u64> = 72..92;
/// A header that is being written by another process right now looks damaged for a moment.
const HEADER_TRIES: u32 = 5;
const HEADER_PAUSE_US: c_int = 1000;

/// An open main database: the base VFS's file and what stands above it.
pub struct Db {
    pub registration: &'static Registration,
    pub base: BaseFile,
    pub path: PathBuf,
    /// SQLite's own string, alive until the file is closed.
    pub wal_name: PagerName,
    pub read_only: bool,
    settings: Mutex<Settings>,
    /// Where a new log goes; found out once.
    pool: OnceLock<Result<PoolConfig, String>>,
    /// The lock SQLite holds.
    lock: AtomicI32,
    /// Set when syncing the file has failed: the kernel tells once, and a second sync that
    /// succeeds proves nothing (invariants 6 and 9).
    sync_failed: AtomicBool,
    /// Set when the guard may or may not be on, on disk.
    header_in_doubt: AtomicBool,
    /// Of the transaction that this connection has sealed and not yet waited for.
    ticket: Mutex<Option<Ticket>>,
    /// What this connection holds of the wal-index's locks.
    holder: Mutex<Option<Arc<Holder>>>,
    state: Mutex<State>,
    /// While EXCLUSIVE is held or asked for.
    hold_off: Mutex<Option<HoldOff>>,
}

#[derive(Default)]
struct State {
    /// The log, while the WAL is open, and from closing it until SQLite deletes it.
    attached: Option<Arc<Attachment>>,
    /// Whether the WAL is closed already.
    lingering: bool,
}

impl State {
    /// Lets go of the log while nothing in the background has a hold of it: who opens the database next
    /// finds it let go of.
    fn let_go(self) {
        let Some(attachment) = self.attached else { return };
        let _turn = attachment.maintenance().and_then(Maintenance::turn);
        drop(attachment);
    }
}

impl Db {
    pub fn new(
        registration: &'static Registration,
        base: BaseFile,
        path: PathBuf,
        wal_name: PagerName,
        read_only: bool,
        settings: Settings,
    ) -> Self {
        Self {
            registration,
            base,
            path,
            wal_name,
            read_only,
            settings: Mutex::new(settings),
            pool: OnceLock::new(),
            lock: AtomicI32::new(ffi::LOCK_NONE),
            sync_failed: AtomicBool::new(false),
            header_in_doubt: AtomicBool::new(false),
            ticket: Mutex::default(),
            holder: Mutex::default(),
            state: Mutex::default(),
            hold_off: Mutex::default(),
        }
    }

    pub fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a new log of this database goes; a message says why it goes nowhere.
    pub fn pool(&self) -> Result<&PoolConfig, &str> {
        let found = self.pool.get_or_init(|| self.settings().pool(&self.path));
        found.as_ref().map_err(String::as_str)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an engine may serve this database.
    pub fn is_capable(&self) -> bool {
        self.settings().journal != Journal::Off
    }

    pub fn lock_level(&self) -> c_int {
        self.lock.load(Ordering::Relaxed)
    }

    pub fn set_lock_level(&self, level: c_int) {
        self.lock.store(level, Ordering::Relaxed);
    }

    /// The log, if the WAL is open or its deletion is still to come.
    pub fn attached(&self) -> Option<Arc<Attachment>> {
        self.state().attached.clone()
    }

    /// The log, if the WAL is open.
    pub fn active(&self) -> Option<Arc<Attachment>> {
        let state = self.state();
        if state.lingering { None } else { state.attached.clone() }
    }

    pub fn attach(&self, attachment: &Arc<Attachment>) {
        let previous = std::mem::replace(
            &mut *self.state(),
            State { attached: Some(Arc::clone(attachment)), lingering: false },
        );
        previous.let_go();
    }

    /// The WAL is closed. Under EXCLUSIVE its deletion follows, which needs the log again.
    pub fn wal_closed(&self) {
        if self.lock_level() >= ffi::LOCK_EXCLUSIVE {
            self.state().lingering = true;
        } else {
            self.detach();
        }
    }

    /// Lets go of the log.
    pub fn detach(&self) {
        let previous = std::mem::take(&mut *self.state());
        if let Some(attachment) = &previous.attached {
            attachment.flush_group();
        }
        previous.let_go();
    }

    /// Keeps checkpoints in the background from beginning, before EXCLUSIVE is asked for.
    pub fn hold_off_checkpoints(&self) {
        let hold_off = self.attached().and_then(|attachment| attachment.maintenance()?.hold_off());
        if hold_off.is_some() {
            *self.hold_off.lock().unwrap_or_else(PoisonError::into_inner) = hold_off;
        }
    }

    /// Lets them begin again, unless EXCLUSIVE is held.
    pub fn allow_checkpoints(&self) {
        if self.lock_level() < ffi::LOCK_EXCLUSIVE {
            let hold_off = self.hold_off.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(hold_off);
        }
    }

    /// Lets go of a log that was kept for a deletion which did not come.
    pub fn detach_lingering(&self) {
        let lingering = self.state().lingering;
        if lingering {
            self.detach();
        }
    }

    /// Writes to the log for SQLite. A transaction that this completes is sealed, and durable only
    /// after [`Db::wait_durable`] (invariant 4).
    pub fn write_log(&self, attachment: &Attachment, offset: u64, data: &[u8]) -> Result<(), JournalError> {
        let mut log = attachment.log();
        let before = log.version();
        log.write(offset, data)?;
        let (frames, version, ticket) = (log.frames(), log.version(), log.take_ticket());
        drop(log);
        // Not by the number of frames: a transaction may take the place of one whose process died.
        if version != before {
            attachment.committed(frames, ticket.is_none());
        }
        if let Some(ticket) = ticket {
            *self.ticket.lock().unwrap_or_else(PoisonError::into_inner) = Some(ticket);
        }
        Ok(())
    }

    /// Waits until the transaction that this connection sealed last is durable: SQLite has passed
    /// the WRITE lock on, and returns an error from here to the committer.
    pub fn wait_durable(&self) -> Result<(), Failure> {
        let ticket = self.ticket.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((ticket, attachment)) = ticket.zip(self.attached()) else { return Ok(()) };
        match attachment.committer() {
            Some(committer) => committer.wait(ticket).map_err(|error| Failure::of(&error, During::Sync)),
            None => Ok(()),
        }
    }

    /// Locks or unlocks locks of the wal-index as `xShmLock` asks; `None` while no log is open, when
    /// they are the base's.
    pub fn lock_shared_memory(&self, first: c_int, count: c_int, flags: c_int) -> Option<c_int> {
        let attachment = self.active()?;
        let range = usize::try_from(first).ok().zip(usize::try_from(count).ok());
        let (first, count) = range.filter(|(first, count)| first + count <= SLOTS && *count > 0)?;
        let holder = {
            let mut holder = self.holder.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(holder.get_or_insert_with(|| Arc::new(attachment.locks().holder())))
        };
        let shared = flags & ffi::SHM_SHARED != 0;
        if flags & ffi::SHM_UNLOCK != 0 {
            if shared {
                (first..first + count).for_each(|slot| holder.unlock_shared(slot));
            } else {
                holder.unlock_exclusive(first, count);
            }
            return Some(ffi::OK);
        }
        waiting::forget();
        let locked = if shared { holder.lock_shared(first) } else { holder.lock_exclusive(first, count) };
        Some(match locked {
            Ok(()) => self.after_lock(&attachment, first, shared),
            Err(LockError::Busy) => {
                if first == WRITE && !shared {
                    waiting::refused(&holder);
                }
                ffi::BUSY
            }
            Err(LockError::Medium(error)) => {
                let message = format!("cannot lock the shared memory of {}: {error}", self.path.display());
                self.registration.fail(&Failure::new(ffi::IOERR_SHMLOCK, message))
            }
        })
    }

    /// With `read_durable` a reader's snapshot, taken before this lock, becomes durable first.
    fn after_lock(&self, attachment: &Attachment, slot: usize, shared: bool) -> c_int {
        if !shared || slot < FIRST_READ || !self.settings().read_durable {
            return ffi::OK;
        }
        match attachment.committer().map_or(Ok(()), Committer::wait_all) {
            Ok(()) => ffi::OK,
            Err(error) => {
                if let Some(holder) = &*self.holder.lock().unwrap_or_else(PoisonError::into_inner) {
                    holder.unlock_shared(slot);
                }
                self.registration.fail(&Failure::of(&error, During::Sync))
            }
        }
    }

    /// Gives every lock of the wal-index back.
    pub fn release_shared_memory(&self) {
        let holder = self.holder.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(holder) = holder {
            holder.release();
        }
    }

    /// The bytes at the file's beginning as they are on disk, and how many there are.
    pub fn raw_header(&self) -> Result<([u8; HEADER_BYTES], usize), Failure> {
        let mut header = [0; HEADER_BYTES];
        let failed =
            |code: c_int| Failure::new(code, format!("cannot read the header of {}", self.path.display()));
        match self.base.read(&mut header, 0) {
            ffi::OK => Ok((header, HEADER_BYTES)),
            ffi::IOERR_SHORT_READ => {
                let size = self.base.size().map_err(failed)?;
                // A file that grew meanwhile counts as what was read: no database yet.
                Ok((header, usize::try_from(size).map_or(0, |size| size.min(HEADER_BYTES - 1))))
            }
            code => Err(failed(code)),
        }
    }

    /// What the file says about itself; the guard is seen here as it is on disk.
    pub fn header(&self) -> Result<DatabaseHeader, Failure> {
        for _ in 1..HEADER_TRIES {
            let (header, len) = self.raw_header()?;
            match guard::inspect(&header[..len]) {
                DatabaseHeader::Damaged => self.registration.parent.sleep(HEADER_PAUSE_US),
                found => return Ok(found),
            }
        }
        let (header, len) = self.raw_header()?;
        Ok(guard::inspect(&header[..len]))
    }

    /// After a read of `buf` at `offset`: shows SQLite what it wrote.
    pub fn unmask(&self, offset: u64, buf: &mut [u8]) -> Result<(), Failure> {
        let end = offset + buf.len() as u64;
        let covers_versions = offset <= VERSIONS.start && VERSIONS.end <= end;
        let touches = |range: &std::ops::Range<u64>| offset < range.end && range.start < end;
        if !touches(&VERSIONS) && !touches(&LOG_ID) || !self.is_capable() {
            return Ok(());
        }
        let guarded = if covers_versions {
            let at = usize::try_from(VERSIONS.start - offset).unwrap_or(0);
            buf.get(at..at + 2) == Some(&[guard::GUARD; 2])
        } else {
            matches!(self.header()?, DatabaseHeader::Guarded { .. })
        };
        if guarded {
            guard::unmask(offset, buf);
        }
        Ok(())
    }

    /// Writes to the database file for SQLite (invariants 1 and 5).
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<c_int, Failure> {
        let Some(attachment) = self.attached() else {
            if offset < guard::MASKED_END && matches!(self.header()?, DatabaseHeader::Guarded { .. }) {
                let message =
                    format!("{} has commits in a log; refused to overwrite its guard", self.path.display());
                return Err(Failure::new(ffi::IOERR_WRITE, message));
            }
            return Ok(self.base.write(data, offset));
        };
        attachment.log().before_home_write().map_err(|error| Failure::of(&error, During::Write))?;
        if offset < guard::MASKED_END {
            let mut masked = data.to_vec();
            guard::mask(offset, &mut masked, attachment.id());
            return Ok(self.base.write(&masked, offset));
        }
        Ok(self.base.write(data, offset))
    }

    /// Truncates the database file for SQLite (invariant 5).
    pub fn truncate(&self, size: i64) -> Result<c_int, Failure> {
        if let Some(attachment) = self.attached() {
            attachment.log().before_home_write().map_err(|error| Failure::of(&error, During::Truncate))?;
        }
        Ok(self.base.truncate(size))
    }

    /// Syncs the database file for SQLite, and remembers a failure.
    pub fn base_sync(&self, flags: c_int) -> c_int {
        let code = self.base.sync(flags);
        if code != ffi::OK {
            self.sync_failed.store(true, Ordering::Relaxed);
        }
        code
    }

    /// The path of a file of SQLite's beside the database, by what its name ends with.
    pub fn beside(&self, end: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(end);
        name.into()
    }

    /// Whether the guard is on could not be made durable.
    pub fn header_is_in_doubt(&self) {
        self.header_in_doubt.store(true, Ordering::Relaxed);
    }

    /// Refuses this rollback journal if it is of a database whose guard is in doubt: after a power loss the
    /// guard might be there, and keep SQLite from rolling back.
    pub fn check_journal(&self, journal: &Path) -> Result<(), Failure> {
        if !self.header_in_doubt.load(Ordering::Relaxed) || journal != self.beside("-journal") {
            return Ok(());
        }
        let message = format!(
            "syncing the first page of {} has failed; nothing is lost: close the database and open it again",
            self.path.display()
        );
        Err(Failure::new(ffi::IOERR_FSYNC, message))
    }

    /// Makes the database file durable, so that the log may forget what it holds.
    pub fn sync(&self, flags: c_int) -> Result<(), Failure> {
        if self.sync_failed.load(Ordering::Relaxed) {
            let message = format!(
                "syncing {} has failed before; the log keeps its content: close the database and open it again",
                self.path.display()
            );
            return Err(Failure::new(ffi::IOERR_FSYNC, message));
        }
        match self.base_sync(flags) {
            ffi::OK => Ok(()),
            code => Err(Failure::new(code, format!("cannot sync {}", self.path.display()))),
        }
    }

    /// Size of the `-wal` file of the base VFS; `None` when there is none.
    pub fn base_wal_bytes(&self) -> Result<Option<u64>, Failure> {
        let name = self.beside("-wal");
        // The base VFS is asked second: it says of an empty file that it does not exist.
        if let Ok(metadata) = std::fs::metadata(name) {
            return Ok(Some(metadata.len()));
        }
        match self.registration.parent.exists(self.wal_name.as_ptr()) {
            // It keeps it elsewhere, and stock SQLite has to look into it.
            Ok(true) => Ok(Some(u64::MAX)),
            Ok(false) => Ok(None),
            Err(code) => {
                Err(Failure::new(code, format!("cannot examine the -wal of {}", self.path.display())))
            }
        }
    }
}
