//! The synchronisation primitives of the store, for use under the schedule explorer. No time passes. A lost wake-up
//! becomes a deadlock, unless sleeps may end by themselves.

use std::cell::Cell;
use std::sync::PoisonError;
use std::time::Duration;

pub use shuttle::sync::MutexGuard;
pub use shuttle::sync::atomic;
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

std::thread_local! {
    /// Whether sleeps end by themselves, as they may outside the explorer. This variable can be thread-local, because a
    /// single system thread runs all threads of an exploration.
    static SLEEPS_END: Cell<bool> = const { Cell::new(false) };
}

/// Runs `explore` while sleeps end by themselves.
pub fn with_sleeps_that_end(explore: impl FnOnce()) {
    SLEEPS_END.set(true);
    explore();
    SLEEPS_END.set(false);
}

#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The condition variable of a mutex. A waiter wakes only when another thread notifies it, or when sleeps end by
/// themselves.
#[derive(Debug, Default)]
pub struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>, _limit: Duration) -> MutexGuard<'a, T> {
        if SLEEPS_END.get() {
            shuttle::thread::yield_now();
            return guard;
        }
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

pub fn pause(_time: Duration) {
    shuttle::thread::yield_now();
}

#[derive(Debug, Default)]
pub struct Parker {
    is_woken: shuttle::sync::Mutex<bool>,
    changed: shuttle::sync::Condvar,
}

impl Parker {
    pub fn sleep(&self, _limit: Duration) {
        if SLEEPS_END.get() {
            shuttle::thread::yield_now();
            return;
        }
        let mut woken = self.is_woken.lock().unwrap_or_else(PoisonError::into_inner);
        while !*woken {
            woken = self.changed.wait(woken).unwrap_or_else(PoisonError::into_inner);
        }
        *woken = false;
    }

    pub fn wake(&self) {
        *self.is_woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}

/// A deadline that never passes.
#[derive(Clone, Copy, Debug)]
pub struct Deadline;

impl Deadline {
    pub fn after(_limit: Duration) -> Self {
        Self
    }

    pub fn is_over(&self) -> bool {
        false
    }

    pub fn left(&self) -> Duration {
        Duration::MAX
    }
}

shuttle::thread_local! {
    static NUMBER: AtomicUsize = AtomicUsize::new(usize::MAX);
    static HAS_NUMBER: AtomicBool = AtomicBool::new(false);
}

static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

pub fn thread_number() -> usize {
    HAS_NUMBER.with(|has| {
        NUMBER.with(|number| {
            if !has.swap(true, Ordering::SeqCst) {
                number.store(NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed), Ordering::SeqCst);
            }
            number.load(Ordering::SeqCst)
        })
    })
}
