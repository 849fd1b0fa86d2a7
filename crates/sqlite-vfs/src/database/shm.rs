//! SQLite's calls about the wal-index of a database whose WAL is in a log: `xShmMap`, `xShmLock`,
//! `xShmBarrier`, `xShmUnmap`. The log provides the memory and the locks of that wal-index.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use duralite_format::sqlite_wal::{FRAME_HEADER_BYTES, WAL_HEADER_BYTES};
use duralite_format::wal_index::Place;
use duralite_locks::{CHECKPOINT, FIRST_READ, Holder, LockError, SLOTS, WRITE, is_start_over};
use duralite_medium::MediumError;
use duralite_sqlite_ffi as ffi;
use duralite_wal::LogError;
use duralite_wal::engine::DurabilityWaiter;
use duralite_wal::metrics::Counter;
use duralite_wal::placement::Outside;

use super::wal_index::IndexLocks;
use super::{Concurrent, Db, replicated, restart, super_journal, waiting};
use crate::attachment::Attachment;
use crate::errors::{During, Failure};

impl Db {
    /// Returns the address of a region of the wal-index, with the code for SQLite. The address is null if the
    /// region does not exist and `extend` does not ask to make it. Returns `None` while no log is open. The
    /// wal-index then belongs to the base VFS.
    pub fn map_index(&self, region: c_int, extend: bool) -> Option<Result<(c_int, *mut c_void), Failure>> {
        let attachment = self.active()?;
        let number = u64::try_from(region).ok()?;
        match self.map_own(&attachment, number, extend) {
            Ok(Some(address)) => return Some(Ok((ffi::OK, address))),
            Ok(None) => {}
            Err(failure) => return Some(Err(failure)),
        }
        let mut code = ffi::OK;
        if attachment.outside().is_some() {
            code = ffi::READONLY;
            // If the log has no users who may write, SQLite makes an index of its own. SQLite asks for the
            // first region again once it holds a read mark. Other processes may use the log by then, so look
            // at the log again.
            match if number == 0 { self.look_again(&attachment) } else { Ok(true) } {
                Ok(true) => {}
                Ok(false) => return Some(Ok((ffi::READONLY_CANTINIT, std::ptr::null_mut()))),
                Err(error) => return Some(Err(Failure::of(&error, During::Open))),
            }
        }
        let mapped = attachment.index_region(number, extend);
        if code == ffi::READONLY
            && number == 0
            && let Ok(Some(shared)) = mapped
        {
            return Some(Ok((code, self.index.map_first(attachment, shared))));
        }
        self.index.map(attachment);
        Some(match mapped {
            Ok(address) => {
                Ok((code, address.map_or(std::ptr::null_mut(), |address| address.as_ptr().cast())))
            }
            Err(error) => Err(self.cannot_map(&error)),
        })
    }

    /// Returns the address of a region of this connection's private wal-index, or `None` if the connection
    /// uses the shared wal-index.
    fn map_own(
        &self,
        attachment: &Arc<Attachment>,
        number: u64,
        extend: bool,
    ) -> Result<Option<*mut c_void>, Failure> {
        if self.index.concurrent().is_none() && number == 0 && !self.index.is_mapped() {
            self.index.set_concurrent(self.begin_concurrency(attachment)?);
        }
        let Some((concurrent, number)) = self.index.concurrent().zip(usize::try_from(number).ok()) else {
            return Ok(None);
        };
        Ok(Some(concurrent.map(number, extend).unwrap_or(std::ptr::null_mut())))
    }

    fn cannot_map(&self, error: &MediumError) -> Failure {
        let code = if *error == MediumError::NoSpace { ffi::FULL } else { ffi::IOERR_SHMMAP };
        Failure::new(code, format!("cannot map the wal-index of {}: {error}", self.path.display()))
    }

    /// Makes room in the wal-index for the commit frame that is about to be written at `offset`. The write of
    /// that frame seals the transaction. If SQLite found only afterwards that the wal-index has no room, it
    /// would report a failed commit, and the transaction would exist all the same.
    pub fn make_room_in_index(&self, attachment: &Attachment, offset: u64) -> Result<(), Failure> {
        let region = region_of(offset, attachment.log().page_bytes());
        // The first region needs no room: SQLite maps it before it writes. In exclusive locking mode SQLite
        // maps no region at all, so it cannot run out of room.
        if region == 0 || !self.index.is_mapped() {
            return Ok(());
        }
        attachment.index_region(region, true).map(drop).map_err(|error| self.cannot_map(&error))
    }

