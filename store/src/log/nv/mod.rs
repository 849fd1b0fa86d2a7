//! The log in persistent memory (NV-Logging, sections 4.2, 4.3 and 5): a circular index of entries. Each entry is a
//! state bit and a pointer to an object. A thread builds an object in ordinary memory, copies it once, and never
//! changes it after that.
//!
//! Invariant 32: a state bit is set only when the entry's object is durable. An entry is reused only when its bit is
//! clear. New objects overwrite older ones only when the bits of all of these older objects are durably clear. So a set
//! bit whose object is not whole means damage, not the end of the log.

mod extents;
mod pending;

use crate::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use duralite_medium::{LINE_BYTES, Nvm};

use self::extents::Extents;
use self::pending::Pending;
use super::damage::{Beyond, Damage, OnDamage, look_beyond};
use super::window::{Patience, Window};
use super::{BEYOND, Log, LogCounters, Named, Space, Visit};
use crate::counter::Counter;
use crate::error::Error;
use crate::format::{
    EPOCH_OFFSET, HEAD_OFFSET, INDEX_OFFSET, Lsn, NvHead, OBJECT_ALIGNMENT, OBJECT_HEADER_BYTES, Object,
    ObjectKind, claim_durable, entry_of, object_of, seal_object,
};
use crate::poison::Poison;

/// The log has one index entry for this many bytes.
const BYTES_PER_ENTRY: u64 = 128;
const FEWEST_ENTRIES: u64 = 1024;
/// The largest number of objects that have a number and are not persistent yet. From half of this number on, a thread
/// makes older objects persistent before it takes a number. The other half is for threads that have already done this
/// check, but have not taken their numbers yet.
const MOST_WAITING: u64 = 16384;

/// When the log makes objects persistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flush {
    /// Each object becomes persistent before [`Log::append`] returns.
    OnInsert,
    /// A daemon makes objects persistent in the background. A commit makes the remaining ones persistent.
    OnCommit,
}

/// A log in persistent memory.
#[derive(Debug)]
pub(crate) struct NvLog {
    nvm: Arc<dyn Nvm>,
    layout: NvHead,
    epoch: u32,
    poison: Arc<Poison>,
    window: Window,
    head: AtomicU64,
    extents: Extents,
    pending: Option<Pending>,
    bytes: Counter,
}

impl NvLog {
    /// Returns the layout of a log of about `bytes` bytes, for objects of up to `largest` bytes.
    pub(crate) fn layout(bytes: u64, largest: u64, seed: u64, first_lsn: Lsn) -> NvHead {
        let entries = (bytes / BYTES_PER_ENTRY).next_power_of_two().max(FEWEST_ENTRIES);
        let extent_bytes = (largest * 4).max(64 << 10).next_multiple_of(4096);
        let extents = (bytes / extent_bytes).max(8);
        NvHead { seed, entries, extent_bytes, extents, first_lsn }
    }

    /// Makes an empty log, which is durable on return.
    pub(crate) fn create(
        nvm: Arc<dyn Nvm>,
        layout: NvHead,
        flush: Flush,
        poison: Arc<Poison>,
    ) -> Result<Self, Error> {
        nvm.grow(layout.log_bytes()).map_err(|error| Error::medium("making the log", error))?;
        let zeros = vec![0; 1 << 16];
        let index_end = layout.extent_at(0);
        let mut at = 0;
        while at < index_end {
            let step = (index_end - at).min(zeros.len() as u64);
            nvm.store(at, &zeros[..step as usize]);
            nvm.flush(at, step);
            at += step;
        }
        nvm.store_u64(HEAD_OFFSET, layout.first_lsn);
        nvm.store_u64(EPOCH_OFFSET, 1);
        nvm.flush(HEAD_OFFSET, EPOCH_OFFSET + 8 - HEAD_OFFSET);
        nvm.fence();
        nvm.store(0, &layout.encode());
        nvm.flush(0, 64);
        nvm.fence();
        Ok(Self::over(nvm, layout, flush, poison, (layout.first_lsn, layout.first_lsn, 1)))
    }

