//! Identifies this process within a schedule.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// The number of this process plus 1; 0 for the leader.
static PROCESS: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of this process in the schedule; `None` for the leader.
pub fn process() -> Option<usize> {
    PROCESS.load(SeqCst).checked_sub(1)
}

/// Makes this process the one that has this number in the schedule.
pub fn become_process(number: usize) {
    PROCESS.store(number + 1, SeqCst);
}
