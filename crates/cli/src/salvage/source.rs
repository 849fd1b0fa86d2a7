//! The source of a salvage: a log where the database says it is, or a deleted log that a process still has open.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use duralite_format::LogId;
use duralite_format::guard::DatabaseHeader;
use duralite_wal::engine::media::Medium;
use duralite_wal::log::offline;
use duralite_wal::placement::{self, DeletedLog};
use duralite_wal::{DatabaseIdentity, Descriptor};
use tempfile::NamedTempFile;

use duralite_cli::locate::{self, Place};
use duralite_cli::progress::{self, HowFar};
use duralite_cli::target::Target;

/// The database and the log to read.
pub(super) struct Source {
    /// The database to save.
    pub(super) database: PathBuf,
    /// The path of the database's log; for a deleted log, the path that it had.
    pub(super) log: PathBuf,
    pub(super) id: LogId,
    pub(super) engine: &'static Descriptor,
    pub(super) copied: Option<Copied>,
}

/// A copy of a deleted log, and a copy of its database as of the same moment.
pub(super) struct Copied {
    deleted: DeletedLog,
    /// The copy of the log. The command keeps this copy, because the deleted log itself vanishes when the last process
    /// closes it.
    pub(super) log: PathBuf,
    /// The temporary copy of the database file. The command reads this copy, because the process that has the log open
    /// goes on writing pages to the original.
    database: NamedTempFile,
}

impl Copied {
    /// Returns the pid of the process that has the deleted log open.
    pub(super) fn process(&self) -> u32 {
        self.deleted.process
    }
}

/// The place where the command found the log.
pub(super) enum Found {
    /// The log is at this path.
    Log(PathBuf),
    /// The log was deleted, but a process has it open.
    Deleted(DeletedLog),
}

impl Source {
    /// Prepares the source for a salvage into `out`. Copies a deleted log to a file beside `out`.
    pub(super) fn of(target: &Target, out: &Path, found: &Found) -> Result<Self> {
        match found {
            Found::Log(log) => Self::in_place(target, log.clone()),
            Found::Deleted(deleted) => Self::copied(&target.path, out, deleted.clone()),
        }
    }

    fn in_place(target: &Target, log: PathBuf) -> Result<Self> {
        let about = placement::describe(&log)?;
        let database = if log == target.path {
            // The database is still at the path that it had when the log was made, or it is beside the log because both
            // were moved.
            let beside = log.parent().map(|dir| dir.join(about.database.file_name().unwrap_or_default()));
            let places = [Some(about.database.clone()), beside];
            let found = places.into_iter().flatten().find(|database| database.exists());
            found.with_context(|| format!("the database {} does not exist", about.database.display()))?
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
        let about = placement::describe(&to)?;
        let (log, id) = (deleted.path.clone(), deleted.id);
        let copied = Some(Copied { deleted, log: to, database: as_of });
        Ok(Self { database: database.to_path_buf(), log, id, engine: about.engine, copied })
    }

    /// Returns the log file to read: the copy, if the log was deleted.
    pub(super) fn log_file(&self) -> &Path {
        self.copied.as_ref().map_or(&self.log, |copied| &copied.log)
    }

    /// Returns the database file to read: the copy, if the log was deleted.
    pub(super) fn database_file(&self) -> &Path {
        self.copied.as_ref().map_or(&self.database, |copied| copied.database.path())
    }

    /// Returns the message for a salvage that fails. The message names the copy of the log, if there is one.
    pub(super) fn what_stays(&self) -> String {
        match self.copied.as_ref().filter(|copied| copied.log.exists()) {
            Some(Copied { log, .. }) => {
                format!("not saved; a copy of the log that was deleted is {}", log.display())
            }
            None => "not saved".to_owned(),
        }
    }

    /// Fails if the process has changed the log (of the engine `scratchpad`) since this command began to copy it. When
    /// such a log starts again from its beginning, it gives up pages of its region, and another log may overwrite a
    /// page before this command has copied the page.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        let Some(copied) = self.copied.as_ref() else { return Ok(()) };
        if self.engine.needs.contains(&Medium::Scratchpad) && !copied.deleted.is_as_in(&copied.log)? {
            std::fs::remove_file(&copied.log).ok();
            bail!("process {} wrote to the log while it was copied; try again", copied.process());
        }
        Ok(())
    }
}

/// Finds the log to salvage.
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
            locate::find_by_owner(target)?.map(|log| Found::Log(log.path)).with_context(said)
        }
        DatabaseHeader::Guarded { .. } => match locate::place(target)? {
            (_, Place::Log(log)) => Ok(Found::Log(log)),
            (DatabaseHeader::Guarded { log_id, .. }, Place::Missing(why)) => {
                let deleted = placement::find_deleted(log_id)?;
                let why = || format!("{why}; no process that this user may look at has it open");
                deleted.map(Found::Deleted).with_context(why)
            }
            (header, _) => bail!(locate::without_log(&target.path, header)),
        },
    }
}
