//! Transactions whose log objects are still needed: to roll the transactions back, or to finish freeing pages after a
//! commit.

use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::format::{Lsn, TxId};
use crate::steps::Undoable;

const PARTS: usize = 16;

/// A transaction, and a lower bound: the transaction has no needed object before `first`.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) tx: TxId,
    pub(crate) first: Lsn,
    pub(crate) undoable: Arc<Undoable>,
}

type Part = Mutex<FxHashMap<TxId, (Lsn, Arc<Undoable>)>>;

/// Each transaction in progress, with an object before which it has no needed object.
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

    /// Called before the first object of the transaction gets its number, which will be `next` or a later one.
    pub(crate) fn enter(&self, tx: TxId, next: Lsn, undoable: Arc<Undoable>) {
        self.part(tx).lock().insert(tx, (next, undoable));
    }

    /// Called once the undo of the transaction has been logged again, in objects from this one on.
    pub(crate) fn moved(&self, tx: TxId, first: Lsn) {
        if let Some(entry) = self.part(tx).lock().get_mut(&tx) {
            entry.0 = first;
        }
    }

    pub(crate) fn leave(&self, tx: TxId) {
        self.part(tx).lock().remove(&tx);
    }

    /// The oldest object that a transaction may need; `next` if there is no transaction.
    pub(crate) fn oldest(&self, next: Lsn) -> Lsn {
        let first = |part: &Part| part.lock().values().map(|(first, _)| *first).min();
        let oldest = self.0.iter().filter_map(first).min();
        oldest.map_or(next, |oldest| oldest.min(next))
    }

    /// All transactions, the oldest first.
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
