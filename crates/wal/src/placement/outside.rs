//! Attaching a log as a user who may only read the database (invariant 13).
//!
//! Such a user has no process slot of the segment: it maps memory that it may not change, and announces itself with
//! locks of the kernel. While processes with slots live, it reads along with them. When none lives, the log is as a
//! crash has left it: this process then reads for itself what recovery would find, and SQLite builds a private
//! wal-index from that.
//!
//! A process that wants to open the database never waits for such a reader. So the segment may begin anew while a
//! reader has it mapped. The exception is a reader in the middle of a transaction that reads along: the process that
//! would begin the segment anew then continues with it instead. [`Outside::look_again`] adapts the reader to such
//! changes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use duralite_format::LogId;
use duralite_medium::process::OwnFile;
use duralite_medium::{FileSegment, MediumError, Segment as _};

use super::segment::{ATTACHING, BEGUN, ENGINE_OFFSET, INCARNATION, MAGIC, READABLE, is_complete};
use super::whose::{check_owner, open_log};
use super::{names, segment};
use crate::engine::Engine;
use crate::engine::descriptor::{AttachingOutside, Descriptor, LogPlacement, OpenFile};
use crate::shared::log_file::{self, Lock, Pause, is_in_place};
use crate::{DatabaseIdentity, EngineOptions, LogError};

/// A log that is attached by a user who may only read it.
pub struct Outside {
    pub(super) engine: &'static Descriptor,
    options: EngineOptions,
    db: DatabaseIdentity,
    pub(super) path: PathBuf,
    pub(super) segment_path: PathBuf,
    pub(super) file: OwnFile,
    pub(super) segment: Arc<FileSegment>,
    /// Whether the reader reads along with processes that have slots.
    live: AtomicBool,
    /// The word [`INCARNATION`] of the segment, when the reader last looked.
    incarnation: AtomicU64,
    /// The generation of the log when it was opened.
    generation: AtomicU64,
}

/// Attaches a log that this user may not open for writing, as the error `denied` says.
pub(super) fn attach(
    placement: &LogPlacement,
    options: &EngineOptions,
    db: &DatabaseIdentity,
    id: LogId,
    path: &Path,
    denied: LogError,
    pause: Pause<'_>,
) -> Result<(Outside, Box<dyn Engine>), LogError> {
    // This user may not be able to read the log either: then `denied` is the better answer.
    let Ok(file) = open_log(path, false) else { return Err(denied) };
    check_owner(path, &file, db, id, false)?;
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
    let engine = outside.open(live)?;
    Ok((outside, engine))
}

impl Outside {
    /// Whether the reader reads along with processes that have slots.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    /// Whether the segment has begun anew since the reader last looked. What it has read through the segment since then
    /// belongs to no transaction.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        // This load comes after what the caller has read.
        fence(Ordering::SeqCst);
        self.is_live()
            && self.segment.load(INCARNATION) / BEGUN != self.incarnation.load(Ordering::Acquire) / BEGUN
    }

    /// Whether the log has started over since it was opened, for a reader that does not read along with others. No
    /// process waited for it, and what it has read through its own wal-index belongs to no transaction.
    #[must_use]
    pub(crate) fn is_overtaken(&self, engine: &dyn Engine) -> bool {
        let generation = self.generation.load(Ordering::Acquire);
        !self.is_live() && (engine.origin().generation != generation || !engine.is_current())
    }

    /// Whether a process uses the log that may write it.
    ///
    /// # Errors
    /// `Medium`.
    pub fn has_processes(&self) -> Result<bool, LogError> {
        FileSegment::has_processes(self.segment_file()).map_err(|source| self.failed(source))
    }

    /// Whether a transaction may begin that reads through the segment. The caller already holds its mark, which keeps
    /// the segment from beginning anew.
    ///
    /// # Errors
    /// `Medium`.
    pub fn may_begin(&self) -> Result<bool, LogError> {
        fence(Ordering::SeqCst);
        let named = self.segment.has_name().map_err(|source| self.failed(source))?;
        Ok(named && self.segment.load(0) == MAGIC && !self.is_lost())
    }

    /// Looks whether other processes use the log now, or have used it since the reader last looked. Returns a new
    /// engine to read with, if anything has changed.
    ///
    /// # Errors
    /// `Busy` while a process attaches the log; as for attaching.
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
            // SQLite has the wal-index mapped. It stems from the current start of the system, because this process
            // already ran while processes with slots lived.
            if !is_complete(&attaching) {
                return busy("its log needs recovery: a user who may write the log has to open the database");
            }
            true
        } else {
            self.has_company(&attaching, pause)?
        };
        self.open(live).map(Some)
    }

    /// The file of the segment.
    fn segment_file(&self) -> &File {
        self.segment.file()
    }

    fn failed(&self, source: MediumError) -> LogError {
        LogError::Medium { path: self.segment_path.clone(), source }
    }

    /// Whether the paths still lead to both files.
    fn check_names(&self) -> Result<(), LogError> {
        if is_in_place(&self.path, &self.file)? && is_in_place(&self.segment_path, self.segment_file())? {
            return Ok(());
        }
        let what = "another process has just checkpointed its log or renamed it; open the database again";
        Err(LogError::Busy { path: self.db.path.clone(), what })
    }

    /// Whether processes with slots use the log, or did and another reader has been there since. The caller keeps
    /// others from attaching the log meanwhile.
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
            // The process that holds the lock is dying, or only inspects the log.
            if !pause(tries) {
                break;
            }
        }
        let what = "a process that does not use the database holds the lock of this log";
        Err(LogError::Busy { path: path.clone(), what })
    }

    /// Opens the log anew. The caller keeps others from attaching the log meanwhile.
    fn open(&self, live: bool) -> Result<Box<dyn Engine>, LogError> {
        // This load comes first, so that a later look notices any process that attaches the log from here on and
        // commits.
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
