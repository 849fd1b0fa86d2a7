//! Waits for WRITE while SQLite's busy handler sleeps.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::queue::SLICE;
use crate::table::{Holder, LockError, Table};

/// The shortest sleep for WRITE, unless the connection gets the lock earlier.
const LEAST: Duration = Duration::from_millis(8);

/// The time for which the oldest waiter watches the lock before it sleeps, if no other thread wants its
/// processor.
const SPIN: Duration = Duration::from_micros(30);
/// The oldest waiter wakes up this long before the end of a turn, so that it can take the lock as soon as the
/// lock is free.
pub(crate) const EARLY: Duration = Duration::from_micros(80);
/// If the connection whose turn it is leaves WRITE free for this long, a waiter assumes that this connection
/// is doing something else.
pub(crate) const GONE: Duration = Duration::from_micros(10);
/// If a yield takes longer than this, it has let another thread run.
const LONG_YIELD: Duration = Duration::from_micros(5);

/// The oldest waiter checks the lock this long after the end of a turn, even if nobody wakes it. A
/// transaction that is in progress at the end of the turn has this time to end.
const GRACE: Duration = Duration::from_micros(100);

impl Holder {
    /// Sleeps until WRITE is reserved for this connection, for at most `limit`. Returns whether WRITE is
    /// reserved. The connection keeps its rank in the queue over several calls, until it takes the lock.
    ///
    /// SQLite's first sleeps last 1, 2 and 5 ms, and after each of them SQLite would try in vain to begin a
    /// transaction. This function joins these sleeps into one: a call that does not get WRITE lasts at least
    /// 8 ms, even if `limit` is less. The next calls return at once, until their limits add up to the extra
    /// time that the connection has slept. The extra time is forgotten if the connection does something else
    /// for 8 ms.
    ///
    /// # Errors
    /// `Medium`.
    pub fn wait_for_write(&self, limit: Duration) -> Result<bool, LockError> {
        let (ticket, at_once, ahead) = {
            let mut held = self.held();
            if held.ticket == 0 {
                held.ticket = self.table.queue.draw_ticket();
            }
            if self.table.clock_ns().saturating_sub(held.woke) > LEAST.as_nanos() as u64 {
                held.ahead = Duration::ZERO;
            }
            if held.ahead >= limit {
                held.ahead -= limit;
                return Ok(false);
            }
            (held.ticket, held.comes_back, held.ahead)
        };
        let wanted = limit - ahead;
        let sleep = if limit < LEAST { wanted.max(LEAST) } else { wanted };
        let reserved = self.table.wait_turn(self.id, ticket, at_once, sleep)?;
        let mut held = self.held();
        held.ahead = if reserved { Duration::ZERO } else { sleep - wanted };
        held.woke = self.table.clock_ns();
        Ok(reserved)
    }
}

