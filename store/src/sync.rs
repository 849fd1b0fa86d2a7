//! The primitives with which threads wait for each other. The schedule explorer replaces this module with its own.

use std::cell::Cell;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(crate) use std::sync::atomic;

pub(crate) use parking_lot::{Mutex, MutexGuard};

/// A condition variable, which signals that the data under a mutex has changed.
#[derive(Debug, Default)]
pub(crate) struct Condvar(parking_lot::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Waits until another thread notifies this variable, or for at most `limit`. The mutex is unlocked during the
    /// wait.
    pub(crate) fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
        self.0.wait_for(&mut guard, limit);
        guard
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Yields the processor, or sleeps if `time` is not zero.
pub(crate) fn pause(time: Duration) {
    if time.is_zero() { std::thread::yield_now() } else { std::thread::sleep(time) }
}

/// A primitive with which one thread sleeps until another wakes it.
#[derive(Debug, Default)]
pub(crate) struct Parker {
    is_woken: std::sync::Mutex<bool>,
    changed: std::sync::Condvar,
}

impl Parker {
    /// Sleeps until [`wake`](Self::wake) is called, or for at most `limit`. Returns at once if `wake` was called since
    /// the last sleep.
    pub(crate) fn sleep(&self, limit: Duration) {
        let woken = self.is_woken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(woken, limit, |woken| !*woken);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }

    /// Wakes the sleeping thread. If no thread sleeps, the next call of [`sleep`](Self::sleep) returns at once.
    pub(crate) fn wake(&self) {
        *self.is_woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}

/// The moment at which a wait ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn after(limit: Duration) -> Self {
        let now = Instant::now();
        // If the clock cannot represent that moment, uses a limit that is practically forever.
        Self(now.checked_add(limit).unwrap_or(now + Duration::from_secs(1 << 30)))
    }

    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.0
    }

    /// Returns how much time is left until the deadline.
    pub(crate) fn left(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// Returns a number that belongs to this thread as long as the thread lives.
pub(crate) fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static OWN: Cell<Option<usize>> = const { Cell::new(None) });
    OWN.with(|own| {
        own.get().unwrap_or_else(|| {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            own.set(Some(number));
            number
        })
    })
}
