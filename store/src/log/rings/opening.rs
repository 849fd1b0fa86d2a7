//! Opens the logs of threads: follows each ring, and joins the objects of all rings into one unbroken sequence.

use crate::sync::atomic::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use duralite_medium::Nvm;

use super::ring::{Placed, Ring};
use super::{RingsLog, most_objects};
use crate::error::Error;
use crate::format::{
    EPOCH_OFFSET, HEAD_OFFSET, Lsn, OBJECT_ALIGNMENT, OBJECT_HEADER_BYTES, Object, ObjectKind, RINGS_OFFSET,
    RingsHead,
};
use crate::log::damage::{Beyond, Damage, OnDamage, look_beyond};
use crate::log::window::Window;
use crate::log::{BEYOND, Named};
use crate::poison::Poison;

impl RingsLog {
    /// Opens the logs. Finds the objects that recovery will read, makes them durable, and durably begins a new epoch.
    /// If the logs are damaged, writes nothing unless `on_damage` accepts the damage.
    pub(crate) fn open(
        nvm: Arc<dyn Nvm>,
        named: Named,
        largest: u64,
        poison: Arc<Poison>,
        on_damage: &mut OnDamage<'_>,
    ) -> Result<Self, Error> {
        let damaged = || Error::corrupt("the head of the log");
        let mut bytes = [0; 64];
        nvm.refresh_len(RINGS_OFFSET).map_err(|_| damaged())?;
        nvm.read(0, &mut bytes);
        let layout = RingsHead::decode(&bytes).map_err(|_| damaged())?;
        named.check_seed(layout.seed)?;
        nvm.refresh_len(layout.log_bytes()).map_err(|_| damaged())?;
        let head = nvm.load_u64(HEAD_OFFSET);
        let mut words = (0..layout.rings).map(|ring| nvm.load_u64(layout.word_at(ring)));
        // Each word is the place of an object, so it must be aligned like an object.
        let is_place = |word: u64| word < BEYOND && word.is_multiple_of(OBJECT_ALIGNMENT);
        if head >= BEYOND || !words.all(is_place) {
            return Err(damaged());
        }
        named.check_head(head)?;
        let newest = nvm.load_u64(EPOCH_OFFSET) as u32;
        let newest = Epoch { number: newest, began: nvm.load_u64(layout.began_at(newest)) };
        let epoch = newest.number.wrapping_add(1);
        let mut it = Self::over(nvm, layout, largest, poison, (head, epoch));
        let rings: Vec<Vec<Placed>> = (0..layout.rings).map(|ring| it.follow(ring, newest)).collect();
        let end = end_of_run(&rings, head);
        let beyond = it.beyond(end.next + 1);
        // When the newest epoch began, everything before its first object was durable. So if the sequence ends before
        // that object, the log is damaged.
        if end.next < newest.began || beyond.proves(end.next) || named.proves(end.next) {
            it.tell(&rings, &end, beyond, on_damage)?;
        }
        for (number, objects) in (0..).zip(rings) {
            it.apply(number, &objects, head, &end);
        }
        it.nvm.store_u64(HEAD_OFFSET, head);
        it.nvm.flush(HEAD_OFFSET, 8);
        it.begin_epoch(end.next);
        it.window = Window::new(most_objects(&layout), end.next);
        Ok(it)
    }

    /// Counts the whole objects with numbers from `next` on, wherever they are in the rings.
    fn beyond(&self, next: Lsn) -> Beyond {
        let ring_bytes = self.layout.ring_bytes;
        let mut beyond = Beyond::default();
        for number in 0..self.layout.rings {
            let begin = self.nvm.load_u64(self.layout.word_at(number));
            let first = self.layout.offset(number, 0);
            // Converts an offset to a place: the first place at this offset that is not before the place in the ring's
            // word.
            let place = |at: u64| begin + (at - first + ring_bytes - begin % ring_bytes) % ring_bytes;
            let seed_at = |at: u64| self.seed_at(number, place(at));
            look_beyond(&*self.nvm, (first, first + ring_bytes), next, &seed_at, &mut beyond);
        }
        beyond
    }

    /// Reports damage at the end of the sequence to `on_damage`.
    fn tell(
        &self,
        rings: &[Vec<Placed>],
        end: &End,
        beyond: Beyond,
        on_damage: &mut OnDamage<'_>,
    ) -> Result<(), Error> {
        let (mut commits, mut from) = (0, 0);
        let mut bytes = Vec::new();
        for (number, objects) in (0..).zip(rings) {
            for object in objects.iter().filter(|object| end.rings.contains_key(&object.lsn)) {
                let at = self.layout.offset(number, object.place);
                let is_whole = self.read_object(at, &mut bytes).is_some();
                let seed = self.seed_at(number, object.place);
                let Some(found) = Object::decode(&bytes, seed).ok().filter(|_| is_whole) else { continue };
                commits += u64::from(found.header.kind == ObjectKind::Commit);
                if object.lsn + 1 == end.next {
                    from = at + object.bytes;
                }
            }
        }
        on_damage(Damage { missing: end.next, before: commits, beyond, from })
    }

    /// Reads the object at an offset. Returns `None` if the length in its header is not possible there.
    pub(super) fn read_object(&self, at: u64, into: &mut Vec<u8>) -> Option<()> {
        let limit = self.layout.log_bytes();
        if at + OBJECT_HEADER_BYTES as u64 > limit {
            return None;
        }
        into.resize(OBJECT_HEADER_BYTES, 0);
        self.nvm.read(at, into);
        let len = u32::from_le_bytes([into[36], into[37], into[38], into[39]]);
        if (len as usize) < OBJECT_HEADER_BYTES || at + u64::from(len) > limit {
            return None;
        }
        into.resize(len as usize, 0);
        self.nvm.read(at, into);
        Some(())
    }

