//! A crash that a recording medium simulates while a program is using it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A crash that a medium will simulate, and the image that the crash leaves.
#[derive(Debug, Default)]
pub struct DueCrash(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The number of steps before the crash, and the seed that chooses what the crash leaves.
    due: Option<(u64, u64)>,
    image: Option<Vec<u8>>,
}

impl DueCrash {
    /// Counts a step that is about to change the medium. If the crash is due before this step, calls `left`
    /// with the crash's seed, and keeps the image that `left` returns.
    pub fn step(&self, left: impl FnOnce(u64) -> Vec<u8>) {
        let mut state = self.lock();
        let Some((before, seed)) = state.due else { return };
        state.due = before.checked_sub(1).map(|before| (before, seed));
        if state.due.is_none() {
            state.image = Some(left(seed));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A medium that can simulate a crash while a program is using it.
pub trait Crashes {
    /// Returns the crash that the medium is to simulate.
    fn due_crash(&self) -> &DueCrash;

    /// Simulates a crash before the n-th step from now on, counted from 0. `seed` chooses what the crash
    /// leaves. On memory, a step is a store, stream, flush, fence or growth. On blocks, a step is a write,
    /// flush, preallocation or cut. A commit that waits until it is durable counts as two steps. The running
    /// program does not notice the crash. The [`image`](Self::image) lacks everything that the program does
    /// after the crash.
    fn crash_before(&self, nth: u64, seed: u64) {
        self.due_crash().lock().due = Some((nth, seed));
    }

    /// Returns whether the medium has simulated the crash.
    fn has_crashed(&self) -> bool {
        self.due_crash().lock().image.is_some()
    }

    /// Returns the image that the crash left; `None` as long as the crash [has not come](Self::has_crashed).
    fn image(&self) -> Option<Vec<u8>> {
        self.due_crash().lock().image.clone()
    }
}
