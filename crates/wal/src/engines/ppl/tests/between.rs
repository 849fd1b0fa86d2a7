//! What other processes do between two steps of a process. A test lets the process use the words that processes share through
//! [`Shared`], and says with [`Between`] at which step the others come in.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use duralite_medium::{LocalSegment, MediumError, Segment};

use crate::engines::ppl::words::LOCK;

/// A step of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The process has just released the lock of the log's structure.
    Released,
}

type Others = Box<dyn FnOnce() + Send>;

/// What others do at a step of the process, once.
#[derive(Default)]
pub(super) struct Between(Mutex<Option<(Step, Others)>>);

impl Between {
    /// Lets others do something when the process next comes to a step.
    pub(super) fn at(&self, step: Step, others: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap() = Some((step, Box::new(others)));
    }

    /// Whether the others have done what they had to do.
    pub(super) fn is_over(&self) -> bool {
        self.0.lock().unwrap().is_none()
    }

    fn comes_to(&self, step: Step) {
        // Others come to steps too, so do not hold the mutex meanwhile.
        let due = self.0.lock().unwrap().take_if(|(due, _)| *due == step);
        if let Some((_, others)) = due {
            others();
        }
    }
}

/// The words that processes share, as the process uses them whose steps count.
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
        self.below.fetch_add(at, value)
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
