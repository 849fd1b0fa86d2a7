//! Memory that the processes of one database share: words to agree by, bytes to pass on.
//!
//! Nothing in it is durable. What has to outlive the last process is on another medium.

mod file;
mod index;
mod local;
mod locks;

use std::sync::atomic::Ordering;
use std::time::Duration;

pub use file::FileSegment;
pub use index::REGION_BYTES;
pub use local::LocalSegment;
pub use locks::{
    Kind as ByteLock, Use as SegmentUse, clear as unlock_byte, others_hold as others_hold_bytes,
    set as lock_byte,
};

use crate::MediumError;

/// Most processes that can have a slot of a segment at once.
pub const PROCESS_SLOTS: usize = 128;

/// A shared segment of fixed length, and a register of the processes that use it.
///
/// Words are 8 bytes, in the machine's order, at multiples of 8. Every operation on a word is sequentially
/// consistent, so that two processes that each announce and then look cannot both see nothing.
///
/// A process slot is a number below [`PROCESS_SLOTS`] that a living process holds. The kernel frees it when the
/// process dies, however it dies, so a slot found free proves that its last holder is gone.
///
/// # Panics
///
/// Every method panics on a position that is out of bounds or not aligned: positions come from
/// the layout, never from the content.
pub trait Segment: Send + Sync {
    /// Bytes.
    fn len(&self) -> u64;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The word at `at`.
    fn load(&self, at: u64) -> u64;

    /// Replaces the word at `at`.
    fn store(&self, at: u64, value: u64);

    /// Replaces the word at `at` by `new` if it is `current`.
    ///
    /// # Errors
    /// What the word was, when it was something else.
    fn compare_exchange(&self, at: u64, current: u64, new: u64) -> Result<u64, u64>;

    /// Sets bits; returns the word before.
    fn fetch_or(&self, at: u64, bits: u64) -> u64;

    /// Keeps only the bits given; returns the word before.
    fn fetch_and(&self, at: u64, bits: u64) -> u64;

    /// Adds, wrapping; returns the word before.
    fn fetch_add(&self, at: u64, value: u64) -> u64;

    /// Copies bytes out. What another process writes meanwhile may be seen in part.
    fn read(&self, at: u64, buf: &mut [u8]);

    /// Copies bytes in.
    fn write(&self, at: u64, bytes: &[u8]);

    /// Keeps the copies before it from being done behind the operations on words after it, and those on
    /// words before it from being done behind the copies after it. Without it only a word that was
    /// seen to be stored orders the copies on both sides.
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::AcqRel);
    }

    /// Sleeps while the low half of the word at `at` is `expected`, until woken or for at most
    /// `limit`. May return early for no reason.
    fn wait(&self, at: u64, expected: u32, limit: Duration);

    /// Wakes up to `count` sleepers at the word.
    fn wake(&self, at: u64, count: u32);

    /// Nanoseconds of a clock that never goes back and is the same for every process.
    fn clock_ns(&self) -> u64;

    /// The same clock as of its last tick, a few milliseconds ago: a quarter of the price.
    fn coarse_clock_ns(&self) -> u64 {
        self.clock_ns()
    }

    /// This process's slot.
    fn process_slot(&self) -> usize;

    /// Whether a process holds the slot. This process's own is alive.
    ///
    /// # Errors
    /// When the kernel does not tell.
    fn is_alive(&self, process: usize) -> Result<bool, MediumError>;

    /// Whether this is how somebody sees the segment who may only read it, and is without a process slot of it. Nothing that
    /// would change a word has an effect.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Whether there can be such readers at all.
    fn can_be_read_only(&self) -> bool {
        false
    }

    /// Whether such a reader holds one of `count` marks from `first` on. What this process has announced in
    /// words before, a reader sees that is not found here.
    ///
    /// # Errors
    /// When the kernel does not tell.
    fn has_outside_readers(&self, _first: usize, _count: usize) -> Result<bool, MediumError> {
        Ok(false)
    }

    /// As such a reader: holds a mark, so that processes find it. They see it, or the words that this process
    /// loads from now on have what they announced before they looked. `false` when it cannot be had.
    ///
    /// # Errors
    /// When the kernel does not tell.
    fn hold_mark(&self, _mark: usize) -> Result<bool, MediumError> {
        Ok(false)
    }

    /// Gives a mark back.
    fn release_mark(&self, _mark: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_finds_no_slot_gets_one_when_somebody_has_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("segment");
        let join = |fresh: Option<u64>| {
            let file =
                std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
            FileSegment::join(file.unwrap().into(), &path, 4096, fresh)
        };
        let mut processes: Vec<_> =
            (0..PROCESS_SLOTS).map(|process| join((process == 0).then_some(4096)).unwrap()).collect();
        assert_eq!(join(None).unwrap_err(), MediumError::Crowded { most: PROCESS_SLOTS });
        drop(processes.swap_remove(77));
        assert_eq!(join(None).unwrap().process_slot(), 77);
    }
}
