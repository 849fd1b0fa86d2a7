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
mod parts;

use std::sync::Arc;

pub(crate) use self::chain::Image;
pub(crate) use self::fate::Fate;
use self::moments::Moments;
pub(crate) use self::moments::Seen;
pub(crate) use self::parts::{Changed, Edges, End};
use self::parts::{Parts, Pass};
use crate::locks::TableId;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What rows were, of all tables.
///
/// A lock of `moments` is taken with or without one of a part, and nothing is taken with it.
#[derive(Debug)]
pub(crate) struct Versions {
    /// Whether changes have to be noted; changed under the lock of `moments`.
    is_on: AtomicBool,
    /// Whether some of what is noted may not be needed, and whoever changes rows looks for it.
    is_due: AtomicBool,
    /// Whether somebody does so at the moment.
    is_passing: AtomicBool,
    /// In bytes.
    limit: u64,
    moments: Mutex<Moments>,
    pass: Mutex<Option<Pass>>,
    parts: Parts,
    ended: AtomicU64,
}

impl Versions {
    /// Nothing noted, and so many bytes at most.
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            is_on: AtomicBool::new(false),
            is_due: AtomicBool::new(false),
            is_passing: AtomicBool::new(false),
            limit,
            moments: Mutex::default(),
            pass: Mutex::default(),
            parts: Parts::default(),
            ended: AtomicU64::new(0),
        }
    }

    /// Whether changes have to be noted. Asked before each, with its leaf latched, by one whom the first snapshot waits for.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
    }

    /// Something done with the moments, and with what follows for writers from that.
    fn with_moments<T>(&self, work: impl FnOnce(&mut Moments) -> T) -> T {
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
        self.with_moments(|moments| moments.close(seen));
        self.prune();
    }

    /// Notes what a row was before a step of a transaction, which has the row locked; by its number in the transaction,
    /// of which only the first counts.
    pub(crate) fn note(&self, fate: &Arc<Fate>, row: (TableId, &[u8]), step: usize, old: Option<&[u8]>) {
        self.parts.note(fate, row, step, old);
    }

    /// A transaction ends, before it releases a lock; whether its rows have to be [looked at](Self::look_at) then.
    pub(crate) fn end(&self, fate: &Fate) -> bool {
        if fate.end_unnoted() {
            return false;
        }
        self.moments.lock().end(fate);
        true
    }

    /// A row may have versions that nobody needs.
    pub(crate) fn look_at(&self, table: TableId, key: &[u8]) {
        self.parts.look_at(table, key, || self.moments.lock().needs());
    }

    /// Whether some version of a row is this cell.
    pub(crate) fn has(&self, table: TableId, key: &[u8], cell: &[u8]) -> bool {
        self.parts.has(table, key, cell)
    }

    /// Puts something in the place of a cell in all versions of a row.
    pub(crate) fn replace(&self, table: TableId, key: &[u8], cell: &[u8], by: &Image) {
        self.parts.replace(table, key, cell, by);
    }

    /// What a row was for a snapshot, if that is not what its page has. The page is looked at before.
    pub(crate) fn find(&self, seen: &Seen, table: TableId, key: &[u8]) -> Option<Image> {
        self.parts.find(seen.moment(), table, key)
    }

    /// The rows of a range that are not what their pages have, of as many as are looked at in each part. The pages are
    /// looked at before.
    pub(crate) fn changed(
        &self,
        seen: &Seen,
        table: TableId,
        range: Edges<'_>,
        end: End,
        most: usize,
    ) -> Changed {
        self.parts.changed(seen.moment(), table, range, (end, most))
    }

    /// How many bytes it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.bytes()
    }

    /// How many snapshots are open, and have not been ended.
    pub(crate) fn open_snapshots(&self) -> usize {
        self.moments.lock().count()
    }

    /// How many snapshots were ended because old versions took too much.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Gives up everything that nobody needs.
    fn prune(&self) {
        let mut pass = Pass::default();
        while !pass.is_over() {
            self.prune_some(&mut pass);
        }
    }

    fn prune_some(&self, pass: &mut Pass) {
        self.parts.prune_some(pass, || self.moments.lock().needs());
    }

    /// Called by whoever has changed a row, without a latch: ends the oldest snapshots if what is noted takes too much, and
    /// gives up a little of what was needed for them.
    pub(crate) fn keep_to_limit(&self) {
        if self.is_on() && !self.is_due.load(Ordering::SeqCst) && self.bytes() > self.limit {
            self.end_oldest();
        }
        // One at a time; nobody waits for it.
        if self.is_due.load(Ordering::SeqCst) && !self.is_passing.swap(true, Ordering::SeqCst) {
            let mut pass = self.pass.lock();
            if let Some(on_it) = pass.as_mut() {
                self.prune_some(on_it);
                if on_it.is_over() {
                    *pass = None;
                    self.is_due.store(false, Ordering::SeqCst);
                }
            }
            drop(pass);
            self.is_passing.store(false, Ordering::SeqCst);
        }
    }

    /// Ends the oldest snapshots, unless what was needed for others is still being given up; whether there was one.
    fn end_oldest(&self) -> bool {
        let mut pass = self.pass.lock();
        if pass.is_some() {
            return false;
        }
        let ended = self.with_moments(Moments::end_oldest);
        if ended > 0 {
            self.ended.fetch_add(ended as u64, Ordering::Relaxed);
            *pass = Some(Pass::default());
            self.is_due.store(true, Ordering::SeqCst);
        }
        ended > 0
    }

    /// Makes room for so many bytes at once: what takes too much with them is given up, oldest snapshots first.
    pub(crate) fn make_room(&self, bytes: u64) {
        while self.bytes().saturating_add(bytes) > self.limit {
            self.prune();
            if self.bytes().saturating_add(bytes) <= self.limit {
                break;
            }
            // What others are giving up is given up already.
            *self.pass.lock() = None;
            self.is_due.store(false, Ordering::SeqCst);
            if !self.end_oldest() {
                break;
            }
        }
    }
}
