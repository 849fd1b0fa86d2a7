//! Database files as memory: one mapping of each file for all connections of a process.
//!
//! Closing *any* descriptor of a file releases the POSIX locks that the process has on the file, and SQLite's locks are
//! of that kind. So dropping a mapping does not close its descriptor, and the next mapping of the file uses the same
//! descriptor. Only a closing connection that holds EXCLUSIVE closes the descriptor, because at that time no other
//! connection of this process has a lock ([`close_left`], invariant 18). A child process begins with no mappings: it
//! closes the inherited descriptors at once, which releases none of its own locks.
//!
//! A mapping reserves twice as much address space as the file has bytes, so that the file can grow. It reserves no more,
//! which leaves address space for many databases and everything else. If a file outgrows its mapping, the next caller maps
//! the file again. The old mapping stays as long as anything uses it.

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
use crate::{LogError, hooks};

/// The largest size in bytes of a mapped database, the address space of a process.
const MOST_BYTES: u64 = 1 << 47;
/// The least address space in bytes to reserve for a small file.
const LEAST_ADDRESS_SPACE: u64 = 16 << 20;
/// The size in bytes of the smallest mapping, used if the system refuses to reserve more address space. It is the size
/// of the largest memory pages that any kernel uses.
const LEAST_FALLBACK: u64 = 64 << 10;

/// A file that this process has open.
struct Open {
    file: Arc<OwnFile>,
    writable: bool,
    /// The mapping in use, if any is.
    mapping: Weak<FileNvm>,
    kind: HomeKind,
}

/// The device and the inode of a file. While a descriptor of the file is open, no other file gets the same pair.
type Key = (u64, u64);

/// The descriptors that this process has of each file: one, or two if the first was opened only for reading.
static HOMES: PerProcess<Mutex<HashMap<Key, Vec<Open>>>> = PerProcess::new();

/// Whether this process has ever mapped a database, and so may have a descriptor to close.
static EVER_MAPPED: AtomicBool = AtomicBool::new(false);

fn homes() -> MutexGuard<'static, HashMap<Key, Vec<Open>>> {
    HOMES.get().lock().unwrap_or_else(PoisonError::into_inner)
}

fn key_of(stat: &Stat) -> Key {
    (stat.st_dev, stat.st_ino)
}

/// Maps a file. `named` is a descriptor of the file (which may allow no access), and `path` is the file's name. All
/// callers in this process share the mapping. If an access has found that somebody truncated the mapped file, new
/// callers get a new mapping, and earlier callers keep the old one.
///
/// # Errors
/// `Medium`: not DAX, no address space, or no space to fill the file's holes. `Io`: the file cannot be opened.
pub fn map(named: impl AsFd, path: &Path, kind: HomeKind) -> Result<Arc<dyn Nvm>, LogError> {
    let failed = |source| LogError::Medium { path: path.to_path_buf(), source };
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
                        open(Path::new(&name)).map_err(|error| LogError::io("open", path, &error))?;
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

/// Opens a file for reading and writing, or only for reading if writing is not allowed.
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

/// Maps a file. The mapping shares the descriptor of `file`.
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
        // The process may not reserve that much, so try again with only the necessary address space.
        Err(MediumError::Io { op: "mmap", source: Errno::NOMEM }) => {
            FileNvm::map_open(Arc::clone(file), path, &options(len.max(LEAST_FALLBACK)))
        }
        done => done,
    }
}

/// Allocates disk space for the holes of a file. Otherwise a store into a hole would have to allocate the space, and a
/// store cannot report that the disk is full. The file keeps its size, because another process may be changing it.
fn fill_holes(file: &OwnFile, len: u64) -> Result<(), MediumError> {
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, len) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(MediumError::from_errno("fallocate", errno)),
        }
    }
}

/// Returns whether this process has a descriptor of the file that no mapping needs any more, and that [`close_left`] would
/// close.
#[must_use]
pub fn is_left_open(named: impl AsFd) -> bool {
    if !EVER_MAPPED.load(Ordering::Relaxed) {
        return false;
    }
    let Ok(stat) = rustix::fs::fstat(&named) else { return false };
    homes().get(&key_of(&stat)).is_some_and(|open| open.iter().all(|open| open.mapping.strong_count() == 0))
}

/// Closes the descriptors of the file that no mapping needs any more, which releases every POSIX lock that this process has
/// on the file. So the caller must hold EXCLUSIVE through the base VFS, which shows that no other connection of the process
/// has a lock, and must release EXCLUSIVE next.
pub fn close_left(named: impl AsFd) {
    let Ok(stat) = rustix::fs::fstat(&named) else { return };
    let mut homes = homes();
    let key = key_of(&stat);
    if homes.get(&key).is_some_and(|open| open.iter().all(|open| open.mapping.strong_count() == 0)) {
        homes.remove(&key);
    }
}
