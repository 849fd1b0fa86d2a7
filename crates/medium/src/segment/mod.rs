//! Memory that the processes of one database share: words to agree by, and bytes to pass on.
//!
//! Nothing in it is durable. What has to outlive the last process is on another medium.

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

/// Most processes that can have a slot of a segment at once.
pub const PROCESS_SLOTS: usize = 128;

/// A shared segment of fixed length, and a register of the processes that use it.
///
/// Words are 8 bytes, in the machine's order, at multiples of 8. Every operation on a word is sequentially
/// consistent. So of two processes that each announce and then look, at least one sees the other.
///
/// A process slot is a number below [`PROCESS_SLOTS`] that a living process holds. The kernel frees it when
/// the process dies, however it dies, so a free slot proves that its last holder is gone.
///
/// # Panics
///
/// Every method panics on a position that is out of bounds or not aligned: positions come from the layout,
/// never from the content.
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

    /// Replaces the word at `at` by `new` if it is `current`. Returns the word before.
    ///
    /// # Errors
    /// The word, when it was another one.
    fn compare_exchange(&self, at: u64, current: u64, new: u64) -> Result<u64, u64>;

    /// Sets bits; returns the word before.
    fn fetch_or(&self, at: u64, bits: u64) -> u64;

    /// Keeps only the bits given; returns the word before.
    fn fetch_and(&self, at: u64, bits: u64) -> u64;

    /// Adds, wrapping; returns the word before.
    fn fetch_add(&self, at: u64, value: u64) -> u64;

    /// The `count` words from byte `base` on, if they are memory of this process that it may change: each
    /// operation above is then an instruction on one of them. Otherwise no word: this process may only read,
    /// or the operations do more than that. [`Words`] takes either.
    fn words(&self, _base: u64, _count: usize) -> &[AtomicU64] {
        &[]
    }

    /// Copies bytes out. What another process writes meanwhile may be seen in part.
    fn read(&self, at: u64, buf: &mut [u8]);

    /// Copies bytes in.
    fn write(&self, at: u64, bytes: &[u8]);

    /// Orders copies of bytes and operations on words. Copies before the fence are done before operations on
    /// words after it, and operations on words before the fence are done before copies after it. Without a
    /// fence, only a word that was seen to be stored orders the copies on both sides.
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

    /// The same clock as of its last tick, a few milliseconds ago. It costs a quarter.
    fn coarse_clock_ns(&self) -> u64 {
        self.clock_ns()
    }

    /// This process's slot.
    fn process_slot(&self) -> usize;

    /// Whether a process holds the slot. This process's own slot counts as held.
    ///
    /// # Errors
    /// When the kernel does not tell.
    fn is_alive(&self, process: usize) -> Result<bool, MediumError>;

    /// Whether this process may only read the segment, and has no process slot of it. No operation that would
    /// change a word has an effect then.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Whether such readers can exist at all.
    fn can_be_read_only(&self) -> bool {
        false
    }

    /// Whether such a reader holds one of the `count` marks from `first` on. A reader that is not found here
    /// sees what this process announced in words before the call.
    ///
    /// # Errors
    /// When the kernel does not tell.
    fn has_outside_readers(&self, _first: usize, _count: usize) -> Result<bool, MediumError> {
        Ok(false)
    }

    /// Holds a mark as such a reader, so that processes find it. A process either finds this reader, or the
    /// words that the reader loads from now on show what that process announced before it looked. `false`
    /// when the mark cannot be had.
    ///
    /// # Errors
    /// When the kernel does not tell.
    fn hold_mark(&self, _mark: usize) -> Result<bool, MediumError> {
        Ok(false)
    }

    /// Gives such a mark back.
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
