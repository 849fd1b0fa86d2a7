//! The eight locks of SQLite's wal-index, in memory that the processes of a database share.
//!
//! **State.** There is no global lock state. Each process has one word: which locks it holds shared, which
//! exclusively, and which it claims. Within a process the table counts connections ([`Holder`]s). Only the
//! first and the last connection of a lock change the word, and they do it under a mutex. The connections
//! between them take no mutex (`shares.rs`).
//!
//! **Mutual exclusion.** Announce, then look. A process that wants a lock sets its bit and then reads the
//! words of all others. Every operation is sequentially consistent, so of two processes that exclude each
//! other at least one sees the other. A shared bit or an exclusive bit in the way means *busy*. Of two
//! exclusive claims the one with the lower process slot goes on, and waits until the other is withdrawn. A
//! shared lock waits likewise until a claim is settled. A claim waits for nothing but a claim with a higher
//! slot, so no circle of waiters can arise.
//!
//! **Death.** A process's word is its own. A process that finds the word of a dead process in its way clears
//! that word by a compare-and-exchange. The word has an epoch, and the slot's next process advances it, so
//! the word of a living process is never mistaken for that of the dead one.
//!
//! **Fairness of WRITE.** SQLite answers *busy* by dropping its snapshot and calling the busy handler, which
//! sleeps in the VFS. That sleep is [`Holder::wait_for_write`]. The connection queues, is woken when it is
//! the oldest waiter, and gets the lock *reserved*, so SQLite finds the lock free when it tries again with a
//! fresh snapshot. A connection that does not sleep there has no place in the queue: one whose busy handler
//! does not use the VFS, and one that has read in its transaction, for which SQLite asks no busy handler.
//!
//! Turns are of time, not of transactions: each hand-over costs a wake-up, and empties SQLite's page cache. A
//! turn begins with a reservation and lasts for the time given to [`Table::with_turn`]. During it any running
//! connection may take a free lock although others wait; then the oldest waiter is next, and any other
//! connection is told that WRITE is *busy* even while it is free. A waiter may take a free lock during a turn
//! as well. The exception is a waiter that is known to come back at once: it leaves the lock to the connection
//! that has the turn, as long as that one keeps coming back too.
//!
//! A connection that gives the lock back wakes the oldest waiter, unless the turn is not over and the
//! connection always comes back at once. If it does not come back this time, the oldest waiter's sleep ends
//! with the turn. If it comes back later, it is refused, and wakes the oldest waiter then.
//!
//! A reservation that is not taken up may be taken away after a while. A wake-up that is lost with a dead
//! process costs the sleeper one slice of its sleep. A waiter that is dead or stopped is passed over after a
//! few slices.
//!
//! **Starting the log over** takes CHECKPOINT along with the read marks (invariant 45). SQLite before 3.51.3
//! does not notice if the log starts over between a checkpoint's look at its header and its work. It then
//! writes home frames that it has not got, and counts commits as written home that are not. So no connection
//! starts the log over while another one checkpoints, and none begins to checkpoint meanwhile.
//!
//! **Readers who may not write** the segment have no word. They hold their marks in the kernel; see
//! [`outside`].

#![forbid(unsafe_code)]

mod error;
pub mod file;
mod holder;
mod layout;
mod observe;
mod outside;
mod queue;
mod shares;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duralite_medium::Segment;

pub use error::LockError;
pub use holder::Holder;
pub use layout::{CHECKPOINT, FIRST_READ, LAYOUT_BYTES, OUTSIDE, SLOTS, WRITE};
use layout::{CLAIMED, EPOCH, EXAMINED, HELD, HIGH, RESERVED};
pub use observe::{Held, observe};
use shares::Shares;

/// How long a reservation is valid.
const RESERVATION: Duration = Duration::from_millis(20);
/// The shortest time between two examinations of one process that is in the way. A dead process may stay
/// unnoticed for that long. A queued connection looks again anyway, and a connection that begins to read has
/// other marks to choose from.
const SUSPICION: Duration = Duration::from_millis(2);
/// The same for a connection that does neither, and may be told that it is busy. It is shorter than the time
/// in which any program can learn of the death.
const SUSPICION_AT_ONCE: Duration = Duration::from_micros(200);
/// How often a connection looks again while another process's claim stands, 50 us apart.
const PATIENCE: u32 = 2000;
/// How long the running connections may go on before the oldest waiter has its turn.
const TURN: Duration = Duration::from_micros(300);

