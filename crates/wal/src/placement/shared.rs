//! An attached log, and the steps that attach it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use duralite_format::LogId;
use duralite_medium::block::check_filesystem;
use duralite_medium::process::OwnFile;
use duralite_medium::{FileSegment, Guarantee, Segment};

use super::boot::boot;
use super::outside::Outside;
use super::words::{
    BEGUN, BOOT, ENGINE_OFFSET, INCARNATION, MAGIC, MEDIA, READABLE, beginning_of, metrics_of, set_log_id,
};
use super::{names, segment_files};
use crate::engine::Engine;
use crate::engine::descriptor::{Attaching, Descriptor, LogPlacement, OpenFile};
use crate::engine::home::DatabaseFile;
use crate::engine::media::Medium;
use crate::hooks::{self, FileStep};
use crate::metrics::Recorder;
use crate::shared::log_file::Pause;
use crate::shared::pins::{PINS_OFFSET, Pins};
use crate::{DatabaseIdentity, EngineOptions, LogError};

/// An attached log, and the file whose lock says that this process uses the log.
pub(crate) struct OpenLog {
    pub(crate) kind: &'static Descriptor,
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) segment: Arc<FileSegment>,
    pub(crate) path: PathBuf,
    /// The file of the segment, the memory that the log's users share.
    pub(crate) segment_path: PathBuf,
    /// Held for its `flock`, which is shared while the log is attached.
    pub(crate) file: OwnFile,
    /// Whether no other process used the log when it was opened.
    pub(crate) alone: bool,
    /// Whether the system may have been restarted since the log was last used. The log is then whatever a power loss
    /// has left.
    pub(crate) is_of_another_boot: bool,
    /// The lock that keeps other processes from attaching the log until this process has checked it.
    pub(crate) attaching: Option<OwnFile>,
    /// Logs that were renamed to make way for this one: the old and the new path of each.
    pub(crate) moved: Vec<(PathBuf, PathBuf)>,
    /// Whether the log was made just now, and neither its file nor its name is durable.
    pub(crate) is_provisional: bool,
    /// Why a sync does not make data survive a power loss; `None` if no reason is known.
    pub(crate) unsynced: Option<String>,
    /// Set for a user who may only read the log.
    pub(crate) outside: Option<Arc<Outside>>,
}

impl OpenLog {
    /// The metrics block in which this process counts its use of the log; `None` for a user who may only read the log.
    pub(crate) fn recorder(&self) -> Option<Recorder> {
        let (base, _) = metrics_of(self.kind.shared.all);
        self.outside.is_none().then(|| Recorder::new(self.segment.clone(), base))
    }

    /// The same log, with what is known about the file systems of the log and the database. They do not matter for
    /// emulated memory, which guarantees nothing that a file system could fail to keep.
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

    /// The log as a user attaches it who may only read it.
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

/// Announces to readers without process slots that the segment which they have mapped is about to begin anew. Returns
/// the new value of [`INCARNATION`].
fn begin_anew(file: &File, path: &Path) -> Result<u64, LogError> {
    let mut bytes = [0; 8];
    let failed = |error| LogError::io("write the shared memory of the log", path, &error);
    if file.read_at(&mut bytes, INCARNATION).map_err(failed)? < bytes.len() {
        // No process can have mapped a file this short.
        return Ok(BEGUN);
    }
    let next = (u64::from_ne_bytes(bytes) / BEGUN).wrapping_add(1).wrapping_mul(BEGUN).max(BEGUN);
    file.write_all_at(&next.to_ne_bytes(), INCARNATION).map_err(failed)?;
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    Ok(next)
}

/// In which state a log was found when it is opened; see [`Attaching`].
pub(super) struct Found {
    pub(super) alone: bool,
    pub(super) of_another: bool,
    pub(super) is_new: bool,
    pub(super) left: Option<Vec<u8>>,
}

/// A log's file that is being opened, and the paths of the log.
pub(super) struct Place<'a> {
    pub(super) placement: &'a LogPlacement,
    pub(super) path: &'a Path,
    pub(super) segment_path: PathBuf,
    id: LogId,
}

impl<'a> Place<'a> {
    pub(super) fn new(placement: &'a LogPlacement, path: &'a Path, id: LogId) -> Self {
        Self { placement, path, segment_path: names::segment(path, id), id }
    }

    /// Joins the processes that use the log, as the first of them if `alone`.
    pub(super) fn join(&self, file: OwnFile, alone: bool) -> Result<Arc<FileSegment>, LogError> {
        let path = &self.segment_path;
        let (media, shared) = (self.placement.media().word(), self.placement.engine.shared);
        let begun = if alone { begin_anew(&file, path)? } else { 0 };
        let fresh = alone.then_some(ENGINE_OFFSET + shared.zeroed);
        hooks::step(FileStep::MapShared, path).map_err(|error| LogError::io("map", path, &error))?;
        let (metrics, bytes) = metrics_of(shared.all);
        let segment = FileSegment::join(file, path, bytes, fresh)
            .map_err(|source| LogError::Medium { path: path.clone(), source })?;
        if !alone && segment.load(0) != MAGIC {
            let what = "another version of Duralite uses this database; use the same version everywhere";
            return Err(LogError::Busy { path: path.clone(), what });
        }
        if alone {
            segment.store(INCARNATION, begun);
            set_log_id(&segment, self.id);
        } else {
            segment.fetch_add(INCARNATION, 1);
        }
        if segment.is_readable() {
            segment.store(READABLE, 1);
        }
        // Emulated memory and direct access to the same file give different guarantees, and processes of either kind
        // would build on what the others have stored.
        if alone {
            segment.store(BOOT, boot());
            segment.store(MEDIA, media);
        } else if ![0, media].contains(&segment.load(MEDIA)) {
            return Err(LogError::Settings);
        }
        let segment = Arc::new(segment);
        // The slot may have belonged to a follower that died.
        Pins::new(Arc::clone(&segment) as Arc<dyn Segment>, PINS_OFFSET).unpin();
        Recorder::join(segment.clone(), metrics, beginning_of(segment.load(INCARNATION)));
        Ok(segment)
    }

    /// Opens the log itself. A process that is alone recovers it.
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
            directory: self.placement,
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
        // This store is the last step: from here on others may join.
        if alone {
            segment.store(0, MAGIC);
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

    /// Opens and locks the segment's file: only one process at a time makes or attaches a log.
    pub(super) fn lock(&self, db: &DatabaseIdentity, pause: Pause<'_>) -> Result<OwnFile, LogError> {
        segment_files::lock_segment(&self.segment_path, db, pause)
    }
}
