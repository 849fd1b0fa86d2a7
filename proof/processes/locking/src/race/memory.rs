//! The log's memory, at whose stores and fences a process of a race stops.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use duralite_medium::{Counters, Guarantee, Latency, MediumError, Nvm};
use duralite_wal::placement::{FileStep, Hook, Hooked, hook};

use super::ledger::ledger;
use crate::board::board;
use crate::call::{Call, Kind};
use crate::grain;

/// Puts the stops before the memory of the logs in this directory that this process opens from now on.
pub fn stop_at(process: usize, logs: &Path) -> Hooked {
    hook(logs, Arc::new(Stops { process }))
}

struct Stops {
    process: usize,
}

impl Hook for Stops {
    fn step(&self, _step: FileStep, _log: &Path) -> io::Result<()> {
        Ok(())
    }

    fn nvm(&self, _log: &Path, below: Arc<dyn Nvm>) -> Result<Arc<dyn Nvm>, MediumError> {
        Ok(Arc::new(Stopping { process: self.process, below }))
    }
}

struct Stopping {
    process: usize,
    below: Arc<dyn Nvm>,
}

impl Stopping {
    fn step(&self, call: Call, at: u64) {
        let at = i32::try_from(at).unwrap_or(i32::MAX);
        board().step(self.process, call, Kind::Log, at);
    }

    fn stores(&self, at: u64) {
        if !grain::is_racing() {
            return;
        }
        if grain::stops_at_store() {
            self.step(Call::Store, at);
        }
        ledger().changes_log(self.process);
    }
}

impl fmt::Debug for Stopping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.below.fmt(f)
    }
}

impl Nvm for Stopping {
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

    fn check(&self) -> Result<(), MediumError> {
        self.below.check()
    }

    fn is_durable_on_store(&self) -> bool {
        self.below.is_durable_on_store()
    }

    fn refresh_len(&self, at_least: u64) -> Result<(), MediumError> {
        self.below.refresh_len(at_least)
    }

    fn read(&self, at: u64, buf: &mut [u8]) {
        self.below.read(at, buf);
    }

    fn next_data(&self, at: u64) -> u64 {
        self.below.next_data(at)
    }

    fn load_u64(&self, at: u64) -> u64 {
        self.below.load_u64(at)
    }

    fn store(&self, at: u64, bytes: &[u8]) {
        self.stores(at);
        self.below.store(at, bytes);
    }

    fn store_u64(&self, at: u64, value: u64) {
        self.stores(at);
        self.below.store_u64(at, value);
    }

    fn compare_exchange_u64(&self, at: u64, current: u64, new: u64) -> Result<u64, u64> {
        self.stores(at);
        self.below.compare_exchange_u64(at, current, new)
    }

    fn stream(&self, at: u64, bytes: &[u8]) {
        self.stores(at);
        self.below.stream(at, bytes);
    }

    fn flush(&self, at: u64, len: u64) {
        self.below.flush(at, len);
    }

    fn fence(&self) {
        if grain::stops_at_fence() {
            self.step(Call::Fence, 0);
        }
        self.below.fence();
        if !grain::is_racing() {
            return;
        }
        ledger().changes_log(self.process);
        if grain::stops_after_fence() {
            self.step(Call::Fenced, 0);
        }
    }

    fn system_allocate(&self, at: u64, len: u64) -> Result<(), MediumError> {
        self.below.system_allocate(at, len)
    }

    fn system_free(&self, at: u64, len: u64) -> Result<(), MediumError> {
        self.below.system_free(at, len)
    }

    fn restore(&self, at: u64, len: u64) -> Result<(), MediumError> {
        self.below.restore(at, len)
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
