//! Group commit: writers append transactions under SQLite's WRITE lock, and one leader makes them durable for all
//! committers that wait.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duralite_medium::{MediumError, PROCESS_SLOTS};

use crate::LogError;
use crate::engine::{DurabilityWaiter, Led, Ticket};
use crate::shared::group::{
    ALONE, AREA_BYTES, DIRECT_END, DURABLE, ENDS, EPOCH, FLUSHED, FRONTIER, GENERATION, GROUP_NUMBERS,
    Geometry, Group, INTENT, LEADER, LENGTH, Mark, RING_BYTES, RING_SHARE, SLEEPERS, SLEEPING, TAIL,
    process_of, writing,
};

// Appending, under SQLite's WRITE lock.

/// The bytes of a transaction.
pub(crate) enum Content<'a> {
    /// Bytes that do not depend on the place where they are stored.
    Anywhere(&'a [u8]),
    /// The number of bytes, and a function that makes the bytes once their byte position is known.
    At(u64, &'a mut dyn FnMut(Placing) -> Vec<u8>),
}

impl Content<'_> {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Anywhere(bytes) => bytes.len() as u64,
            Self::At(bytes, _) => *bytes,
        }
    }
}

/// Where a transaction is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placing {
    /// Byte position of the transaction's first byte.
    pub(crate) at: u64,
    /// Whether the transaction begins a group.
    pub(crate) starts_group: bool,
}

impl Group {
    /// Seals a transaction that fits into the ring. Returns the transaction's place, and the ticket with which the
    /// committer waits. If the transaction begins a group, `time_ms` is the group's time.
    pub(crate) fn append(
        &self,
        mut content: Content<'_>,
        time_ms: u64,
    ) -> Result<(Placing, Ticket), LogError> {
        loop {
            self.check()?;
            self.refuse_during_switch()?;
            let word = self.get(TAIL);
            let tail = Mark::unpack(word);
            let group_start = self.group_start(tail.position);
            let at = if tail.closed { group_start + self.group_header_bytes() } else { tail.position };
            let end = at + content.len();
            if !self.is_free(end) || tail.closed && !self.may_open_behind(tail) {
                self.drain()?;
                continue;
            }
            self.reserve(end)?;
            let placing = Placing { at, starts_group: tail.closed };
            if self.get(DIRECT_END) > tail.position {
                // A process announced a direct write to the device, and died before it published that write. Withdraw
                // the announcement.
                self.set(DIRECT_END, tail.position);
            }
            self.set(FRONTIER, end.max(self.get(FRONTIER)));
            // After this fence, a reader that sees any byte written below, and then loads `FRONTIER`, sees the new
            // value of `FRONTIER`.
            self.segment.fence();
            if tail.closed {
                if group_start - tail.position < self.block_bytes() {
                    self.write_ring(tail.position, &vec![0; (group_start - tail.position) as usize]);
                }
                if self.group_header_bytes() > 0 {
                    self.write_ring(group_start, &self.framing.placeholder(self.generation(), time_ms));
                }
            }
            match &mut content {
                Content::Anywhere(bytes) => self.write_ring(at, bytes),
                Content::At(_, make) => self.write_ring(at, &make(placing)),
            }
            if tail.closed {
                self.set(ENDS[(tail.group % 2) as usize], tail.position);
            }
            let group = tail.group + u64::from(tail.closed);
            let new = Mark { position: end, group, closed: false }.pack();
            if self.exchange(TAIL, word, new).is_ok() {
                return Ok((placing, Ticket::new(new)));
            }
        }
    }

    fn refuse_during_switch(&self) -> Result<(), LogError> {
        if self.get(INTENT) == self.get(GENERATION) {
            return Ok(());
        }
        Err(LogError::Unexpected("a transaction of a generation that is over"))
    }

    /// Returns whether the ring has space up to a byte position. A transaction may overwrite the ring's oldest bytes only
    /// once they are durable.
    fn is_free(&self, end: u64) -> bool {
        end.next_multiple_of(self.block_bytes()) <= self.durable().position + RING_BYTES
    }

