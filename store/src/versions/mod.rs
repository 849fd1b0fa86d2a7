//! Old row versions for snapshots, in memory, and only while snapshots are open.
//!
//! Pages are changed in place, before the commit. So while a snapshot is open, a transaction that is about to change a
//! row first notes here what the row was. The first snapshot, when it is opened, notes the same for the changes of
//! transactions in progress.
//!
//! Invariant 55: for snapshots a transaction ends at one moment, after its last change of a page, and before it
//! releases its first lock. A snapshot shows the transactions that had ended when it was opened. They are a prefix of
//! an order that explains what all transactions have seen, and include each one that was acknowledged before.
//!
//! Invariant 56: what a row was for an open snapshot is noted before the row's page is changed, and stays until the
//! snapshot is closed, or has been told that it has ended. So a reader that reads the page first, and the versions
//! after that, finds what the row was, whatever happens in between, and holds no latch for that.
//!
//! Invariant 57: old versions take no more memory than their limit, and in addition what is noted by the changes that
//! cause the oldest snapshots to be ended.

mod chain;
mod fate;
mod moments;
mod noted;

use std::sync::Arc;

pub(crate) use self::chain::Image;
pub(crate) use self::fate::Fate;
use self::moments::Moments;
pub(crate) use self::moments::Seen;
use self::noted::Noted;
pub(crate) use self::noted::{Changed, End, Place};
use crate::locks::TableId;
use crate::range::Edges;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How many rows a change checks whose versions were kept for snapshots that have been ended.
const AT_ONCE: usize = 64;

/// The old versions of rows, of all tables.
///
/// Lock order: the mutex of `moments` may be taken while the mutex of a row or of `due` is held. No mutex is taken
/// while `moments` is held.
#[derive(Debug)]
pub(crate) struct Versions {
    /// Whether changes have to be noted. Changed under the lock of `moments`.
    is_on: AtomicBool,
    /// Whether `due` has rows.
    is_due: AtomicBool,
    /// The limit in bytes.
    limit: u64,
    moments: Mutex<Moments<Arc<Place>>>,
    /// Rows with versions that were kept for snapshots which have been ended. Threads that change rows check some of
    /// them.
    due: Mutex<Vec<Arc<Place>>>,
    noted: Noted,
    ended: AtomicU64,
}

