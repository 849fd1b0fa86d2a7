//! The gate at which forks and other work wait for each other.

use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// Stands in place of a count while a fork runs.
const FORKING: i32 = i32::MIN;
const PAUSE: Duration = Duration::from_micros(50);

/// Counts threads at work that a fork must not interrupt. A fork waits until there is none, and a thread that
/// comes meanwhile waits until the fork is over. Both wait for a limited time, since either may hang.
pub(super) struct Gate {
    inside: AtomicI32,
    /// How often to look again, [`PAUSE`] apart.
    patience: u32,
}

impl Gate {
    pub(super) const fn new(patience: Duration) -> Self {
        Self { inside: AtomicI32::new(0), patience: (patience.as_micros() / PAUSE.as_micros()) as u32 }
    }

    /// Enters. Forks wait until [`Gate::leave`].
    pub(super) fn enter(&self) {
        let mut patience = self.patience;
        loop {
            let count = self.inside.load(Ordering::Relaxed);
            let inside = (count >= 0 || patience == 0).then_some(count.max(0) + 1);
            match inside {
                Some(new)
                    if self
                        .inside
                        .compare_exchange(count, new, Ordering::Acquire, Ordering::Relaxed)
                        .is_ok() =>
                {
                    return;
                }
                Some(_) => {}
                None => {
                    patience -= 1;
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    pub(super) fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::Release);
    }

    /// Waits until no thread is inside. Does only what a handler of forks may do.
    pub(super) fn before_fork(&self) {
        for _ in 0..self.patience {
            if self.inside.compare_exchange(0, FORKING, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Opens the gate again, in the parent.
    pub(super) fn after_fork(&self) {
        let _ = self.inside.compare_exchange(FORKING, 0, Ordering::Release, Ordering::Relaxed);
    }

    /// Opens the gate in the child, which has none of the threads that were inside.
    pub(super) fn after_fork_in_child(&self) {
        self.inside.store(0, Ordering::Release);
    }
}