    /// The last group is closed. Returns whether a writer may open another group after it. It may not if two groups are
    /// not durable yet, because `ENDS` has entries for only two groups, and a third group would overwrite the entry of
    /// the first.
    fn may_open_behind(&self, tail: Mark) -> bool {
        tail.group.wrapping_sub(self.durable().group) % GROUP_NUMBERS <= 1
    }

    /// Returns whether a transaction of this size can be appended without waiting.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        let tail = self.tail();
        let at = self.group_start(tail.position) + self.group_header_bytes();
        self.is_free(at + bytes) && (!tail.closed || self.may_open_behind(tail))
    }

    /// Makes sure that the file reaches to a byte position, even after a power loss.
    pub(crate) fn reserve(&self, end: u64) -> Result<(), LogError> {
        let offset = self.offset_of(self.generation(), end).next_multiple_of(self.block_bytes());
        if offset > self.get(LENGTH) {
            self.extend(offset)?;
        }
        self.learn_len(offset)
    }

    /// Allocates the first blocks for groups. The allocation also makes durable everything before them in the file.
    pub(crate) fn make_first_blocks(&self) -> Result<(), LogError> {
        let first = self.first_bytes();
        self.reach(first, first)
    }

    /// Returns whether the file has space for any group. Without such space, the log holds nothing that needs to be
    /// durable.
    pub(crate) fn has_blocks(&self) -> bool {
        self.get(LENGTH) > self.geometry.data_offset
    }

    /// Returns the length in bytes that the file has once its first blocks are allocated. The file system has to have
    /// space for these blocks.
    pub(crate) fn first_bytes(&self) -> u64 {
        let Geometry { data_offset, block_bytes, limit_bytes, .. } = self.geometry;
        (data_offset + first_step(block_bytes)).min(limit_bytes) / AREA_BYTES * AREA_BYTES
    }

    /// Makes the file reach to an offset, and makes that length durable. Syncs the length even if the file is long
    /// enough already, because the process that allocated the space may not have synced it. If the length were not
    /// durable, each commit would have to make it durable with its own write. The medium does not promise that, and
    /// every commit would cost a transaction of the file system's journal.
    pub(super) fn extend(&self, offset: u64) -> Result<(), LogError> {
        self.block.refresh_len().map_err(|source| self.failed(source))?;
        let length = self.block.len();
        let (wanted, least) = if offset <= length {
            (length, length)
        } else {
            let limit = self.geometry.limit_bytes;
            if offset > limit {
                return Err(LogError::LimitReached { limit_bytes: limit });
            }
            let step = step(length.saturating_sub(self.geometry.data_offset), self.geometry.block_bytes);
            // Take at most half of the free space. A checkpoint needs the other half to write the contents of the log
            // to the database file.
            let step = step.min(self.block.free_bytes() / 2);
            let wanted = (length + step).max(offset).min(limit) / AREA_BYTES * AREA_BYTES;
            let least = offset.next_multiple_of(AREA_BYTES);
            (wanted.max(least), least)
        };
        self.reach(wanted, least)
    }

    /// Makes the file `wanted` bytes long, or at least `least` bytes if there is not enough space. The new length is
    /// durable on return.
    ///
    /// Growing the file ends with a flush. While it grows the file, this process writes no group: if that flush failed,
    /// the kernel might report the failure only to this call, and not to the flush of the group's leader. A failed
    /// flush poisons the log.
    fn reach(&self, wanted: u64, least: u64) -> Result<(), LogError> {
        let _buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        self.check()?;
        let reached = match self.block.preallocate(wanted) {
            // A smaller step may still fit.
            Err(MediumError::NoSpace) if wanted > least => self.block.preallocate(least).map(|()| least),
            done => done.map(|()| wanted),
        };
        let reached = reached.map_err(|source| match source {
            MediumError::NoSpace => LogError::NoSpace { dir: self.geometry.path.clone() },
            source if source.is_failed_flush() => self.poison(self.failed(source)),
            source => self.failed(source),
        })?;
        self.set(LENGTH, reached);
        Ok(())
    }

    /// Returns the byte position at which a transaction that bypasses the ring has to be written. On return everything
    /// before that position is as durable as the setting `durability` demands, and the last group is closed.
    pub(crate) fn begin_direct(&self) -> Result<u64, LogError> {
        self.drain()?;
        self.refuse_during_switch()?;
        Ok(self.group_start(self.tail().position))
    }

    /// Seals a group that its writer has written to the device, bypassing the ring, at the byte position that
    /// [`Group::begin_direct`] gave. The group is as durable as the setting `durability` demands. The holder of WRITE
    /// calls this method, so no other process appends, and a leader finds nothing to write.
    pub(crate) fn publish_direct(&self, end: u64) -> Result<Ticket, LogError> {
        self.check()?;
        let (word, durable) = (self.get(TAIL), self.get(DURABLE));
        let (tail, last) = (Mark::unpack(word), Mark::unpack(durable));
        if !tail.closed || tail.position != last.position {
            return Err(LogError::Unexpected("a large transaction behind one that is not durable"));
        }
        let new = Mark { position: end, group: tail.group + 1, closed: true };
        // Tell a process that becomes leader that there is nothing to write.
        self.set(DIRECT_END, end);
        let sealed = self.exchange(TAIL, word, new.pack());
        sealed.map_err(|_| LogError::Unexpected("two writers at once"))?;
        self.made_durable(durable, Mark { closed: false, ..new });
        Ok(Ticket::new(new.pack()))
    }
}

