//! What a disk was asked to do, in the order in which it did it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use duralite_crashmodel::disk::DiskEvent;

/// Is told of every write and sync *while the disk handles it, before it answers*: whoever has seen
/// a request complete finds it recorded already. Calls come one at a time, from a thread with a file
/// descriptor table of its own: files opened elsewhere cannot be used in them.
pub trait Sink: Send + Sync {
    /// `bytes` were written at offset `at`, in bytes.
    fn write(&self, at: u64, bytes: &[u8]);
    /// All writes before this are durable.
    fn sync(&self);
}

/// A log in memory. `E` may have events of the caller's own beside the disk's; all are in one order.
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

    /// How many events there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether nothing happened yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// All events so far; the log begins anew.
    #[must_use]
    pub fn take(&self) -> Vec<E> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<E>> {
        // An append is whole or did not happen, whoever panicked.
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
