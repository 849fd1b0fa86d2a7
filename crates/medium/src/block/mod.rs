//! A preallocated file on a block device, behind one trait.
//!
//! Every effect that a log has on a block device goes through [`Block`]: whole blocks are *written*, and a
//! *flush* makes them durable. Before a log writes to a part of the file, the blocks of that part are
//! initialised, and the file's metadata is durable (WALDIO, section 4.1). So no write to the log allocates
//! anything, and a commit adds nothing to the file system's journal.

mod direct;
mod extents;
mod file;
mod filesystem;
mod fua;
mod probe;
mod remembered;
mod scratch;
mod sysfs;

use std::fmt;
use std::ops::Range;

use crate::{Guarantee, MediumError};
pub use direct::Access;
pub use extents::{Extent, extents, is_initialised};
pub use file::{BlockOptions, FileBlock, sync_directory};
pub use filesystem::{FileSystem, check_filesystem};
pub use fua::{Fua, fua};
pub use probe::{Probe, probe};

/// How a write is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Durability {
    /// A write, then a flush of the device's cache (the paper's full synch).
    #[default]
    Full,
    /// One write that the device itself makes durable, if the device can (the paper's persistent direct I/O).
    /// If it cannot, the kernel adds a flush after the write: see [`Fua`].
    Fua,
    /// A write without a flush (the paper's normal synch). The data does not survive a power loss. It
    /// survives a crash of the system if it was written directly.
    Normal,
}

/// Counts of what was done through one object. To count what a piece of work does, read the counts before and
/// after it, and subtract.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounters {
    /// The number of write calls.
    pub writes: u64,
    /// The number of bytes written, except those of preallocation.
    pub written_bytes: u64,
    /// The number of flushes of the device's cache, plus the number of writes that were durable without a
    /// flush.
    pub flushes: u64,
    /// The number of bytes that preallocation initialised.
    pub preallocated_bytes: u64,
    /// The number of bytes read.
    pub read_bytes: u64,
}

/// A preallocated file of whole blocks.
///
/// # What is durable when
///
/// A written sector of 512 bytes *may* become durable at any moment after the call begins, in any order with
/// others. It *is* durable after a [`flush`](Block::flush) that began after the write has returned. A sector
/// is atomic: after a power loss it holds either what the last write stored or what was durable before that
/// write.
///
/// If a write or a flush fails, nothing is known about the blocks concerned, even if a later flush succeeds.
///
/// # Sharing
///
/// Writers to different blocks, and readers, may run at the same time, in any thread or process.
pub trait Block: Send + Sync + fmt::Debug {
    /// Returns the number of bytes in a block. Positions and lengths of writes are multiples of this number.
    fn block_bytes(&self) -> u32;

    /// Returns the number of preallocated bytes that this object knows of. Another process may have changed
    /// the number since.
    fn len(&self) -> u64;

    /// Returns whether nothing is preallocated yet.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of free bytes for this user in the file system that holds the blocks. Returns a
    /// number larger than any file system if the free space is not known.
    fn free_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Makes the file at least `len` bytes long (a multiple of the block), with zeros in the new blocks.
    /// Writes nothing if the file is that long already. When this function returns, the blocks are
    /// initialised, and everything in the file is durable, including its metadata.
    ///
    /// # Errors
    /// [`MediumError::NoSpace`] if the file system is full, or another error of the file system. What was
    /// preallocated earlier stays. If the file could not be made durable, the error is one for which
    /// [`MediumError::is_failed_flush`] returns `true`, with the same consequences as a failed
    /// [`flush`](Block::flush).
    fn preallocate(&self, len: u64) -> Result<(), MediumError>;

    /// Makes the file `len` bytes long (a multiple of the block), for a caller that will itself write the new
    /// part. The new part reads as zeros, and its space is reserved, but nothing is written if the medium can
    /// avoid it. The change is durable after the next [`flush`](Block::flush).
    ///
    /// # Errors
    /// As [`preallocate`](Block::preallocate).
    fn reserve(&self, len: u64) -> Result<(), MediumError> {
        if self.len() < len { self.preallocate(len) } else { Ok(()) }
    }

    /// Writes whole blocks at `at`, up to the end of the file or beyond it. Does not wait for the device. The
    /// blocks are durable after the next [`flush`](Block::flush) or [`preallocate`](Block::preallocate).
    ///
    /// # Errors
    /// [`MediumError::NoSpace`], or an error of the device.
    fn write_later(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        let end = at + blocks.len() as u64;
        if end > self.len() {
            self.preallocate(end)?;
        }
        self.write(at, blocks)
    }

