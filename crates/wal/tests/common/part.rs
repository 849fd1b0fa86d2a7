//! Makes a part of a medium look like a medium of its own. Several files can then be parts of one memory, so that a
//! crash affects all of them at once.

use std::sync::Arc;

use duralite_crashmodel::RecordingNvm;
use duralite_medium::{Counters, Guarantee, Latency, MediumError, Nvm};

/// The part of `whole` that consists of the `capacity` bytes from `base` on.
#[derive(Debug, Clone)]
pub struct Part {
    pub whole: Arc<RecordingNvm>,
    pub base: u64,
    pub capacity: u64,
}

impl Nvm for Part {
    fn len(&self) -> u64 {
        self.whole.len().saturating_sub(self.base).min(self.capacity)
    }
    fn capacity(&self) -> u64 {
        self.capacity
    }
    fn grow(&self, len: u64) -> Result<(), MediumError> {
        if len > self.capacity { Err(MediumError::NoSpace) } else { self.whole.grow(self.base + len) }
    }
    fn shrink(&self, _: u64) -> Result<(), MediumError> {
        Err(MediumError::Unsupported { what: "cutting a part" })
    }
    fn refresh_len(&self, at_least: u64) -> Result<(), MediumError> {
        if at_least <= self.len() { Ok(()) } else { Err(MediumError::OutOfBounds { at: 0, len: at_least }) }
    }
    fn read(&self, at: u64, buf: &mut [u8]) {
        self.whole.read(self.base + at, buf);
    }
    fn load_u64(&self, at: u64) -> u64 {
        self.whole.load_u64(self.base + at)
    }
    fn store(&self, at: u64, bytes: &[u8]) {
        self.whole.store(self.base + at, bytes);
    }
    fn store_u64(&self, at: u64, value: u64) {
        self.whole.store_u64(self.base + at, value);
    }
    fn compare_exchange_u64(&self, at: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.whole.compare_exchange_u64(self.base + at, current, new)
    }
    fn stream(&self, at: u64, bytes: &[u8]) {
        self.whole.stream(self.base + at, bytes);
    }
    fn flush(&self, at: u64, len: u64) {
        self.whole.flush(self.base + at, len);
    }
    fn fence(&self) {
        self.whole.fence();
    }
    fn is_durable_on_store(&self) -> bool {
        self.whole.is_durable_on_store()
    }
    fn system_allocate(&self, at: u64, len: u64) -> Result<(), MediumError> {
        self.whole.system_allocate(self.base + at, len)
    }
    fn system_free(&self, at: u64, len: u64) -> Result<(), MediumError> {
        self.whole.system_free(self.base + at, len)
    }
    fn counters(&self) -> Counters {
        self.whole.counters()
    }
    fn guarantee(&self) -> Guarantee {
        self.whole.guarantee()
    }
    fn describe(&self) -> String {
        "a part".into()
    }
    fn set_latency(&self, latency: Latency) {
        self.whole.set_latency(latency);
    }
    fn latency(&self) -> Latency {
        self.whole.latency()
    }
}
