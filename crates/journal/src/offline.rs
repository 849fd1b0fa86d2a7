//! Work on a database and its log without SQLite: for tools, while nobody has them open.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use duralite_logfmt::LogId;
use duralite_logfmt::guard::{self, DatabaseHeader, HEADER_BYTES};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::descriptor::LogDirectory;
use crate::directory::{self, DatabaseIdentity, Pause, pause};
use crate::home::{DatabaseAt, DatabaseFile, Header, Homed, OpenDatabase};
use crate::rollback::play_back;
use crate::{EngineOptions, JournalError, Log};

/// What checkpointing a log into its database did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpointed {
    /// Pages written to the database file.
    pub pages: usize,
    /// Size of the database in pages afterwards, if the log had a commit.
    pub db_pages: u32,
    /// Where an adopted log was put aside.
    pub kept: Option<PathBuf>,
}

/// Reads what a database file's header says. Not in a process that has the database open by SQLite: closing it here
/// gives back all POSIX locks that the process holds of it.
///
/// # Errors
/// `Io`.
pub fn inspect(database: &Path) -> Result<DatabaseHeader, JournalError> {
    inspect_file(&DatabaseAt::new(database))
}

/// The same of a database that is open.
pub(crate) fn inspect_file(file: &dyn DatabaseFile) -> Result<DatabaseHeader, JournalError> {
    let mut header = [0; HEADER_BYTES];
    let length = file.read(&mut header, 0)?;
    Ok(guard::inspect(&header[..length]))
}

/// What becomes of a log that has been checkpointed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Afterwards {
    /// It is deleted.
    Delete,
    /// It was another database's too, and is put aside.
    Keep,
}

/// Rolls back what a hot rollback journal in the log holds, writes everything else in the log home, lifts the guard and deletes the log: the file is then an
/// ordinary SQLite database, synced, and a home of the log's holds nothing back. With `adopt` a copy of the
/// original database may take the log over, which is then put aside instead of deleted. Nobody else may have the
/// database open.
///
/// # Errors
/// `Busy` when a process has the database; otherwise as [`checkpoint_into`].
pub fn checkpoint(
    log_dir: &LogDirectory,
    database: &Path,
    id: LogId,
    adopt: bool,
) -> Result<Checkpointed, JournalError> {
    let db = DatabaseIdentity::of(database)?;
    let file = open_alone(database)?;
    let afterwards = if adopt { Afterwards::Keep } else { Afterwards::Delete };
    checkpoint_into(&file, log_dir, &db, id, adopt, afterwards, &pause())
}

/// As [`checkpoint`], for a database that was copied together with its log: nobody else can want the log, which is
/// deleted.
///
/// # Errors
/// As [`checkpoint`].
pub fn checkpoint_copy(
    log_dir: &LogDirectory,
    database: &Path,
    id: LogId,
) -> Result<Checkpointed, JournalError> {
    let db = DatabaseIdentity::of(database)?;
    let file = open_alone(database)?;
    checkpoint_into(&file, log_dir, &db, id, true, Afterwards::Delete, &pause())
}

/// As [`checkpoint`], into a database file that the caller has to itself. With `adopt` the log may be one that was
/// made for another file.
///
/// # Errors
/// `Busy` when a process has the log, `NoFirstPage` when the database's first page is damaged and neither the log nor
/// its home holds it, `NotToAdopt` when another database's log that is to be kept has a home, which this would empty; otherwise
/// as [`Log::attach`]. A crash or an error on the way leaves a database that can be
/// checkpointed again.
pub fn checkpoint_into(
    file: &dyn DatabaseFile,
    log_dir: &LogDirectory,
    db: &DatabaseIdentity,
    id: LogId,
    adopt: bool,
    afterwards: Afterwards,
    pause: Pause<'_>,
) -> Result<Checkpointed, JournalError> {
    let database = &db.path;
    let open = directory::attach(file, log_dir, &EngineOptions::default(), db, id, adopt, pause)?;
    let busy = || JournalError::Busy {
        path: database.clone(),
        what: "a process has the database open; close it first",
    };
    if !open.alone {
        return Err(busy());
    }
    let lock = open.file.try_clone().map_err(|error| JournalError::io("lock", database, &error))?;
    lock.try_lock().map_err(|_| busy())?;
    let own = directory::is_own(&open, db)?;
    let mut log = Log::over(open, file)?;
    let journal = log.rollback_journal();
    if !own && afterwards == Afterwards::Keep {
        // One that is the file itself holds nothing. A journal that was played back into the copy would be gone.
        let holds_pages = log.home().is_some_and(|home| home.header() != Header::Shared);
        let has_journal = journal.as_ref().map_or(Ok(None), |journal| journal.size())?.is_some();
        if holds_pages || has_journal {
            return Err(JournalError::NotToAdopt {
                log: log.path().to_path_buf(),
                database: database.clone(),
            });
        }
    }
    let played = match journal {
        Some(journal) => play_back(&*journal, &Homed::new(file, log.home()), log.id())?.pages,
        None => 0,
    };
    let pages = played + write_home(&mut log, file, database)?;
    let db_pages = log.db_pages()?;
    // Another database's log that is put aside keeps what it holds: should this end before it has its new name,
    // it is still the log of its own database, which then finds it as it was.
    if own || afterwards == Afterwards::Delete {
        log.retire()?;
    }
    lift_guard(file, database)?;
    let kept = match afterwards {
        Afterwards::Keep => {
            let mut aside = log.path().to_path_buf().into_os_string();
            aside.push(".adopted");
            let aside = PathBuf::from(aside);
            std::fs::rename(log.path(), &aside)
                .map_err(|error| JournalError::io("rename", log.path(), &error))?;
            drop(std::fs::remove_file(log.segment_path()));
            Some(aside)
        }
        Afterwards::Delete => {
            log.unlink()?;
            None
        }
    };
    Ok(Checkpointed { pages, db_pages, kept })
}