/// The number of blocks by which a log grows at first. The number is small, because new blocks have to be filled with
/// zeros, for which even a program that commits only once has to wait.
const FIRST_BLOCKS: u64 = 16;
/// The number of blocks by which a log of medium size grows. A log is of medium size if it has at least a third of this
/// number of blocks, and at most four times this number.
const STEP_BLOCKS: u64 = 256;
const LARGEST_STEP: u64 = 16 << 20;

/// Returns the number of bytes by which a log grows at first.
fn first_step(block_bytes: u32) -> u64 {
    u64::from(block_bytes) * FIRST_BLOCKS
}

/// Returns the number of bytes by which a log grows next. `bytes` is the size of the blocks that it has for groups.
///
/// Each growth costs writing zeros to the new blocks, and a transaction of some six blocks in the file system's
/// journal. So a small log grows to four times its size, to reach a useful size in few steps. A longer log grows by
/// [`STEP_BLOCKS`], and a very long one by a quarter or less, so that few blocks are filled with zeros and never used.
/// Most logs stop at some 1,000 blocks, because SQLite checkpoints the database after 1,000 pages. Their last steps are
/// of [`STEP_BLOCKS`].
fn step(bytes: u64, block_bytes: u32) -> u64 {
    let usual = u64::from(block_bytes) * STEP_BLOCKS;
    bytes.saturating_mul(3).min(usual).max(bytes / 4).clamp(first_step(block_bytes), LARGEST_STEP)
}

// Making groups durable: one leader writes all sealed transactions, while the other committers sleep.

/// How long a committer sleeps before it checks whether the leader is still alive.
const SLICE: Duration = Duration::from_millis(20);

impl Group {
    /// Closes a group, if the group is open. Transactions sealed from now on belong to the next group. Returns where the
    /// group ends. `group` has to be one of the two groups that may not be durable yet.
    fn close(&self, group: u64) -> u64 {
        loop {
            let word = self.get(TAIL);
            let tail = Mark::unpack(word);
            if tail.group != group {
                // A leader that died may have closed this group, and the next group may be open already.
                return self.get(ENDS[(group % 2) as usize]);
            }
            let closed = Mark { closed: true, ..tail };
            if tail.closed || self.exchange(TAIL, word, closed.pack()).is_ok() {
                return tail.position;
            }
        }
    }

