//! Protection from panics. A panic must not cross into C. This library also marks a thread to note what the
//! thread is doing, and a panic must not leave such a mark behind.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::LocalKey;

/// Keeps a panic from crossing into C (invariant 12).
pub fn shield<T>(default: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(default)
}

/// Marks what this thread is doing, for callbacks that SQLite calls on this thread. The mark ends when this
/// value is dropped. A panic drops the value too, which matters because [`shield`] stops the panic and the
/// thread continues.
pub struct Said {
    at: &'static LocalKey<Cell<bool>>,
    before: bool,
}

impl Said {
    pub fn here(at: &'static LocalKey<Cell<bool>>) -> Self {
        Self { at, before: at.replace(true) }
    }
}

impl Drop for Said {
    fn drop(&mut self) {
        // The access fails only while the thread ends.
        let _ = self.at.try_with(|said| said.set(self.before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static ABOUT: Cell<bool> = const { Cell::new(false) };
    }

    #[test]
    fn it_is_said_until_the_outermost_is_dropped_also_by_a_panic() {
        let outer = Said::here(&ABOUT);
        drop(Said::here(&ABOUT));
        assert!(ABOUT.get());
        drop(outer);
        assert!(!ABOUT.get());
        let panicked = std::panic::catch_unwind(|| {
            let _said = Said::here(&ABOUT);
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(panicked.is_err() && !ABOUT.get());
    }
}