    /// Answers SQLite's barrier. After the barrier SQLite must see what others have stored. Returns whether
    /// the wal-index belongs to a log, and not to the base VFS.
    pub fn renew_index(&self) -> bool {
        if self.is_outside() {
            self.index.renew_first();
        }
        self.is_active()
    }

    /// Returns whether a connection of another process is in a read transaction, or `None` while no log is
    /// open.
    pub fn has_external_reader(&self) -> Option<bool> {
        let attachment = self.active()?;
        Some(attachment.locks().has_other_readers().unwrap_or(true))
    }

    /// Unmaps the wal-index, which SQLite no longer uses. Returns whether the wal-index belonged to a log.
    pub fn unmap_index(&self) -> bool {
        let is_own = self.index.concurrent().map(Concurrent::release).is_some();
        self.index.set_concurrent(None);
        self.release_shared_memory();
        self.index.unmap() || is_own
    }

    /// Returns the locks of the log, if the WAL is open. This function does not change the attachment's
    /// reference count, which all connections share. Otherwise the count's cache line would move from
    /// processor to processor with each read transaction.
    pub(in crate::database) fn index_locks(&self) -> Option<Arc<IndexLocks>> {
        let mut held = self.index.locks();
        self.with_active(|attachment| {
            if held.as_ref().is_none_or(|locks| !Arc::ptr_eq(&locks.attachment, attachment)) {
                *held = Some(Arc::new(IndexLocks::of(attachment)));
            }
            held.clone()
        })?
    }

    /// Takes or releases locks of the wal-index as `xShmLock` asks. Returns `None` while no log is open. The
    /// locks then belong to the base VFS.
    pub fn lock_shared_memory(&self, first: c_int, count: c_int, flags: c_int) -> Option<c_int> {
        let asked = Asked::of(first, count, flags & ffi::SHM_SHARED != 0)?;
        if let Some(concurrent) = self.index.concurrent() {
            let Asked { first, count, shared } = asked;
            if flags & ffi::SHM_UNLOCK != 0 {
                concurrent.unlock(first, count, shared);
                return Some(ffi::OK);
            }
            waiting::forget();
            return Some(self.answer(concurrent.lock(self, first, count, shared)));
        }
        let locks = self.index_locks()?;
        if flags & ffi::SHM_UNLOCK != 0 {
            asked.unlock(&locks);
            return Some(ffi::OK);
        }
        waiting::forget();
        if self.is_to_wait(&locks, &asked) {
            return Some(ffi::BUSY);
        }
        Some(match asked.lock(&locks.holder) {
            Ok(()) => self.after_lock(&locks, &asked),
            Err(error) => self.not_locked(&locks, &asked, error),
        })
    }

    /// Is called before SQLite tries to take a lock. Starts an outgrown log over, or gives way to a
    /// connection that does so. Returns whether SQLite has to begin again without the lock.
    fn is_to_wait(&self, locks: &IndexLocks, asked: &Asked) -> bool {
        let IndexLocks { attachment, holder } = locks;
        if attachment.outside().is_some() {
            // A user who may only read the log can start nothing over.
            return false;
        }
        if asked.is_mark() && holder.begins() {
            // If everything has just been checkpointed, the log can start over. SQLite chose this mark before
            // the checkpoint, and with this mark SQLite would continue to append to the log. So SQLite must
            // choose a mark again.
            return restart::start_over_if_due(self, attachment) && asked.first > FIRST_READ;
        }
        if (asked.first, asked.count) == (CHECKPOINT, 1) {
            // A request for this lock alone is a checkpoint. For recovery SQLite requests this lock together
            // with others.
            attachment.bound().checkpoints();
            return restart::is_in_the_way(attachment);
        }
        false
    }

    /// Does what must be done before SQLite continues with a lock that it has just taken. Releases the lock
    /// if the answer is not `SQLITE_OK`.
    fn after_lock(&self, locks: &IndexLocks, asked: &Asked) -> c_int {
        let IndexLocks { attachment, holder } = locks;
        let outside = attachment.outside();
        let code = if asked.starts_over() {
            let code = self.before_start_over(attachment);
            // A checkpoint runs outside transactions. The application waits for the checkpoint as long as its
            // busy handler permits. A writer only tries at each commit whether the log can start over, so it
            // asks no follower.
            if code == ffi::BUSY && !holder.is_reading() {
                attachment.ask_followers();
            }
            code
        } else if asked.is_mark() {
            if outside.is_some_and(Outside::is_live) {
                return self.begin_outside(attachment, holder, asked.first);
            }
            self.index.set_seen_changes(attachment.changes());
            self.after_mark(attachment)
        } else if asked.first == WRITE
            && let Some(outside) = outside
        {
            if self.will_be_whole(outside) { ffi::BUSY } else { ffi::OK }
        } else if asked.is_write() {
            self.after_write_lock(attachment, holder)
        } else {
            ffi::OK
        };
        if code != ffi::OK {
            asked.give_back(holder);
        }
        code
    }

