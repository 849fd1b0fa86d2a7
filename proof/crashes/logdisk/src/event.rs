//! The requests that a disk has handled, in their order.

use std::sync::{Mutex, MutexGuard, PoisonError};

use duralite_crashmodel::disk::DiskEvent;

/// Receives every write and sync while the disk handles the request, *before the disk answers it*. So when a
/// program sees that a request has completed, the request is already recorded. The calls come one at a time.
/// They come from a thread with its own file descriptor table, so they cannot use files that another thread
/// has opened.
pub trait Sink: Send + Sync {
    /// Receives `bytes`, which were written at offset `at`, in bytes.
    fn write(&self, at: u64, bytes: &[u8]);
    /// Receives a sync. All writes before this call are durable.
    fn sync(&self);
}

/// A list of events in memory, in the order in which they happened. A caller can define its own type `E`, so
/// that the list has the caller's events as well as those of the disk.
#[derive(Debug)]
pub struct EventLog<E = DiskEvent> {
    events: Mutex<Vec<E>>,
}

impl<E> Default for EventLog<E> {
    fn default() -> Self {
        Self { events: Mutex::default() }
    }
}

impl<E> EventLog<E> {
    /// Appends an event.
    pub fn push(&self, event: E) {
        self.lock().push(event);
    }

    /// Returns the number of events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Returns whether there are no events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Returns all events so far and empties the log.
    #[must_use]
    pub fn take(&self) -> Vec<E> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<E>> {
        // A panic cannot interrupt an append.
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: From<DiskEvent> + Send> Sink for EventLog<E> {
    fn write(&self, at: u64, bytes: &[u8]) {
        self.push(DiskEvent::Write { at, bytes: bytes.into() }.into());
    }

    fn sync(&self) {
        self.push(DiskEvent::Sync.into());
    }
}
