//! Speculative lock inheritance: a transaction leaves its intention locks of tables to the next transaction on the same
//! thread, which then has them without a request.
//!
//! The first transaction that requests a conflicting lock takes away inherited locks that are not in use.

use crate::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::mode::Mode;

/// No transaction uses the lock.
const IDLE: u64 = 0;
/// Another transaction has taken the lock away.
const GONE: u64 = u64::MAX;

/// The transaction that uses an inherited lock.
#[derive(Debug, Default)]
pub(super) struct Use(AtomicU64);

impl Use {
    /// Marks the lock as used by an owner; `false` if the lock was taken away.
    pub(super) fn begin(&self, owner: u64) -> bool {
        self.0.compare_exchange(IDLE, owner, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    pub(super) fn end(&self) {
        self.0.store(IDLE, Ordering::SeqCst);
    }

    /// Takes the lock away. If a transaction uses it, returns that transaction instead.
    pub(super) fn take_away(&self) -> Result<(), u64> {
        match self.0.compare_exchange(IDLE, GONE, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) | Err(GONE) => Ok(()),
            Err(user) => Err(user),
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.0.load(Ordering::SeqCst) == GONE
    }
}

/// A lock that a transaction has left to the next one on its thread.
#[derive(Clone, Debug)]
pub(super) struct Left {
    /// The table's number.
    pub(super) table: u64,
    pub(super) mode: Mode,
    pub(super) by: Arc<Use>,
}
