//! Byte-addressable persistent memory (NVRAM) behind one trait, [`Nvm`], and beside it the other media:
//! [`block`] (preallocated files), [`Segment`] (memory that processes share), and [`process`] (which process
//! this is).
//!
//! Every effect that a log has on persistent memory goes through [`Nvm`]. Bytes are *stored* through the
//! cache, their lines are *flushed*, and a *fence* makes what was flushed durable. So the same engine code
//! runs on
//!
//! - [`FileNvm`], a mapped file: real NVRAM on a DAX file system, or an emulation on any other one, with
//!   latency added per flushed line and per barrier;
//! - any other implementation of the trait. Tests of durability put one before a medium, or one in its place
//!   that remembers what a power failure may lose.
//!
//! Offsets and lengths are bytes from the start of the medium; times are nanoseconds.

pub mod block;
mod cacheline;
mod counters;
mod cut;
mod domain;
mod error;
mod latency;
mod mapped;
mod options;
mod persistency;
pub mod process;
mod segment;

use std::fmt;

pub use cacheline::{FlushInstruction, detect_flush_instruction};
pub use counters::Counters;
pub use domain::{PersistenceDomain, persistence_domain};
pub use error::{MediumError, in_words};
pub use latency::Latency;
pub use mapped::{FileNvm, has_dax, is_dax};
pub use options::MapOptions;
pub use persistency::{ParsePersistencyError, Persistency};
pub use segment::{
    ByteLock, FileSegment, LocalSegment, PROCESS_SLOTS, REGION_BYTES, Segment, SegmentUse, Words, lock_byte,
    others_hold_bytes, unlock_byte,
};

/// Bytes in a cache line: the unit in which memory is written back, and for which latency is charged.
pub const LINE_BYTES: u64 = 64;

/// What survives once [`Nvm::fence`] has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Guarantee {
    /// Flushed and fenced bytes survive a power failure.
    PowerLoss,
    /// What was written survives a crash of the system. A power failure may lose the newest of it.
    SystemCrash,
    /// After a power failure a prefix of what was acknowledged is there. The newest of it may be missing.
    Ordered,
    /// Stored bytes survive the death of the process, but not a failure of the machine.
    ProcessCrash,
}

impl Guarantee {
    /// `"power-loss"`, `"system-crash"`, `"ordered"` or `"process-crash"`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PowerLoss => "power-loss",
            Self::SystemCrash => "system-crash",
            Self::Ordered => "ordered",
            Self::ProcessCrash => "process-crash",
        }
    }
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Persistent memory of a bounded, growing length.
///
/// # What is durable when
///
/// On a medium whose [`guarantee`](Nvm::guarantee) is [`Guarantee::PowerLoss`]:
///
/// - A stored byte *may* become durable at any moment from the store on, because the processor may evict its
///   cache line. It *is* durable when its line has been flushed after the store and a fence has returned
///   after the flush.
/// - An aligned 8-byte word is atomic: after a power failure it holds a value that was stored whole. Only
///   [`store_u64`](Nvm::store_u64) has a promised order within its line. The bytes of one
///   [`store`](Nvm::store) or [`stream`](Nvm::stream) may become durable in any order.
/// - Stores to one line become durable in the order of the calls.
///
/// Where caches are in the persistence domain ([`is_durable_on_store`](Nvm::is_durable_on_store)) a store is
/// durable without a flush, which does nothing there. The store *is* durable once a fence has returned after
/// it, and never later than a store that follows the fence.
///
/// A process that dies loses no store.
///
/// # Sharing
///
/// Each byte has one writer at a time, as the caller's locks provide, and no reader that has not been told of
/// it. Threads and processes that write disjoint bytes may do so at once, also words of one line, and readers
/// of other bytes may run beside them. A reader that has loaded a word written by `store_u64` sees every
/// `store` that its writer made before it. Only [`fence`](Nvm::fence) orders streamed bytes.
///
/// A flush reaches a line whichever thread has stored there. A fence waits only for the flushes of its own
/// thread.
///
/// # Panics
///
/// Every method that takes a range and returns no [`Result`] panics when the range is not inside
/// [`len`](Nvm::len). Positions that were read from the medium have to be checked before they are used.
pub trait Nvm: Send + Sync + fmt::Debug {
    /// Bytes that the medium backs, as this process last learnt.
    fn len(&self) -> u64;

