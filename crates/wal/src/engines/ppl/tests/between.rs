//! Lets other processes act between two steps of the process under test. The process under test gets a [`Shared`] as
//! its segment and a [`Memory`] as the log's memory. With [`Between`] the test says at which step the other processes
//! act.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duralite_crashmodel::RecordingNvm;
use duralite_medium::{Counters, Guarantee, Latency, LocalSegment, MediumError, Nvm, Segment};

use crate::engines::ppl::words::{LOCK, SECTORS_USED};

/// A step of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The process has just released the lock of the log's structure.
    Released,
    /// The process has just taken a log sector.
    TookSector,
    /// The process is about to load this word of the log's memory.
    Loads(u64),
}

type Others = Box<dyn FnOnce() + Send>;

/// An action of other processes at a step of the process under test. The action happens once.
#[derive(Default)]
pub(super) struct Between(Mutex<Option<(Step, Others)>>);

impl Between {
    /// Makes others act the next time that the process under test comes to this step.
    pub(super) fn at(&self, step: Step, others: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap() = Some((step, Box::new(others)));
    }

    /// Returns whether the others have acted.
    pub(super) fn is_over(&self) -> bool {
        self.0.lock().unwrap().is_none()
    }

    fn comes_to(&self, step: Step) {
        // The other processes take steps as well, so do not hold the mutex while they act.
        let due = self.0.lock().unwrap().take_if(|(due, _)| *due == step);
        if let Some((_, others)) = due {
            others();
        }
    }
}

/// The shared words, as used by the process under test.
pub(super) struct Shared {
    pub(super) below: Arc<LocalSegment>,
    pub(super) between: Arc<Between>,
}

impl Segment for Shared {
    fn len(&self) -> u64 {
        self.below.len()
    }

    fn load(&self, at: u64) -> u64 {
        self.below.load(at)
    }

    fn store(&self, at: u64, value: u64) {
        self.below.store(at, value);
    }

    fn compare_exchange(&self, at: u64, current: u64, new: u64) -> Result<u64, u64> {
        let exchanged = self.below.compare_exchange(at, current, new);
        if at == LOCK && new == 0 {
            self.between.comes_to(Step::Released);
        }
        exchanged
    }

    fn fetch_or(&self, at: u64, bits: u64) -> u64 {
        self.below.fetch_or(at, bits)
    }

    fn fetch_and(&self, at: u64, bits: u64) -> u64 {
        self.below.fetch_and(at, bits)
    }

    fn fetch_add(&self, at: u64, value: u64) -> u64 {
        let before = self.below.fetch_add(at, value);
        if at == SECTORS_USED && value == 1 {
            self.between.comes_to(Step::TookSector);
        }
        before
    }

    fn read(&self, at: u64, buf: &mut [u8]) {
        self.below.read(at, buf);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.below.write(at, bytes);
    }

    fn wait(&self, at: u64, expected: u32, limit: Duration) {
        self.below.wait(at, expected, limit);
    }

    fn wake(&self, at: u64, count: u32) {
        self.below.wake(at, count);
    }

    fn clock_ns(&self) -> u64 {
        self.below.clock_ns()
    }

    fn process_slot(&self) -> usize {
        self.below.process_slot()
    }

    fn is_alive(&self, process: usize) -> Result<bool, MediumError> {
        self.below.is_alive(process)
    }
}

/// The log's memory, as used by the process under test.
pub(super) struct Memory {
    pub(super) below: Arc<RecordingNvm>,
    pub(super) between: Arc<Between>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.below.fmt(f)
    }
}

impl Nvm for Memory {
    fn len(&self) -> u64 {
        self.below.len()
    }

    fn capacity(&self) -> u64 {
        self.below.capacity()
    }

    fn grow(&self, len: u64) -> Result<(), MediumError> {
        self.below.grow(len)
    }

    fn shrink(&self, len: u64) -> Result<(), MediumError> {
        self.below.shrink(len)
    }

    fn refresh_len(&self, at_least: u64) -> Result<(), MediumError> {
        self.below.refresh_len(at_least)
    }

    fn read(&self, at: u64, buf: &mut [u8]) {
        self.below.read(at, buf);
    }

    fn load_u64(&self, at: u64) -> u64 {
        self.between.comes_to(Step::Loads(at));
        self.below.load_u64(at)
    }

    fn store(&self, at: u64, bytes: &[u8]) {
        self.below.store(at, bytes);
    }

    fn store_u64(&self, at: u64, value: u64) {
        self.below.store_u64(at, value);
    }

    fn compare_exchange_u64(&self, at: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.below.compare_exchange_u64(at, current, new)
    }

    fn stream(&self, at: u64, bytes: &[u8]) {
        self.below.stream(at, bytes);
    }

    fn flush(&self, at: u64, len: u64) {
        self.below.flush(at, len);
    }

    fn fence(&self) {
        self.below.fence();
    }

    fn system_allocate(&self, at: u64, len: u64) -> Result<(), MediumError> {
        self.below.system_allocate(at, len)
    }

    fn system_free(&self, at: u64, len: u64) -> Result<(), MediumError> {
        self.below.system_free(at, len)
    }

    fn counters(&self) -> Counters {
        self.below.counters()
    }

    fn guarantee(&self) -> Guarantee {
        self.below.guarantee()
    }

    fn describe(&self) -> String {
        self.below.describe()
    }

    fn set_latency(&self, latency: Latency) {
        self.below.set_latency(latency);
    }

    fn latency(&self) -> Latency {
        self.below.latency()
    }
}