impl Versions {
    /// No versions yet, and at most `limit` bytes of them.
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            is_on: AtomicBool::new(false),
            is_due: AtomicBool::new(false),
            limit,
            moments: Mutex::default(),
            due: Mutex::default(),
            noted: Noted::default(),
            ended: AtomicU64::new(0),
        }
    }

    /// Whether changes have to be noted. A transaction asks before each change, with the leaf latched, while it holds
    /// `noting`, for which the first snapshot waits.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
    }

    /// Does some work with the moments, and then updates the flag for writers.
    fn with_moments<T>(&self, work: impl FnOnce(&mut Moments<Arc<Place>>) -> T) -> T {
        let mut moments = self.moments.lock();
        let done = work(&mut moments);
        self.is_on.store(moments.is_on(), Ordering::SeqCst);
        done
    }

    /// Begins to open a snapshot. From now on each transaction that changes a row notes it. Returns whether everything
    /// that transactions in progress have changed is noted already.
    pub(crate) fn begin_to_open(&self) -> bool {
        self.with_moments(|moments| {
            moments.begin_to_open();
            moments.is_complete
        })
    }

    /// Opens a snapshot at this moment. The caller has noted what transactions in progress have changed.
    pub(crate) fn open(&self) -> Arc<Seen> {
        self.with_moments(Moments::open)
    }

    /// Closes a snapshot, and drops the versions that only this one has needed.
    pub(crate) fn close(&self, seen: &Arc<Seen>) {
        let rows = self.with_moments(|moments| moments.close(seen));
        rows.iter().for_each(|row| self.look_at(row));
    }

    /// Notes what a row was before a step of a transaction, which has the row locked. `step` is the step's number in
    /// the transaction, of whose changes of the row only the first counts. Returns the row if the transaction notes it
    /// for the first time; the row has to be [checked](Self::look_at) when the transaction has ended.
    pub(crate) fn note(
        &self,
        fate: &Arc<Fate>,
        row: (TableId, &[u8]),
        step: usize,
        old: Option<&[u8]>,
    ) -> Option<Arc<Place>> {
        self.noted.note(fate, row, step, old)
    }

    /// Ends a transaction, before it releases a lock. Returns whether the rows that it has noted have to be
    /// [checked](Self::look_at) then.
    pub(crate) fn end(&self, fate: &Fate) -> bool {
        if fate.end_unnoted() {
            return false;
        }
        self.moments.lock().end(fate);
        true
    }

    /// Drops the versions of a row that no snapshot needs.
    pub(crate) fn look_at(&self, row: &Arc<Place>) {
        self.noted.look_at(row, &self.moments);
    }

    /// Whether some version of a row is this cell.
    pub(crate) fn has(&self, table: TableId, key: &[u8], cell: &[u8]) -> bool {
        self.noted.has(table, key, cell)
    }

    /// Whether there is an old version of some row of a table.
    pub(crate) fn has_rows_of(&self, table: TableId) -> bool {
        self.noted.has_rows_of(table)
    }

    /// Replaces a cell in all versions of a row.
    pub(crate) fn replace(&self, table: TableId, key: &[u8], cell: &[u8], by: &Image) {
        self.noted.replace(table, key, cell, by);
    }

    /// What a row was for a snapshot, if that differs from the page. The caller has read the page before.
    pub(crate) fn find(&self, seen: &Seen, table: TableId, key: &[u8]) -> Option<Image> {
        self.noted.find(seen.moment(), table, key)
    }

    /// The rows of a range that differ from their pages, among the first `most` noted rows. The caller has read the
    /// pages before.
    pub(crate) fn changed(
        &self,
        seen: &Seen,
        table: TableId,
        range: Edges<'_>,
        end: End,
        most: usize,
    ) -> Changed {
        self.noted.changed(seen.moment(), table, range, (end, most))
    }

    /// Lets a moment pass, and returns the one before: each snapshot that is opened from now on is of a later moment.
    pub(crate) fn pass(&self) -> u64 {
        self.moments.lock().pass()
    }

    /// As [`pass`](Self::pass), but calls `work` before a snapshot of a later moment can be opened.
    pub(crate) fn pass_and(&self, work: impl FnOnce(u64)) {
        let mut moments = self.moments.lock();
        let moment = moments.pass();
        work(moment);
    }

    /// Whether a snapshot of this moment or an earlier one is open, and has not been ended.
    pub(crate) fn has_snapshots_until(&self, moment: u64) -> bool {
        self.moments.lock().has_until(moment)
    }

    /// How many bytes the versions take.
    pub(crate) fn bytes(&self) -> u64 {
        self.noted.bytes()
    }

    /// How many snapshots are open, and have not been ended.
    pub(crate) fn open_snapshots(&self) -> usize {
        self.moments.lock().count()
    }

    /// How many snapshots were ended because old versions took too much memory.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Called after a change of a row, without a latch. Ends the oldest snapshots if the versions take too much memory,
    /// and drops some versions that were kept for ended snapshots. Returns whether it has ended any.
    pub(crate) fn keep_to_limit(&self) -> bool {
        // No further snapshots are ended while versions of ended ones remain to be dropped.
        let is_too_much = self.is_on() && !self.is_due.load(Ordering::SeqCst) && self.bytes() > self.limit;
        let has_ended = is_too_much && self.end_oldest();
        if self.is_due.load(Ordering::SeqCst) {
            self.give_up(AT_ONCE);
        }
        has_ended
    }

    /// Checks up to `most` rows with versions that were kept for ended snapshots. Returns whether there were any.
    fn give_up(&self, most: usize) -> bool {
        let rows = {
            let mut due = self.due.lock();
            let from = due.len().saturating_sub(most);
            let rows = due.split_off(from);
            self.is_due.store(!due.is_empty(), Ordering::SeqCst);
            rows
        };
        rows.iter().for_each(|row| self.look_at(row));
        !rows.is_empty()
    }

    /// Ends the snapshots of the oldest moment. Returns whether there were any.
    fn end_oldest(&self) -> bool {
        let mut due = self.due.lock();
        let (ended, mut rows) = self.with_moments(Moments::end_oldest);
        self.ended.fetch_add(ended as u64, Ordering::Relaxed);
        due.append(&mut rows);
        self.is_due.store(!due.is_empty(), Ordering::SeqCst);
        ended > 0
    }

    /// Makes room for this many bytes at once: drops versions of ended snapshots, and ends the oldest snapshots, until
    /// there is room. Returns whether it has ended any.
    pub(crate) fn make_room(&self, bytes: u64) -> bool {
        let mut has_ended = false;
        while self.bytes().saturating_add(bytes) > self.limit {
            if self.give_up(AT_ONCE) {
                continue;
            }
            if !self.end_oldest() {
                break;
            }
            has_ended = true;
        }
        has_ended
    }
}
