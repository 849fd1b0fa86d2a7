//! The segment, the memory that the processes using a log share. This module defines the layout of the words before the
//! engine's part, opens the segment's file (invariant 13), and joins the processes that use it.
//!
//! Processes of several versions may meet in a segment, so its first word is the version of its layout. A process that
//! initialises the segment again clears that word first ([`clear`]) and stores it last ([`complete`]), so that no
//! process joins in between. No process joins a segment from before the last start of the system, because a power loss
//! may have left only a part of it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use duralite_format::LogId;
use duralite_medium::process::OwnFile;
use duralite_medium::{FileSegment, MediumError, Segment};
use rustix::fs::OFlags;

use crate::engine::descriptor::{Descriptor, LogPlacement};
use crate::hooks::{self, FileStep};
use crate::metrics::{METRICS_BYTES, Recorder};
use crate::shared::archived::{ARCHIVED_BYTES, ARCHIVED_OFFSET};
use crate::shared::log_file::{self, Lock, Pause, adjust, is_in_place, open_new};
use crate::shared::pins::{PINS_BYTES, PINS_OFFSET, Pins};
use crate::{DatabaseIdentity, LogError};

/// The offset in the segment at which the locks of the database begin.
pub const LOCKS_OFFSET: u64 = 4096;
/// The number of bytes of the segment that belong to the locks.
pub const LOCKS_BYTES: u64 = 64 << 10;
/// The offset at which the engine's part of the segment begins.
pub(super) const ENGINE_OFFSET: u64 = LOCKS_OFFSET + LOCKS_BYTES;

/// The first word of a segment that is in use: the version of the segment's layout.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"DURASEGC");
/// The kinds of media on which the log is used; 0 if unknown.
const MEDIA: u64 = 8;
/// How often syncing or writing the database file has failed. The count returns to 0 when a checkpoint has written
/// everything in the log to the database, or when the log becomes empty.
pub const HOME_FAILURES: u64 = 16;
/// The newest commit that was acknowledged. The upper half of the word is the low half of the commit's generation, and
/// the lower half is the commit's last frame.
pub const ACKNOWLEDGED: u64 = 24;

/// Until this time one process alone may start the log over. The time is in nanoseconds of the segment's clock, and the
/// lowest bits of the word are that process's slot.
pub const RESTART_UNTIL: u64 = 32;
/// Before this time no transaction of a concurrent connection begins, so that the log can start over. The word has the
/// format of [`RESTART_UNTIL`].
pub const BEGINS_AFTER: u64 = 112;
/// A time, in nanoseconds of the segment's clock. A concurrent connection has to end its transaction if the transaction
/// began to write before this time. The word is 0 if there has been no concurrent connection.
pub const OVERDUE_BEFORE: u64 = 120;

/// A word that says which guard is in the database's header, or that another log is about to replace this one. A
/// connection stores this word under EXCLUSIVE when it changes the header. 0 if the guard is unknown or about to change.
pub const GUARD_KIND: u64 = 48;

/// The number of writes to the database file, counted by the processes that use this log.
pub const HOME_WRITES: u64 = 56;
/// What [`HOME_WRITES`] was when the last successful sync of the file began, plus 1. 0 if no sync has succeeded.
pub const HOME_SYNCED: u64 = 64;

/// Not 0 once the guard is confirmed, which means that the log's file and the guard are known to be durable, and that
/// the guard is final. This word says nothing about single commits.
pub const GUARD_CONFIRMED: u64 = 80;

/// Not 0 once a process has seen that the log was deleted while in use. From then on no process commits to the log.
pub const LOG_DELETED: u64 = 88;
/// The bit of [`LOG_DELETED`] that a process sets after it has seen the deletion.
pub const DELETION_SEEN: u64 = 1;
/// The bit of [`LOG_DELETED`] that a process sets before it copies the log.
pub const DELETED_LOG_COPIED: u64 = 2;

/// The id of the segment's log, in 16 bytes. By the id, a tool can identify a deleted segment in `/proc`, where the
/// path may not show the id.
const LOG_ID: u64 = 96;

/// Identifies the start of the system ([`boot`]) after which the segment was initialised; 0 if unknown.
const BOOT: u64 = 72;