    /// Writes and flushes, group by group, everything that is sealed at the time of the call. Stops if another thread
    /// has taken over as leader. [`Group::write_group`] writes and flushes one group.
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

    /// Makes durable the oldest group that is not durable yet. Returns `false` if another leader has done so or has
    /// taken over.
    fn flush_group(&self, leader: &Leader<'_>, durable: u64) -> Result<bool, LogError> {
        let before = Mark::unpack(durable);
        let group = (before.group + 1) % GROUP_NUMBERS;
        let end = self.close(group);
        // If `DIRECT_END` is the end of the group, the writer wrote the group to the device when sealing it.
        if self.get(DIRECT_END) != end && !self.write_group(leader, durable, end)? {
            return Ok(false);
        }
        Ok(self.made_durable(durable, Mark { position: end, group, closed: false }))
    }

    /// Publishes to all processes that the group after `before` is durable. With `durability=normal` the group is only
    /// written. Returns `false` if another leader has published that already.
    pub(super) fn made_durable(&self, before: u64, mark: Mark) -> bool {
        if self.exchange(DURABLE, before, mark.pack()).is_err() {
            return false;
        }
        if self.is_ordered() {
            self.advance(FLUSHED, mark.position);
        }
        self.wake(mark.group, u32::MAX >> 1);
        true
    }

    /// Wakes the threads that wait for a group. Makes no system call if there are none.
    fn wake(&self, group: u64, count: u32) {
        let word = SLEEPERS[(group % 2) as usize];
        self.words.fetch_add(word, 1);
        if self.get(word + SLEEPING) != 0 {
            self.words.wake(word, count);
        }
    }

    /// Makes a closed group durable: writes it and, with `durability=full`, flushes it.
    ///
    /// One write writes the closed group from the ring. Does not write if another leader has done so or has taken over.
    /// `durable` is the value of `DURABLE` from which this leader computed the group's offset in the file.
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
        // Check that the bytes just read belong to this group. They do if `DURABLE` has not changed, because another
        // group can get this group's place in the file and in the ring only after `DURABLE` has moved. Even if this
        // leader is stopped here and writes late, it writes the same bytes as any other leader of this group.
        self.segment.fence();
        if self.get(DURABLE) != durable || !leader.leads() {
            return Ok(false);
        }
        // Poison the log while the buffer is still locked, because `force` checks for poison under that lock.
        let poison = |error| self.poison(error);
        bytes.ok_or(LogError::Unexpected("a group that ends before it begins")).map_err(poison)?;
        let completed = self.framing.complete(content, generation, offset, self.is_ordered());
        let transactions = completed.map_err(poison)?;
        // The writer that sealed the group's last transaction may have extended the file, so ask for the file's length.
        self.learn_len(offset + whole.len() as u64).map_err(poison)?;
        let committed = self.block.write_durably(offset, whole, self.options.durability);
        committed.map_err(|source| self.failed(source)).map_err(poison)?;
        // Between this process's write and its flush, another process's flush may have failed.
        self.check()?;
        self.activity.groups.fetch_add(1, Ordering::Relaxed);
        self.activity.led_transactions.fetch_add(transactions, Ordering::Relaxed);
        Ok(true)
    }

    /// Wakes one committer of the last group, if that group is not durable yet. That committer then leads the group.
    pub(super) fn wake_next_leader(&self) {
        let tail = self.tail();
        if tail.position != self.durable().position {
            self.wake(tail.group, 1);
        }
    }

    /// Waits until everything that was sealed before the call is as durable as the setting `durability` demands.
    pub(crate) fn drain(&self) -> Result<(), LogError> {
        self.wait_for(self.tail())
    }

    /// Makes everything that was sealed before the call survive a power loss, even if the settings let the log
    /// acknowledge commits earlier (invariant 5).
    pub(crate) fn force(&self) -> Result<(), LogError> {
        self.drain()?;
        if self.get(FLUSHED) >= self.durable().position {
            return Ok(());
        }
        // Only one thread of this process may flush at a time, because if a flush fails, the kernel reports the failure
        // to only one of two callers.
        let _buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        self.check()?;
        let durable = self.durable().position;
        if self.get(FLUSHED) >= durable {
            return Ok(());
        }
        self.block.flush().map_err(|source| self.poison(self.failed(source)))?;
        self.advance(FLUSHED, durable);
        Ok(())
    }

    /// Returns when everything up to `mark` is as durable as the setting `durability` demands. The calling thread
    /// writes and flushes if nobody else does: it leads if nobody leads, sleeps while another thread leads, and
    /// replaces a leader whose process has died or makes no progress.
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
            self.words.fetch_add(sleepers + SLEEPING, 1);
            self.words.wait(sleepers, (seen & 0xffff_ffff) as u32, SLICE);
            self.words.fetch_add(sleepers + SLEEPING, u64::MAX);
            if self.get(sleepers) == seen {
                self.depose_dead_leader()?;
                if let Some(leader) = self.take_over(&mut watch)? {
                    self.flush(&leader)?;
                }
            }
        }
    }
}

