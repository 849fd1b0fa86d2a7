//! What SQLite does on a concurrent connection: it maps and locks its private wal-index, and reads and writes
//! pages. Here is what each of these calls becomes.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use duralite_format::sqlite_wal::{FRAME_HEADER_BYTES, WAL_HEADER_BYTES};
use duralite_format::wal_index::{
    ATTEMPTED_WORD, BACKFILLED_WORD, FIRST_MARK_WORD, IndexHeader, MARK_NOT_USED, MARKS,
};
use duralite_locks::{CHECKPOINT, FIRST_READ, Holder, LockError, WRITE};
use duralite_sqlite_ffi as ffi;
use duralite_wal::metrics::Counter;

use super::lease::Lease;
use super::memory::Private;
use super::page_set::PageSet;
use super::publish::random;
use super::shared_index::SharedIndex;
use super::snapshot::{Snapshot, cannot_lock, read_page, recover};
use crate::attachment::Attachment;
use crate::database::{Db, restart, waiting};
use crate::errors::Failure;
use crate::settings::Concurrency;
use crate::sqlite::VFS_NAME;
use crate::sqlite::connection::{OwnConnection, uri_of};

/// A connection whose wal-index is its own.
pub struct Concurrent {
    pub(super) attachment: Arc<Attachment>,
    pub(super) holder: Arc<Holder>,
    mode: Concurrency,
    pub(super) page_bytes: usize,
    state: Mutex<State>,
    /// Whether SQLite is in a checkpoint.
    checkpoints: AtomicBool,
}

/// Where the connection is between two transactions or in one.
#[derive(Default)]
pub(super) struct State {
    index: Private,
    /// What the connection reads; `None` between transactions.
    pub(super) snapshot: Option<Snapshot>,
    /// Whether SQLite, which has just been shown another header, takes its read lock anew.
    is_beginning: bool,
    /// Bits of the locks of the private wal-index that SQLite holds.
    shared: u8,
    exclusive: u8,
    pub(super) write: Write,
    /// The state of the log that SQLite's cache agrees with; `None` where SQLite has to drop its cache.
    pub(super) cache: Option<IndexHeader>,
    /// The pages that SQLite may have in its cache (invariant 58).
    pub(super) read: PageSet,
    /// What SQLite has written to its WAL: the header, and frames.
    pub(super) wal: Vec<u8>,
    /// How many of these frames are committed.
    pub(super) committed: u32,
    /// The state of the log after this transaction's commit, while its snapshot lasts.
    pub(super) after: Option<IndexHeader>,
    /// Counts headers shown to SQLite.
    changes: u32,
    pub(super) luck: Luck,
    pub(super) lease: Lease,
}

/// Whether to try transactions that are validated when they commit. Where others use the same pages, as at the
/// right edge of a table to which all append, a transaction had better take WRITE when it begins to write: it
/// then cannot be overtaken. After each conflict twice as many transactions do so before the next one is tried
/// without.
#[derive(Default)]
pub(super) struct Luck {
    /// How many transactions are to take WRITE.
    left: u8,
    /// How many will after the next conflict, less one.
    next: u8,
}

/// The most transactions that take WRITE after a conflict.
const LONGEST_DETOUR: u8 = 32;

impl Luck {
    /// Whether a transaction had better take WRITE.
    fn is_out(&self) -> bool {
        self.left > 0
    }

    /// A transaction was overtaken.
    pub fn lost(&mut self) {
        self.left = self.next + 1;
        self.next = (2 * self.next + 1).min(LONGEST_DETOUR - 1);
    }

    /// A transaction has committed, after it was validated or under WRITE.
    pub fn won(&mut self, was_validated: bool) {
        if was_validated {
            self.next /= 2;
        } else {
            self.left = self.left.saturating_sub(1);
        }
    }
}

/// What a connection may write, and how it comes to that right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Write {
    /// Nothing.
    #[default]
    Not,
    /// It has the real WRITE lock, at the newest commit.
    Locked,
    /// It writes to its buffer, and is validated when it commits.
    Validated,
}