/// The number of the device that the database is on; 0 if unknown. The device may get another number later, so the
/// log's first user stores the present number.
const DEVICE: u64 = 128;

/// Upper half: the number of times that the segment has been initialised. Lower half: the number of processes that have
/// joined since then. The process that initialised the segment does not count.
pub(super) const INCARNATION: u64 = 40;
pub(super) const BEGUN: u64 = 1 << 32;
/// Not 0 if some user may read the segment but not write it. This word is among the locks.
pub const READABLE: u64 = LOCKS_OFFSET + 8;

const _: () = assert!(LOG_ID + 16 <= BEGINS_AFTER && OVERDUE_BEFORE < DEVICE && DEVICE < ARCHIVED_OFFSET);
const _: () = assert!(ARCHIVED_OFFSET + ARCHIVED_BYTES <= PINS_OFFSET);
const _: () = assert!(PINS_OFFSET + PINS_BYTES <= LOCKS_OFFSET);

/// Returns two offsets: the beginning of the metrics of processes, and the end of the segment. `engine_bytes` is the
/// size of the engine's part, which precedes the metrics.
pub(super) fn metrics_of(engine_bytes: u64) -> (u64, u64) {
    let begin = (ENGINE_OFFSET + engine_bytes).next_multiple_of(64);
    (begin, begin + METRICS_BYTES)
}

/// Returns how often the segment has been initialised, from the word [`INCARNATION`]. This number identifies the
/// current initialisation.
pub(super) fn beginning_of(incarnation: u64) -> u64 {
    incarnation / BEGUN
}

/// Returns whether the file is a segment that was initialised completely.
pub(super) fn is_complete(segment: &File) -> bool {
    layout_of(segment) == MAGIC
}

/// Stores in a new segment the id of its log.
fn set_log_id(segment: &dyn Segment, id: LogId) {
    let (words, _) = id.0.as_chunks();
    for (word, at) in words.iter().zip((LOG_ID..).step_by(8)) {
        segment.store(at, u64::from_ne_bytes(*word));
    }
}

/// Returns whether the file is a segment of the log with this id.
pub(super) fn is_segment_of(file: &File, id: LogId) -> bool {
    let mut of = [0; 16];
    is_complete(file) && file.read_exact_at(&mut of, LOG_ID).is_ok() && LogId(of) == id
}

/// Returns the first `bytes` of an engine's part, as they were when the last process stopped using the segment. Returns
/// `None` if the system has been restarted since then, or the segment was never completed.
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

/// Returns the layout version of the segment in the file; 0 if the segment was never completed.
pub(super) fn layout_of(segment: &File) -> u64 {
    let mut magic = [0; 8];
    if matches!(segment.read_at(&mut magic, 0), Ok(8)) { u64::from_le_bytes(magic) } else { 0 }
}

/// The kernel's file that contains a new id after each start of the system.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Returns a number that is new after each start of the system; 0 if the system does not report one.
fn boot() -> u64 {
    static BOOT: OnceLock<u64> = OnceLock::new();
    *BOOT.get_or_init(|| std::fs::read_to_string(BOOT_ID).map_or(0, |id| number(&id)))
}

/// Returns the first 64 of the id's 128 bits. A few of them are the version of the UUID, which is not random. That does
/// no harm, because the others are.
fn number(id: &str) -> u64 {
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0)
}

/// The error for a process that attaches a log while another process is attaching it.
pub(super) const ATTACHING: &str = "another process is opening its log; try again";

/// Creates the file of a new log's segment. The file has no name yet, if the file system supports files without a name.
pub(super) fn create(path: &Path, db: &DatabaseIdentity) -> Result<OwnFile, LogError> {
    let failed = |error: io::Error| LogError::io("make the shared memory of a log in", path, &error);
    hooks::step(FileStep::OpenShared, path).map_err(failed)?;
    let dir = path.parent().unwrap_or(Path::new("."));
    let mode = mode_of(db);
    let file = OwnFile::open(|| open_new(dir, path, mode)).map_err(failed)?;
    adjust(&file, mode, db).map_err(failed)?;
    Ok(file)
}

