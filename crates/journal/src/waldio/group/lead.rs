//! Leading: one writes for all that are sealed, the others sleep.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use duralite_logfmt::waldio::{GROUP_HEADER_BYTES, GroupHeader, Layout, TxHeader, body_hash};

use super::Group;
use super::words::{
    DIRECT_END, DURABLE, ENDS, GROUP_NUMBERS, HARDENED, LEADER, Mark, RING_BYTES, SLEEPERS, SLEEPING, TAIL,
};
use crate::JournalError;
use crate::engine::{Committer, Ticket};

/// How long a sleeper sleeps before it looks whether the leader is still alive.
const SLICE: Duration = Duration::from_millis(20);

/// The leader lock, held.
pub(super) struct Leader<'a>(&'a Group);

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.0.set(LEADER, 0);
        self.0.wake_next_leader();
    }
}

impl Group {
    pub(super) fn try_lead(&self) -> Option<Leader<'_>> {
        self.exchange(LEADER, 0, self.own()).ok().map(|_| Leader(self))
    }

    /// Waits for the leader lock.
    pub(super) fn lead(&self) -> Result<Leader<'_>, JournalError> {
        loop {
            if let Some(leader) = self.try_lead() {
                return Ok(leader);
            }
            self.depose_dead_leader()?;
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Frees the leader lock if its holder is dead.
    pub(super) fn depose_dead_leader(&self) -> Result<(), JournalError> {
        let holder = self.get(LEADER);
        if holder == 0 || holder == self.own() {
            return Ok(());
        }
        let alive = self.segment.is_alive(holder as usize - 1).map_err(|source| self.failed(source))?;
        if !alive {
            let _ = self.exchange(LEADER, holder, 0);
        }
        Ok(())
    }

    /// Closes the open group: what is sealed from now on belongs to the next.
    pub(super) fn close(&self) -> Mark {
        loop {
            let word = self.get(TAIL);
            let tail = Mark::unpack(word);
            let closed = Mark { closed: true, ..tail };
            if tail.closed || self.exchange(TAIL, word, closed.pack()).is_ok() {
                return closed;
            }
        }
    }

    /// Makes everything durable that is sealed now.
    pub(super) fn flush(&self, leader: &Leader<'_>) -> Result<(), JournalError> {
        self.check()?;
        self.finish_switch(leader)?;
        let goal = self.tail().position;
        while self.durable().position < goal {
            self.flush_group(leader)?;
        }
        Ok(())
    }

    /// Makes the oldest group durable that is not.
    pub(super) fn flush_group(&self, _leader: &Leader<'_>) -> Result<(), JournalError> {
        let durable = self.durable();
        let group = (durable.group + 1) % GROUP_NUMBERS;
        let tail = self.tail();
        // A leader that died may have closed a group behind which the next is already open.
        let tail = if tail.group == group { self.close() } else { tail };
        let end = if tail.group == group { tail.position } else { self.get(ENDS[(group % 2) as usize]) };
        if self.get(DIRECT_END) != end {
            // Not written past the ring.
            self.write_group(self.group_start(durable.position), end).map_err(|error| self.poison(error))?;
        }
        if self.is_ordered() {
            self.set(HARDENED, end);
        }
        self.set(DURABLE, Mark { position: end, group, closed: false }.pack());
        self.wake(group, u32::MAX >> 1);
        Ok(())
    }

    /// Wakes those that wait for a group, without a system call when nobody does.
    pub(super) fn wake(&self, group: u64, count: u32) {
        let word = self.base + SLEEPERS[(group % 2) as usize];
        self.segment.fetch_add(word, 1);
        if self.segment.load(word + SLEEPING) != 0 {
            self.segment.wake(word, count);
        }
    }

    /// Writes the closed group from the ring with one write.
    pub(super) fn write_group(&self, start: u64, end: u64) -> Result<(), JournalError> {
        let generation = self.generation();
        let bytes = end.checked_sub(start).filter(|bytes| *bytes <= 2 * RING_BYTES);
        let bytes = bytes.ok_or(JournalError::Unexpected("a group that ends before it begins"))? as usize;
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        buffer.resize(bytes.next_multiple_of(self.block_bytes() as usize));
        let whole = buffer.as_mut_slice();
        let (content, padding) = whole.split_at_mut(bytes);
        padding.fill(0);
        self.read_ring(start, content);
        let offset = self.offset_of(generation, start);
        let transactions = match self.superblock.layout {
            Layout::Delta => self.complete_header(content, generation, offset)?,
            Layout::Embedded => 1,
        };
        // Whoever sealed the last of it may have made the file longer, durably.
        self.learn_len(offset + whole.len() as u64)?;
        self.block.commit(offset, whole, self.options.durability).map_err(|source| self.failed(source))?;
        self.activity.groups.fetch_add(1, Ordering::Relaxed);
        self.activity.led_transactions.fetch_add(transactions, Ordering::Relaxed);
        Ok(())
    }

    /// Fills in the header of a group of the `delta` layout.
    pub(super) fn complete_header(
        &self,
        group: &mut [u8],
        generation: u64,
        offset: u64,
    ) -> Result<u64, JournalError> {
        let corrupt = |what| JournalError::Corrupt { offset, what };
        let id = self.superblock.log_id;
        let (head, body) = group.split_at_mut(GROUP_HEADER_BYTES as usize);
        let (mut at, mut transactions, mut first_sequence) = (0, 0, 0);
        while at < body.len() {
            let tx = TxHeader::decode(&body[at..]).map_err(corrupt)?;
            if transactions == 0 {
                first_sequence = tx.sequence;
            }
            transactions += 1;
            at += tx.tx_bytes as usize;
        }
        let header = GroupHeader {
            first_sequence,
            transactions,
            bytes: GROUP_HEADER_BYTES + body.len() as u64,
            ordered: self.is_ordered(),
            body_hash: body_hash(id, generation, offset, body),
        };
        head.copy_from_slice(&header.encode(id, generation, offset));
        Ok(u64::from(transactions))
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
    pub(crate) fn harden(&self) -> Result<(), JournalError> {
        self.drain()?;
        if self.get(HARDENED) >= self.durable().position {
            return Ok(());
        }
        let _leader = self.lead()?;
        let durable = self.durable().position;
        self.block.flush().map_err(|source| self.poison(self.failed(source)))?;
        self.set(HARDENED, durable);
        Ok(())
    }

    pub(super) fn wait_for(&self, mark: Mark) -> Result<(), JournalError> {
        let sleepers = SLEEPERS[(mark.group % 2) as usize];
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

impl Committer for Group {
    fn wait(&self, ticket: Ticket) -> Result<(), JournalError> {
        self.unless_it_panics(|| self.wait_for(Mark::unpack(ticket.get())))
    }

    fn wait_all(&self) -> Result<(), JournalError> {
        self.unless_it_panics(|| self.drain())
    }
}