impl Concurrent {
    /// Makes a connection to this log concurrent, before SQLite has mapped the wal-index.
    pub fn begin(
        db: &Db,
        attachment: &Arc<Attachment>,
        holder: Arc<Holder>,
        mode: Concurrency,
    ) -> Result<Self, Failure> {
        let page_bytes = attachment.log().page_bytes() as usize;
        let new = Self {
            attachment: Arc::clone(attachment),
            holder,
            mode,
            page_bytes,
            state: Mutex::default(),
            checkpoints: AtomicBool::new(false),
        };
        let header = new.settled_header(db)?;
        let mut state = new.state();
        state.index.address(0, true);
        state.show(&header);
        drop(state);
        Ok(new)
    }

    /// The header of the real wal-index, made anew if no connection has made it or if one died at it.
    pub(super) fn settled_header(&self, db: &Db) -> Result<IndexHeader, Failure> {
        for tries in 0..50 {
            if let Some(header) = self.index().header()? {
                return Ok(header);
            }
            if tries > 1 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            recover(db, tries)?;
        }
        Err(Failure::new(ffi::BUSY, format!("the wal-index of {} is being recovered", db.path.display())))
    }

    pub(super) fn index(&self) -> SharedIndex<'_> {
        SharedIndex(&self.attachment)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `xShmMap`: the address of a private region.
    pub fn map(&self, number: usize, extend: bool) -> Option<*mut c_void> {
        self.state().index.address(number, extend)
    }

    /// `xShmLock`, to lock.
    pub fn lock(&self, db: &Db, first: usize, count: usize, shared: bool) -> Result<c_int, Failure> {
        if shared {
            return self.lock_shared(db, first);
        }
        let code = match (first, count) {
            (WRITE, 1) if self.checkpoints.load(Ordering::Relaxed) => {
                self.checkpoint(db, c"PRAGMA wal_checkpoint(FULL)")?
            }
            (WRITE, _) => self.lock_write(db)?,
            (CHECKPOINT, 1) => {
                let code = self.checkpoint(db, c"PRAGMA wal_checkpoint(PASSIVE)")?;
                self.checkpoints.store(code == ffi::OK, Ordering::Relaxed);
                code
            }
            (FIRST_READ.., 2..) if self.checkpoints.load(Ordering::Relaxed) => {
                self.checkpoint(db, c"PRAGMA wal_checkpoint(RESTART)")?
            }
            _ => ffi::OK,
        };
        if code == ffi::OK {
            self.state().exclusive |= mask(first, count);
        }
        Ok(code)
    }

    fn lock_shared(&self, db: &Db, first: usize) -> Result<c_int, Failure> {
        let mut state = self.state();
        if first >= FIRST_READ {
            if state.snapshot.is_none() {
                drop(state);
                let code = self.begin_to_read(db)?;
                if code != ffi::OK {
                    return Ok(code);
                }
                state = self.state();
            } else {
                state.is_beginning = false;
            }
        }
        state.shared |= mask(first, 1);
        Ok(ffi::OK)
    }

    /// Takes a snapshot. SQLite has its first read mark of the private wal-index then. If its cache is of
    /// another moment, SQLite finds another header, gives the lock back, and takes it again.
    fn begin_to_read(&self, db: &Db) -> Result<c_int, Failure> {
        if self.holder.begins() {
            restart::keep(db, &self.attachment);
        }
        let snapshot = Snapshot::take(db, self.index(), &self.holder)?;
        let code = db.after_mark(&self.attachment);
        if code != ffi::OK {
            snapshot.release(&self.holder);
            return Ok(code);
        }
        let mut state = self.state();
        let is_cached = state.cache == Some(snapshot.header) && !state.lease.is_to_be_renewed();
        if !is_cached {
            drop(state);
            if let Err(failure) = self.renew_lease(db, &snapshot) {
                snapshot.release(&self.holder);
                return Err(failure);
            }
            state = self.state();
            state.show(&snapshot.header);
            state.read.clear();
            state.cache = Some(snapshot.header);
            state.is_beginning = true;
        }
        state.snapshot = Some(snapshot);
        Ok(ffi::OK)
    }

