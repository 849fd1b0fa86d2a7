//! A shared segment in loom's weak memory model. It behaves as on a processor that reorders memory
//! operations.
//!
//! Copies are relaxed operations of 8 bytes. Operations on words have acquire and release semantics. loom has
//! no sequentially consistent order, so [`Loads`] says how loads approximate it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::Duration;

use duralite_medium::{MediumError, Segment};
use loom::sync::atomic::{AtomicU64, fence};

/// Which values a load of a word may return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loads {
    /// Any value that acquire and release semantics allow. A real segment allows fewer values. So a property
    /// that holds here also holds with a real segment.
    Old,
    /// The newest value, as if all operations on words had a single order. A test needs this if two processes
    /// each announce something, and each then checks whether the other has made an announcement. But this
    /// hides cases in which a copy is reordered with an operation on a word.
    Newest,
}

/// The shared memory.
#[derive(Debug)]
pub struct WeakMemory {
    words: HashMap<u64, AtomicU64>,
    bytes: u64,
    loads: Loads,
    clock: std::sync::atomic::AtomicU64,
}

/// The shared memory, as one process uses it.
#[derive(Debug)]
pub struct WeakProcess {
    memory: Arc<WeakMemory>,
    index: usize,
}

impl WeakMemory {
    /// Makes memory of zeros that has only the given ranges. The caller must be inside a model of loom.
    #[must_use]
    pub fn new(ranges: &[Range<u64>], loads: Loads) -> Arc<Self> {
        let words = ranges.iter().cloned().flat_map(|range| range.step_by(8));
        let bytes = ranges.iter().map(|range| range.end).max().unwrap_or(0);
        let words = words.map(|at| (at, AtomicU64::new(0))).collect();
        Arc::new(Self { words, bytes, loads, clock: std::sync::atomic::AtomicU64::new(1) })
    }

    /// Adds a process with this slot. These processes never die.
    #[must_use]
    pub fn join(self: &Arc<Self>, index: usize) -> Arc<WeakProcess> {
        Arc::new(WeakProcess { memory: Arc::clone(self), index })
    }
}

impl WeakProcess {
    fn word(&self, at: u64) -> &AtomicU64 {
        assert!(self.memory.words.contains_key(&at), "no word at {at} in this model");
        &self.memory.words[&at]
    }
}

impl Segment for WeakProcess {
    fn len(&self) -> u64 {
        self.memory.bytes
    }

    fn load(&self, at: u64) -> u64 {
        match self.memory.loads {
            Loads::Old => self.word(at).load(Acquire),
            Loads::Newest => self.word(at).fetch_add(0, Acquire),
        }
    }

    fn store(&self, at: u64, value: u64) {
        self.word(at).store(value, Release);
    }

    fn compare_exchange(&self, at: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.word(at).compare_exchange(current, new, AcqRel, Acquire)
    }

    fn fetch_or(&self, at: u64, bits: u64) -> u64 {
        self.word(at).fetch_or(bits, AcqRel)
    }

    fn fetch_and(&self, at: u64, bits: u64) -> u64 {
        self.word(at).fetch_and(bits, AcqRel)
    }

    fn fetch_add(&self, at: u64, value: u64) -> u64 {
        self.word(at).fetch_add(value, AcqRel)
    }

    fn read(&self, at: u64, buf: &mut [u8]) {
        for (at, part) in (at..).step_by(8).zip(buf.chunks_mut(8)) {
            part.copy_from_slice(&self.word(at).load(Relaxed).to_le_bytes()[..part.len()]);
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        for (at, part) in (at..).step_by(8).zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.word(at).store(u64::from_le_bytes(word), Relaxed);
        }
    }

    fn fence(&self) {
        fence(AcqRel);
    }

    fn wait(&self, _at: u64, _expected: u32, _limit: Duration) {
        loom::thread::yield_now();
    }

    fn wake(&self, _at: u64, _count: u32) {}

    fn clock_ns(&self) -> u64 {
        self.memory.clock.fetch_add(50_000, Relaxed)
    }

    fn process_slot(&self) -> usize {
        self.index
    }

    fn is_alive(&self, _process: usize) -> Result<bool, MediumError> {
        Ok(true)
    }
}
