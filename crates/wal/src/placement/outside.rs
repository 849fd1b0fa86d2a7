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
use std::time::{Duration, Instant};

use duralite_format::{FormatError, LogId};
use duralite_medium::process::OwnFile;
use duralite_medium::{FileSegment, MediumError, Segment as _};

use crate::engine::Engine;
use crate::engine::checksums::find_checksum_mismatch;
use crate::engine::descriptor::{AttachingOutside, Descriptor, LogPlacement, OpenFile};
use crate::engine::home::DatabaseFile;
use crate::engine::walk::{WalkSummary, WalkedRecord, WalkedTransaction};
use crate::placement::find::{Head, check_owner, open_log};
use crate::placement::segment::{
    BEGUN, ENGINE_OFFSET, INCARNATION, MAGIC, READABLE, is_complete, metrics_of, open_segment_read_only,
};
use crate::placement::waiting::{self, Lock, Pause};
use crate::placement::{names, segment};
use crate::shared::log_file::making::is_in_place;
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
    let attaching = segment::open_segment_read_only(&segment_path, db)?;
    let locked = waiting::lock(&attaching, Lock::Exclusive, pause);
    if !locked.map_err(|error| LogError::io("lock", &segment_path, &error))? {
        return Err(LogError::Busy { path: db.path.clone(), what: segment::ATTACHING });
    }
    let (_, bytes) = metrics_of(placement.engine.shared.all);
    let shared = segment::open_segment_read_only(&segment_path, db)?;
    let segment = FileSegment::join_read_only(shared, &segment_path, bytes)
        .map_err(|source| LogError::Medium { path: segment_path.clone(), source })?;
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
        let attaching = segment::open_segment_read_only(&self.segment_path, &self.db)?;
        let locked = waiting::try_lock(&attaching, Lock::Exclusive);
        if !locked.map_err(|error| LogError::io("lock", &self.segment_path, &error))? {
            return busy(segment::ATTACHING);
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
            let free = waiting::try_lock(&self.file, Lock::Exclusive);
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

// Inspecting a log from outside, whether or not other processes use it at that moment: the inspection writes nothing,
// takes no lock, and makes no process wait.
//
// What is read while others write may mix two states. So a reading counts only if nothing changed meanwhile. While
// processes use the log, the reading goes through their segment, and the log must not have started over meanwhile.
// While no process uses the log, none may have come meanwhile. Otherwise the log is read again. A contradiction counts
// as damage only while no process uses the log (invariant 12).

/// How long a log is read again that other processes change meanwhile.
const PATIENCE: Duration = Duration::from_secs(20);
/// The pause between two readings.
const PAUSE: Duration = Duration::from_millis(2);
/// Replaces an offset or an order that only the walk of an unused log can tell.
const LIVE: &str = "in use";

/// The way in which a log is inspected.
pub enum Reading<'a> {
    /// Other processes use the log: this engine reads along with them.
    Along(Box<dyn Engine>),
    /// No process uses the log.
    Unused(&'a Path),
}

/// The result of inspecting a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Looked<T> {
    /// What the reading function returned.
    pub found: T,
    /// Whether processes had the log open.
    pub in_use: bool,
}

