//! Frees the locks of dead processes. If a process wants a lock that another process holds, this module finds
//! out whether that other process is dead.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duralite_medium::{MediumError, Words};

use crate::layout::{EPOCH, EXAMINED, member};

/// The shortest time between two checks of whether the holder of a wanted lock is alive. So a process may be
/// dead for this long before another process notices. This value is for connections that need not have this
/// lock at once: a connection in the queue tries again later, and a connection that begins to read can take
/// another read mark.
pub(crate) const SUSPICION: Duration = Duration::from_millis(2);
/// The same time for a connection that cannot wait, and would get *busy* because of the lock. It is so short
/// that no program can learn of a process's death sooner.
pub(crate) const SUSPICION_AT_ONCE: Duration = Duration::from_micros(200);

/// Finds dead processes, and frees the locks that they have left.
pub(crate) struct Deaths {
    words: Words,
    /// The number of times that this process has freed what a dead process held.
    pub(crate) recovered: AtomicU64,
}

impl Deaths {
    pub(crate) fn new(words: Words) -> Self {
        Self { words, recovered: AtomicU64::new(0) }
    }

    /// Returns whether it is time to ask the kernel whether `process`, which holds a wanted lock, is alive.
    /// It is time if the last check of `process` was at least `after` ago. There is this limit because asking
    /// costs a system call, and most processes are alive.
    ///
    /// The segment stores the time of the last check of each process. Each process has a time of its own, so
    /// checks of a living process do not delay the check of a dead one. All processes see these times, so a
    /// process need not ask if another process has just asked.
    pub(crate) fn suspects(&self, process: usize, after: Duration) -> bool {
        let at = member(process) + EXAMINED;
        let (last, now) = (self.words.load(at), self.words.segment().clock_ns());
        // If the time is in the future, it comes from a clock with another origin.
        let is_due = last == 0 || now < last || now - last >= after.as_nanos() as u64;
        is_due && self.words.compare_exchange(at, last, now).is_ok()
    }

    /// Asks the kernel whether a process is dead. If it is dead, clears the time of its last check, so that
    /// `suspects` does not delay the next check of this process: a connection may want another lock
    /// that the dead process holds.
    pub(crate) fn is_dead(&self, process: usize) -> Result<bool, MediumError> {
        let is_dead = !self.words.segment().is_alive(process)?;
        if is_dead {
            self.words.store(member(process) + EXAMINED, 0);
        }
        Ok(is_dead)
    }

    /// Frees the locks of a process if it is dead. `word` is the value that the caller has read from the word
    /// of the table that holds the process's locks. Returns whether the process is dead.
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