    /// Whether nothing is backed yet.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of address space reserved: the most that [`len`](Nvm::len) can become.
    fn capacity(&self) -> u64;

    /// Backs the medium up to `len` bytes. Does nothing when it is that long already. New bytes are zero
    /// unless another process has stored there.
    ///
    /// On return the new length is durable if the medium is, and no later store into it can fail for lack of
    /// space.
    ///
    /// # Errors
    ///
    /// [`MediumError::NoSpace`] when the file system is full, [`MediumError::OutOfBounds`] when
    /// `len` exceeds [`capacity`](Nvm::capacity), or another error of the file system. `len()`
    /// stays as it was.
    fn grow(&self, len: u64) -> Result<(), MediumError>;

    /// Truncates the medium, and the file behind it, to `len` bytes. Does nothing when it is no longer than
    /// that. No code may be using the removed part, in this process or in another one. In other processes
    /// [`len`](Nvm::len) stays as it is.
    ///
    /// On return the new length is visible to every process. It is durable after the file's next sync.
    ///
    /// # Errors
    ///
    /// An error of the file system. The length then stays.
    fn shrink(&self, len: u64) -> Result<(), MediumError>;

    /// Whether everything read or stored so far existed. If another program truncates the file, the process
    /// goes on where the medium can prevent its end. What was read is then worth nothing.
    ///
    /// # Errors
    ///
    /// [`MediumError::Cut`], from the first access on that has found nothing.
    fn check(&self) -> Result<(), MediumError> {
        Ok(())
    }

    /// Whether a store is durable without a flush.
    fn is_durable_on_store(&self) -> bool {
        false
    }

    /// Learns the present length when it is known to be shorter than `at_least`: another process
    /// may have grown the file.
    ///
    /// # Errors
    ///
    /// [`MediumError::OutOfBounds`] when the medium still is shorter.
    fn refresh_len(&self, at_least: u64) -> Result<(), MediumError>;

    /// Copies the bytes from `at` on into `buf`.
    fn read(&self, at: u64, buf: &mut [u8]);

    /// The first place from `at` on that may hold something other than zeros, or the end of the medium. `at`
    /// itself where that is not known.
    fn next_data(&self, at: u64) -> u64 {
        at
    }

    /// One 8-byte atomic load with acquire ordering of a little-endian word. `at` must be a
    /// multiple of 8. Not counted and not delayed: it is what a waiting reader polls.
    ///
    /// # Panics
    ///
    /// When the word is out of bounds or not aligned.
    fn load_u64(&self, at: u64) -> u64;

    /// Stores bytes through the cache. Nothing is durable until flushed and fenced.
    fn store(&self, at: u64, bytes: &[u8]);

    /// One 8-byte atomic store with release ordering, little-endian. `at` must be a multiple of
    /// 8. Not durable until flushed and fenced.
    ///
    /// # Panics
    ///
    /// When the word is out of bounds or not aligned.
    fn store_u64(&self, at: u64, value: u64);

    /// Stores `new` in the word at `at`, which must be a multiple of 8, if the word is `current`. This is one
    /// atomic operation, sequentially consistent among all processes. `Ok(current)` says that `new` was
    /// stored, as by [`store_u64`](Nvm::store_u64).
    ///
    /// # Errors
    ///
    /// The word, if it is not `current`.
    ///
    /// # Panics
    ///
    /// When the word is out of bounds or not aligned.
    fn compare_exchange_u64(&self, at: u64, current: u64, new: u64) -> Result<u64, u64>;

