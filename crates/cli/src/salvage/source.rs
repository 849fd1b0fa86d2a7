//! What is saved, and from where: a log that is where the database says, or one that was deleted and that a process has open.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use duralite_journal::directory::{self, DeletedLog};
use duralite_journal::media::Medium;
use duralite_journal::{DatabaseIdentity, Descriptor, offline};
use duralite_logfmt::LogId;
use duralite_logfmt::guard::DatabaseHeader;
use tempfile::NamedTempFile;

use crate::locate::{self, Place};
use crate::target::Target;
use duralite_cli::progress::{self, HowFar};

/// A database and its log, as they are read.
pub(super) struct Source {
    /// The database that is saved.
    pub(super) database: PathBuf,
    /// Where its log is, or was.
    pub(super) log: PathBuf,
    pub(super) id: LogId,
    pub(super) engine: &'static Descriptor,
    pub(super) copied: Option<Copied>,
}

/// A log that was deleted, and its database, both as of one moment.
pub(super) struct Copied {
    deleted: DeletedLog,
    /// The log. It stays: nothing else may be left of it soon.
    pub(super) log: PathBuf,
    /// The database file, which the process goes on to put pages into. It goes with this.
    database: NamedTempFile,
}

impl Copied {
    /// The process that the log is of.
    pub(super) fn process(&self) -> u32 {
        self.deleted.process
    }
}

/// Where a log is.
pub(super) enum Found {
    /// Where it should be.
    Log(PathBuf),
    /// In a process that has it open.
    Deleted(DeletedLog),
}

impl Source {
    /// What is to be saved to `out`. Copies a log that was deleted beside that.
    pub(super) fn of(target: &Target, out: &Path, found: &Found) -> Result<Self> {
        match found {
            Found::Log(log) => Self::in_place(target, log.clone()),
            Found::Deleted(deleted) => Self::copied(&target.path, out, deleted.clone()),
        }
    }

    fn in_place(target: &Target, log: PathBuf) -> Result<Self> {
        let about = directory::describe(&log)?;
        let database = if log == target.path {
            // Where it was made for, or beside the log, should both have been moved.
            let beside = log.parent().map(|dir| dir.join(about.database.file_name().unwrap_or_default()));
            let places = [Some(about.database.clone()), beside];
            let found = places.into_iter().flatten().find(|database| database.exists());
            found.with_context(|| format!("the database {} is not there", about.database.display()))?
        } else {
            target.path.clone()
        };
        Ok(Self { database, log, id: about.id, engine: about.engine, copied: None })
    }

    fn copied(database: &Path, out: &Path, deleted: DeletedLog) -> Result<Self> {
        let identity = DatabaseIdentity::of(database)?;
        let mut to = out.as_os_str().to_owned();
        to.push("-log");
        let to = PathBuf::from(to);
        let dir = out.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let failed =
            |error: io::Error| anyhow::Error::new(error).context(format!("copy {}", database.display()));
        let as_of = tempfile::Builder::new().prefix(".duralite-salvage-").tempfile_in(dir).map_err(failed)?;
        progress::with("copying the log", HowFar::default, || {
            deleted.copy(&to, &identity, Some(as_of.as_file()))
        })?;
        let about = directory::describe(&to)?;
        let (log, id) = (deleted.path.clone(), deleted.id);
        let copied = Some(Copied { deleted, log: to, database: as_of });
        Ok(Self { database: database.to_path_buf(), log, id, engine: about.engine, copied })
    }

    /// The log that is read.
    pub(super) fn log_file(&self) -> &Path {
        self.copied.as_ref().map_or(&self.log, |copied| &copied.log)
    }

    /// The database file that is read.
    pub(super) fn database_file(&self) -> &Path {
        self.copied.as_ref().map_or(&self.database, |copied| copied.database.path())
    }

    /// What to say when it could not be saved.
    pub(super) fn what_stays(&self) -> String {
        match self.copied.as_ref().filter(|copied| copied.log.exists()) {
            Some(Copied { log, .. }) => {
                format!("not saved; a copy of the log that was deleted is {}", log.display())
            }
            None => "not saved".to_owned(),
        }
    }

    /// Refuses what was read of a region beside the copy of a log that has started over since: that gives pages of it to others.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        let Some(copied) = self.copied.as_ref() else { return Ok(()) };
        if self.engine.needs.contains(&Medium::Scratchpad) && !copied.deleted.is_as_in(&copied.log)? {
            std::fs::remove_file(&copied.log).ok();
            bail!("process {} has written to the log meanwhile; try again", copied.process());
        }
        Ok(())
    }
}

/// Finds the log that a database names.
pub(super) fn find(target: &Target) -> Result<Found> {
    if locate::is_log(&target.path) {
        return Ok(Found::Log(target.path.clone()));
    }
    match offline::inspect(&target.path)? {
        header @ (DatabaseHeader::Plain { .. } | DatabaseHeader::Empty) => {
            let path = target.path.display();
            bail!("{path} has no log to save anything from: it is {}", locate::describe(header))
        }
        header @ (DatabaseHeader::Damaged | DatabaseHeader::NotSqlite) => {
            let said = || format!("{} is {}", target.path.display(), locate::describe(header));
            locate::find_by_owner(target).map(|log| Found::Log(log.path)).with_context(said)
        }
        DatabaseHeader::Guarded { .. } => match locate::place(target)? {
            (_, Place::Log(log)) => Ok(Found::Log(log)),
            (DatabaseHeader::Guarded { log_id, .. }, Place::Missing(why)) => {
                let deleted = directory::find_deleted(log_id)?;
                let why = || format!("{why}; no process that this user may look at has it open");
                deleted.map(Found::Deleted).with_context(why)
            }
            (header, _) => bail!(locate::without_log(&target.path, header)),
        },
    }
}
