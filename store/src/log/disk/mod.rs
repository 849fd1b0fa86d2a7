//! The log on a disk: batches of objects in a preallocated circular area, written by group commit with direct I/O.
//!
//! Invariant 33: a batch begins at a block boundary, and places only grow, so no write touches blocks that are already
//! durable. A batch belongs to the log only if it is complete, is at the place that it names, and continues the batch
//! before it. From the place on where the newest epoch began, a batch must also be of that epoch. Before that place, it
//! must be of an earlier epoch. So a batch that a recovery has cut off never becomes valid again.

mod buffer;
mod circle;
mod opening;

use crate::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::sync::{Condvar, Mutex, MutexGuard};
use duralite_medium::block::{AlignedBuf, Block, Durability};

use self::buffer::Buffer;
use self::circle::{Circle, Placed};
use super::{Log, LogCounters, Space, Visit};
use crate::error::Error;
use crate::format::{
    BATCH_HEADER_BYTES, Batch, DISK_DATA_OFFSET, DISK_SLOT_BYTES, DISK_SLOT_OFFSETS, DiskHead, DiskSlot, Lsn,
    Object,
};
use crate::poison::Poison;

/// The size in bytes at which a batch is closed. The batch's last object may exceed it.
const BATCH_BYTES: u64 = 1 << 20;
/// A batch takes at most this fraction of the circular area: one part of 16. The space of up to one batch may be lost
/// at the end of the area, and the limit keeps this loss small.
const BATCHES: u64 = 16;
/// The smallest size in bytes at which a batch is closed, however little memory there is.
const FEWEST_BATCH_BYTES: u64 = 64 << 10;
/// The limit on the waiting objects, as a multiple of the size of a batch. If more objects wait, a thread that appends
/// has to write them first.
const PENDING_BATCHES: u64 = 2;
/// The memory that the log takes, as a multiple of the size of a batch. It is for the waiting objects, the objects
/// taken for a write, and a copy of the taken objects with their batch header.
const MEMORY_BATCHES: u64 = PENDING_BATCHES + 2;
/// An upper limit for the length of an object in bytes, for every page size.
const LARGEST_OBJECT: u64 = 128 << 10;
/// The longest time for which a thread waits before it checks the log's state again.
const LOOK_AROUND: Duration = Duration::from_millis(20);

/// The way in which objects get to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grouping {
    /// One buffer. One thread at a time writes all waiting objects.
    Central,
    /// A slot for each object. One thread at a time writes the objects of all transactions.
    Grouped,
    /// A slot for each object. Each transaction writes the objects up to its own commit. Several transactions can write
    /// at once.
    Apart,
}

/// A batch to be written: its place, its objects, and the number of objects.
type Written<'a> = (Placed, &'a [u8], u32);

/// Memory for a group that is being written: the group's objects, and one batch in the form in which it goes to the
/// disk.
#[derive(Debug, Default)]
struct Group {
    objects: Vec<u8>,
    batch: AlignedBuf,
}

/// A log on blocks.
#[derive(Debug)]
pub(crate) struct DiskLog {
    block: Arc<dyn Block>,
    head: DiskHead,
    /// The block size of new batches, in bytes. It is the block size in the log's head, or the device's if that is
    /// larger.
    block_bytes: u32,
    epoch: u32,
    grouping: Grouping,
    poison: Arc<Poison>,
    buffer: Buffer,
    durable: AtomicU64,
    oldest: AtomicU64,
    /// The number of free bytes in the circular area when this was last computed.
    free: AtomicU64,
    waiting_bytes: AtomicU64,
    bytes: AtomicU64,
    /// The size in bytes at which a batch is closed.
    batch_bytes: u64,
    /// The memory of the last group, kept for the next one.
    spare: Mutex<Option<Group>>,
    state: Mutex<State>,
    /// The newer of the two slots. A thread holds the mutex while it writes the other slot.
    slot: Mutex<DiskSlot>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    circle: Circle,
    writers: usize,
    flushes: Flushes,
}

/// The writes that are being made durable. They are numbered in the order in which they began.
#[derive(Debug, Default)]
struct Flushes {
    begun: u64,
    open: Vec<u64>,
}

impl Flushes {
    fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.open.push(self.begun);
        self.begun
    }

    fn end(&mut self, number: u64) {
        self.open.retain(|open| *open != number);
    }

    /// Returns whether the write with this number, or an earlier write, has not ended yet.
    fn are_open_until(&self, number: u64) -> bool {
        self.open.iter().any(|open| *open <= number)
    }
}

fn writing(error: duralite_medium::MediumError) -> Error {
    Error::medium("writing the log", error)
}

