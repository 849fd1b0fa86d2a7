//! The segment, the memory that the users of a log share: its words before the engine's part, and its files.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;

use duralite_format::LogId;
use duralite_medium::Segment;
use duralite_medium::process::OwnFile;
use rustix::fs::OFlags;

use super::waiting::{self, Lock, Pause};
use crate::hooks::FileStep;
use crate::metrics::METRICS_BYTES;
use crate::shared::log_file::making::{adjust, is_in_place, open_new};
use crate::shared::pins::{PINS_BYTES, PINS_OFFSET};
use crate::{DatabaseIdentity, LogError, hooks};

/// Where the locks of the database begin in the segment.
pub const LOCKS_OFFSET: u64 = 4096;
/// Bytes of the segment that belong to the locks.
pub const LOCKS_BYTES: u64 = 64 << 10;
/// Where the engine's part of the segment begins.
pub(super) const ENGINE_OFFSET: u64 = LOCKS_OFFSET + LOCKS_BYTES;

/// The first word of a segment that is in use: the version of its layout.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"DURASEGA");
/// The kinds of media on which the log is used; 0 if unknown.
pub(super) const MEDIA: u64 = 8;
/// How often syncing or writing the database has failed since everything in the log was written to the database anew,
/// or the log became empty.
pub const HOME_FAILURES: u64 = 16;
/// The newest commit that was acknowledged: the low half of its generation in the upper half, its last frame in the
/// lower half.
pub const ACKNOWLEDGED: u64 = 24;

/// The time, by the segment's clock, until which a process has the turn to start the log over. The lowest bits are its
/// process slot.
pub const RESTART_UNTIL: u64 = 32;

/// Which guard is in the database's header, or that another log is about to replace this one. A connection stores this
/// under EXCLUSIVE when it changes the header; 0 where the guard is unknown, or about to change.
pub const GUARD_KIND: u64 = 48;

/// How often the database file has been written to while its WAL was in the log.
pub const HOME_WRITES: u64 = 56;
/// One more than the value of [`HOME_WRITES`] when the last successful sync of the file began; 0 if there was none.
pub const HOME_SYNCED: u64 = 64;

/// Not 0 once the guard is confirmed: the log's file and the guard are known to be durable, and the guard is final. It
/// says nothing about single commits.
pub const GUARD_CONFIRMED: u64 = 80;

/// Not 0 once a process has seen that the log was deleted while it was in use: no process commits to the log any more.
pub const LOG_DELETED: u64 = 88;
/// The bit of [`LOG_DELETED`] that a process sets which has seen the deletion.
pub const DELETION_SEEN: u64 = 1;
/// The bit of [`LOG_DELETED`] that a process sets before it copies the log.
pub const DELETED_LOG_COPIED: u64 = 2;

/// The id of the log to which the segment belongs, in 16 bytes. The path of a deleted segment in `/proc` may not show
/// it.
const LOG_ID: u64 = 96;

/// The start of the system during which the words were written ([`super::boot`]); 0 if unknown.
pub(super) const BOOT: u64 = 72;

/// How often the segment has begun anew, in the upper half, and how often processes have joined it since then, in the
/// lower half.
pub(super) const INCARNATION: u64 = 40;
pub(super) const BEGUN: u64 = 1 << 32;
/// Beside the locks: not 0 where some user may read the segment and not write it.
pub const READABLE: u64 = LOCKS_OFFSET + 8;

const _: () = assert!(PINS_OFFSET + PINS_BYTES <= LOCKS_OFFSET);

/// Where the metrics of processes begin, after an engine's part of `engine_bytes`, and where the segment ends.
pub(super) fn metrics_of(engine_bytes: u64) -> (u64, u64) {
    let begin = (ENGINE_OFFSET + engine_bytes).next_multiple_of(64);
    (begin, begin + METRICS_BYTES)
}

/// The number of the segment's beginning, from the word [`INCARNATION`].
pub(super) fn beginning_of(incarnation: u64) -> u64 {
    incarnation / BEGUN
}

/// Whether the file is a segment whose initialization was completed.
pub(super) fn is_complete(segment: &File) -> bool {
    layout_of(segment) == MAGIC
}

/// Stores in a new segment the id of its log.
pub(super) fn set_log_id(segment: &dyn Segment, id: LogId) {
    let (words, _) = id.0.as_chunks();
    for (word, at) in words.iter().zip((LOG_ID..).step_by(8)) {
        segment.store(at, u64::from_ne_bytes(*word));
    }
}

/// Whether the file is a segment of the log with this id.
pub(super) fn is_segment_of(file: &File, id: LogId) -> bool {
    let mut of = [0; 16];
    is_complete(file) && file.read_exact_at(&mut of, LOG_ID).is_ok() && LogId(of) == id
}

/// The first `bytes` of an engine's part as the last process that used the segment left them; `None` where the system
/// has been restarted since, or the segment was never completed.
pub(super) fn left_of(segment: &File, bytes: u64) -> Option<Vec<u8>> {
    let mut by = [0; 8];
    segment.read_exact_at(&mut by, BOOT).ok()?;
    if !is_complete(segment) || u64::from_ne_bytes(by) != boot() || boot() == 0 {
        return None;
    }
    let mut words = vec![0; bytes as usize];
    segment.read_exact_at(&mut words, ENGINE_OFFSET).ok()?;
    Some(words)
}

