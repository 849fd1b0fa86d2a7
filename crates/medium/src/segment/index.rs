//! SQLite's wal-index, which follows the words in the segment's file. It consists of regions of 32 KiB, which
//! are mapped one by one.
//!
//! The regions, and the words, are mapped through a second open file description. After a fork, SQLite in the
//! child still reads what it has mapped. If the mappings used the description that carries the parent's lock,
//! the parent's lock would exist until the child ends. SQLite in the child also writes to the wal-index when
//! it rolls back an inherited transaction, so the child gets a private copy of each mapping (invariant 14).
#![allow(unsafe_code)] // mappings

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;
use rustix::mm::ProtFlags;

use crate::mapped::{map_sparse, write_zeros};
use crate::{MediumError, process};

/// The number of bytes in a region of a wal-index.
pub const REGION_BYTES: u64 = 32 << 10;
/// The largest memory page of any machine. The regions begin at a multiple of it.
const LARGEST_PAGE: u64 = 64 << 10;

/// The regions that this process has mapped.
#[derive(Debug)]
pub(super) struct Index {
    file: File,
    write: bool,
    /// The offset of the first region in the file.
    start: u64,
    /// The size of a piece in bytes, which is the size of a memory page or of a region, whichever is larger.
    piece: u64,
    /// The mapped pieces.
    pieces: Mutex<Vec<NonNull<u8>>>,
}

// SAFETY: the mappings belong to this object alone and stay where they are until the drop. The object gives
// out only their addresses.
unsafe impl Send for Index {}
// SAFETY: only the list of mappings is shared between threads, under a mutex.
unsafe impl Sync for Index {}

fn piece_bytes() -> u64 {
    process::piece_bytes() as u64
}

impl Index {
    /// Opens the wal-index, which begins after the first `used` bytes of a file.
    pub(super) fn open(file: &File, path: &Path, used: u64, write: bool) -> Result<Self, MediumError> {
        let again = reopen(file, path, write).map_err(|error| {
            MediumError::from_errno("open", Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        let start = used.next_multiple_of(LARGEST_PAGE);
        Ok(Self { file: again, write, start, piece: piece_bytes(), pieces: Mutex::default() })
    }

    /// Returns the file through which everything is mapped. Its open file description carries no lock.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    fn length(&self) -> Result<u64, MediumError> {
        let stat = rustix::fs::fstat(&self.file).map_err(|errno| MediumError::from_errno("fstat", errno))?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// Copies bytes from the beginning of the first region on. Returns how many bytes were copied.
    pub(super) fn read(&self, buf: &mut [u8]) -> Result<usize, MediumError> {
        rustix::io::pread(&self.file, buf, self.start)
            .map_err(|errno| MediumError::from_errno("pread", errno))
    }

    /// Fills every region with zeros. Does not truncate the file, because a process that is about to end may
    /// still have it mapped, although no process uses it any more. Keeps the disk space of the first piece:
    /// the next open needs that space, and if it were freed on a full disk, another program could take it.
    pub(super) fn clear(&self) -> Result<(), MediumError> {
        let length = self.length()?;
        let first = length.min(self.start + self.piece);
        if first > self.start && write_zeros(&self.file, self.start, first).is_err() {
            self.punch(self.start, first)?;
        }
        if length > first { self.punch(first, length) } else { Ok(()) }
    }

    fn punch(&self, from: u64, to: u64) -> Result<(), MediumError> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, flags, from, to - from) {
            Ok(()) => Ok(()),
            Err(_) => write_zeros(&self.file, from, to),
        }
    }

    /// Returns the address of a region, which stays the same as long as this object exists. Returns `None` if
    /// the file does not reach to the region and `extend` is `false`.
    pub(super) fn region(&self, number: u64, extend: bool) -> Result<Option<NonNull<u8>>, MediumError> {
        let piece = self.piece;
        let within = number * REGION_BYTES;
        let wanted = (within / piece) as usize;
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        while pieces.len() <= wanted {
            let at = self.start + pieces.len() as u64 * piece;
            let reaches = self.write && extend || self.length()? >= at + piece;
            if !reaches {
                return Ok(None);
            }
            // Reserve space for the piece before anything is stored there, because on a full file system a
            // store into a hole kills the process.
            let backed = if self.write {
                rustix::fs::fallocate(&self.file, FallocateFlags::empty(), at, piece)
            } else {
                Ok(())
            };
            match backed {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) if self.length()? >= at + piece => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(&self.file, at, at + piece)?,
                Err(errno) => return Err(MediumError::from_errno("fallocate", errno)),
            }
            pieces.push(process::map_for_this_process(|| self.map(at, piece))?);
        }
        // SAFETY: a region is inside its piece.
        Ok(Some(unsafe { pieces[wanted].byte_add((within % piece) as usize) }))
    }

    fn map(&self, at: u64, bytes: u64) -> Result<NonNull<u8>, MediumError> {
        let protection = if self.write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        map_sparse(&self.file, at, bytes as usize, protection)
    }

    /// Unmaps all pieces.
    pub(super) fn unmap(&mut self) {
        let pieces = self.pieces.get_mut().unwrap_or_else(PoisonError::into_inner);
        for piece in pieces.drain(..) {
            process::forget_mapping(piece);
            // SAFETY: this object made the mapping, and no address in it is used any more.
            let _ = unsafe { rustix::mm::munmap(piece.as_ptr().cast(), self.piece as usize) };
        }
    }
}

/// Opens the same file again.
fn reopen(file: &File, path: &Path, write: bool) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(write).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    // Open this path without NOFOLLOW, because it always is a symbolic link.
    let again = match OpenOptions::new().read(true).write(write).open(own) {
        Ok(again) => again,
        Err(_) => options.open(path)?,
    };
    let again = process::off_standard_streams(again)?;
    let (one, two) = (file.metadata()?, again.metadata()?);
    if (one.dev(), one.ino()) == (two.dev(), two.ino()) {
        Ok(again)
    } else {
        Err(std::io::Error::from(std::io::ErrorKind::NotFound))
    }
}
