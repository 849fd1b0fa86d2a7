//! Old row versions for snapshots. They are kept in memory, and only while snapshots are open.
//!
//! Pages are changed in place, before the commit. So while a snapshot is open, a transaction that is about to change a
//! row first notes the row's content here. When the first snapshot is opened, open transactions may already have
//! changed rows. The old content of these rows is noted at that time.
//!
//! Invariant 55: for snapshots, a transaction ends at a single moment. That moment is after its last change of a page,
//! and before it releases its first lock. A snapshot shows exactly the transactions that had ended when it was opened.
//! These transactions are a prefix of a serial order that explains what all transactions have read, and they include
//! every transaction that was acknowledged before the snapshot was opened.
//!
//! Invariant 56: the content of a row for an open snapshot is noted before the row's page changes. The note stays until
//! the snapshot is closed, or is marked as ended. So a reader that reads first the page and then the versions finds the
//! right content, whatever changes in between. It need not hold a latch for that.
//!
//! Invariant 57: old versions take no more memory than their limit. They may exceed it for a short time, until the
//! store has ended the oldest snapshots.

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

/// The largest number of rows of the list `due` that a thread checks each time it changes a row.
const AT_ONCE: usize = 64;

/// The old versions of rows, of all tables.
///
/// Lock order: a thread may lock `moments` while it holds the mutex of a row or of `due`. While it holds `moments`, it
/// locks no other mutex.
#[derive(Debug)]
pub(crate) struct Versions {
    /// Whether transactions have to note their changes. A thread writes this only while it holds `moments`.
    is_on: AtomicBool,
    /// Whether `due` contains rows.
    is_due: AtomicBool,
    /// The largest amount of memory that versions may take, in bytes.
    limit: u64,
    moments: Mutex<Moments<Arc<Place>>>,
    /// Rows that have to be checked, because versions of them were kept for a snapshot that the store has ended. Each
    /// thread that changes a row also checks some of these rows.
    due: Mutex<Vec<Arc<Place>>>,
    noted: Noted,
    ended: AtomicU64,
}

impl Versions {
    /// Makes an empty set of versions, with a limit of `limit` bytes.
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

