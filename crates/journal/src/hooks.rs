//! Where what a log does to its medium and its directory can be watched, or made to fail: for
//! tests of durability, through the very code that users run.
//!
//! A hook is looked for once, when a log is opened; without one nothing stands in between.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use duralite_medium::block::Block;
use duralite_medium::{MediumError, Nvm};

/// A step of making, opening or deleting a log's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileStep {
    /// A file for a new log is made, without a name yet where the file system can do that.
    Create,
    /// A new log's file is synced, before it gets its name.
    Sync,
    /// It gets its name.
    Publish,
    /// The directory is synced, after which the name is durable.
    SyncDirectory,
    /// An existing log is opened.
    Open,
    /// The file of the memory that processes share is opened.
    OpenShared,
    /// That memory is mapped.
    MapShared,
    /// A log's name is removed.
    Remove,
}

/// What stands between logs and their media.
pub trait Hook: Send + Sync {
    /// Called before a step, which is left undone on an error.
    ///
    /// # Errors
    /// The one that the step is to fail with.
    fn step(&self, step: FileStep, log: &Path) -> io::Result<()>;

    /// Stands before the memory of a log that is being mapped.
    ///
    /// # Errors
    /// The one that mapping is to fail with.
    fn nvm(&self, _log: &Path, nvm: Arc<dyn Nvm>) -> Result<Arc<dyn Nvm>, MediumError> {
        Ok(nvm)
    }

    /// Stands before a database file that is mapped as the home of a log.
    ///
    /// # Errors
    /// The one that mapping is to fail with.
    fn home(&self, _database: &Path, nvm: Arc<dyn Nvm>) -> Result<Arc<dyn Nvm>, MediumError> {
        Ok(nvm)
    }

    /// Stands before the blocks of a log that is being opened.
    ///
    /// # Errors
    /// The one that opening is to fail with.
    fn block(&self, _log: &Path, block: Arc<dyn Block>) -> Result<Arc<dyn Block>, MediumError> {
        Ok(block)
    }
}

static TAPS: RwLock<Vec<(PathBuf, Arc<dyn Hook>)>> = RwLock::new(Vec::new());

/// A hook in force until this is dropped. Logs that are open stay hooked.
pub struct Hooked {
    dir: PathBuf,
}

/// Puts a hook before every log in a directory, and every database there that is mapped, that is opened from now on.
#[must_use]
pub fn hook(dir: &Path, hook: Arc<dyn Hook>) -> Hooked {
    let mut hooks = TAPS.write().unwrap_or_else(PoisonError::into_inner);
    hooks.retain(|(other, _)| other != dir);
    hooks.push((dir.to_path_buf(), hook));
    Hooked { dir: dir.to_path_buf() }
}

impl Drop for Hooked {
    fn drop(&mut self) {
        let mut hooks = TAPS.write().unwrap_or_else(PoisonError::into_inner);
        hooks.retain(|(dir, _)| *dir != self.dir);
    }
}

fn of(log: &Path) -> Option<Arc<dyn Hook>> {
    let hooks = TAPS.read().unwrap_or_else(PoisonError::into_inner);
    let dir = log.parent()?;
    hooks.iter().find(|(hooked, _)| hooked == dir).map(|(_, hook)| Arc::clone(hook))
}

/// Announces a step.
pub(crate) fn step(step: FileStep, log: &Path) -> io::Result<()> {
    of(log).map_or(Ok(()), |hook| hook.step(step, log))
}

/// Puts the hook before the memory of a log that is there when an engine maps it, if any is.
///
/// # Errors
/// The one that mapping is to fail with.
pub fn nvm(log: &Path, nvm: Arc<dyn Nvm>) -> Result<Arc<dyn Nvm>, MediumError> {
    match of(log) {
        None => Ok(nvm),
        Some(hook) => hook.nvm(log, nvm),
    }
}

pub(crate) fn home(database: &Path, nvm: Arc<dyn Nvm>) -> Result<Arc<dyn Nvm>, MediumError> {
    match of(database) {
        None => Ok(nvm),
        Some(hook) => hook.home(database, nvm),
    }
}

pub(crate) fn block(log: &Path, block: Arc<dyn Block>) -> Result<Arc<dyn Block>, MediumError> {
    match of(log) {
        None => Ok(block),
        Some(hook) => hook.block(log, block),
    }
}
