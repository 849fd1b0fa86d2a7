//! The queue for the WRITE lock: which connections wait, and whose turn it is.
//!
//! A waiter has a place in shared memory. One word of the place holds both the waiter's ticket and its
//! process. So the waiter is either completely in the queue or not in it at all, at whatever point its
//! process dies. A waiter *stamps* its place, that is, writes the time there, at least once in each `SLICE`
//! of time, whether it is awake or asleep. A waiter that has not stamped its place for [`PRESENCE`] is dead
//! or stopped, so the others stop waiting for it. If a stopped waiter continues, it has its old place in the
//! order again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duralite_medium::{MediumError, PROCESS_SLOTS, Words};

use crate::deaths::{Deaths, SUSPICION_AT_ONCE};
use crate::layout::{LINE, PLACES_OFFSET, WAITERS, WAITERS_OFFSET};

/// The offset of the word that holds the last ticket drawn.
const TICKETS: u64 = LINE;
/// The offset of the time until which connections that are not in the queue may take WRITE ahead of the
/// waiters. Only the holder of WRITE changes this time.
const TURN_ENDS: u64 = 2 * LINE;
/// The offset of the word that holds the highest place ever used, plus 1.
const HIGH_WAITER: u64 = 3 * LINE;

/// The offset of a word that is always zero. A waiter without a place in the queue sleeps on this word.
const NOWHERE: u64 = 4 * LINE;

/// The offset of the count of all waiters that have ever entered the queue. A process that has seen an empty
/// queue need not look at the queue again until this count changes.
const ARRIVALS: u64 = 5 * LINE;

/// Returns the offset of the word that says which waiter has the place with this number: the waiter's ticket
/// and process, or 0 if the place is free. No ticket is drawn twice, so the word of a dead waiter cannot be
/// mistaken for another waiter's. These words stand together, because each hand-over of WRITE looks through
/// all of them.
const fn waiter(index: usize) -> u64 {
    WAITERS_OFFSET + index as u64 * 8
}

/// Returns the offset of the other words of a place, that is, of all its words except the waiter's word. They
/// are on a cache line of their own.
pub(crate) const fn place(index: usize) -> u64 {
    PLACES_OFFSET + index as u64 * LINE
}

/// The offset, in a place, of the word that is 1 while the waiter sleeps, or is about to sleep.
pub(crate) const ASLEEP: u64 = 0;
const FUTEX: u64 = 8;
/// The offset, in a place, of the time at which the waiter last stamped the place.
const SEEN: u64 = 16;

/// A waiter's word is the ticket times this number, plus the process slot plus 1.
const TICKET: u64 = 1 << 8;
const _: () = assert!((PROCESS_SLOTS as u64) < TICKET);

/// The longest single sleep of a waiter. After it, the waiter checks whether the process that should have
/// woken it has died.
pub(crate) const SLICE: Duration = Duration::from_millis(10);

/// If a waiter has not stamped its place for this long, the others no longer wait for it.
const PRESENCE: Duration = SLICE.saturating_mul(5);

/// Returns the process that a waiter's word names.
fn process_of(waiter: u64) -> Option<usize> {
    (waiter % TICKET).checked_sub(1).map(|process| process as usize)
}

/// The queue, as one process sees it.
pub(crate) struct Queue {
    words: Words,
    /// This process's slot.
    process: usize,
    /// The length of a turn: the time for which connections that are not in the queue may take WRITE ahead of
    /// the waiters.
    turn: Duration,
    /// The count of arrivals at the time when this process last found the queue empty.
    empty_at: AtomicU64,
}

impl Queue {
    pub(crate) fn new(words: Words, turn: Duration) -> Self {
        let process = words.segment().process_slot();
        Self { words, process, turn, empty_at: AtomicU64::new(u64::MAX) }
    }

    /// Returns the places in use, each with its waiter's word.
    fn waiters(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        let high = (self.words.load(HIGH_WAITER) as usize).min(WAITERS);
        (0..high).map(|index| (self.words.load(waiter(index)), index)).filter(|(waiter, _)| *waiter != 0)
    }

    /// Returns whether the queue is empty. A connection may enter the queue just after this call. That does
    /// no harm: once it is in the queue, it checks whether WRITE is free, so it does not miss a free WRITE.
    pub(crate) fn is_empty(&self) -> bool {
        let arrivals = self.words.load(ARRIVALS);
        if self.empty_at.load(Ordering::Relaxed) == arrivals {
            return true;
        }
        let empty = self.waiters().next().is_none();
        if empty {
            self.empty_at.store(arrivals, Ordering::Relaxed);
        }
        empty
    }

    /// Returns the place and the word of the waiter that gets WRITE next: the oldest one that is neither dead
    /// nor stopped.
    pub(crate) fn oldest(&self) -> Option<(usize, u64)> {
        let mut absent = 0;
        loop {
            let (waiter, index) = self.waiters().filter(|(waiter, _)| *waiter > absent).min()?;
            let seen = self.words.load(place(index) + SEEN);
            let now = self.words.segment().clock_ns();
            if now.saturating_sub(seen) <= PRESENCE.as_nanos() as u64 {
                return Some((index, waiter));
            }
            absent = waiter;
        }
    }

    /// Begins a turn, in which connections that are not in the queue may take WRITE ahead of the waiters. The
    /// caller holds WRITE.
    pub(crate) fn begin_turn(&self) {
        let end = self.words.segment().clock_ns().saturating_add(self.turn.as_nanos() as u64);
        self.words.store(TURN_ENDS, end);
    }

