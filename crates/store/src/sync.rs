//! What threads wait with; the schedule explorer has a module of the same name in its place.

use std::cell::Cell;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub(crate) use std::sync::atomic;

pub(crate) use parking_lot::{Mutex, MutexGuard};

/// Lets threads wait for a change of what a mutex protects.
#[derive(Debug, Default)]
pub(crate) struct Condvar(parking_lot::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Waits until it is notified, or for so long, without the mutex meanwhile.
    pub(crate) fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
        self.0.wait_for(&mut guard, limit);
        guard
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Gives the processor to others: for a moment, or for so long.
pub(crate) fn pause(time: Duration) {
    if time.is_zero() { std::thread::yield_now() } else { std::thread::sleep(time) }
}

/// Lets one thread sleep until another wakes it.
#[derive(Debug, Default)]
pub(crate) struct Parker {
    is_woken: std::sync::Mutex<bool>,
    changed: std::sync::Condvar,
}

impl Parker {
    /// Sleeps until [`wake`](Self::wake), which may have come before, or for so long.
    pub(crate) fn sleep(&self, limit: Duration) {
        let woken = self.is_woken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(woken, limit, |woken| !*woken);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }

    /// Wakes it, now or when it next sleeps.
    pub(crate) fn wake(&self) {
        *self.is_woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}

/// A moment until which something is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn after(limit: Duration) -> Self {
        let now = Instant::now();
        // As good as for ever.
        Self(now.checked_add(limit).unwrap_or(now + Duration::from_secs(1 << 30)))
    }

    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.0
    }

    /// How long it is until then.
    pub(crate) fn left(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// A number that each thread keeps.
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
