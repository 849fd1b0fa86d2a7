//! Recovery by whoever finds a log that nobody uses, and may write the database.

use duralite_logfmt::LogId;

use crate::checkpoint::{is_provisional, write_home};
use crate::descriptor::LogDirectory;
use crate::directory::{self, Pause};
use crate::home::DatabaseFile;
use crate::settings::OnClose;
use crate::{DatabaseIdentity, EngineOptions, JournalError, Log};

/// A log of no more frames that is kept from one opening to the next is taken in by SQLite: that costs no flush, and less time than one.
/// (It reads frame by frame, and for each the records that the page is made of.)
const KEPT_FRAMES: u32 = 16;

/// Attaches the log that a guarded database names, as [`Log::attach`]; if nobody else has it, the newest image of each page goes
/// to the database file, which is synced, and the log is empty then: SQLite finds no frame that it would have to sum.
/// The work is that of the pages, not of the commits. Others who attach the log wait meanwhile.
///
/// A log whose guard is provisional, and that a power loss may have left, is as if it were not there: nothing is in it, and a part of it may
/// be lost.
///
/// A short log that its last user has kept for the next ([`OnClose::Keep`]) stays, and goes on. Where the file cannot be written, the log is left as it is, for SQLite to recover; so it is by an engine that
/// keeps pages before the file, or rollback journals. The caller has SHARED on the database: nobody reads or writes it who does not have the log.
///
/// # Errors
/// As [`Log::attach`].
pub fn recover(
    file: &dyn DatabaseFile,
    log_dir: &LogDirectory,
    options: &EngineOptions,
    db: &DatabaseIdentity,
    id: LogId,
    pause: Pause<'_>,
) -> Result<Log, JournalError> {
    let open = directory::attach(file, log_dir, options, db, id, false, pause)?;
    if open.alone && is_provisional(file, id)? {
        if open.is_of_another_boot {
            return Err(JournalError::Missing {
                database: db.path.clone(),
                id,
                searched: log_dir.dir.clone(),
            });
        }
        // As where another log is made; others who would change the header wait until this one has been checked.
        directory::collect_leftovers(file, log_dir, db);
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

/// Whether everything in the log has gone to the file. If not, the file takes no more space than before: on a full disk
/// whatever else opening the database needs has to find some.
fn put_home(log: &mut Log, file: &dyn DatabaseFile, db: &DatabaseIdentity) -> bool {
    let Ok(size) = file.size() else { return false };
    let is_home = write_home(log, file, &db.path).is_ok();
    if !is_home && file.size().is_ok_and(|now| now > size) {
        // If that fails the file is longer than it needs to be. File systems with a journal give the space out again
        // once the cut is in it: hence the sync.
        let _ = file.truncate(size).and_then(|()| file.sync());
    }
    is_home
}
