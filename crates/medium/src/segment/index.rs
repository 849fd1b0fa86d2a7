//! SQLite's wal-index, behind the words in the segment's file: regions of 32 KiB that are mapped one by one.
//!
//! They are mapped through a second opening of the file. After a fork SQLite goes on reading, in the child,
//! what it has mapped. If the mappings were of the opening that carries the process's lock, the lock would
//! live as long as the child. SQLite also writes there when it rolls an inherited transaction back, so a
//! child has a copy instead (invariant 14).
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

/// Bytes in a region of a wal-index.
pub const REGION_BYTES: u64 = 32 << 10;
/// The largest page of memory on any machine. The regions begin at a multiple of it.
const LARGEST_PAGE: u64 = 64 << 10;

/// The regions that are mapped.
#[derive(Debug)]
pub(super) struct Index {
    file: File,
    write: bool,
    /// Where the first region is in the file.
    start: u64,
    /// Bytes of a piece.
    piece: u64,
    /// Regions are mapped in pieces of a memory page or a region, whichever is larger.
    pieces: Mutex<Vec<NonNull<u8>>>,
}

// SAFETY: the mappings belong to this object alone and stay where they are until the drop; it gives out their
// addresses only.
unsafe impl Send for Index {}
// SAFETY: as above.
unsafe impl Sync for Index {}

fn piece_bytes() -> u64 {
    process::piece_bytes() as u64
}

impl Index {
    /// The regions behind the first `used` bytes of a file.
    pub(super) fn open(file: &File, path: &Path, used: u64, write: bool) -> Result<Self, MediumError> {
        let again = reopen(file, path, write).map_err(|error| {
            MediumError::from_errno("open", Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        let start = used.next_multiple_of(LARGEST_PAGE);
        Ok(Self { file: again, write, start, piece: piece_bytes(), pieces: Mutex::default() })
    }

    fn length(&self) -> Result<u64, MediumError> {
        let stat = rustix::fs::fstat(&self.file).map_err(|errno| MediumError::from_errno("fstat", errno))?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// Copies bytes from the first region's beginning on; returns how many there were.
    pub(super) fn read(&self, buf: &mut [u8]) -> Result<usize, MediumError> {
        rustix::io::pread(&self.file, buf, self.start)
            .map_err(|errno| MediumError::from_errno("pread", errno))
    }

    /// Makes every region zeros. No process uses the file now, but a process that is about to go may still
    /// have it mapped, so the file does not get shorter. The first piece keeps its space, which the next open
    /// needs: on a full disk another program would take it.
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

    /// The address of a region, which stays the same as long as this object lives. `None` when the file does
    /// not reach to it and `extend` does not ask for more.
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
            // Backed by space before anything is stored there: on a full file system a store into a hole
            // kills the process.
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
            // SAFETY: this object's own mapping, and no address in it is used any more.
            let _ = unsafe { rustix::mm::munmap(piece.as_ptr().cast(), self.piece as usize) };
        }
    }
}

/// Opens this very file again.
fn reopen(file: &File, path: &Path, write: bool) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(write).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    // Without NOFOLLOW: this path is a link by nature.
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