impl DiskLog {
    /// Returns the layout of a log of about `bytes` bytes.
    pub(crate) fn layout(block: &dyn Block, bytes: u64, seed: u64) -> DiskHead {
        let circle_bytes = bytes.max(1 << 20).next_multiple_of(4096);
        DiskHead { seed, circle_bytes, block_bytes: block.block_bytes() }
    }

    /// Makes an empty log, whose first object will have the number `first`. The log is durable on return.
    pub(crate) fn create(
        block: Arc<dyn Block>,
        head: DiskHead,
        first: Lsn,
        grouping: Grouping,
        poison: Arc<Poison>,
    ) -> Result<Self, Error> {
        block.preallocate(DISK_DATA_OFFSET + head.circle_bytes).map_err(writing)?;
        let slot = DiskSlot { number: 1, head: first, place: 0, epoch: 1, began: 0 };
        let mut heads = AlignedBuf::default();
        heads.resize(DISK_SLOT_BYTES * 3);
        heads.as_mut_slice().fill(0);
        let at = DISK_SLOT_OFFSETS[1] as usize;
        heads.as_mut_slice()[at..at + DISK_SLOT_BYTES].copy_from_slice(&slot.encode(head.seed));
        heads.as_mut_slice()[..DISK_SLOT_BYTES].copy_from_slice(&head.encode());
        block.write_durably(0, heads.as_slice(), Durability::Full).map_err(writing)?;
        let circle = Circle::empty(head, head.block_bytes, first, 0);
        Ok(Self::over(block, grouping, poison, circle, slot))
    }

    fn over(
        block: Arc<dyn Block>,
        grouping: Grouping,
        poison: Arc<Poison>,
        circle: Circle,
        slot: DiskSlot,
    ) -> Self {
        Self {
            block,
            head: circle.head,
            block_bytes: circle.block_bytes,
            epoch: slot.epoch,
            grouping,
            poison,
            buffer: match grouping {
                Grouping::Central => Buffer::central(circle.next),
                Grouping::Grouped | Grouping::Apart => Buffer::lists(circle.next),
            },
            durable: AtomicU64::new(circle.next),
            oldest: AtomicU64::new(circle.oldest),
            free: AtomicU64::new(circle.free_bytes()),
            waiting_bytes: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            batch_bytes: BATCH_BYTES.min(circle.head.circle_bytes / BATCHES),
            spare: Mutex::default(),
            state: Mutex::new(State { circle, writers: 0, flushes: Flushes::default() }),
            slot: Mutex::new(slot),
            changed: Condvar::new(),
        }
    }

    /// Limits the memory that waiting objects take to about `bytes`.
    pub(crate) fn with_memory(mut self, bytes: u64) -> Self {
        self.batch_bytes = self.batch_bytes.min((bytes / MEMORY_BATCHES).max(FEWEST_BATCH_BYTES));
        self
    }

    /// Overwrites the older of the two slots with a changed copy of the newer one. The slot is durable on return.
    fn write_slot(&self, change: impl FnOnce(&mut DiskSlot)) -> Result<(), Error> {
        let mut slot = self.slot.lock();
        let mut next = *slot;
        change(&mut next);
        next.number += 1;
        let mut aligned = AlignedBuf::default();
        aligned.resize(DISK_SLOT_BYTES);
        aligned.as_mut_slice().copy_from_slice(&next.encode(self.head.seed));
        let at = DISK_SLOT_OFFSETS[(next.number % 2) as usize];
        self.write_durably(at, aligned.as_slice(), Durability::Full)?;
        *slot = next;
        Ok(())
    }

    /// Writes blocks, and makes them durable, while other threads may do the same.
    ///
    /// Direct writes report their failures to the threads that make them. But if several threads flush writes through
    /// the page cache at the same time, the kernel reports a failure to only one of them, perhaps the wrong one. So
    /// this thread waits until every other write that overlapped with its own has ended. It relies on its own flush
    /// only if none of these writes has failed.
    ///
    /// # Errors
    /// [`Error::Poisoned`], or an error of the medium, which has poisoned the store.
    fn write_durably(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), Error> {
        let is_shared = !self.block.writes_reach_device();
        let own = if is_shared { self.state.lock().flushes.begin() } else { 0 };
        let written = self.block.write_durably(at, blocks, durability).map_err(writing);
        // Sets the poison before another thread can see that this write has ended.
        if let Err(error) = &written {
            self.poison.set(error);
        }
        if is_shared {
            let mut state = self.state.lock();
            state.flushes.end(own);
            let last = state.flushes.begun;
            self.changed.notify_all();
            while written.is_ok() && state.flushes.are_open_until(last) {
                state = self.changed.wait(state, LOOK_AROUND);
            }
        }
        written.and_then(|()| self.poison.check())
    }

