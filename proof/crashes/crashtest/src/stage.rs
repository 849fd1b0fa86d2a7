//! The directories in which tests set up crash states: one with a database, and one with its logs.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use duralite_wal::placement::{describe, is_log_name};
use rusqlite::Connection;
use tempfile::TempDir;

use crate::model::Contents;
use crate::setup::Setup;

const SHARED_MEMORY: &str = "/dev/shm";
const PIECE: usize = 4096;

/// The directories in which a workload runs and in which tests recover its crash states. They are on a file system in
/// memory if the machine has one. A real disk is not necessary, because the model decides what is durable.
pub struct Stage {
    home: PathBuf,
    log_dir: PathBuf,
    /// The directory that the stage has made for itself, if it has made one. Dropping the stage deletes the directory.
    _root: Option<TempDir>,
}

impl Stage {
    /// Makes an empty stage with an empty database file. All crash states of the stage use this file, because a log
    /// names the database file to which it belongs. With `beside` the logs are in the database's own directory,
    /// otherwise in another one.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn new(beside: bool) -> Result<Self> {
        let memory = Path::new(SHARED_MEMORY);
        let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        let parent = parent.canonicalize()?;
        let root = tempfile::Builder::new().prefix("duralite-crash-").tempdir_in(parent)?;
        let home = root.path().join("home");
        let log_dir = if beside { home.clone() } else { root.path().join("pool") };
        std::fs::create_dir(&home)?;
        std::fs::create_dir_all(&log_dir)?;
        let stage = Self { home, log_dir, _root: Some(root) };
        File::create(stage.database())?;
        Ok(stage)
    }

    /// Returns a stage in directories that already exist.
    #[must_use]
    pub fn of(home: PathBuf, log_dir: PathBuf) -> Self {
        Self { home, log_dir, _root: None }
    }

    /// Returns the database's directory.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.home.clone()
    }

    /// Returns the logs' directory.
    #[must_use]
    pub fn log_dir(&self) -> PathBuf {
        self.log_dir.clone()
    }

    /// Returns the database's path.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.home().join("a.db")
    }

    /// Writes a crash state into the stage's directories, and deletes all other files. It spares the database, and the
    /// files that hold the shared memory of the state's logs. These may keep their old content, because a power loss
    /// may leave any content in them.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn set(&self, contents: &Contents) -> Result<()> {
        for (path, content) in contents {
            match content {
                Some(content) => write_sparsely(path, content),
                None => std::fs::remove_file(path).or_else(unless_gone),
            }
            .with_context(|| format!("cannot set up {}", path.display()))?;
        }
        let is_set = |path: &Path| contents.iter().any(|(set, content)| content.is_some() && set == path);
        let logs = contents.iter().filter(|(path, content)| content.is_some() && is_log_name(path));
        let ids: Vec<String> = logs.filter_map(|(log, _)| Some(describe(log).ok()?.id.to_string())).collect();
        for dir in [self.home(), self.log_dir()] {
            for entry in std::fs::read_dir(dir)? {
                let path = entry?.path();
                let name = path.to_string_lossy();
                let is_shared_memory = name.ends_with("-shm") && ids.iter().any(|id| name.contains(id));
                if path != self.database() && !is_set(&path) && !is_shared_memory {
                    std::fs::remove_file(path).or_else(unless_gone)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the contents with paths relative to the directory above the database's directory. A kept state has such
    /// paths.
    #[must_use]
    pub fn relative(&self, contents: &Contents) -> Contents {
        let root = self.home.parent().unwrap_or(&self.home);
        let below = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_path_buf();
        contents.iter().map(|(path, content)| (below(path), content.clone())).collect()
    }

    /// Opens a connection that does not wait for locks. Its cache is small, so that large transactions spill.
    ///
    /// # Errors
    /// An error of SQLite.
    pub fn connect(&self, setup: &Setup) -> rusqlite::Result<Connection> {
        let conn = Connection::open(setup.uri(&self.database(), &self.log_dir()))?;
        conn.busy_timeout(std::time::Duration::ZERO)?;
        let (page_bytes, frames, synchronous) =
            (setup.page_bytes, setup.checkpoint_frames, setup.synchronous());
        conn.execute_batch(&format!(
            "PRAGMA page_size={page_bytes}; PRAGMA cache_size=8; PRAGMA wal_autocheckpoint={frames};
             PRAGMA synchronous={synchronous}"
        ))?;
        Ok(conn)
    }
}

fn unless_gone(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Writes a file's new content, with holes for the zeros.
fn write_sparsely(path: &Path, content: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.set_len(content.len() as u64)?;
    // Compare a whole piece at once. A comparison byte by byte took a third of the time of an exploration.
    let is_zero = |piece: &[u8]| piece == &[0; PIECE][..piece.len()];
    let mut from = None;
    let pieces = content.chunks(PIECE).map(is_zero).chain([true]).enumerate();
    for (index, zero) in pieces {
        match (zero, from) {
            (false, None) => from = Some(index * PIECE),
            (true, Some(start)) => {
                let end = (index * PIECE).min(content.len());
                file.write_all_at(&content[start..end], start as u64)?;
                from = None;
            }
            _ => {}
        }
    }
    Ok(())
}
