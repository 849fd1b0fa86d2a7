//! Takes locks and gives them back, from a connection's [`Holder`] down to the words of the processes.
//!
//! Read this file from top to bottom. First come the fields that a process keeps, and those for each
//! connection. Then follow exclusive locks, taken and given back, and after them shared locks. For both kinds
//! of lock, the process sets bits of its word and then *looks* at the words of the others. Readers who may
//! not write the segment, and reservations of WRITE, come last.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duralite_medium::{MediumError, PROCESS_SLOTS, Segment, Words};

use crate::deaths::{Deaths, SUSPICION, SUSPICION_AT_ONCE};
use crate::layout::{
    BOTH, CHECKPOINT, CLAIMED, EPOCH, FIRST_READ, HELD, HIGH, LAYOUT_BYTES, OUTSIDE, RESERVED,
    RESERVED_UNTIL, SLOTS, WRITE, member, read_since,
};
use crate::queue::Queue;

/// The time for which a reservation of WRITE is valid.
pub(crate) const RESERVATION: Duration = Duration::from_millis(20);
/// The number of checks, 50 us apart, of whether another process still claims the lock.
const PATIENCE: u32 = 2000;
/// The length of a turn: the time for which connections that are not in the queue may take WRITE ahead of the
/// oldest waiter.
const TURN: Duration = Duration::from_micros(300);
/// The limit for asking for WRITE *at once*. A connection that does nothing but commit asks for WRITE again
/// within this time after it has given WRITE back.
const AT_ONCE: Duration = Duration::from_micros(20);

/// The reason why a lock was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// The lock is not available now. Another connection may hold or claim the lock. A waiter may be the next
    /// to get it. A reader who may not write the segment may have the mark. Or a dead process may hold the
    /// lock, and its death was not noticed yet.
    #[error("busy")]
    Busy,
    /// The kernel did not report whether a process is alive.
    #[error("{0}")]
    Medium(MediumError),
}

impl From<MediumError> for LockError {
    fn from(error: MediumError) -> Self {
        Self::Medium(error)
    }
}

/// The locks of one database, as one process sees them.
pub struct Table {
    pub(crate) words: Words,
    /// The byte of the segment at which the table begins.
    pub(crate) base: u64,
    /// This process's slot.
    pub(crate) process: usize,
    /// The offset of this process's word.
    own: u64,
    is_read_only: bool,
    /// Whether there can be readers who may not write the segment.
    can_be_read_only: bool,
    pub(crate) deaths: Deaths,
    pub(crate) queue: Queue,
    local: Mutex<Local>,
    /// The number of connections that share each lock. The first and the last sharer of a lock change its
    /// count under the mutex of `local`.
    pub(crate) shares: Shares,
    next_holder: AtomicU64,
    pub(crate) busy: AtomicU64,
    pub(crate) waits: AtomicU64,
}

/// The connections of this process that hold locks exclusively, one for each lock.
#[derive(Default)]
struct Local {
    exclusive: [Option<u64>; SLOTS],
    /// Whether this process holds WRITE only as a reservation for one of its connections, which has not taken
    /// WRITE up yet.
    reserved: bool,
    /// Whether the holder of CHECKPOINT took it together with the read marks, only to start the log over.
    is_starting_over: bool,
}

/// The number of connections of this process that share each lock. While the count is not 0, the process has
/// the lock in the segment. The count changes from 0 and back to 0 only under the table's mutex. Other
/// changes take no mutex, so that threads reading the same snapshot do not wait for one another.
#[derive(Default)]
pub(crate) struct Shares([Count; SLOTS]);

/// A count on a cache line of its own, so that threads that take different locks at the same time do not slow
/// each other down.
#[derive(Default)]
#[repr(align(64))]
struct Count(AtomicU32);

/// A connection, and the locks that it holds. Dropping this value gives all its locks back.
#[derive(Debug)]
pub struct Holder {
    pub(crate) table: Arc<Table>,
    pub(crate) id: u64,
    held: Mutex<Holding>,
}

