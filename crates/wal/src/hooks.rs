//! Fault-injection hooks. With these hooks, tests record what a log does to its medium and its directory, or make an
//! operation fail. The code under test is the code that users run.
//!
//! A log looks for a hook only when it is opened. If there is no hook, the log uses its medium directly.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use duralite_medium::block::Block;
use duralite_medium::{MediumError, Nvm, Segment};

/// A step of creating, opening or deleting a log's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileStep {
    /// The log creates a file for a new log. The file has no name yet, if the file system supports files without a
    /// name.
    Create,
    /// A new log's file is synced, before it gets its name.
    Sync,
    /// A new log gets its name.
    Publish,
    /// The directory is synced, which makes the name durable.
    SyncDirectory,
    /// An existing log is opened.
    Open,
    /// The file of the segment, the memory that processes share, is opened.
    OpenShared,
    /// The segment is mapped.
    MapShared,
    /// A log's name is removed.
    Remove,
    /// A file that belongs to a database's archive is written beside the database.
    Record,
}

/// The layer between logs and their media.
pub trait Hook: Send + Sync {
    /// A log calls this method before each step. A test can record the step, or make it fail: if this call returns an
    /// error, the log skips the step and reports that error.
    ///
    /// # Errors
    /// The error with which the step shall fail.
    fn step(&self, step: FileStep, log: &Path) -> io::Result<()>;

    /// Wraps the memory of a log that is being mapped.
    ///
    /// # Errors
    /// The error with which mapping shall fail.
    fn nvm(&self, _log: &Path, nvm: Arc<dyn Nvm>) -> Result<Arc<dyn Nvm>, MediumError> {
        Ok(nvm)
    }

    /// Wraps a database file that is being mapped as the home of a log.
    ///
    /// # Errors
    /// The error with which mapping shall fail.
    fn home(&self, _database: &Path, nvm: Arc<dyn Nvm>) -> Result<Arc<dyn Nvm>, MediumError> {
        Ok(nvm)
    }

    /// Wraps the segment of a log that is being opened, for an engine whose processes lock the log in the segment.
    fn segment(&self, _log: &Path, segment: Arc<dyn Segment>) -> Arc<dyn Segment> {
        segment
    }

    /// Wraps the blocks of a log that is being opened.
    ///
    /// # Errors
    /// The error with which opening shall fail.
    fn block(&self, _log: &Path, block: Arc<dyn Block>) -> Result<Arc<dyn Block>, MediumError> {
        Ok(block)
    }
}

static TAPS: RwLock<Vec<(PathBuf, Arc<dyn Hook>)>> = RwLock::new(Vec::new());

/// Uninstalls a hook when it is dropped. A log that is already open keeps the hook.
pub struct Hooked {
    dir: PathBuf,
}

/// Installs a hook for a directory. From now on it applies to every log that is opened there, and to every database
/// that is mapped there.
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

/// Calls the hook before a step, if there is one.
pub(crate) fn step(step: FileStep, log: &Path) -> io::Result<()> {
    of(log).map_or(Ok(()), |hook| hook.step(step, log))
}

/// Wraps the memory of a log that an engine maps, if a hook is installed.
///
/// # Errors
/// The error with which mapping shall fail.
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

pub(crate) fn segment(log: &Path, segment: Arc<dyn Segment>) -> Arc<dyn Segment> {
    match of(log) {
        None => segment,
        Some(hook) => hook.segment(log, segment),
    }
}

pub(crate) fn block(log: &Path, block: Arc<dyn Block>) -> Result<Arc<dyn Block>, MediumError> {
    match of(log) {
        None => Ok(block),
        Some(hook) => hook.block(log, block),
    }
}
