//! Mapped memory whose accesses are recorded.

use std::fmt;
use std::fs::File;
use std::sync::Arc;

use duralite_medium::{Counters, Guarantee, Latency, MediumError, Nvm};

use super::medium_error;
use crate::event::{Event, FileId};
use crate::recorder::{Call, Failure, Recorder};

/// Records the accesses to the wrapped memory.
pub struct TappedNvm {
    pub inner: Arc<dyn Nvm>,
    /// Whether the hook reports that the memory survives a power loss. What survives in the test is up to the
    /// model.
    pub survives: bool,
    /// If the memory maps a file on a disk, that file. The hook syncs it to make a new length durable.
    pub on_disk: Option<Arc<File>>,
    pub file: FileId,
    pub recorder: Arc<Recorder>,
}

impl fmt::Debug for TappedNvm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl TappedNvm {
    fn allocate(
        &self,
        operation: &'static str,
        end: u64,
        body: impl FnOnce() -> Result<(), MediumError>,
    ) -> Result<(), MediumError> {
        let mut step = self.recorder.step();
        if let Some(failure) = step.due(Call::Allocate) {
            return Err(medium_error(operation, failure));
        }
        body()?;
        if let Some(file) = &self.on_disk {
            let synced = file.sync_all();
            synced.map_err(|_| medium_error("fsync", Failure::Io))?;
        }
        step.push(Event::Extend { file: self.file, size: end });
        Ok(())
    }
}

impl Nvm for TappedNvm {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    fn grow(&self, len: u64) -> Result<(), MediumError> {
        self.allocate("fallocate", len, || self.inner.grow(len))
    }

    fn shrink(&self, len: u64) -> Result<(), MediumError> {
        let mut step = self.recorder.step();
        if let Some(failure) = step.due(Call::Allocate) {
            return Err(medium_error("ftruncate", failure));
        }
        self.inner.shrink(len)?;
        step.push(Event::Truncate { file: self.file, size: len });
        Ok(())
    }

    fn check(&self) -> Result<(), MediumError> {
        self.inner.check()
    }

    fn is_durable_on_store(&self) -> bool {
        self.inner.is_durable_on_store()
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
        let mut step = self.recorder.step();
        self.inner.store(at, bytes);
        step.push(Event::Store { file: self.file, at, bytes: bytes.into() });
    }

    fn store_u64(&self, at: u64, value: u64) {
        let mut step = self.recorder.step();
        self.inner.store_u64(at, value);
        step.push(Event::Store { file: self.file, at, bytes: Box::new(value.to_le_bytes()) });
    }

    fn compare_exchange_u64(&self, at: u64, current: u64, new: u64) -> Result<u64, u64> {
        let mut step = self.recorder.step();
        let exchanged = self.inner.compare_exchange_u64(at, current, new);
        if exchanged.is_ok() {
            step.push(Event::Store { file: self.file, at, bytes: Box::new(new.to_le_bytes()) });
        }
        exchanged
    }

    fn stream(&self, at: u64, bytes: &[u8]) {
        let mut step = self.recorder.step();
        let site = step.site();
        self.inner.stream(at, bytes);
        step.push(Event::Store { file: self.file, at, bytes: bytes.into() });
        if !self.is_durable_on_store() {
            step.push(Event::Flush { file: self.file, at, len: bytes.len() as u64, site });
        }
    }

    fn flush(&self, at: u64, len: u64) {
        let mut step = self.recorder.step();
        let site = step.site();
        self.inner.flush(at, len);
        if !self.is_durable_on_store() {
            step.push(Event::Flush { file: self.file, at, len, site });
        }
    }

    fn fence(&self) {
        let mut step = self.recorder.step();
        let site = step.site();
        self.inner.fence();
        step.push(Event::Fence { file: self.file, all: self.inner.is_durable_on_store(), site });
    }

    fn system_allocate(&self, at: u64, len: u64) -> Result<(), MediumError> {
        self.allocate("fallocate", at + len, || self.inner.system_allocate(at, len))
    }

    fn system_free(&self, at: u64, len: u64) -> Result<(), MediumError> {
        // The content of a freed range is unspecified. Keeping the old content is the harder case for
        // recovery.
        let mut step = self.recorder.step();
        if let Some(failure) = step.due(Call::Allocate) {
            return Err(medium_error("fallocate", failure));
        }
        self.inner.system_free(at, len)
    }

    fn restore(&self, at: u64, len: u64) -> Result<(), MediumError> {
        self.allocate("fallocate", at + len, || self.inner.restore(at, len))
    }

    fn next_data(&self, at: u64) -> u64 {
        self.inner.next_data(at)
    }

    fn counters(&self) -> Counters {
        self.inner.counters()
    }

    fn guarantee(&self) -> Guarantee {
        if self.survives { Guarantee::PowerLoss } else { self.inner.guarantee() }
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