    /// SQLite wants to write. A transaction that the application has begun is validated when it commits, with
    /// `concurrent=on`. Every other one takes the real WRITE lock.
    fn lock_write(&self, db: &Db) -> Result<c_int, Failure> {
        let in_transaction = db.host.is_in_transaction(db.sqlite).unwrap_or(false);
        let mut state = self.state();
        if state.snapshot.is_none() {
            // Some builds of SQLite take WRITE before they read anything, and take a snapshot after that.
            drop(state);
            let code = self.lock_real_write(db, false)?;
            if code == ffi::OK {
                self.state().write = Write::Locked;
            }
            return Ok(code);
        }
        if in_transaction
            && self.mode == Concurrency::On
            && state.after.is_none()
            && !state.luck.is_out()
            && db.host.has_one_database(db.sqlite)
        {
            state.write = Write::Validated;
            return Ok(ffi::OK);
        }
        drop(state);
        let code = self.lock_real_write(db, in_transaction)?;
        if code != ffi::OK {
            return Ok(code);
        }
        match self.move_to_newest(db) {
            Ok(()) => {
                self.state().write = Write::Locked;
                Ok(ffi::OK)
            }
            Err(failure) => {
                self.unlock_real_write();
                // If nothing was read in the transaction, SQLite begins it anew once the busy handler agrees,
                // which waits for WRITE.
                waiting::refused(&self.holder);
                Err(failure)
            }
        }
    }

    /// Takes the real WRITE lock. A connection in a transaction waits for it here, as long as its busy handler
    /// agrees: SQLite does not ask that handler for a transaction that has read.
    pub(super) fn lock_real_write(&self, db: &Db, waits: bool) -> Result<c_int, Failure> {
        let mut has_waited = false;
        loop {
            match self.holder.lock_exclusive(WRITE, 1) {
                Ok(()) => {
                    if !waits && restart::is_ahead(&self.attachment, &self.holder) {
                        self.holder.unlock_exclusive(WRITE, 1);
                        return Ok(ffi::BUSY);
                    }
                    self.attachment.set_writer(true);
                    db.begins_to_write();
                    if has_waited && self.state().write == Write::Not {
                        self.attachment.count(Counter::UpgradesWaited);
                    }
                    return Ok(ffi::OK);
                }
                Err(LockError::Busy) => {}
                Err(error) => return Err(cannot_lock(db, &error)),
            }
            self.attachment.count(Counter::Refusals);
            if !waits {
                waiting::refused(&self.holder);
                return Ok(ffi::BUSY);
            }
            if self.attachment.writer_is_here() {
                // A connection of this very thread has WRITE, and cannot give it back meanwhile.
                return Ok(ffi::BUSY);
            }
            waiting::refused_in_transaction(&self.holder);
            has_waited = true;
            if !db.host.is_patient() {
                waiting::forget();
                return Ok(ffi::BUSY);
            }
        }
    }

    pub(super) fn unlock_real_write(&self) {
        self.attachment.log().end_write();
        self.attachment.set_writer(false);
        self.holder.unlock_exclusive(WRITE, 1);
    }

    /// `xShmLock`, to unlock.
    pub fn unlock(&self, db: &Db, first: usize, count: usize, shared: bool) {
        let mut state = self.state();
        if shared {
            state.shared &= !mask(first, count);
        } else {
            state.exclusive &= !mask(first, count);
            if first == CHECKPOINT {
                self.checkpoints.store(false, Ordering::Relaxed);
            }
            if first == WRITE {
                if std::mem::take(&mut state.write) == Write::Locked {
                    self.unlock_real_write();
                }
                let committed = state.committed;
                let end = self.offset_of(committed + 1);
                state.wal.truncate(end);
            }
        }
        let reads = state.shared >> FIRST_READ != 0 || state.is_beginning;
        if !reads && state.write == Write::Not && state.snapshot.is_some() {
            let has_committed = state.end(&self.holder);
            drop(state);
            if has_committed {
                self.checkpoint_if_due(db);
            }
        }
    }

