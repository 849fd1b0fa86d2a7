//! One connection, as SQLite takes and gives back its locks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{LockError, SLOTS, Table, WRITE};

/// A connection, and the locks that it holds. Dropping it gives all of them back.
#[derive(Debug)]
pub struct Holder {
    table: Arc<Table>,
    id: u64,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    shared: u8,
    exclusive: u8,
    /// The connection's place among the waiters for WRITE, kept until it gets the lock; 0 for none.
    ticket: u64,
    /// By how much the last sleeps for WRITE were longer than SQLite asked for.
    ahead: Duration,
    /// When the last of those sleeps ended.
    woke: u64,
    /// When the connection last gave WRITE back while others waited for it; 0 once it has come back.
    gave_back: u64,
    /// Whether the connection came back at once the last time.
    comes_back: bool,
}

/// A connection that comes back for WRITE within this time does nothing but commit.
const AT_ONCE: Duration = Duration::from_micros(20);

/// A sleep for WRITE lasts at least this long, unless the connection gets the lock before.
const LEAST: Duration = Duration::from_millis(8);

impl Holder {
    pub(crate) fn new(table: Arc<Table>, id: u64) -> Self {
        Self { table, id, held: Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a transaction begins: the connection holds nothing, does not wait for WRITE, and has no
    /// reservation.
    #[must_use]
    pub fn begins(&self) -> bool {
        let held = self.held();
        held.shared == 0 && held.exclusive == 0 && held.ticket == 0
    }

    /// Whether the connection holds a shared lock, as it does in a read transaction.
    #[must_use]
    pub fn is_reading(&self) -> bool {
        self.held().shared != 0
    }

    /// The table that the locks are in.
    #[must_use]
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Takes a lock shared. Taking it twice is the same as taking it once.
    ///
    /// # Errors
    /// `Busy` when another connection holds it exclusively; `Medium`.
    pub fn lock_shared(&self, slot: usize) -> Result<(), LockError> {
        let mut held = self.held();
        if held.shared & 1 << slot == 0 {
            self.table.lock_shared(slot)?;
            held.shared |= 1 << slot;
        }
        Ok(())
    }

    /// Gives a shared lock back, if the connection holds it.
    pub fn unlock_shared(&self, slot: usize) {
        let mut held = self.held();
        if held.shared & 1 << slot != 0 {
            held.shared &= !(1 << slot);
            self.table.unlock_shared(slot);
        }
    }

    /// Takes `count` locks exclusively, beginning with `first`, or none of them. All read marks but the first
    /// can be had only together with CHECKPOINT. If this connection does not hold CHECKPOINT, that lock comes
    /// and goes with the marks (invariant 45).
    ///
    /// # Errors
    /// `Busy` when another connection holds one of them, or a waiter is due for WRITE; `Medium`.
    pub fn lock_exclusive(&self, first: usize, count: usize) -> Result<(), LockError> {
        let mut held = self.held();
        let mask = mask_of(first, count);
        if held.exclusive & mask == mask {
            return Ok(());
        }
        if first == WRITE && held.gave_back != 0 {
            let now = self.table.segment.clock_ns();
            held.comes_back = now.saturating_sub(held.gave_back) < AT_ONCE.as_nanos() as u64;
            held.gave_back = 0;
        }
        self.table.lock_exclusive(self.id, first, count)?;
        held.exclusive |= mask;
        if first == WRITE {
            (held.ticket, held.ahead) = (0, Duration::ZERO);
        }
        Ok(())
    }

    /// Gives back those of these exclusive locks that the connection holds.
    pub fn unlock_exclusive(&self, first: usize, count: usize) {
        let mut held = self.held();
        if first == WRITE && held.exclusive & 1 << WRITE != 0 && !self.table.is_queue_empty() {
            held.gave_back = self.table.segment.clock_ns();
        }
        held.exclusive &= !mask_of(first, count);
        self.table.unlock_exclusive(self.id, first, count, held.comes_back);
    }

    /// Gives all locks back.
    pub fn release(&self) {
        let held = std::mem::take(&mut *self.held());
        for slot in (0..SLOTS).filter(|slot| held.shared & 1 << slot != 0) {
            self.table.unlock_shared(slot);
        }
        // `held` does not show a reservation, so all exclusive locks are given back.
        self.table.unlock_exclusive(self.id, 0, SLOTS, false);
    }

    /// Sleeps until WRITE is reserved for this connection, for at most `limit`. Returns whether it is. The
    /// connection keeps its place in the queue over several calls, until it takes the lock.
    ///
    /// SQLite's first sleeps last 1, 2 and 5 ms, and between them it begins a transaction in vain. Here they
    /// are one sleep. A call lasts at least [`LEAST`]. The next calls end at once, until they have made up
    /// for that, or until the connection has done something else for as long.
    ///
    /// # Errors
    /// `Medium`.
    pub fn wait_for_write(&self, limit: Duration) -> Result<bool, LockError> {
        let (ticket, at_once, ahead) = {
            let mut held = self.held();
            if held.ticket == 0 {
                held.ticket = self.table.draw_ticket();
            }
            if self.table.segment.clock_ns().saturating_sub(held.woke) > LEAST.as_nanos() as u64 {
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
        held.woke = self.table.segment.clock_ns();
        Ok(reserved)
    }
}

fn mask_of(first: usize, count: usize) -> u8 {
    (((1u16 << count) - 1) << first) as u8
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.release();
    }
}