/// What happened at a table, as far as this process did it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LockActivity {
    /// Locks that were refused.
    pub busy: u64,
    /// Sleeps for the WRITE lock.
    pub waits: u64,
    /// Dead processes whose locks this process freed.
    pub recovered: u64,
}

/// Which connection of this process holds which lock exclusively.
#[derive(Default)]
struct Local {
    exclusive: [Option<u64>; SLOTS],
    /// Whether the holder of WRITE only has it reserved.
    reserved: bool,
    /// Whether the holder of CHECKPOINT took it only along with the read marks, to start the log over.
    is_starting_over: bool,
}

/// The locks of one database, as a process of its segment sees them.
pub struct Table {
    segment: Arc<dyn Segment>,
    base: u64,
    turn: Duration,
    local: Mutex<Local>,
    /// From 0 and to 0 these counts change under the mutex of `local`.
    shares: Shares,
    next_holder: AtomicU64,
    busy: AtomicU64,
    waits: AtomicU64,
    recovered: AtomicU64,
    /// The number of arrivals in the queue when this process last found it empty.
    empty_at: AtomicU64,
}

impl Table {
    /// Joins the table that begins at byte `base` of the segment. Its [`LAYOUT_BYTES`] are zeros at first.
    #[must_use]
    pub fn join(segment: Arc<dyn Segment>, base: u64) -> Arc<Self> {
        Self::with_turn(segment, base, TURN)
    }

    /// As [`Table::join`], with the time for which running connections may pass over a waiter for WRITE.
    #[must_use]
    pub fn with_turn(segment: Arc<dyn Segment>, base: u64, turn: Duration) -> Arc<Self> {
        let table = Self {
            segment,
            base,
            turn,
            local: Mutex::default(),
            shares: Shares::default(),
            next_holder: AtomicU64::new(1),
            busy: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            recovered: AtomicU64::new(0),
            empty_at: AtomicU64::new(u64::MAX),
        };
        if table.segment.is_read_only() {
            return Arc::new(table);
        }
        let own = table.own();
        // The slot's previous process may have left bits here. They are void.
        let epoch = table.segment.load(own) / EPOCH;
        table.segment.store(own, epoch.wrapping_add(1).wrapping_mul(EPOCH));
        table.forget_own_waiters();
        let used = table.segment.process_slot() as u64 + 1;
        loop {
            let high = table.segment.load(base + HIGH);
            if high >= used || table.segment.compare_exchange(base + HIGH, high, used).is_ok() {
                break;
            }
        }
        Arc::new(table)
    }

    /// Makes a connection that takes locks of this table.
    #[must_use]
    pub fn holder(self: &Arc<Self>) -> Holder {
        let id = self.next_holder.fetch_add(1, Ordering::Relaxed);
        Holder::new(Arc::clone(self), id)
    }

    /// Returns what happened so far.
    #[must_use]
    pub fn activity(&self) -> LockActivity {
        LockActivity {
            busy: self.busy.load(Ordering::Relaxed),
            waits: self.waits.load(Ordering::Relaxed),
            recovered: self.recovered.load(Ordering::Relaxed),
        }
    }