    /// Opens a log. Finds the objects that recovery will read, clears the index entries after them, and durably begins
    /// a new epoch. If the log is damaged, writes nothing unless `on_damage` accepts the damage.
    pub(crate) fn open(
        nvm: Arc<dyn Nvm>,
        named: Named,
        flush: Flush,
        poison: Arc<Poison>,
        on_damage: &mut OnDamage<'_>,
    ) -> Result<Self, Error> {
        let mut bytes = [0; 64];
        let damaged = || Error::corrupt("the head of the log");
        nvm.refresh_len(INDEX_OFFSET).map_err(|_| damaged())?;
        nvm.read(0, &mut bytes);
        let layout = NvHead::decode(&bytes).map_err(|_| damaged())?;
        named.check_seed(layout.seed)?;
        nvm.refresh_len(layout.log_bytes()).map_err(|_| damaged())?;
        let head = nvm.load_u64(HEAD_OFFSET);
        if head >= BEYOND {
            return Err(damaged());
        }
        named.check_head(head)?;
        let epoch = (nvm.load_u64(EPOCH_OFFSET) as u32).wrapping_add(1);
        let mut it = Self::over(nvm, layout, flush, poison, (head, head, epoch));
        let end = it.find_end(head, named, on_damage)?;
        let nvm = &it.nvm;
        // The words that were just read may not be durable, so both are stored and flushed again. They are in different
        // cache lines, and one flush covers both lines.
        nvm.store_u64(HEAD_OFFSET, head);
        nvm.store_u64(EPOCH_OFFSET, epoch.into());
        nvm.flush(HEAD_OFFSET, EPOCH_OFFSET + 8 - HEAD_OFFSET);
        nvm.fence();
        it.clear_outside(head, end);
        it.window = Window::new(MOST_WAITING, end);
        Ok(it)
    }

    fn over(
        nvm: Arc<dyn Nvm>,
        layout: NvHead,
        flush: Flush,
        poison: Arc<Poison>,
        (head, next, epoch): (Lsn, Lsn, u32),
    ) -> Self {
        Self {
            extents: Extents::new(&layout),
            pending: (flush == Flush::OnCommit).then(|| Pending::new(MOST_WAITING)),
            window: Window::new(MOST_WAITING, next),
            head: AtomicU64::new(head),
            bytes: Counter::default(),
            nvm,
            layout,
            epoch,
            poison,
        }
    }

    /// Follows the index from the head to the first gap, and marks the extents of the found objects as used.
    fn find_end(&self, head: Lsn, named: Named, on_damage: &mut OnDamage<'_>) -> Result<Lsn, Error> {
        let mut object = Vec::new();
        let mut epoch = 0;
        let mut used = Vec::new();
        let mut lsn = head;
        let (mut commits, mut is_broken) = (0, false);
        while lsn < head + self.layout.entries {
            let Some(at) = object_of(self.nvm.load_u64(self.layout.entry_at(lsn))) else { break };
            let found = self.read_object(at, &mut object).ok();
            let Some(header) =
                found.and_then(|()| Some(Object::decode(&object, self.layout.seed).ok()?.header))
            else {
                // A bit is set only when its object is durable. Since the bit is set, this object must be damaged.
                is_broken = true;
                break;
            };
            if header.lsn != lsn || header.epoch < epoch {
                // The entry is left over from an object of an earlier round through the index, or from one that a
                // recovery has cut off. So the log ends here.
                break;
            }
            epoch = header.epoch;
            commits += u64::from(header.kind == ObjectKind::Commit);
            used.push((at, lsn));
            lsn += 1;
        }
        let mut beyond = Beyond::default();
        let extents = (self.layout.extent_at(0), self.layout.log_bytes());
        look_beyond(&*self.nvm, extents, lsn + 1, &|_| self.layout.seed, &mut beyond);
        if is_broken || beyond.proves(lsn) || named.proves(lsn) {
            on_damage(Damage { missing: lsn, before: commits, beyond, from: self.layout.entry_at(lsn) })?;
        }
        self.flush_found(&used);
        self.extents.occupy(&self.layout, &used);
        Ok(lsn)
    }