/// The locks of a connection, and its history with WRITE.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    shared: u8,
    exclusive: u8,
    /// The connection's ticket among the waiters for WRITE, kept until the connection gets the lock. 0 if it
    /// has no ticket.
    pub(crate) ticket: u64,
    /// How much longer the connection has slept for WRITE than SQLite asked. The connection's next sleeps are
    /// shorter by this time.
    pub(crate) ahead: Duration,
    /// The time at which the last sleep for WRITE ended, in nanoseconds of the segment's clock.
    pub(crate) woke: u64,
    /// The time at which the connection last gave WRITE back while others waited for it, in nanoseconds of
    /// the segment's clock. 0 once the connection has asked for WRITE again.
    gave_back: u64,
    /// Whether the connection asked for WRITE again within `AT_ONCE` when it last gave WRITE back while
    /// others waited.
    pub(crate) comes_back: bool,
}

impl Table {
    /// Joins the table that begins at byte `base` of the segment. Before the first process joins, the
    /// [`LAYOUT_BYTES`] from `base` on must be zeros.
    #[must_use]
    pub fn join(segment: Arc<dyn Segment>, base: u64) -> Arc<Self> {
        Self::with_turn(segment, base, TURN)
    }

    /// Joins the table as [`Table::join`] does. `turn` is the time for which connections that are not in the
    /// queue may take WRITE ahead of the waiters.
    #[must_use]
    pub fn with_turn(segment: Arc<dyn Segment>, base: u64, turn: Duration) -> Arc<Self> {
        let process = segment.process_slot();
        let (is_read_only, can_be_read_only) = (segment.is_read_only(), segment.can_be_read_only());
        let words = Words::new(segment, base, (LAYOUT_BYTES / 8) as usize);
        let table = Self {
            deaths: Deaths::new(words.clone()),
            queue: Queue::new(words.clone(), turn),
            words,
            base,
            process,
            own: member(process),
            is_read_only,
            can_be_read_only,
            local: Mutex::default(),
            shares: Shares::default(),
            next_holder: AtomicU64::new(1),
            busy: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        };
        if is_read_only {
            return Arc::new(table);
        }
        // The slot's previous process may have left bits in the word. Clear them, and advance the epoch.
        let epoch = table.words.load(table.own) / EPOCH;
        table.words.store(table.own, epoch.wrapping_add(1).wrapping_mul(EPOCH));
        table.queue.forget_predecessor();
        let used = process as u64 + 1;
        loop {
            let high = table.words.load(HIGH);
            if high >= used || table.words.compare_exchange(HIGH, high, used).is_ok() {
                break;
            }
        }
        Arc::new(table)
    }

    /// Makes a connection that takes locks of this table.
    #[must_use]
    pub fn holder(self: &Arc<Self>) -> Holder {
        let id = self.next_holder.fetch_add(1, Ordering::Relaxed);
        Holder { table: Arc::clone(self), id, held: Mutex::default() }
    }

    fn local(&self) -> MutexGuard<'_, Local> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn clock_ns(&self) -> u64 {
        self.words.segment().clock_ns()
    }

    /// Returns the highest process slot that was ever used, plus 1.
    pub(crate) fn high(&self) -> usize {
        (self.words.load(HIGH) as usize).min(PROCESS_SLOTS)
    }

    fn busy<T>(&self) -> Result<T, LockError> {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Err(LockError::Busy)
    }
}

impl Holder {
    pub(crate) fn held(&self) -> MutexGuard<'_, Holding> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the table that contains the locks.
    #[must_use]
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Returns whether the connection is between transactions: it holds no lock, does not wait for WRITE, and
    /// WRITE is not reserved for it.
    #[must_use]
    pub fn begins(&self) -> bool {
        let held = self.held();
        held.shared == 0 && held.exclusive == 0 && held.ticket == 0
    }

    /// Returns whether the connection holds a shared lock, as in a read transaction.
    #[must_use]
    pub fn is_reading(&self) -> bool {
        self.held().shared != 0
    }
}

// Exclusive locks.