    /// Ends everything: SQLite gives its wal-index back.
    pub fn release(&self) {
        let mut state = self.state();
        if std::mem::take(&mut state.write) == Write::Locked {
            self.unlock_real_write();
        }
        state.end(&self.holder);
        state.cache = None;
        state.lease.drop_pages(self.attachment.leases());
    }

    /// Whether the connection holds a snapshot.
    pub fn is_reading(&self) -> bool {
        self.state().snapshot.is_some()
    }

    /// Where a frame begins in SQLite's WAL, counted from 1.
    pub(super) fn offset_of(&self, frame: u32) -> usize {
        WAL_HEADER_BYTES + (frame as usize - 1) * (FRAME_HEADER_BYTES + self.page_bytes)
    }

    /// `xRead` of the database file. `None` where SQLite has no snapshot, or does not ask for a page.
    pub fn read(&self, db: &Db, buf: &mut [u8], offset: u64) -> Option<Result<c_int, Failure>> {
        let page_bytes = self.page_bytes as u64;
        let mut state = self.state();
        let snapshot = state.snapshot?;
        let page = u32::try_from(offset / page_bytes + 1).ok()?;
        let within = usize::try_from(offset % page_bytes).ok()?;
        if let Some(shown) = state.lease.page(page) {
            let part = shown.get(within..)?;
            let count = part.len().min(buf.len());
            buf[..count].copy_from_slice(&part[..count]);
            return (count == buf.len()).then_some(Ok(ffi::OK));
        }
        state.read.insert(page);
        drop(state);
        if buf.len() as u64 == page_bytes && offset.is_multiple_of(page_bytes) {
            return Some(read_page(db, self.index(), &snapshot, page, buf).map(|()| ffi::OK));
        }
        let mut whole = vec![0; self.page_bytes];
        let read = read_page(db, self.index(), &snapshot, page, &mut whole);
        Some(read.map(|()| {
            let part = whole.get(within..).unwrap_or_default();
            let count = part.len().min(buf.len());
            buf[..count].copy_from_slice(&part[..count]);
            buf[count..].fill(0);
            if count < buf.len() { ffi::IOERR_SHORT_READ } else { ffi::OK }
        }))
    }

    /// The size of the database in bytes, as of the snapshot.
    pub fn size(&self) -> Option<u64> {
        let pages = self.state().snapshot?.header.db_pages();
        (pages > 0).then(|| u64::from(pages) * self.page_bytes as u64)
    }

    /// `xRead` of the WAL.
    pub fn read_wal(&self, buf: &mut [u8], offset: u64) -> c_int {
        let state = self.state();
        let written = usize::try_from(offset).ok().and_then(|offset| state.wal.get(offset..));
        let written = written.unwrap_or_default();
        let count = written.len().min(buf.len());
        buf[..count].copy_from_slice(&written[..count]);
        buf[count..].fill(0);
        if count < buf.len() { ffi::IOERR_SHORT_READ } else { ffi::OK }
    }

    /// The size of the WAL in bytes.
    pub fn wal_bytes(&self) -> usize {
        self.state().wal.len()
    }

    /// SQLite truncates the WAL: after a checkpoint of that kind, or because its own log is shorter now.
    pub fn truncate_wal(&self, db: &Db) -> Result<c_int, Failure> {
        if !self.checkpoints.load(Ordering::Relaxed) {
            return Ok(ffi::OK);
        }
        self.checkpoint(db, c"PRAGMA wal_checkpoint(TRUNCATE)")
    }

    /// SQLite is about to overwrite the whole database (`VACUUM`): under WRITE, which a transaction that would
    /// be validated at its commit takes now.
    pub fn overwrites(&self, db: &Db) -> Result<c_int, Failure> {
        if self.state().write != Write::Validated {
            return Ok(ffi::OK);
        }
        let code = self.lock_real_write(db, true)?;
        if code == ffi::OK {
            if let Err(failure) = self.move_to_newest(db) {
                self.unlock_real_write();
                return Err(failure);
            }
            self.state().write = Write::Locked;
        }
        Ok(code)
    }

    /// SQLite has EXCLUSIVE, and no snapshot: it closes the WAL, or leaves WAL mode. It takes everything for
    /// checkpointed. So this puts what is in the log home.
    pub fn put_home(&self, db: &Db) -> Result<(), Failure> {
        db.put_home_alone(&self.attachment)
    }

