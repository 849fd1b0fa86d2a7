//! Moments, and the snapshots that are open at some of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::fate::{FIRST_MOMENT, Fate};
use crate::sync::atomic::{AtomicBool, Ordering};

/// A moment that a snapshot shows: every transaction that had ended by then, and nothing of any other.
#[derive(Debug)]
pub(crate) struct Seen {
    moment: u64,
    /// What it needs may not be there any more.
    has_ended: AtomicBool,
}

impl Seen {
    pub(crate) fn moment(&self) -> u64 {
        self.moment
    }

    /// Whether it was ended because old versions took too much. Asked after they were looked at.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }
}

/// Moments pass, one for each transaction of which something was noted: under one lock with the opening of snapshots.
#[derive(Debug)]
pub(super) struct Moments {
    now: u64,
    open: BTreeMap<u64, Vec<Arc<Seen>>>,
    /// Snapshots that are being opened.
    opening: usize,
    /// What was changed by transactions that are not over is noted, all of it.
    pub(super) is_complete: bool,
}

impl Default for Moments {
    fn default() -> Self {
        Self { now: FIRST_MOMENT, open: BTreeMap::new(), opening: 0, is_complete: false }
    }
}

/// At which moments snapshots were open at some time, and which one that was.
#[derive(Debug)]
pub(super) struct Needs {
    now: u64,
    is_on: bool,
    open: SmallVec<[u64; 8]>,
}

impl Needs {
    /// Whether a snapshot may need what a row was from one moment until a transaction that ended at another. What ended
    /// after these needs were looked at may be needed by a snapshot that was opened since. If nobody had anything noted,
    /// whoever does now notes it anew.
    pub(super) fn needs(&self, from: u64, until: u64) -> bool {
        self.is_on && (until > self.now || self.open.iter().any(|open| (from..until).contains(open)))
    }
}

impl Moments {
    /// A transaction ends, of which something was noted.
    pub(super) fn end(&mut self, fate: &Fate) {
        self.now += 1;
        fate.end(self.now);
    }

    /// Whether changes have to be noted.
    pub(super) fn is_on(&self) -> bool {
        self.opening > 0 || !self.open.is_empty()
    }

    pub(super) fn begin_to_open(&mut self) {
        self.opening += 1;
    }

    /// Everything is noted that transactions have changed which are not over.
    pub(super) fn open(&mut self) -> Arc<Seen> {
        self.opening -= 1;
        self.is_complete = true;
        let seen = Arc::new(Seen { moment: self.now, has_ended: AtomicBool::new(false) });
        self.open.entry(self.now).or_default().push(Arc::clone(&seen));
        seen
    }

    pub(super) fn close(&mut self, seen: &Arc<Seen>) {
        if let Some(all) = self.open.get_mut(&seen.moment) {
            all.retain(|other| !Arc::ptr_eq(other, seen));
            if all.is_empty() {
                self.open.remove(&seen.moment);
            }
        }
        self.is_complete &= self.is_on();
    }

    /// Ends the oldest snapshots that there are; how many.
    pub(super) fn end_oldest(&mut self) -> usize {
        let all = self.open.pop_first().map(|(_, all)| all).unwrap_or_default();
        all.iter().for_each(|seen| seen.has_ended.store(true, Ordering::SeqCst));
        self.is_complete &= self.is_on();
        all.len()
    }

    pub(super) fn needs(&self) -> Needs {
        Needs { now: self.now, is_on: self.is_on(), open: self.open.keys().copied().collect() }
    }

    pub(super) fn count(&self) -> usize {
        self.open.values().map(Vec::len).sum()
    }
}
