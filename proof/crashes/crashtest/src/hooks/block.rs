//! A block medium whose calls are recorded.

use std::fmt;
use std::sync::Arc;

use duralite_medium::block::{Block, BlockCounters, Durability};
use duralite_medium::{Guarantee, MediumError};

use super::medium_error;
use crate::event::{Event, FileId};
use crate::recorder::{Call, Failure, Recorder, Step};

/// Records the calls to the wrapped blocks.
pub struct TappedBlock {
    pub inner: Arc<dyn Block>,
    pub file: FileId,
    pub recorder: Arc<Recorder>,
}

impl fmt::Debug for TappedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl TappedBlock {
    fn write_in(&self, step: &mut Step<'_>, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        let unit = self.inner.block_bytes() as usize;
        let failure = step.due(Call::Write);
        // A failed write has written its first half.
        let reached = if failure.is_some() { blocks.len() / unit / 2 * unit } else { blocks.len() };
        if reached > 0 {
            self.inner.write(at, &blocks[..reached])?;
            step.push(Event::Write { file: self.file, at, bytes: blocks[..reached].into() });
        }
        failure.map_or(Ok(()), |failure| Err(medium_error("pwrite", failure)))
    }

    fn sync_in(&self, step: &mut Step<'_>) -> Result<(), MediumError> {
        let due = step.due(Call::Sync);
        if let Some(failure) = due.or_else(|| step.fails_to_sync_log(self.file).then_some(Failure::Io)) {
            return Err(medium_error("fdatasync", failure));
        }
        let site = step.site();
        self.inner.flush()?;
        step.push(Event::Sync { file: self.file, site });
        Ok(())
    }
}

impl Block for TappedBlock {
    fn block_bytes(&self) -> u32 {
        self.inner.block_bytes()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn free_bytes(&self) -> u64 {
        self.inner.free_bytes()
    }

    fn preallocate(&self, len: u64) -> Result<(), MediumError> {
        let mut step = self.recorder.step();
        if len > self.inner.len()
            && let Some(failure) = step.due(Call::Allocate)
        {
            return Err(medium_error("fallocate", failure));
        }
        let site = step.site();
        self.inner.preallocate(len)?;
        step.push(Event::Extend { file: self.file, size: self.inner.len() });
        step.push(Event::Sync { file: self.file, site });
        Ok(())
    }

    fn write_later(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        let mut step = self.recorder.step();
        if let Some(failure) = step.due(Call::Write) {
            return Err(medium_error("pwrite", failure));
        }
        self.inner.write_later(at, blocks)?;
        step.push(Event::Write { file: self.file, at, bytes: blocks.into() });
        Ok(())
    }

    fn shrink(&self, len: u64) -> Result<(), MediumError> {
        let mut step = self.recorder.step();
        self.inner.shrink(len)?;
        step.push(Event::Truncate { file: self.file, size: self.inner.len() });
        Ok(())
    }

    fn next_data(&self, at: u64) -> Result<std::ops::Range<u64>, MediumError> {
        self.inner.next_data(at)
    }

    fn refresh_len(&self) -> Result<(), MediumError> {
        self.inner.refresh_len()
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        if let Some(failure) = self.recorder.step().due(Call::Read) {
            return Err(medium_error("pread", failure));
        }
        self.inner.read(at, buf)
    }

    fn write(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        let mut step = self.recorder.step();
        self.write_in(&mut step, at, blocks)
    }

    fn write_durably(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), MediumError> {
        let mut step = self.recorder.step();
        self.write_in(&mut step, at, blocks)?;
        match durability {
            Durability::Full => self.sync_in(&mut step),
            Durability::Normal => Ok(()),
            Durability::Fua => {
                if let Some(failure) = step.due(Call::Sync) {
                    return Err(medium_error("pwritev2", failure));
                }
                let site = step.site();
                self.inner.flush()?;
                let len = blocks.len() as u64;
                step.push(Event::SyncRange { file: self.file, at, len, site });
                Ok(())
            }
        }
    }

    fn flush(&self) -> Result<(), MediumError> {
        let mut step = self.recorder.step();
        self.sync_in(&mut step)
    }

    fn counters(&self) -> BlockCounters {
        self.inner.counters()
    }

    fn guarantee(&self) -> Guarantee {
        self.inner.guarantee()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
