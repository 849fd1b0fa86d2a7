//! How the sidecar uses the file with facts about a database's archive. The file is beside the database.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use duralite_archive::{Generation, Line};
use duralite_format::LogId;
use duralite_format::archive::{Closed, LineEnd, Record, Records, Stamp};
use duralite_format::guard::{DatabaseHeader, inspect};
use duralite_wal::DatabaseIdentity;
use duralite_wal::archive::backlog::Backlog;
use duralite_wal::archive::{ArchiveFile, SidecarLock, backlog_of, new_token, stamp};
use duralite_wal::log::offline;

use crate::group::{Mark, salts};

/// The file beside a database. The process that holds this value is the database's only sidecar.
pub struct Beside {
    database: DatabaseIdentity,
    url: String,
    token: u128,
    generation: u64,
    _lock: SidecarLock,
}

/// What connects a mark (the last transaction in the archive) with the present state of the database.
pub enum Way {
    /// The archive can continue, after it has archived the backlogs of these closed logs. The present log is the log of
    /// the mark, or it begins where the last of these logs ended. If there is no present log, the database file is in
    /// the state in which the last of these logs left it.
    Logs(Vec<Closed>),
    /// Nothing connects the mark with the database. So a new generation has to begin, and its start record names this
    /// line.
    None(Line),
    /// Nothing connects the mark with the database yet. But a program may be closing or making a log at this moment,
    /// and then that log may connect them.
    NotYet(Line),
}

impl Beside {
    /// Opens the file beside a database. Creates the file if it does not exist.
    ///
    /// # Errors
    /// There is no such database; the database has no archive, or another one than `url`; another sidecar runs.
    pub fn open(path: &Path, url: Option<&str>) -> Result<Self> {
        let database = DatabaseIdentity::of(path)?;
        let Some(lock) = SidecarLock::take(&database.path)? else {
            bail!("another process replicates {}", path.display());
        };
        let found = ArchiveFile::open(&database)?.filter(|found| found.is_of(&database));
        let owner = match (found.map(|found| found.records.owner), url) {
            (Some(owner), None) => owner,
            (Some(owner), Some(url)) if owner.url == url => owner,
            (Some(owner), Some(_)) => bail!(
                "the archive of {} is {}; duralite enable --archive sets another one",
                path.display(),
                owner.url
            ),
            (None, None) => bail!("{} has no archive; name its URL", path.display()),
            (None, Some(url)) => {
                let token = new_token()?;
                ArchiveFile::enable(&database, url, 0, token)?;
                let made = ArchiveFile::open(&database)?.context("the file beside the database is gone")?;
                made.records.owner.clone()
            }
        };
        Ok(Self { database, url: owner.url, token: owner.token, generation: owner.generation, _lock: lock })
    }

    /// Returns the archive's URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the random number by which this database's primary recognises its own claims, in the form that claims
    /// have.
    #[must_use]
    pub fn token(&self) -> String {
        format!("{:032x}", self.token)
    }

    /// Returns the newest generation that this database's primary has begun.
    #[must_use]
    pub fn generation(&self) -> Option<Generation> {
        format!("{:016x}", self.generation).parse().ok()
    }

