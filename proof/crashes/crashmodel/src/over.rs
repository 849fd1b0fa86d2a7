//! Wraps a block medium and passes on every call that the wrapper does not change.

use std::fmt;
use std::ops::Range;

use duralite_medium::block::{Block, BlockCounters, Durability};
use duralite_medium::{Guarantee, MediumError};

/// A wrapper around a block medium. By default, each method calls the same method of the wrapped medium. A
/// wrapper replaces the methods that it needs to change.
#[allow(clippy::missing_errors_doc)] // the errors are those of the wrapped blocks
pub trait OverBlock: fmt::Debug + Send + Sync {
    /// Returns the wrapped blocks.
    fn below(&self) -> &dyn Block;

    /// Carries out [`Block::preallocate`].
    fn preallocate(&self, len: u64) -> Result<(), MediumError> {
        self.below().preallocate(len)
    }

    /// Carries out [`Block::shrink`].
    fn shrink(&self, len: u64) -> Result<(), MediumError> {
        self.below().shrink(len)
    }

    /// Carries out [`Block::read`].
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.below().read(at, buf)
    }

    /// Carries out [`Block::write`].
    fn write(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        self.below().write(at, blocks)
    }

    /// Carries out [`Block::write_durably`].
    fn write_durably(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), MediumError> {
        self.below().write_durably(at, blocks, durability)
    }
}

/// A wrapper used as a [`Block`].
#[derive(Debug)]
pub struct Through<T>(pub T);

impl<T: OverBlock> Block for Through<T> {
    fn block_bytes(&self) -> u32 {
        self.0.below().block_bytes()
    }

    fn len(&self) -> u64 {
        self.0.below().len()
    }

    fn free_bytes(&self) -> u64 {
        self.0.below().free_bytes()
    }

    fn preallocate(&self, len: u64) -> Result<(), MediumError> {
        self.0.preallocate(len)
    }

    fn reserve(&self, len: u64) -> Result<(), MediumError> {
        self.0.below().reserve(len)
    }

    fn refresh_len(&self) -> Result<(), MediumError> {
        self.0.below().refresh_len()
    }

    fn shrink(&self, len: u64) -> Result<(), MediumError> {
        self.0.shrink(len)
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.0.read(at, buf)
    }

    fn next_data(&self, at: u64) -> Result<Range<u64>, MediumError> {
        self.0.below().next_data(at)
    }

    fn write(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        self.0.write(at, blocks)
    }

    fn write_durably(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), MediumError> {
        self.0.write_durably(at, blocks, durability)
    }

    fn flush(&self) -> Result<(), MediumError> {
        self.0.below().flush()
    }

    fn counters(&self) -> BlockCounters {
        self.0.below().counters()
    }

    fn guarantee(&self) -> Guarantee {
        self.0.below().guarantee()
    }

    fn writes_reach_device(&self) -> bool {
        self.0.below().writes_reach_device()
    }

    fn describe(&self) -> String {
        self.0.below().describe()
    }
}
