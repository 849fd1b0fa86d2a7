//! The queue for the WRITE lock.

use std::sync::atomic::Ordering;
use std::time::Duration;

use duralite_medium::MEMBERS;

use super::{HELD, LINE, LockError, MEMBERS_OFFSET, Table};

/// Connections that can queue at once; more of them sleep without a place.
pub(super) const WAITERS: usize = 256;
pub(super) const WAITERS_OFFSET: u64 = MEMBERS_OFFSET + MEMBERS as u64 * LINE;

/// The last ticket drawn.
const TICKETS: u64 = LINE;
/// How often the oldest waiter has been passed over.
const OVERTAKEN: u64 = 2 * LINE;
/// One more than the highest waiter slot that was ever used.
const HIGH_WAITER: u64 = 3 * LINE;

/// Within a waiter's slot: its member + 1, 0 when the slot is free.
const OWNER: u64 = 0;
/// Its ticket; 0 until it is known, and no turn comes to such a one.
const TICKET: u64 = 8;
const FUTEX: u64 = 16;

/// A sleeper looks this often whether a death has cost it its wake-up.
const SLICE: Duration = Duration::from_millis(10);

/// The oldest waiter watches the lock for this long before it sleeps.
const SPIN: Duration = Duration::from_micros(30);

/// A waiter's slot in use.
struct Waiter<'a> {
    table: &'a Table,
    at: u64,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.table.segment.store(self.at + TICKET, 0);
        self.table.segment.store(self.at + OWNER, 0);
    }
}

impl Table {
    fn word(&self, at: u64) -> u64 {
        self.segment.load(self.base + at)
    }

    fn waiter(&self, index: usize) -> u64 {
        self.base + WAITERS_OFFSET + index as u64 * LINE
    }

    fn waiters(&self) -> impl Iterator<Item = u64> + '_ {
        (0..(self.word(HIGH_WAITER) as usize).min(WAITERS)).map(|index| self.waiter(index))
    }

    pub(super) fn draw_ticket(&self) -> u64 {
        self.segment.fetch_add(self.base + TICKETS, 1) + 1
    }

    /// Frees the slots of a process that had this member slot before.
    pub(super) fn forget_own_waiters(&self) {
        let own = self.segment.member() as u64 + 1;
        for at in self.waiters() {
            if self.segment.load(at + OWNER) == own {
                self.segment.store(at + TICKET, 0);
                let _ = self.segment.compare_exchange(at + OWNER, own, 0);
            }
        }
    }

    /// The slot of the waiter whose turn is next.
    fn oldest(&self) -> Option<u64> {
        self.waiters()
            .filter(|at| self.segment.load(at + OWNER) != 0)
            .map(|at| (self.segment.load(at + TICKET), at))
            .filter(|(ticket, _)| *ticket != 0)
            .min()
            .map(|(_, at)| at)
    }

    /// Whether a thread that has not queued may take WRITE if it is free.
    pub(super) fn may_overtake(&self) -> Result<bool, LockError> {
        while let Some(at) = self.oldest() {
            if self.word(OVERTAKEN) < self.bound {
                return Ok(true);
            }
            let owner = self.segment.load(at + OWNER);
            if owner != 0 && self.segment.is_alive(owner as usize - 1)? {
                return Ok(false);
            }
            self.forget(at, owner);
        }
        Ok(true)
    }

    /// Frees the slot of a dead waiter.
    fn forget(&self, at: u64, owner: u64) {
        if self.segment.compare_exchange(at + OWNER, owner, 0).is_ok() {
            self.recovered.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn note_overtaking(&self) {
        if self.oldest().is_some() {
            self.segment.fetch_add(self.base + OVERTAKEN, 1);
        }
    }

    pub(super) fn wake_oldest(&self) {
        if let Some(at) = self.oldest() {
            self.segment.fetch_add(at + FUTEX, 1);
            self.segment.wake(at + FUTEX, 1);
        }
    }

    fn enqueue(&self, ticket: u64) -> Option<Waiter<'_>> {
        let own = self.segment.member() as u64 + 1;
        let index =
            (0..WAITERS).find(|i| self.segment.compare_exchange(self.waiter(*i) + OWNER, 0, own).is_ok())?;
        let at = self.waiter(index);
        self.segment.store(at + TICKET, ticket);
        let used = index as u64 + 1;
        loop {
            let high = self.word(HIGH_WAITER);
            if high >= used || self.segment.compare_exchange(self.base + HIGH_WAITER, high, used).is_ok() {
                break;
            }
        }
        Some(Waiter { table: self, at })
    }

    /// Sleeps until it is this ticket's turn and WRITE is reserved; whether it is in time.
    pub(super) fn wait_turn(&self, holder: u64, ticket: u64, limit: Duration) -> Result<bool, LockError> {
        let deadline = self.segment.clock_ns().saturating_add(limit.as_nanos() as u64);
        let waiter = self.enqueue(ticket);
        self.waits.fetch_add(1, Ordering::Relaxed);
        loop {
            let seen = waiter.as_ref().map(|waiter| self.segment.load(waiter.at + FUTEX));
            let oldest = self.oldest();
            let its_turn = oldest.is_none() || oldest == waiter.as_ref().map(|waiter| waiter.at);
            if its_turn && (self.reserve(holder)? || self.spin_until_free() && self.reserve(holder)?) {
                self.segment.store(self.base + OVERTAKEN, 0);
                drop(waiter);
                // The next in line is awake by the time that this one is done.
                self.wake_oldest();
                return Ok(true);
            }
            let left = deadline.saturating_sub(self.segment.clock_ns());
            if left == 0 {
                break;
            }
            let slice = Duration::from_nanos(left).min(SLICE);
            match (&waiter, seen) {
                (Some(waiter), Some(seen)) => {
                    self.segment.wait(waiter.at + FUTEX, (seen & 0xffff_ffff) as u32, slice);
                    if self.segment.load(waiter.at + FUTEX) == seen {
                        self.look_at_oldest()?;
                    }
                }
                _ => self.segment.wait(self.base + TICKETS, 0, slice.min(Duration::from_millis(1))),
            }
        }
        drop(waiter);
        // Its turn may have come just now: it passes it on.
        self.wake_oldest();
        Ok(false)
    }

    /// Watches WRITE for a moment: whoever holds it writes to memory only, and is done sooner than
    /// a sleeper wakes. Whether it is free.
    fn spin_until_free(&self) -> bool {
        let until = self.segment.clock_ns() + SPIN.as_nanos() as u64;
        while self.is_write_taken() {
            if self.segment.clock_ns() > until {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    fn is_write_taken(&self) -> bool {
        (0..self.high()).any(|member| self.segment.load(self.member(member)) & 1 << HELD != 0)
    }

    /// Makes way if the oldest waiter is dead.
    fn look_at_oldest(&self) -> Result<(), LockError> {
        if let Some(at) = self.oldest() {
            let owner = self.segment.load(at + OWNER);
            if owner != 0 && !self.segment.is_alive(owner as usize - 1)? {
                self.forget(at, owner);
            }
        }
        Ok(())
    }
}