/// Lifts the guard of a database whose log is lost: it is then what the last checkpoint left,
/// without later commits, and possibly torn if that checkpoint was interrupted.
///
/// # Errors
/// `Busy` when a process has the database open, `Io`.
pub fn discard_log(database: &Path) -> Result<(), JournalError> {
    lift_guard(&open_alone(database)?, database)
}

/// Opens a database that nobody else has open, and keeps everybody from it: by a lock of the whole file, and
/// so of the bytes that SQLite locks.
fn open_alone(database: &Path) -> Result<OpenDatabase, JournalError> {
    let file = OpenOptions::new().read(true).write(true).open(database);
    let file = file.map_err(|error| JournalError::io("open", database, &error))?;
    match rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(OpenDatabase::new(file, database)),
        Err(Errno::AGAIN | Errno::ACCESS) => {
            let what = "a process has the database open; close it first";
            Err(JournalError::Busy { path: database.to_path_buf(), what })
        }
        Err(errno) => Err(JournalError::io("lock", database, &errno.into())),
    }
}

/// A database file, with the pages that are written to it.
struct Counted<'a> {
    file: &'a dyn DatabaseFile,
    page_bytes: u64,
    pages: RefCell<HashSet<u64>>,
}

impl DatabaseFile for Counted<'_> {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, JournalError> {
        self.file.read(buf, offset)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), JournalError> {
        let end = offset.saturating_add(bytes.len() as u64);
        self.pages.borrow_mut().extend(offset / self.page_bytes..end.div_ceil(self.page_bytes));
        self.file.write(bytes, offset)
    }

    fn sync(&self) -> Result<(), JournalError> {
        self.file.sync()
    }

    fn size(&self) -> Result<u64, JournalError> {
        self.file.size()
    }

    fn truncate(&self, bytes: u64) -> Result<(), JournalError> {
        self.file.truncate(bytes)
    }
}

/// Writes every committed page home, and has the home put all that it holds into the file; returns how many pages of the file
/// were written. Durable on return.
fn write_home(log: &mut Log, file: &dyn DatabaseFile, database: &Path) -> Result<usize, JournalError> {
    let page_bytes = u64::from(log.page_bytes());
    let pages = log.committed_pages()?;
    let in_log = pages.iter().any(|(page_number, _)| *page_number == 1);
    if !in_log && !header_is_legible(file)? && !home_has_header(log, file)? {
        return Err(JournalError::NoFirstPage(database.to_path_buf()));
    }
    let file = &Counted { file, page_bytes, pages: RefCell::default() };
    let home = Homed::new(file, log.home());
    let mut page = vec![0; page_bytes as usize];
    for &(page_number, frame) in &pages {
        log.read_page(file, frame, &mut page)?;
        if page_number == 1 {
            // The guard stays until everything is home.
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

fn header_is_legible(file: &dyn DatabaseFile) -> Result<bool, JournalError> {
    Ok(matches!(inspect_file(file)?, DatabaseHeader::Guarded { .. }))
}

/// Whether a home that holds the header shows one: what became of it in the file, in a power loss while the home
/// wrote it there, it puts right when it is drained.
fn home_has_header(log: &Log, file: &dyn DatabaseFile) -> Result<bool, JournalError> {
    let Some(home) = log.home().filter(|home| home.header() == Header::Held) else { return Ok(false) };
    let mut header = [0; HEADER_BYTES];
    let length = home.read(file, &mut header, 0)?;
    guard::unmask(0, &mut header);
    let found = guard::inspect(&header[..length]);
    Ok(matches!(found, DatabaseHeader::Plain { page_bytes, .. } if page_bytes == log.page_bytes()))
}

/// In the file itself, where the rest of the header is what it is to be: the guard is never a home's.
fn lift_guard(file: &dyn DatabaseFile, database: &Path) -> Result<(), JournalError> {
    let mut header = [0; HEADER_BYTES];
    if file.read(&mut header, 0)? < HEADER_BYTES {
        return Err(JournalError::io("read", database, &std::io::ErrorKind::UnexpectedEof.into()));
    }
    guard::lift(&mut header);
    file.write(&header, 0).and_then(|()| file.sync())
}
