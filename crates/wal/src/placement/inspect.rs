//! Inspects a log that other processes may be using. The inspection writes nothing, takes no lock and no process slot,
//! and makes no process wait.
//!
//! If others write during a reading, the reading may mix two states. So the observer, which is the inspecting process,
//! repeats a reading if something relevant changed during it ([`look`]). If processes use the log, the observer reads
//! through their segment, and repeats a reading during which the log started over. If no process uses the log, the
//! observer repeats a reading during which a process began to use the log. A contradiction counts as damage only if no
//! process uses the log (invariant 12).
//!
//! Processes may come, go and die while an observer watches them ([`Watch`]), and the segment may be initialised again
//! or deleted. So each glance at the log begins with a check that processes still use this segment. Any user who may
//! write the database may have written anything to the segment, so the observer uses its contents only as numbers to
//! show.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use duralite_format::{FormatError, LogId};
use duralite_medium::process::OwnFile;
use duralite_medium::{FileSegment, MediumError, Segment as _};

use super::names;
use super::segment::{
    self, ENGINE_OFFSET, HOME_FAILURES, HOME_WRITES, INCARNATION, MAGIC, beginning_of, is_complete,
    layout_of, metrics_of,
};
use super::whose::{Head, open_and_read};
use crate::engine::Engine;
use crate::engine::checksums::find_checksum_mismatch;
use crate::engine::descriptor::{AttachingOutside, Descriptor, OpenFile};
use crate::engine::home::DatabaseFile;
use crate::engine::salvage::{Later, Salvaged};
use crate::engine::walk::{WalkSummary, WalkedRecord, WalkedTransaction};
use crate::metrics::{ProcessMetrics, read_all};
use crate::shared::archived::{ARCHIVED_OFFSET, Archived, ArchivedWords};
use crate::shared::log_file::is_in_place;
use crate::{DatabaseIdentity, EngineOptions, LogError};

/// How long an observer keeps reading a log again while other processes change the log.
const PATIENCE: Duration = Duration::from_secs(20);
/// The pause between two readings.
const PAUSE: Duration = Duration::from_millis(2);
/// Stands for `WalkedTransaction::order` while the log is in use. Only the walk of an unused log determines the order.
const LIVE: &str = "in use";

/// What a log file says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// The engine that wrote the log.
    pub engine: &'static Descriptor,
    /// The log's id.
    pub id: LogId,
    /// The path at which the log's database was when the log was made.
    pub database: PathBuf,
}

/// Reads what a log file says about itself.
///
/// # Errors
/// `Io`, `Format`.
pub fn describe(path: &Path) -> Result<About, LogError> {
    let (_, head) = open_and_read(path, false)?;
    Ok(About { engine: head.engine, id: head.log_id, database: head.database() })
}

/// Opens a log of any engine for inspection, as recovery would leave it. Writes nothing, and takes no lock.
///
/// # Errors
/// As for attaching the log, except that the log may belong to any database.
pub fn open_log_read_only(path: &Path) -> Result<Box<dyn Engine>, LogError> {
    let (file, head) = open_and_read(path, false)?;
    (head.engine.open_read_only)(&OpenFile { path, file: &file })
}

/// Visits every committed transaction of a log in order, with the code that recovers logs. Then rebuilds every page and
/// checks SQLite's checksums. Writes nothing. Reads from the database what it needs to rebuild pages.
/// [`crate::engine::home::NoDatabase`] is enough for engines whose pages are all in the log.
///
/// # Errors
/// The error with which recovery would fail. The transactions before that point have been visited.
pub fn walk(
    path: &Path,
    database: &dyn DatabaseFile,
    visit: &mut dyn FnMut(&WalkedTransaction),
) -> Result<WalkSummary, LogError> {
    let (file, head) = open_and_read(path, false)?;
    (head.engine.walk)(&OpenFile { path, file: &file }, database, visit)
}

/// Opens a log to salvage its contents, and passes every intact transaction after the damage to `later`. Also reads the
/// database file, to determine which of its pages are newer than the damage. Writes nothing, and takes no lock.
///
/// # Errors
/// `Format` if the head of the log is damaged, `NoRegion`; the errors that `later` returns; those of reading the files.
pub fn salvage(path: &Path, database: &dyn DatabaseFile, later: Later<'_>) -> Result<Salvaged, LogError> {
    let (file, head) = open_and_read(path, false)?;
    let log = OpenFile { path, file: &file };
    crate::engine::salvage::read(&|later| (head.engine.salvage)(&log, database, later), database, later)
}

/// The way in which an observer reads a log.
pub enum Reading<'a> {
    /// Through this engine, while processes use the log.
    Along(Box<dyn Engine>),
    /// From the log at this path, which no process uses.
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

