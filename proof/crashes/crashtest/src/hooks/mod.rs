//! Hooks between the system under test and its media. The hooks record each call, and make a call fail if the
//! test has chosen it.

mod block;
pub mod heap;
mod nvm;
mod refusal;
mod vfs;

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use duralite_medium::block::Block;
use duralite_medium::{MediumError, Nvm};
use duralite_wal::placement::{FileStep, Hook};
use rustix::io::Errno;

use refusal::medium_error;
pub use vfs::{register, tap_files};

use crate::event::{Event, FileKind};
use crate::recorder::{Call, Recorder};

/// The hook of a log directory.
pub struct DirectoryHook {
    recorder: Arc<Recorder>,
    on_disk: Option<Arc<File>>,
}

impl DirectoryHook {
    /// Returns a hook that records to this recorder.
    #[must_use]
    pub fn new(recorder: Arc<Recorder>) -> Self {
        Self { recorder, on_disk: None }
    }

    /// Returns a hook for a mapped database on a disk whose power the test cuts. When the database grows, the
    /// hook syncs the file descriptor `database`, so that the new length is durable. A file system with
    /// direct access needs no sync: with `MAP_SYNC`, the first page fault in the new part makes the length
    /// durable. The caller must close all connections before it closes `database`.
    #[must_use]
    pub fn on_disk(self, database: Arc<File>) -> Self {
        Self { on_disk: Some(database), ..self }
    }
}

impl Hook for DirectoryHook {
    fn step(&self, step: FileStep, log: &Path) -> io::Result<()> {
        let mut recorded = self.recorder.step();
        let call = match step {
            FileStep::Sync | FileStep::SyncDirectory => Call::Sync,
            FileStep::MapShared => Call::Map,
            FileStep::Create
            | FileStep::Publish
            | FileStep::Open
            | FileStep::OpenShared
            | FileStep::Remove
            | FileStep::Record => Call::Name,
        };
        if recorded.due(call).is_some() {
            return Err(Errno::IO.into());
        }
        match step {
            FileStep::Create => {
                recorded.made(log, FileKind::Sectors);
            }
            FileStep::Sync => {
                let (file, site) = (recorded.file(log, FileKind::Sectors), recorded.site());
                recorded.push(Event::Sync { file, site });
            }
            FileStep::Publish => recorded.named(log, FileKind::Sectors),
            FileStep::SyncDirectory => {
                let site = recorded.site();
                recorded.push(Event::SyncNames { path: log.to_path_buf(), site });
            }
            FileStep::Remove => recorded.removed(log),
            FileStep::Open | FileStep::OpenShared | FileStep::MapShared | FileStep::Record => {}
        }
        Ok(())
    }

    fn nvm(&self, log: &Path, inner: Arc<dyn Nvm>) -> Result<Arc<dyn Nvm>, MediumError> {
        let mut recorded = self.recorder.step();
        if let Some(failure) = recorded.due(Call::Map) {
            return Err(medium_error("mmap", failure));
        }
        let file = recorded.file(log, FileKind::Memory);
        // The recorder may already know the new file, but not that it is mapped as memory.
        recorded.set_kind(file, FileKind::Memory);
        let recorder = Arc::clone(&self.recorder);
        Ok(Arc::new(nvm::TappedNvm { inner, survives: false, on_disk: None, file, recorder }))
    }

    fn home(&self, database: &Path, inner: Arc<dyn Nvm>) -> Result<Arc<dyn Nvm>, MediumError> {
        let mut recorded = self.recorder.step();
        if let Some(failure) = recorded.due(Call::Map) {
            return Err(medium_error("mmap", failure));
        }
        // SQLite also writes and syncs the database as a file.
        let file = recorded.file(database, FileKind::Sectors);
        let (on_disk, recorder) = (self.on_disk.clone(), Arc::clone(&self.recorder));
        Ok(Arc::new(nvm::TappedNvm { inner, survives: true, on_disk, file, recorder }))
    }

    fn block(&self, log: &Path, inner: Arc<dyn Block>) -> Result<Arc<dyn Block>, MediumError> {
        let mut recorded = self.recorder.step();
        if let Some(failure) = recorded.due(Call::Name) {
            return Err(medium_error("open", failure));
        }
        let file = recorded.file(log, FileKind::Sectors);
        Ok(Arc::new(block::TappedBlock { inner, file, recorder: Arc::clone(&self.recorder) }))
    }
}
