//! The file of one log: opening it, and reading its first bytes.
//!
//! A file whose name is that of a log may be any file, even a database that this process has open through any SQLite
//! and VFS: a database's name may end like a log's. Closing any descriptor of such a file releases all POSIX locks that
//! the process holds on it, while SQLite goes on as if it held them. So a file that turns out to be no log stays open
//! until the process ends. This costs at most one descriptor for each such file, and later checks read the file through
//! that descriptor.

pub(crate) mod making;

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use duralite_format::FormatError;
use duralite_medium::process::{FIRST_DESCRIPTOR, OwnFile, PerProcess};
use rustix::fs::OFlags;

use crate::LogError;
use crate::hooks::{self, FileStep};

/// Length of an engine's magic number in bytes.
const MAGIC_BYTES: u64 = 8;

/// Length of what a log stores about itself before it has transactions, in bytes.
const BEGINNING: u64 = 12 << 10;
/// The greatest length of what follows that before the log has been used, in bytes: a table of blocks, and the first
/// blocks.
const SHORT: u64 = 4 << 20;

/// Device and inode: while a file is open, no other file can get the same pair.
type FileNumber = (u64, u64);

/// Files that have the name of a log and are none. They are never closed. A child process begins with an empty list.
static NO_LOGS: PerProcess<Mutex<Vec<(FileNumber, OwnFile)>>> = PerProcess::new();

/// Opens an existing log. `is_log` judges the file by its first eight bytes, or as many as there are.
///
/// # Errors
/// `Io`; `Format` when the first bytes are those of no engine's log.
pub(crate) fn open(path: &Path, write: bool, is_log: fn(&[u8]) -> bool) -> Result<OwnFile, LogError> {
    let failed = |error: io::Error| LogError::io("open the log", path, &error);
    hooks::step(FileStep::Open, path).map_err(failed)?;
    let meta = path.symlink_metadata().map_err(failed)?;
    // Opening a pipe may block for ever. Symbolic links are refused below.
    if !meta.is_file() && !meta.is_symlink() {
        return Err(LogError::Format { log: path.to_path_buf(), source: FormatError::Magic });
    }
    check_kept(path, (meta.dev(), meta.ino()), is_log)?;
    let mut options = OpenOptions::new();
    options.read(true).write(write).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    // A descriptor with the number of a standard stream would be duplicated to a higher number, and the first
    // descriptor closed.
    let fillers = fill_standard_streams().map_err(failed)?;
    let file = OwnFile::open(|| options.open(path)).map_err(failed)?;
    drop(fillers);
    match check_magic(path, &file, is_log) {
        Ok(()) => Ok(file),
        Err(error) => {
            keep(file);
            Err(error)
        }
    }
}

/// Refuses a file that was no log when this process first opened it, unless it has become one.
fn check_kept(path: &Path, number: FileNumber, is_log: fn(&[u8]) -> bool) -> Result<(), LogError> {
    let kept = NO_LOGS.get().lock().unwrap_or_else(PoisonError::into_inner);
    let found = kept.iter().find(|(other, _)| *other == number);
    found.map_or(Ok(()), |(_, file)| check_magic(path, file, is_log))
}

fn check_magic(path: &Path, file: &File, is_log: fn(&[u8]) -> bool) -> Result<(), LogError> {
    if is_log(&first_bytes(path, file, MAGIC_BYTES)?) {
        return Ok(());
    }
    Err(LogError::Format { log: path.to_path_buf(), source: FormatError::Magic })
}

/// Opens `/dev/null` under each number of a standard stream that is free.
fn fill_standard_streams() -> io::Result<Vec<File>> {
    let mut fillers = Vec::new();
    loop {
        let filler = File::open("/dev/null")?;
        if filler.as_raw_fd() >= FIRST_DESCRIPTOR {
            return Ok(fillers);
        }
        fillers.push(filler);
    }
}

/// Deletes a file that turned out to be no log, if it is what a power loss leaves of a log that had no transactions and
/// was not durable. The file is closed then: no connection holds locks on such a file. `is_own` is asked first whether
/// the file belongs to the database, and `make_sure` last, before the deletion.
pub(crate) fn remove_torn(path: &Path, is_own: &dyn Fn(&Metadata) -> bool, make_sure: &dyn Fn() -> bool) {
    let number = || path.symlink_metadata().map(|meta| (meta.dev(), meta.ino()));
    let Ok(meta) = path.symlink_metadata() else { return };
    let found = (meta.dev(), meta.ino());
    let kept = || NO_LOGS.get().lock().unwrap_or_else(PoisonError::into_inner);
    let looks_torn = || kept().iter().any(|(number, file)| *number == found && is_torn(file));
    // `make_sure` may sync, and other threads should not wait for that under the mutex.
    if !is_own(&meta) || !looks_torn() || !make_sure() {
        return;
    }
    let mut kept = kept();
    let Some(at) = kept.iter().position(|(number, _)| *number == found) else { return };
    let file = &kept[at].1;
    // A process that makes a log holds a lock on its file.
    if file.try_lock().is_err() {
        return;
    }
    let is_still = number().is_ok_and(|number| number == found) && is_torn(file);
    if is_still && std::fs::remove_file(path).is_ok() {
        kept.remove(at);
    } else {
        // The file stays open in the list.
        drop(file.unlock());
    }
}

