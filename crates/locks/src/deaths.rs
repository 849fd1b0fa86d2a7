//! Processes whose locks are in the way and that may be dead.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duralite_medium::{MediumError, Words};

use crate::layout::{EPOCH, EXAMINED, member};

/// The shortest time between two checks whether a process whose lock is in the way is alive. A dead process
/// may stay unnoticed for that long. This is for connections that can wait: a queued connection tries again
/// anyway, and a connection that begins to read can choose another mark.
pub(crate) const SUSPICION: Duration = Duration::from_millis(2);
/// The shortest time between two such checks for a connection that cannot wait, and may be told that it is
/// busy. It is shorter than any program needs to learn of the death.
pub(crate) const SUSPICION_AT_ONCE: Duration = Duration::from_micros(200);

/// Finds dead processes, and frees the locks that they have left.
pub(crate) struct Deaths {
    words: Words,
    /// How many times this process has freed something of a dead process.
    pub(crate) recovered: AtomicU64,
}

impl Deaths {
    pub(crate) fn new(words: Words) -> Self {
        Self { words, recovered: AtomicU64::new(0) }
    }

    /// Whether it is time to ask the kernel again whether a process is alive that is in the way. Asking costs
    /// a system call, and most of these processes are alive. Each process has its own time of the last check.
    /// So a living process that is often in the way cannot keep a dead one from being found. All processes
    /// share that time: otherwise, with many processes, each of them would ask.
    pub(crate) fn suspects(&self, process: usize, after: Duration) -> bool {
        let at = member(process) + EXAMINED;
        let (last, now) = (self.words.load(at), self.words.segment().clock_ns());
        // If the time is in the future, it comes from a clock with another origin.
        let is_due = last == 0 || now < last || now - last >= after.as_nanos() as u64;
        is_due && self.words.compare_exchange(at, last, now).is_ok()
    }

    /// Asks the kernel whether a process is dead. If it is, clears the time of the last check, so that
    /// everything else that the process has left is checked at once.
    pub(crate) fn is_dead(&self, process: usize) -> Result<bool, MediumError> {
        let is_dead = !self.words.segment().is_alive(process)?;
        if is_dead {
            self.words.store(member(process) + EXAMINED, 0);
        }
        Ok(is_dead)
    }

    /// Frees the locks of a dead process. `word` is the process's word as the caller has read it. Returns
    /// whether the process is dead.
    pub(crate) fn bury(&self, process: usize, word: u64) -> Result<bool, MediumError> {
        if !self.is_dead(process)? {
            return Ok(false);
        }
        let empty = word / EPOCH * EPOCH;
        if self.words.compare_exchange(member(process), word, empty).is_ok() {
            self.recovered.fetch_add(1, Ordering::Relaxed);
        }
        Ok(true)
    }
}