    /// Returns whether transactions have to note their changes. A transaction asks before each change, while it holds
    /// the leaf's latch and `noting`. If the answer is no, the transaction does not note its change. A thread that then
    /// opens the first snapshot waits for `noting`, finds the change on the transaction's list of steps, and notes it.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
    }

    /// Calls `work` with the moments locked, and then updates the flag `is_on`.
    fn with_moments<T>(&self, work: impl FnOnce(&mut Moments<Arc<Place>>) -> T) -> T {
        let mut moments = self.moments.lock();
        let done = work(&mut moments);
        self.is_on.store(moments.is_on(), Ordering::SeqCst);
        done
    }

    /// Begins to open a snapshot. From now on, every transaction notes the rows that it changes. Returns whether all
    /// earlier changes of open transactions are already noted.
    pub(crate) fn begin_to_open(&self) -> bool {
        self.with_moments(|moments| {
            moments.begin_to_open();
            moments.is_complete
        })
    }

    /// Opens a snapshot as of this moment. The caller has noted all changes that open transactions had already made.
    pub(crate) fn open(&self) -> Arc<Seen> {
        self.with_moments(Moments::open)
    }

    /// Closes a snapshot, and drops the versions that no other snapshot needs.
    pub(crate) fn close(&self, seen: &Arc<Seen>) {
        let rows = self.with_moments(|moments| moments.close(seen));
        rows.iter().for_each(|row| self.look_at(row));
    }

    /// Notes the content of a row before a step. The step's transaction holds the row's lock; `step` is the step's
    /// index in the transaction. For each transaction, only the content before its first change of the row is kept. If
    /// the transaction notes this row for the first time, returns the row. The row then has to be
    /// [checked](Self::look_at) when the transaction has ended.
    pub(crate) fn note(
        &self,
        fate: &Arc<Fate>,
        row: (TableId, &[u8]),
        step: usize,
        old: Option<&[u8]>,
    ) -> Option<Arc<Place>> {
        self.noted.note(fate, row, step, old)
    }

    /// Ends a transaction, before it releases any lock. Returns whether the rows that it has noted have to be
    /// [checked](Self::look_at) after that.
    pub(crate) fn end(&self, fate: &Fate) -> bool {
        if fate.end_unnoted() {
            return false;
        }
        self.moments.lock().end(fate);
        true
    }

    /// Checks a row: drops those of its versions that no snapshot needs.
    pub(crate) fn look_at(&self, row: &Arc<Place>) {
        self.noted.look_at(row, &self.moments);
    }

    /// Returns whether any version of a row is this cell.
    pub(crate) fn has(&self, table: TableId, key: &[u8], cell: &[u8]) -> bool {
        self.noted.has(table, key, cell)
    }

    /// Returns whether there is an old version of any row of a table.
    pub(crate) fn has_rows_of(&self, table: TableId) -> bool {
        self.noted.has_rows_of(table)
    }

    /// Replaces a cell by another image in all versions of a row.
    pub(crate) fn replace(&self, table: TableId, key: &[u8], cell: &[u8], by: &Image) {
        self.noted.replace(table, key, cell, by);
    }

    /// Returns the content of a row for a snapshot, if the snapshot needs an old version. The caller has to read the
    /// page first.
    pub(crate) fn find(&self, seen: &Seen, table: TableId, key: &[u8]) -> Option<Image> {
        self.noted.find(seen.moment(), table, key)
    }

    /// Returns the rows of a range for which this snapshot needs old versions. Considers only the first `most` rows
    /// that have versions. The caller has to read the pages first.
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

    /// Ends the current moment, and returns it. Every snapshot that is opened from now on has a later moment.
    pub(crate) fn pass(&self) -> u64 {
        self.moments.lock().pass()
    }

    /// Ends the current moment like [`pass`](Self::pass), and calls `work` with it before any snapshot with a later
    /// moment can be opened.
    pub(crate) fn pass_and(&self, work: impl FnOnce(u64)) {
        let mut moments = self.moments.lock();
        let moment = moments.pass();
        work(moment);
    }

    /// Returns whether any snapshot of this moment, or of an earlier one, is open and was not ended.
    pub(crate) fn has_snapshots_until(&self, moment: u64) -> bool {
        self.moments.lock().has_until(moment)
    }

    /// Returns how many bytes the versions take.
    pub(crate) fn bytes(&self) -> u64 {
        self.noted.bytes()
    }

    /// Returns how many snapshots are open and were not ended.
    pub(crate) fn open_snapshots(&self) -> usize {
        self.moments.lock().count()
    }

    /// Returns how many snapshots were ended because old versions took too much memory.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Keeps the versions within their limit. A thread calls this after it has changed a row, when it holds no latch.
    /// If the versions take too much memory, ends the oldest snapshots. Also drops some versions that were kept for
    /// ended snapshots. Returns whether it has ended any snapshot.
    pub(crate) fn keep_to_limit(&self) -> bool {
        // First drops versions that only ended snapshots needed. Ends further snapshots only when no such versions are
        // left.
        let is_too_much = self.is_on() && !self.is_due.load(Ordering::SeqCst) && self.bytes() > self.limit;
        let has_ended = is_too_much && self.end_oldest();
        if self.is_due.load(Ordering::SeqCst) {
            self.give_up(AT_ONCE);
        }
        has_ended
    }

    /// Checks up to `most` rows of the list `due`. Returns whether there were any.
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

    /// Makes room for this many more bytes. Drops versions of ended snapshots and ends the oldest snapshots until there
    /// is room. Returns whether it has ended any snapshot.
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
