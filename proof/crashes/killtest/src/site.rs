//! The directories of a run. The run deletes them if all went well. Otherwise it keeps them, and reports
//! their paths.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use duralite_testkit::{GUARD, ROLLBACK_GUARD, VERSIONS};
use tempfile::TempDir;

use crate::Plan;

/// The first user of a run with two users. The users and their group need no accounts.
const FIRST_USER: u32 = 64_001;
const GROUP: u32 = 64_000;
const SHARED_MEMORY: &str = "/dev/shm";

/// The directories and files of a run.
pub(crate) struct Site {
    dir: TempDir,
    /// The log directory; `None` if the logs are beside the database.
    log_dir: Option<TempDir>,
    uris: Vec<String>,
    users: u32,
    /// Whether users outside the processes' group may read the database.
    open_to_read: bool,
}

impl Site {
    pub(crate) fn new(plan: &Plan) -> Result<Self> {
        let directory = plan.directory.clone().unwrap_or_else(std::env::temp_dir);
        let memory = Path::new(SHARED_MEMORY);
        let logs = match (&plan.log_directory, plan.engine) {
            (Some(path), _) => path.clone(),
            (None, engine) if engine.is_in_memory() && memory.is_dir() => memory.to_owned(),
            (None, _) => directory.clone(),
        };
        let make = |parent: &Path| {
            let made = tempfile::Builder::new().prefix("duralite-killtest-").tempdir_in(parent);
            made.with_context(|| format!("cannot make a directory in {}", parent.display()))
        };
        let dir = make(&directory)?;
        let log_dir = if plan.beside { None } else { Some(make(&logs)?) };
        let and = if plan.settings.is_empty() { "" } else { "&" };
        let logs = log_dir.as_ref().map_or(dir.path(), TempDir::path);
        let uri = |name: &str| {
            format!(
                "file:{}?vfs=duralite&{}{and}{}",
                dir.path().join(name).display(),
                plan.engine.settings(logs),
                plan.settings
            )
        };
        let uris = if plan.names { [DATABASE, LINK].map(uri).to_vec() } else { vec![uri(DATABASE)] };
        let (users, open_to_read) = (plan.users, plan.seed.is_multiple_of(2));
        let site = Self { dir, log_dir, uris, users, open_to_read };
        site.share()?;
        Ok(site)
    }

    /// Gives the users' group access to the directories.
    fn share(&self) -> Result<()> {
        if self.users > 1 {
            for dir in [self.dir.path(), self.log_dir()] {
                chown(dir, None, Some(GROUP)).context("two users need root")?;
                fs::set_permissions(dir, Permissions::from_mode(0o2770))?;
            }
        }
        Ok(())
    }

    /// Makes a file that every process may write.
    pub(crate) fn make_shared(&self, path: &Path) -> Result<()> {
        if self.users > 1 {
            fs::OpenOptions::new().append(true).create(true).open(path)?;
            fs::set_permissions(path, Permissions::from_mode(0o666))?;
        }
        Ok(())
    }

    /// Returns the user and group for the process in a slot; `None` if they are those of this process.
    pub(crate) fn user(&self, slot: usize) -> Option<(u32, u32)> {
        (self.users > 1).then(|| (FIRST_USER + slot as u32 % self.users, GROUP))
    }

    /// Returns the path of the program to start. With two users this is a copy that both users may execute.
    pub(crate) fn program(&self, program: &Path) -> Result<PathBuf> {
        if self.users == 1 {
            return Ok(program.to_owned());
        }
        let copy = self.path("program");
        if !copy.exists() {
            // This does not use `fs::copy`. Another thread may start a process while this process has the
            // copy open for writing. The new process would inherit the open file, and Linux runs no program
            // that is open for writing.
            let copied = Command::new("cp").arg(program).arg(&copy).status()?;
            ensure!(copied.success(), "cp of the program: {copied}");
            fs::set_permissions(&copy, Permissions::from_mode(0o755))?;
        }
        Ok(copy)
    }

