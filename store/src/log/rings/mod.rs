//! A log for each thread, in persistent memory, after Wang and Johnson. Threads append to logs of their own. The
//! numbers of all objects are one sequence, which puts the objects in order again.
//!
//! Objects are stored without a flush. A thread that commits flushes its own log and fences, and then does so for other
//! logs that are behind. It can, because a flush reaches what another processor has stored, while a fence covers only
//! the flushes of its own processor. Objects are valid by their checksums, whose seeds depend on their places; places
//! only grow.
//!
//! Invariant 30 holds as for all logs: recovery finds one run of objects over all rings together.

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

/// As many logs as in the paper's comparison.
const RINGS: u64 = 16;
/// The most objects that are not given up yet.
const MOST_OBJECTS: u64 = 1 << 20;

/// The number of objects that the logs have room for, at most [`MOST_OBJECTS`].
fn most_objects(layout: &RingsHead) -> u64 {
    (layout.rings * layout.ring_bytes / OBJECT_ALIGNMENT).next_power_of_two().min(MOST_OBJECTS)
}

/// Logs in an [`Nvm`].
#[derive(Debug)]
pub(crate) struct RingsLog {
    nvm: Arc<dyn Nvm>,
    layout: RingsHead,
    epoch: u32,
    poison: Arc<Poison>,
    window: Window,
    head: AtomicU64,
    rings: Box<[Mutex<Ring>]>,
    /// Free bytes of all rings together.
    free: AtomicU64,
    bytes: Counter,
    largest: u64,
}

impl RingsLog {
    /// Lays out logs of about `bytes` bytes together, for objects of up to `largest` bytes.
    pub(crate) fn layout(bytes: u64, largest: u64, seed: u64, first_lsn: Lsn) -> RingsHead {
        let rings = (bytes / (largest * 8)).clamp(1, RINGS);
        RingsHead { seed, rings, ring_bytes: (bytes / rings).next_multiple_of(4096), first_lsn }
    }

    /// Makes empty logs. Durable on return.
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
        // Objects of an earlier log in this memory are not valid, because the seed is a new one.
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

    /// Makes durable what a ring has so far.
    fn persist(&self, at: usize) {
        let unflushed = {
            let mut ring = self.rings[at].lock();
            // The mutex stays locked only while the list is taken. A thread that finds the list empty waits for the
            // objects to be done, which takes only this flush.
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

    /// The seed of an object's checksum at a place. Objects of earlier turns have other places, so they are not valid.
    fn seed_at(&self, ring: u64, place: u64) -> u64 {
        self.layout.seed ^ place.rotate_left(20) ^ ring.rotate_left(56)
    }

    /// The ring and the place of each object in `from..to`, in the order of the objects.
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
            // The number is taken under the ring's mutex, so that the objects of a ring have ascending numbers.
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
            // Outside of a ring an object has the seed of the log.
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
        // The head is written first, and then the words of the rings: a ring's word beyond the head would make a gap.
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
        // An object may not fit at the end of a ring.
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
