//! Processes that are in the way, and perhaps dead.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duralite_medium::{MediumError, Words};

use crate::layout::{EPOCH, EXAMINED, member};

/// The shortest time between two examinations of one process that is in the way. A dead process may stay
/// unnoticed for that long. A queued connection looks again anyway, and a connection that begins to read has
/// other marks to choose from.
pub(crate) const SUSPICION: Duration = Duration::from_millis(2);
/// The same for a connection that does neither, and may be told that it is busy. It is shorter than the time
/// in which any program can learn of the death.
pub(crate) const SUSPICION_AT_ONCE: Duration = Duration::from_micros(200);

/// Finds the dead, and frees what they have left.
pub(crate) struct Deaths {
    words: Words,
    /// How often this process has freed something of a dead one.
    pub(crate) recovered: AtomicU64,
}

impl Deaths {
    pub(crate) fn new(words: Words) -> Self {
        Self { words, recovered: AtomicU64::new(0) }
    }

    /// Whether it is time again to ask the kernel if a process in the way lives. Asking costs a system call,
    /// and most of these processes do live. Each process has a time of its own, so a living one that is often
    /// in the way cannot keep a dead one from being found. The time is that of the last look of any process:
    /// with many processes each one looks seldom, and all of them would ask.
    pub(crate) fn suspects(&self, process: usize, after: Duration) -> bool {
        let at = member(process) + EXAMINED;
        let (last, now) = (self.words.load(at), self.words.segment().clock_ns());
        // A time in the future comes from a clock with another origin.
        let is_due = last == 0 || now < last || now - last >= after.as_nanos() as u64;
        is_due && self.words.compare_exchange(at, last, now).is_ok()
    }

    /// Asks the kernel whether a process is dead. If it is, the time of the last look is cleared, so whatever
    /// else it has left is examined at once.
    pub(crate) fn is_dead(&self, process: usize) -> Result<bool, MediumError> {
        let is_dead = !self.words.segment().is_alive(process)?;
        if is_dead {
            self.words.store(member(process) + EXAMINED, 0);
        }
        Ok(is_dead)
    }

    /// Frees the locks of a dead process, whose word was `word`. Returns whether the process is dead.
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
