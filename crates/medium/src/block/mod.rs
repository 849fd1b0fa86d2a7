//! A preallocated file on a block device behind one trait.
//!
//! Every effect that a log has on a block device goes through [`Block`]: whole blocks are
//! *written*, and a *flush* makes them durable. No write allocates anything: the file's blocks
//! are initialised and its metadata durable before the first log block goes there (WALDIO,
//! section 4.1), so that the file system's journal has nothing to do at a commit.

mod direct;
mod extents;
mod file;
mod filesystem;
mod probe;
mod remembered;
mod scratch;

use std::fmt;
use std::ops::Range;

use crate::{Guarantee, MediumError};
pub use direct::Access;
pub use extents::{Extent, extents, is_initialised};
pub use file::{BlockOptions, FileBlock, sync_directory};
pub use filesystem::{FileSystem, check_filesystem};
pub use probe::{Probe, probe};

/// How a write is made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Durability {
    /// A write, then a flush of the device's cache (the paper's full synch).
    #[default]
    Full,
    /// One write that the device itself makes durable, where it can (the paper's persistent
    /// direct I/O).
    Fua,
    /// A write only: what it wrote survives a crash of the system if it was written directly, and not a
    /// power loss (the paper's normal synch).
    Normal,
}

/// What has been done through one object. The difference of two values is what was done in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCounters {
    /// Calls that wrote.
    pub writes: u64,
    /// Bytes written, without those of preallocation.
    pub written_bytes: u64,
    /// Flushes of the device's cache, and writes that were durable by themselves.
    pub flushes: u64,
    /// Bytes initialised by preallocation.
    pub preallocated_bytes: u64,
    /// Bytes read.
    pub read_bytes: u64,
}

/// A preallocated file of whole blocks.
///
/// # What is durable when
///
/// A written sector of 512 bytes *may* become durable at any moment from the call on, in any
/// order with others, and *is* durable when a [`flush`](Block::flush) that began after the write
/// has returned. A sector is atomic: after a power failure it holds what was written last or what
/// was durable before.
///
/// After a write or a flush has failed nothing is known about the blocks concerned, and a later
/// flush that succeeds proves nothing.
///
/// # Sharing
///
/// Writers to distinct blocks and readers may run at once, in any thread or process.
pub trait Block: Send + Sync + fmt::Debug {
    /// Bytes in a block: positions and lengths of writes are multiples of it.
    fn block_bytes(&self) -> u32;

    /// Preallocated bytes, as this object last learnt.
    fn len(&self) -> u64;

    /// Whether nothing is preallocated yet.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that are free for this user where the blocks are. Where that is not known, more than there can
    /// be.
    fn free_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Preallocates up to `len` bytes (a multiple of the block), zeroed. Writes nothing when that is done
    /// already. On return the blocks are initialised, and everything in the file is durable, with its
    /// metadata.
    ///
    /// # Errors
    /// [`MediumError::NoSpace`] when the file system is full, or another error of it. What was
    /// preallocated before stays.
    fn preallocate(&self, len: u64) -> Result<(), MediumError>;

    /// Makes the file `len` bytes long (a multiple of the block), for a caller that will write what it needs of the new part itself.
    /// The new part reads as zeros, and its space is reserved, but nothing is written where the medium can do without.
    /// Durable with the next [`flush`](Block::flush).
    ///
    /// # Errors
    /// As [`preallocate`](Block::preallocate).
    fn reserve(&self, len: u64) -> Result<(), MediumError> {
        if self.len() < len { self.preallocate(len) } else { Ok(()) }
    }

    /// Writes whole blocks at `at`, up to the end of the file or beyond it, without waiting for the device.
    /// They are durable after the next [`flush`](Block::flush) or [`preallocate`](Block::preallocate).
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

    /// Learns the present length: another process may have preallocated more, or given some back.
    ///
    /// # Errors
    /// An error of the file system.
    fn refresh_len(&self) -> Result<(), MediumError>;

    /// Cuts what is behind `len` bytes (a multiple of the block). The caller must be sure that nobody needs
    /// it, and that every object of the file learns its length anew before it relies on it. Not durable on
    /// return: after a power failure the bytes may be back, until as much is preallocated again. A medium
    /// that cannot give anything back does nothing.
    ///
    /// # Errors
    /// An error of the file system.
    fn shrink(&self, _len: u64) -> Result<(), MediumError> {
        Ok(())
    }

    /// Fills `buf` with the bytes from position `at` on, which may be any.
    ///
    /// # Errors
    /// [`MediumError::OutOfBounds`] beyond what is preallocated, or an error of the device.
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError>;

    /// Fills several buffers, one after the other, from any position on: in as few calls of the system as the medium can.
    ///
    /// # Errors
    /// As [`read`](Block::read); nothing is sure of the buffers then.
    fn read_parts(&self, at: u64, parts: &mut [&mut [u8]]) -> Result<(), MediumError> {
        let mut at = at;
        for part in parts {
            self.read(at, part)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Says that so many bytes will be read soon: a medium that can begins to fetch them, and does not wait for that. What
    /// fails then fails when they are read.
    fn will_read(&self, _at: u64, _len: u64) {}

    /// The first range from `at` on that may hold something other than zeros, up to the next bytes that
    /// cannot. So looking through a sparse file takes no longer than its data needs. An empty range at
    /// [`len`](Block::len) if there is no such range; everything from `at` on where the medium cannot tell.
    ///
    /// # Errors
    /// An error of the file system.
    fn next_data(&self, at: u64) -> Result<Range<u64>, MediumError> {
        Ok(at..self.len().max(at))
    }

    /// Writes whole blocks. Not durable until flushed.
    ///
    /// # Errors
    /// [`MediumError::OutOfBounds`] beyond what is preallocated, or an error of the device.
    fn write(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError>;

    /// Writes whole blocks and makes them as durable as `durability` says. Only with [`Durability::Full`]
    /// does everything written before become durable too.
    ///
    /// # Errors
    /// As [`write`](Block::write) and [`flush`](Block::flush).
    fn write_durably(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), MediumError>;

    /// Makes everything written so far durable.
    ///
    /// # Errors
    /// An error of the device.
    fn flush(&self) -> Result<(), MediumError>;

    /// What has been done through this object so far.
    fn counters(&self) -> BlockCounters;

    /// What survives once [`flush`](Block::flush) has returned.
    fn guarantee(&self) -> Guarantee;

    /// Whether a write that has returned has reached the device, so that it survives a crash of the system. A
    /// write through the page cache has not.
    fn writes_reach_device(&self) -> bool {
        false
    }

    /// One line for people: how blocks get to the device, and why that way.
    fn describe(&self) -> String;
}

// Buffers that direct I/O takes without a copy.

/// No device wants memory aligned more than this.
const ALIGNMENT: usize = 4096;

/// A growing buffer of bytes that begins at a multiple of 4096.
#[derive(Debug, Default)]
pub struct AlignedBuf {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// Changes the length. What the buffer holds afterwards is unspecified.
    pub fn resize(&mut self, len: usize) {
        if self.bytes.len() < len + ALIGNMENT {
            self.bytes = vec![0; (len + ALIGNMENT).next_power_of_two()];
            self.start = self.bytes.as_ptr().align_offset(ALIGNMENT);
        }
        self.len = len;
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// The bytes, to be changed.
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
