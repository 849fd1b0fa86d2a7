//! Observing a log while other processes use it, without taking part: nothing is locked or written, and no process
//! waits for the observer.
//!
//! Processes may come, go and die meanwhile, and the segment may begin anew or be deleted. So each look checks whether
//! the segment is still the one in use. Any user who may write the database may have written its contents, so they are
//! only read as numbers.

use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};

use duralite_format::LogId;
use duralite_medium::{FileSegment, MediumError, Segment as _};

use super::segment_files::open_segment_read_only;
use super::words::{HOME_FAILURES, HOME_WRITES, INCARNATION, MAGIC, beginning_of, layout_of, metrics_of};
use super::{About, describe, names};
use crate::metrics::{ProcessMetrics, read_all};
use crate::shared::log_file::is_in_place;
use crate::{DatabaseIdentity, LogError};

/// The segment, the memory that the users of a log share, as an observer sees it.
pub struct Watch {
    about: About,
    path: PathBuf,
    segment_path: PathBuf,
    segment: FileSegment,
}

/// What one look found.
pub struct Glance {
    /// The segment's clock in nanoseconds.
    pub clock_ns: u64,
    /// The number of the segment's beginning. Counts from another beginning do not continue these.
    pub beginning: u64,
    /// What processes have counted, including those that have ended.
    pub processes: Vec<ProcessMetrics>,
    /// Writes to the database file since that beginning: of pages in checkpoints, and of its size at their ends.
    pub home_writes: u64,
    /// How often writing or syncing the database has failed since everything was written to it anew.
    pub home_failures: u64,
}

impl Watch {
    /// Opens the segment of a log for observation; `None` while no process uses the log, or a process is just about to.
    /// Takes no lock.
    ///
    /// # Errors
    /// `Io` when this user may not read a file of the log, or the log does not exist; `Busy` when the processes that
    /// use it share a segment of another layout; `Owner`; `Format`.
    pub fn open(log: &Path, id: LogId, database: &DatabaseIdentity) -> Result<Option<Self>, LogError> {
        let about = describe(log)?;
        let segment_path = names::segment(log, id);
        let file = match open_segment_read_only(&segment_path, database) {
            Err(_) if matches!(segment_path.try_exists(), Ok(false)) => return Ok(None),
            opened => opened?,
        };
        let failed = |source| LogError::Medium { path: segment_path.clone(), source };
        if !FileSegment::has_processes(&file).map_err(failed)? || layout_of(&file) == 0 {
            return Ok(None);
        }
        if layout_of(&file) != MAGIC {
            let what = "another version of Duralite uses it; run the command of that version";
            return Err(LogError::Busy { path: database.path.clone(), what });
        }
        let (_, bytes) = metrics_of(about.engine.shared.all);
        let segment = FileSegment::join_read_only(file, &segment_path, bytes).map_err(failed)?;
        let watch = Self { about, path: log.to_path_buf(), segment_path, segment };
        Ok(if watch.is_current()? { Some(watch) } else { None })
    }

    /// Whether processes use the log through this segment.
    ///
    /// # Errors
    /// `Io`, `Medium`.
    pub fn is_current(&self) -> Result<bool, LogError> {
        let file = self.segment.file();
        let living = FileSegment::has_processes(file).map_err(|source| self.failed(source))?;
        Ok(living && self.segment.load(0) == MAGIC && is_in_place(&self.segment_path, file)?)
    }

    fn failed(&self, source: MediumError) -> LogError {
        LogError::Medium { path: self.segment_path.clone(), source }
    }

    /// What the log's file says about itself.
    #[must_use]
    pub fn about(&self) -> &About {
        &self.about
    }

    /// The log's path when it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The segment, in which this observer stores nothing.
    #[must_use]
    pub fn segment(&self) -> &FileSegment {
        &self.segment
    }

    /// Looks; `None` when no process uses the log through this segment any more.
    ///
    /// # Errors
    /// `Io`, `Medium`.
    pub fn look(&self) -> Result<Option<Glance>, LogError> {
        if !self.is_current()? {
            return Ok(None);
        }
        let (metrics, _) = metrics_of(self.about.engine.shared.all);
        let beginning = beginning_of(self.segment.load(INCARNATION));
        let processes = read_all(&self.segment, metrics, beginning).map_err(|source| self.failed(source))?;
        let glance = Glance {
            clock_ns: self.segment.clock_ns(),
            beginning,
            processes,
            home_writes: self.segment.load(HOME_WRITES),
            home_failures: self.segment.load(HOME_FAILURES),
        };
        // The segment may have begun anew meanwhile, so that blocks of both beginnings were read.
        fence(Ordering::SeqCst);
        let same = beginning == beginning_of(self.segment.load(INCARNATION));
        Ok(same.then_some(glance))
    }
}