fn is_torn(file: &File) -> bool {
    let length = file.metadata().map_or(0, |meta| meta.len());
    let mut magic = vec![0; length.min(MAGIC_BYTES) as usize];
    let begins_with_zeros = file.read_exact_at(&mut magic, 0).is_ok() && magic.iter().all(|byte| *byte == 0);
    begins_with_zeros && has_only_zeros_from(file, BEGINNING)
}

/// Whether a file has nothing but zeros from an offset on, and is no longer than a log that has not been used.
pub(crate) fn has_only_zeros_from(file: &File, at: u64) -> bool {
    let Ok(meta) = file.metadata() else { return false };
    let mut bytes = vec![0; meta.len().saturating_sub(at).min(SHORT) as usize];
    meta.len() <= at + SHORT
        && file.read_exact_at(&mut bytes, at).is_ok()
        && bytes.iter().all(|byte| *byte == 0)
}

fn keep(file: OwnFile) {
    let Ok(meta) = file.metadata() else {
        // This hardly ever fails for an open file. Whatever the file is, do not close it.
        std::mem::forget(file);
        return;
    };
    let mut kept = NO_LOGS.get().lock().unwrap_or_else(PoisonError::into_inner);
    kept.push(((meta.dev(), meta.ino()), file));
}

/// The file's first bytes, up to `limit`.
pub(crate) fn first_bytes(path: &Path, file: &File, limit: u64) -> Result<Vec<u8>, LogError> {
    let meta = file.metadata().map_err(|error| LogError::io("examine", path, &error))?;
    let mut bytes = vec![0; meta.len().min(limit) as usize];
    file.read_exact_at(&mut bytes, 0).map_err(|error| LogError::io("read", path, &error))?;
    if bytes.is_empty() {
        let source = FormatError::Short { what: "the log file" };
        return Err(LogError::Format { log: path.to_path_buf(), source });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::FlockOperation;

    fn is_log(bytes: &[u8]) -> bool {
        bytes == b"A LOG!!!"
    }

    /// Whether this process holds a POSIX lock on a file, as `/proc/locks` shows it. A single reading may miss the lock
    /// while other locks come and go, so several are made.
    fn is_locked(path: &Path) -> bool {
        let number = format!(":{} ", std::fs::metadata(path).unwrap().ino());
        let read = || std::fs::read_to_string("/proc/locks").unwrap();
        (0..10).any(|_| read().lines().any(|line| line.contains("POSIX") && line.contains(&number)))
    }

    #[test]
    fn a_database_that_is_called_like_a_log_keeps_this_process_s_locks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bench-duralite");
        std::fs::write(&path, [b"SQLite format 3\0".as_slice(), &[0; 4080]].concat()).unwrap();
        let database = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        rustix::fs::fcntl_lock(&database, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(is_locked(&path));
        let known = || {
            let number = (database.metadata().unwrap().dev(), database.metadata().unwrap().ino());
            let kept = NO_LOGS.get().lock().unwrap();
            kept.iter().filter(|(other, _)| *other == number).count()
        };
        for write in [false, true, false] {
            let error = open(&path, write, is_log).expect_err("no log");
            assert!(matches!(error, LogError::Format { .. }), "{error}");
            assert!(is_locked(&path), "the locks were given back");
            assert_eq!(known(), 1);
        }
        // The file may become a log, as the file of a log that is being made does.
        database.write_all_at(b"A LOG!!!", 0).unwrap();
        drop(open(&path, false, is_log).expect("a log by its first bytes"));
    }

    #[test]
    fn a_pipe_that_is_called_like_a_log_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe-duralite");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert!(matches!(open(&path, false, is_log), Err(LogError::Format { .. })));
    }

    #[test]
    fn what_looks_torn_goes_if_it_is_own_and_keeps_no_lock_if_it_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.db-duralite");
        std::fs::write(&path, [0; 4096]).unwrap();
        assert!(open(&path, true, is_log).is_err());
        let other = File::open(&path).unwrap();
        for (is_own, is_sure) in [(false, true), (true, false)] {
            remove_torn(&path, &|_| is_own, &|| is_sure);
            assert!(path.exists());
            other.try_lock().unwrap();
            // Locked as by a process that makes a log.
            remove_torn(&path, &|_| true, &|| true);
            assert!(path.exists());
            other.unlock().unwrap();
        }
        std::fs::write(&path, b"something").unwrap();
        remove_torn(&path, &|_| true, &|| true);
        assert!(path.exists());
        std::fs::write(&path, b"").unwrap();
        remove_torn(&path, &|_| true, &|| true);
        assert!(!path.exists());
    }
}
