//! The state that all parts of the demonstration share: the input, the directories, and the processes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::processes::Processes;
use crate::rows::Row;

const SHARED_MEMORY: &str = "/dev/shm";

/// The state of the demonstration. When this value is dropped, it first kills all processes, and then removes
/// everything in its directories.
pub(crate) struct Scene {
    pub(crate) processes: Processes,
    pub(crate) rows: Vec<Row>,
    /// The seed from which the demonstration draws the moments of the kills.
    pub(crate) seed: u64,
    databases: TempDir,
    pool: TempDir,
}

impl Scene {
    /// Makes the directories.
    ///
    /// # Errors
    /// An error if they cannot be created.
    pub(crate) fn new(rows: Vec<Row>, seed: u64, out: &Path) -> Result<Self> {
        let processes = Processes::new()?;
        let temporary = |prefix, parent: &Path| {
            let made = tempfile::Builder::new().prefix(prefix).tempdir_in(parent);
            made.with_context(|| format!("cannot make a directory in {}", parent.display()))
        };
        std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        let databases = temporary("demo-", out)?;
        let pool = temporary("duralite-demo-", Path::new(SHARED_MEMORY))?;
        Ok(Self { processes, rows, seed, databases, pool })
    }

    pub(crate) fn databases(&self) -> &Path {
        self.databases.path()
    }

    /// Returns the directory of emulated memory.
    pub(crate) fn pool(&self) -> &Path {
        self.pool.path()
    }

    /// Returns a path for a new database.
    pub(crate) fn database(&self, name: &str) -> PathBuf {
        self.databases().join(format!("{name}.db"))
    }

    /// Returns lines of text that name two file systems, that of the databases and that of emulated memory.
    /// The measurements depend on them.
    pub(crate) fn places(&self) -> String {
        let file_system = file_system(self.databases());
        let mut text = format!("Databases: {} ({file_system}).", shown(self.databases()));
        if ["tmpfs", "ramfs"].contains(&file_system.as_str()) {
            text.push_str(
                "\nNOTE: that is memory and not a disk: stock SQLite's figures below mean nothing.",
            );
        }
        text.push_str(&format!(
            "\nNVRAM: emulated in {SHARED_MEMORY}. It survives a process crash, NOT a power loss.\n"
        ));
        text
    }
}

fn file_system(path: &Path) -> String {
    let answer = Command::new("stat").args(["--file-system", "--format=%T"]).arg(path).output();
    let name =
        answer.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    if name.is_empty() { "unknown file system".to_owned() } else { name }
}

/// Returns the path as text. The text is relative to the working directory if the path is below that
/// directory.
pub(crate) fn shown(path: &Path) -> String {
    let here = std::env::current_dir().ok();
    let short = here.and_then(|here| path.strip_prefix(here).ok().map(Path::to_path_buf));
    short.unwrap_or_else(|| path.to_path_buf()).display().to_string()
}
