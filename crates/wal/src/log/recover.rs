//! Recovers a log that a process has attached. [`who_recovers`] decides who recovers the log, and [`recovered`] acts on
//! the decision.

use std::cell::RefCell;
use std::collections::HashSet;
use std::path::Path;

use duralite_format::guard::{DatabaseHeader, HEADER_BYTES};
use duralite_format::{LogId, guard};

use crate::engine::descriptor::LogPlacement;
use crate::engine::home::{DatabaseFile, Header, Homed};
use crate::engine::settings::OnClose;
use crate::placement::{self, OpenLog, Pause};
use crate::shared::identity;
use crate::{DatabaseIdentity, EngineOptions, Log, LogError};

/// If the last process kept the log ([`OnClose::Keep`]) and the log has at most this many frames, SQLite itself
/// recovers it. Such a recovery needs no flush, and takes less time than a flush would. (SQLite reads the log frame by
/// frame, and for each frame the engine reads the records that make up the page.)
const KEPT_FRAMES: u32 = 16;

/// Who recovers a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recovers {
    /// Nobody: other processes use the log, or it holds no commits.
    Nobody,
    /// SQLite. It reads every frame; this process has already checked that SQLite will accept all of them.
    Sqlite,
    /// This process. It writes the newest image of each page home, and empties the log.
    ThisProcess,
}

/// Whether recovery may write pages home, into the database file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteHome {
    Allowed,
    NotAllowed,
}

/// Decides who recovers a log that was just opened, by the table under "Recovery" in the README of this crate.
fn who_recovers(open: &OpenLog, may: WriteHome, on_close: OnClose) -> Recovers {
    let frames = open.engine.committed();
    let has_more = open.engine.home().is_some() || open.engine.rollback_journal().is_some();
    let is_kept = on_close == OnClose::Keep && frames <= KEPT_FRAMES;
    if !open.alone || frames == 0 {
        Recovers::Nobody
    } else if may == WriteHome::NotAllowed || has_more || is_kept {
        Recovers::Sqlite
    } else {
        Recovers::ThisProcess
    }
}

/// Takes the log that was just opened, and either recovers it or leaves it for SQLite to recover. Until this function
/// returns, other processes that attach the log wait.
///
/// # Errors
/// `Corrupt` if SQLite would not accept every frame; the errors of starting the log over.
pub(crate) fn recovered(
    open: OpenLog,
    file: &dyn DatabaseFile,
    may: WriteHome,
    options: &EngineOptions,
    database: &Path,
) -> Result<Log, LogError> {
    let recovers = who_recovers(&open, may, options.on_close);
    let (mut log, _others_wait) = Log::over(open, options.on_close);
    match recovers {
        Recovers::Nobody => {}
        Recovers::ThisProcess if put_home(&mut log, file, database) => log.truncate(file, 0)?,
        // If this process could not write everything home, SQLite recovers the log too.
        Recovers::ThisProcess | Recovers::Sqlite => log.check_recovered(file)?,
    }
    Ok(log)
}

impl Log {
    /// Attaches the log that a guarded database names. If no other process uses the log, SQLite will recover it. Waits
    /// for other processes as long as `pause` permits.
    ///
    /// # Errors
    /// `Missing`, `Foreign`, `Owner`, `Format`, `Corrupt`, `Io`: nothing has been changed. `Busy` if `pause` permits no
    /// more waiting.
    pub fn attach(
        file: &dyn DatabaseFile,
        placement: &LogPlacement,
        options: &EngineOptions,
        db: &DatabaseIdentity,
        id: LogId,
        pause: Pause<'_>,
    ) -> Result<Self, LogError> {
        let open = placement::attach(file, placement, options, db, id, false, pause)?;
        recovered(open, file, WriteHome::NotAllowed, options, &db.path)
    }
}

/// Attaches the log that a guarded database names. If no other process uses the log, recovery writes the newest image
/// of each page to the database file, syncs the file, and empties the log. SQLite then finds no frame to checksum. So
/// the work is proportional to the pages in the log, not to the commits. Other processes that attach the log wait until
/// recovery is done.
///
/// A log counts as missing if its guard is provisional and older than the last start of the system. Such a log is not
/// used, because it holds no commits, and a power loss may have destroyed a part of it.
///
/// In the following cases this function leaves the log for SQLite to recover: the log is short and its last user kept
/// it ([`OnClose::Keep`]), the database file cannot be written, the engine has a home or stores rollback journals, or
/// the database has an archive. The caller must hold SHARED on the database, so that no process that has not attached
/// the log can change the database during recovery.
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
        // Clear leftovers, as a process does before it makes a new log. Processes that would change the database's
        // header wait until this process has checked the log, so the header does not change meanwhile.
        placement::collect_leftovers(file, placement, db);
    }
    // The database's archive may lack the log's transactions, so recovery leaves them in the log.
    let has_archive = identity::archive_of(&db.path).symlink_metadata().is_ok();
    let may = if has_archive { WriteHome::NotAllowed } else { WriteHome::Allowed };
    recovered(open, file, may, options, &db.path)
}

