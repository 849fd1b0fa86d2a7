//! Work on a database and its log without SQLite: for tools, while nobody has them open.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use duralite_logfmt::LogId;
use duralite_logfmt::guard::{self, DatabaseHeader, HEADER_BYTES};

use crate::pool::{self, DatabaseIdentity, PoolConfig};
use crate::{EngineOptions, JournalError, Log};

/// What folding a log into its database did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folded {
    /// Pages written to the database file.
    pub pages: usize,
    /// Size of the database in pages afterwards, if the log had a commit.
    pub db_pages: u32,
    /// Where an adopted log was put aside.
    pub kept: Option<PathBuf>,
}

/// Reads what a database file's header says.
///
/// # Errors
/// `Io`.
pub fn inspect(database: &Path) -> Result<DatabaseHeader, JournalError> {
    let file = File::open(database).map_err(|error| JournalError::io("open", database, &error))?;
    let mut header = [0; HEADER_BYTES];
    let length =
        read_up_to(&file, &mut header).map_err(|error| JournalError::io("read", database, &error))?;
    Ok(guard::inspect(&header[..length]))
}

/// Writes everything in the log home, lifts the guard and deletes the log: the file is then an
/// ordinary SQLite database, synced. With `adopt` a copy of the original database may take the
/// log over, which is then put aside instead of deleted.
///
/// # Errors
/// `Busy` when a process has the log; otherwise as [`Log::attach`]; a crash or an error on the
/// way leaves a database that can be folded again.
pub fn fold(pool: &PoolConfig, database: &Path, id: LogId, adopt: bool) -> Result<Folded, JournalError> {
    let db = DatabaseIdentity::of(database)?;
    let open = pool::attach(pool, &EngineOptions::default(), &db, id, adopt)?;
    let busy = || JournalError::Busy {
        path: pool.log_path(id),
        what: "a process has the database open; close it first",
    };
    if !open.alone {
        return Err(busy());
    }
    let lock = open.file.try_clone().map_err(|error| JournalError::io("lock", database, &error))?;
    lock.try_lock().map_err(|_| busy())?;
    let mut log = Log::over(open)?;
    let file = open_database(database)?;
    let pages = write_home(&mut log, &file, database)?;
    let db_pages = log.db_pages()?;
    log.retire()?;
    lift_guard(&file, database)?;
    let kept = if adopt {
        let mut aside = log.path().to_path_buf().into_os_string();
        aside.push(".adopted");
        let aside = PathBuf::from(aside);
        std::fs::rename(log.path(), &aside)
            .map_err(|error| JournalError::io("rename", log.path(), &error))?;
        drop(std::fs::remove_file(pool::segment_path(log.path())));
        Some(aside)
    } else {
        log.unlink()?;
        None
    };
    Ok(Folded { pages, db_pages, kept })
}

/// Lifts the guard of a database whose log is lost: it is then what the last checkpoint left,
/// without later commits, and possibly torn if that checkpoint was interrupted.
///
/// # Errors
/// `Io`.
pub fn discard_log(database: &Path) -> Result<(), JournalError> {
    lift_guard(&open_database(database)?, database)
}

fn open_database(database: &Path) -> Result<File, JournalError> {
    let file = OpenOptions::new().read(true).write(true).open(database);
    file.map_err(|error| JournalError::io("open", database, &error))
}

fn write_home(log: &mut Log, file: &File, database: &Path) -> Result<usize, JournalError> {
    let failed = |error: io::Error| JournalError::io("write", database, &error);
    let page_bytes = u64::from(log.page_bytes());
    let pages = log.committed_pages()?;
    let mut page = vec![0; page_bytes as usize];
    for &(page_number, frame) in &pages {
        log.read_page(frame, &mut page)?;
        if page_number == 1 {
            // The guard stays until everything is home.
            guard::mask(0, &mut page, log.id());
        }
        file.write_all_at(&page, u64::from(page_number - 1) * page_bytes).map_err(failed)?;
    }
    let db_pages = log.db_pages()?;
    if db_pages > 0 {
        file.set_len(u64::from(db_pages) * page_bytes).map_err(failed)?;
    }
    file.sync_all().map_err(failed)?;
    Ok(pages.len())
}

fn lift_guard(file: &File, database: &Path) -> Result<(), JournalError> {
    let failed = |error: io::Error| JournalError::io("write", database, &error);
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0).map_err(failed)?;
    guard::lift(&mut header);
    file.write_all_at(&header, 0).and_then(|()| file.sync_all()).map_err(failed)
}

fn read_up_to(file: &File, buf: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], done as u64)? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}
