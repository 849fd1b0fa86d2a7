//! Making groups durable: one leader writes all sealed transactions, and the other committers sleep.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Group;
use super::lead::{Leader, Watch};
use super::words::{
    DIRECT_END, DURABLE, ENDS, GROUP_NUMBERS, HARDENED, Mark, RING_BYTES, RING_SHARE, SLEEPERS, SLEEPING,
    TAIL,
};
use crate::LogError;
use crate::engine::{DurabilityWaiter, Led, Ticket};

/// How long a committer sleeps before it checks whether the leader is still alive.
const SLICE: Duration = Duration::from_millis(20);

impl Group {
    /// Closes a group, if it is open: transactions sealed from now on belong to the next group. Returns where the group
    /// ends. The group has to be one of the two that are not durable.
    fn close(&self, group: u64) -> u64 {
        loop {
            let word = self.get(TAIL);
            let tail = Mark::unpack(word);
            if tail.group != group {
                // A leader that died may have closed the group, and the next group is already open.
                return self.get(ENDS[(group % 2) as usize]);
            }
            let closed = Mark { closed: true, ..tail };
            if tail.closed || self.exchange(TAIL, word, closed.pack()).is_ok() {
                return tail.position;
            }
        }
    }

    /// Makes durable everything that is sealed now, unless another thread has taken over the lead.
    pub(super) fn flush(&self, leader: &Leader<'_>) -> Result<(), LogError> {
        self.check()?;
        let goal = self.tail().position;
        loop {
            let durable = self.get(DURABLE);
            if Mark::unpack(durable).position >= goal || !self.flush_group(leader, durable)? {
                return Ok(());
            }
        }
    }

    /// Makes the first group durable that is not yet. Returns whether this leader was still the one to do so.
    fn flush_group(&self, leader: &Leader<'_>, durable: u64) -> Result<bool, LogError> {
        let before = Mark::unpack(durable);
        let group = (before.group + 1) % GROUP_NUMBERS;
        let end = self.close(group);
        // If `DIRECT_END` is the end of the group, the group was written to the device when it was sealed.
        if self.get(DIRECT_END) != end && !self.write_group(leader, durable, end)? {
            return Ok(false);
        }
        Ok(self.made_durable(durable, Mark { position: end, group, closed: false }))
    }

    /// Publishes to all processes that the group after `before` is durable, unless another leader has done so. With
    /// `durability=normal` it is only written.
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

    /// Wakes the threads that wait for a group, without a system call when there are none.
    fn wake(&self, group: u64, count: u32) {
        let word = self.base + SLEEPERS[(group % 2) as usize];
        self.segment.fetch_add(word, 1);
        if self.segment.load(word + SLEEPING) != 0 {
            self.segment.wake(word, count);
        }
    }

    /// Writes the closed group from the ring with one write, unless another leader has done so or has taken over.
    /// `durable` is the value of `DURABLE` from which this leader computed the group's place.
    fn write_group(&self, leader: &Leader<'_>, durable: u64, end: u64) -> Result<bool, LogError> {
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
        // If `DURABLE` has not changed, then the bytes that were read are this group's: only until then do its place,
        // and its bytes in the ring, belong to no other group. The write that follows may come late, but it writes the
        // same bytes as any other write of this group.
        self.segment.fence();
        if self.get(DURABLE) != durable || !leader.leads() {
            return Ok(false);
        }
        // Poison while the buffer is still locked, because `force` checks under that lock.
        let poison = |error| self.poison(error);
        bytes.ok_or(LogError::Unexpected("a group that ends before it begins")).map_err(poison)?;
        let completed = self.framing.complete(content, generation, offset, self.is_ordered());
        let transactions = completed.map_err(poison)?;
        // The writer that sealed the group's last transaction may have extended the file, durably.
        self.learn_len(offset + whole.len() as u64).map_err(poison)?;
        let committed = self.block.commit(offset, whole, self.options.durability);
        committed.map_err(|source| self.failed(source)).map_err(poison)?;
        self.activity.groups.fetch_add(1, Ordering::Relaxed);
        self.activity.led_transactions.fetch_add(transactions, Ordering::Relaxed);
        Ok(true)
    }

    /// Wakes one committer of the group that is open or waits, to lead it.
    pub(super) fn wake_next_leader(&self) {
        let tail = self.tail();
        if tail.position != self.durable().position {
            self.wake(tail.group, 1);
        }
    }

    /// Makes durable everything that is sealed now.
    pub(crate) fn drain(&self) -> Result<(), LogError> {
        self.wait_for(self.tail())
    }

    /// Makes durable everything that is sealed now, even where commits are acknowledged before they are durable
    /// (invariant 5).
    pub(crate) fn force(&self) -> Result<(), LogError> {
        self.drain()?;
        if self.get(HARDENED) >= self.durable().position {
            return Ok(());
        }
        // Only one thread of this process flushes at a time: the kernel reports a failed flush to only one of two
        // callers.
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

    fn wait_for(&self, mark: Mark) -> Result<(), LogError> {
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

/// Guards a call that runs without the log's lock: if a panic drops this, the log is in doubt (invariant 9).
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
    fn wait(&self, ticket: Ticket) -> Result<(), LogError> {
        self.unless_it_panics(|| self.wait_for(Mark::unpack(ticket.get())))
    }

    fn wait_all(&self) -> Result<(), LogError> {
        self.unless_it_panics(|| self.drain())
    }

    fn make_room(&self) -> Result<(), LogError> {
        if self.has_room(RING_SHARE) { Ok(()) } else { self.wait_all() }
    }

    fn force(&self) -> Result<(), LogError> {
        self.unless_it_panics(|| Self::force(self))
    }

    fn settle(&self) -> Result<bool, LogError> {
        self.unless_it_panics(|| Self::settle(self))
    }

    fn led(&self) -> Led {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Led { groups: count(&self.activity.groups), transactions: count(&self.activity.led_transactions) }
    }
}