    /// Returns how much time is left of the turn.
    pub(crate) fn left_of_turn(&self) -> Duration {
        let end = self.words.load(TURN_ENDS);
        Duration::from_nanos(end.saturating_sub(self.words.segment().clock_ns()))
    }

    /// Returns whether a connection that is not in the queue may take WRITE if WRITE is free.
    pub(crate) fn may_overtake(&self, deaths: &Deaths) -> Result<bool, MediumError> {
        if self.is_empty() || !self.left_of_turn().is_zero() {
            return Ok(true);
        }
        while let Some((index, waiter)) = self.oldest() {
            let suspected =
                process_of(waiter).is_none_or(|process| deaths.suspects(process, SUSPICION_AT_ONCE));
            if !suspected || !self.forget_if_dead(deaths, index, waiter)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Wakes the oldest waiter, because a connection has given WRITE back. Does nothing if the turn is not
    /// over and that connection is known to ask for WRITE again at once (`at_once`).
    pub(crate) fn pass_on(&self, at_once: bool) {
        let is_awaited = !self.is_empty();
        if is_awaited && (!at_once || self.left_of_turn().is_zero()) {
            self.wake_oldest();
        }
    }

    pub(crate) fn wake_oldest(&self) {
        if let Some((index, _)) = self.oldest() {
            let at = place(index);
            self.words.fetch_add(at + FUTEX, 1);
            if self.words.compare_exchange(at + ASLEEP, 1, 0).is_ok() {
                self.words.wake(at + FUTEX, 1);
            }
        }
    }

    pub(crate) fn draw_ticket(&self) -> u64 {
        self.words.fetch_add(TICKETS, 1) + 1
    }

    /// Takes a free place. Returns `None` if no place is free.
    pub(crate) fn enter(&self, ticket: u64) -> Option<Waiter<'_>> {
        let own = ticket * TICKET + self.process as u64 + 1;
        let index = (0..WAITERS).find(|index| {
            let word = waiter(*index);
            if self.words.load(word) != 0 {
                return false;
            }
            // Raise `HIGH_WAITER` first, so that every place in use is always below it.
            self.raise_mark(*index as u64 + 1);
            self.words.compare_exchange(word, 0, own).is_ok()
        })?;
        self.words.fetch_add(ARRIVALS, 1);
        let waiter = Waiter { queue: self, index };
        waiter.show();
        Some(waiter)
    }

    fn raise_mark(&self, used: u64) {
        loop {
            let high = self.words.load(HIGH_WAITER);
            if high >= used || self.words.compare_exchange(HIGH_WAITER, high, used).is_ok() {
                return;
            }
        }
    }

    /// Sleeps without a place in the queue.
    pub(crate) fn sleep_nowhere(&self, limit: Duration) {
        self.words.wait(NOWHERE, 0, limit);
    }

    /// Frees the places of the process that had this process's slot before.
    pub(crate) fn forget_predecessor(&self) {
        for (word, index) in self.waiters() {
            if process_of(word) == Some(self.process) {
                let _ = self.words.compare_exchange(waiter(index), word, 0);
            }
        }
    }

    /// Frees the places of all dead waiters.
    pub(crate) fn forget_dead(&self, deaths: &Deaths) -> Result<(), MediumError> {
        for (word, index) in self.waiters() {
            self.forget_if_dead(deaths, index, word)?;
        }
        Ok(())
    }

    /// Frees the oldest waiter's place if its process is dead.
    pub(crate) fn forget_oldest_if_dead(&self, deaths: &Deaths) -> Result<(), MediumError> {
        match self.oldest() {
            Some((index, word)) => self.forget_if_dead(deaths, index, word).map(drop),
            None => Ok(()),
        }
    }

    /// Frees the place of a waiter if the waiter's process is dead. Returns whether that process is dead.
    fn forget_if_dead(&self, deaths: &Deaths, index: usize, word: u64) -> Result<bool, MediumError> {
        let Some(process) = process_of(word) else { return Ok(true) };
        if !deaths.is_dead(process)? {
            return Ok(false);
        }
        if self.words.compare_exchange(waiter(index), word, 0).is_ok() {
            deaths.recovered.fetch_add(1, Ordering::Relaxed);
        }
        Ok(true)
    }
}

/// A waiter's place in the queue. Dropping this value frees the place.
pub(crate) struct Waiter<'a> {
    queue: &'a Queue,
    pub(crate) index: usize,
}

impl Waiter<'_> {
    /// Stamps the place, which tells the others that the waiter is alive and not stopped.
    pub(crate) fn show(&self) {
        self.queue.words.store(place(self.index) + SEEN, self.queue.words.segment().clock_ns());
    }

    /// Returns how often this waiter was woken. The caller passes this to [`Waiter::sleep`].
    pub(crate) fn wakes(&self) -> u64 {
        self.queue.words.load(place(self.index) + FUTEX)
    }

    /// Sleeps for at most `limit`. Does not sleep if the waiter was woken after `Waiter::wakes` returned
    /// `seen`. Returns whether the waiter has been woken by now.
    pub(crate) fn sleep(&self, seen: u64, limit: Duration) -> bool {
        let (words, at) = (&self.queue.words, place(self.index));
        words.store(at + ASLEEP, 1);
        words.wait(at + FUTEX, (seen & 0xffff_ffff) as u32, limit);
        words.store(at + ASLEEP, 0);
        self.wakes() != seen
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.queue.words.store(waiter(self.index), 0);
    }
}