impl Table {
    /// Sleeps until it is the turn of this ticket and WRITE is reserved. Returns whether WRITE was reserved
    /// in time.
    ///
    /// Usually the holder of WRITE wakes the next waiter when it gives WRITE back. A connection that is known
    /// to ask for WRITE again at once (`at_once`) wakes no waiter during its turn. So it wakes the next
    /// waiter here, in advance, when its turn begins. That waiter then sleeps until about the end of the
    /// turn.
    ///
    /// A waiter that is itself such a connection watches the lock for a moment before it sleeps. All other
    /// waiters sleep without watching, because the holder of the lock needs the processor.
    fn wait_turn(&self, holder: u64, ticket: u64, at_once: bool, limit: Duration) -> Result<bool, LockError> {
        let queue = &self.queue;
        let deadline = self.clock_ns().saturating_add(limit.as_nanos() as u64);
        let mut waiter = queue.enter(ticket);
        if waiter.is_none() {
            queue.forget_dead(&self.deaths)?;
        }
        self.waits.fetch_add(1, Ordering::Relaxed);
        loop {
            waiter = waiter.or_else(|| queue.enter(ticket));
            let seen = waiter.as_ref().map(|waiter| {
                waiter.show();
                waiter.wakes()
            });
            // First read how much time is left of the turn, and then look at the lock. If a connection gives
            // the lock back in between, after the turn, it wakes this waiter. So the waiter does not miss the
            // free lock.
            let turn = queue.left_of_turn();
            let own = waiter.as_ref().map(|waiter| waiter.index);
            let oldest = queue.oldest().map(|(index, _)| index);
            let its_turn = oldest.is_none() || oldest == own;
            if its_turn && self.reserve_in_turn(holder, at_once, turn)? {
                queue.begin_turn();
                drop(waiter);
                if at_once {
                    queue.wake_oldest();
                }
                return Ok(true);
            }
            if its_turn && queue.oldest().map(|(index, _)| index) != own {
                self.wake_oldest_if_free();
            }
            let left = deadline.saturating_sub(self.clock_ns());
            if left == 0 {
                break;
            }
            let slice = match turn {
                Duration::ZERO => SLICE,
                _ if !its_turn => SLICE,
                turn if at_once && turn > 2 * EARLY => turn - EARLY,
                turn => turn + GRACE,
            };
            // If the turn seems to last longer than any turn can, its end was written by a clock with another
            // origin. So limit the sleep.
            let slice = slice.min(SLICE);
            let slice = slice.min(Duration::from_nanos(left));
            match (&waiter, seen) {
                (Some(waiter), Some(seen)) => {
                    if !waiter.sleep(seen, slice) {
                        queue.forget_oldest_if_dead(&self.deaths)?;
                    }
                }
                _ => queue.sleep_nowhere(slice.min(Duration::from_millis(1))),
            }
        }
        drop(waiter);
        // This waiter gives up. Its turn may have come just now, so wake the next waiter.
        queue.wake_oldest();
        Ok(false)
    }

    /// Reserves WRITE for the oldest waiter. Returns whether WRITE is now reserved. If the waiter is known to
    /// ask for WRITE again at once (`at_once`), it first watches the lock for a moment, and leaves the lock
    /// to the running connection until that connection's turn is over. The reason is that each hand-over
    /// costs more than the running connection's next commits.
    fn reserve_in_turn(&self, holder: u64, at_once: bool, turn: Duration) -> Result<bool, LockError> {
        if (!at_once || turn.is_zero()) && self.reserve(holder)? {
            return Ok(true);
        }
        Ok(at_once && self.watch(turn) && self.reserve(holder)?)
    }

    /// Watches WRITE for a moment, because a holder that writes only to memory gives WRITE back sooner than a
    /// sleeping waiter would wake. Returns whether the lock is free and the connection whose turn it is does
    /// not seem about to take the lock again.
    fn watch(&self, turn: Duration) -> bool {
        let start = self.clock_ns();
        let until = start + (SPIN + turn.min(EARLY)).as_nanos() as u64;
        let (mut now, mut watch) = (start, Watch::default());
        loop {
            if let Some(is_free) = watch.see(self.is_write_taken(), self.queue.left_of_turn(), now) {
                return is_free;
            }
            let before = now;
            std::thread::yield_now();
            now = self.clock_ns();
            if now > until || now.saturating_sub(before) > LONG_YIELD.as_nanos() as u64 {
                return false;
            }
        }
    }
}

/// What a waiter has seen of the lock.
#[derive(Default)]
pub(crate) struct Watch {
    free_since: Option<u64>,
}

impl Watch {
    /// Records what the waiter sees at the time `now`. Returns whether the lock is available, or `None` as
    /// long as that is not known. `left` is how much time is left of the turn.
    pub(crate) fn see(&mut self, is_taken: bool, left: Duration, now: u64) -> Option<bool> {
        match (is_taken, self.free_since) {
            (false, _) if left.is_zero() => return Some(true),
            (false, Some(since)) if now.saturating_sub(since) > GONE.as_nanos() as u64 => return Some(true),
            (false, None) => self.free_since = Some(now),
            (false, Some(_)) => {}
            // The running connection has taken the lock again.
            (true, Some(_)) if left > EARLY => return Some(false),
            (true, _) => self.free_since = None,
        }
        None
    }
}