    /// Returns the answer to SQLite if another connection holds the lock, or the lock cannot be taken.
    fn not_locked(&self, locks: &IndexLocks, asked: &Asked, error: LockError) -> c_int {
        let IndexLocks { attachment, holder } = locks;
        match error {
            LockError::Busy => {
                attachment.count(Counter::Refusals);
                if asked.is_write() && attachment.outside().is_none() {
                    waiting::refused(holder);
                }
                ffi::BUSY
            }
            LockError::Medium(error) => {
                let message = format!("cannot lock the shared memory of {}: {error}", self.path.display());
                self.sqlite.fail(&Failure::new(ffi::IOERR_SHMLOCK, message))
            }
        }
    }

    /// Answers `SQLITE_OK` if the log can start over. SQLite is about to store in the wal-index that the log
    /// has started over, and from then on every connection reads the log's pages from the database file. So
    /// this function syncs the file first (invariant 6).
    pub(in crate::database) fn before_start_over(&self, attachment: &Attachment) -> c_int {
        if !attachment.may_start_over() {
            return ffi::BUSY;
        }
        let synced = self.sync_home(attachment, None, ffi::SYNC_NORMAL);
        self.answer(synced.map(|()| ffi::OK))
    }

    /// Looks at the log again, for a user who may only read it, because other processes may have opened or
    /// changed the log, or may be gone. Returns whether processes that may write use the log now.
    fn look_again(&self, attachment: &Attachment) -> Result<bool, LogError> {
        let looked = attachment.look_again(&|tries| self.patience.pause(tries))?;
        self.patience.renew();
        Ok(looked)
    }

    /// Checks whether a user who may only read the log, and has just taken a read mark, may begin a
    /// transaction. The user may not if a process has set up the shared memory again since the user's last
    /// transaction. As long as the user holds the mark, no process sets the memory up again.
    fn begin_outside(&self, attachment: &Attachment, holder: &Holder, mark: usize) -> c_int {
        let begun = attachment.outside().map_or(Ok(true), Outside::may_begin);
        if matches!(begun, Ok(true)) {
            return ffi::OK;
        }
        holder.unlock_shared(mark);
        match begun.and_then(|_| self.look_again(attachment)) {
            // Busy makes SQLite read the wal-index again.
            Ok(_) => ffi::BUSY,
            Err(error) => self.sqlite.fail(&Failure::of(&error, During::Read)),
        }
    }

    /// Refuses what SQLite has just read from the database file if the log has been recovered since the
    /// transaction began. The newer version of the page may be in the log, and the wal-index that pointed to
    /// that version may have been gone during the read.
    pub fn check_outside(&self) -> Result<(), Failure> {
        let lost = self.is_outside()
            && self.active().is_some_and(|attachment| attachment.outside().is_some_and(Outside::is_lost));
        if lost {
            let message = format!(
                "the log of {} has been recovered since the transaction began; begin the transaction again",
                self.path.display()
            );
            return Err(Failure::new(ffi::BUSY, message));
        }
        Ok(())
    }

    /// Is called when SQLite has taken WRITE. Permits the transaction to write, unless it has to wait for the
    /// log to start over.
    fn after_write_lock(&self, attachment: &Attachment, holder: &Arc<Holder>) -> c_int {
        if restart::must_make_room(self, attachment, holder) {
            return ffi::BUSY;
        }
        if attachment.complete_start_over() {
            // SQLite begins the transaction again. It takes its new snapshot after the log has started over.
            waiting::refused(holder);
            return ffi::BUSY;
        }
        attachment.set_writer(true);
        super_journal::forget();
        self.begins_to_write();
        // If the database has changed, SQLite will find that its snapshot is old, and will release WRITE. The
        // thread will then queue for WRITE, as if the lock had been refused.
        if self.index.seen_changes() != attachment.changes() {
            waiting::refused(holder);
        }
        ffi::OK
    }

