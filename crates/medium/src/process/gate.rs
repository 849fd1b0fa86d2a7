//! What a fork waits for.

use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// Instead of a count, while a fork runs.
const FORKING: i32 = i32::MIN;
const PAUSE: Duration = Duration::from_micros(50);

/// Counts who is at something that a fork must not come between. A fork waits until nobody is, and whoever comes meanwhile waits
/// until it is over; both for a while only, since either may hang.
pub(super) struct Gate {
    inside: AtomicI32,
    /// In units of [`PAUSE`].
    patience: u32,
}

impl Gate {
    pub(super) const fn new(patience: Duration) -> Self {
        Self { inside: AtomicI32::new(0), patience: (patience.as_micros() / PAUSE.as_micros()) as u32 }
    }

    /// Until [`Gate::leave`] forks wait.
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

    /// Only what may be done by a handler of forks.
    pub(super) fn before_fork(&self) {
        for _ in 0..self.patience {
            if self.inside.compare_exchange(0, FORKING, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// In the parent.
    pub(super) fn after_fork(&self) {
        let _ = self.inside.compare_exchange(FORKING, 0, Ordering::Release, Ordering::Relaxed);
    }

    /// In the child: those that were inside are not here.
    pub(super) fn after_fork_in_child(&self) {
        self.inside.store(0, Ordering::Release);
    }
}
