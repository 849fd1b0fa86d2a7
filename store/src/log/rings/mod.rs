//! A log for each thread, in persistent memory, after a paper by Wang and Johnson. Each thread appends to its own log.
//! All objects share one sequence of numbers, from which recovery restores their order.
//!
//! Threads store objects without flushing them. A thread that commits flushes its own log and fences. It then does the
//! same for other logs, until all objects up to its commit are durable. This works because a flush covers what another
//! processor has stored. A fence covers only the flushes of its own processor. A checksum shows whether an object is
//! valid. The seed of the checksum depends on the object's place, and places only grow. So the remains of an older
//! object are not mistaken for a valid one.
//!
//! Invariant 30 holds as for all logs: recovery finds one unbroken sequence of objects over all rings together.

mod opening;
mod ring;

use crate::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::sync::Mutex;
use duralite_medium::Nvm;

use self::ring::Ring;
use super::window::{Patience, Window};
use super::{Log, LogCounters, Space, Visit};
use crate::counter::Counter;
use crate::error::Error;
use crate::format::{
    EPOCH_OFFSET, HEAD_OFFSET, Lsn, OBJECT_ALIGNMENT, Object, RINGS_OFFSET, RingsHead, claim_durable,
    seal_object,
};
use crate::poison::Poison;
use crate::sync::thread_number;

/// The largest number of logs. In the paper's comparison, there are as many.
const RINGS: u64 = 16;
/// The largest number of objects that all logs together may hold.
const MOST_OBJECTS: u64 = 1 << 20;

/// Returns how many objects the logs have room for, at most [`MOST_OBJECTS`].
fn most_objects(layout: &RingsHead) -> u64 {
    (layout.rings * layout.ring_bytes / OBJECT_ALIGNMENT).next_power_of_two().min(MOST_OBJECTS)
}

/// The logs of all threads, in persistent memory.
#[derive(Debug)]
pub(crate) struct RingsLog {
    nvm: Arc<dyn Nvm>,
    layout: RingsHead,
    epoch: u32,
    poison: Arc<Poison>,
    window: Window,
    head: AtomicU64,
    rings: Box<[Mutex<Ring>]>,
    /// The number of free bytes in all rings together.
    free: AtomicU64,
    bytes: Counter,
    largest: u64,
}

impl RingsLog {
    /// Returns the layout of logs that have about `bytes` bytes together, for objects of up to `largest` bytes.
    pub(crate) fn layout(bytes: u64, largest: u64, seed: u64, first_lsn: Lsn) -> RingsHead {
        let rings = (bytes / (largest * 8)).clamp(1, RINGS);
        RingsHead { seed, rings, ring_bytes: (bytes / rings).next_multiple_of(4096), first_lsn }
    }

    /// Makes empty logs, which are durable on return.
    pub(crate) fn create(
        nvm: Arc<dyn Nvm>,
        layout: RingsHead,
        largest: u64,
        poison: Arc<Poison>,
    ) -> Result<Self, Error> {
        nvm.grow(layout.log_bytes()).map_err(|error| Error::medium("making the log", error))?;
        nvm.store(0, &[0; RINGS_OFFSET as usize]);
        nvm.store_u64(HEAD_OFFSET, layout.first_lsn);
        nvm.store_u64(layout.began_at(1), layout.first_lsn);
        nvm.store_u64(EPOCH_OFFSET, 1);
        nvm.flush(0, RINGS_OFFSET);
        nvm.fence();
        // Objects of an earlier log in this memory do not become valid, because the new log has another seed.
        nvm.store(0, &layout.encode());
        nvm.flush(0, 64);
        nvm.fence();
        Ok(Self::over(nvm, layout, largest, poison, (layout.first_lsn, 1)))
    }

    fn over(
        nvm: Arc<dyn Nvm>,
        layout: RingsHead,
        largest: u64,
        poison: Arc<Poison>,
        (head, epoch): (Lsn, u32),
    ) -> Self {
        Self {
            window: Window::new(most_objects(&layout), head),
            head: AtomicU64::new(head),
            rings: (0..layout.rings).map(|_| Mutex::default()).collect(),
            free: AtomicU64::new(layout.rings * layout.ring_bytes),
            bytes: Counter::default(),
            nvm,
            layout,
            epoch,
            poison,
            largest,
        }
    }

    /// Makes durable all objects that have been stored in a ring.
    fn persist(&self, at: usize) {
        let unflushed = {
            let mut ring = self.rings[at].lock();
            // Holds the mutex only while it takes the list. Another thread that finds the list empty after that waits
            // in `force` until the window has marked these objects as persistent. It waits no longer than the flush
            // below takes.
            std::mem::take(&mut ring.unflushed)
        };
        if unflushed.is_empty() {
            return;
        }
        for (_, at, len) in &unflushed {
            self.nvm.flush(*at, *len);
        }
        self.nvm.fence();
        unflushed.into_iter().for_each(|(lsn, ..)| self.window.done(lsn));
    }

    fn own_ring(&self) -> usize {
        thread_number() % self.rings.len()
    }

    /// Returns the seed of the checksum of an object at this place. Places keep growing when the ring wraps around. So
    /// if an older object is still at the same offset, its checksum does not match this seed.
    fn seed_at(&self, ring: u64, place: u64) -> u64 {
        self.layout.seed ^ place.rotate_left(20) ^ ring.rotate_left(56)
    }