    /// Lets SQLite, on a connection that it serves directly, checkpoint the real log.
    fn checkpoint(&self, db: &Db, how: &std::ffi::CStr) -> Result<c_int, Failure> {
        if db.reserves_bytes().unwrap_or(true) {
            return Ok(ffi::BUSY);
        }
        let uri = uri_of(&db.path, &db.settings().parameters())?;
        let wait = waiting::in_queue(std::time::Duration::ZERO, std::time::Duration::ZERO);
        let own = OwnConnection::open(&db.sqlite.api, &uri, VFS_NAME, wait, "cannot checkpoint")?;
        let busy = own.run(how)?;
        Ok(if busy == Some(0) { ffi::OK } else { ffi::BUSY })
    }

    /// Checkpoints if the log has got as long as SQLite lets it get: SQLite, which sees a short log of its own,
    /// does not do it. Failures do not concern the transaction, which is over.
    fn checkpoint_if_due(&self, db: &Db) {
        let due = db.settings().autocheckpoint;
        let has_thread = self.attachment.maintenance().is_some();
        if due == 0 || has_thread || !self.attachment.bound().is_due(due) {
            return;
        }
        self.attachment.bound().checkpoints();
        if restart::yields(&self.attachment) {
            return;
        }
        if let Err(failure) = self.checkpoint(db, c"PRAGMA wal_checkpoint(PASSIVE)") {
            db.sqlite.report(ffi::NOTICE, &failure.message);
        }
    }
}

fn mask(first: usize, count: usize) -> u8 {
    ((((1_u16 << count) - 1) << first) & 0xff) as u8
}

impl State {
    /// Shows SQLite a wal-index without frames that is as large as the database at this moment. SQLite drops
    /// its cache.
    fn show(&mut self, header: &IndexHeader) {
        self.changes = self.changes.wrapping_add(1);
        let salt = [random(), random()];
        let shown = header.private(self.changes, salt);
        let Some(first) = self.index.first() else { return };
        first.set_header(&shown);
        first.store(BACKFILLED_WORD, 0);
        first.store(ATTEMPTED_WORD, 0);
        first.store(FIRST_MARK_WORD, 0);
        first.store(FIRST_MARK_WORD + 1, 0);
        (2..MARKS).for_each(|mark| first.store(FIRST_MARK_WORD + mark, MARK_NOT_USED));
        self.wal.clear();
        self.committed = 0;
    }

    /// Ends the transaction: gives the snapshot back, and lets the private wal-index say that everything is in
    /// the database. Returns whether the transaction has committed.
    fn end(&mut self, holder: &Holder) -> bool {
        let Some(snapshot) = self.snapshot.take() else { return false };
        snapshot.release(holder);
        self.is_beginning = false;
        let header = self.index.first().and_then(|first| first.header());
        let frames = header.map_or(0, |header| header.frames());
        if let Some(first) = self.index.first() {
            first.store(BACKFILLED_WORD, frames);
        }
        let after = self.after.take();
        if let Some(after) = &after {
            // SQLite has the transaction in its cache if it has published it in its own wal-index too.
            let is_known = header.is_some() && frames == self.committed;
            self.cache = self.cache.filter(|cache| is_known && cache == after);
        }
        self.wal.clear();
        self.committed = 0;
        after.is_some()
    }
}

impl Db {
    /// Makes this connection concurrent if the settings say so and it can be: SQLite maps the first region of
    /// the wal-index.
    pub(in crate::database) fn begin_concurrency(
        &self,
        attachment: &Arc<Attachment>,
    ) -> Result<Option<Arc<Concurrent>>, Failure> {
        let mode = self.settings().concurrent;
        if mode == Concurrency::Off || self.is_helper() || self.read_only || attachment.outside().is_some() {
            return Ok(None);
        }
        let Some(locks) = self.index_locks() else { return Ok(None) };
        let new = Concurrent::begin(self, attachment, Arc::clone(&locks.holder), mode)?;
        Ok(Some(Arc::new(new)))
    }
}