/// Inspects a log: calls `read` repeatedly, until nothing changes during a call. `read` returns `None` if it notices a
/// change itself.
///
/// # Errors
/// The error of `read`, if no process uses the log. `Busy` if processes change the log faster than it can be read, or
/// if what is read contradicts itself while processes use the log. `Io`, `Medium`, `Format`, `Owner`.
pub fn look<T>(
    path: &Path,
    read: &mut dyn FnMut(Reading<'_>) -> Result<Option<T>, LogError>,
) -> Result<Looked<T>, LogError> {
    let start = Instant::now();
    loop {
        let (file, head) = open_and_read(path, false)?;
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

/// Reads through the segment of the processes that use the log. Returns `None` if the log has started over during the
/// reading.
fn read_along<T>(
    path: &Path,
    file: &OwnFile,
    head: &Head,
    read: &mut dyn FnMut(Reading<'_>) -> Result<Option<T>, LogError>,
) -> Result<Option<T>, LogError> {
    let segment_path = names::segment(path, head.log_id);
    let shared = segment::open_read_only(&segment_path, &DatabaseIdentity::of(path)?)?;
    let segment = Arc::new(segment::join_read_only(head.engine, &segment_path, shared)?);
    let engine = (head.engine.attach_outside)(AttachingOutside {
        options: &EngineOptions::default(),
        file: OpenFile { path, file },
        shared: Some(Arc::clone(&segment)),
        base: ENGINE_OFFSET,
    })?;
    let found = read(Reading::Along(engine))?;
    Ok(found.filter(|_| segment.load(0) == MAGIC))
}

/// Values that change if a process begins or ceases to use a log, or if the log's segment is initialised again.
#[derive(PartialEq, Eq)]
struct Users {
    /// The word [`INCARNATION`] if living processes have a slot of the segment, otherwise `None`.
    living: Option<u64>,
    /// The word [`INCARNATION`] if no living process has a slot, otherwise `None`. If a process uses the log and ends
    /// between two readings, the word differs.
    left: Option<u64>,
    /// Whether no process is attaching the log. An attaching process may be recovering the log.
    is_settled: bool,
}

impl Users {
    fn of(path: &Path, head: &Head) -> Result<Self, LogError> {
        let segment_path = names::segment(path, head.log_id);
        let Ok(file) = OwnFile::open(|| std::fs::File::open(&segment_path)) else {
            return Ok(Self { living: None, left: None, is_settled: true });
        };
        // Load these words after the caller's reading.
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

/// Visits every committed transaction of a log in order, and checks SQLite's checksums, even if other processes use the
/// log. Calls `begin` at the start of each reading. A reading begins at the start of the log, so the caller must
/// discard the transactions visited before that call. While the log is in use, does not report the offsets of records
/// and the order of commits.
///
/// # Errors
/// As [`look`], and the error with which recovery would fail.
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
            Reading::Unused(path) => walk(path, database, visit).map(Some),
        }
    })
}

/// Does what [`walk`] does, for a log in use: `engine` reads together with the processes that use the log. Returns
/// `None` if the log has started over during the walk.
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

/// An observer's view of the segment, the memory that the processes using a log share.
pub struct Watch {
    about: About,
    path: PathBuf,
    segment_path: PathBuf,
    segment: FileSegment,
}

/// What an observer has found in the segment at one moment.
pub struct Glance {
    /// The segment's clock in nanoseconds.
    pub clock_ns: u64,
    /// The number of the segment's current initialisation. Only counts with the same number are comparable.
    pub beginning: u64,
    /// The counts of processes, including processes that have ended.
    pub processes: Vec<ProcessMetrics>,
    /// The number of writes to the database file since the segment was initialised: writes of pages in checkpoints, and
    /// of the database's size at the ends of checkpoints.
    pub home_writes: u64,
    /// How often writing or syncing the database file has failed. The count returns to 0 when a checkpoint has written
    /// everything in the log to the database, or when the log becomes empty.
    pub home_failures: u64,
    /// How much of the log the archive has.
    pub archived: Archived,
}

impl Watch {
    /// Opens the segment of a log for observation. Returns `None` if no process uses the log, or if a process is just
    /// beginning to use it. Takes no lock.
    ///
    /// # Errors
    /// `Io` if this user may not read a file of the log, or the log does not exist; `Busy` if the processes that use
    /// the log share a segment of another layout; `Owner`; `Format`.
    pub fn open(log: &Path, id: LogId, database: &DatabaseIdentity) -> Result<Option<Self>, LogError> {
        let about = describe(log)?;
        let segment_path = names::segment(log, id);
        let file = match segment::open_read_only(&segment_path, database) {
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
        let segment = segment::join_read_only(about.engine, &segment_path, file)?;
        let watch = Self { about, path: log.to_path_buf(), segment_path, segment };
        Ok(if watch.is_current()? { Some(watch) } else { None })
    }

    /// Returns whether processes use the log through this segment.
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

    /// Returns what the log's file says about itself.
    #[must_use]
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Returns the path by which the log was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the segment. This observer stores nothing in it.
    #[must_use]
    pub fn segment(&self) -> &FileSegment {
        &self.segment
    }

    /// Reads the segment once. Returns `None` if no process uses the log through this segment any more.
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
            archived: ArchivedWords::new(&self.segment, ARCHIVED_OFFSET).look(),
        };
        // If a process has initialised the segment again during this call, some blocks are from before and some from
        // after. In that case return nothing.
        fence(Ordering::SeqCst);
        let same = beginning == beginning_of(self.segment.load(INCARNATION));
        Ok(same.then_some(glance))
    }
}
