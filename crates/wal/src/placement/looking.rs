//! Inspecting a log from outside, whether or not other processes use it at that moment: the inspection writes nothing,
//! takes no lock, and makes no process wait.
//!
//! What is read while others write may mix two states. So a reading counts only if nothing changed meanwhile. While
//! processes use the log, the reading goes through their segment, and the log must not have started over meanwhile.
//! While no process uses the log, none may have come meanwhile. Otherwise the log is read again. A contradiction counts
//! as damage only while no process uses the log (invariant 12).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use duralite_format::FormatError;
use duralite_medium::process::OwnFile;
use duralite_medium::{FileSegment, MediumError, Segment as _};

use super::head::Head;
use super::names;
use super::open::open_log;
use super::segment_files::open_segment_read_only;
use super::words::{ENGINE_OFFSET, INCARNATION, MAGIC, is_complete, metrics_of};
use crate::engine::Engine;
use crate::engine::checksums::find_checksum_mismatch;
use crate::engine::descriptor::{AttachingOutside, OpenFile};
use crate::engine::home::DatabaseFile;
use crate::engine::walk::{WalkSummary, WalkedRecord, WalkedTransaction};
use crate::shared::log_file::is_in_place;
use crate::{DatabaseIdentity, EngineOptions, LogError};

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
