//! Answers SQLite's calls on a concurrent connection. SQLite maps and locks the connection's private
//! wal-index, and reads and writes pages.

use std::cell::RefMut;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use duralite_format::sqlite_wal::{FRAME_HEADER_BYTES, WAL_HEADER_BYTES};
use duralite_locks::{CHECKPOINT, FIRST_READ, Holder, LockError, WRITE};
use duralite_sqlite_ffi as ffi;
use duralite_wal::metrics::Counter;

use super::checkpoint::Checkpoint;
use super::conflict::{Conflict, overtaken};
use super::pages::read_page;
use super::snapshot::{Snapshot, cannot_lock};
use super::state::{ALONE, Concurrent, State, Write, fill};
use crate::attachment::Attachment;
use crate::database::{Db, restart, super_journal, waiting};
use crate::errors::Failure;
use crate::settings::Concurrency;

/// The largest number of frames that this VFS shows to SQLite at the beginning of the connection's own WAL.
/// There is a limit because each frame takes memory.
const MOST_SHOWN: u32 = 1 << 16;
/// The time for which a transaction may wait for WRITE while a checkpoint has WRITE and waits for the
/// transaction.
const STANDS_IN_THE_WAY: Duration = Duration::from_millis(1);
/// The time for which a transaction waits for WRITE if another connection has taken WRITE on the same thread.
/// That connection may be on another thread by now, as in programs that share threads between connections. If
/// it is still on this thread, it cannot give WRITE back while this thread waits.
const WRITER_MAY_BE_HERE: Duration = Duration::from_millis(500);
/// The time for which a transaction waits for WRITE while a checkpoint has WRITE, if it is not known whether
/// the checkpoint waits for the transaction or is at work.
const MAY_STAND_IN_THE_WAY: Duration = Duration::from_millis(50);

impl Concurrent {
    /// Makes a connection to this log concurrent, before SQLite has mapped the wal-index.
    fn begin(
        db: &Db,
        attachment: &Arc<Attachment>,
        holder: Arc<Holder>,
        mode: Concurrency,
    ) -> Result<Self, Failure> {
        let new = Self::new(Arc::clone(attachment), holder, mode);
        let header = new.settled_header(db, false)?;
        attachment.has_concurrent_from_now_on();
        let mut state = new.state();
        state.index.address(0, true);
        state.show(&header, 0, false);
        drop(state);
        Ok(new)
    }

    /// Takes a lock for SQLite (`xShmLock`).
    pub fn lock(&self, db: &Db, first: usize, count: usize, shared: bool) -> Result<c_int, Failure> {
        if shared {
            return self.lock_shared(db, first);
        }
        match (first, count) {
            (WRITE, 1) if self.checkpoints.load(Ordering::Relaxed) => {
                self.checkpoint_for_sqlite(db, Checkpoint::Full)
            }
            (WRITE, _) => self.lock_write(db),
            (CHECKPOINT, 1) => {
                let is_automatic =
                    std::mem::take(&mut self.state().has_just_committed) && !db.host.is_in_pragma(db.sqlite);
                let code = if is_automatic {
                    self.checkpoint_after_commit(db)?
                } else {
                    self.checkpoint_for_sqlite(db, Checkpoint::Passive)?
                };
                self.checkpoints.store(code == ffi::OK, Ordering::Relaxed);
                Ok(code)
            }
            (FIRST_READ.., 2..) if self.checkpoints.load(Ordering::Relaxed) => {
                self.checkpoint_for_sqlite(db, Checkpoint::Restart)
            }
            (FIRST_READ.., 1) if self.is_partial.load(Ordering::Relaxed) => Ok(ffi::BUSY),
            _ => Ok(ffi::OK),
        }
    }

    fn lock_shared(&self, db: &Db, first: usize) -> Result<c_int, Failure> {
        let mut state = self.state();
        if first >= FIRST_READ {
            if state.snapshot.is_none() {
                return self.begin_to_read(db, state, mask(first, 1));
            }
            state.is_beginning = false;
        }
        state.shared |= mask(first, 1);
        Ok(ffi::OK)
    }