    /// Forgets what belongs to this connection's previous transaction, because the next transaction has just
    /// got WRITE.
    pub(in crate::database) fn begins_to_write(&self) {
        // SQLite may have given up a transaction after it was sealed. That transaction must not be
        // acknowledged with the next one.
        self.forget_sealed();
        self.commit.clock.forget();
    }

    /// Does what the settings require after a reader has taken a mark. With `read_durable`, makes durable
    /// every transaction that the reader may see under this mark. With `replicated`, also waits until the
    /// archive holds these transactions.
    pub(in crate::database) fn after_mark(&self, attachment: &Attachment) -> c_int {
        if !self.settings().read_durable {
            return ffi::OK;
        }
        let durable = attachment.durability_waiter().map_or(Ok(()), DurabilityWaiter::wait_all);
        let durable = durable.map_err(|error| Failure::of(&error, During::Sync));
        self.answer(durable.and_then(|()| replicated::wait_to_read(self, attachment)).map(|()| ffi::OK))
    }

    /// Returns whether the wal-index is complete now or soon will be. SQLite has just seen it half written or
    /// empty. To learn whether a writer is at work, SQLite has then asked for WRITE, and has got it. So
    /// either a writer has finished the wal-index, or a process that has just opened the log is about to make
    /// it.
    fn will_be_whole(&self, outside: &Outside) -> bool {
        self.index.first_is_whole() || outside.has_processes().unwrap_or(false)
    }

    /// Releases all locks of the wal-index.
    pub fn release_shared_memory(&self) {
        let locks = self.index.locks().take();
        if let Some(locks) = locks {
            locks.holder.release();
        }
    }
}

/// The locks of the wal-index that one call of `xShmLock` names.
struct Asked {
    first: usize,
    count: usize,
    shared: bool,
}

impl Asked {
    /// Returns the locks that these arguments of `xShmLock` name, or `None` if the wal-index has no such
    /// locks.
    fn of(first: c_int, count: c_int, shared: bool) -> Option<Self> {
        let range = usize::try_from(first).ok().zip(usize::try_from(count).ok());
        let (first, count) = range.filter(|(first, count)| first + count <= SLOTS && *count > 0)?;
        Some(Self { first, count, shared })
    }

    /// Returns whether a reader takes its mark with this call.
    fn is_mark(&self) -> bool {
        self.shared && self.first >= FIRST_READ
    }

    fn is_write(&self) -> bool {
        !self.shared && self.first == WRITE
    }

    /// Returns whether SQLite takes these locks to start the log over.
    fn starts_over(&self) -> bool {
        !self.shared && is_start_over(self.first, self.count)
    }

    fn lock(&self, holder: &Holder) -> Result<(), LockError> {
        if self.shared {
            holder.lock_shared(self.first)
        } else {
            holder.lock_exclusive(self.first, self.count)
        }
    }

    /// Releases what [`Self::lock`] has taken.
    fn give_back(&self, holder: &Holder) {
        if self.shared {
            holder.unlock_shared(self.first);
        } else {
            holder.unlock_exclusive(self.first, self.count);
        }
    }

    /// Releases these locks because SQLite is done with them.
    fn unlock(&self, locks: &IndexLocks) {
        let IndexLocks { attachment, holder } = locks;
        if self.shared {
            (self.first..self.first + self.count).for_each(|slot| holder.unlock_shared(slot));
            return;
        }
        if self.first == WRITE {
            attachment.log().end_write();
            attachment.set_writer(false);
        }
        if self.first == CHECKPOINT {
            // A checkpoint that is refused WRITE waits before it returns, and SQLite does not begin it again.
            // So the thread's next sleep must not queue for WRITE.
            waiting::forget();
        }
        holder.unlock_exclusive(self.first, self.count);
    }
}

/// Returns the region of the wal-index that holds the frame whose header is at this offset.
fn region_of(offset: u64, page_bytes: u32) -> u64 {
    let frame_bytes = FRAME_HEADER_BYTES as u64 + u64::from(page_bytes);
    let before = offset.saturating_sub(WAL_HEADER_BYTES as u64) / frame_bytes;
    u64::from(Place::of(u32::try_from(before + 1).unwrap_or(u32::MAX)).region)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_end_where_those_of_sqlite_do() {
        let region = |frame: u64| region_of(32 + (frame - 1) * (24 + 4096), 4096);
        assert_eq!([1, 4062, 4063, 4062 + 4096, 4062 + 4097].map(region), [0, 0, 1, 1, 2]);
    }
}
