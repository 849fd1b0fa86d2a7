//! Making groups durable: one leader writes for all that are sealed, the others sleep.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Group;
use super::lead::{Leader, Watch};
use super::words::{
    DIRECT_END, DURABLE, ENDS, GROUP_NUMBERS, HARDENED, Mark, RING_BYTES, RING_SHARE, SLEEPERS, SLEEPING,
    TAIL,
};
use crate::JournalError;
use crate::engine::{DurabilityWaiter, Led, Ticket};

/// How long a sleeper sleeps before it looks whether the leader is still alive.
const SLICE: Duration = Duration::from_millis(20);

impl Group {
    /// Closes a group, if it is open: what is sealed from now on belongs to the next. Returns where
    /// it ends, as long as it is one of the two that are not durable.
    fn close(&self, group: u64) -> u64 {
        loop {
            let word = self.get(TAIL);
            let tail = Mark::unpack(word);
            if tail.group != group {
                // A leader that died may have closed it, and the next is already open.
                return self.get(ENDS[(group % 2) as usize]);
            }
            let closed = Mark { closed: true, ..tail };
            if tail.closed || self.exchange(TAIL, word, closed.pack()).is_ok() {
                return tail.position;
            }
        }
    }

    /// Makes everything durable that is sealed now, unless somebody else has taken over.
    pub(super) fn flush(&self, leader: &Leader<'_>) -> Result<(), JournalError> {
        self.check()?;
        let goal = self.tail().position;
        loop {
            let durable = self.get(DURABLE);
            if Mark::unpack(durable).position >= goal || !self.flush_group(leader, durable)? {
                return Ok(());
            }
        }
    }

    /// Makes the group durable that follows what is; whether it was still up to this leader.
    fn flush_group(&self, leader: &Leader<'_>, durable: u64) -> Result<bool, JournalError> {
        let before = Mark::unpack(durable);
        let group = (before.group + 1) % GROUP_NUMBERS;
        let end = self.close(group);
        // Else written past the ring.
        if self.get(DIRECT_END) != end && !self.write_group(leader, durable, end)? {
            return Ok(false);
        }
        Ok(self.made_durable(durable, Mark { position: end, group, closed: false }))
    }

    /// Tells everybody that the group behind what is durable is too, unless somebody else has.
    pub(super) fn made_durable(&self, before: u64, mark: Mark) -> bool {
        if self.exchange(DURABLE, before, mark.pack()).is_err() {
            return false;
        }
        if self.is_ordered() {
            self.advance(HARDENED, mark.position);
        }
        self.wake(mark.group, u32::MAX >> 1);
        true
    }

    /// Wakes those that wait for a group, without a system call when nobody does.
    fn wake(&self, group: u64, count: u32) {
        let word = self.base + SLEEPERS[(group % 2) as usize];
        self.segment.fetch_add(word, 1);
        if self.segment.load(word + SLEEPING) != 0 {
            self.segment.wake(word, count);
        }
    }

    /// Writes the closed group from the ring with one write, unless it is no longer this leader's to
    /// write: `durable` is what its place was found by.
    fn write_group(&self, leader: &Leader<'_>, durable: u64, end: u64) -> Result<bool, JournalError> {
        let generation = self.generation();
        let start = self.group_start(Mark::unpack(durable).position);
        let offset = self.offset_of(generation, start);
        let bytes = end.checked_sub(start).filter(|bytes| *bytes <= RING_BYTES);
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        buffer.resize(bytes.unwrap_or(0).next_multiple_of(self.block_bytes()) as usize);
        let whole = buffer.as_mut_slice();
        let (content, padding) = whole.split_at_mut(bytes.unwrap_or(0) as usize);
        padding.fill(0);
        self.read_ring(start, content);
        // What has been read so far is this group's if the one before it is still the last that is
        // durable: only then are its place and its bytes in the ring nobody else's. The write that
        // follows may come late, and is of the same bytes as any other of this group.
        self.segment.fence();
        if self.get(DURABLE) != durable || !leader.leads() {
            return Ok(false);
        }
        // Poisoned with the buffer still locked, for `force`.
        let poison = |error| self.poison(error);
        bytes.ok_or(JournalError::Unexpected("a group that ends before it begins")).map_err(poison)?;
        let completed = self.framing.complete(content, generation, offset, self.is_ordered());
        let transactions = completed.map_err(poison)?;
        // Whoever sealed the last of it may have made the file longer, durably.
        self.learn_len(offset + whole.len() as u64).map_err(poison)?;
        let committed = self.block.commit(offset, whole, self.options.durability);
        committed.map_err(|source| self.failed(source)).map_err(poison)?;
        self.activity.groups.fetch_add(1, Ordering::Relaxed);
        self.activity.led_transactions.fetch_add(transactions, Ordering::Relaxed);
        Ok(true)
    }