    /// Takes a snapshot, and then gives SQLite the lock `mark` of the private wal-index. If SQLite's cache
    /// belongs to another snapshot, this function also changes the private header. SQLite then finds that the
    /// header has changed, gives the lock back, and takes it again.
    fn begin_to_read<'a>(
        &'a self,
        db: &Db,
        mut state: RefMut<'a, State>,
        mark: u8,
    ) -> Result<c_int, Failure> {
        state.has_just_committed = false;
        if self.holder.begins() {
            restart::start_over_if_due(db, &self.attachment);
            // A statement outside a transaction is soon over, so it need not wait for the gate.
            if self.attachment.gate().is_taken() && db.host.is_in_transaction(db.sqlite) == Some(true) {
                restart::wait_for_gate(&self.attachment);
            }
        }
        let index = self.index();
        let snapshot = match state.last.map_or(Ok(None), |last| last.again(index, &self.holder))? {
            Some(snapshot) => snapshot,
            None => Snapshot::take(index, &self.holder, || self.settled_header(db, false))?,
        };
        let code = db.after_mark(&self.attachment);
        if code != ffi::OK {
            snapshot.release(&self.holder);
            return Ok(code);
        }
        // A transaction that takes WRITE needs no lease.
        let is_to_be_renewed = !state.luck.is_out() && state.lease.is_to_be_renewed(state.others > 0);
        let is_cached = state.cache == Some(snapshot.header) && !is_to_be_renewed;
        #[cfg(feature = "controls")]
        let is_cached = is_cached || state.cache.is_some() && super::controls::Control::Undropped.is_on();
        if is_cached && mark != mask(FIRST_READ, 1) && snapshot.is_in_file() {
            // The log starts over with the next write, so let SQLite's WAL start over too. SQLite tries again
            // at once, and finds that its whole WAL is in the database.
            snapshot.release(&self.holder);
            state.all_is_home();
            return Ok(ffi::BUSY);
        }
        if !is_cached {
            if state.own.is_some_and(|own| own != snapshot.header) {
                state.others = ALONE;
            }
            drop(state);
            if let Err(failure) = self.renew_lease(db, &snapshot) {
                snapshot.release(&self.holder);
                return Err(failure);
            }
            state = self.state();
            state.show(&snapshot.header, snapshot.header.frames().min(MOST_SHOWN), snapshot.is_in_file());
            state.read.clear();
            state.cache = Some(snapshot.header);
            state.is_beginning = true;
        }
        state.snapshot = Some(snapshot);
        state.shared |= mark;
        Ok(ffi::OK)
    }

    /// Answers SQLite's request for the right to write. With `concurrent=on`, a transaction that the
    /// application has begun takes no lock here, because this VFS validates it when it commits. Every other
    /// transaction takes the real WRITE lock now.
    fn lock_write(&self, db: &Db) -> Result<c_int, Failure> {
        // Forget the super-journal here, when a transaction begins to write. A validated transaction takes
        // the real WRITE only in its COMMIT, and by then SQLite has opened the super-journal of that COMMIT.
        super_journal::forget();
        let in_transaction = db.host.is_in_transaction(db.sqlite).unwrap_or(false);
        let mut state = self.state();
        if state.snapshot.is_none() {
            // Some builds of SQLite take WRITE before they read anything, and only then take a snapshot.
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
            state.writes_since = Some(self.attachment.clock_ns());
            return Ok(ffi::OK);
        }
        drop(state);
        // If the transaction has read nothing, SQLite itself waits and begins it again, as with
        // `concurrent=off`. SQLite then has the lock together with a snapshot that no other transaction has
        // overtaken.
        let waits = in_transaction && !db.host.has_read_nothing(db.sqlite);
        self.lock_at_newest(db, waits)
    }

    /// Takes the real WRITE lock for a connection that has a snapshot, and moves that snapshot to the newest
    /// commit.
    fn lock_at_newest(&self, db: &Db, waits: bool) -> Result<c_int, Failure> {
        let code = self.lock_real_write(db, waits)?;
        if code == ffi::OK {
            self.move_to_newest(db).inspect_err(|_| {
                self.unlock_real_write();
                // If the transaction has read nothing, SQLite begins it again once the busy handler agrees.
                // The busy handler waits for WRITE.
                waiting::refused(&self.holder);
            })?;
        }
        Ok(code)
    }

    /// Takes the real WRITE lock. A connection in a transaction waits here for the lock, as long as its busy
    /// handler agrees. SQLite itself does not call that handler for a transaction that has read.
    pub(super) fn lock_real_write(&self, db: &Db, waits: bool) -> Result<c_int, Failure> {
        // Set while there is a reason not to wait for long: the longest wait for that reason, and the time at
        // which the reason began.
        let mut in_the_way: Option<(Duration, Instant)> = None;
        let mut has_waited = false;
        loop {
            match self.holder.lock_exclusive(WRITE, 1) {
                Ok(()) => {
                    if !waits && restart::must_make_room(db, &self.attachment, &self.holder) {
                        self.holder.unlock_exclusive(WRITE, 1);
                        return Ok(ffi::BUSY);
                    }
                    self.has_real_write(db);
                    if has_waited && self.state().write == Write::Not {
                        self.attachment.count(Counter::UpgradesWaited);
                    }
                    return Ok(ffi::OK);
                }
                Err(LockError::Busy) => {}
                Err(error) => return Err(cannot_lock(&error)),
            }
            self.attachment.count(Counter::Refusals);
            if !waits {
                waiting::refused(&self.holder);
                return Ok(ffi::BUSY);
            }
            let patience = match self.keeps_a_checkpoint_waiting()? {
                Some(true) => Some(STANDS_IN_THE_WAY),
                None => Some(MAY_STAND_IN_THE_WAY),
                Some(false) => self.attachment.writer_is_here().then_some(WRITER_MAY_BE_HERE),
            };
            in_the_way = patience.map(|patience| match in_the_way {
                Some((before, since)) if before == patience => (patience, since),
                _ => (patience, Instant::now()),
            });
            if in_the_way.is_some_and(|(patience, since)| since.elapsed() >= patience) {
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

    /// Takes the real WRITE lock if it is free. Returns whether it was free.
    pub(super) fn try_real_write(&self, db: &Db) -> Result<bool, Failure> {
        match self.holder.lock_exclusive(WRITE, 1) {
            Ok(()) => {
                self.has_real_write(db);
                Ok(true)
            }
            Err(LockError::Busy) => Ok(false),
            Err(error) => Err(cannot_lock(&error)),
        }
    }

    fn has_real_write(&self, db: &Db) {
        self.attachment.set_writer(true);
        self.attachment.complete_start_over();
        db.begins_to_write();
    }

    /// Returns whether a checkpoint has WRITE and waits for this connection to give its snapshot back. If so,
    /// each waits for the other until the time limit of one of them is over. Returns `None` if it is not
    /// known whether the checkpoint waits.
    pub(super) fn keeps_a_checkpoint_waiting(&self) -> Result<Option<bool>, Failure> {
        let snapshot = self.state().snapshot.filter(|_| self.holder.table().is_write_taken_to_checkpoint());
        snapshot.map_or(Ok(Some(false)), |snapshot| snapshot.is_in_the_way(self.index()))
    }

    pub(super) fn unlock_real_write(&self) {
        self.attachment.log().end_write();
        self.attachment.set_writer(false);
        self.holder.unlock_exclusive(WRITE, 1);
    }

    /// Gives a lock back for SQLite (`xShmLock`).
    pub fn unlock(&self, first: usize, count: usize, shared: bool) {
        let mut state = self.state();
        if shared {
            state.shared &= !mask(first, count);
        } else {
            if first == CHECKPOINT {
                self.checkpoints.store(false, Ordering::Relaxed);
                self.is_partial.store(false, Ordering::Relaxed);
                self.tries_again.store(false, Ordering::Relaxed);
            }
            if first == WRITE {
                if std::mem::take(&mut state.write) == Write::Locked {
                    self.unlock_real_write();
                }
                let committed = self.committed_bytes(&state);
                state.wal.truncate(committed);
                (state.large, state.large_from) = (None, 0);
            }
        }
        let reads = state.shared >> FIRST_READ != 0 || state.is_beginning;
        if !reads && state.write == Write::Not && state.snapshot.is_some() {
            state.end(&self.holder);
        }
    }

    /// Ends everything that the connection has begun, because SQLite unmaps its wal-index.
    pub fn release(&self) {
        let mut state = self.state();
        if std::mem::take(&mut state.write) == Write::Locked {
            self.unlock_real_write();
        }
        state.end(&self.holder);
        state.cache = None;
        state.lease.drop_pages(self.attachment.leases());
    }

    /// Reads from the database file (`xRead`). Returns `None` if the connection has no snapshot, or if SQLite
    /// reads something that is not a page.
    pub fn read(&self, db: &Db, buf: &mut [u8], offset: u64) -> Option<Result<c_int, Failure>> {
        let page_bytes = self.page_bytes as u64;
        let mut state = self.state();
        let snapshot = state.snapshot?;
        let page = u32::try_from(offset / page_bytes + 1).ok()?;
        let within = usize::try_from(offset % page_bytes).ok()?;
        if let Some(shown) = state.lease.page(page) {
            return Some(Ok(fill(buf, shown, within)));
        }
        state.read.insert(page);
        let is_writing = state.write != Write::Not;
        let is_overdue = state.write == Write::Validated
            && state.writes_since.is_some_and(|since| self.attachment.is_overdue(since));
        drop(state);
        if is_overdue && db.host.is_in_select(db.sqlite) {
            return Some(Err(self.ask_to_end(db)));
        }
        let is_page = buf.len() as u64 == page_bytes && offset.is_multiple_of(page_bytes);
        let read = if is_page {
            read_page(db, self.index(), &snapshot, page, buf).map(|()| ffi::OK)
        } else {
            let mut whole = vec![0; self.page_bytes];
            let read = read_page(db, self.index(), &snapshot, page, &mut whole);
            read.map(|()| fill(buf, &whole, within))
        };
        Some(read.map_err(|failure| if is_writing { failure.amid_writes() } else { failure }))
    }

    /// Asks the application, once, to end a transaction that keeps the log from starting over. The caller
    /// does this only in a `SELECT`. In a writing statement the error would be harmful: SQLite can undo such
    /// a statement only if it has kept a statement journal, and it does not keep one for every insert.
    #[cold]
    fn ask_to_end(&self, db: &Db) -> Failure {
        let mut state = self.state();
        state.writes_since = None;
        // Make SQLite drop its cache. If SQLite runs out of memory while it rolls back, its cache may keep
        // pages that it could not read again.
        state.cache = None;
        drop(state);
        overtaken(db, &Conflict::Overdue)
    }

    /// Reads from the WAL (`xRead`). If SQLite asks for a frame that this VFS does not keep, SQLite gets the
    /// frame's page as of its snapshot. The last frame of each page holds exactly that image, and SQLite asks
    /// for no other frame.
    pub fn read_wal(&self, db: &Db, buf: &mut [u8], offset: u64) -> Result<c_int, Failure> {
        let sums = |buf: &mut [u8]| {
            // SQLite reads these headers to recompute the checksums of later frames. No reader looks at these
            // checksums.
            buf.fill(0);
            Ok(ffi::OK)
        };
        let Some((frame, within)) = self.frame_at(offset) else { return sums(buf) };
        let state = self.state();
        if let Some(at) = self.place_in_log(&state, frame) {
            drop(state);
            return self.read_large(db, buf, at + within as u64);
        }
        if let Some(behind) = frame.checked_sub(state.base + 1) {
            let code = fill(buf, &state.wal, behind as usize * self.frame_bytes() + within);
            // SQLite may have had more frames before it rolled back to a savepoint. To recompute checksums, it
            // then reads the header of one of them, even after the transaction is published and its frames are
            // forgotten. An error would become that of a `COMMIT` that has taken effect.
            let is_header = within + buf.len() <= FRAME_HEADER_BYTES;
            return Ok(if is_header { ffi::OK } else { code });
        }
        let page = state.index.page_of(frame);
        drop(state);
        let Some(within) = within.checked_sub(FRAME_HEADER_BYTES) else { return sums(buf) };
        let at = page.map(|page| u64::from(page - 1) * self.page_bytes as u64 + within as u64);
        at.and_then(|at| self.read(db, buf, at)).unwrap_or(Ok(ffi::IOERR_READ))
    }

    /// Returns the frame of SQLite's WAL that contains this offset, and the offset within that frame. Frames
    /// are counted from 1. Returns `None` if the offset is in the header of the WAL.
    pub(super) fn frame_at(&self, offset: u64) -> Option<(u32, usize)> {
        let behind = usize::try_from(offset).ok()?.checked_sub(WAL_HEADER_BYTES)?;
        let frame = u32::try_from(behind / self.frame_bytes()).ok()?.checked_add(1)?;
        Some((frame, behind % self.frame_bytes()))
    }

    /// Answers SQLite's call to truncate the WAL (`xTruncate`). If the call belongs to a checkpoint in the
    /// mode `TRUNCATE`, this function checkpoints the real log. Otherwise SQLite truncates its own WAL only
    /// because that WAL has become shorter, and there is nothing to do.
    pub fn truncate_wal(&self, db: &Db) -> Result<c_int, Failure> {
        if !self.checkpoints.load(Ordering::Relaxed) {
            return Ok(ffi::OK);
        }
        self.checkpoint(db, Checkpoint::Truncate)
    }

    /// SQLite is about to overwrite the whole database (`VACUUM`), which needs WRITE. So this function takes
    /// WRITE for a transaction that would otherwise be validated at its commit.
    pub fn overwrites(&self, db: &Db) -> Result<c_int, Failure> {
        if self.state().write != Write::Validated {
            return Ok(ffi::OK);
        }
        self.lock_at_newest(db, true)
    }

    /// Writes everything in the log to the database file. SQLite has EXCLUSIVE and no snapshot. It is closing
    /// the WAL or leaving WAL mode, and believes that everything is checkpointed.
    pub fn put_home(&self, db: &Db) -> Result<(), Failure> {
        self.state().all_is_home();
        db.put_home_alone(&self.attachment)
    }
}

impl Db {
    /// Makes this connection concurrent, if the settings say so and if this is possible. SQLite is mapping
    /// the first region of the wal-index.
    pub(in crate::database) fn begin_concurrency(
        &self,
        attachment: &Arc<Attachment>,
    ) -> Result<Option<Box<Concurrent>>, Failure> {
        let mode = self.settings().concurrent;
        if mode == Concurrency::Off || self.is_helper() || self.read_only || attachment.outside().is_some() {
            return Ok(None);
        }
        if self.reserves_bytes()? {
            // A VFS above this one may fill the reserved bytes at the ends of pages. Such a VFS has to see
            // each checkpoint.
            return Ok(None);
        }
        if self.lock.sqlites_exclusive().is_some() {
            // SQLite is leaving WAL mode or closing the database, without having read anything in WAL mode.
            // No other connection can use the database now.
            return Ok(None);
        }
        let Some(locks) = self.index_locks() else { return Ok(None) };
        let new = Concurrent::begin(self, attachment, Arc::clone(&locks.holder), mode)?;
        Ok(Some(Box::new(new)))
    }

    /// Returns the mode of concurrency that this connection has now. It is weaker than the setting if the
    /// connection cannot have the setting's mode.
    pub fn concurrency_in_force(&self) -> Concurrency {
        match self.concurrent().map(|concurrent| concurrent.mode) {
            // A SQLite without this function cannot say whether another database is attached.
            Some(Concurrency::On) if self.sqlite.api.db_name.is_none() => Concurrency::Upgrade,
            mode => mode.unwrap_or(Concurrency::Off),
        }
    }
}

fn mask(first: usize, count: usize) -> u8 {
    ((((1_u16 << count) - 1) << first) & 0xff) as u8
}
