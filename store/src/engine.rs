//! The state that transactions, recovery and the background threads share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::active::Active;
use crate::admission::Admission;
use crate::archive::Archive;
use crate::controls::{Controls, Rule};
use crate::counter::Counter;
use crate::error::Error;
use crate::format::{Lsn, PageId, TxId};
use crate::forward::move_oldest;
use crate::locks::Locks;
use crate::options::Durability;
use crate::pager::Pager;
use crate::poison::Poison;
use crate::space::Space;
use crate::table::Tables;
use crate::tree::Tree;
use crate::versions::Versions;
use crate::waiters::Waiters;

/// The options that are used while the store is open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tuning {
    pub(crate) lock_timeout: Duration,
    pub(crate) durability: Durability,
    pub(crate) early_lock_release: bool,
}

/// Counts of events.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) commits: Counter,
    pub(crate) aborts: Counter,
    pub(crate) checkpoints: AtomicU64,
}

/// What the log had when the store was opened. The metrics of the log count from there on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogAtOpening {
    pub(crate) newest_object: Lsn,
    pub(crate) bytes: u64,
}

/// An open store.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) pager: Pager,
    pub(crate) space: Space,
    pub(crate) locks: Locks,
    pub(crate) active: Active,
    pub(crate) admission: Admission,
    pub(crate) tuning: Tuning,
    pub(crate) poison: Arc<Poison>,
    pub(crate) counts: Counts,
    pub(crate) log_at_opening: LogAtOpening,
    pub(crate) archive: Option<Archive>,
    pub(crate) next_tx: AtomicU64,
    /// The number of the newest commit in the log since the store was opened, or 0. A transaction stores the number of
    /// its commit here before snapshots can show its changes.
    pub(crate) newest_commit: AtomicU64,
    /// For each backup that still needs part of the log, the first log object that it needs. A checkpoint holds the
    /// mutex while it discards log objects. So a backup that begins later finds the objects that it needs.
    pub(crate) pinned: Mutex<Vec<Lsn>>,
    /// The number of backups that have begun. A thread holds the mutex while it begins a backup, and while it commits a
    /// bulk load. So either the load sees that a backup has begun, or the backup begins after the commit and has the
    /// load's pages.
    pub(crate) backups: Mutex<u64>,
    pub(crate) store_id: [u8; 16],
    pub(crate) versions: Versions,
    pub(crate) tables: Tables,
    pub(crate) waiters: Arc<Waiters>,
    pub(crate) controls: Arc<Controls>,
}

impl Engine {
    /// Returns the tree with this root.
    pub(crate) fn tree(&self, root: PageId) -> Tree<'_> {
        Tree { pager: &self.pager, space: &self.space, root, found: None }
    }

    /// Returns the root of the tree of table names.
    pub(crate) fn catalog(&self) -> PageId {
        self.space.first_data_page()
    }

    pub(crate) fn new_tx(&self) -> TxId {
        self.next_tx.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes all log objects up to and including `upto` durable.
    ///
    /// # Errors
    /// Any error has poisoned the store.
    pub(crate) fn force(&self, upto: Lsn) -> Result<(), Error> {
        self.pager.log.force(upto).map_err(|error| self.poison.set(&error))
    }

    /// Writes dirty pages home, and discards the log objects that are no longer needed. Transactions continue during a
    /// checkpoint.
    ///
    /// # Errors
    /// Errors of the page file, the log or the archive.
    pub(crate) fn checkpoint(&self, is_over: &dyn Fn() -> bool) -> Result<(), Error> {
        let done = self.write_home_and_give_up(is_over);
        self.admission.look_again();
        done
    }

    fn write_home_and_give_up(&self, is_over: &dyn Fn() -> bool) -> Result<(), Error> {
        let log = &self.pager.log;
        let upto = log.next();
        self.pager.pool.clean_before(upto, is_over)?;
        let limit = self.pinned.lock().iter().copied().fold(upto, Lsn::min);
        move_oldest(&self.pager, &self.active, &self.admission, limit)
            .map_err(|error| self.poison.set(&error))?;
        // Reads `next` before the checks below. A thread marks a page as dirty before the log object of its change gets
        // a number. So the checks see the changes of all objects before `next`.
        let next = log.next();
        let pinned = self.pinned.lock();
        let mut head = next;
        if self.controls.keep(Rule::ChangesHoldLog) {
            head = self.pager.pool.first_change(next);
        }
        if self.controls.keep(Rule::OpenHoldsLog) {
            head = head.min(self.active.oldest(next));
        }
        let head = pinned.iter().copied().fold(head, Lsn::min);
        // A transaction that has ended since `next` was read no longer keeps objects in the log. But its commit or
        // rollback has to be durable before the log objects of its changes are discarded. Otherwise a crash could lose
        // the commit or rollback. Recovery would then find the changes in the page file, but no log objects to undo
        // them.
        if self.controls.keep(Rule::EndsBeforeGivingUp) {
            self.force(log.next() - 1)?;
        }
        if let Some(archive) = &self.archive {
            archive.take(&**log, head)?;
        }
        // Invariant 76: before the log discards the objects below `head`, the page file records that it has all of
        // their changes. Somebody may later put back an older copy of the page file, which lacks some of these changes.
        // The next opening of the store recognises such a copy by its older record.
        let head = head.min(log.durable());
        self.pager.pool.file().note_home(head).map_err(|error| self.poison.set(&error))?;
        log.truncate(head).map_err(|error| self.poison.set(&error))?;
        drop(pinned);
        self.counts.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Returns the nanoseconds since 1970.
pub(crate) fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
