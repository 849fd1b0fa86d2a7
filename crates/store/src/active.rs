//! Transactions whose objects are needed: to take them back, or to finish what they gave free.

use std::sync::Arc;

use duralite_logfmt::store::{Lsn, TxId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::steps::Undoable;

const PARTS: usize = 16;

/// A transaction, and an object before which it has none.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) tx: TxId,
    pub(crate) first: Lsn,
    pub(crate) undoable: Arc<Undoable>,
}

type Part = Mutex<FxHashMap<TxId, (Lsn, Arc<Undoable>)>>;

/// Each with an object before which it has none.
#[derive(Debug)]
pub(crate) struct Active(Box<[Part]>);

impl Default for Active {
    fn default() -> Self {
        Self((0..PARTS).map(|_| Mutex::default()).collect())
    }
}

impl Active {
    fn part(&self, tx: TxId) -> &Part {
        &self.0[(tx % PARTS as u64) as usize]
    }

    /// Before its first object has a number: that will be `next` or a later one.
    pub(crate) fn enter(&self, tx: TxId, next: Lsn, undoable: Arc<Undoable>) {
        self.part(tx).lock().insert(tx, (next, undoable));
    }

    /// Once what it needs is in the log anew, from this object on.
    pub(crate) fn moved(&self, tx: TxId, first: Lsn) {
        if let Some(entry) = self.part(tx).lock().get_mut(&tx) {
            entry.0 = first;
        }
    }

    pub(crate) fn leave(&self, tx: TxId) {
        self.part(tx).lock().remove(&tx);
    }

    /// No transaction has an object before this one that is needed; `next` if there is none.
    pub(crate) fn oldest(&self, next: Lsn) -> Lsn {
        let first = |part: &Part| part.lock().values().map(|(first, _)| *first).min();
        let oldest = self.0.iter().filter_map(first).min();
        oldest.map_or(next, |oldest| oldest.min(next))
    }

    /// All of them, the oldest first.
    pub(crate) fn by_age(&self) -> Vec<Entry> {
        let mut all = Vec::new();
        for part in &self.0 {
            let part = part.lock();
            let entry = |(tx, (first, undoable)): (&TxId, &(Lsn, Arc<Undoable>))| Entry {
                tx: *tx,
                first: *first,
                undoable: Arc::clone(undoable),
            };
            all.extend(part.iter().map(entry));
        }
        all.sort_unstable_by_key(|entry| entry.first);
        all
    }

    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(|part| part.lock().len()).sum()
    }
}
