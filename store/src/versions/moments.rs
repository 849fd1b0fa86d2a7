//! Moments, and the snapshots that are open at some of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::fate::{FIRST_MOMENT, Fate};
use crate::sync::atomic::{AtomicBool, Ordering};

/// The moment that a snapshot shows: every transaction that had ended by then, and no other.
#[derive(Debug)]
pub(crate) struct Seen {
    moment: u64,
    /// Whether the snapshot was ended, so that versions that it needs may be gone.
    has_ended: AtomicBool,
}

impl Seen {
    pub(crate) fn moment(&self) -> u64 {
        self.moment
    }

    /// Whether the snapshot was ended because old versions took too much memory. Called after reading the versions.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }
}

/// The snapshots of one moment.
#[derive(Debug)]
struct Open<R> {
    seen: Vec<Arc<Seen>>,
    /// Rows with a version that is kept for these snapshots, because they are the oldest ones that need it.
    rows: Vec<R>,
}

/// The moments: one passes for each noted transaction that ends, under the same lock under which snapshots are opened.
/// `R` is a row.
#[derive(Debug)]
pub(super) struct Moments<R> {
    now: u64,
    open: BTreeMap<u64, Open<R>>,
    /// How many snapshots are being opened.
    opening: usize,
    /// Whether everything is noted that transactions in progress have changed.
    pub(super) is_complete: bool,
}

impl<R> Default for Moments<R> {
    fn default() -> Self {
        Self { now: FIRST_MOMENT, open: BTreeMap::new(), opening: 0, is_complete: false }
    }
}

impl<R> Moments<R> {
    /// Ends a transaction that was noted.
    pub(super) fn end(&mut self, fate: &Fate) {
        self.now += 1;
        fate.end(self.now);
    }

    /// Lets a moment pass, and returns the one before.
    pub(super) fn pass(&mut self) -> u64 {
        self.now += 1;
        self.now - 1
    }

    /// Whether a snapshot of this moment or an earlier one is open.
    pub(super) fn has_until(&self, moment: u64) -> bool {
        self.open.range(..=moment).next().is_some()
    }

    /// Whether changes have to be noted.
    pub(super) fn is_on(&self) -> bool {
        self.opening > 0 || !self.open.is_empty()
    }

    pub(super) fn begin_to_open(&mut self) {
        self.opening += 1;
    }

    /// Opens a snapshot. Everything that transactions in progress have changed is noted.
    pub(super) fn open(&mut self) -> Arc<Seen> {
        self.opening -= 1;
        self.is_complete = true;
        let seen = Arc::new(Seen { moment: self.now, has_ended: AtomicBool::new(false) });
        let new = || Open { seen: Vec::new(), rows: Vec::new() };
        self.open.entry(self.now).or_insert_with(new).seen.push(Arc::clone(&seen));
        seen
    }

    /// Closes a snapshot. Returns the rows with versions that were kept for its moment, if it was the last of that
    /// moment.
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

    /// Ends the snapshots of the oldest moment. Returns how many they were, and the rows with versions that were kept
    /// for them.
    pub(super) fn end_oldest(&mut self) -> (usize, Vec<R>) {
        let Some((_, open)) = self.open.pop_first() else { return (0, Vec::new()) };
        open.seen.iter().for_each(|seen| seen.has_ended.store(true, Ordering::SeqCst));
        self.is_complete &= self.is_on();
        (open.seen.len(), open.rows)
    }

    /// The oldest snapshot that needs a version: one of a moment from `from` on and before `until`, at which the
    /// version's transaction ended.
    pub(super) fn oldest(&self, from: u64, until: u64) -> Option<u64> {
        // A test may let versions end in another order; then there is none.
        self.open.range(from..until.max(from)).next().map(|(moment, _)| *moment)
    }

    /// Keeps a version of a row for the snapshots of a moment.
    pub(super) fn keep(&mut self, moment: u64, row: R) {
        if let Some(open) = self.open.get_mut(&moment) {
            open.rows.push(row);
        }
    }

    pub(super) fn count(&self) -> usize {
        self.open.values().map(|open| open.seen.len()).sum()
    }
}
