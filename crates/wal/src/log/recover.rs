//! Recovery of a log that no process uses, by a process that may write the database.

use duralite_format::LogId;

use crate::engine::descriptor::LogPlacement;
use crate::engine::home::DatabaseFile;
use crate::engine::settings::OnClose;
use crate::log::checkpoint::{is_provisional, write_home};
use crate::placement::{self, Pause};
use crate::{DatabaseIdentity, EngineOptions, Log, LogError};

/// SQLite itself recovers a log of at most this many frames that its last user kept: this needs no flush, and takes
/// less time than one. (SQLite reads such a log frame by frame, and for each frame the engine reads the records that
/// make up the page.)
const KEPT_FRAMES: u32 = 16;

/// Attaches the log that a guarded database names, as [`Log::attach`]. If no other process uses the log, recovery
/// writes the newest image of each page to the database file, syncs the file, and empties the log. SQLite then finds no
/// frame to checksum. The work is proportional to the pages, not to the commits. Other processes that attach the log
/// wait meanwhile.
///
/// A log with a provisional guard from before a restart of the system is treated as missing: it holds no commits, and a
/// power loss may have destroyed a part of it.
///
/// A short log that its last user kept for the next one ([`OnClose::Keep`]) stays as it is. SQLite recovers the log
/// itself where the database file cannot be written, or where the engine has a home or stores rollback journals. The
/// caller holds SHARED on the database: no process without the log reads or writes the database meanwhile.
///
/// # Errors
/// As [`Log::attach`].
pub fn recover(
    file: &dyn DatabaseFile,
    placement: &LogPlacement,
    options: &EngineOptions,
    db: &DatabaseIdentity,
    id: LogId,
    pause: Pause<'_>,
) -> Result<Log, LogError> {
    let open = placement::attach(file, placement, options, db, id, false, pause)?;
    if open.alone && is_provisional(file, id)? {
        if open.is_of_another_boot {
            return Err(LogError::Missing { database: db.path.clone(), id, searched: placement.dir.clone() });
        }
        // As before a new log is made. Other processes that would change the header wait until this process has checked
        // the log.
        placement::collect_leftovers(file, placement, db);
    }
    let (mut log, recovered) = Log::unchecked(open);
    if let Some(_others_wait) = recovered {
        let is_all = log.frames() > 0 && log.home().is_none() && log.rollback_journal().is_none();
        let goes_on = log.frames() <= KEPT_FRAMES && options.on_close == OnClose::Keep;
        if is_all && !goes_on && put_home(&mut log, file, db) {
            log.truncate(file, 0)?;
        } else {
            log.check_recovered(file)?;
        }
    }
    log.on_close = options.on_close;
    Ok(log)
}

/// Writes everything in the log to the file. Returns whether that succeeded. If not, the file takes no more space than
/// before: on a full disk, opening the database may need that space for something else.
fn put_home(log: &mut Log, file: &dyn DatabaseFile, db: &DatabaseIdentity) -> bool {
    let Ok(size) = file.size() else { return false };
    let is_home = write_home(log, file, &db.path).is_ok();
    if !is_home && file.size().is_ok_and(|now| now > size) {
        // If the truncation fails, the file is only longer than it needs to be. A journaling file system reuses the
        // space only once the truncation is in its journal: hence the sync.
        let _ = file.truncate(size).and_then(|()| file.sync());
    }
    is_home
}