    /// Flushes the newest objects and entries. The process that stored them may have died before it flushed them.
    fn flush_found(&self, found: &[(u64, Lsn)]) {
        for (at, last) in found.iter().rev().take(4096) {
            let mut header = [0; OBJECT_HEADER_BYTES];
            self.nvm.read(*at, &mut header);
            let len = u64::from(u32::from_le_bytes([header[36], header[37], header[38], header[39]]));
            self.nvm.flush(*at, len);
            self.nvm.flush(self.layout.entry_at(*last), 8);
        }
        self.nvm.fence();
    }

    fn clear_outside(&self, head: Lsn, end: Lsn) {
        for lsn in end..head + self.layout.entries {
            let at = self.layout.entry_at(lsn);
            if self.nvm.load_u64(at) != 0 {
                self.nvm.store_u64(at, 0);
                self.nvm.flush(at, 8);
            }
        }
        self.nvm.fence();
    }

    fn read_object(&self, at: u64, into: &mut Vec<u8>) -> Result<(), Error> {
        let damaged = || Error::corrupt("an entry of the log's index");
        let limit = self.layout.log_bytes();
        let header_end = at.checked_add(OBJECT_HEADER_BYTES as u64).ok_or_else(damaged)?;
        if at < self.layout.extent_at(0) || header_end > limit {
            return Err(damaged());
        }
        into.resize(OBJECT_HEADER_BYTES, 0);
        self.nvm.read(at, into);
        let len = u32::from_le_bytes([into[36], into[37], into[38], into[39]]);
        if u64::from(len) > self.layout.extent_bytes || at + u64::from(len) > limit {
            return Err(damaged());
        }
        into.resize((len as usize).max(OBJECT_HEADER_BYTES), 0);
        self.nvm.read(at, into);
        Ok(())
    }

    /// Makes an object persistent. Flushes the object first, and only then sets its bit (NV-Logging, section 5.2).
    fn persist(&self, lsn: Lsn, at: u64, bytes: u64) {
        self.nvm.flush(at, bytes);
        self.nvm.fence();
        self.put_entries(std::iter::once((lsn, entry_of(at))));
        self.nvm.fence();
        self.window.done(lsn);
    }

    /// Stores index entries in ascending order of their numbers. Eight entries share a cache line, and each line is
    /// flushed once.
    fn put_entries(&self, entries: impl Iterator<Item = (Lsn, u64)>) {
        let line_of = |entry: u64| entry / LINE_BYTES;
        let mut last = None;
        for (lsn, word) in entries {
            let entry = self.layout.entry_at(lsn);
            if let Some(last) = last.filter(|last| line_of(*last) != line_of(entry)) {
                self.nvm.flush(last, 8);
            }
            self.nvm.store_u64(entry, word);
            last = Some(entry);
        }
        if let Some(last) = last {
            self.nvm.flush(last, 8);
        }
    }

    /// Makes the pending objects up to `upto` persistent, except those that other threads have already taken.
    fn persist_pending(&self, pending: &Pending, upto: Lsn) {
        let mut batch = [(0, 0); pending::BATCH];
        let mut lsn = self.window.durable();
        while lsn <= upto {
            let mut count = 0;
            while lsn <= upto && count < batch.len() {
                if let Some((at, bytes)) = pending.take(lsn) {
                    self.nvm.flush(at, bytes);
                    batch[count] = (lsn, at);
                    count += 1;
                }
                lsn += 1;
            }
            let batch = &batch[..count];
            if batch.is_empty() {
                continue;
            }
            self.nvm.fence();
            self.put_entries(batch.iter().map(|(lsn, at)| (*lsn, entry_of(*at))));
            self.nvm.fence();
            batch.iter().for_each(|(lsn, _)| self.window.done(*lsn));
        }
    }
}