/// Guards a call that runs without the log's lock. If a panic drops this guard, the effect of the call is in doubt, so
/// the process stops using the log (invariant 9).
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

// The leader lock: who holds it, and for how long.
//
// **The word.** The leader is a thread. `LEADER` holds the slot of its process, and an epoch that every acquisition
// advances, so no two leaders ever store the same word. A thread that frees or takes over the lock does so by a
// compare-and-exchange of the whole word. If another thread has acquired the lock in between, the word has changed, and
// the exchange fails.
//
// **Stopped leaders.** A process may be stopped while one of its threads leads (SIGSTOP, a frozen container). The
// stopped thread still holds the lock, and no other process can distinguish it from a slow one. After a while another
// thread takes over the lock and writes the same group again. When the stopped thread continues, perhaps much later, it
// may still do one write. Before it was stopped, it had checked that its group was the oldest that was not durable. So
// it writes the bytes of that group, which are in the file already. That does no harm, unless a new generation has
// reused that part of the file. So each process counts in a word how many of its threads may write, and a new
// generation waits until no other living process has such a thread ([`Group::lead_alone`]).

/// How long a thread that waits for the leader lock sleeps before it tries again.
const PAUSE: Duration = Duration::from_micros(50);
/// The number of checks, one `PAUSE` apart, of whether the threads that may still write have finished. This number
/// applies while there is no leader. The threads may be about to finish their writes.
const LOOKS: u32 = 20;

/// The leader lock, while a thread holds it.
pub(super) struct Leader<'a> {
    group: &'a Group,
    token: u64,
}

impl Leader<'_> {
    /// Returns whether this thread still leads, that is, whether no other thread has taken over.
    pub(super) fn leads(&self) -> bool {
        self.group.get(LEADER) == self.token
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.group.count_writer(u64::MAX);
        if self.group.exchange(LEADER, self.token, freed(self.token)).is_ok() {
            self.group.wake_next_leader();
        }
    }
}

/// Returns the value of the leader word after the leader of `token` has freed it: the same epoch, and no leader.
fn freed(token: u64) -> u64 {
    token / EPOCH * EPOCH
}

/// The leader word that a thread is waiting for, and the time at which the thread first saw that word.
#[derive(Default)]
pub(super) struct Watch(Option<(u64, u64)>);

impl Group {
    fn count_writer(&self, by: u64) {
        self.words.fetch_add(writing(self.process), by);
    }

