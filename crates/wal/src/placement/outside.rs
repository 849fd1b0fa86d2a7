//! Attaches a log as a user who may only read the database (invariant 13).
//!
//! The process of such a user has no slot in the segment, because it maps the segment's memory without the right to
//! change it. The process announces itself with locks of the kernel instead. While processes with slots are alive, this
//! process reads the log through the segment, as they do. If there are none, a crash may have left the log unrecovered.
//! In that case this process determines for itself what recovery would find, and SQLite builds a private wal-index from
//! that.
//!
//! A process that wants to open the database never waits for such a reader. So it may initialise the segment again
//! while a reader has it mapped. There is one exception: if a reader is in the middle of a transaction through the
//! segment, the opening process uses the segment as it is. If the segment was initialised again,
//! [`Outside::look_again`] gives the reader a new view of the log.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use duralite_format::LogId;
use duralite_medium::process::OwnFile;
use duralite_medium::{FileSegment, MediumError, Segment as _};

use super::segment::{ATTACHING, BEGUN, ENGINE_OFFSET, INCARNATION, MAGIC, READABLE, is_complete};
use super::whose::{Head, check_owner, foreign, open_log};
use super::{names, segment};
use crate::engine::Engine;
use crate::engine::descriptor::{AttachingOutside, Descriptor, LogPlacement, OpenFile};
use crate::shared::log_file::{self, Lock, Pause, is_in_place};
use crate::{DatabaseIdentity, EngineOptions, LogError};

/// A log as attached by a user who may only read it.
pub struct Outside {
    pub(super) engine: &'static Descriptor,
    options: EngineOptions,
    db: DatabaseIdentity,
    pub(super) path: PathBuf,
    pub(super) segment_path: PathBuf,
    pub(super) file: OwnFile,
    pub(super) segment: Arc<FileSegment>,
    /// Whether the reader reads through the segment, as processes with slots do.
    live: AtomicBool,
    /// The word [`INCARNATION`] of the segment when the reader last looked.
    incarnation: AtomicU64,
    /// The log's generation when the reader opened the log.
    generation: AtomicU64,
}

/// Attaches a log for reading only. The caller tried to open the log for writing, and got the error `denied`. Returns
/// `denied` if the log cannot be opened for reading either.
pub(super) fn attach(
    placement: &LogPlacement,
    options: &EngineOptions,
    db: &DatabaseIdentity,
    id: LogId,
    path: &Path,
    denied: LogError,
    pause: Pause<'_>,
) -> Result<(Outside, Box<dyn Engine>), LogError> {
    // This user may not be able to read the log either. In that case `denied` is the better answer.
    let Ok(file) = open_log(path, false) else { return Err(denied) };
    let head = check_owner(path, &file, db, id, false)?;
    let segment_path = names::segment(path, id);
    let attaching = segment::open_read_only(&segment_path, db)?;
    let locked = log_file::lock(&attaching, Lock::Exclusive, pause);
    if !locked.map_err(|error| LogError::io("lock", &segment_path, &error))? {
        return Err(LogError::Busy { path: db.path.clone(), what: ATTACHING });
    }
    let shared = segment::open_read_only(&segment_path, db)?;
    let segment = segment::join_read_only(placement.engine, &segment_path, shared)?;
    let outside = Outside {
        engine: placement.engine,
        options: options.clone(),
        db: db.clone(),
        path: path.to_path_buf(),
        segment_path: segment_path.clone(),
        file,
        segment: Arc::new(segment),
        live: AtomicBool::new(false),
        incarnation: AtomicU64::new(0),
        generation: AtomicU64::new(0),
    };
    outside.check_names()?;
    let live = outside.has_company(&attaching, pause)?;
    if live && !segment::is_for(&*outside.segment, db) {
        return Err(foreign(path, &head, db));
    }
    let engine = outside.open(live)?;
    Ok((outside, engine))
}