/// Writes everything in the log to the file. Returns whether that succeeded. After a failure, truncates the file to its
/// earlier size, because on a full disk SQLite may need the space to open the database.
fn put_home(log: &mut Log, file: &dyn DatabaseFile, database: &Path) -> bool {
    let Ok(size) = file.size() else { return false };
    let is_home = write_home(log, file, database).is_ok();
    if !is_home && file.size().is_ok_and(|now| now > size) {
        // Ignore an error, because the file is then only longer than it needs to be. Sync the truncation, because a
        // journaling file system reuses the space only once the truncation is in its journal.
        let _ = file.truncate(size).and_then(|()| file.sync());
    }
    is_home
}

// Writes every committed page of a log to the database file. The caller has exclusive use of log and file.

/// Reads the header of an open database file and classifies it.
pub(crate) fn inspect_file(file: &dyn DatabaseFile) -> Result<DatabaseHeader, LogError> {
    let mut header = [0; HEADER_BYTES];
    let length = file.read(&mut header, 0)?;
    Ok(guard::inspect(&header[..length]))
}

/// Returns whether the database has a provisional guard that names this log. Such a guard says that nothing has been
/// committed in the log.
pub(crate) fn is_provisional(file: &dyn DatabaseFile, id: LogId) -> Result<bool, LogError> {
    let found = inspect_file(file)?;
    Ok(matches!(found, DatabaseHeader::Guarded { log_id, provisional: true, .. } if log_id == id))
}

/// A database file that records which of its pages were written.
struct Counted<'a> {
    file: &'a dyn DatabaseFile,
    page_bytes: u64,
    pages: RefCell<HashSet<u64>>,
}

impl DatabaseFile for Counted<'_> {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        self.file.read(buf, offset)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), LogError> {
        let end = offset.saturating_add(bytes.len() as u64);
        self.pages.borrow_mut().extend(offset / self.page_bytes..end.div_ceil(self.page_bytes));
        self.file.write(bytes, offset)
    }

    fn sync(&self) -> Result<(), LogError> {
        self.file.sync()
    }

    fn size(&self) -> Result<u64, LogError> {
        self.file.size()
    }

    fn truncate(&self, bytes: u64) -> Result<(), LogError> {
        self.file.truncate(bytes)
    }
}

/// Writes every committed page to the database, and drains the home, if there is one, into the file. Returns how many
/// pages of the file were written. The pages are durable on return. After an error or a crash the caller can repeat the
/// call, because the log is unchanged.
///
/// # Errors
/// `NoFirstPage` if the database's first page is damaged and neither the log nor its home holds that page; the errors
/// of the log, its home and the file.
pub(crate) fn write_home(log: &mut Log, file: &dyn DatabaseFile, database: &Path) -> Result<usize, LogError> {
    let page_bytes = u64::from(log.page_bytes());
    // First make the log durable, because a transaction of a process that died may be visible without being durable
    // (invariant 5).
    log.before_home_write()?;
    let pages = log.committed_pages(None)?;
    let in_log = pages.iter().any(|(page_number, _)| *page_number == 1);
    if !in_log && !header_is_legible(file)? && !home_has_header(log, file)? {
        return Err(LogError::NoFirstPage(database.to_path_buf()));
    }
    let file = &Counted { file, page_bytes, pages: RefCell::default() };
    let home = Homed::new(file, log.home());
    let mut page = vec![0; page_bytes as usize];
    for &(page_number, frame) in &pages {
        log.read_page(file, frame, &mut page)?;
        if page_number == 1 {
            // Keep the guard on page 1 until every page is home.
            guard::mask(0, &mut page, log.id());
        }
        home.write(&page, u64::from(page_number - 1) * page_bytes)?;
    }
    let db_pages = log.db_pages()?;
    if db_pages > 0 {
        home.truncate(u64::from(db_pages) * page_bytes)?;
    }
    home.sync()?;
    home.drain()?;
    Ok(file.pages.borrow().len())
}

fn header_is_legible(file: &dyn DatabaseFile) -> Result<bool, LogError> {
    Ok(matches!(inspect_file(file)?, DatabaseHeader::Guarded { .. }))
}

/// Returns whether the home holds an intact copy of the header. The copy in the file may be damaged, if power was lost
/// while the home wrote the header to the file. Draining the home repairs the copy in the file.
fn home_has_header(log: &Log, file: &dyn DatabaseFile) -> Result<bool, LogError> {
    let Some(home) = log.home().filter(|home| home.header() == Header::Held) else { return Ok(false) };
    let mut header = [0; HEADER_BYTES];
    let length = home.read(file, &mut header, 0)?;
    guard::unmask(0, &mut header);
    let found = guard::inspect(&header[..length]);
    Ok(matches!(found, DatabaseHeader::Plain { page_bytes, .. } if page_bytes == log.page_bytes()))
}
