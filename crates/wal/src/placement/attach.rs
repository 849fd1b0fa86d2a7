//! Attaches a log. [`attach`] finds the log's file, waits for other processes that are attaching it, and locks it. Then
//! this process either becomes the log's only user, or joins the processes that use it. [`super::whose`] decides to
//! which database the log belongs, and [`how_to_enter`] whether any other process uses the log. If none does,
//! `log/recover.rs` then decides who recovers the log. `create` opens a new log with the same [`Place`].

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use duralite_format::LogId;
use duralite_medium::block::check_filesystem;
use duralite_medium::process::OwnFile;
use duralite_medium::{FileSegment, Guarantee};

use super::outside::{self, Outside};
use super::segment::{ENGINE_OFFSET, is_complete, left_of, metrics_of};
use super::whose::{Head, Relation, check_owner, foreign, open_log};
use super::{find, names, segment};
use crate::engine::Engine;
use crate::engine::descriptor::{Attaching, Descriptor, LogPlacement, OpenFile};
use crate::engine::home::DatabaseFile;
use crate::engine::media::Medium;
use crate::metrics::Recorder;
use crate::shared::log_file::{self, Lock, Pause, is_in_place};
use crate::{DatabaseIdentity, EngineOptions, ErrorKind, LogError};

/// Opens the log that a guarded database names. If no other process uses the log, this process recovers it. Recovery
/// changes no committed transaction. Waits for other processes as long as `pause` permits, and then returns `Busy`.
pub(crate) fn attach(
    database: &dyn DatabaseFile,
    placement: &LogPlacement,
    options: &EngineOptions,
    db: &DatabaseIdentity,
    id: LogId,
    adopt: bool,
    pause: Pause<'_>,
) -> Result<OpenLog, LogError> {
    let missing = || LogError::Missing { database: db.path.clone(), id, searched: placement.dir.clone() };
    let path = placement.find(&db.path, id)?.ok_or_else(missing)?;
    let file = match open_log(&path, true) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(missing()),
        Err(error) if error.kind() == ErrorKind::ReadOnly && !adopt => {
            let (outside, engine) = outside::attach(placement, options, db, id, &path, error, pause)?;
            return OpenLog::of_outside(outside, engine).map(|log| log.on_file_systems(&db.path));
        }
        Err(error) => return Err(error),
    };
    let head = check_owner(&path, &file, db, id, adopt)?;
    let place = Place::new(placement, &path, id, if adopt { 0 } else { db.device });
    // Only one process at a time attaches. Otherwise two processes could both find that no other process uses the log:
    // the second may check after the first has checked, and before the first announces that it uses the log.
    let attaching = segment::lock(&place.segment_path, db, pause)?;
    let gone = || {
        let what = "another process has just checkpointed its log or renamed it; open the database again";
        LogError::Busy { path: db.path.clone(), what }
    };
    if !is_in_place(&path, &file)? {
        if matches!(path.try_exists(), Ok(false)) && !find::is_aside(&path, &head) {
            drop(std::fs::remove_file(&place.segment_path));
        }
        return Err(gone());
    }
    let (alone, left) = match how_to_enter(&file, &place, &attaching, pause)? {
        Entry::Alone { left } => (true, left),
        Entry::Join => (false, None),
    };
    if alone && placement.is_dax() {
        sync_what_was_emulated(&path, &file)?;
    }
    // Both files may be gone by now, because a process that checkpoints the log may have deleted them.
    let segment = segment::open_again(&place.segment_path, &attaching)?.ok_or_else(gone)?;
    let segment = place.join(segment, alone)?;
    if !adopt && !segment::is_for(&*segment, db) {
        return Err(foreign(&path, &head, db));
    }
    let mut log = place.open(
        options,
        database,
        file,
        segment,
        Found { alone, of_another: !head.is_of(db), is_new: false, left },
    )?;
    log.attaching = Some(attaching);
    // Wait here for a tool that checkpoints the log without SQLite's locks. A process that uses SQLite cannot delete
    // the log now, because deleting it takes EXCLUSIVE on the database, while the attaching connection holds SHARED.
    let shared = log_file::lock(&log.file, Lock::Shared, pause);
    if !shared.map_err(|error| LogError::io("lock", &path, &error))? {
        return Err(LogError::Busy {
            path: db.path.clone(),
            what: "another process is checkpointing its log; try again",
        });
    }
    if !is_in_place(&path, &log.file)? {
        return Err(gone());
    }
    Ok(log.on_file_systems(&db.path))
}

