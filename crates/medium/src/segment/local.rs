//! A segment without a file.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Segment;
use crate::MediumError;

/// A segment that only one process uses, for tests and for inspecting a log without joining the processes
/// that use the log. All slots except the first are free.
#[derive(Debug)]
pub struct LocalSegment {
    bytes: Mutex<Vec<u8>>,
    changed: Condvar,
    started: Instant,
}

impl LocalSegment {
    /// Makes a segment of zeros.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self { bytes: Mutex::new(vec![0; bytes as usize]), changed: Condvar::new(), started: Instant::now() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, at: u64, change: impl FnOnce(u64) -> u64) -> u64 {
        let mut bytes = self.lock();
        let before = word_in(&bytes, at);
        bytes[at as usize..at as usize + 8].copy_from_slice(&change(before).to_le_bytes());
        before
    }
}

fn word_in(bytes: &[u8], at: u64) -> u64 {
    assert!(at.is_multiple_of(8), "{at} is not the place of a word");
    bytes[at as usize..at as usize + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

impl Segment for LocalSegment {
    fn len(&self) -> u64 {
        self.lock().len() as u64
    }

    fn load(&self, at: u64) -> u64 {
        word_in(&self.lock(), at)
    }

    fn store(&self, at: u64, value: u64) {
        self.update(at, |_| value);
    }

    fn compare_exchange(&self, at: u64, current: u64, new: u64) -> Result<u64, u64> {
        let before = self.update(at, |word| if word == current { new } else { word });
        if before == current { Ok(before) } else { Err(before) }
    }

    fn fetch_or(&self, at: u64, bits: u64) -> u64 {
        self.update(at, |word| word | bits)
    }

    fn fetch_and(&self, at: u64, bits: u64) -> u64 {
        self.update(at, |word| word & bits)
    }

    fn fetch_add(&self, at: u64, value: u64) -> u64 {
        self.update(at, |word| word.wrapping_add(value))
    }

    fn read(&self, at: u64, buf: &mut [u8]) {
        buf.copy_from_slice(&self.lock()[at as usize..at as usize + buf.len()]);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.lock()[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }

    fn wait(&self, at: u64, expected: u32, limit: Duration) {
        let bytes = self.lock();
        let same = |bytes: &mut Vec<u8>| word_in(bytes, at) & 0xffff_ffff == u64::from(expected);
        drop(self.changed.wait_timeout_while(bytes, limit, same));
    }

    fn wake(&self, _at: u64, _count: u32) {
        drop(self.lock());
        self.changed.notify_all();
    }

    fn clock_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn process_slot(&self) -> usize {
        0
    }

    fn is_alive(&self, process: usize) -> Result<bool, MediumError> {
        Ok(process == 0)
    }
}
