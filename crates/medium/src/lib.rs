//! Byte-addressable persistent memory (NVRAM) behind one trait, [`Nvm`], and two other media: [`block`]
//! (preallocated files) and [`Segment`] (memory that processes share). With [`process`], code can tell
//! whether it runs in the process that opened a handle or in a child of that process.
//!
//! Every effect that a log has on persistent memory goes through [`Nvm`]. Bytes are *stored* through the
//! cache, their lines are *flushed*, and a *fence* makes what was flushed durable. So the same engine code
//! runs on
//!
//! - [`FileNvm`], a mapped file: real NVRAM on a DAX file system, or an emulation on any other file system,
//!   with latency added per flushed line and per barrier;
//! - any other implementation of the trait. Tests of durability use an implementation that wraps a medium, or
//!   one that remembers which stores a power loss may lose.
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
mod queue;
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

/// The number of bytes in a cache line. Memory is written back in whole lines, and latency is added per line.
pub const LINE_BYTES: u64 = 64;

/// What survives once [`Nvm::fence`] has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Guarantee {
    /// Flushed and fenced bytes survive a power loss.
    PowerLoss,
    /// Written data survives a crash of the system. A power loss may lose the newest data.
    SystemCrash,
    /// After a power loss a prefix of the acknowledged data remains. The newest part may be missing.
    Ordered,
    /// Stored bytes survive the death of the process, but not a crash of the system or a power loss.
    ProcessCrash,
}

impl Guarantee {
    /// Returns `"power-loss"`, `"system-crash"`, `"ordered"` or `"process-crash"`.
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

/// Persistent memory whose length grows, up to a limit.
///
/// # What is durable when
///
/// On a medium whose [`guarantee`](Nvm::guarantee) is [`Guarantee::PowerLoss`]:
///
/// - A stored byte *may* become durable at any moment after the store, because the processor may evict its
///   cache line. It *is* durable when its line was flushed after the store, and a fence after that flush has
///   returned.
/// - An aligned 8-byte word is atomic: after a power loss it holds a value that was stored as a whole. The
///   bytes of one [`store`](Nvm::store) or [`stream`](Nvm::stream), unlike those of one
///   [`store_u64`](Nvm::store_u64), may become durable in any order.
/// - Stores to one line become durable in the order of the calls.
///
/// If caches are in the persistence domain ([`is_durable_on_store`](Nvm::is_durable_on_store)), a store needs
/// no flush, and a flush does nothing. The store *is* durable when a fence after the store has returned. A
/// store before a fence becomes durable before every store after the fence.
///
/// The death of a process loses none of its stores.
///
/// # Sharing
///
/// The caller's locks ensure that each byte has one writer at a time, and that a reader reads a byte only
/// after the writer has announced that the byte is written. Threads and processes may write different bytes
/// at the same time, even different words of one line, while others read other bytes. A reader that has
/// loaded a word written by `store_u64` sees every `store` that the writer made before it. Only
/// [`fence`](Nvm::fence) orders streamed bytes.
///
/// A flush covers stores to the line by any thread. A fence waits only for the flushes of the thread that
/// calls it.
///
/// # Panics
///
/// Every method that takes a range and returns no [`Result`] panics if the range is not inside
/// [`len`](Nvm::len). So the caller must check a position that it has read from the medium before using it.
pub trait Nvm: Send + Sync + fmt::Debug {
    /// Returns how many bytes of the medium have storage, as far as this process knows. Another process may
    /// have changed the length since.
    fn len(&self) -> u64;

    /// Returns whether no byte of the medium has storage yet.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of bytes of address space that are reserved: the most that [`len`](Nvm::len) can
    /// become.
    fn capacity(&self) -> u64;

    /// Makes the medium `len` bytes long, with storage behind every byte. Does nothing if the medium is that
    /// long already. New bytes are zero unless another process has stored something there.
    ///
    /// On return the new length is durable if the medium is durable, and no later store into the new part can
    /// fail for lack of space.
    ///
    /// # Errors
    ///
    /// [`MediumError::NoSpace`] if the file system is full, [`MediumError::OutOfBounds`] if `len` exceeds
    /// [`capacity`](Nvm::capacity), or another error of the file system. `len()` does not change.
    fn grow(&self, len: u64) -> Result<(), MediumError>;

    /// Truncates the medium, and its file, to `len` bytes. Does nothing if the medium is not longer than
    /// that. No process may be using the removed part, because other processes still get the old length from
    /// [`len`](Nvm::len).
    ///
    /// On return the file has the new length for every process. The new length is durable after the file's
    /// next sync.
    ///
    /// # Errors
    ///
    /// An error of the file system. The length then does not change.
    fn shrink(&self, len: u64) -> Result<(), MediumError>;

    /// Checks that every byte that was read or stored until now existed in the file. If another program
    /// truncates the file, the process survives only on a medium that can prevent SIGBUS. Even then, what the
    /// process has read since the truncation is not valid.
    ///
    /// # Errors
    ///
    /// [`MediumError::Cut`], if an access has found that a page of the file is missing.
    fn check(&self) -> Result<(), MediumError> {
        Ok(())
    }