    /// Takes waiting objects as a group, and writes them. The caller passes the locked state, and this function unlocks
    /// it before it writes.
    fn lead(&self, mut state: MutexGuard<'_, State>, upto: Lsn) -> Result<(), Error> {
        let from = state.circle.next;
        let to = if self.grouping == Grouping::Apart { upto + 1 } else { self.buffer.next() };
        let mut group = self.spare.lock().take().unwrap_or_default();
        let Group { objects, batch } = &mut group;
        objects.clear();
        let next = self.buffer.take(from, to, self.batch_bytes, objects);
        let placed = self.place(&mut state.circle, objects, from, next);
        // `space` reads these two numbers in the opposite order. So even if it reads between the two lines, it counts
        // the group's bytes as taken, in at least one of the numbers.
        self.free.store(state.circle.free_bytes(), Ordering::SeqCst);
        self.waiting_bytes.fetch_sub(objects.len() as u64, Ordering::SeqCst);
        state.writers += 1;
        drop(state);
        let written = placed.and_then(|placed| {
            placed
                .into_iter()
                .try_for_each(|(placed, objects, count)| self.write(batch, placed, objects, count))
        });
        *self.spare.lock() = Some(group);
        // Sets the poison before lowering the count of writers. Otherwise another thread could see that no thread is
        // writing, and begin to write.
        let written = written.map_err(|error| self.poison.set(&error));
        self.state.lock().writers -= 1;
        self.changed.notify_all();
        written
    }

    /// Divides objects into batches, and assigns each batch a place.
    fn place<'a>(
        &self,
        circle: &mut Circle,
        objects: &'a [u8],
        from: Lsn,
        next: Lsn,
    ) -> Result<Vec<Written<'a>>, Error> {
        let mut placed = Vec::new();
        let (mut begin, mut at, mut lsn, mut first) = (0, 0, from, from);
        while lsn < next {
            let header = objects.get(at + 36..at + 40).and_then(|len| <[u8; 4]>::try_from(len).ok());
            at += header.map_or(0, u32::from_le_bytes) as usize;
            lsn += 1;
            if (at - begin) as u64 >= self.batch_bytes || lsn == next {
                let bytes = (at - begin) as u64;
                let batch = circle.place(lsn, bytes).ok_or_else(|| Error::full("the log is full"))?;
                let piece = objects.get(begin..at).ok_or_else(|| Error::corrupt("a group of log objects"))?;
                placed.push((batch, piece, (lsn - first) as u32));
                (begin, first) = (at, lsn);
            }
        }
        Ok(placed)
    }

    fn write(
        &self,
        aligned: &mut AlignedBuf,
        placed: Placed,
        objects: &[u8],
        count: u32,
    ) -> Result<(), Error> {
        aligned.resize(placed.bytes as usize);
        let bytes = aligned.as_mut_slice();
        let end = BATCH_HEADER_BYTES + objects.len();
        bytes[BATCH_HEADER_BYTES..end].copy_from_slice(objects);
        bytes[end..].fill(0);
        let batch = Batch {
            first_lsn: placed.first,
            objects: count,
            bytes: objects.len() as u64,
            epoch: self.epoch,
            place: placed.place,
            // If only one thread writes at a time, everything before this batch is durable by now.
            durable: self.durable.load(Ordering::SeqCst),
            block_bytes: self.block_bytes,
        };
        batch.seal(bytes, self.head.seed);
        self.write_durably(self.head.offset(placed.place), bytes, Durability::Fua)?;
        let durable = self.state.lock().circle.written(placed.first);
        self.durable.fetch_max(durable, Ordering::SeqCst);
        Ok(())
    }

    /// Reads the batch at a place. Returns `None` if there is no whole batch.
    fn read_batch(&self, place: u64, into: &mut Vec<u8>) -> Result<Option<Batch>, Error> {
        let reading = |error| Error::medium("reading the log", error);
        let left = self.head.circle_bytes - place % self.head.circle_bytes;
        into.resize(BATCH_HEADER_BYTES, 0);
        self.block.read(self.head.offset(place), into).map_err(reading)?;
        let Some(batch) = Batch::claimed(into, place) else { return Ok(None) };
        if batch.bytes > left.saturating_sub(BATCH_HEADER_BYTES as u64) {
            return Ok(None);
        }
        into.resize(BATCH_HEADER_BYTES + batch.bytes as usize, 0);
        self.block.read(self.head.offset(place), into).map_err(reading)?;
        Ok(batch.is_whole(into, self.head.seed).then_some(batch))
    }
}

impl Log for DiskLog {
    fn append(&self, object: &mut [u8]) -> Result<Lsn, Error> {
        self.poison.check()?;
        let next = self.buffer.next();
        // Other threads may have appended since `next` was read. Their objects may be durable by now, so `durable` may
        // exceed `next`.
        let waits = next.saturating_sub(self.durable()) > buffer::MOST / 2
            || self.waiting_bytes.load(Ordering::Relaxed) > self.batch_bytes * PENDING_BATCHES;
        if waits && next > self.durable() {
            self.force(next - 1)?;
        }
        let len = object.len() as u64;
        self.bytes.fetch_add(len, Ordering::Relaxed);
        self.waiting_bytes.fetch_add(len, Ordering::SeqCst);
        Ok(self.buffer.put(object, self.epoch, self.head.seed))
    }

