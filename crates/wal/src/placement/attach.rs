//! Attaching a log.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use duralite_format::LogId;
use duralite_medium::{FileSegment, MediumError};

use super::head::{Head, check_owner};
use super::open::open_log;
use super::shared::{Found, OpenLog, Place};
use super::words::{MAGIC, is_complete, left_of};
use super::{leftovers, names, outside, segment_files};
use crate::engine::descriptor::LogPlacement;
use crate::engine::home::DatabaseFile;
use crate::shared::log_file::{self, Lock, Pause, is_in_place};
use crate::{DatabaseIdentity, EngineOptions, ErrorKind, LogError};

/// Opens the log that a guarded database names. The process that finds itself alone recovers it; committed transactions
/// stay as they are. Waits for other processes as long as `pause` permits, and then returns `Busy`.
pub(crate) fn attach(
    database: &dyn DatabaseFile,
    placement: &LogPlacement,
    options: &EngineOptions,
    db: &DatabaseIdentity,
    id: LogId,
    adopt: bool,
    pause: Pause<'_>,
) -> Result<OpenLog, LogError> {
    let missing = || LogError::Missing { database: db.path.clone(), id, searched: placement.dir.clone() };
    let path = placement.find(&db.path, id)?.ok_or_else(missing)?;
    let file = match open_log(&path, true) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(missing()),
        Err(error) if error.kind() == ErrorKind::ReadOnly && !adopt => {
            let (outside, engine) = outside::attach(placement, options, db, id, &path, error, pause)?;
            return OpenLog::of_outside(outside, engine).map(|log| log.on_file_systems(&db.path));
        }
        Err(error) => return Err(error),
    };
    let head = check_owner(&path, &file, db, id, adopt)?;
    let place = Place::new(placement, &path, id);
    // Only one process at a time attaches. Otherwise, between finding itself alone and announcing that it uses the log,
    // a process could be overtaken by another that then finds itself alone too.
    let attaching = place.lock(db, pause)?;
    let gone = || {
        let what = "another process has just checkpointed its log or renamed it; open the database again";
        LogError::Busy { path: db.path.clone(), what }
    };
    if !is_in_place(&path, &file)? {
        if matches!(path.try_exists(), Ok(false)) && !leftovers::is_aside(&path, &head) {
            drop(std::fs::remove_file(&place.segment_path));
        }
        return Err(gone());
    }
    let found_alone = find_alone(&file, &place, &attaching, pause)?;
    let alone = found_alone.is_some();
    if alone && placement.is_dax() {
        sync_what_was_emulated(&path, &file)?;
    }
    // A process that checkpoints the log may have deleted both files meanwhile.
    let segment = segment_files::open_segment_again(&place.segment_path, &attaching)?.ok_or_else(gone)?;
    let segment = place.join(segment, alone)?;
    let mut log = place.open(
        options,
        database,
        file,
        segment,
        Found {
            alone,
            of_another: !head.is_of(db),
            is_new: false,
            left: found_alone.and_then(|alone| alone.left),
        },
    )?;
    log.attaching = Some(attaching);
    // This waits for a process that checkpoints the log without SQLite's locks. A process that uses SQLite cannot have
    // deleted the log: that takes EXCLUSIVE on the database, and the attaching connection holds SHARED.
    let shared = log_file::lock(&log.file, Lock::Shared, pause);
    if !shared.map_err(|error| LogError::io("lock", &path, &error))? {
        return Err(LogError::Busy {
            path: db.path.clone(),
            what: "another process is checkpointing its log; try again",
        });
    }
    if !is_in_place(&path, &log.file)? {
        return Err(gone());
    }
    Ok(log.on_file_systems(&db.path))
}

/// A log in persistent memory may have been used as emulated memory on the same file system. Blocks that were first
/// written at that time are not durable, nor are stores that the emulated persistency model did not flush. A commit
/// that survives a power loss would then follow one that does not.
fn sync_what_was_emulated(path: &Path, file: &File) -> Result<(), LogError> {
    file.sync_all().map_err(|error| LogError::io("sync", path, &error))
}

/// Deletes a log whose database has no name any more, if no process uses the log. A log that has been moved elsewhere
/// stays.
pub(crate) fn remove_unused(path: &Path, id: LogId) {
    let Ok(file) = open_log(path, true) else { return };
    let Ok(head) = Head::read(path, &file) else { return };
    let is_it = head.log_id == id && file.try_lock().is_ok() && is_in_place(path, &file).unwrap_or(false);
    if is_it && head.release(path, &file).is_ok() {
        // The log may hold commits, which would come back with its name after a power loss: hence the sync.
        drop(log_file::remove(path, &names::segment(path, id)).and_then(|()| log_file::sync_names(path)));
    }
}

/// Proof that no other process uses the log.
struct Alone {
    /// The engine's words as the last process that used the log left them; see [`left_of`].
    left: Option<Vec<u8>>,
}

/// Determines whether no other process uses the log. The kernel releases the locks of a dead process one after another,
/// so that its lock on the log may outlive the lock that attaching processes wait for. Only a living process, of a
/// segment that was completed, proves that the log is in use.
///
/// A process that gets the exclusive lock reads no state older than what was acknowledged. An engine's descriptors are
/// duplicates of the one that holds the lock. So the lock of a dead process goes with the last of these, when none of
/// its operations is under way any more. That process had flushed everything that it acknowledged (or flushed it when
/// it closed the log, under Group Synch). It may still hold only the memory that was shared, whose locks have been
/// released, and the lock of its own process slot, which no other process takes until then. A process that does not get
/// the lock joins the state in force. The last process that uses that state may end at any time: transactions that it
/// sealed and did not flush stay in the ring for the next leader.
fn find_alone(
    file: &File,
    place: &Place<'_>,
    attaching: &File,
    pause: Pause<'_>,
) -> Result<Option<Alone>, LogError> {
    let path = place.path;
    let failed = |source| LogError::Medium { path: place.segment_path.clone(), source };
    for tries in 0.. {
        let locked = log_file::try_lock(file, Lock::Exclusive);
        if locked.map_err(|error| LogError::io("lock", path, &error))? {
            let left = left_of(attaching, place.placement.engine.shared.zeroed);
            let begins = clear(attaching).map_err(failed)?;
            if !begins {
                file.unlock().map_err(|error| LogError::io("unlock", path, &error))?;
            }
            return Ok(begins.then_some(Alone { left }));
        }
        let complete = is_complete(attaching);
        let living = FileSegment::has_processes(attaching).map_err(failed)?;
        if living && complete {
            return Ok(None);
        }
        if !pause(tries) {
            if living {
                return Ok(None);
            }
            break;
        }
    }
    let what = "a process uses this log without its shared memory, which may have been deleted; close \
                the database in all processes, and open it again";
    Err(LogError::Busy { path: path.to_path_buf(), what })
}

/// Marks the segment as incomplete, so that no process joins words from before a power loss if this process dies before
/// it has completed the segment again. Returns `false` when the segment has to go on as it is: a reader without a
/// process slot is in the middle of a transaction that relies on it. The process of that reader already ran while
/// processes with slots lived. So no power loss came in between, and the words say what is left to do, as after the
/// death of any process.
///
/// This process announces first and looks second; such a reader does so in the opposite order.
fn clear(segment: &File) -> Result<bool, MediumError> {
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
