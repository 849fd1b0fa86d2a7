//! The directories of a run: deleted when all went well, kept and named when not.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use duralite_testkit::{Engine, GUARD, VERSIONS};
use tempfile::TempDir;

use crate::Plan;

const SHARED_MEMORY: &str = "/dev/shm";

/// Where everything is.
pub(crate) struct Site {
    dir: TempDir,
    pool: TempDir,
    uri: String,
}

impl Site {
    pub(crate) fn new(plan: &Plan) -> Result<Self> {
        let directory = plan.directory.clone().unwrap_or_else(std::env::temp_dir);
        let memory = Path::new(SHARED_MEMORY);
        let logs = match (&plan.log_directory, plan.engine) {
            (Some(path), _) => path.clone(),
            (None, Engine::Nvwal) if memory.is_dir() => memory.to_owned(),
            (None, _) => directory.clone(),
        };
        let make = |parent: &Path| {
            let made = tempfile::Builder::new().prefix("duralite-killtest-").tempdir_in(parent);
            made.with_context(|| format!("cannot make a directory in {}", parent.display()))
        };
        let (dir, pool) = (make(&directory)?, make(&logs)?);
        let and = if plan.settings.is_empty() { "" } else { "&" };
        let uri = format!(
            "file:{}?vfs=duralite&{}{and}{}",
            dir.path().join(DATABASE).display(),
            plan.engine.settings(pool.path()),
            plan.settings
        );
        Ok(Self { dir, pool, uri })
    }

    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The file of acknowledgements; another one each time that the older are void.
    pub(crate) fn acks(&self, epoch: u32) -> PathBuf {
        self.path(&format!("acknowledged-{epoch}"))
    }

    pub(crate) fn board(&self) -> PathBuf {
        self.path("board")
    }

    pub(crate) fn messages(&self) -> PathBuf {
        self.path("messages")
    }

    pub(crate) fn pool(&self) -> &Path {
        self.pool.path()
    }

    /// Leaves the directories where they are, and says where.
    pub(crate) fn keep(self) -> String {
        let (dir, pool) = (self.dir.keep(), self.pool.keep());
        format!("database and acknowledgements are kept in {}, logs in {}", dir.display(), pool.display())
    }
}

pub(crate) const DATABASE: &str = "k.db";

/// Checks that a database which nobody has open is an ordinary file, and its pool is empty.
pub(crate) fn check_plain(database: &Path, pool: &Path, allow_segments: bool) -> Result<()> {
    let header = fs::read(database).with_context(|| format!("cannot read {}", database.display()))?;
    ensure!(header.get(VERSIONS) != Some(&GUARD), "the guard is on after the last close");
    for end in ["-wal", "-shm", "-journal"] {
        let mut name = database.as_os_str().to_owned();
        name.push(end);
        ensure!(!Path::new(&name).exists(), "there is a {end} file after the last close");
    }
    let mut left = fs::read_dir(pool)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<Vec<_>>>()?;
    left.retain(|name| !(allow_segments && name.ends_with("-shm")));
    ensure!(left.is_empty(), "left in the pool after the last close: {}", left.join(", "));
    Ok(())
}
