//! What rows were before transactions changed them, for snapshots: in memory, and only while there are any.
//!
//! Pages are changed in place, before the commit. So while a snapshot is open, whoever is about to change a row first notes
//! here what it was; the first snapshot notes that of the transactions in progress when it is opened.
//!
//! Invariant 55: a transaction ends, for snapshots, at one moment: after its last change of a page, and before it releases
//! its first lock. A snapshot shows those that had ended when it was opened, which is a prefix of an order that
//! explains what all transactions have seen, and has each that was acknowledged before.
//!
//! Invariant 56: what a row was for an open snapshot is noted before its page is changed, and stays until the snapshot is closed,
//! or is told that it has ended. So who looks at the page first, and here after that, finds what it was, whatever
//! happens in between; and no latch is held for it.
//!
//! Invariant 57: what is noted takes no more than its limit, and what the changes add by which the oldest snapshots are ended.

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

/// So many rows a change looks at of which a version was kept for nothing.
const AT_ONCE: usize = 64;

/// What rows were, of all tables.
///
/// A lock of `moments` is taken with or without one of a row or of `due`, and nothing is taken with it.
#[derive(Debug)]
pub(crate) struct Versions {
    /// Whether changes have to be noted; changed under the lock of `moments`.
    is_on: AtomicBool,
    /// Whether there is something in `due`.
    is_due: AtomicBool,
    /// In bytes.
    limit: u64,
    moments: Mutex<Moments<Arc<Place>>>,
    /// Rows of which a version was kept for snapshots that were ended. Whoever changes rows looks at some of them.
    due: Mutex<Vec<Arc<Place>>>,
    noted: Noted,
    ended: AtomicU64,
}

impl Versions {
    /// Nothing noted, and so many bytes at most.
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

    /// Whether changes have to be noted. Asked before each, with its leaf latched, by one whom the first snapshot waits for.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
    }

    /// Something done with the moments, and with what follows for writers from that.
    fn with_moments<T>(&self, work: impl FnOnce(&mut Moments<Arc<Place>>) -> T) -> T {
        let mut moments = self.moments.lock();
        let done = work(&mut moments);
        self.is_on.store(moments.is_on(), Ordering::SeqCst);
        done
    }

    /// A snapshot is about to be opened; whether what transactions in progress have changed is noted already. From
    /// now on whoever changes a row notes it.
    pub(crate) fn begin_to_open(&self) -> bool {
        self.with_moments(|moments| {
            moments.begin_to_open();
            moments.is_complete
        })
    }

    /// Opens a snapshot at this moment, once that is noted.
    pub(crate) fn open(&self) -> Arc<Seen> {
        self.with_moments(Moments::open)
    }

    /// Closes a snapshot, and gives up what it alone has needed.
    pub(crate) fn close(&self, seen: &Arc<Seen>) {
        let rows = self.with_moments(|moments| moments.close(seen));
        rows.iter().for_each(|row| self.look_at(row));
    }

    /// Notes what a row was before a step of a transaction, which has the row locked; by its number in the transaction,
    /// of which only the first counts. The row if it is another one than those before, which is to be [looked
    /// at](Self::look_at) when the transaction has ended.
    pub(crate) fn note(
        &self,
        fate: &Arc<Fate>,
        row: (TableId, &[u8]),
        step: usize,
        old: Option<&[u8]>,
    ) -> Option<Arc<Place>> {
        self.noted.note(fate, row, step, old)
    }

    /// A transaction ends, before it releases a lock; whether the rows that it has noted have to be [looked
    /// at](Self::look_at) then.
    pub(crate) fn end(&self, fate: &Fate) -> bool {
        if fate.end_unnoted() {
            return false;
        }
        self.moments.lock().end(fate);
        true
    }

    /// A row may have versions that nobody needs.
    pub(crate) fn look_at(&self, row: &Arc<Place>) {
        self.noted.look_at(row, &self.moments);
    }

    /// Whether some version of a row is this cell.
    pub(crate) fn has(&self, table: TableId, key: &[u8], cell: &[u8]) -> bool {
        self.noted.has(table, key, cell)
    }

    /// Whether it is noted of some row of a table what it was.
    pub(crate) fn has_rows_of(&self, table: TableId) -> bool {
        self.noted.has_rows_of(table)
    }

    /// Puts something in the place of a cell in all versions of a row.
    pub(crate) fn replace(&self, table: TableId, key: &[u8], cell: &[u8], by: &Image) {
        self.noted.replace(table, key, cell, by);
    }

    /// What a row was for a snapshot, if that is not what its page has. The page is looked at before.
    pub(crate) fn find(&self, seen: &Seen, table: TableId, key: &[u8]) -> Option<Image> {
        self.noted.find(seen.moment(), table, key)
    }

    /// The rows of a range that are not what their pages have, of as many as are looked at. The pages are looked at
    /// before.
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

    /// A moment, such that each snapshot that is opened from now on is of a later one.
    pub(crate) fn pass(&self) -> u64 {
        self.moments.lock().pass()
    }

    /// As [`pass`](Self::pass), with something done before a snapshot of a later moment can be opened.
    pub(crate) fn pass_and(&self, work: impl FnOnce(u64)) {
        let mut moments = self.moments.lock();
        let moment = moments.pass();
        work(moment);
    }

    /// Whether a snapshot of this moment or an earlier one is open, and has not been ended.
    pub(crate) fn has_snapshots_until(&self, moment: u64) -> bool {
        self.moments.lock().has_until(moment)
    }

    /// How many bytes it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.noted.bytes()
    }

    /// How many snapshots are open, and have not been ended.
    pub(crate) fn open_snapshots(&self) -> usize {
        self.moments.lock().count()
    }

    /// How many snapshots were ended because old versions took too much.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Called by whoever has changed a row, without a latch: ends the oldest snapshots if what is noted takes too much, and
    /// gives up a little of what was kept for them. Whether it has ended some.
    pub(crate) fn keep_to_limit(&self) -> bool {
        // Not while something is still to be given up.
        let is_too_much = self.is_on() && !self.is_due.load(Ordering::SeqCst) && self.bytes() > self.limit;
        let has_ended = is_too_much && self.end_oldest();
        if self.is_due.load(Ordering::SeqCst) {
            self.give_up(AT_ONCE);
        }
        has_ended
    }

    /// Looks at so many rows of which a version was kept for snapshots that have been ended; whether there were any.
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

    /// Ends the oldest snapshots; whether there were any.
    fn end_oldest(&self) -> bool {
        let mut due = self.due.lock();
        let (ended, mut rows) = self.with_moments(Moments::end_oldest);
        self.ended.fetch_add(ended as u64, Ordering::Relaxed);
        due.append(&mut rows);
        self.is_due.store(!due.is_empty(), Ordering::SeqCst);
        ended > 0
    }

    /// Makes room for so many bytes at once: what takes too much with them is given up, oldest snapshots first. Whether it has
    /// ended some.
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
