//! The queue for the WRITE lock.
//!
//! A waiter has a place in shared memory. The place's first word holds the waiter's ticket and its process
//! together, so the waiter is in the queue entirely or not at all, wherever its process dies. A waiter stamps
//! its place at least once a slice, awake or asleep. A waiter that has not stamped its place for [`PRESENCE`]
//! is dead or stopped. The others stop waiting for it, and it has its old turn again when it goes on.

use std::cell::LazyCell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use duralite_medium::PROCESS_SLOTS;

use super::{SUSPICION_AT_ONCE, Table};
use crate::error::LockError;
use crate::layout::{HELD, LINE, WAITERS, WAITERS_OFFSET};

/// The last ticket drawn.
const TICKETS: u64 = LINE;
/// Until when running connections may pass over the waiters. Only the holder of WRITE changes it.
const TURN_ENDS: u64 = 2 * LINE;
/// One more than the highest place that was ever used.
const HIGH_WAITER: u64 = 3 * LINE;

/// Always zero: a waiter without a place sleeps on it.
const NOWHERE: u64 = 4 * LINE;

/// The number of arrivals in the queue. A process that has seen an empty queue need not look again as long as
/// this number stays.
const ARRIVALS: u64 = 5 * LINE;

/// Within a place: ticket and process, or 0 when the place is free. A ticket is never drawn twice, so a dead
/// waiter's word cannot be taken for another's.
const WAITER: u64 = 0;
/// 1 while the waiter sleeps, or is about to.
pub(super) const ASLEEP: u64 = 8;
const FUTEX: u64 = 16;
/// When the waiter last showed that it is there.
const SEEN: u64 = 24;

/// The ticket's lowest bit in the word. Below it stands the process slot plus 1.
const TICKET: u64 = 1 << 8;
const _: () = assert!((PROCESS_SLOTS as u64) < TICKET);

/// A sleeper looks this often whether a death has cost it its wake-up.
const SLICE: Duration = Duration::from_millis(10);

/// How long the others wait for a waiter that does not stamp its place.
const PRESENCE: Duration = SLICE.saturating_mul(5);

/// How long the oldest waiter watches the lock before it sleeps, as long as no other thread wants its
/// processor.
const SPIN: Duration = Duration::from_micros(30);
/// How long before the end of a turn the oldest waiter is awake, so that it takes the lock as soon as that is
/// free.
pub(super) const EARLY: Duration = Duration::from_micros(80);
/// A connection that leaves WRITE free for this long within its turn does something else.
pub(super) const GONE: Duration = Duration::from_micros(10);
/// A yield that takes longer has let another thread run.
const LONG_YIELD: Duration = Duration::from_micros(5);

/// By how much the first transaction after a turn may overrun, before the oldest waiter looks for itself.
const GRACE: Duration = Duration::from_micros(100);

/// A place in use. Dropping it frees the place.
struct Waiter<'a> {
    table: &'a Table,
    at: u64,
}

impl Waiter<'_> {
    fn show(&self) {
        self.table.segment.store(self.at + SEEN, self.table.segment.clock_ns());
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.table.segment.store(self.at + WAITER, 0);
    }
}

/// The process that a waiter's word names.
fn process_of(waiter: u64) -> Option<usize> {
    (waiter % TICKET).checked_sub(1).map(|process| process as usize)
}

/// What a waiter has seen of the lock.
#[derive(Default)]
pub(super) struct Watch {
    free_since: Option<u64>,
}

impl Watch {
    /// Notes what the waiter sees at the time `now`. Returns whether the lock can be had, once that is known.
    /// `left` is the rest of the turn of the running connections.
    pub(super) fn see(&mut self, is_taken: bool, left: Duration, now: u64) -> Option<bool> {
        match (is_taken, self.free_since) {
            (false, _) if left.is_zero() => return Some(true),
            (false, Some(since)) if now.saturating_sub(since) > GONE.as_nanos() as u64 => return Some(true),
            (false, None) => self.free_since = Some(now),
            (false, Some(_)) => {}
            // The running connection has come back.
            (true, Some(_)) if left > EARLY => return Some(false),
            (true, _) => self.free_since = None,
        }
        None
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

    /// Frees the places of a process that had this process slot before.
    pub(super) fn forget_own_waiters(&self) {
        for at in self.waiters() {
            let waiter = self.segment.load(at + WAITER);
            if process_of(waiter) == Some(self.segment.process_slot()) {
                let _ = self.segment.compare_exchange(at + WAITER, waiter, 0);
            }
        }
    }

    /// The place and the word of the waiter whose turn is next.
    fn oldest(&self) -> Option<(u64, u64)> {
        let now = LazyCell::new(|| self.segment.clock_ns());
        let absent = |at| now.saturating_sub(self.segment.load(at + SEEN)) > PRESENCE.as_nanos() as u64;
        self.waiters()
            .map(|at| (self.segment.load(at + WAITER), at))
            .filter(|(waiter, at)| *waiter != 0 && !absent(*at))
            .min()
            .map(|(waiter, at)| (at, waiter))
    }

    /// Whether any connection waits for WRITE.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        !self.is_queue_empty()
    }

