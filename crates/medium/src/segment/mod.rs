//! Memory that the processes of one database share: words for coordination, and bytes for passing data.
//!
//! Nothing in a segment is durable. Everything that must survive the end of the processes is on another
//! medium.

mod file;
mod index;
mod local;
mod locks;
mod words;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use file::FileSegment;
pub use index::REGION_BYTES;
pub use local::LocalSegment;
pub use locks::{
    Kind as ByteLock, Use as SegmentUse, clear as unlock_byte, others_hold as others_hold_bytes,
    set as lock_byte,
};
pub use words::Words;

use crate::MediumError;

/// The largest number of processes that can have a slot of a segment at the same time.
pub const PROCESS_SLOTS: usize = 128;

/// A shared segment of fixed length, which also registers the processes that use it.
///
/// Words are 8 bytes long, in the machine's byte order, at multiples of 8. Every operation on a word is
/// sequentially consistent. So if two processes each store a word and then load the other's word, at least
/// one of them sees what the other has stored.
///
/// A process slot is a number below [`PROCESS_SLOTS`] that a living process holds. The kernel frees the slot
/// when the process dies, however it dies, so a free slot proves that its last holder is gone.
///
/// # Panics
///
/// Every method panics on a position that is out of bounds or not aligned. Positions come from the layout,
/// never from the content.
pub trait Segment: Send + Sync {
    /// Returns the length in bytes.
    fn len(&self) -> u64;

    /// Returns whether the segment has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the word at `at`.
    fn load(&self, at: u64) -> u64;

    /// Replaces the word at `at`.
    fn store(&self, at: u64, value: u64);

    /// Replaces the word at `at` by `new` if it is `current`. Returns the previous value.
    ///
    /// # Errors
    /// The word's value, if it was not `current`.
    fn compare_exchange(&self, at: u64, current: u64, new: u64) -> Result<u64, u64>;

    /// Sets these bits of the word. Returns the previous value.
    fn fetch_or(&self, at: u64, bits: u64) -> u64;

    /// Clears all bits of the word except these. Returns the previous value.
    fn fetch_and(&self, at: u64, bits: u64) -> u64;

    /// Adds to the word, wrapping. Returns the previous value.
    fn fetch_add(&self, at: u64, value: u64) -> u64;

    /// Returns the `count` words from byte `base` on, if each operation above is a single instruction on
    /// memory. Otherwise returns an empty slice: this process may only read, or this kind of segment does
    /// more in an operation. [`Words`] works in both cases.
    fn words(&self, _base: u64, _count: usize) -> &[AtomicU64] {
        &[]
    }

    /// Copies bytes from the segment. Bytes that another process is writing may be copied in part.
    fn read(&self, at: u64, buf: &mut [u8]);

    /// Copies bytes to the segment.
    fn write(&self, at: u64, bytes: &[u8]);

    /// Orders copies of bytes (`read`, `write`) against operations on words: a copy before the fence happens
    /// before any operation on a word after it, and an operation before the fence happens before any copy
    /// after it. Without a fence, there is an order only between a process that stores a word and a process
    /// that loads the stored value.
    fn fence(&self) {
        std::sync::atomic::fence(Ordering::AcqRel);
    }

    /// Sleeps until another thread wakes this one, for at most `limit`. Returns at once if the low half of
    /// the word at `at` is not `expected`. May also return early for no reason.
    fn wait(&self, at: u64, expected: u32, limit: Duration);

    /// Wakes up to `count` threads that sleep on the word.
    fn wake(&self, at: u64, count: u32);

    /// Returns the time in nanoseconds, by a clock that never goes back and is the same in every process.
    fn clock_ns(&self) -> u64;

    /// Returns the time by the clock of [`Segment::clock_ns`], but as of the clock's last tick, up to a few
    /// milliseconds ago. This takes a quarter of the time that `clock_ns` takes.
    fn coarse_clock_ns(&self) -> u64 {
        self.clock_ns()
    }

    /// Returns this process's slot.
    fn process_slot(&self) -> usize;

    /// Returns whether a process holds the slot. This process's own slot counts as held.
    ///
    /// # Errors
    /// If the kernel does not report this.
    fn is_alive(&self, process: usize) -> Result<bool, MediumError>;

    /// Returns whether this process may only read the segment, and so has no process slot. In such a process,
    /// operations that would change a word have no effect.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Returns whether this kind of segment supports outside readers, that is, readers that may not write the
    /// segment.
    fn can_be_read_only(&self) -> bool {
        false
    }

    /// Returns whether an outside reader holds one of the `count` marks from `first` on. If a reader takes
    /// its mark too late for this call to see, that reader sees everything that this process stored in words
    /// before the call.
    ///
    /// # Errors
    /// If the kernel does not report this.
    fn has_outside_readers(&self, _first: usize, _count: usize) -> Result<bool, MediumError> {
        Ok(false)
    }

    /// Takes a mark, which tells other processes that this process, an outside reader, is reading. If another
    /// process checked for marks too early to see this one, this reader sees everything that the other
    /// process stored in words before that check. Returns `false` if the mark cannot be taken.
    ///
    /// # Errors
    /// If the kernel does not report this.
    fn hold_mark(&self, _mark: usize) -> Result<bool, MediumError> {
        Ok(false)
    }

    /// Releases a mark that `hold_mark` has taken.
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