    /// Returns whether a store is durable without a flush.
    fn is_durable_on_store(&self) -> bool {
        false
    }

    /// Reads the present length from the file if the length known so far is less than `at_least`, because
    /// another process may have grown the file.
    ///
    /// # Errors
    ///
    /// [`MediumError::OutOfBounds`] if the medium is still shorter.
    fn refresh_len(&self, at_least: u64) -> Result<(), MediumError>;

    /// Copies the bytes from `at` on into `buf`.
    fn read(&self, at: u64, buf: &mut [u8]);

    /// Searches from `at` on for bytes that may be other than zeros. Returns the offset of the first such
    /// byte, or the end of the medium if there is none. Returns `at` itself if the medium cannot tell.
    fn next_data(&self, at: u64) -> u64 {
        at
    }

    /// Loads a little-endian word with one 8-byte atomic load with acquire ordering. `at` must be a multiple
    /// of 8. The load is neither counted nor delayed, because waiting readers poll such words.
    ///
    /// # Panics
    ///
    /// If the word is out of bounds or not aligned.
    fn load_u64(&self, at: u64) -> u64;

    /// Stores bytes through the cache. The bytes are not durable until they are flushed and fenced.
    fn store(&self, at: u64, bytes: &[u8]);

    /// Stores a little-endian word with one 8-byte atomic store with release ordering. `at` must be a
    /// multiple of 8. The word is not durable until it is flushed and fenced.
    ///
    /// # Panics
    ///
    /// If the word is out of bounds or not aligned.
    fn store_u64(&self, at: u64, value: u64);

    /// If the word at `at` (a multiple of 8) is `current`, replaces it by `new`. This is one atomic
    /// operation, sequentially consistent among all processes. Returns `Ok(current)` if it has stored `new`,
    /// as [`store_u64`](Nvm::store_u64) would.
    ///
    /// # Errors
    ///
    /// The word's value, if it is not `current`.
    ///
    /// # Panics
    ///
    /// If the word is out of bounds or not aligned.
    fn compare_exchange_u64(&self, at: u64, current: u64, new: u64) -> Result<u64, u64>;

    /// Stores bytes: whole lines of the range with non-temporal stores, and the rest with ordinary stores and
    /// flushes. The bytes are durable after the next fence. Before that fence, other processes may not see
    /// the bytes yet.
    fn stream(&self, at: u64, bytes: &[u8]);

    /// Starts writing back every line that the range touches. The lines are durable after the next fence. An
    /// empty range touches no line.
    fn flush(&self, at: u64, len: u64);

    /// Waits until everything that was flushed or streamed before the call is durable (the persist barrier).
    fn fence(&self);

    /// Allocates a range with one call to the file system, for the variants without a user-level heap (paper,
    /// sections 3.3 and 5). The range may lie beyond [`len`](Nvm::len), which then grows to the end of the
    /// range. If the range was freed before, its contents are undefined afterwards.
    ///
    /// # Errors
    ///
    /// As [`grow`](Nvm::grow).
    fn system_allocate(&self, at: u64, len: u64) -> Result<(), MediumError>;

    /// Gives back the space of a range with one call to the file system. The length does not change. The
    /// contents of the range are undefined afterwards, and the range must be allocated again before anything
    /// is stored there.
    ///
    /// # Errors
    ///
    /// [`MediumError::OutOfBounds`] if the range is not inside [`len`](Nvm::len),
    /// [`MediumError::Unsupported`] if the file system cannot punch holes.
    fn system_free(&self, at: u64, len: u64) -> Result<(), MediumError>;

    /// Reserves storage again for a range whose space [`system_free`](Nvm::system_free) has given back. As
    /// after [`grow`](Nvm::grow), no later store into the range can fail. The range may end inside
    /// [`len`](Nvm::len) or beyond it.
    ///
    /// # Errors
    ///
    /// As [`grow`](Nvm::grow).
    fn restore(&self, at: u64, len: u64) -> Result<(), MediumError> {
        self.system_allocate(at, len)
    }

    /// Returns the counts of what has been done through this object.
    fn counters(&self) -> Counters;

    /// Returns what survives once [`fence`](Nvm::fence) has returned.
    fn guarantee(&self) -> Guarantee;

    /// Returns one line for people: what the medium is, where it is, and what is emulated.
    fn describe(&self) -> String;

    /// Changes the added latency. The first call with a latency that is not zero calibrates a clock, which
    /// takes some milliseconds.
    fn set_latency(&self, latency: Latency);

    /// Returns the latency that is added now.
    fn latency(&self) -> Latency;
}

/// Returns the number of lines that `len` bytes at `at` touch.
#[inline]
#[must_use]
pub fn lines_touched(at: u64, len: u64) -> u64 {
    if len == 0 { 0 } else { (at + len - 1) / LINE_BYTES - at / LINE_BYTES + 1 }
}

/// Returns the end of the range of `len` bytes at `at`, checked not to exceed `limit`.
///
/// # Errors
/// [`MediumError::OutOfBounds`] if the end exceeds `limit`.
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