    /// Wakes one committer of the group that is open or waiting, to lead it.
    pub(super) fn wake_next_leader(&self) {
        let tail = self.tail();
        if tail.position != self.durable().position {
            self.wake(tail.group, 1);
        }
    }

    /// Makes everything that is sealed now durable.
    pub(crate) fn drain(&self) -> Result<(), JournalError> {
        self.wait_for(self.tail())
    }

    /// Makes everything that is sealed now durable, even where commits are acknowledged before
    /// they are (invariant 5).
    pub(crate) fn force(&self) -> Result<(), JournalError> {
        self.drain()?;
        if self.get(HARDENED) >= self.durable().position {
            return Ok(());
        }
        // One flush of this process at a time: of two, only one is told that it failed.
        let _buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        self.check()?;
        let durable = self.durable().position;
        if self.get(HARDENED) >= durable {
            return Ok(());
        }
        self.block.flush().map_err(|source| self.poison(self.failed(source)))?;
        self.advance(HARDENED, durable);
        Ok(())
    }

    fn wait_for(&self, mark: Mark) -> Result<(), JournalError> {
        let sleepers = SLEEPERS[(mark.group % 2) as usize];
        let mut watch = Watch::default();
        loop {
            let seen = self.get(sleepers);
            if self.durable().position >= mark.position {
                return Ok(());
            }
            self.check()?;
            if let Some(leader) = self.try_lead() {
                self.flush(&leader)?;
                continue;
            }
            self.activity.sleeps.fetch_add(1, Ordering::Relaxed);
            self.segment.fetch_add(self.base + sleepers + SLEEPING, 1);
            self.segment.wait(self.base + sleepers, (seen & 0xffff_ffff) as u32, SLICE);
            self.segment.fetch_add(self.base + sleepers + SLEEPING, u64::MAX);
            if self.get(sleepers) == seen {
                self.depose_dead_leader()?;
                if let Some(leader) = self.take_over(&mut watch)? {
                    self.flush(&leader)?;
                }
            }
        }
    }
}

/// What is called without the log's lock, and left by a panic if it is dropped (invariant 9).
struct Unfinished<'a>(&'a Group);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.panicked.store(true, Ordering::Relaxed);
    }
}

impl Group {
    fn unless_it_panics<T>(&self, work: impl FnOnce() -> T) -> T {
        let unfinished = Unfinished(self);
        let result = work();
        std::mem::forget(unfinished);
        result
    }
}

impl DurabilityWaiter for Group {
    fn wait(&self, ticket: Ticket) -> Result<(), JournalError> {
        self.unless_it_panics(|| self.wait_for(Mark::unpack(ticket.get())))
    }

    fn wait_all(&self) -> Result<(), JournalError> {
        self.unless_it_panics(|| self.drain())
    }

    fn make_room(&self) -> Result<(), JournalError> {
        if self.has_room(RING_SHARE) { Ok(()) } else { self.wait_all() }
    }

    fn force(&self) -> Result<(), JournalError> {
        self.unless_it_panics(|| Self::force(self))
    }

    fn settle(&self) -> Result<bool, JournalError> {
        self.unless_it_panics(|| Self::settle(self))
    }

    fn led(&self) -> Led {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Led { groups: count(&self.activity.groups), transactions: count(&self.activity.led_transactions) }
    }
}