/// Syncs a log in persistent memory, because somebody may have used the log as emulated memory on the same file system
/// before. Emulated memory may have left two things that are not durable: blocks written for the first time, and stores
/// that its persistency model did not flush. Without this sync, a power loss might destroy a commit and keep a later
/// one.
fn sync_what_was_emulated(path: &Path, file: &File) -> Result<(), LogError> {
    file.sync_all().map_err(|error| LogError::io("sync", path, &error))
}

/// How a process enters a log.
enum Entry {
    /// This process has proved that no other process uses the log. It initialises the segment again.
    Alone {
        /// The engine's words as the last process that used the log left them; see [`left_of`].
        left: Option<Vec<u8>>,
    },
    /// This process joins the processes that use the log. The segment stays as it is.
    Join,
}

/// Determines whether any other process uses the log. If none does, this process holds the log's exclusive lock on
/// return. A lock on the log does not prove that a process uses the log. The kernel releases the locks of a dead
/// process one after another. So the dead process's lock on the log may still exist when its lock on the segment's
/// file, which keeps others from attaching the log, is already gone. Only a living process, in a segment that was
/// completed, proves that the log is in use.
///
/// A process that gets the exclusive lock sees everything that was acknowledged. Every descriptor through which an
/// engine writes is a duplicate of the descriptor that holds the lock. So the lock of a dead process is released only
/// with the last of these duplicates, when none of the process's operations is still running. The dead process had
/// flushed everything that it acknowledged (or, under Group Synch, flushed it when it closed the log). The dead process
/// may still have the segment mapped and hold the lock of its own process slot. No other process takes that slot before
/// it is free.
///
/// A process that does not get the exclusive lock joins the segment as it is. The other processes that use the segment
/// may end at any time. The transactions that they sealed and did not flush stay in the ring for the next leader.
fn how_to_enter(
    file: &File,
    place: &Place<'_>,
    attaching: &File,
    pause: Pause<'_>,
) -> Result<Entry, LogError> {
    let path = place.path;
    let failed = |source| LogError::Medium { path: place.segment_path.clone(), source };
    for tries in 0.. {
        let locked = log_file::try_lock(file, Lock::Exclusive);
        if locked.map_err(|error| LogError::io("lock", path, &error))? {
            let left = left_of(attaching, place.placement.engine.shared.zeroed);
            let begins = segment::clear(attaching).map_err(failed)?;
            if begins {
                return Ok(Entry::Alone { left });
            }
            file.unlock().map_err(|error| LogError::io("unlock", path, &error))?;
            return Ok(Entry::Join);
        }
        let complete = is_complete(attaching);
        let living = FileSegment::has_processes(attaching).map_err(failed)?;
        if living && complete {
            return Ok(Entry::Join);
        }
        if !pause(tries) {
            if living {
                return Ok(Entry::Join);
            }
            break;
        }
    }
    let what = "a process uses this log without its shared memory, which may have been deleted; close \
                the database in all processes, and open it again";
    Err(LogError::Busy { path: path.to_path_buf(), what })
}

/// An attached log, and the file whose lock tells other processes that this process uses the log.
pub(crate) struct OpenLog {
    pub(crate) kind: &'static Descriptor,
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) segment: Arc<FileSegment>,
    pub(crate) path: PathBuf,
    /// The file of the segment, the memory that the processes using the log share.
    pub(crate) segment_path: PathBuf,
    /// The log's file. This process holds a shared `flock` of it while the log is attached.
    pub(crate) file: OwnFile,
    /// Whether no other process used the log when it was opened.
    pub(crate) alone: bool,
    /// Whether the system may have been restarted since the log was last used. In that case the log is only what a
    /// power loss has left.
    pub(crate) is_of_another_boot: bool,
    /// The lock that keeps other processes from attaching the log until this process has checked it.
    pub(crate) attaching: Option<OwnFile>,
    /// Other logs that were renamed because this log was to get their name: the old and the new path of each.
    pub(crate) moved: Vec<(PathBuf, PathBuf)>,
    /// Whether the log was made just now, and neither its file nor its name is durable.
    pub(crate) is_provisional: bool,
    /// The reason why a sync does not make data survive a power loss; `None` if no such reason is known.
    pub(crate) unsynced: Option<String>,
    /// The state of an outside reader, that is, a user who may only read the log; `None` for all other users.
    pub(crate) outside: Option<Arc<Outside>>,
}