    /// Takes the leader lock if the word is still `seen`.
    pub(super) fn acquire(&self, seen: u64, alone: u64) -> Option<Leader<'_>> {
        // Count this thread before it takes the word. A thread that needs to be the only writer takes the word first,
        // and then reads the counts. So at least one of the two threads sees the other.
        self.count_writer(1);
        let token = (seen / EPOCH).wrapping_add(1).wrapping_mul(EPOCH) | alone | self.own();
        if self.exchange(LEADER, seen, token).is_ok() {
            return Some(Leader { group: self, token });
        }
        self.count_writer(u64::MAX);
        None
    }

    /// Takes the leader lock if it is free.
    pub(super) fn try_lead(&self) -> Option<Leader<'_>> {
        self.try_lead_as(0)
    }

    fn try_lead_as(&self, alone: u64) -> Option<Leader<'_>> {
        let word = self.get(LEADER);
        if process_of(word).is_some() { None } else { self.acquire(word, alone) }
    }

    /// Clears the words of the dead process that had this process's slot before.
    pub(super) fn bury_predecessor(&self) {
        self.set(writing(self.process), 0);
        let word = self.get(LEADER);
        if process_of(word) == Some(self.process) {
            let _ = self.exchange(LEADER, word, freed(word));
        }
    }

    /// Frees the leader lock if its holder is dead.
    pub(super) fn depose_dead_leader(&self) -> Result<(), LogError> {
        let word = self.get(LEADER);
        if let Some(process) = process_of(word)
            && !self.is_alive(process)?
        {
            // If a new process has got this slot and leads, the word has changed, and the exchange does nothing.
            let _ = self.exchange(LEADER, word, freed(word));
        }
        Ok(())
    }

    fn is_alive(&self, process: usize) -> Result<bool, LogError> {
        self.segment.is_alive(process).map_err(|source| self.failed(source))
    }

    /// Takes the leader lock from a leader that has made no progress for too long. This call waits longer if replaced
    /// leaders may still be writing, because the device may only be slow, and more writers would not help.
    pub(super) fn take_over(&self, watch: &mut Watch) -> Result<Option<Leader<'_>>, LogError> {
        let word = self.get(LEADER);
        if process_of(word).is_none() || word & ALONE != 0 && self.get(INTENT) != self.get(GENERATION) {
            // During a switch of generation only one process may write, so do not replace that leader.
            *watch = Watch::default();
            return Ok(None);
        }
        let now = self.segment.clock_ns();
        let since = match watch.0 {
            Some((seen, since)) if seen == word => since,
            _ => {
                *watch = Watch(Some((word, now)));
                return Ok(None);
            }
        };
        let patience = self.patience();
        let waited = now.saturating_sub(since);
        if waited < patience || waited < patience.saturating_mul(self.writers()?) {
            return Ok(None);
        }
        Ok(self.acquire(word, 0))
    }

    /// Returns the time at which a thread gives up waiting for other threads that may write, by the segment's clock in
    /// nanoseconds.
    fn deadline(&self) -> u64 {
        self.segment.clock_ns().saturating_add(self.patience().saturating_mul(5))
    }

    /// Returns how long to wait for a leader that makes no progress, in nanoseconds.
    fn patience(&self) -> u64 {
        u64::try_from(self.options.leader_patience.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns how many threads of living processes may write groups or generations to the device.
    fn writers(&self) -> Result<u64, LogError> {
        let mut count = 0;
        for process in 0..PROCESS_SLOTS {
            let writers = self.get(writing(process));
            if writers != 0 && self.is_alive(process)? {
                count += writers;
            }
        }
        Ok(count)
    }

    /// Takes the leader lock, and waits until no other thread can still write to the device, not even one that was
    /// stopped. Returns `Busy` if another process that may still write does not finish in time, because that process is
    /// stopped or its device hardly makes progress.
    pub(super) fn lead_alone(&self) -> Result<Leader<'_>, LogError> {
        let deadline = self.deadline();
        let mut watch = Watch::default();
        let leader = loop {
            self.check()?;
            if let Some(leader) = self.try_lead_as(ALONE) {
                break leader;
            }
            self.depose_dead_leader()?;
            // If this call has made the thread an ordinary leader, free the lock at once, because everything is durable
            // and such a leader has nothing to write. The next round takes the lock as `ALONE`.
            drop(self.take_over(&mut watch)?);
            self.pause_until(deadline)?;
        };
        while !self.is_alone()? {
            self.pause_until(deadline)?;
        }
        Ok(leader)
    }

    /// Does what [`Group::lead_alone`] does, but returns `None` where that method would wait.
    pub(super) fn try_lead_alone(&self) -> Result<Option<Leader<'_>>, LogError> {
        match self.try_lead_as(ALONE) {
            Some(leader) if self.is_alone()? => Ok(Some(leader)),
            _ => Ok(None),
        }
    }

    /// Returns whether the caller, which leads, is the only thread that may write.
    fn is_alone(&self) -> Result<bool, LogError> {
        Ok(self.writers()? <= 1)
    }

    fn pause_until(&self, deadline: u64) -> Result<(), LogError> {
        if self.segment.clock_ns() > deadline {
            return Err(self.stopped());
        }
        self.pause();
        Ok(())
    }

    pub(super) fn stopped(&self) -> LogError {
        let what = "the log cannot start over while another process is stopped in a write to it";
        LogError::Busy { path: self.geometry.path.clone(), what }
    }

    /// Lets other threads run for [`PAUSE`]. Sleeps on a word of the segment, although no thread wakes it, so that a
    /// simulated segment can observe the sleep.
    fn pause(&self) {
        let word = self.get(LEADER);
        self.words.wait(LEADER, (word & 0xffff_ffff) as u32, PAUSE);
    }

    /// Makes everything sealed durable. The caller holds the WRITE lock and is about to start the log over. Returns
    /// `false` if some thread could still write to the log.
    pub(super) fn settle(&self) -> Result<bool, LogError> {
        self.force()?;
        let (mut watch, mut looks) = (Watch::default(), LOOKS);
        let deadline = self.deadline();
        loop {
            if self.writers()? == 0 {
                return Ok(true);
            }
            // If there is a leader, it is about to finish its work, so wait for it until the deadline. If there is
            // none, each remaining writer either was replaced as leader, or tried to become leader, failed, and is
            // about to subtract itself from the count. So check only a few times.
            match process_of(self.get(LEADER)) {
                None if looks == 0 => return Ok(false),
                Some(_) if self.segment.clock_ns() > deadline => return Ok(false),
                None => looks -= 1,
                Some(_) => {
                    self.depose_dead_leader()?;
                    drop(self.take_over(&mut watch)?);
                }
            }
            self.check()?;
            self.pause();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how often a log has to grow before it has space for `blocks` blocks of groups, and its size in bytes
    /// after that.
    fn grown_to(blocks: u64, block_bytes: u32) -> (u32, u64) {
        let (mut growths, mut bytes) = (0, 0);
        while bytes < blocks * u64::from(block_bytes) {
            bytes += step(bytes, block_bytes);
            growths += 1;
        }
        (growths, bytes)
    }

    #[test]
    fn a_log_grows_seldom_and_little_beyond_what_it_needs() {
        for block_bytes in [512, 4096] {
            let unit = u64::from(block_bytes);
            assert_eq!(grown_to(1, block_bytes), (1, first_step(block_bytes)), "the first blocks are few");
            // The log of a database that SQLite checkpoints after 1,000 pages.
            let usual = grown_to(1010, block_bytes);
            assert_eq!(usual, (6, 1024 * unit));
            for blocks in (1..200_000).step_by(997).chain(1..2000) {
                let (growths, bytes) = grown_to(blocks, block_bytes);
                let least = blocks * unit;
                let most = (least * 5 / 4 + STEP_BLOCKS * unit).min(least * 4 + first_step(block_bytes));
                assert!((least..=most).contains(&bytes), "{bytes} bytes for {blocks} blocks");
                assert!(growths <= 80, "{growths} growths to {blocks} blocks");
            }
        }
        assert_eq!(step(u64::MAX, 4096), LARGEST_STEP);
    }
}
