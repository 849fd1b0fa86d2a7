//! Opens, identifies, locks, makes, names and deletes the file of a log, and makes it durable (invariant 13). The
//! callers decide when to take these steps. This module does not interpret the contents of a log.
//!
//! A file with the name of a log may be any file, because a database's name may end like a log's. The file may even be a
//! database that this process has open through some other SQLite or VFS. Closing any descriptor of such a database would
//! release all POSIX locks that the process holds on it, while SQLite goes on as if it still held them. So if a file turns
//! out to be no log, the process keeps it open until the process ends. This costs at most one descriptor for each such
//! file, and later checks read the file through that descriptor.
//!
//! No function of this module waits for a lock without limit, because the process that holds it may be stopped. Each
//! function repeats its attempt as long as the caller's [`Pause`] permits.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use duralite_format::FormatError;
use duralite_medium::MediumError;
use duralite_medium::block::sync_directory;
use duralite_medium::process::{FIRST_DESCRIPTOR, OwnFile, PerProcess};
use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use rustix::io::Errno;

use crate::hooks::{self, FileStep};
use crate::{DatabaseIdentity, LogError};

/// Length of an engine's magic number in bytes.
const MAGIC_BYTES: u64 = 8;

/// Length in bytes of the first part of a log's file, which describes the log and precedes its transactions.
const BEGINNING: u64 = 12 << 10;
/// The most bytes that an unused log has after `BEGINNING`: a table of blocks, and the first blocks.
const SHORT: u64 = 4 << 20;

/// Device and inode: while a file is open, no other file can get the same pair.
type FileNumber = (u64, u64);

/// Files that have the name of a log but are not logs. This process never closes them, because that would release locks. A
/// child process, which holds no locks, begins with an empty list.
static NO_LOGS: PerProcess<Mutex<Vec<(FileNumber, OwnFile)>>> = PerProcess::new();

/// The directory with names for this process's open files.
const OWN_FILES: &str = "/proc/self/fd";