/// Inspects a log with a function that reads it, repeatedly until nothing has changed during a reading. The function
/// returns `None` if it finds itself that something has changed.
///
/// # Errors
/// That of the function, where no process uses the log. `Busy` where processes change the log faster than it can be
/// read, or where what is read contradicts itself as long as they use it. `Io`, `Medium`, `Format`, `Owner`.
pub fn look<T>(
    path: &Path,
    read: &mut dyn FnMut(Reading<'_>) -> Result<Option<T>, LogError>,
) -> Result<Looked<T>, LogError> {
    let start = Instant::now();
    loop {
        let file = open_log(path, false)?;
        let head = Head::read(path, &file)?;
        let before = Users::of(path, &head)?;
        let (in_use, is_settled) = (before.living.is_some(), before.is_settled);
        let result = match (is_settled, in_use) {
            (false, _) => Ok(None),
            (true, true) => read_along(path, &file, &head, read),
            (true, false) => read(Reading::Unused(path)),
        };
        let is_same = is_settled && Users::of(path, &head)? == before && is_in_place(path, &file)?;
        match result {
            Ok(Some(found)) if is_same => return Ok(Looked { found, in_use }),
            Err(error) if is_same && !in_use => return Err(error),
            Err(error) if start.elapsed() > PATIENCE => return Err(undecided(path, Some(&error))),
            _ if start.elapsed() > PATIENCE => return Err(undecided(path, None)),
            _ => std::thread::sleep(PAUSE),
        }
    }
}

/// Reads through the segment of the processes that use the log; `None` when the log has moved on meanwhile.
fn read_along<T>(
    path: &Path,
    file: &OwnFile,
    head: &Head,
    read: &mut dyn FnMut(Reading<'_>) -> Result<Option<T>, LogError>,
) -> Result<Option<T>, LogError> {
    let segment_path = names::segment(path, head.log_id);
    let shared = open_segment_read_only(&segment_path, &DatabaseIdentity::of(path)?)?;
    let (_, bytes) = metrics_of(head.engine.shared.all);
    let failed = |source| LogError::Medium { path: segment_path.clone(), source };
    let segment = Arc::new(FileSegment::join_read_only(shared, &segment_path, bytes).map_err(failed)?);
    let engine = (head.engine.attach_outside)(AttachingOutside {
        options: &EngineOptions::default(),
        file: OpenFile { path, file },
        shared: Some(Arc::clone(&segment)),
        base: ENGINE_OFFSET,
    })?;
    let found = read(Reading::Along(engine))?;
    Ok(found.filter(|_| segment.load(0) == MAGIC))
}

/// The users of a log, and the beginning of the segment that they share.
#[derive(PartialEq, Eq)]
struct Users {
    /// The word [`INCARNATION`], if processes live that have a slot of the segment.
    living: Option<u64>,
    /// The same if no such process lives: a process that comes and goes meanwhile changes the word.
    left: Option<u64>,
    /// Whether no process is attaching the log, which may involve recovery.
    is_settled: bool,
}

impl Users {
    fn of(path: &Path, head: &Head) -> Result<Self, LogError> {
        let segment_path = names::segment(path, head.log_id);
        let Ok(file) = OwnFile::open(|| std::fs::File::open(&segment_path)) else {
            return Ok(Self { living: None, left: None, is_settled: true });
        };
        // These loads come after the reading.
        fence(Ordering::SeqCst);
        let failed = |source: MediumError| LogError::Medium { path: segment_path.clone(), source };
        let living = FileSegment::has_processes(&file).map_err(failed)?;
        let mut word = [0; 8];
        let read = std::os::unix::fs::FileExt::read_at(&*file, &mut word, INCARNATION);
        let incarnation = matches!(read, Ok(8)).then(|| u64::from_le_bytes(word));
        let (living, left) = if living { (incarnation, None) } else { (None, incarnation) };
        Ok(Self { living, left, is_settled: left.is_some() || living.is_none() || is_complete(&file) })
    }
}

fn undecided(path: &Path, error: Option<&LogError>) -> LogError {
    let what = match error {
        None => "processes change the log faster than it can be read; no damage was found",
        Some(_) => {
            "parts of the log contradict each other while programs write it, which is no sign of damage: \
             close the programs, and look again"
        }
    };
    LogError::Busy { path: path.to_path_buf(), what }
}

/// Visits every committed transaction of a log in order, and checks SQLite's checksums, whether or not other processes
/// use the log meanwhile. Calls `begin` at the start of each reading: transactions visited before no longer count.
/// While the log is in use, the offsets of records and the order of commits are not reported.
///
/// # Errors
/// As [`look`], and the one with which recovery would fail.
pub fn look_through(
    path: &Path,
    database: &dyn DatabaseFile,
    begin: &mut dyn FnMut(),
    visit: &mut dyn FnMut(&WalkedTransaction),
) -> Result<Looked<WalkSummary>, LogError> {
    look(path, &mut |reading| {
        begin();
        match reading {
            Reading::Along(engine) => walk_along(engine, database, visit),
            Reading::Unused(path) => super::walk(path, database, visit).map(Some),
        }
    })
}

/// As [`super::walk`], for an engine that reads along with the users of the log. `None` when the log has moved on
/// meanwhile.
fn walk_along(
    mut engine: Box<dyn Engine>,
    database: &dyn DatabaseFile,
    visit: &mut dyn FnMut(&WalkedTransaction),
) -> Result<Option<WalkSummary>, LogError> {
    let missing = || LogError::Unexpected("a frame number");
    engine.refresh()?;
    let mut sequence = 0;
    while let Some(found) = engine.transaction_after(sequence) {
        sequence = found.sequence;
        let mut records = Vec::new();
        for number in found.first_frame..=found.last_frame {
            let frame = engine.frame(number).ok_or_else(missing)?;
            records.push(WalkedRecord {
                offset: 0,
                frame: number,
                page_number: frame.page_number,
                record_bytes: frame.record_bytes.unwrap_or_default(),
                ranges: 0,
                whole: false,
            });
        }
        visit(&WalkedTransaction {
            sequence,
            offset: 0,
            first_frame: found.first_frame,
            last_frame: found.last_frame,
            db_pages: found.db_pages,
            order: LIVE,
            records,
        });
    }
    let (generation, transactions) = (engine.origin().generation, engine.transactions());
    let frames = engine.committed();
    let mismatch = find_checksum_mismatch(&mut *engine, database);
    if !engine.is_current() {
        return Ok(None);
    }
    if let Some(frame) = mismatch? {
        let what = FormatError::Damaged { what: "a page rebuilt from the log" };
        return Err(LogError::Corrupt { offset: u64::from(frame), what });
    }
    Ok(Some(WalkSummary { generation, transactions, frames, retired: false, mismatch: None }))
}
