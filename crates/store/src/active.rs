//! Transactions whose objects are needed: to take them back, or to finish what they gave free.

use duralite_logfmt::store::{Lsn, TxId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

const PARTS: usize = 16;

/// Each with an object before which it has none.
#[derive(Debug)]
pub(crate) struct Active(Box<[Mutex<FxHashMap<TxId, Lsn>>]>);

impl Default for Active {
    fn default() -> Self {
        Self((0..PARTS).map(|_| Mutex::default()).collect())
    }
}

impl Active {
    fn part(&self, tx: TxId) -> &Mutex<FxHashMap<TxId, Lsn>> {
        &self.0[(tx % PARTS as u64) as usize]
    }

    /// Before its first object has a number: that will be `next` or a later one.
    pub(crate) fn enter(&self, tx: TxId, next: Lsn) {
        self.part(tx).lock().insert(tx, next);
    }

    pub(crate) fn leave(&self, tx: TxId) {
        self.part(tx).lock().remove(&tx);
    }

    /// No transaction has an object before this one that is needed; `next` if there is none.
    pub(crate) fn oldest(&self, next: Lsn) -> Lsn {
        let oldest = self.0.iter().filter_map(|part| part.lock().values().min().copied()).min();
        oldest.map_or(next, |oldest| oldest.min(next))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.iter().map(|part| part.lock().len()).sum()
    }
}