impl OpenLog {
    /// Returns the metrics block in which this process counts its use of the log; `None` for a user who may only read
    /// the log.
    pub(crate) fn recorder(&self) -> Option<Recorder> {
        let (base, _) = metrics_of(self.kind.shared.all);
        self.outside.is_none().then(|| Recorder::new(self.segment.clone(), base))
    }

    /// Adds to the log the reason why a sync on the file systems of the log or of the database does not make data
    /// durable, if there is one. For a log in emulated memory the file systems do not matter, because emulated memory
    /// promises nothing that depends on them.
    pub(super) fn on_file_systems(mut self, database: &Path) -> Self {
        let is_of_blocks = self.kind.needs.first() == Some(&Medium::LogBlocks);
        let log = is_of_blocks.then(|| ("the log", &*self.path));
        let database = (is_of_blocks || self.engine.guarantee() != Guarantee::ProcessCrash)
            .then_some(("the database", database));
        self.unsynced = log.into_iter().chain(database).find_map(|(what, path)| {
            let why = check_filesystem(path.parent()?).ok()?.unsynced?;
            Some(format!("{what}: {why}"))
        });
        self
    }

    /// Returns the attached log of a user who may only read it.
    pub(super) fn of_outside(outside: Outside, engine: Box<dyn Engine>) -> Result<Self, LogError> {
        let file = outside.file.try_clone();
        Ok(Self {
            kind: outside.engine,
            engine,
            segment: Arc::clone(&outside.segment),
            path: outside.path.clone(),
            segment_path: outside.segment_path.clone(),
            file: file.map_err(|error| LogError::io("open the log", &outside.path, &error))?,
            alone: false,
            is_of_another_boot: false,
            attaching: None,
            moved: Vec::new(),
            is_provisional: false,
            unsynced: None,
            outside: Some(Arc::new(outside)),
        })
    }
}

/// Returns the relation between an attached log and a database.
pub(crate) fn relation(open: &OpenLog, db: &DatabaseIdentity) -> Result<Relation, LogError> {
    Head::read(&open.path, &open.file).map(|head| head.relation(&open.path, &open.file, db))
}

/// The state in which an attaching process found a log; see [`Attaching`].
pub(super) struct Found {
    pub(super) alone: bool,
    pub(super) of_another: bool,
    pub(super) is_new: bool,
    pub(super) left: Option<Vec<u8>>,
}

/// The file of a log that a process is opening, and the paths that belong to the log.
pub(super) struct Place<'a> {
    pub(super) placement: &'a LogPlacement,
    pub(super) path: &'a Path,
    pub(super) segment_path: PathBuf,
    id: LogId,
    /// The number of the database's device. It is 0 if a database adopts the log, because in that case no other process
    /// checks the device.
    device: u64,
}

impl<'a> Place<'a> {
    pub(super) fn new(placement: &'a LogPlacement, path: &'a Path, id: LogId, device: u64) -> Self {
        Self { placement, path, segment_path: names::segment(path, id), id, device }
    }

    /// Joins the processes that use the log. With `alone`, joins as the first of them.
    pub(super) fn join(&self, file: OwnFile, alone: bool) -> Result<Arc<FileSegment>, LogError> {
        segment::join(self.placement, &self.segment_path, self.id, file, alone, self.device)
    }

    /// Opens the log itself. If no other process uses the log, recovers it.
    pub(super) fn open(
        self,
        options: &EngineOptions,
        database: &dyn DatabaseFile,
        file: OwnFile,
        segment: Arc<FileSegment>,
        found: Found,
    ) -> Result<OpenLog, LogError> {
        let Found { alone, of_another, is_new, left } = found;
        let is_of_another_boot = alone && !is_new && left.is_none();
        let engine = (self.placement.engine.attach)(Attaching {
            placement: self.placement,
            options,
            file: OpenFile { path: self.path, file: &file },
            database,
            segment: segment.clone(),
            base: ENGINE_OFFSET,
            alone,
            of_another,
            is_new,
            left,
        })?;
        // This store has to be the last step, because from here on other processes may join.
        if alone {
            segment::complete(&segment);
        }
        let Self { path, segment_path, .. } = self;
        let path = path.to_path_buf();
        Ok(OpenLog {
            kind: self.placement.engine,
            engine,
            segment,
            path,
            segment_path,
            file,
            alone,
            is_of_another_boot,
            attaching: None,
            moved: Vec::new(),
            is_provisional: false,
            unsynced: None,
            outside: None,
        })
    }
}