    /// Returns the ring and the place of each object in `from..to`, in ascending order of the numbers.
    fn places(&self, from: Lsn, to: Lsn) -> Vec<(Lsn, u64, u64)> {
        let mut found = Vec::new();
        for (number, ring) in (0..).zip(&self.rings) {
            let ring = ring.lock();
            let wanted = ring.objects.iter().filter(|object| (from..to).contains(&object.lsn));
            found.extend(wanted.map(|object| (object.lsn, number, object.place)));
        }
        found.sort_unstable();
        found
    }
}

impl Log for RingsLog {
    fn append(&self, object: &mut [u8]) -> Result<Lsn, Error> {
        self.poison.check()?;
        if self.window.next() - self.head() >= most_objects(&self.layout) - 64 {
            return Err(Error::full("the log has too many objects"));
        }
        let len = (object.len() as u64).next_multiple_of(OBJECT_ALIGNMENT);
        let own = self.own_ring();
        for turn in 0..self.rings.len() {
            let number = (own + turn) % self.rings.len();
            let mut ring = self.rings[number].lock();
            let Some((place, taken)) = ring.place_for(len, self.layout.ring_bytes) else { continue };
            // Takes the number under the ring's mutex, so that the numbers in a ring ascend.
            let lsn = self.window.number();
            claim_durable(object, lsn, self.window.durable());
            seal_object(object, lsn, self.epoch, self.seed_at(number as u64, place));
            let at = self.layout.offset(number as u64, place);
            self.nvm.store(at, object);
            ring.add(lsn, place, len, at);
            self.free.fetch_sub(taken, Ordering::Relaxed);
            self.bytes.add(object.len() as u64);
            return Ok(lsn);
        }
        Err(Error::full("the logs are full"))
    }

    fn next(&self) -> Lsn {
        self.window.next()
    }

    fn durable(&self) -> Lsn {
        self.window.advance()
    }

    fn head(&self) -> Lsn {
        self.head.load(Ordering::SeqCst)
    }

    fn force(&self, upto: Lsn) -> Result<(), Error> {
        let own = self.own_ring();
        let mut patience = Patience::default();
        while self.window.advance() <= upto {
            self.poison.check()?;
            for turn in 0..self.rings.len() {
                self.persist((own + turn) % self.rings.len());
                if self.window.advance() > upto {
                    return Ok(());
                }
            }
            patience.wait();
        }
        Ok(())
    }

    fn scan(&self, from: Lsn, to: Lsn, visit: &mut Visit<'_>) -> Result<(), Error> {
        let (from, to) = (from.max(self.head()), to.min(self.durable()));
        let mut bytes = Vec::new();
        for (lsn, ring, place) in self.places(from, to) {
            let damaged = || Error::corrupt(&format!("log object {lsn}"));
            self.read_object(self.layout.offset(ring, place), &mut bytes).ok_or_else(damaged)?;
            let object = Object::decode(&bytes, self.seed_at(ring, place)).map_err(|_| damaged())?;
            if object.header.lsn != lsn {
                return Err(damaged());
            }
            let epoch = object.header.epoch;
            // In a ring, the seed of an object's checksum depends on the object's place. `visit` does not know the
            // place, so seal the object again with the log's seed.
            seal_object(&mut bytes, lsn, epoch, self.layout.seed);
            visit(lsn, &bytes)?;
        }
        Ok(())
    }

    fn truncate(&self, head: Lsn) -> Result<(), Error> {
        let head = head.min(self.durable());
        if head <= self.head() {
            return Ok(());
        }
        // The head is made durable before the words of the rings. If a crash left a ring's word ahead of the head, the
        // log would have a gap after the head.
        self.nvm.store_u64(HEAD_OFFSET, head);
        self.nvm.flush(HEAD_OFFSET, 8);
        self.nvm.fence();
        let begins: Vec<u64> = self.rings.iter().map(|ring| ring.lock().begin_at(head)).collect();
        for (number, begin) in (0..).zip(&begins) {
            self.nvm.store_u64(self.layout.word_at(number), *begin);
            self.nvm.flush(self.layout.word_at(number), 8);
        }
        self.nvm.fence();
        for (ring, begin) in self.rings.iter().zip(begins) {
            let freed = ring.lock().give_up(begin);
            self.free.fetch_add(freed, Ordering::Relaxed);
        }
        self.head.store(head, Ordering::SeqCst);
        Ok(())
    }

    fn space(&self) -> Space {
        // Not all free space can be used, because an object may not fit at the end of a ring.
        let kept = self.layout.rings * self.largest;
        let used = self.window.next() - self.head();
        Space {
            free_bytes: self.free.load(Ordering::Relaxed).saturating_sub(kept),
            free_objects: (most_objects(&self.layout) - 64).saturating_sub(used),
            all_bytes: (self.layout.rings * self.layout.ring_bytes).saturating_sub(kept),
            all_objects: most_objects(&self.layout) - 64,
            force_bytes: 0,
        }
    }

    fn persist_some(&self) {
        (0..self.rings.len()).for_each(|ring| self.persist(ring));
    }

    fn counters(&self) -> LogCounters {
        let counters = self.nvm.counters();
        LogCounters { bytes: self.bytes.get(), writes: counters.stores, flushes: counters.fences }
    }

    fn memory_bytes(&self) -> u64 {
        self.window.memory_bytes()
    }

    fn describe(&self) -> String {
        format!("{}, {} logs", self.nvm.describe(), self.rings.len())
    }

    fn seed(&self) -> u64 {
        self.layout.seed
    }
}
