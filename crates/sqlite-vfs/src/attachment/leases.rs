//! Free pages of a database that concurrent connections of this process have leased.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The pages that connections of this process have leased. Each connection leases only pages that are not in
/// this set. The pages stay on the database's free list, and other processes do not know of the leases, so a
/// lease keeps no connection from taking a page.
#[derive(Default)]
pub struct Leases(Mutex<BTreeSet<u32>>);

impl Leases {
    /// Calls `change` with the pages.
    pub fn with<T>(&self, change: impl FnOnce(&mut BTreeSet<u32>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
