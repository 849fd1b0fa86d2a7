//! Database files as memory: one mapping of each for all connections of a process.
//!
//! Closing *any* descriptor of a file gives back the POSIX locks that the process has of it, and SQLite's are such. So the
//! descriptor that a mapping needs is not closed with the mapping: it stays, for the next mapping of the same file, until
//! whoever closes a connection shows by EXCLUSIVE that nobody in this process holds a lock ([`close_left`], invariant 18). A child of
//! the process begins with nothing: there the descriptors are closed at once, and none of its own locks go with them.
//!
//! A mapping takes twice the addresses that its file has bytes, so that the file may grow: a process has addresses for many databases, and
//! for what else it does. A file that outgrows them is mapped anew, and both mappings stay as long as anybody uses one.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use duralite_medium::process::{OwnFile, PerProcess};
use duralite_medium::{FileNvm, MapOptions, MediumError, Nvm};
use rustix::fs::{FallocateFlags, Stat};
use rustix::io::Errno;

use super::HomeKind;
use crate::{JournalError, hooks};

/// How large a mapped database may become: what a processor has addresses for.
const MOST_BYTES: u64 = 1 << 47;
/// Address space that a small file gets.
const LEAST_ADDRESS_SPACE: u64 = 16 << 20;
/// The same where the process has no more: a page of the kernel's, whatever its size.
const LEAST_FALLBACK: u64 = 64 << 10;

/// A file of which this process has a descriptor.
struct Open {
    file: Arc<OwnFile>,
    writable: bool,
    /// The mapping in use, if any is.
    mapping: Weak<FileNvm>,
    kind: HomeKind,
}

/// Device and inode. They are nobody else's as long as a descriptor is open.
type Key = (u64, u64);

/// What a process has of a file: one descriptor, and another one if the first was only for reading.
static HOMES: PerProcess<Mutex<HashMap<Key, Vec<Open>>>> = PerProcess::new();

/// Whether there is anything to look for at all.
static EVER_MAPPED: AtomicBool = AtomicBool::new(false);

fn homes() -> MutexGuard<'static, HashMap<Key, Vec<Open>>> {
    HOMES.get().lock().unwrap_or_else(PoisonError::into_inner)
}

fn key_of(stat: &Stat) -> Key {
    (stat.st_dev, stat.st_ino)
}

/// Maps the file that `named` is open of (for nothing but its name, if need be), which is called `path`. All who ask in this
/// process share the mapping; one through which a cut was found is left to those that have it.
///
/// # Errors
/// `Medium`: not DAX, no address space, no space for what the file has of holes. `Io`: it cannot be opened.
pub fn map(named: impl AsFd, path: &Path, kind: HomeKind) -> Result<Arc<dyn Nvm>, JournalError> {
    let failed = |source| JournalError::Medium { path: path.to_path_buf(), source };
    let stat = rustix::fs::fstat(&named).map_err(|errno| failed(MediumError::from_errno("fstat", errno)))?;
    EVER_MAPPED.store(true, Ordering::Relaxed);
    let name = format!("/proc/self/fd/{}", named.as_fd().as_raw_fd());
    let mut homes = homes();
    let of_file = homes.entry(key_of(&stat)).or_default();
    let in_use = of_file.iter().rev().filter(|open| open.kind == kind);
    let found = in_use.filter_map(|open| open.mapping.upgrade()).find(|nvm| nvm.check().is_ok());
    let nvm = match found {
        Some(nvm) => nvm,
        None => {
            let open = match of_file.iter().position(|open| open.writable) {
                Some(index) => &mut of_file[index],
                None => {
                    let (file, writable) =
                        open(Path::new(&name)).map_err(|error| JournalError::io("open", path, &error))?;
                    of_file.push(Open { file: Arc::new(file), writable, mapping: Weak::new(), kind });
                    let last = of_file.len() - 1;
                    &mut of_file[last]
                }
            };
            let nvm = Arc::new(map_open(&open.file, open.writable, path, kind).map_err(failed)?);
            (open.mapping, open.kind) = (Arc::downgrade(&nvm), kind);
            nvm
        }
    };
    drop(homes);
    hooks::home(path, nvm).map_err(failed)
}

/// Opens a file for writing, or for reading where that is not allowed.
fn open(name: &Path) -> io::Result<(OwnFile, bool)> {
    match OwnFile::open(|| File::options().read(true).write(true).open(name)) {
        Ok(file) => Ok((file, true)),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            OwnFile::open(|| File::open(name)).map(|file| (file, false))
        }
        Err(error) => Err(error),
    }
}

/// Maps a file whose descriptor is kept by whoever has `file`.
pub(super) fn map_open(
    file: &Arc<OwnFile>,
    writable: bool,
    path: &Path,
    kind: HomeKind,
) -> Result<FileNvm, MediumError> {
    let metadata = file.metadata().map_err(|error| {
        MediumError::from_errno("fstat", Errno::from_io_error(&error).unwrap_or(Errno::IO))
    })?;
    let len = metadata.len();
    if writable && len > 0 {
        fill_holes(file, len)?;
    }
    let wide = len.saturating_mul(2).clamp(LEAST_ADDRESS_SPACE, MOST_BYTES);
    let options = |first_bytes| MapOptions {
        capacity: MOST_BYTES,
        first_bytes: Some(first_bytes),
        dax: kind == HomeKind::Dax,
        watched: true,
        read_only: !writable,
        ..MapOptions::default()
    };
    match FileNvm::map_open(Arc::clone(file), path, &options(wide)) {
        // As much as it cannot do without.
        Err(MediumError::Io { op: "mmap", source: Errno::NOMEM }) => {
            FileNvm::map_open(Arc::clone(file), path, &options(len.max(LEAST_FALLBACK)))
        }
        done => done,
    }
}

/// A store into a hole takes space, and where there is none it has no way to say so. The size stays, which somebody else
/// may be changing.
fn fill_holes(file: &OwnFile, len: u64) -> Result<(), MediumError> {
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, len) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(MediumError::from_errno("fallocate", errno)),
        }
    }
}

/// Whether this process has a descriptor of the file that no mapping needs any more.
#[must_use]
pub fn is_left_open(named: impl AsFd) -> bool {
    if !EVER_MAPPED.load(Ordering::Relaxed) {
        return false;
    }
    let Ok(stat) = rustix::fs::fstat(&named) else { return false };
    homes().get(&key_of(&stat)).is_some_and(|open| open.iter().all(|open| open.mapping.strong_count() == 0))
}

/// Closes it, which gives back every POSIX lock that this process has of the file: the caller holds EXCLUSIVE by the base
/// VFS, so it has no other, and gives that back next.
pub fn close_left(named: impl AsFd) {
    let Ok(stat) = rustix::fs::fstat(&named) else { return };
    let mut homes = homes();
    let key = key_of(&stat);
    if homes.get(&key).is_some_and(|open| open.iter().all(|open| open.mapping.strong_count() == 0)) {
        homes.remove(&key);
    }
}