    /// Counts the read marks that living processes hold, and returns the time for which the oldest of them
    /// has been held by its process without a break.
    ///
    /// # Errors
    /// When the kernel does not tell which processes live.
    pub fn readers(&self) -> Result<(u32, Duration), LockError> {
        let now = self.segment.clock_ns();
        let (mut count, mut oldest) = (0, 0);
        for held in observe(&*self.segment, self.base) {
            if let Some(since) = held.reads_since
                && self.segment.is_alive(held.process)?
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

    /// Whether another living process holds a read mark.
    ///
    /// # Errors
    /// When the kernel does not tell which processes live.
    pub fn has_other_readers(&self) -> Result<bool, LockError> {
        let marks = (FIRST_READ..SLOTS).fold(0, |marks, slot| marks | 1 << slot);
        for process in (0..self.high()).filter(|process| *process != self.segment.process_slot()) {
            if self.segment.load(self.process_slot(process)) & marks != 0 && self.segment.is_alive(process)? {
                return Ok(true);
            }
        }
        self.has_outside(FIRST_READ, SLOTS - FIRST_READ)
    }

    fn local(&self) -> MutexGuard<'_, Local> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn process_slot(&self, process: usize) -> u64 {
        observe::process_slot(self.base, process)
    }

    fn own(&self) -> u64 {
        self.process_slot(self.segment.process_slot())
    }

    /// Where a process's line says when its reservation ends.
    fn reserved_until(&self, process: usize) -> u64 {
        self.process_slot(process) + 8
    }

    /// Where a process's line says since when it has held a read mark.
    fn read_since(&self, process: usize, slot: usize) -> u64 {
        observe::read_since(self.base, process, slot)
    }

    fn high(&self) -> usize {
        observe::high(&*self.segment, self.base)
    }

    /// Whether it is time again to ask the kernel if a process in the way lives. Asking costs a system call,
    /// and most of these processes do live. Each process has a time of its own, so a living one that is often
    /// in the way cannot keep a dead one from being found. The time is that of the last look of any process:
    /// with many processes each one looks seldom, and all of them would ask.
    pub(crate) fn suspects(&self, process: usize, after: Duration) -> bool {
        let at = self.process_slot(process) + EXAMINED;
        let (last, now) = (self.segment.load(at), self.segment.clock_ns());
        // A time in the future comes from a clock with another origin.
        let is_due = last == 0 || now < last || now - last >= after.as_nanos() as u64;
        is_due && self.segment.compare_exchange(at, last, now).is_ok()
    }

    /// Asks the kernel whether a process is dead. If it is, the time of the last look is cleared, so whatever
    /// else it has left is examined at once.
    pub(crate) fn is_dead(&self, process: usize) -> Result<bool, LockError> {
        let is_dead = !self.segment.is_alive(process)?;
        if is_dead {
            self.segment.store(self.process_slot(process) + EXAMINED, 0);
        }
        Ok(is_dead)
    }

    /// Frees what a dead process holds. Returns whether the process is dead.
    fn bury(&self, process: usize, word: u64) -> Result<bool, LockError> {
        if !self.is_dead(process)? {
            return Ok(false);
        }
        let empty = word / EPOCH * EPOCH;
        if self.segment.compare_exchange(self.process_slot(process), word, empty).is_ok() {
            self.recovered.fetch_add(1, Ordering::Relaxed);
        }
        Ok(true)
    }

    /// Takes away a reservation that was not taken up in time. Returns whether it is gone.
    fn expire(&self, process: usize, word: u64) -> bool {
        let expired =
            word & RESERVED != 0 && self.segment.clock_ns() > self.segment.load(self.reserved_until(process));
        let free = word & !(RESERVED | 1 << HELD);
        expired && self.segment.compare_exchange(self.process_slot(process), word, free).is_ok()
    }

    /// Looks at every other process, after this process has set its own bits. Returns whether nothing is in
    /// the way of `mask`, which is to be held exclusively or shared. Asks the kernel only now and then which
    /// processes live.
    fn look(&self, mask: u64, exclusive: bool, comes_again: bool) -> Result<bool, LockError> {
        let own = self.segment.process_slot();
        let held = if exclusive { mask | mask << HELD } else { mask << HELD };
        let suspicion = if comes_again { SUSPICION } else { SUSPICION_AT_ONCE };
        for process in (0..self.high()).filter(|process| *process != own) {
            let mut patience = PATIENCE;
            loop {
                let word = self.segment.load(self.process_slot(process));
                if word & held != 0 {
                    let gone = self.suspects(process, suspicion) && self.bury(process, word)?
                        || mask & 1 != 0 && self.expire(process, word);
                    if gone {
                        continue;
                    }
                    return Ok(false);
                }
                if word & mask << CLAIMED == 0 {
                    break;
                }
                if self.suspects(process, SUSPICION_AT_ONCE) && self.bury(process, word)? {
                    continue;
                }
                // A claim with a lower slot goes on, so this one gives way. A process with a higher slot sees
                // this process's bits and withdraws, or it looked before and holds the lock now. Or it is
                // stopped in between, possibly for long; patience ends that wait.
                if exclusive && process < own || patience == 0 {
                    return Ok(false);
                }
                patience -= 1;
                self.pause(process);
            }
        }
        Ok(true)
    }

    /// Lets the process run whose claim is in the way.
    fn pause(&self, process: usize) {
        let word = self.segment.load(self.process_slot(process));
        // No process wakes this sleep. It ends early if the word has changed already, and a simulated segment
        // can see it.
        self.segment.wait(self.process_slot(process), (word & 0xffff_ffff) as u32, Duration::from_micros(50));
    }

    fn busy<T>(&self) -> Result<T, LockError> {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Err(LockError::Busy)
    }

    fn lock_shared(&self, slot: usize) -> Result<(), LockError> {
        if self.shares.join(slot) {
            return Ok(());
        }
        let local = self.local();
        if local.exclusive[slot].is_some() {
            return self.busy();
        }
        if self.shares.join(slot) {
            return Ok(());
        }
        if self.segment.is_read_only() {
            if !self.lock_from_outside(slot)? {
                return self.busy();
            }
        } else {
            let mask = 1 << slot;
            if slot >= FIRST_READ {
                let since = self.read_since(self.segment.process_slot(), slot);
                self.segment.store(since, self.segment.coarse_clock_ns());
            }
            self.segment.fetch_or(self.own(), mask);
            let looked = self.look(mask, false, false);
            if looked != Ok(true) {
                self.segment.fetch_and(self.own(), !mask);
                return looked.and_then(|_| self.busy());
            }
        }
        self.shares.begin(slot);
        Ok(())
    }

    fn unlock_shared(&self, slot: usize) {
        if self.shares.leave(slot) {
            return;
        }
        let _local = self.local();
        if !self.shares.end(slot) {
            return;
        }
        if self.segment.is_read_only() {
            self.unlock_from_outside(slot);
        } else {
            self.segment.fetch_and(self.own(), !(1 << slot));
        }
    }

    fn lock_exclusive(&self, holder: u64, first: usize, count: usize) -> Result<(), LockError> {
        if self.segment.is_read_only() {
            return self.busy();
        }
        let mut local = self.local();
        if first == WRITE && count == 1 && local.exclusive[WRITE] == Some(holder) && self.take_up(&mut local)
        {
            return Ok(());
        }
        if first == WRITE && !self.may_overtake()? {
            drop(local);
            // The connection that gave WRITE back last may have woken nobody, because it was known to come
            // back until its turn was over.
            self.wake_oldest_if_free();
            return self.busy();
        }
        if let Err(refused) = self.take(&mut local, holder, first, count, false) {
            drop(local);
            if first == WRITE {
                self.wake_oldest_if_free();
            }
            return Err(refused);
        }
        Ok(())
    }

    /// Turns this process's reservation into a lock. Returns `false` when the reservation is gone.
    fn take_up(&self, local: &mut Local) -> bool {
        if !local.reserved {
            return true;
        }
        local.reserved = false;
        let before = self.segment.fetch_and(self.own(), !RESERVED);
        if before & RESERVED == 0 {
            local.exclusive[WRITE] = None;
            return false;
        }
        true
    }

    fn take(
        &self,
        local: &mut Local,
        holder: u64,
        first: usize,
        count: usize,
        queued: bool,
    ) -> Result<(), LockError> {
        let slots = first..first + count;
        if slots.contains(&WRITE) && local.reserved && local.exclusive[WRITE] != Some(holder) {
            // Another connection of this process has the reservation.
            let word = self.segment.load(self.own());
            if word & RESERVED == 0 || self.expire(self.segment.process_slot(), word) {
                local.reserved = false;
                local.exclusive[WRITE] = None;
            }
        }
        let with_checkpoint = is_start_over(first, count) && local.exclusive[CHECKPOINT] != Some(holder);
        let along = if with_checkpoint { CHECKPOINT..CHECKPOINT + 1 } else { 0..0 };
        let taken = |slot: usize| self.shares.any(slot) || local.exclusive[slot].is_some();
        if slots.clone().chain(along.clone()).any(taken) {
            return self.busy();
        }
        let mask = slots.clone().chain(along.clone()).fold(0, |mask, slot| mask | 1 << slot);
        let begins_to_read = first >= FIRST_READ && local.exclusive[CHECKPOINT] != Some(holder);
        self.segment.fetch_or(self.own(), mask << CLAIMED);
        let looked = match self.look(mask, true, queued || begins_to_read) {
            Ok(true) => self.outside_permits(local.exclusive[CHECKPOINT].is_some(), first, count),
            looked => looked,
        };
        if looked != Ok(true) {
            self.segment.fetch_and(self.own(), !(mask << CLAIMED));
            return looked.and_then(|_| self.busy());
        }
        self.segment.fetch_or(self.own(), mask << HELD);
        self.segment.fetch_and(self.own(), !(mask << CLAIMED));
        for slot in slots.chain(along) {
            local.exclusive[slot] = Some(holder);
        }
        local.is_starting_over |= with_checkpoint;
        Ok(())
    }

    /// Gives back what this connection holds of these locks. `at_once` says whether it is known to come back
    /// for WRITE as soon as it can.
    fn unlock_exclusive(&self, holder: u64, first: usize, count: usize, at_once: bool) {
        if self.segment.is_read_only() {
            return;
        }
        let mut local = self.local();
        let mut mask = 0;
        let marks = FIRST_READ + 1..SLOTS;
        let ends =
            first <= marks.start && first + count == SLOTS && local.exclusive[marks.start] == Some(holder);
        let along = if ends && local.is_starting_over { CHECKPOINT..CHECKPOINT + 1 } else { 0..0 };
        local.is_starting_over &= along.is_empty();
        for slot in along.chain(first..first + count) {
            if local.exclusive[slot] == Some(holder) {
                local.exclusive[slot] = None;
                mask |= 1 << HELD << slot;
            }
        }
        if mask & 1 << HELD != 0 && local.reserved {
            local.reserved = false;
            if self.segment.fetch_and(self.own(), !RESERVED) & RESERVED == 0 {
                // The reservation was taken away, and the bit with it. The bit cannot be that of another
                // connection of this process, since the table is locked here.
                mask &= !(1 << HELD);
            }
        }
        self.segment.fetch_and(self.own(), !mask);
        drop(local);
        if mask & 1 << HELD != 0 {
            self.pass_on(at_once);
        }
    }

    /// Takes WRITE for a connection that will come back for it.
    fn reserve(&self, holder: u64) -> Result<bool, LockError> {
        let mut local = self.local();
        if local.exclusive[WRITE] == Some(holder) {
            if !local.reserved || self.segment.load(self.own()) & RESERVED != 0 {
                return Ok(true);
            }
            // The reservation was taken away meanwhile.
            local.reserved = false;
            local.exclusive[WRITE] = None;
        }
        match self.take(&mut local, holder, WRITE, 1, true) {
            Ok(()) => {}
            Err(LockError::Busy) => return Ok(false),
            Err(error) => return Err(error),
        }
        local.reserved = true;
        let until = self.segment.clock_ns() + RESERVATION.as_nanos() as u64;
        self.segment.store(self.reserved_until(self.segment.process_slot()), until);
        // A new epoch: a process that saw an earlier reservation expire must not end this one.
        self.segment.fetch_add(self.own(), EPOCH);
        self.segment.fetch_or(self.own(), RESERVED);
        Ok(true)
    }
}

/// Whether these locks, taken exclusively, are the ones under which SQLite starts the log over: all read
/// marks but the first. SQLite takes them together for nothing else; a checkpoint and recovery set marks one
/// by one.
#[must_use]
pub const fn is_start_over(first: usize, count: usize) -> bool {
    first == FIRST_READ + 1 && count == SLOTS - FIRST_READ - 1
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("process", &self.segment.process_slot()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
