//! Recovery of a log that no process uses, by a process that may write the database.

use std::cell::RefCell;
use std::collections::HashSet;
use std::path::Path;

use duralite_format::guard::{DatabaseHeader, HEADER_BYTES};
use duralite_format::{LogId, guard};

use crate::engine::descriptor::LogPlacement;
use crate::engine::home::{DatabaseFile, Header, Homed};
use crate::engine::settings::OnClose;
use crate::placement::Pause;
use crate::{DatabaseIdentity, EngineOptions, Log, LogError, placement};

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

// Writes every committed page of a log to the database file. The caller has exclusive use of both.

/// Reads the header of an open database file and classifies it.
pub(crate) fn inspect_file(file: &dyn DatabaseFile) -> Result<DatabaseHeader, LogError> {
    let mut header = [0; HEADER_BYTES];
    let length = file.read(&mut header, 0)?;
    Ok(guard::inspect(&header[..length]))
}

/// Whether the database has a provisional guard that names this log. A provisional guard says that nothing has been
/// committed.
pub(crate) fn is_provisional(file: &dyn DatabaseFile, id: LogId) -> Result<bool, LogError> {
    let found = inspect_file(file)?;
    Ok(matches!(found, DatabaseHeader::Guarded { log_id, provisional: true, .. } if log_id == id))
}

/// A database file that records which of its pages are written.
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

/// Writes every committed page home and drains the home into the file. Returns how many pages of the file were written.
/// Durable on return. After an error or a crash the caller can run it again: the log is unchanged.
///
/// # Errors
/// `NoFirstPage` when the database's first page is damaged and neither the log nor its home holds it; the errors of the
/// log, its home and the file.
pub(crate) fn write_home(log: &mut Log, file: &dyn DatabaseFile, database: &Path) -> Result<usize, LogError> {
    let page_bytes = u64::from(log.page_bytes());
    // A transaction of a process that died may be visible without being durable (invariant 5).
    log.before_home_write()?;
    let pages = log.committed_pages()?;
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
            // The guard stays until every page is home.
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

/// Whether the home holds the header and its copy is intact. A power loss while the home wrote the header to the file
/// may have damaged the copy in the file; draining the home repairs that copy.
fn home_has_header(log: &Log, file: &dyn DatabaseFile) -> Result<bool, LogError> {
    let Some(home) = log.home().filter(|home| home.header() == Header::Held) else { return Ok(false) };
    let mut header = [0; HEADER_BYTES];
    let length = home.read(file, &mut header, 0)?;
    guard::unmask(0, &mut header);
    let found = guard::inspect(&header[..length]);
    Ok(matches!(found, DatabaseHeader::Plain { page_bytes, .. } if page_bytes == log.page_bytes()))
}
