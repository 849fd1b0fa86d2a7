//! Moments, and which snapshots are open at each.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::fate::{FIRST_MOMENT, Fate};
use crate::sync::atomic::{AtomicBool, Ordering};

/// The moment of a snapshot. The snapshot shows every transaction that had ended by that moment, and no other.
#[derive(Debug)]
pub(crate) struct Seen {
    moment: u64,
    /// Whether the store has ended the snapshot. If it has, versions that the snapshot needs may have been dropped.
    has_ended: AtomicBool,
}

impl Seen {
    pub(crate) fn moment(&self) -> u64 {
        self.moment
    }

    /// Returns whether the store has ended the snapshot because old versions took too much memory. The caller asks only
    /// after it has read the versions, because the snapshot may end during the read.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }
}

/// The open snapshots of one moment.
#[derive(Debug)]
struct Open<R> {
    seen: Vec<Arc<Seen>>,
    /// Rows with a version that these snapshots need, but no older snapshot. When the snapshots are closed, the rows
    /// are checked.
    rows: Vec<R>,
}

/// The moments. Whenever a transaction that has noted changes ends, the current moment advances. One mutex protects
/// this and the opening of snapshots. `R` is the type of a row.
#[derive(Debug)]
pub(super) struct Moments<R> {
    now: u64,
    open: BTreeMap<u64, Open<R>>,
    /// The number of snapshots that are currently being opened.
    opening: usize,
    /// Whether all changes of open transactions are noted, including those from before the first snapshot.
    pub(super) is_complete: bool,
}

impl<R> Default for Moments<R> {
    fn default() -> Self {
        Self { now: FIRST_MOMENT, open: BTreeMap::new(), opening: 0, is_complete: false }
    }
}

impl<R> Moments<R> {
    /// Ends a transaction whose changes were noted.
    pub(super) fn end(&mut self, fate: &Fate) {
        self.now += 1;
        fate.end(self.now);
    }

    /// Ends the current moment, and returns it.
    pub(super) fn pass(&mut self) -> u64 {
        self.now += 1;
        self.now - 1
    }

    /// Returns whether any snapshot of this moment, or of an earlier one, is open.
    pub(super) fn has_until(&self, moment: u64) -> bool {
        self.open.range(..=moment).next().is_some()
    }

    /// Returns whether transactions have to note their changes.
    pub(super) fn is_on(&self) -> bool {
        self.opening > 0 || !self.open.is_empty()
    }

    pub(super) fn begin_to_open(&mut self) {
        self.opening += 1;
    }

    /// Opens a snapshot. By now, all changes of open transactions are noted.
    pub(super) fn open(&mut self) -> Arc<Seen> {
        self.opening -= 1;
        self.is_complete = true;
        let seen = Arc::new(Seen { moment: self.now, has_ended: AtomicBool::new(false) });
        let new = || Open { seen: Vec::new(), rows: Vec::new() };
        self.open.entry(self.now).or_insert_with(new).seen.push(Arc::clone(&seen));
        seen
    }

    /// Closes a snapshot. If no other snapshot of the same moment is open, returns the rows with versions that were
    /// kept for that moment.
    pub(super) fn close(&mut self, seen: &Arc<Seen>) -> Vec<R> {
        let Some(open) = self.open.get_mut(&seen.moment) else { return Vec::new() };
        open.seen.retain(|other| !Arc::ptr_eq(other, seen));
        if !open.seen.is_empty() {
            return Vec::new();
        }
        let gone = self.open.remove(&seen.moment);
        self.is_complete &= self.is_on();
        gone.map(|open| open.rows).unwrap_or_default()
    }

    /// Ends the snapshots of the oldest moment. Returns how many there were, and the rows with versions that were kept
    /// for them.
    pub(super) fn end_oldest(&mut self) -> (usize, Vec<R>) {
        let Some((_, open)) = self.open.pop_first() else { return (0, Vec::new()) };
        open.seen.iter().for_each(|seen| seen.has_ended.store(true, Ordering::SeqCst));
        self.is_complete &= self.is_on();
        (open.seen.len(), open.rows)
    }

    /// Returns the moment of the oldest snapshot that needs a version. That moment is at or after `from`, and before
    /// `until`, the moment at which the version's transaction ended.
    pub(super) fn oldest(&self, from: u64, until: u64) -> Option<u64> {
        // In tests that break a rule, transactions may end out of order. Then `until` is below `from`, and the range
        // would panic.
        self.open.range(from..until.max(from)).next().map(|(moment, _)| *moment)
    }

    /// Remembers that a version of a row is kept for the snapshots of this moment.
    pub(super) fn keep(&mut self, moment: u64, row: R) {
        if let Some(open) = self.open.get_mut(&moment) {
            open.rows.push(row);
        }
    }

    pub(super) fn count(&self) -> usize {
        self.open.values().map(|open| open.seen.len()).sum()
    }
}
