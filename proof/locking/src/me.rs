//! Which process of a schedule this is.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Its number, and 1; 0 for the leader.
static PROCESS: AtomicUsize = AtomicUsize::new(0);

/// The process of a schedule that this is; `None` for the leader.
pub fn process() -> Option<usize> {
    PROCESS.load(SeqCst).checked_sub(1)
}

/// This is a process of a schedule from now on.
pub fn become_process(number: usize) {
    PROCESS.store(number + 1, SeqCst);
}
