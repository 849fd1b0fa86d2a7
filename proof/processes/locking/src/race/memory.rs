//! Wraps the memory of a log, so that a process of a race stops at each store and each fence. While a process
//! waits for another one, it hands over its turn.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use duralite_medium::{Counters, Guarantee, Latency, MediumError, Nvm, Segment};
use duralite_wal::placement::{FileStep, Hook, Hooked, hook};

use super::ledger::ledger;
use crate::board::board;
use crate::call::{Call, Kind};
use crate::{clock, grain};

/// Wraps the memory of each log that this process opens in this directory after the call.
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

    fn segment(&self, _log: &Path, below: Arc<dyn Segment>) -> Arc<dyn Segment> {
        Arc::new(Yielding { process: self.process, below })
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

/// Wraps the memory that processes share. A process that waits here for another process sleeps by its own
/// clock, and so hands over its turn. Otherwise the other process, which may be at a stop, would never
/// continue.
struct Yielding {
    process: usize,
    below: Arc<dyn Segment>,
}

impl Segment for Yielding {
    fn wait(&self, at: u64, expected: u32, limit: Duration) {
        if !grain::is_racing() {
            self.below.wait(at, expected, limit);
        } else if self.below.load(at) as u32 == expected {
            clock::sleep(self.process, u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    fn wake(&self, at: u64, count: u32) {
        self.below.wake(at, count);
    }

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
        self.below.compare_exchange(at, current, new)
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

    fn words(&self, base: u64, count: usize) -> &[AtomicU64] {
        self.below.words(base, count)
    }

    fn read(&self, at: u64, buf: &mut [u8]) {
        self.below.read(at, buf);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.below.write(at, bytes);
    }

    fn fence(&self) {
        self.below.fence();
    }

    fn clock_ns(&self) -> u64 {
        self.below.clock_ns()
    }

    fn coarse_clock_ns(&self) -> u64 {
        self.below.coarse_clock_ns()
    }

    fn process_slot(&self) -> usize {
        self.below.process_slot()
    }

    fn is_alive(&self, process: usize) -> Result<bool, MediumError> {
        self.below.is_alive(process)
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn can_be_read_only(&self) -> bool {
        self.below.can_be_read_only()
    }

    fn has_outside_readers(&self, first: usize, count: usize) -> Result<bool, MediumError> {
        self.below.has_outside_readers(first, count)
    }

    fn hold_mark(&self, mark: usize) -> Result<bool, MediumError> {
        self.below.hold_mark(mark)
    }

    fn release_mark(&self, mark: usize) {
        self.below.release_mark(mark);
    }
}