    fn next(&self) -> Lsn {
        self.buffer.next()
    }

    fn durable(&self) -> Lsn {
        self.durable.load(Ordering::SeqCst)
    }

    fn head(&self) -> Lsn {
        self.oldest.load(Ordering::SeqCst)
    }

    fn force(&self, upto: Lsn) -> Result<(), Error> {
        while self.durable() <= upto {
            self.poison.check()?;
            let state = self.state.lock();
            if self.durable() > upto {
                break;
            }
            let may_lead = state.circle.next <= upto
                && (self.grouping == Grouping::Apart || state.writers == 0)
                && !self.poison.is_set();
            if may_lead {
                self.lead(state, upto)?;
            } else {
                drop(self.changed.wait(state, LOOK_AROUND));
            }
        }
        Ok(())
    }

    fn scan(&self, from: Lsn, to: Lsn, visit: &mut Visit<'_>) -> Result<(), Error> {
        let (from, to) = (from.max(self.head()), to.min(self.durable()));
        let batches: Vec<Placed> = self.state.lock().circle.batches.iter().copied().collect();
        let mut bytes = Vec::new();
        for (at, placed) in batches.iter().enumerate() {
            let behind = batches.get(at + 1).is_some_and(|next| next.first <= from);
            if behind || placed.first >= to {
                continue;
            }
            let damaged = || Error::corrupt(&format!("the log's batch at {}", placed.place));
            let batch = self.read_batch(placed.place, &mut bytes)?.ok_or_else(damaged)?;
            let mut rest = bytes.get(BATCH_HEADER_BYTES..).unwrap_or_default();
            for lsn in placed.first..placed.first + u64::from(batch.objects) {
                let object = Object::decode(rest, self.head.seed).map_err(|_| damaged())?;
                if object.header.lsn != lsn {
                    return Err(damaged());
                }
                let (whole, behind) = rest.split_at(object.header.bytes as usize);
                if (from..to).contains(&lsn) {
                    visit(lsn, whole)?;
                }
                rest = behind;
            }
        }
        Ok(())
    }

    fn truncate(&self, head: Lsn) -> Result<(), Error> {
        let head = head.min(self.durable());
        if head <= self.head() {
            return Ok(());
        }
        let place = self.state.lock().circle.place_of(head);
        self.write_slot(|slot| (slot.head, slot.place) = (head, place))?;
        let mut state = self.state.lock();
        state.circle.give_up(head);
        self.free.store(state.circle.free_bytes(), Ordering::SeqCst);
        drop(state);
        self.oldest.store(head, Ordering::SeqCst);
        Ok(())
    }

    fn space(&self) -> Space {
        let waiting = self.waiting_bytes.load(Ordering::SeqCst);
        let free = self.free.load(Ordering::SeqCst);
        // Not all free space can be used, because a batch may not fit at the end of the circular area, and each batch
        // is padded to whole blocks.
        let kept = self.batch_bytes + LARGEST_OBJECT;
        let sure = |bytes: u64| bytes.saturating_sub(kept) / 4 * 3;
        Space {
            free_bytes: sure(free).saturating_sub(waiting),
            free_objects: u64::MAX / 2,
            all_bytes: sure(self.head.circle_bytes),
            all_objects: u64::MAX / 2,
            force_bytes: u64::from(self.block_bytes) + BATCH_HEADER_BYTES as u64,
        }
    }

    fn persist_some(&self) {
        let next = self.buffer.next();
        if self.waiting_bytes.load(Ordering::Relaxed) > self.batch_bytes && next > self.durable() {
            // The error can be ignored here, because it has poisoned the store. So any thread that waits for durability
            // gets it too.
            let _ = self.force(next - 1);
        }
    }

    fn counters(&self) -> LogCounters {
        let counters = self.block.counters();
        LogCounters {
            bytes: self.bytes.load(Ordering::Relaxed),
            writes: counters.writes,
            flushes: counters.flushes,
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.batch_bytes * MEMORY_BATCHES + self.buffer.memory_bytes()
    }

    fn describe(&self) -> String {
        let how = match self.grouping {
            Grouping::Central => "one buffer, group commit",
            Grouping::Grouped => "a list per transaction, group commit",
            Grouping::Apart => "a list per transaction, each written by itself",
        };
        format!("{}, {how}", self.block.describe())
    }

    fn seed(&self) -> u64 {
        self.head.seed
    }

    fn fits_medium(&self) -> bool {
        self.block_bytes == self.head.block_bytes
    }
}