    /// Stores bytes with non-temporal stores where the range covers whole lines, and stores and flushes the
    /// rest. They are durable after the next fence, and only then are other processes sure to see them.
    fn stream(&self, at: u64, bytes: &[u8]);

    /// Starts writing back every line that the range touches. The lines are durable after the next fence. An
    /// empty range touches no line.
    fn flush(&self, at: u64, len: u64);

    /// The persist barrier: everything flushed or streamed before is durable on return.
    fn fence(&self);

    /// Allocates a range with one call to the file system, for the variants without a user-level heap (paper,
    /// sections 3.3 and 5). The range may lie beyond [`len`](Nvm::len), which then grows to its end. Where
    /// the range was freed before, its content afterwards is unspecified.
    ///
    /// # Errors
    ///
    /// As [`grow`](Nvm::grow).
    fn system_allocate(&self, at: u64, len: u64) -> Result<(), MediumError>;

    /// Gives the space of a range back with one call to the file system. The length stays. The content of the
    /// range afterwards is unspecified, and the range must be allocated again before anything is stored
    /// there.
    ///
    /// # Errors
    ///
    /// [`MediumError::OutOfBounds`] when the range is not inside [`len`](Nvm::len),
    /// [`MediumError::Unsupported`] where the file system cannot punch holes.
    fn system_free(&self, at: u64, len: u64) -> Result<(), MediumError>;

    /// Backs a range again that was given back, as well as growing would: no later store into it can fail.
    /// The range may end inside [`len`](Nvm::len) or beyond it.
    ///
    /// # Errors
    ///
    /// As [`grow`](Nvm::grow).
    fn restore(&self, at: u64, len: u64) -> Result<(), MediumError> {
        self.system_allocate(at, len)
    }

    /// What has been done through this object so far.
    fn counters(&self) -> Counters;

    /// What survives once [`fence`](Nvm::fence) has returned.
    fn guarantee(&self) -> Guarantee;

    /// One line for people: what the medium is, where, and what is emulated.
    fn describe(&self) -> String;

    /// Changes the added latency. The first use of a latency that is not zero calibrates a clock,
    /// which takes some milliseconds.
    fn set_latency(&self, latency: Latency);

    /// The added latency in force.
    fn latency(&self) -> Latency;
}

/// Number of lines that `len` bytes at `at` touch.
#[inline]
#[must_use]
pub fn lines_touched(at: u64, len: u64) -> u64 {
    if len == 0 { 0 } else { (at + len - 1) / LINE_BYTES - at / LINE_BYTES + 1 }
}

/// The end of the range of `len` bytes at `at`, which must not exceed `limit`.
///
/// # Errors
/// [`MediumError::OutOfBounds`] if it does.
pub fn checked_end(at: u64, len: u64, limit: u64) -> Result<u64, MediumError> {
    match at.checked_add(len) {
        Some(end) if end <= limit => Ok(end),
        _ => Err(MediumError::OutOfBounds { at, len }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_ranges() {
        assert_eq!(lines_touched(0, 0), 0);
        assert_eq!(lines_touched(63, 0), 0);
        assert_eq!(lines_touched(0, 1), 1);
        assert_eq!(lines_touched(0, 64), 1);
        assert_eq!(lines_touched(0, 65), 2);
        assert_eq!(lines_touched(63, 2), 2);
        assert_eq!(lines_touched(1, 64), 2);
        assert_eq!(lines_touched(64, 4096), 64);
    }

    #[test]
    fn ends_do_not_wrap() {
        assert_eq!(checked_end(4, 4, 8), Ok(8));
        assert_eq!(checked_end(5, 4, 8), Err(MediumError::OutOfBounds { at: 5, len: 4 }));
        assert!(checked_end(u64::MAX, 2, u64::MAX).is_err());
    }

    #[test]
    fn guarantee_names() {
        assert_eq!(Guarantee::PowerLoss.as_str(), "power-loss");
        assert_eq!(Guarantee::ProcessCrash.to_string(), "process-crash");
    }
}
