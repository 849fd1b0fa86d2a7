//! The queue for the WRITE lock.
//!
//! A waiter is a place whose first word is its ticket and its process in one, so that it is in the
//! queue entirely or not at all, wherever its process dies. A waiter that is awake or in a sleep
//! stamps its place at least once a slice. One that has not for [`PRESENCE`] is dead or stopped:
//! it is no longer waited for, and has its old turn again when it goes on.

use std::cell::LazyCell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use duralite_medium::PROCESS_SLOTS;

use super::{SUSPICION_AT_ONCE, Table};
use crate::error::LockError;
use crate::layout::{HELD, LINE, WAITERS, WAITERS_OFFSET};

/// The last ticket drawn.
const TICKETS: u64 = LINE;
/// Until when those who run may pass the waiters over. Changed only by whoever has WRITE.
const TURN_ENDS: u64 = 2 * LINE;
/// One more than the highest waiter slot that was ever used.
const HIGH_WAITER: u64 = 3 * LINE;

/// Always zero: to sleep on where there is no place to be woken at.
const NOWHERE: u64 = 4 * LINE;

/// How many have come to wait: as long as it does not change, whoever has seen that nobody waits need not look again.
const ARRIVALS: u64 = 5 * LINE;

/// Within a place: ticket and process, 0 when it is free. Tickets are never drawn twice, so a place
/// that is seen to be a dead one's cannot be taken for another's.
const WAITER: u64 = 0;
/// 1 while the waiter sleeps, or is about to.
pub(super) const ASLEEP: u64 = 8;
const FUTEX: u64 = 16;
/// When the waiter last showed that it is there.
const SEEN: u64 = 24;

/// A ticket's lowest bit in the word; below it the process slot + 1.
const TICKET: u64 = 1 << 8;
const _: () = assert!((PROCESS_SLOTS as u64) < TICKET);

/// A sleeper looks this often whether a death has cost it its wake-up.
const SLICE: Duration = Duration::from_millis(10);

/// How long a waiter that is not heard of is waited for.
const PRESENCE: Duration = SLICE.saturating_mul(5);

/// The oldest waiter watches the lock for this long before it sleeps, as long as nobody else wants its processor.
const SPIN: Duration = Duration::from_micros(30);
/// It is awake by so much before a turn ends: it has the lock then as soon as that is free.
pub(super) const EARLY: Duration = Duration::from_micros(80);
/// Who leaves WRITE free for so long in his turn does something else.
pub(super) const GONE: Duration = Duration::from_micros(10);
/// A yield that takes longer has let somebody run.
const LONG_YIELD: Duration = Duration::from_micros(5);

/// What the first transaction after a turn may take longer, before the oldest waiter looks for itself.
const GRACE: Duration = Duration::from_micros(100);

/// A place in use.
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

/// The process whose waiter the word names.
fn process_of(waiter: u64) -> Option<usize> {
    (waiter % TICKET).checked_sub(1).map(|process| process as usize)
}

/// What a waiter has seen of the lock.
#[derive(Default)]
pub(super) struct Watch {
    free_since: Option<u64>,
}

impl Watch {
    /// Takes in what is seen at a time; whether the lock is to be had, once that is known. `left` is of the turn of whoever runs.
    pub(super) fn see(&mut self, is_taken: bool, left: Duration, now: u64) -> Option<bool> {
        match (is_taken, self.free_since) {
            (false, _) if left.is_zero() => return Some(true),
            (false, Some(since)) if now.saturating_sub(since) > GONE.as_nanos() as u64 => return Some(true),
            (false, None) => self.free_since = Some(now),
            (false, Some(_)) => {}
            // He has come back.
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

    /// Whether anybody waits for WRITE.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        !self.is_queue_empty()
    }

    /// Whether nobody waits. Whoever comes to wait afterwards looks whether WRITE is free once he has said so.
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

    /// What is left of the turn of those who run.
    fn left_of_turn(&self) -> Duration {
        Duration::from_nanos(self.word(TURN_ENDS).saturating_sub(self.segment.clock_ns()))
    }

    /// Whether a thread that has not queued may take WRITE if it is free.
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

    /// Frees the place of a waiter whose process is dead; whether it is.
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

    /// Comes after WRITE has been given back.
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

    /// Comes after a claim of WRITE that was withdrawn: the oldest waiter may have been awake, seen the claim and
    /// gone back to sleep. Whoever has WRITE now wakes it later.
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
            // First, so that no place in use is ever beyond the mark.
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

    /// Sleeps until it is this ticket's turn and WRITE is reserved; whether it is in time.
    ///
    /// A connection that comes back for WRITE at once wakes nobody when it gives the lock back before its turn is over.
    /// So the next in line is woken here, to sleep no longer than that turn; and if that connection waits itself, it
    /// watches the lock for a moment. Elsewhere the holder needs the processor, and wakes the next when he is done.
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
            // Before it looks at the lock: whoever gives that back after the turn wakes it.
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
            // A turn that ends later than any can was begun by another clock.
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
        // Its turn may have come just now: it passes it on.
        self.wake_oldest();
        Ok(false)
    }

    /// Reserves WRITE for the oldest waiter; whether it could. One that always comes back at once watches the lock for a
    /// moment, and leaves it to whoever runs until that turn is over: each hand-over costs more than his next commits.
    fn reserve_in_turn(&self, holder: u64, at_once: bool, turn: Duration) -> Result<bool, LockError> {
        if (!at_once || turn.is_zero()) && self.reserve(holder)? {
            return Ok(true);
        }
        Ok(at_once && self.watch(turn) && self.reserve(holder)?)
    }

    /// Watches WRITE for a moment: whoever holds it writes to memory only, and is done sooner than a sleeper wakes. Whether it
    /// is free, and not about to be taken again by whoever has the turn.
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

    /// Makes way if the oldest waiter is dead.
    fn look_at_oldest(&self) -> Result<(), LockError> {
        match self.oldest() {
            Some((at, waiter)) => self.forget_if_dead(at, waiter).map(drop),
            None => Ok(()),
        }
    }
}
