//! What one connection has for itself.
#![allow(unsafe_code)] // shared between threads that SQLite keeps apart

use std::cell::{RefCell, RefMut};

/// A value that only SQLite's calls on one connection use: SQLite makes them one at a time, from whatever thread,
/// under the connection's mutex. A transaction uses the value a dozen times, and a mutex of its own would take a
/// measurable part of it.
#[derive(Default)]
pub struct Owned<T>(RefCell<T>);

// SAFETY: as the type says, no two threads use it at the same time, and SQLite's mutex orders their uses.
unsafe impl<T: Send> Sync for Owned<T> {}

impl<T> Owned<T> {
    /// The value. A use within another one is a fault of this crate; it panics, and ends SQLite's call.
    #[inline]
    pub fn get(&self) -> RefMut<'_, T> {
        self.0.borrow_mut()
    }
}