    /// Records a generation that has begun. When this returns, the file is durable.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn remember(&mut self, generation: Generation) -> Result<()> {
        self.generation = generation.number();
        Ok(ArchiveFile::enable(&self.database, &self.url, self.generation, self.token)?)
    }

    /// Records that another primary has taken the archive over, so that programs can see this even while no sidecar
    /// runs. When this returns, the file is durable. Does nothing if the database was never the primary of the archive.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn remember_fence(&self, by: Generation) -> Result<()> {
        if self.generation().is_none() {
            return Ok(());
        }
        let found = ArchiveFile::open(&self.database)?.filter(|found| found.is_of(&self.database));
        Ok(found.map_or(Ok(()), |mut found| found.note_fence(by.number()))?)
    }

    /// If an earlier sidecar has recorded a takeover by another primary, removes that record. The caller knows that
    /// this database is the primary.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn forget_fence(&mut self) -> Result<()> {
        match self.generation() {
            Some(generation) if ArchiveFile::is_fenced(&self.database) => self.remember(generation),
            _ => Ok(()),
        }
    }

    /// Returns what connects a mark with the log `log`, or, if `log` is `None`, with the present state of the database
    /// file.
    ///
    /// # Errors
    /// The file or the database cannot be read.
    pub fn way(&self, mark: &Mark, log: Option<LogId>) -> Result<Way> {
        let mut earlier = None;
        let end = match log {
            Some(log) if salts(log) == mark.log && self.is_broken(log)? => return Ok(Way::None(Line::Other)),
            Some(log) if salts(log) == mark.log => return Ok(Way::Logs(Vec::new())),
            Some(log) => LineEnd::Log(log),
            None => {
                earlier = ArchiveFile::look(&self.database.path)?;
                match self.stamp()? {
                    Some(stamp) => LineEnd::File(stamp),
                    None => return Ok(Way::None(Line::Other)),
                }
            }
        };
        let Some(records) = ArchiveFile::look(&self.database.path)? else {
            return Ok(Way::None(Line::Other));
        };
        // A program that closes a log first removes the log's guard from the database file, and then records the state
        // of that file. So for a moment the record may not match the file.
        let is_at_rest = matches!(records.logs().last(), Some(Record::Rest { .. }));
        let is_settled = log.is_some() || is_at_rest && earlier.as_ref() == Some(&records);
        let from = log_of(&records, mark).filter(|from| !records.is_broken(*from));
        let Some(closed) = from.and_then(|from| records.since(from, end)) else {
            return Ok(if is_settled { Way::None(Line::Other) } else { Way::NotYet(Line::Other) });
        };
        // If the log was closed at a position before the mark, the archive has commits that the log has lost (invariant
        // 72).
        if closed.first().is_some_and(|first| first.position < mark.position) {
            return Ok(Way::None(Line::Other));
        }
        let is_there = |(nth, closed): (usize, &Closed)| {
            let archived = if nth == 0 { mark.position } else { 0 };
            closed.position <= archived || closed.backlog && self.has_since(closed.log, archived)
        };
        Ok(if closed.iter().enumerate().all(is_there) { Way::Logs(closed) } else { Way::None(Line::Gap) })
    }

    /// Returns whether a backlog has all commits of its log after a position. It lacks the commits from before the log
    /// last started over.
    fn has_since(&self, log: LogId, position: u64) -> bool {
        Backlog::open(&self.backlog(log)).is_ok_and(|backlog| backlog.header().first <= position)
    }

    /// Returns the path of the backlog of a closed log.
    #[must_use]
    pub fn backlog(&self, log: LogId) -> PathBuf {
        backlog_of(&self.database.path, log)
    }

    /// Removes the records and the backlogs of all logs that came before the log of this mark. The archive has all
    /// their commits.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn forget_before(&self, mark: &Mark) -> Result<()> {
        let Some(found) = ArchiveFile::open(&self.database)? else { return Ok(()) };
        Ok(log_of(&found.records, mark).map_or(Ok(()), |log| found.forget_before(&self.database, log))?)
    }

    /// Returns whether the database was changed while this log was in use, but not by commits of this log.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn is_broken(&self, log: LogId) -> Result<bool> {
        Ok(ArchiveFile::look(&self.database.path)?.is_none_or(|records| records.is_broken(log)))
    }

    /// Returns the id of the log that guards the database, if there is such a log.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn log(&self) -> Result<Option<LogId>> {
        Ok(match offline::inspect(&self.database.path)? {
            DatabaseHeader::Guarded { log_id, .. } => Some(log_id),
            _ => None,
        })
    }

    /// Returns the stamp, which identifies the present state of the database file. Returns `None` if a log guards the
    /// file, or if no stamp can identify its state.
    fn stamp(&self) -> Result<Option<Stamp>> {
        let file = File::open(&self.database.path)?;
        let mut header = [0; 100];
        if file.read_exact_at(&mut header, 0).is_err() {
            return Ok(None);
        }
        let DatabaseHeader::Plain { page_bytes, .. } = inspect(&header) else { return Ok(None) };
        let mut page = vec![0; page_bytes as usize];
        file.read_exact_at(&mut page, 0)?;
        Ok(stamp(&self.database, &page)?)
    }
}

/// Returns the id of the log that a mark names, if the file beside the database has a record of that log.
fn log_of(records: &Records, mark: &Mark) -> Option<LogId> {
    records.logs().filter_map(|record| record.log()).find(|log| salts(*log) == mark.log)
}