impl Holder {
    /// Takes `count` locks exclusively, beginning with `first`: either all of them or none. A connection that
    /// asks for all read marks except the first one is about to start the log over, and must also have
    /// CHECKPOINT (invariant 45). If it does not hold CHECKPOINT yet, this call takes CHECKPOINT too, and the
    /// connection gives CHECKPOINT back together with the marks.
    ///
    /// # Errors
    /// `Busy` if one of the locks is not available now. WRITE is not available while a waiter is the next to
    /// get it. `Medium`.
    pub fn lock_exclusive(&self, first: usize, count: usize) -> Result<(), LockError> {
        let mut held = self.held();
        let mask = mask_of(first, count);
        if held.exclusive & mask == mask {
            return Ok(());
        }
        if first == WRITE && held.gave_back != 0 {
            let now = self.table.clock_ns();
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

    /// Gives back each of these exclusive locks that the connection holds.
    pub fn unlock_exclusive(&self, first: usize, count: usize) {
        let mut held = self.held();
        if first == WRITE && held.exclusive & 1 << WRITE != 0 && !self.table.queue.is_empty() {
            held.gave_back = self.table.clock_ns();
        }
        held.exclusive &= !mask_of(first, count);
        self.table.unlock_exclusive(self.id, first, count, held.comes_back);
    }
}

fn mask_of(first: usize, count: usize) -> u8 {
    (((1u16 << count) - 1) << first) as u8
}

/// Returns whether these locks are the read marks without the first one. SQLite takes these locks together
/// and exclusively only to start the log over. In a checkpoint and in recovery it takes marks one by one.
#[must_use]
pub const fn is_start_over(first: usize, count: usize) -> bool {
    first == FIRST_READ + 1 && count == SLOTS - FIRST_READ - 1
}

impl Table {
    fn lock_exclusive(&self, holder: u64, first: usize, count: usize) -> Result<(), LockError> {
        if self.is_read_only {
            return self.busy();
        }
        let mut local = self.local();
        if first == WRITE && count == 1 && local.exclusive[WRITE] == Some(holder) && self.take_up(&mut local)
        {
            return Ok(());
        }
        if first == WRITE && !self.queue.may_overtake(&self.deaths)? {
            drop(local);
            // The connection that gave WRITE back last may have woken nobody, because it was expected to ask
            // for WRITE again before its turn was over. So wake the oldest waiter here.
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
            // WRITE is reserved for another connection of this process.
            let word = self.words.load(self.own);
            if word & RESERVED == 0 || self.expire(self.process, word) {
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
        let mut patience = PATIENCE;
        loop {
            self.words.fetch_or(self.own, mask << CLAIMED);
            let looked = match self.look(mask, true, queued || begins_to_read) {
                Ok(Looked::Free) => self.outside_permits(local.exclusive[CHECKPOINT].is_some(), first, count),
                Ok(Looked::Claimed(process)) if first == WRITE && patience > 0 => {
                    self.words.fetch_and(self.own, !(mask << CLAIMED));
                    self.until_settled(process, mask, &mut patience);
                    continue;
                }
                looked => looked.map(|_| false),
            };
            if looked != Ok(true) {
                self.words.fetch_and(self.own, !(mask << CLAIMED));
                return looked.and_then(|_| self.busy());
            }
            break;
        }
        let has = |slot: usize| mask & 1 << slot != 0 || local.exclusive[slot] == Some(holder);
        let both = if has(WRITE) && has(CHECKPOINT) { BOTH } else { 0 };
        self.words.fetch_or(self.own, mask << HELD | both);
        self.words.fetch_and(self.own, !(mask << CLAIMED));
        for slot in slots.chain(along) {
            local.exclusive[slot] = Some(holder);
        }
        local.is_starting_over |= with_checkpoint;
        Ok(())
    }

    /// Gives back each of these locks that the connection holds. `at_once` says whether the connection is
    /// known to ask for WRITE again at once.
    fn unlock_exclusive(&self, holder: u64, first: usize, count: usize, at_once: bool) {
        if self.is_read_only {
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
            if self.words.fetch_and(self.own, !RESERVED) & RESERVED == 0 {
                // The reservation was taken away and its bit was cleared, so this connection has no WRITE to
                // give back. No other connection of this process can have taken WRITE since, because the
                // table is locked here.
                mask &= !(1 << HELD);
            }
        }
        if mask & (1 << WRITE | 1 << CHECKPOINT) << HELD != 0 {
            mask |= BOTH;
        }
        self.words.fetch_and(self.own, !mask);
        drop(local);
        if mask & 1 << HELD != 0 {
            self.queue.pass_on(at_once);
        }
    }

    /// Wakes the oldest waiter after this process has withdrawn a claim on WRITE. The waiter may have seen
    /// that claim when it was awake, and may have gone back to sleep. Wakes nobody if a connection holds
    /// WRITE now, because that connection wakes the waiter later.
    pub(crate) fn wake_oldest_if_free(&self) {
        if self.queue.oldest().is_some() && !self.is_write_taken() {
            self.queue.wake_oldest();
        }
    }

    /// Returns whether the connection that holds WRITE also holds CHECKPOINT. A connection holds both during a
    /// checkpoint that keeps writers out, for example to wait for readers, and for a moment when the log starts
    /// over.
    #[must_use]
    pub fn is_write_taken_to_checkpoint(&self) -> bool {
        (0..self.high()).any(|process| {
            let word = self.words.load(member(process));
            word & BOTH != 0 && word & RESERVED == 0
        })
    }

    /// Returns whether some process has WRITE. Either one of its connections holds WRITE, or the process has
    /// reserved WRITE for a connection.
    #[must_use]
    pub fn is_write_taken(&self) -> bool {
        (0..self.high()).any(|process| self.words.load(member(process)) & 1 << HELD != 0)
    }
}

// Checking the other processes, for a lock of either kind.

/// What a process finds in the words of the others after it has set its own bits.
#[derive(Debug, PartialEq, Eq)]
enum Looked {
    /// No other process prevents this process from holding the locks.
    Free,
    /// Another process has one of the locks, or is about to get it.
    Taken,
    /// The process in this slot claims one of the locks too, and goes first. It may still fail to get the
    /// lock.
    Claimed(usize),
}

impl Table {
    /// Checks whether another process prevents this process from holding the locks in `mask`, either
    /// exclusively or shared. This process has already set its own bits. To save system calls, this function
    /// asks the kernel only now and then whether a process is alive.
    fn look(&self, mask: u64, exclusive: bool, comes_again: bool) -> Result<Looked, LockError> {
        let own = self.process;
        let held = if exclusive { mask | mask << HELD } else { mask << HELD };
        let suspicion = if comes_again { SUSPICION } else { SUSPICION_AT_ONCE };
        let deaths = &self.deaths;
        for process in (0..self.high()).filter(|process| *process != own) {
            let mut patience = PATIENCE;
            loop {
                let word = self.words.load(member(process));
                if word & held != 0 {
                    let gone = deaths.suspects(process, suspicion) && deaths.bury(process, word)?
                        || mask & 1 != 0 && self.expire(process, word);
                    if gone {
                        continue;
                    }
                    return Ok(Looked::Taken);
                }
                if word & mask << CLAIMED == 0 {
                    break;
                }
                if deaths.suspects(process, SUSPICION_AT_ONCE) && deaths.bury(process, word)? {
                    continue;
                }
                // Of two processes with exclusive claims, the process with the lower slot continues, so this
                // process gives way to a lower slot. A process with a higher slot gives way to this one: it
                // sees this process's bits and withdraws. But if it looked before this process set its bits,
                // it takes the lock instead. It may also be stopped for long before it withdraws or takes the
                // lock, so `patience` limits the wait.
                if exclusive && process < own {
                    return Ok(Looked::Claimed(process));
                }
                if patience == 0 {
                    return Ok(Looked::Taken);
                }
                patience -= 1;
                self.pause(process);
            }
        }
        Ok(Looked::Free)
    }

    /// Waits until another process has got the lock that it claims, or has withdrawn its claim. This process
    /// claims nothing during the wait, so no process waits for it.
    fn until_settled(&self, process: usize, mask: u64, patience: &mut u32) {
        loop {
            *patience = patience.saturating_sub(1);
            if *patience == 0 || self.words.load(member(process)) & mask << CLAIMED == 0 {
                return;
            }
            self.pause(process);
        }
    }

    /// Sleeps for a moment, so that the process that claims the lock can run.
    fn pause(&self, process: usize) {
        let word = self.words.load(member(process));
        // No process wakes this sleep. `wait` is used instead of a plain sleep because it returns early if
        // the word has changed already, and because a simulated segment can observe it.
        self.words.wait(member(process), (word & 0xffff_ffff) as u32, Duration::from_micros(50));
    }
}

// Shared locks.

impl Holder {
    /// Takes a lock shared. A second call for the same lock changes nothing.
    ///
    /// # Errors
    /// `Busy` if another connection holds the lock exclusively; `Medium`.
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

    /// Gives all locks back.
    pub fn release(&self) {
        let held = std::mem::take(&mut *self.held());
        for slot in (0..SLOTS).filter(|slot| held.shared & 1 << slot != 0) {
            self.table.unlock_shared(slot);
        }
        // Give back all exclusive locks, because a reservation of WRITE is not in `held`.
        self.table.unlock_exclusive(self.id, 0, SLOTS, false);
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.release();
    }
}

impl Table {
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
        if self.is_read_only {
            if !self.lock_from_outside(slot)? {
                return self.busy();
            }
        } else {
            let mask = 1 << slot;
            if slot >= FIRST_READ {
                let now = self.words.segment().coarse_clock_ns();
                self.words.store(read_since(self.process, slot), now);
            }
            self.words.fetch_or(self.own, mask);
            let looked = self.look(mask, false, false);
            if looked != Ok(Looked::Free) {
                self.words.fetch_and(self.own, !mask);
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
        if self.is_read_only {
            self.unlock_from_outside(slot);
        } else {
            self.words.fetch_and(self.own, !(1 << slot));
        }
    }
}

impl Shares {
    /// Returns whether any connection shares a lock. While the mutex is held, a count of 0 stays 0.
    pub(crate) fn any(&self, slot: usize) -> bool {
        self.0[slot].0.load(Ordering::Acquire) > 0
    }

    /// Returns the number of connections that share a lock.
    pub(crate) fn count(&self, slot: usize) -> u32 {
        self.0[slot].0.load(Ordering::Acquire)
    }

    /// Adds one connection to the count if other connections share the lock already. Returns `false`
    /// otherwise.
    pub(crate) fn join(&self, slot: usize) -> bool {
        let more = |count: u32| if count > 0 { count.checked_add(1) } else { None };
        self.0[slot].0.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Subtracts one connection from the count if others remain. Returns `false` otherwise.
    pub(crate) fn leave(&self, slot: usize) -> bool {
        let less = |count: u32| if count > 1 { Some(count - 1) } else { None };
        self.0[slot].0.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok()
    }

    /// Sets the count to 1 for the first connection that shares the lock. The caller holds the mutex, and the
    /// process already has the lock in the segment.
    pub(crate) fn begin(&self, slot: usize) {
        self.0[slot].0.store(1, Ordering::Release);
    }

    /// Takes one connection off the count, under the mutex. Returns `true` if it was the last one: the
    /// process must then give back the lock in the segment. Returns `false` if other connections remain, or
    /// if there was none.
    pub(crate) fn end(&self, slot: usize) -> bool {
        while self.any(slot) {
            if self.leave(slot) {
                return false;
            }
            if self.0[slot].0.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return true;
            }
        }
        false
    }
}

// Readers who may not write the segment, called outside readers. The reasoning is in lib.rs.

impl Table {
    /// Returns whether outside readers permit this process to take the locks that it claims exclusively.
    /// `checkpoints` says whether this process holds CHECKPOINT.
    fn outside_permits(&self, checkpoints: bool, first: usize, count: usize) -> Result<bool, LockError> {
        if !self.can_be_read_only {
            return Ok(true);
        }
        let marks = first.max(FIRST_READ)..first + count;
        if first == CHECKPOINT && count == 1 {
            Ok(!self.has_outside(FIRST_READ, SLOTS - FIRST_READ)?)
        } else if !marks.is_empty() && (count > 1 || checkpoints || self.somebody_checkpoints()) {
            Ok(!self.has_outside(marks.start, marks.len())?)
        } else {
            Ok(true)
        }
    }

    fn somebody_checkpoints(&self) -> bool {
        let mask = 1 << CHECKPOINT << HELD | 1 << CHECKPOINT << CLAIMED;
        (0..self.high()).any(|process| self.words.load(member(process)) & mask != 0)
    }

    /// Returns whether an outside reader holds one of these marks.
    pub(crate) fn has_outside(&self, first: usize, count: usize) -> Result<bool, LockError> {
        let possible = self.can_be_read_only && self.words.load(OUTSIDE) != 0;
        Ok(possible && self.words.segment().has_outside_readers(first, count)?)
    }

    /// Takes a lock shared, as an outside reader. The caller is the first connection of this process to take
    /// it. Returns `false` if a process holds or claims the lock exclusively. If the lock is not a read mark,
    /// this function only checks whether it is free: SQLite takes such a lock only for that check, and gives
    /// it back at once.
    fn lock_from_outside(&self, slot: usize) -> Result<bool, LockError> {
        if slot >= FIRST_READ && !self.words.segment().hold_mark(slot)? {
            return Ok(false);
        }
        let free = self.is_free(slot);
        if free != Ok(true) {
            self.unlock_from_outside(slot);
        }
        free
    }

    fn unlock_from_outside(&self, slot: usize) {
        if slot >= FIRST_READ {
            self.words.segment().release_mark(slot);
        }
    }

    /// Returns whether no living process holds or claims a lock exclusively.
    fn is_free(&self, slot: usize) -> Result<bool, LockError> {
        let mask = 1 << slot << HELD | 1 << slot << CLAIMED;
        for process in 0..self.high() {
            let is_taken = self.words.load(member(process)) & mask != 0;
            if is_taken && self.words.segment().is_alive(process)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

// Reservations of WRITE, for a connection whose turn it is.

impl Table {
    /// Reserves WRITE: takes it for a connection that will ask for it again soon. Returns whether WRITE is
    /// now reserved.
    pub(crate) fn reserve(&self, holder: u64) -> Result<bool, LockError> {
        let mut local = self.local();
        if local.exclusive[WRITE] == Some(holder) {
            if !local.reserved || self.words.load(self.own) & RESERVED != 0 {
                return Ok(true);
            }
            // The reservation was taken away before the connection asked for WRITE again.
            local.reserved = false;
            local.exclusive[WRITE] = None;
        }
        match self.take(&mut local, holder, WRITE, 1, true) {
            Ok(()) => {}
            Err(LockError::Busy) => return Ok(false),
            Err(error) => return Err(error),
        }
        local.reserved = true;
        let until = self.clock_ns() + RESERVATION.as_nanos() as u64;
        self.words.store(self.own + RESERVED_UNTIL, until);
        // Advance the epoch. Otherwise a process that has seen an earlier reservation expire could end this
        // one.
        self.words.fetch_add(self.own, EPOCH);
        self.words.fetch_or(self.own, RESERVED);
        Ok(true)
    }

    /// Turns this process's reservation into a lock that the connection holds. Returns `false` if the
    /// reservation is gone.
    fn take_up(&self, local: &mut Local) -> bool {
        if !local.reserved {
            return true;
        }
        local.reserved = false;
        let before = self.words.fetch_and(self.own, !RESERVED);
        if before & RESERVED == 0 {
            local.exclusive[WRITE] = None;
            return false;
        }
        true
    }

    /// Takes away a reservation whose time is over. Returns whether it has taken the reservation away.
    fn expire(&self, process: usize, word: u64) -> bool {
        let expired =
            word & RESERVED != 0 && self.clock_ns() > self.words.load(member(process) + RESERVED_UNTIL);
        let free = word & !(RESERVED | BOTH | 1 << HELD);
        expired && self.words.compare_exchange(member(process), word, free).is_ok()
    }
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("process", &self.process).finish_non_exhaustive()
    }
}