impl Log for NvLog {
    fn append(&self, object: &mut [u8]) -> Result<Lsn, Error> {
        self.poison.check()?;
        let len = object.len() as u64;
        if self.window.next() - self.window.durable() >= MOST_WAITING / 2 {
            self.force(self.window.next().saturating_sub(MOST_WAITING / 4).max(1) - 1)?;
        }
        if self.window.next() - self.head() >= self.layout.entries - 64 {
            return Err(Error::full("the log has no entry left"));
        }
        let (at, lsn) = self
            .extents
            .take(len.next_multiple_of(OBJECT_ALIGNMENT), || self.window.number())
            .ok_or_else(|| Error::full("the log is full"))?;
        claim_durable(object, lsn, self.window.durable());
        seal_object(object, lsn, self.epoch, self.layout.seed);
        self.bytes.add(len);
        // Copies the object into persistent memory now rather than at the commit. If the processor evicts one of its
        // cache lines in the meantime, the commit need not wait for that line.
        self.nvm.store(at, object);
        match &self.pending {
            None => self.persist(lsn, at, len),
            Some(pending) => pending.put(lsn, at, len),
        }
        Ok(lsn)
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
        let mut patience = Patience::default();
        while self.window.advance() <= upto {
            self.poison.check()?;
            if let Some(pending) = &self.pending {
                self.persist_pending(pending, upto.min(self.window.next().saturating_sub(1)));
                if self.window.advance() > upto {
                    break;
                }
            }
            patience.wait();
        }
        Ok(())
    }

    fn scan(&self, from: Lsn, to: Lsn, visit: &mut Visit<'_>) -> Result<(), Error> {
        let mut object = Vec::new();
        for lsn in from.max(self.head())..to.min(self.durable()) {
            let entry = self.nvm.load_u64(self.layout.entry_at(lsn));
            let damaged = || Error::corrupt(&format!("log object {lsn}"));
            self.read_object(object_of(entry).ok_or_else(damaged)?, &mut object)?;
            let header = Object::decode(&object, self.layout.seed).map_err(|_| damaged())?.header;
            if header.lsn != lsn {
                return Err(damaged());
            }
            visit(lsn, &object)?;
        }
        Ok(())
    }

    fn truncate(&self, head: Lsn) -> Result<(), Error> {
        let old = self.head();
        let head = head.min(self.durable());
        if head <= old {
            return Ok(());
        }
        self.nvm.store_u64(HEAD_OFFSET, head);
        self.nvm.flush(HEAD_OFFSET, 8);
        self.nvm.fence();
        self.put_entries((old..head).map(|lsn| (lsn, 0)));
        self.nvm.fence();
        self.extents.recycle(head);
        self.head.store(head, Ordering::SeqCst);
        Ok(())
    }

    fn space(&self) -> Space {
        let used = self.window.next() - self.head();
        Space {
            free_bytes: self.extents.free_bytes(),
            free_objects: (self.layout.entries - 64).saturating_sub(used),
            all_bytes: self.extents.all_bytes(),
            all_objects: self.layout.entries - 64,
            force_bytes: 0,
        }
    }

    fn persist_some(&self) {
        if let Some(pending) = &self.pending {
            let next = self.window.next();
            if next > self.window.durable() {
                self.persist_pending(pending, next - 1);
                self.window.advance();
            }
        }
    }

    fn counters(&self) -> LogCounters {
        let counters = self.nvm.counters();
        LogCounters { bytes: self.bytes.get(), writes: counters.stores, flushes: counters.fences }
    }

    fn memory_bytes(&self) -> u64 {
        self.window.memory_bytes() + self.pending.as_ref().map_or(0, Pending::memory_bytes)
    }

    fn describe(&self) -> String {
        let when = if self.pending.is_some() { "flush-on-commit" } else { "flush-on-insert" };
        format!("{}, {when}", self.nvm.describe())
    }

    fn seed(&self) -> u64 {
        self.layout.seed
    }
}