/// The layout of the segment in the file; 0 for a segment that was never completed.
pub(super) fn layout_of(segment: &File) -> u64 {
    let mut magic = [0; 8];
    if matches!(segment.read_at(&mut magic, 0), Ok(8)) { u64::from_le_bytes(magic) } else { 0 }
}

// Identifies the current start of the operating system. A segment from an earlier start is only what a power loss
// left.

/// The kernel's file with an id that is new after each start.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A number that is new after each start of the system; 0 where the system does not report one.
pub(super) fn boot() -> u64 {
    static BOOT: OnceLock<u64> = OnceLock::new();
    *BOOT.get_or_init(|| std::fs::read_to_string(BOOT_ID).map_or(0, |id| number(&id)))
}

/// The first 64 of the id's 128 bits. They include the UUID's version, which is not random; that does no harm.
fn number(id: &str) -> u64 {
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

// Opening the segment, the memory that the users of a log share.

/// The error for a process that attaches a log while another process does.
pub(super) const ATTACHING: &str = "another process is opening its log; try again";

/// Creates the file of the segment of a new log, without a name where the file system supports that.
pub(super) fn create_segment(path: &Path, db: &DatabaseIdentity) -> Result<OwnFile, LogError> {
    let failed = |error: io::Error| LogError::io("make the shared memory of a log in", path, &error);
    hooks::step(FileStep::OpenShared, path).map_err(failed)?;
    let dir = path.parent().unwrap_or(Path::new("."));
    let mode = segment_mode(db);
    let file = OwnFile::open(|| open_new(dir, path, mode)).map_err(failed)?;
    adjust(&file, mode, db).map_err(failed)?;
    Ok(file)
}

/// The mode of the segment's file: a user has the same access to it as to the database (invariant 13).
fn segment_mode(db: &DatabaseIdentity) -> u32 {
    db.mode & 0o666
}

/// The options for opening a segment's file: never through a symbolic link.
fn segment_options(write: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(write).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// Opens the file of the segment, and creates it if it does not exist. A file that a user has made who may not write
/// the database is refused.
pub(super) fn open_segment(path: &Path, db: &DatabaseIdentity) -> Result<OwnFile, LogError> {
    let failed = |error: io::Error| LogError::io("open the shared memory of the log", path, &error);
    hooks::step(FileStep::OpenShared, path).map_err(failed)?;
    let mode = segment_mode(db);
    let options = segment_options(true);
    match OwnFile::open(|| options.clone().mode(mode).create_new(true).open(path)) {
        Ok(file) => {
            adjust(&file, mode, db).map_err(failed)?;
            Ok(file)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let file = OwnFile::open(|| options.open(path)).map_err(failed)?;
            if !db.trusts(&file.metadata().map_err(failed)?) {
                return Err(LogError::Owner(path.to_path_buf()));
            }
            Ok(file)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Opens the file of the segment, which is locked, once more; `None` when it has been deleted, together with the log.
pub(super) fn open_segment_again(path: &Path, locked: &File) -> Result<Option<OwnFile>, LogError> {
    let failed = |error: io::Error| LogError::io("open the shared memory of the log", path, &error);
    hooks::step(FileStep::OpenShared, path).map_err(failed)?;
    match OwnFile::open(|| segment_options(true).open(path)) {
        Ok(file) => Ok(is_in_place(path, locked)?.then_some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Opens the file of the segment for a user who may only read it.
pub(super) fn open_segment_read_only(path: &Path, db: &DatabaseIdentity) -> Result<OwnFile, LogError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            let why = "it does not exist, and this user may only read the database: a user who may write has \
                       to open the database once";
            LogError::io("open the shared memory of the log", path, &io::Error::new(error.kind(), why))
        }
        _ => LogError::io("open the shared memory of the log", path, &error),
    };
    hooks::step(FileStep::OpenShared, path).map_err(failed)?;
    let file = OwnFile::open(|| segment_options(false).open(path)).map_err(failed)?;
    if !db.trusts(&file.metadata().map_err(failed)?) {
        return Err(LogError::Owner(path.to_path_buf()));
    }
    Ok(file)
}

/// Opens and locks the file of the segment: only one process at a time attaches a log. That process may be recovering a
/// long log, or be stopped, so this waits only as long as `pause` permits.
pub(super) fn lock_segment(
    path: &Path,
    db: &DatabaseIdentity,
    pause: Pause<'_>,
) -> Result<OwnFile, LogError> {
    loop {
        let file = open_segment(path, db)?;
        let locked = waiting::lock(&file, Lock::Exclusive, pause);
        if !locked.map_err(|error| LogError::io("lock", path, &error))? {
            return Err(LogError::Busy { path: db.path.clone(), what: ATTACHING });
        }
        let links = file.metadata().map_err(|error| LogError::io("examine", path, &error))?.nlink();
        // Another process may have deleted the file before it was locked.
        if links > 0 {
            return Ok(file);
        }
    }
}

#[cfg(test)]
mod boot_tests {
    use super::*;

    #[test]
    fn an_id_is_a_number_and_none_is_none() {
        assert_eq!(number("0123abcd-4567-489a-bcde-f00000000000\n"), 0x0123_abcd_4567_489a);
        assert_eq!(number(""), 0);
        assert_eq!(boot(), boot());
    }
}
