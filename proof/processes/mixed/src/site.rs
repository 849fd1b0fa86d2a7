//! The directories of a round. A round that succeeds deletes them. A round that fails keeps them and reports
//! their paths.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use duralite_testkit::Engine;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::{Plan, Side};

const SHARED_MEMORY: &str = "/dev/shm";
/// The file names of the databases, in the same order as their names in SQL.
pub(crate) const DATABASES: [&str; 2] = ["main.db", "two.db"];

/// The paths of all files of a round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Paths {
    pub(crate) dir: PathBuf,
    pub(crate) log_dir: PathBuf,
}

impl Paths {
    pub(crate) fn acks(&self) -> PathBuf {
        self.dir.join("acknowledged")
    }

    pub(crate) fn messages(&self) -> PathBuf {
        self.dir.join("messages")
    }

    pub(crate) fn traces(&self) -> PathBuf {
        self.dir.join("traces")
    }

    /// Returns the URI with which one side opens a database.
    pub(crate) fn uri(&self, plan: &Plan, side: Side, database: usize, parameters: &str) -> String {
        let path = self.dir.join(DATABASES[database]);
        let vfs = match (side, plan.engine) {
            (Side::Ours, Some(engine)) => {
                let and = if plan.settings.is_empty() { "" } else { "&" };
                format!("duralite&{}{and}{}", engine.settings(&self.log_dir), plan.settings)
            }
            _ => "unix".to_owned(),
        };
        format!("file:{}?vfs={vfs}{parameters}", path.display())
    }
}

/// The directories of a round.
pub(crate) struct Site {
    dir: TempDir,
    log_dir: TempDir,
    pub(crate) paths: Paths,
}

impl Site {
    pub(crate) fn new(plan: &Plan) -> Result<Self> {
        let directory = plan.directory.clone().unwrap_or_else(std::env::temp_dir);
        let memory = Path::new(SHARED_MEMORY);
        let in_memory = plan.engine.is_some_and(Engine::is_in_memory) && memory.is_dir();
        let make = |parent: &Path| {
            let made = tempfile::Builder::new().prefix("duralite-mixed-").tempdir_in(parent);
            made.with_context(|| format!("cannot make a directory in {}", parent.display()))
        };
        let (dir, log_dir) = (make(&directory)?, make(if in_memory { memory } else { &directory })?);
        let paths = Paths { dir: dir.path().to_owned(), log_dir: log_dir.path().to_owned() };
        std::fs::create_dir(paths.traces())?;
        Ok(Self { dir, log_dir, paths })
    }

    /// Keeps the directories, and returns a text that says where they are.
    pub(crate) fn keep(self) -> String {
        let (dir, log_dir) = (self.dir.keep(), self.log_dir.keep());
        format!(
            "databases, acknowledgements and traces are kept in {}, logs in {}",
            dir.display(),
            log_dir.display()
        )
    }
}
