//! Tells which locks processes hold, and counts events. Some callers only show the answers, others base a
//! decision on them. Nothing here takes or gives back a lock.

use std::sync::atomic::Ordering;
use std::time::Duration;

use duralite_medium::{PROCESS_SLOTS, Segment};

use crate::layout::{FIRST_READ, HELD, HIGH, RESERVED, SLOTS, WRITE, member, read_since};
use crate::table::{LockError, Table};

/// The locks of the process in a slot. The process may be dead, and may have left these locks behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The process slot.
    pub process: usize,
    /// The locks that the process holds shared, one bit for each.
    pub shared: u8,
    /// The locks that the process holds exclusively, one bit for each.
    pub exclusive: u8,
    /// Whether the process holds WRITE only as a reservation for one of its connections, which has not taken
    /// WRITE up yet.
    pub is_reserved: bool,
    /// When the process took the read mark that it has held for the longest time, in nanoseconds of the
    /// segment's clock. `None` if the process holds no read mark.
    pub reads_since: Option<u64>,
}

/// Lists what each process holds in the table at `base`, leaving out processes that hold nothing. Changes
/// nothing, and makes no process wait.
#[must_use]
pub fn observe(segment: &dyn Segment, base: u64) -> Vec<Held> {
    let load = |at: u64| segment.load(base + at);
    let held = |process: usize| {
        let word = load(member(process));
        let (shared, exclusive) = (word as u8, (word >> HELD) as u8);
        let marks = (FIRST_READ..SLOTS).filter(|slot| shared & 1 << slot != 0);
        let reads_since = marks.map(|slot| load(read_since(process, slot))).min();
        let is_reserved = word & RESERVED != 0 && exclusive & 1 << WRITE != 0;
        Held { process, shared, exclusive, is_reserved, reads_since }
    };
    let high = (load(HIGH) as usize).min(PROCESS_SLOTS);
    let all = (0..high).map(held);
    all.filter(|held| held.shared != 0 || held.exclusive != 0).collect()
}

/// Counts of what this process has done at a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LockActivity {
    /// The number of requests for a lock that were refused.
    pub busy: u64,
    /// The number of sleeps while a connection waited for the WRITE lock.
    pub waits: u64,
    /// The number of dead processes whose locks this process freed.
    pub recovered: u64,
}

impl Table {
    /// Returns the counts of what this process has done at the table so far.
    #[must_use]
    pub fn activity(&self) -> LockActivity {
        LockActivity {
            busy: self.busy.load(Ordering::Relaxed),
            waits: self.waits.load(Ordering::Relaxed),
            recovered: self.deaths.recovered.load(Ordering::Relaxed),
        }
    }

    /// Returns whether any connection waits for WRITE.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Counts the read marks that living processes hold. Also returns the longest time for which a process
    /// has held one of these marks without a break.
    ///
    /// # Errors
    /// If the kernel does not report which processes are alive.
    pub fn readers(&self) -> Result<(u32, Duration), LockError> {
        let segment = self.words.segment();
        let now = segment.clock_ns();
        let (mut count, mut oldest) = (0, 0);
        for held in observe(segment, self.base) {
            if let Some(since) = held.reads_since
                && segment.is_alive(held.process)?
            {
                count += (held.shared >> FIRST_READ).count_ones();
                oldest = oldest.max(now.saturating_sub(since));
            }
        }
        for mark in FIRST_READ..SLOTS {
            count += u32::from(self.has_outside(mark, 1)?);
        }
        Ok((count, Duration::from_nanos(oldest)))
    }

    /// Returns whether another connection, of this process or of another one, is in a read transaction. The
    /// connection that asks must be in a read transaction itself.
    ///
    /// # Errors
    /// If the kernel does not report which processes are alive.
    pub fn has_several_readers(&self) -> Result<bool, LockError> {
        let own: u32 = (FIRST_READ..SLOTS).map(|mark| self.shares.count(mark)).sum();
        Ok(own > 1 || self.has_other_readers()?)
    }

    /// Returns whether another living process holds a read mark.
    ///
    /// # Errors
    /// If the kernel does not report which processes are alive.
    pub fn has_other_readers(&self) -> Result<bool, LockError> {
        let marks = (FIRST_READ..SLOTS).fold(0, |marks, slot| marks | 1 << slot);
        for process in (0..self.high()).filter(|process| *process != self.process) {
            let reads = self.words.load(member(process)) & marks != 0;
            if reads && self.words.segment().is_alive(process)? {
                return Ok(true);
            }
        }
        self.has_outside(FIRST_READ, SLOTS - FIRST_READ)
    }
}