    /// Gives the database its owner and its second name. No process may have the database open.
    pub(crate) fn give_names(&self) -> Result<()> {
        let database = self.path(DATABASE);
        if self.users > 1 {
            chown(&database, Some(FIRST_USER), Some(GROUP))?;
            let mode = if self.open_to_read { 0o664 } else { 0o660 };
            fs::set_permissions(&database, Permissions::from_mode(mode))?;
        }
        if self.uris.len() > 1 {
            fs::hard_link(&database, self.path(LINK))?;
        }
        Ok(())
    }

    pub(crate) fn rename_away(&self) -> Result<()> {
        fs::rename(self.path(DATABASE), self.path(MOVED)).context("renaming the database")
    }

    pub(crate) fn rename_back(&self) -> Result<()> {
        let missing = !self.path(DATABASE).exists();
        ensure!(missing, "somebody has made another database where it was renamed");
        fs::rename(self.path(MOVED), self.path(DATABASE)).context("renaming the database back")
    }

    /// Returns the space in bytes that all logs take.
    pub(crate) fn log_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        for name in names_in(self.log_dir())?.iter().filter(|name| is_log(name)) {
            // The log may have been deleted since its name was read.
            bytes += fs::metadata(self.log_dir().join(name)).map_or(0, |file| file.blocks() * 512);
        }
        Ok(bytes)
    }

    pub(crate) fn uris(&self) -> &[String] {
        &self.uris
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the path of the file of acknowledgements of an epoch. A new epoch begins whenever commits that
    /// were acknowledged before may be lost.
    pub(crate) fn acks(&self, epoch: u32) -> PathBuf {
        self.path(&format!("acknowledged-{epoch}"))
    }

    /// Returns the path of the file of acknowledgements of lanes in an epoch.
    pub(crate) fn lane_acks(&self, epoch: u32) -> PathBuf {
        self.path(&format!("acknowledged-in-lanes-{epoch}"))
    }

    pub(crate) fn board(&self) -> PathBuf {
        self.path("board")
    }

    pub(crate) fn messages(&self) -> PathBuf {
        self.path("messages")
    }

    pub(crate) fn log_dir(&self) -> &Path {
        self.log_dir.as_ref().map_or(self.dir.path(), TempDir::path)
    }

    /// Keeps the directories, and returns a text that says where they are.
    pub(crate) fn keep(self) -> String {
        let dir = self.dir.keep();
        let log_dir = self.log_dir.map_or_else(|| dir.clone(), TempDir::keep);
        format!("database and acknowledgements are kept in {}, logs in {}", dir.display(), log_dir.display())
    }
}

pub(crate) const DATABASE: &str = "k.db";
/// The database's second name.
const LINK: &str = "k-link.db";
/// The name that the database has for a moment in place of its first name.
const MOVED: &str = "k-moved.db";
/// The beginning of the names of all files of the database and its log.
const OWN: &str = "k";

/// The beginning of the names of regions, which many logs share.
const REGION: &str = "duralite-region-";

/// Returns whether a file of this name is a log. The shared memory that belongs to a log ends in `-shm` and
/// does not count.
fn is_log(name: &str) -> bool {
    name.contains("-duralite") && !name.ends_with("-shm")
}

fn names_in(dir: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot list {}", dir.display()))?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Checks that the database is an ordinary file, and that no log is left. No process may have the database
/// open.
pub(crate) fn check_plain(database: &Path, log_dir: &Path, allow_segments: bool) -> Result<()> {
    let header = fs::read(database).with_context(|| format!("cannot read {}", database.display()))?;
    let versions = header.get(VERSIONS);
    let guarded = versions == Some(&GUARD) || versions == Some(&ROLLBACK_GUARD);
    ensure!(!guarded, "the guard is on after the last close");
    let dir = database.parent().unwrap_or(Path::new("."));
    let mut left = names_in(dir)?;
    left.retain(|name| name.starts_with(OWN) && name != DATABASE && name != LINK);
    if log_dir != dir {
        left.extend(names_in(log_dir)?);
    }
    // A dead process may have taken pages of a region. They stay in use until the region runs short of space,
    // so a region may be left.
    left.retain(|name| !name.starts_with(REGION));
    left.retain(|name| !(allow_segments && name.contains("-duralite") && name.ends_with("-shm")));
    ensure!(left.is_empty(), "left after the last close: {}", left.join(", "));
    Ok(())
}
