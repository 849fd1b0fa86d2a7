//! The wal-index of a database whose WAL is in a log. Its memory and its locks are the log's.
#![allow(unsafe_code)] // gives addresses to SQLite

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use duralite_format::sqlite_wal::{FRAME_HEADER_BYTES, WAL_HEADER_BYTES};
use duralite_locks::{CHECKPOINT, FIRST_READ, Holder, LockError, SLOTS, WRITE, is_start_over};
use duralite_medium::MediumError;
use duralite_sqlite_ffi as ffi;
use duralite_wal::LogError;
use duralite_wal::engine::DurabilityWaiter;
use duralite_wal::metrics::Counter;
use duralite_wal::placement::Outside;

use super::first_region::FirstRegion;
use super::index_locks::IndexLocks;
use super::{Db, restart, super_journal, waiting};
use crate::attachment::Attachment;
use crate::errors::{During, Failure};

impl Db {
    /// The address of a region of the wal-index, with the code for SQLite. The address is null when the
    /// region does not exist and `extend` does not ask to make it. `None` while no log is open; the index is
    /// then the base's.
    pub fn map_index(&self, region: c_int, extend: bool) -> Option<Result<(c_int, *mut c_void), Failure>> {
        let attachment = self.active()?;
        let number = u64::try_from(region).ok()?;
        let mut code = ffi::OK;
        if attachment.outside().is_some() {
            code = ffi::READONLY;
            // If SQLite has made an index of its own, it asks for the first region anew once it holds a mark.
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
            *self.index.lock().unwrap_or_else(PoisonError::into_inner) = Some(attachment);
            let mut copy = self.first_region();
            if let Some(copy) = copy.as_ref().filter(|copy| copy.is_of(shared)) {
                copy.renew();
                return Some(Ok((code, copy.address())));
            }
            // SAFETY: mapped as long as the attachment lives, and the attachment is kept beside it.
            let address = copy.insert(unsafe { FirstRegion::new(shared) }).address();
            return Some(Ok((code, address)));
        }
        // A region that SQLite has mapped stays where it is until SQLite says that it is done.
        *self.index.lock().unwrap_or_else(PoisonError::into_inner) = Some(attachment);
        Some(match mapped {
            Ok(address) => {
                Ok((code, address.map_or(std::ptr::null_mut(), |address| address.as_ptr().cast())))
            }
            Err(error) => Err(self.cannot_map(&error)),
        })
    }

    fn cannot_map(&self, error: &MediumError) -> Failure {
        let code = if *error == MediumError::NoSpace { ffi::FULL } else { ffi::IOERR_SHMMAP };
        Failure::new(code, format!("cannot map the wal-index of {}: {error}", self.path.display()))
    }

    /// Makes room in the wal-index for the commit frame that is about to be written at this offset. Once the
    /// frame is written the transaction is sealed. If room were missing then, the transaction would exist
    /// although SQLite had reported that it failed.
    pub fn make_room_in_index(&self, attachment: &Attachment, offset: u64) -> Result<(), Failure> {
        let region = region_of(offset, attachment.log().page_bytes());
        let is_mapped = self.index.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        // SQLite maps the first region before it writes, and maps none where it has the database to itself.
        if region == 0 || !is_mapped {
            return Ok(());
        }
        attachment.index_region(region, true).map(drop).map_err(|error| self.cannot_map(&error))
    }