    /// Whether no connection waits. A connection that queues afterwards looks whether WRITE is free once it
    /// has announced itself.
    pub(super) fn is_queue_empty(&self) -> bool {
        let arrivals = self.word(ARRIVALS);
        if self.empty_at.load(Ordering::Relaxed) == arrivals {
            return true;
        }
        let empty = self.waiters().all(|at| self.segment.load(at + WAITER) == 0);
        if empty {
            self.empty_at.store(arrivals, Ordering::Relaxed);
        }
        empty
    }

    /// What is left of the turn of the running connections.
    fn left_of_turn(&self) -> Duration {
        Duration::from_nanos(self.word(TURN_ENDS).saturating_sub(self.segment.clock_ns()))
    }

    /// Whether a connection that has not queued may take WRITE if it is free.
    pub(super) fn may_overtake(&self) -> Result<bool, LockError> {
        if self.is_queue_empty() || !self.left_of_turn().is_zero() {
            return Ok(true);
        }
        while let Some((at, waiter)) = self.oldest() {
            let suspected =
                process_of(waiter).is_none_or(|process| self.suspects(process, SUSPICION_AT_ONCE));
            if !suspected || !self.forget_if_dead(at, waiter)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Frees the place of a waiter whose process is dead. Returns whether it is.
    fn forget_if_dead(&self, at: u64, waiter: u64) -> Result<bool, LockError> {
        let Some(process) = process_of(waiter) else { return Ok(true) };
        if !self.is_dead(process)? {
            return Ok(false);
        }
        if self.segment.compare_exchange(at + WAITER, waiter, 0).is_ok() {
            self.recovered.fetch_add(1, Ordering::Relaxed);
        }
        Ok(true)
    }

    /// Wakes the oldest waiter, if that is due, after WRITE has been given back.
    pub(super) fn pass_on(&self, at_once: bool) {
        let is_awaited = !self.is_queue_empty();
        if is_awaited && (!at_once || self.left_of_turn().is_zero()) {
            self.wake_oldest();
        }
    }

    fn wake_oldest(&self) {
        if let Some((at, _)) = self.oldest() {
            self.segment.fetch_add(at + FUTEX, 1);
            if self.segment.compare_exchange(at + ASLEEP, 1, 0).is_ok() {
                self.segment.wake(at + FUTEX, 1);
            }
        }
    }

    /// Wakes the oldest waiter after a claim of WRITE was withdrawn. That waiter may have been awake, seen
    /// the claim and gone back to sleep. If WRITE is held now, its holder wakes the waiter later.
    pub(super) fn wake_oldest_if_free(&self) {
        if self.oldest().is_some() && !self.is_write_taken() {
            self.wake_oldest();
        }
    }

    fn enqueue(&self, ticket: u64) -> Option<Waiter<'_>> {
        let own = ticket * TICKET + self.segment.process_slot() as u64 + 1;
        let index = (0..WAITERS).find(|index| {
            let place = self.waiter(*index) + WAITER;
            if self.segment.load(place) != 0 {
                return false;
            }
            // The mark is raised first, so no place in use ever lies beyond it.
            self.raise_mark(*index as u64 + 1);
            self.segment.compare_exchange(place, 0, own).is_ok()
        })?;
        self.segment.fetch_add(self.base + ARRIVALS, 1);
        let waiter = Waiter { table: self, at: self.waiter(index) };
        waiter.show();
        Some(waiter)
    }

    fn raise_mark(&self, used: u64) {
        loop {
            let high = self.word(HIGH_WAITER);
            if high >= used || self.segment.compare_exchange(self.base + HIGH_WAITER, high, used).is_ok() {
                return;
            }
        }
    }

    /// Frees the places of all dead waiters.
    fn forget_dead_waiters(&self) -> Result<(), LockError> {
        for at in self.waiters() {
            self.forget_if_dead(at, self.segment.load(at + WAITER))?;
        }
        Ok(())
    }

    /// Sleeps until it is this ticket's turn and WRITE is reserved. Returns whether that came in time.
    ///
    /// A connection that comes back for WRITE at once wakes no waiter when it gives the lock back before its
    /// turn is over. So it wakes the next waiter here, which then sleeps no longer than that turn. If such a
    /// connection waits itself, it watches the lock for a moment. In all other cases the holder needs the
    /// processor, and wakes the next waiter when it is done.
    pub(super) fn wait_turn(
        &self,
        holder: u64,
        ticket: u64,
        at_once: bool,
        limit: Duration,
    ) -> Result<bool, LockError> {
        let deadline = self.segment.clock_ns().saturating_add(limit.as_nanos() as u64);
        let mut waiter = self.enqueue(ticket);
        if waiter.is_none() {
            self.forget_dead_waiters()?;
        }
        self.waits.fetch_add(1, Ordering::Relaxed);
        loop {
            waiter = waiter.or_else(|| self.enqueue(ticket));
            let seen = waiter.as_ref().map(|waiter| {
                waiter.show();
                self.segment.load(waiter.at + FUTEX)
            });
            // The turn is read before the lock: a connection that gives the lock back after the turn wakes
            // this waiter.
            let turn = self.left_of_turn();
            let oldest = self.oldest().map(|(at, _)| at);
            let its_turn = oldest.is_none() || oldest == waiter.as_ref().map(|waiter| waiter.at);
            if its_turn && self.reserve_in_turn(holder, at_once, turn)? {
                let end = self.segment.clock_ns().saturating_add(self.turn.as_nanos() as u64);
                self.segment.store(self.base + TURN_ENDS, end);
                drop(waiter);
                if at_once {
                    self.wake_oldest();
                }
                return Ok(true);
            }
            if its_turn && self.oldest().map(|(at, _)| at) != waiter.as_ref().map(|waiter| waiter.at) {
                self.wake_oldest_if_free();
            }
            let left = deadline.saturating_sub(self.segment.clock_ns());
            if left == 0 {
                break;
            }
            let slice = match turn {
                Duration::ZERO => SLICE,
                _ if !its_turn => SLICE,
                turn if at_once && turn > 2 * EARLY => turn - EARLY,
                turn => turn + GRACE,
            };
            // A turn that ends later than any turn can was begun by another clock.
            let slice = slice.min(SLICE);
            let slice = slice.min(Duration::from_nanos(left));
            match (&waiter, seen) {
                (Some(waiter), Some(seen)) => {
                    self.segment.store(waiter.at + ASLEEP, 1);
                    self.segment.wait(waiter.at + FUTEX, (seen & 0xffff_ffff) as u32, slice);
                    self.segment.store(waiter.at + ASLEEP, 0);
                    if self.segment.load(waiter.at + FUTEX) == seen {
                        self.look_at_oldest()?;
                    }
                }
                _ => self.segment.wait(self.base + NOWHERE, 0, slice.min(Duration::from_millis(1))),
            }
        }
        drop(waiter);
        // This waiter's turn may have come just now. It passes it on.
        self.wake_oldest();
        Ok(false)
    }

    /// Reserves WRITE for the oldest waiter. Returns whether it could. A waiter that always comes back at
    /// once watches the lock for a moment, and leaves it to the running connection until that turn is over:
    /// each hand-over costs more than the next commits of that connection.
    fn reserve_in_turn(&self, holder: u64, at_once: bool, turn: Duration) -> Result<bool, LockError> {
        if (!at_once || turn.is_zero()) && self.reserve(holder)? {
            return Ok(true);
        }
        Ok(at_once && self.watch(turn) && self.reserve(holder)?)
    }

    /// Watches WRITE for a moment: its holder only writes to memory, and is done sooner than a sleeper wakes.
    /// Returns whether the lock is free, and not about to be taken again by the connection that has the turn.
    fn watch(&self, turn: Duration) -> bool {
        let start = self.segment.clock_ns();
        let until = start + (SPIN + turn.min(EARLY)).as_nanos() as u64;
        let (mut now, mut watch) = (start, Watch::default());
        loop {
            if let Some(is_free) = watch.see(self.is_write_taken(), self.left_of_turn(), now) {
                return is_free;
            }
            let before = now;
            std::thread::yield_now();
            now = self.segment.clock_ns();
            if now > until || now.saturating_sub(before) > LONG_YIELD.as_nanos() as u64 {
                return false;
            }
        }
    }

    fn is_write_taken(&self) -> bool {
        (0..self.high()).any(|process| self.segment.load(self.process_slot(process)) & 1 << HELD != 0)
    }

    /// Frees the oldest waiter's place if its process is dead.
    fn look_at_oldest(&self) -> Result<(), LockError> {
        match self.oldest() {
            Some((at, waiter)) => self.forget_if_dead(at, waiter).map(drop),
            None => Ok(()),
        }
    }
}
