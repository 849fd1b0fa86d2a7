//! A crash in the middle of whatever runs on a recording medium.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A crash that a medium was told to take, and what it left once it was taken.
#[derive(Debug, Default)]
pub struct DueCrash(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Steps before it, and the seed of what it leaves.
    due: Option<(u64, u64)>,
    image: Option<Vec<u8>>,
}

impl DueCrash {
    /// Counts a step that is about to change the medium. If the crash comes before it, `left` is asked
    /// what it leaves under its seed.
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

/// A medium that can be crashed in the middle of what runs on it.
pub trait Crashes {
    /// The crash it was told to take.
    fn due_crash(&self) -> &DueCrash;

    /// Takes what a crash with this seed leaves before the n-th step from now on, counted from 0: a store,
    /// stream, flush, fence or growth of memory; a write, flush, preallocation or cut of blocks, where
    /// a commit that waits is two. The program does not notice, and nothing it does from then on is
    /// in the [`image`](Self::image).
    fn crash_before(&self, nth: u64, seed: u64) {
        self.due_crash().lock().due = Some((nth, seed));
    }

    /// Whether the step has come that was to be crashed before.
    fn has_crashed(&self) -> bool {
        self.due_crash().lock().image.is_some()
    }

    /// What the crash left, once it [has come](Self::has_crashed).
    fn image(&self) -> Option<Vec<u8>> {
        self.due_crash().lock().image.clone()
    }
}