    /// Whether SQLite has the wal-index mapped.
    pub(super) fn has_index(&self) -> bool {
        self.index.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn first_region(&self) -> MutexGuard<'_, Option<FirstRegion>> {
        self.first_region.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// SQLite wants to see what others have stored.
    pub fn renew_index(&self) {
        if self.is_outside()
            && let Some(copy) = &*self.first_region()
        {
            copy.renew();
        }
    }

    /// Whether a connection of another process is in a read transaction; `None` while no log is open.
    pub fn has_external_reader(&self) -> Option<bool> {
        let attachment = self.active()?;
        Some(attachment.locks().has_other_readers().unwrap_or(true))
    }

    /// SQLite is done with the wal-index. Returns whether it was a log's.
    pub fn unmap_index(&self) -> bool {
        self.release_shared_memory();
        drop(self.first_region().take());
        self.index.lock().unwrap_or_else(PoisonError::into_inner).take().is_some()
    }

    fn held_locks(&self) -> MutexGuard<'_, Option<Arc<IndexLocks>>> {
        self.index_locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The locks of the log, if the WAL is open. This writes nothing that other connections use too. A count
    /// of references that all share would move from processor to processor with each transaction that reads.
    fn index_locks(&self) -> Option<Arc<IndexLocks>> {
        let mut held = self.held_locks();
        self.with_active(|attachment| {
            if held.as_ref().is_none_or(|locks| !Arc::ptr_eq(&locks.attachment, attachment)) {
                *held = Some(Arc::new(IndexLocks::of(attachment)));
            }
            held.clone()
        })?
    }

    /// Takes or gives back locks of the wal-index as `xShmLock` asks. `None` while no log is open; the locks
    /// are then the base's.
    pub fn lock_shared_memory(&self, first: c_int, count: c_int, flags: c_int) -> Option<c_int> {
        let locks = self.index_locks()?;
        let IndexLocks { attachment, holder } = &*locks;
        let range = usize::try_from(first).ok().zip(usize::try_from(count).ok());
        let (first, count) = range.filter(|(first, count)| first + count <= SLOTS && *count > 0)?;
        let shared = flags & ffi::SHM_SHARED != 0;
        if flags & ffi::SHM_UNLOCK != 0 {
            unlock(attachment, holder, first..first + count, shared);
            return Some(ffi::OK);
        }
        waiting::forget();
        let outside = attachment.outside();
        if outside.is_some() {
            // Nothing needs to be done before a lock of such a user.
        } else if shared && first >= FIRST_READ && holder.begins() {
            // Everything is home now. SQLite chose this mark before that, and under it would go on appending
            // to the log.
            if restart::keep(self, attachment) && first > FIRST_READ {
                return Some(ffi::BUSY);
            }
        } else if (first, count) == (CHECKPOINT, 1) {
            // This lock alone is for a checkpoint. Together with others SQLite takes it to recover.
            attachment.bound().checkpoints();
            if restart::yields(attachment) {
                return Some(ffi::BUSY);
            }
        }
        let starts_over = !shared && is_start_over(first, count);
        let locked = if shared { holder.lock_shared(first) } else { holder.lock_exclusive(first, count) };
        Some(match locked {
            Ok(()) if starts_over => {
                let code = self.before_start_over(attachment);
                if code != ffi::OK {
                    holder.unlock_exclusive(first, count);
                }
                code
            }
            Ok(()) if first == WRITE && outside.is_some_and(|outside| will_be_whole(self, outside)) => {
                holder.unlock_shared(first);
                ffi::BUSY
            }
            Ok(())
                if (first, count) == (WRITE, 1)
                    && !shared
                    && outside.is_none()
                    && restart::is_ahead(attachment, holder) =>
            {
                holder.unlock_exclusive(first, count);
                ffi::BUSY
            }
            Ok(()) if outside.is_some_and(Outside::is_live) && shared && first >= FIRST_READ => {
                self.begin_outside(attachment, holder, first)
            }
            Ok(()) => self.after_lock(attachment, holder, first, shared),
            Err(LockError::Busy) => {
                attachment.count(Counter::Refusals);
                if first == WRITE && !shared && outside.is_none() {
                    waiting::refused(holder);
                }
                ffi::BUSY
            }
            Err(LockError::Medium(error)) => {
                let message = format!("cannot lock the shared memory of {}: {error}", self.path.display());
                self.sqlite.fail(&Failure::new(ffi::IOERR_SHMLOCK, message))
            }
        })
    }

    /// Whether the log can start over. SQLite is about to say so in the wal-index, and from then on every
    /// connection reads the database file. So the file is settled before (invariant 6).
    fn before_start_over(&self, attachment: &Attachment) -> c_int {
        if !attachment.may_start_over() {
            return ffi::BUSY;
        }
        let settled = self.settle(attachment, None, ffi::SYNC_NORMAL);
        self.answer(settled.map(|()| ffi::OK))
    }

    /// Applies what has become of the log, for a user who may only read it. Returns whether others use the
    /// log.
    fn look_again(&self, attachment: &Attachment) -> Result<bool, LogError> {
        let looked = attachment.look_again(&|tries| self.patience.pause(tries))?;
        self.patience.renew();
        Ok(looked)
    }

    /// Begins a transaction of a user who may only read the log, whose mark has just been taken. The shared
    /// memory may have begun anew since that user's last transaction. From now on it does not.
    fn begin_outside(&self, attachment: &Attachment, holder: &Holder, mark: usize) -> c_int {
        let begun = attachment.outside().map_or(Ok(true), Outside::may_begin);
        if matches!(begun, Ok(true)) {
            return ffi::OK;
        }
        holder.unlock_shared(mark);
        match begun.and_then(|_| self.look_again(attachment)) {
            // SQLite looks at the wal-index anew.
            Ok(_) => ffi::BUSY,
            Err(error) => self.sqlite.fail(&Failure::of(&error, During::Read)),
        }
    }

    /// Refuses what was read of the database file if the log has been recovered since the transaction began.
    /// Meanwhile the wal-index may have been gone that would have shown the page in the log.
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

    fn after_lock(&self, attachment: &Attachment, holder: &Arc<Holder>, slot: usize, shared: bool) -> c_int {
        if shared && slot >= FIRST_READ {
            self.seen_changes.store(attachment.changes(), Ordering::Relaxed);
            return self.after_mark(attachment, slot);
        }
        if !shared && slot == WRITE {
            super_journal::forget();
            self.commit_clock.forget();
            // SQLite is about to find its snapshot old, and to give the lock back. That is as if the lock had
            // been refused.
            if self.seen_changes.load(Ordering::Relaxed) != attachment.changes() {
                waiting::refused(holder);
            }
        }
        ffi::OK
    }

    /// With `read_durable`, a reader's snapshot, taken before this lock, becomes durable first.
    fn after_mark(&self, attachment: &Attachment, slot: usize) -> c_int {
        if !self.settings().read_durable {
            return ffi::OK;
        }
        match attachment.durability_waiter().map_or(Ok(()), DurabilityWaiter::wait_all) {
            Ok(()) => ffi::OK,
            Err(error) => {
                if let Some(locks) = &*self.held_locks() {
                    locks.holder.unlock_shared(slot);
                }
                self.sqlite.fail(&Failure::of(&error, During::Sync))
            }
        }
    }

    /// Gives all locks of the wal-index back.
    pub fn release_shared_memory(&self) {
        let locks = self.held_locks().take();
        if let Some(locks) = locks {
            locks.holder.release();
        }
    }
}

/// Gives locks of the wal-index back.
fn unlock(attachment: &Attachment, holder: &Holder, slots: Range<usize>, shared: bool) {
    if shared {
        slots.for_each(|slot| holder.unlock_shared(slot));
        return;
    }
    if slots.start == WRITE {
        attachment.log().end_write();
    }
    if slots.start == CHECKPOINT {
        // A checkpoint waits for WRITE by itself, and does not begin again.
        waiting::forget();
    }
    holder.unlock_exclusive(slots.start, slots.len());
}

/// The region of the wal-index that holds the frame whose header is at this offset. A region has 4096 frames.
/// The first one has fewer, since SQLite's header of 136 bytes takes the place of 34 frames.
fn region_of(offset: u64, page_bytes: u32) -> u64 {
    let frame_bytes = FRAME_HEADER_BYTES as u64 + u64::from(page_bytes);
    let before = offset.saturating_sub(WAL_HEADER_BYTES as u64) / frame_bytes;
    (before + 34) / 4096
}

/// Whether the wal-index, which SQLite has just seen half written or empty, is whole by now or soon will be.
/// SQLite finds out, by taking WRITE, whether a writer is at work: that was a writer who is done by now, or
/// it will be one that has just opened the log anew.
fn will_be_whole(db: &Db, outside: &Outside) -> bool {
    let whole = db.first_region().as_ref().is_some_and(FirstRegion::is_whole);
    whole || outside.has_processes().unwrap_or(false)
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
