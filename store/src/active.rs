//! Transactions whose log objects are still needed, either for rollback or to finish freeing pages after a commit.

use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::format::{Lsn, TxId};
use crate::steps::Undoable;

const PARTS: usize = 16;

/// A transaction in progress. It needs no log object with a number below `first`.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) tx: TxId,
    pub(crate) first: Lsn,
    pub(crate) undoable: Arc<Undoable>,
}

type Part = Mutex<FxHashMap<TxId, (Lsn, Arc<Undoable>)>>;

/// All transactions in progress. Each entry has a lower bound on the numbers of the log objects that its transaction
/// still needs. The map is split by transaction number, so that threads rarely contend for a mutex.
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

    /// Adds a transaction. The caller does this before the transaction's first log object gets its number, which will
    /// be `next` or higher.
    pub(crate) fn enter(&self, tx: TxId, next: Lsn, undoable: Arc<Undoable>) {
        self.part(tx).lock().insert(tx, (next, undoable));
    }

    /// Raises a transaction's lower bound to `first`. The caller has copied the undo of all of the transaction's steps
    /// into new log objects, which begin at `first`. So the transaction no longer needs the older objects.
    pub(crate) fn moved(&self, tx: TxId, first: Lsn) {
        if let Some(entry) = self.part(tx).lock().get_mut(&tx) {
            entry.0 = first;
        }
    }

    pub(crate) fn leave(&self, tx: TxId) {
        self.part(tx).lock().remove(&tx);
    }

    /// Returns a lower bound on the numbers of the log objects that transactions in progress still need; `next` if
    /// there is no such transaction.
    pub(crate) fn oldest(&self, next: Lsn) -> Lsn {
        let first = |part: &Part| part.lock().values().map(|(first, _)| *first).min();
        let oldest = self.0.iter().filter_map(first).min();
        oldest.map_or(next, |oldest| oldest.min(next))
    }

    /// Returns all transactions, the oldest first.
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