impl Outside {
    /// Returns whether the reader reads through the segment, as processes with slots do.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    /// Returns whether the segment has been initialised again since the reader last looked. If so, the reader must
    /// discard what it has read through the segment since it last looked.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        // Load the word after everything that the caller has read.
        fence(Ordering::SeqCst);
        self.is_live()
            && self.segment.load(INCARNATION) / BEGUN != self.incarnation.load(Ordering::Acquire) / BEGUN
    }

    /// Returns whether the log has started over since the reader opened it. If so, a reader with its own wal-index must
    /// discard what it has read, because other processes do not wait for such a reader. Returns `false` for a reader
    /// that reads through the segment.
    #[must_use]
    pub(crate) fn is_overtaken(&self, engine: &dyn Engine) -> bool {
        let generation = self.generation.load(Ordering::Acquire);
        !self.is_live() && (engine.origin().generation != generation || !engine.is_current())
    }

    /// Returns whether there is a process that uses the log and may write it.
    ///
    /// # Errors
    /// `Medium`.
    pub fn has_processes(&self) -> Result<bool, LogError> {
        FileSegment::has_processes(self.segment_file()).map_err(|source| self.failed(source))
    }

    /// Returns whether a transaction that reads through the segment may begin. The caller already holds the
    /// transaction's mark, a lock that keeps the segment from being initialised again.
    ///
    /// # Errors
    /// `Medium`.
    pub fn may_begin(&self) -> Result<bool, LogError> {
        fence(Ordering::SeqCst);
        let named = self.segment.has_name().map_err(|source| self.failed(source))?;
        Ok(named && self.segment.load(0) == MAGIC && !self.is_lost())
    }

    /// Checks whether other processes use the log now, or have used it since the reader last looked. If anything has
    /// changed, returns a new engine to read with.
    ///
    /// # Errors
    /// `Busy` while a process attaches the log; otherwise as for attaching.
    pub(crate) fn look_again(&self, pause: Pause<'_>) -> Result<Option<Box<dyn Engine>>, LogError> {
        let processes = self.has_processes()?;
        fence(Ordering::SeqCst);
        let same = self.segment.load(INCARNATION) == self.incarnation.load(Ordering::Acquire);
        if self.is_live() && self.may_begin()? || !self.is_live() && same && !processes {
            return Ok(None);
        }
        let busy = |what| Err(LogError::Busy { path: self.db.path.clone(), what });
        let attaching = segment::open_read_only(&self.segment_path, &self.db)?;
        let locked = log_file::try_lock(&attaching, Lock::Exclusive);
        if !locked.map_err(|error| LogError::io("lock", &self.segment_path, &error))? {
            return busy(ATTACHING);
        }
        self.check_names()?;
        let live = if self.is_live() {
            // SQLite has mapped the wal-index in the segment. That wal-index is no older than the last start of the
            // system, because this process was already running while processes with slots were alive.
            if !is_complete(&attaching) {
                return busy("its log needs recovery: a user who may write the log has to open the database");
            }
            true
        } else {
            self.has_company(&attaching, pause)?
        };
        if live && !segment::is_for(&*self.segment, &self.db) {
            return Err(foreign(&self.path, &Head::read(&self.path, &self.file)?, &self.db));
        }
        self.open(live).map(Some)
    }

    /// Returns the segment's file.
    fn segment_file(&self) -> &File {
        self.segment.file()
    }

    fn failed(&self, source: MediumError) -> LogError {
        LogError::Medium { path: self.segment_path.clone(), source }
    }

    /// Checks that the paths still lead to the log's file and to the segment's file.
    fn check_names(&self) -> Result<(), LogError> {
        if is_in_place(&self.path, &self.file)? && is_in_place(&self.segment_path, self.segment_file())? {
            return Ok(());
        }
        let what = "another process has just checkpointed its log or renamed it; open the database again";
        Err(LogError::Busy { path: self.db.path.clone(), what })
    }

    /// Returns whether processes with slots use the log, or another reader still reads through the segment after those
    /// processes have died. During this call the caller keeps others from attaching the log.
    fn has_company(&self, attaching: &File, pause: Pause<'_>) -> Result<bool, LogError> {
        let path = &self.path;
        for tries in 0.. {
            let free = log_file::try_lock(&self.file, Lock::Exclusive);
            let held = !free.map_err(|error| LogError::io("lock", path, &error))?;
            if !held {
                self.file.unlock().map_err(|error| LogError::io("unlock", path, &error))?;
            }
            let company = if held {
                FileSegment::has_processes(attaching)
            } else {
                FileSegment::has_live_readers(attaching)
            };
            let company = company.map_err(|source| self.failed(source))?;
            if is_complete(attaching) && company {
                if self.segment.load(READABLE) != 0 {
                    return Ok(true);
                }
                let what = "the processes that use this log ignore users who may only read it; give the \
                            log's files the mode of the database, and open the database once more as a user \
                            who may write it";
                return Err(LogError::Busy { path: path.clone(), what });
            }
            if !held {
                return Ok(false);
            }
            // The process that holds the lock is dying, or only inspects the log. So try again.
            if !pause(tries) {
                break;
            }
        }
        let what = "a process that does not use the database holds the lock of this log";
        Err(LogError::Busy { path: path.clone(), what })
    }

    /// Opens the log again. The caller keeps others from attaching the log during this call.
    fn open(&self, live: bool) -> Result<Box<dyn Engine>, LogError> {
        // Load this word before opening the log. Every process with a slot that attaches the log later changes the
        // word, so the next check notices that process's commits.
        let incarnation = self.segment.load(INCARNATION);
        let shared = live.then(|| Arc::clone(&self.segment));
        let engine = (self.engine.attach_outside)(AttachingOutside {
            options: &self.options,
            file: OpenFile { path: &self.path, file: &self.file },
            shared,
            base: ENGINE_OFFSET,
        })?;
        self.segment.set_live(live).map_err(|source| self.failed(source))?;
        self.incarnation.store(incarnation, Ordering::Release);
        self.generation.store(engine.origin().generation, Ordering::Release);
        self.live.store(live, Ordering::Release);
        Ok(engine)
    }
}