/// Returns the mode of the segment's file: each user has the same access to the segment as to the database (invariant
/// 13).
fn mode_of(db: &DatabaseIdentity) -> u32 {
    db.mode & 0o666
}

/// Returns the options for opening a segment's file, never through a symbolic link.
fn options(write: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(write).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// Opens the file of the segment, and creates it if it does not exist. Refuses a file made by a user who may not write the
/// database.
fn open_or_create(path: &Path, db: &DatabaseIdentity) -> Result<OwnFile, LogError> {
    let failed = |error: io::Error| LogError::io("open the shared memory of the log", path, &error);
    hooks::step(FileStep::OpenShared, path).map_err(failed)?;
    let mode = mode_of(db);
    let options = options(true);
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

/// Opens the file of the segment a second time. `locked` is the first descriptor, which is locked. Returns `None` if the
/// segment was deleted together with the log.
pub(super) fn open_again(path: &Path, locked: &File) -> Result<Option<OwnFile>, LogError> {
    let failed = |error: io::Error| LogError::io("open the shared memory of the log", path, &error);
    hooks::step(FileStep::OpenShared, path).map_err(failed)?;
    match OwnFile::open(|| options(true).open(path)) {
        Ok(file) => Ok(is_in_place(path, locked)?.then_some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Opens the file of the segment for a user who may only read it.
pub(super) fn open_read_only(path: &Path, db: &DatabaseIdentity) -> Result<OwnFile, LogError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            let why = "it does not exist, and this user may only read the database: a user who may write has \
                       to open the database once";
            LogError::io("open the shared memory of the log", path, &io::Error::new(error.kind(), why))
        }
        _ => LogError::io("open the shared memory of the log", path, &error),
    };
    hooks::step(FileStep::OpenShared, path).map_err(failed)?;
    let file = OwnFile::open(|| options(false).open(path)).map_err(failed)?;
    if !db.trusts(&file.metadata().map_err(failed)?) {
        return Err(LogError::Owner(path.to_path_buf()));
    }
    Ok(file)
}

/// How often [`lock`] opens a file that turns out to be deleted. Each time another process has closed the database in
/// between, unless the file system is broken, or reports no links for files that have names.
const MOST_TRIES: u32 = 1000;

/// Opens and locks the file of the segment, so that only one process at a time attaches the log. The process that holds
/// the lock may be recovering a long log, or be stopped, so this function waits only as long as `pause` permits.
pub(super) fn lock(path: &Path, db: &DatabaseIdentity, pause: Pause<'_>) -> Result<OwnFile, LogError> {
    let busy = || LogError::Busy { path: db.path.clone(), what: ATTACHING };
    for _ in 0..MOST_TRIES {
        let file = open_or_create(path, db)?;
        let locked = log_file::lock(&file, Lock::Exclusive, pause);
        if !locked.map_err(|error| LogError::io("lock", path, &error))? {
            return Err(busy());
        }
        let links = file.metadata().map_err(|error| LogError::io("examine", path, &error))?.nlink();
        // Another process may have deleted the file before this process locked it. If so, try again.
        if links > 0 {
            return Ok(file);
        }
    }
    Err(busy())
}

/// Marks the segment as incomplete. So if this process dies before it has completed the segment again, no process uses
/// the old words, which a power loss may have damaged. Returns `false` if this process has to use the segment as it is,
/// because a reader without a process slot is in the middle of a transaction through the segment. In that case there
/// was no power loss since the words were stored: the reader's process was already running while processes with slots
/// were alive. So the words are usable, as after the death of any process.
///
/// This process clears the word first and then looks for such readers. A reader takes its mark first and then looks at
/// the word. So at least one of the two sees the other.
pub(super) fn clear(segment: &File) -> Result<bool, MediumError> {
    let failed = |error: io::Error| {
        MediumError::from_errno(
            "write",
            rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO),
        )
    };
    let complete = is_complete(segment);
    if !matches!(segment.read_at(&mut [0; 8], 0), Ok(8)) {
        return Ok(true);
    }
    segment.write_all_at(&[0; 8], 0).map_err(failed)?;
    if !complete || !FileSegment::has_live_readers(segment)? {
        return Ok(true);
    }
    segment.write_all_at(&MAGIC.to_le_bytes(), 0).map_err(failed)?;
    Ok(false)
}

/// Announces to readers without process slots that this process is about to initialise the segment that they have
/// mapped. Returns the new value of [`INCARNATION`].
fn begin_anew(file: &File, path: &Path) -> Result<u64, LogError> {
    let mut bytes = [0; 8];
    let failed = |error| LogError::io("write the shared memory of the log", path, &error);
    if file.read_at(&mut bytes, INCARNATION).map_err(failed)? < bytes.len() {
        // A file this short was never mapped, so there is nobody to tell.
        return Ok(BEGUN);
    }
    let next = (u64::from_ne_bytes(bytes) / BEGUN).wrapping_add(1).wrapping_mul(BEGUN).max(BEGUN);
    file.write_all_at(&next.to_ne_bytes(), INCARNATION).map_err(failed)?;
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    Ok(next)
}

/// Returns whether the segment's processes use this very database. A snapshot or a clone of a database is another file,
/// but its log has the same id.
pub(super) fn is_for(segment: &dyn Segment, db: &DatabaseIdentity) -> bool {
    [0, db.device].contains(&segment.load(DEVICE))
}

/// Joins the processes that use the log with this id. With `alone`, joins as the first of them. `device` is the number
/// of the database's device; 0 if other processes may use the log for a file on any device.
pub(super) fn join(
    placement: &LogPlacement,
    path: &Path,
    id: LogId,
    file: OwnFile,
    alone: bool,
    device: u64,
) -> Result<Arc<FileSegment>, LogError> {
    let (media, shared) = (placement.media().word(), placement.engine.shared);
    let begun = if alone { begin_anew(&file, path)? } else { 0 };
    let fresh = alone.then_some(ENGINE_OFFSET + shared.zeroed);
    hooks::step(FileStep::MapShared, path).map_err(|error| LogError::io("map", path, &error))?;
    let (metrics, bytes) = metrics_of(shared.all);
    let segment = FileSegment::join(file, path, bytes, fresh)
        .map_err(|source| LogError::Medium { path: path.to_path_buf(), source })?;
    if !alone && segment.load(0) != MAGIC {
        let what = "another version of Duralite uses this database; use the same version everywhere";
        return Err(LogError::Busy { path: path.to_path_buf(), what });
    }
    if alone {
        segment.store(INCARNATION, begun);
        set_log_id(&segment, id);
    } else {
        segment.fetch_add(INCARNATION, 1);
    }
    if segment.is_readable() {
        segment.store(READABLE, 1);
    }
    // Emulated memory and direct access to the same file give different guarantees. So processes that use different
    // kinds of memory must not share the log, because each relies on what the others have stored.
    if alone {
        segment.store(BOOT, boot());
        segment.store(MEDIA, media);
        segment.store(DEVICE, device);
    } else if ![0, media].contains(&segment.load(MEDIA)) {
        return Err(LogError::Settings);
    }
    let segment = Arc::new(segment);
    // The slot may have belonged to a follower that died, so remove its pin.
    Pins::new(Arc::clone(&segment) as Arc<dyn Segment>, PINS_OFFSET).unpin();
    Recorder::join(segment.clone(), metrics, beginning_of(segment.load(INCARNATION)));
    Ok(segment)
}

/// Lets other processes join. This is the last step of a process that attaches a log that no other process uses.
pub(super) fn complete(segment: &FileSegment) {
    segment.store(0, MAGIC);
}

/// Maps the segment of a log of this engine, for a user who may only read the log. Takes no process slot.
pub(super) fn join_read_only(
    engine: &Descriptor,
    path: &Path,
    file: OwnFile,
) -> Result<FileSegment, LogError> {
    let (_, bytes) = metrics_of(engine.shared.all);
    FileSegment::join_read_only(file, path, bytes)
        .map_err(|source| LogError::Medium { path: path.to_path_buf(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_number_and_none_is_none() {
        assert_eq!(number("0123abcd-4567-489a-bcde-f00000000000\n"), 0x0123_abcd_4567_489a);
        assert_eq!(number(""), 0);
        assert_eq!(boot(), boot());
    }
}