    /// Reads the file's length again, because another process may have preallocated more, or truncated the
    /// file.
    ///
    /// # Errors
    /// An error of the file system.
    fn refresh_len(&self) -> Result<(), MediumError>;

    /// Truncates the file to `len` bytes (a multiple of the block). The caller must be sure that nobody needs
    /// the removed part. The caller must also be sure that every other object of this file, in any process,
    /// calls `refresh_len` before it relies on the length. The new length is not durable when this function
    /// returns: after a power loss the removed bytes may be back, unless the same part has been preallocated
    /// again. A medium that cannot give space back does nothing.
    ///
    /// # Errors
    /// An error of the file system.
    fn shrink(&self, _len: u64) -> Result<(), MediumError> {
        Ok(())
    }

    /// Fills `buf` with the bytes from position `at` on. The position need not be aligned.
    ///
    /// # Errors
    /// [`MediumError::OutOfBounds`] beyond what is preallocated, or an error of the device.
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError>;

    /// Fills several buffers, one after the other, with the bytes from any position on. Uses as few system
    /// calls as the medium can.
    ///
    /// # Errors
    /// As [`read`](Block::read); the contents of the buffers are then undefined.
    fn read_parts(&self, at: u64, parts: &mut [&mut [u8]]) -> Result<(), MediumError> {
        let mut at = at;
        for part in parts {
            self.read(at, part)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Announces that these bytes will be read soon. If the medium is able to, it begins to fetch the bytes,
    /// and does not wait for them. If that fails, the later read reports the error.
    fn will_read(&self, _at: u64, _len: u64) {}

    /// Returns the first range from `at` on that may hold something other than zeros. The range ends where
    /// the next bytes are known to be zeros. So a caller can skip the holes of a sparse file. Returns an
    /// empty range at [`len`](Block::len) if only zeros follow, and everything from `at` on if the medium
    /// cannot tell.
    ///
    /// # Errors
    /// An error of the file system.
    fn next_data(&self, at: u64) -> Result<Range<u64>, MediumError> {
        Ok(at..self.len().max(at))
    }

    /// Writes whole blocks. The blocks are not durable before the next [`flush`](Block::flush).
    ///
    /// # Errors
    /// [`MediumError::OutOfBounds`] beyond what is preallocated, or an error of the device.
    fn write(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError>;

    /// Writes whole blocks and makes them as durable as `durability` says. With [`Durability::Full`],
    /// everything that was written earlier is durable too. The other values do not promise this.
    ///
    /// # Errors
    /// As [`write`](Block::write) and [`flush`](Block::flush).
    fn write_durably(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), MediumError>;

    /// Makes everything written so far durable.
    ///
    /// # Errors
    /// An error of the device.
    fn flush(&self) -> Result<(), MediumError>;

    /// Returns the counts of what has been done through this object.
    fn counters(&self) -> BlockCounters;

    /// Returns what survives once [`flush`](Block::flush) has returned.
    fn guarantee(&self) -> Guarantee;

    /// Returns whether a write has reached the device by the time it returns, and so survives a crash of the
    /// system. Returns `false` if writes go through the page cache.
    fn writes_reach_device(&self) -> bool {
        false
    }

    /// Returns what makes a write with [`Durability::Fua`] durable. Returns `None` if that is not known.
    fn fua(&self) -> Option<Fua> {
        None
    }

    /// Returns one line for people: how blocks are transferred to the device, and the reason for this choice.
    fn describe(&self) -> String;
}

// Buffers that direct I/O can use without a copy.

/// The greatest alignment of memory, in bytes, that a device requires.
const ALIGNMENT: usize = 4096;

/// A growing buffer of bytes that begins at a multiple of 4096.
#[derive(Debug, Default)]
pub struct AlignedBuf {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// Changes the length. The contents are undefined afterwards.
    pub fn resize(&mut self, len: usize) {
        if self.bytes.len() < len + ALIGNMENT {
            self.bytes = vec![0; (len + ALIGNMENT).next_power_of_two()];
            self.start = self.bytes.as_ptr().align_offset(ALIGNMENT);
        }
        self.len = len;
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// Returns the bytes, mutable.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_aligned_at_every_length() {
        let mut buffer = AlignedBuf::default();
        for len in [0, 1, 512, 4096, 100_000, 3, 1 << 20] {
            buffer.resize(len);
            assert_eq!(buffer.as_slice().len(), len);
            buffer.as_mut_slice().fill(7);
            assert!(len == 0 || buffer.as_slice().as_ptr().addr().is_multiple_of(ALIGNMENT));
        }
    }
}
