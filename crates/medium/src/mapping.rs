//! Mapping files, with and without direct access.
#![allow(unsafe_code)] // memory mapping

use std::fs::File;
use std::path::Path;
use std::ptr::NonNull;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::MediumError;

/// Maps the first `bytes` of a file, shared with all processes.
pub(crate) fn map_shared(
    file: &File,
    bytes: usize,
    protection: ProtFlags,
    dax: bool,
) -> Result<NonNull<u8>, Errno> {
    let flags = if dax { MapFlags::SHARED_VALIDATE | MapFlags::SYNC } else { MapFlags::SHARED };
    map(file, 0, bytes, protection, flags)
}

/// Maps `bytes` of a file from byte `at` on, shared with all processes, where few pages will be touched. The
/// kernel reads nothing ahead. For a process that lives briefly, reading ahead in a file that was never
/// written would cost more than everything else that it does with the file.
pub(crate) fn map_sparse(
    file: &File,
    at: u64,
    bytes: usize,
    protection: ProtFlags,
) -> Result<NonNull<u8>, MediumError> {
    let base = map(file, at, bytes, protection, MapFlags::SHARED);
    let base = base.map_err(|errno| MediumError::from_errno("mmap", errno))?;
    // A kernel that refuses the advice reads ahead.
    // SAFETY: the whole of the mapping made above, whose content stays as it is.
    let _ = unsafe { rustix::mm::madvise(base.as_ptr().cast(), bytes, Advice::Random) };
    Ok(base)
}

fn map(
    file: &File,
    at: u64,
    bytes: usize,
    protection: ProtFlags,
    flags: MapFlags,
) -> Result<NonNull<u8>, Errno> {
    // SAFETY: the kernel chooses the address, so no memory in use is replaced.
    let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, flags, file, at) };
    let base = base.map_err(|errno| match errno {
        // Valgrind's error where it has no place for so much.
        Errno::INVAL if !flags.contains(MapFlags::SYNC) && bytes > 0 => Errno::NOMEM,
        errno => errno,
    })?;
    NonNull::new(base.cast()).ok_or(Errno::NOMEM)
}

/// Writes zeros to `from..to`, where nobody has stored anything.
pub(crate) fn write_zeros(file: &File, from: u64, to: u64) -> Result<(), MediumError> {
    static PIECE: [u8; 1 << 16] = [0; 1 << 16];
    let mut at = from;
    while at < to {
        let piece = &PIECE[..PIECE.len().min((to - at) as usize)];
        let written = rustix::io::pwrite(file, piece, at);
        at += written.map_err(|errno| MediumError::from_errno("pwrite", errno))? as u64;
    }
    Ok(())
}

/// Whether a kernel, with or without `MAP_SYNC`, has refused it with this error.
pub(crate) fn is_dax_refusal(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::INVAL)
}

/// Whether files in `dir` can be accessed directly. Finds it out by mapping a temporary file without a name.
/// `false` also where such a file cannot be made.
#[must_use]
pub fn is_dax(dir: &Path) -> bool {
    has_dax(dir).unwrap_or(false)
}

/// As [`is_dax`], with the reason where it cannot be found out.
///
/// # Errors
/// The system's error of making a file there.
pub fn has_dax(dir: &Path) -> std::io::Result<bool> {
    const PROBE_BYTES: u16 = 4096;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let descriptor = match rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR) {
        Ok(descriptor) => descriptor,
        // This file system cannot make such files, as every file system with direct access can.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => return Ok(false),
        Err(errno) => return Err(errno.into()),
    };
    let file = File::from(descriptor);
    file.set_len(PROBE_BYTES.into())?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    match map_shared(&file, PROBE_BYTES.into(), protection, true) {
        Ok(base) => {
            // SAFETY: the mapping was made just now and was never used.
            let _ = unsafe { rustix::mm::munmap(base.as_ptr().cast(), PROBE_BYTES.into()) };
            Ok(true)
        }
        Err(_) => Ok(false),
    }
}