    /// Begins the epoch. First records `first`, the number of the epoch's first object. Objects from this number on
    /// belong to the log only if they have this epoch. Then records that the epoch has begun. Both records are durable
    /// on return, and so is everything that was flushed before.
    pub(super) fn begin_epoch(&self, first: Lsn) {
        let began_at = self.layout.began_at(self.epoch);
        self.nvm.store_u64(began_at, first);
        self.nvm.flush(began_at, 8);
        self.nvm.fence();
        self.nvm.store_u64(EPOCH_OFFSET, self.epoch.into());
        self.nvm.flush(EPOCH_OFFSET, 8);
        self.nvm.fence();
    }

    /// Follows a ring from the place in its word, as long as the objects' numbers ascend and their epochs do not
    /// decrease. Returns the objects that it finds.
    fn follow(&self, number: u64, newest: Epoch) -> Vec<Placed> {
        let ring_bytes = self.layout.ring_bytes;
        let begin = self.nvm.load_u64(self.layout.word_at(number));
        let mut objects: Vec<Placed> = Vec::new();
        let mut bytes = Vec::new();
        let mut end = begin;
        loop {
            let turn = (end / ring_bytes + 1) * ring_bytes;
            let mut found = None;
            for place in [end, turn] {
                if place - begin >= ring_bytes
                    || self.read_object(self.layout.offset(number, place), &mut bytes).is_none()
                {
                    continue;
                }
                let Ok(object) = Object::decode(&bytes, self.seed_at(number, place)) else { continue };
                let (lsn, epoch) = (object.header.lsn, object.header.epoch);
                // The first object in the ring may be older than the log's head, because a ring's word is written after
                // the head. So any number is accepted here.
                let follows = objects.last().is_none_or(|last| lsn > last.lsn && epoch >= last.epoch);
                let is_of_ring = place % ring_bytes + u64::from(object.header.bytes) <= ring_bytes
                    && place + u64::from(object.header.bytes) - begin < ring_bytes;
                if follows && is_of_ring && newest.counts(lsn, epoch) {
                    let bytes = u64::from(object.header.bytes).next_multiple_of(OBJECT_ALIGNMENT);
                    found = Some(Placed { lsn, place, epoch, bytes });
                    break;
                }
            }
            let Some(object) = found else { return objects };
            end = object.place + object.bytes;
            objects.push(object);
        }
    }

    /// Keeps the objects of a ring that belong to the unbroken sequence. Flushes them, because the process that stored
    /// them may not have done so.
    fn apply(&mut self, number: u64, objects: &[Placed], head: Lsn, end: &End) {
        let begin = self.nvm.load_u64(self.layout.word_at(number));
        let mut ring = Ring { begin, end: begin, ..Ring::default() };
        for object in objects {
            let is_old = object.lsn < head;
            let is_in_run = end.rings.get(&object.lsn) == Some(&(object.epoch, number));
            if !is_old && !is_in_run {
                break;
            }
            ring.end = object.place + object.bytes;
            if is_in_run {
                self.nvm.flush(self.layout.offset(number, object.place), object.bytes);
                ring.objects.push_back(*object);
            }
        }
        ring.begin = ring.begin_at(head);
        self.nvm.store_u64(self.layout.word_at(number), ring.begin);
        self.nvm.flush(self.layout.word_at(number), 8);
        // The object after the kept ones may be valid, although recovery has cut it off. If the next new object goes to
        // the ring's beginning, it does not overwrite the old object, and the old object would seem to follow the kept
        // ones. So clear the old object here.
        let end = self.layout.offset(number, ring.end);
        self.nvm.store_u64(end, 0);
        self.nvm.flush(end, 8);
        self.free.fetch_sub(ring.end - ring.begin, Ordering::Relaxed);
        *self.rings[number as usize].lock() = ring;
    }
}

/// The newest epoch, which covers the objects written since the log was last opened.
#[derive(Clone, Copy)]
struct Epoch {
    number: u32,
    /// The number of the epoch's first object.
    began: Lsn,
}

impl Epoch {
    /// Returns whether an object with this number and this epoch can be part of the log. Objects that an earlier
    /// recovery cut off are still in memory. A newer object may have overwritten one of them. The old object behind it
    /// may then seem to follow the newer one. Only the epoch shows that it does not.
    fn counts(self, lsn: Lsn, epoch: u32) -> bool {
        if lsn < self.began { epoch < self.number } else { epoch == self.number }
    }
}

/// Where the unbroken sequence of objects ends, over all rings. For each object in the sequence, `rings` has its epoch
/// and its ring.
struct End {
    next: Lsn,
    rings: BTreeMap<Lsn, (u32, u64)>,
}

fn end_of_run(rings: &[Vec<Placed>], head: Lsn) -> End {
    let mut all: BTreeMap<Lsn, (u32, u64)> = BTreeMap::new();
    for (number, objects) in (0..).zip(rings) {
        for object in objects.iter().filter(|object| object.lsn >= head) {
            let newest = all.entry(object.lsn).or_insert((object.epoch, number));
            // If two objects have the same number, a recovery has cut off the one with the earlier epoch.
            *newest = (*newest).max((object.epoch, number));
        }
    }
    let (mut next, mut epoch) = (head, 0);
    while let Some((found, _)) = all.get(&next).filter(|(found, _)| *found >= epoch) {
        epoch = *found;
        next += 1;
    }
    all.split_off(&next);
    End { next, rings: all }
}
