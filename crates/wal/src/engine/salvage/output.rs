//! Writes the salvaged database into a new file.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use duralite_format::LogId;
use duralite_format::guard::{self, DatabaseHeader, HEADER_BYTES};

use super::{Salvaged, read_home};
use crate::LogError;
use crate::engine::home::{DatabaseFile, OpenDatabase};
use crate::engine::rollback::{RollbackJournal, play_back};

/// What to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// The database file, and over it the pages that the log holds as of the last transaction before the damage.
    BeforeDamage,
    /// The database file as it is, without the guard: the result of the last checkpoint, if that checkpoint was completed.
    FileAlone,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Size of the database in pages.
    pub db_pages: u32,
    /// Number of pages that came from the log.
    pub from_log: usize,
    /// Pages that neither the log nor the database file has, written as zeros.
    pub absent: Vec<u32>,
}

/// Creates the file that the database is written to. Only its owner may read it.
///
/// # Errors
/// `Io`, also if a file of this name exists already.
pub fn create(out: &Path) -> Result<File, LogError> {
    let opened = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(out);
    opened.map_err(|error| LogError::io("create", out, &error))
}

/// Writes the database file as it is, without the guard, into a file that [`create`] has made. For a log of which nothing can be
/// read. Returns the size in pages. Durable on return, except for the file's name.
///
/// # Errors
/// `Unexpected` if the database file does not say how large its pages are; errors of reading it, and of writing.
pub fn write_file_alone(database: &dyn DatabaseFile, (file, out): (&File, &Path)) -> Result<u32, LogError> {
    let mut header = [0; HEADER_BYTES];
    let read = database.read(&mut header, 0)?;
    let (DatabaseHeader::Guarded { page_bytes, .. } | DatabaseHeader::Plain { page_bytes, .. }) =
        guard::inspect(header.get(..read).unwrap_or_default())
    else {
        return Err(LogError::Unexpected("a database file whose header is damaged, too"));
    };
    let failed = |error: std::io::Error| LogError::io("write", out, &error);
    let mut page = vec![0; page_bytes as usize];
    let db_pages = u32::try_from(database.size()? / u64::from(page_bytes)).unwrap_or(u32::MAX);
    for page_number in 1..=db_pages {
        read_home(database, page_number, &mut page)?;
        let offset = u64::from(page_number - 1) * u64::from(page_bytes);
        file.write_all_at(&page, offset).map_err(failed)?;
    }
    file.sync_all().map_err(failed)?;
    Ok(db_pages)
}

impl Salvaged {
    /// Writes the database into a file that [`create`] has made, and replaces what the file holds. Durable on return, except for
    /// the file's name.
    ///
    /// # Errors
    /// `Unexpected` if most pages are in neither the log nor the database file; errors of reading them, and of writing.
    pub fn write(
        &mut self,
        database: &dyn DatabaseFile,
        (file, out): (&File, &Path),
        contents: Contents,
    ) -> Result<Written, LogError> {
        let failed = |error: std::io::Error| LogError::io("write", out, &error);
        let page_bytes = u64::from(self.page_bytes);
        let in_file = u32::try_from(database.size()? / page_bytes).unwrap_or(u32::MAX);
        let (db_pages, own) = match contents {
            Contents::BeforeDamage if self.point.db_pages > 0 => (self.point.db_pages, self.pages.clone()),
            Contents::BeforeDamage => {
                (in_file.max(self.pages.last().copied().unwrap_or(0)), self.pages.clone())
            }
            Contents::FileAlone => (in_file, Vec::new()),
        };
        let own: HashSet<u32> = own.into_iter().filter(|page| *page <= db_pages).collect();
        file.set_len(0).map_err(failed)?;
        let mut page = vec![0; self.page_bytes as usize];
        let mut absent = Vec::new();
        for page_number in 1..=db_pages {
            if own.contains(&page_number) {
                self.source.read(database, page_number, &mut page)?;
            } else if page_number > in_file {
                // A log that claims such a page is damaged. Leave a hole in the file.
                absent.push(page_number);
                if absent.len() > MOST_ABSENT {
                    let what = "the size that the log says the database has, with most of its pages nowhere";
                    return Err(LogError::Unexpected(what));
                }
                continue;
            } else {
                read_home(database, page_number, &mut page)?;
            }
            file.write_all_at(&page, u64::from(page_number - 1) * page_bytes).map_err(failed)?;
        }
        file.set_len(u64::from(db_pages) * page_bytes).and_then(|()| file.sync_all()).map_err(failed)?;
        Ok(Written { db_pages, from_log: own.len(), absent })
    }
}

impl Salvaged {
    /// Rolls the written database back from the rollback journal in the log, if that is hot. Returns how many pages were rolled
    /// back. The journal stays. Durable on return.
    ///
    /// # Errors
    /// `Corrupt` for a journal that is damaged: any part of it may have been rolled back.
    pub fn roll_back(&self, (file, out): (&File, &Path), id: LogId) -> Result<usize, LogError> {
        let Some(journal) = self.journal.clone() else { return Ok(0) };
        let file = file.try_clone().map_err(|error| LogError::io("open", out, &error))?;
        let file = OpenDatabase::new(file, out);
        let played = play_back(&Kept(journal), &file, id);
        // `play_back` has put the guard of the log on page 1: lift it.
        let mut header = [0; HEADER_BYTES];
        if file.read(&mut header, 0)? == HEADER_BYTES {
            guard::lift(&mut header);
            file.write(&header, 0)?;
        }
        file.sync()?;
        Ok(played?.pages)
    }
}

/// A rollback journal that is read and never changed.
struct Kept(Arc<dyn RollbackJournal>);

const CHANGED: LogError = LogError::Unexpected("a change of a rollback journal that is only read");

impl RollbackJournal for Kept {
    fn size(&self) -> Result<Option<u64>, LogError> {
        self.0.size()
    }

    fn create(&self) -> Result<(), LogError> {
        Err(CHANGED)
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        self.0.read(buf, offset)
    }

    fn write(&self, _bytes: &[u8], _offset: u64) -> Result<(), LogError> {
        Err(CHANGED)
    }

    fn truncate(&self, _bytes: u64) -> Result<(), LogError> {
        Err(CHANGED)
    }

    fn sync(&self) -> Result<(), LogError> {
        Err(CHANGED)
    }

    fn delete(&self) -> Result<(), LogError> {
        // The journal was played back into a copy, and the original may still need it.
        Ok(())
    }
}

/// Most pages that may be in neither the log nor the database file. Beyond that the log's claims are not believed.
const MOST_ABSENT: usize = 1 << 20;
