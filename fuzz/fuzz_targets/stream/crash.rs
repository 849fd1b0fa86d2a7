//! Media that keep what a power loss in the middle of an operation would leave.

use std::sync::Mutex;

use duralite_medium::block::{Block, BlockCounters, Durability, RecordingBlock};
use duralite_medium::{Counters, Guarantee, Latency, MediumError, Nvm, RecordingNvm};

/// Numbers from the input, and made up where it ends.
#[derive(Debug, Clone)]
pub struct Choices {
    state: u64,
}

impl Choices {
    pub fn new(seed: u32) -> Self {
        Self { state: u64::from(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1 }
    }

    /// xorshift64*.
    pub fn next(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 8
    }
}

/// A medium that can say what a power loss leaves.
pub trait Losing {
    fn left(&self, choices: &mut Choices) -> Vec<u8>;
}

impl Losing for RecordingNvm {
    fn left(&self, choices: &mut Choices) -> Vec<u8> {
        self.crash(&mut || choices.next()).to_bytes()
    }
}

impl Losing for RecordingBlock {
    fn left(&self, choices: &mut Choices) -> Vec<u8> {
        self.crash_at_random(&mut |below| choices.next() % below)
    }
}

/// A medium that takes an image before an operation to come.
#[derive(Debug)]
pub struct Crashing<M> {
    pub inner: M,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    due: Option<(u64, Choices)>,
    image: Option<Vec<u8>>,
}

impl<M: Losing> Crashing<M> {
    pub fn new(inner: M) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// Loses power after so many operations.
    pub fn crash_after(&self, operations: u64, choices: Choices) {
        self.state.lock().unwrap().due = Some((operations, choices));
    }

    pub fn has_crashed(&self) -> bool {
        self.state.lock().unwrap().image.is_some()
    }

    /// What the power loss left that has happened, or what one leaves now.
    pub fn image(&self, choices: &mut Choices) -> Vec<u8> {
        self.state.lock().unwrap().image.clone().unwrap_or_else(|| self.inner.left(choices))
    }

    fn step(&self) {
        let mut state = self.state.lock().unwrap();
        let Some((left, choices)) = &mut state.due else { return };
        if *left > 0 {
            *left -= 1;
            return;
        }
        let image = self.inner.left(choices);
        state.due = None;
        state.image.get_or_insert(image);
    }
}

impl Nvm for Crashing<RecordingNvm> {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }
    fn grow(&self, len: u64) -> Result<(), MediumError> {
        self.step();
        self.inner.grow(len)
    }
    fn refresh_len(&self, at_least: u64) -> Result<(), MediumError> {
        self.inner.refresh_len(at_least)
    }
    fn read(&self, at: u64, buf: &mut [u8]) {
        self.inner.read(at, buf);
    }
    fn load_u64(&self, at: u64) -> u64 {
        self.inner.load_u64(at)
    }
    fn store(&self, at: u64, bytes: &[u8]) {
        self.step();
        self.inner.store(at, bytes);
    }
    fn store_u64(&self, at: u64, value: u64) {
        self.step();
        self.inner.store_u64(at, value);
    }
    fn stream(&self, at: u64, bytes: &[u8]) {
        self.step();
        self.inner.stream(at, bytes);
    }
    fn flush(&self, at: u64, len: u64) {
        self.step();
        self.inner.flush(at, len);
    }
    fn fence(&self) {
        self.step();
        self.inner.fence();
    }
    fn system_allocate(&self, at: u64, len: u64) -> Result<(), MediumError> {
        self.step();
        self.inner.system_allocate(at, len)
    }
    fn system_free(&self, at: u64, len: u64) -> Result<(), MediumError> {
        self.inner.system_free(at, len)
    }
    fn counters(&self) -> Counters {
        self.inner.counters()
    }
    fn guarantee(&self) -> Guarantee {
        self.inner.guarantee()
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn set_latency(&self, latency: Latency) {
        self.inner.set_latency(latency);
    }
    fn latency(&self) -> Latency {
        self.inner.latency()
    }
}

impl Block for Crashing<RecordingBlock> {
    fn block_bytes(&self) -> u32 {
        self.inner.block_bytes()
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn preallocate(&self, len: u64) -> Result<(), MediumError> {
        self.step();
        self.inner.preallocate(len)
    }
    fn refresh_len(&self) -> Result<(), MediumError> {
        self.inner.refresh_len()
    }
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.inner.read(at, buf)
    }
    fn write(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        self.step();
        self.inner.write(at, blocks)
    }
    /// The power may also be lost between the write and its flush.
    fn commit(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), MediumError> {
        if durability != Durability::Full {
            self.step();
            return self.inner.commit(at, blocks, durability);
        }
        self.write(at, blocks)?;
        self.flush()
    }
    fn flush(&self) -> Result<(), MediumError> {
        self.step();
        self.inner.flush()
    }
    fn counters(&self) -> BlockCounters {
        self.inner.counters()
    }
    fn guarantee(&self) -> Guarantee {
        self.inner.guarantee()
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
}