/// Opens an existing log. `is_log` judges the file by its first eight bytes, or fewer if the file is shorter.
///
/// # Errors
/// `Io`; `Format` when the first bytes are those of no engine's log.
pub(crate) fn open(path: &Path, write: bool, is_log: fn(&[u8]) -> bool) -> Result<OwnFile, LogError> {
    let failed = |error: io::Error| LogError::io("open the log", path, &error);
    hooks::step(FileStep::Open, path).map_err(failed)?;
    let meta = path.symlink_metadata().map_err(failed)?;
    // Refuse a pipe here, because opening a pipe may block for ever. Opening the file refuses symbolic links.
    if !meta.is_file() && !meta.is_symlink() {
        return Err(LogError::Format { log: path.to_path_buf(), source: FormatError::Magic });
    }
    check_kept(path, (meta.dev(), meta.ino()), is_log)?;
    let mut options = OpenOptions::new();
    options.read(true).write(write).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    // Occupy the numbers of the standard streams first. If the file's descriptor got such a number, the library would
    // duplicate it to a higher number and close it, and that close would release locks.
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

/// Refuses a file that this process has already opened and found to be no log, unless the file has become a log in the
/// meantime.
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

/// Opens `/dev/null` under each free number of a standard stream.
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

fn keep(file: OwnFile) {
    let Ok(meta) = file.metadata() else {
        // The call hardly ever fails for an open file. If it fails, keep the file open, because closing it might
        // release locks.
        std::mem::forget(file);
        return;
    };
    let mut kept = NO_LOGS.get().lock().unwrap_or_else(PoisonError::into_inner);
    kept.push(((meta.dev(), meta.ino()), file));
}

/// Returns the file's first bytes, up to `limit`.
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

/// Returns whether the name of a log still leads to the open file.
pub(crate) fn is_in_place(path: &Path, file: &File) -> Result<bool, LogError> {
    let failed = |error: io::Error| LogError::io("examine", path, &error);
    let opened = file.metadata().map_err(failed)?;
    match path.symlink_metadata() {
        Ok(named) => Ok((named.dev(), named.ino()) == (opened.dev(), opened.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

/// Returns a path by which this process can reach an open file, whatever names the file has.
pub(crate) fn own_name(file: &File) -> PathBuf {
    Path::new(OWN_FILES).join(file.as_raw_fd().to_string())
}

/// Pauses before attempt number `n`, counted from 0. Returns `false` if the caller's patience has ended.
pub type Pause<'a> = &'a dyn Fn(u32) -> bool;

const FIRST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(2);

/// How long a caller without a busy handler waits for processes that are opening a log, or dying.
const PATIENCE: Duration = Duration::from_secs(2);

/// Returns a pause function for a caller without a busy handler. It permits waiting for two seconds.
pub(crate) fn pause() -> impl Fn(u32) -> bool {
    pause_for(PATIENCE)
}

/// Returns a pause function that permits waiting for `limit`.
pub fn pause_for(limit: Duration) -> impl Fn(u32) -> bool {
    let start = Instant::now();
    move |tries| {
        let left = limit.saturating_sub(start.elapsed());
        std::thread::sleep(FIRST.saturating_mul(1 << tries.min(10)).min(LONGEST).min(left));
        !left.is_zero()
    }
}

/// How a file is locked, by `flock`.
#[derive(Clone, Copy)]
pub(crate) enum Lock {
    Shared,
    Exclusive,
}

/// Locks a file. Returns whether it could be locked.
pub(crate) fn lock(file: &File, how: Lock, pause: Pause<'_>) -> io::Result<bool> {
    for tries in 0.. {
        if try_lock(file, how)? {
            return Ok(true);
        }
        if !pause(tries) {
            break;
        }
    }
    Ok(false)
}

/// Locks a file, unless a lock of another process prevents it. Returns whether it could be locked. A signal does not
/// make the call fail.
pub(crate) fn try_lock(file: &File, how: Lock) -> io::Result<bool> {
    loop {
        let tried = match how {
            Lock::Shared => file.try_lock_shared(),
            Lock::Exclusive => file.try_lock(),
        };
        match tried {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Creates a log file with the owner and mode of the database (invariant 13).
pub(crate) fn make_file(dir: &Path, path: &Path, db: &DatabaseIdentity) -> Result<OwnFile, LogError> {
    let file = hooks::step(FileStep::Create, path)
        .and_then(|()| OwnFile::open(|| open_new(dir, path, db.mode & 0o666)))
        .map_err(|error| LogError::io("make a log in", dir, &error))?;
    adjust(&file, db.mode & 0o666, db).map_err(|error| {
        drop(std::fs::remove_file(path));
        LogError::io("set the owner of", path, &error)
    })?;
    Ok(file)
}

/// Gives a file the mode and owner of the database. Both have to be set, because the umask reduces the mode given to `open`,
/// and a new file belongs to this user. A user who may write the database but does not own it cannot give the file to the
/// owner, only to a group that both belong to.
pub(crate) fn adjust(file: &File, mode: u32, db: &DatabaseIdentity) -> io::Result<()> {
    let meta = file.metadata()?;
    if (meta.uid(), meta.gid()) != (db.uid, db.gid) {
        unless_denied(fchown(file, Some(db.uid), Some(db.gid)).or_else(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => fchown(file, None, Some(db.gid)),
            _ => Err(error),
        }))?;
    }
    unless_denied(file.set_permissions(PermissionsExt::from_mode(mode)))
}

fn unless_denied(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => Err(error),
        _ => Ok(()),
    }
}

/// Creates a file, without a name if the file system can do that, so that a process that dies while it makes a log leaves
/// nothing behind.
pub(crate) fn open_new(dir: &Path, path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(mode);
    let flag = |flag: OFlags| flag.bits().cast_signed();
    if Path::new(OWN_FILES).is_dir()
        && let Ok(file) = options.clone().custom_flags(flag(OFlags::TMPFILE)).open(dir)
    {
        return Ok(file);
    }
    options.create_new(true).custom_flags(flag(OFlags::NOFOLLOW)).open(path)
}

/// Gives a complete log its name, if it has none yet, and makes the log and its name durable.
pub(crate) fn publish(path: &Path, file: &File) -> io::Result<()> {
    sync(path, file)?;
    publish_provisionally(path, file)?;
    sync_names(path)
}

/// Gives a complete log its name, if it has none yet. Makes nothing durable: a power loss may leave the name without
/// the log's contents.
pub(crate) fn publish_provisionally(path: &Path, file: &File) -> io::Result<()> {
    hooks::step(FileStep::Publish, path)?;
    name(path, file)
}

/// Makes a log durable, but not its name.
pub(crate) fn sync(path: &Path, file: &File) -> io::Result<()> {
    hooks::step(FileStep::Sync, path)?;
    file.sync_all()
}

/// Gives a file its name, if it has none yet.
pub(crate) fn name(path: &Path, file: &File) -> io::Result<()> {
    if file.metadata()?.nlink() > 0 {
        return Ok(());
    }
    Ok(linkat(CWD, own_name(file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

/// Makes the names in a file's directory durable. Skips a directory that this user may use but not read, as SQLite
/// does.
pub(crate) fn sync_names(path: &Path) -> io::Result<()> {
    hooks::step(FileStep::SyncDirectory, path)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match sync_directory(dir) {
        Err(MediumError::Io { op: "open", source: Errno::ACCESS }) => Ok(()),
        Err(MediumError::Io { source, .. }) => Err(source.into()),
        Err(error) => Err(io::Error::other(error)),
        Ok(()) => Ok(()),
    }
}

/// Deletes a log that holds nothing. First deletes its segment, which is useless without the log. Does not sync the
/// directory. A power loss may therefore bring the log's name back; the log is deleted again when the database is opened
/// next.
pub(crate) fn remove(path: &Path, segment: &Path) -> io::Result<()> {
    hooks::step(FileStep::Remove, path)?;
    drop(std::fs::remove_file(segment));
    std::fs::remove_file(path)
}

/// Deletes a file that turned out to be no log, if its contents are what a power loss leaves of a new log that was not
/// yet durable. Also closes the file that it deletes, which is safe, because no connection holds locks on such a file.
/// Deletes it only if `is_own` says that the file belongs to the database, and if `make_sure`, which is called last,
/// returns `true`.
pub(crate) fn remove_torn(path: &Path, is_own: &dyn Fn(&Metadata) -> bool, make_sure: &dyn Fn() -> bool) {
    let number = || path.symlink_metadata().map(|meta| (meta.dev(), meta.ino()));
    let Ok(meta) = path.symlink_metadata() else { return };
    let found = (meta.dev(), meta.ino());
    let kept = || NO_LOGS.get().lock().unwrap_or_else(PoisonError::into_inner);
    let looks_torn = || kept().iter().any(|(number, file)| *number == found && is_torn(file));
    // `make_sure` may sync, so call it before taking the mutex that other threads wait for.
    if !is_own(&meta) || !looks_torn() || !make_sure() {
        return;
    }
    let mut kept = kept();
    let Some(at) = kept.iter().position(|(number, _)| *number == found) else { return };
    let file = &kept[at].1;
    // A process that is making a log holds a lock on the log's file.
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

/// Returns whether a file has only zeros from an offset on, and is at most as long as a log that has never been used.
pub(crate) fn has_only_zeros_from(file: &File, at: u64) -> bool {
    let Ok(meta) = file.metadata() else { return false };
    let mut bytes = vec![0; meta.len().saturating_sub(at).min(SHORT) as usize];
    meta.len() <= at + SHORT
        && file.read_exact_at(&mut bytes, at).is_ok()
        && bytes.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::FlockOperation;

    fn is_log(bytes: &[u8]) -> bool {
        bytes == b"A LOG!!!"
    }

    /// Returns whether this process holds a POSIX lock on a file, according to `/proc/locks`. One reading may miss the lock
    /// while other locks come and go, so this function reads several times.
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
        // The file may become a log later, because a process may be making one in it.
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
            // The file is locked, as if a process were making a log.
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
