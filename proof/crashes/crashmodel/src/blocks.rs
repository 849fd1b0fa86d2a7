//! A block medium in memory that knows what a power failure may lose.
//!
//! The medium keeps two images: the one that programs see, and the durable one. For each sector it also keeps
//! the versions written since the sector was last durable. [`RecordingBlock::crash`] uses them to build one
//! of the states that a power failure may leave, by the rules of [`Sectors`]. [`Crashes::crash_before`]
//! simulates a power failure while a program is using the medium.
//!
//! After a failed flush, the written sectors stay in doubt until a program writes and flushes them again.
//! Their data may or may not have reached the device, and the operating system has marked these sectors
//! clean.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use duralite_medium::block::{Block, BlockCounters, Durability};
use duralite_medium::{Guarantee, MediumError, checked_end};

use crate::{Chance, Crashes, DueCrash, SECTOR, Sectors};

/// The operations that a test can make fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockOp {
    /// [`Block::read`].
    Read,
    /// [`Block::write`], and the write of [`Block::write_durably`].
    Write,
    /// [`Block::flush`], and the flush of [`Block::write_durably`].
    Flush,
    /// [`Block::preallocate`].
    Preallocate,
}

#[derive(Debug, Default)]
struct State {
    /// The content that the next read returns.
    visible: Vec<u8>,
    /// The content that survives every power failure.
    durable: Vec<u8>,
    sectors: Sectors,
    limit: Option<u64>,
    /// The faults that tests have asked for. Each has the operation, the number of operations of this kind
    /// that succeed before the fault, and the error.
    faults: Vec<(BlockOp, u64, MediumError)>,
    /// One entry for each flush that the medium is to skip: the number of flushes to carry out first.
    omitted: Vec<u64>,
    counters: BlockCounters,
}

/// A block medium in memory. [`RecordingBlock::crash`] returns what a power failure may leave of it, and a
/// test can make its operations fail.
#[derive(Debug)]
pub struct RecordingBlock {
    state: Mutex<State>,
    due: DueCrash,
    block_bytes: u32,
}

impl RecordingBlock {
    /// Returns an empty medium.
    #[must_use]
    pub fn new(block_bytes: u32) -> Self {
        Self { state: Mutex::default(), due: DueCrash::default(), block_bytes }
    }

    /// Returns a medium on which these bytes are durable.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>, block_bytes: u32) -> Self {
        let it = Self::new(block_bytes);
        {
            let mut state = it.lock();
            state.durable.clone_from(&bytes);
            state.visible = bytes;
        }
        it
    }

    /// Returns the content that a reader sees.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.lock().visible.clone()
    }

    /// Returns the sectors that a power failure may leave in more than one state, and how many states each
    /// has. A sector has 512 bytes. Sectors are numbered from the start of the medium.
    #[must_use]
    pub fn uncertain_sectors(&self) -> Vec<(u64, usize)> {
        self.lock().sectors.in_doubt().collect()
    }

    /// Returns the image that a power failure leaves if each uncertain sector is in the state that
    /// `choose(sector, states)` returns. State 0 is the durable version. The next states are the versions
    /// written since then, oldest first.
    #[must_use]
    pub fn crash(&self, choose: impl FnMut(u64, usize) -> usize) -> Vec<u8> {
        self.lock().left(choose)
    }

    /// Returns an image that a power failure may leave, chosen by `seed`.
    #[must_use]
    pub fn crash_at_random(&self, seed: u64) -> Vec<u8> {
        self.lock().left_at_random(seed)
    }

    /// Makes an operation fail with `error`, after `before` more operations of its kind. A failed write
    /// leaves its first half on the medium. After a failed flush it is unknown which sectors became durable.
    /// As on Linux, these sectors stay in doubt even after a later successful flush.
    pub fn fail(&self, operation: BlockOp, before: u64, error: MediumError) {
        self.lock().faults.push((operation, before, error));
    }

    /// Skips a flush, after carrying out `before` more flushes. Tests use this to show that their checks
    /// would notice the missing flush.
    pub fn omit_flush(&self, before: u64) {
        self.lock().omitted.push(before);
    }

    /// Limits the medium to this many bytes.
    pub fn set_limit(&self, bytes: u64) {
        self.lock().limit = Some(bytes);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Simulates the crash if it is due now. Each operation that changes the medium calls this function
    /// first.
    fn before(&self, state: &State) {
        self.due.step(|seed| state.left_at_random(seed));
    }

    fn write_blocks(&self, state: &mut State, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        assert!(
            at.is_multiple_of(self.block_bytes.into())
                && blocks.len().is_multiple_of(self.block_bytes as usize),
            "{} bytes at {at} are not whole blocks of {}",
            blocks.len(),
            self.block_bytes
        );
        self.before(state);
        state.write(at, blocks)
    }

    fn flush_sectors(&self, state: &mut State, sectors: &Range<u64>) -> Result<(), MediumError> {
        self.before(state);
        state.flush(sectors)
    }
}

impl Crashes for RecordingBlock {
    fn due_crash(&self) -> &DueCrash {
        &self.due
    }
}

impl State {
    /// Returns the image that a power failure leaves. `choose` returns the state of each uncertain sector.
    fn left(&self, mut choose: impl FnMut(u64, usize) -> usize) -> Vec<u8> {
        let mut left = self.durable.clone();
        for (sector, states) in self.sectors.in_doubt() {
            self.sectors.leave(&mut left, sector, choose(sector, states));
        }
        left
    }

    fn left_at_random(&self, seed: u64) -> Vec<u8> {
        let mut chance = Chance::new(seed);
        self.left(|_, states| chance.state(states))
    }

    /// Returns the fault that is due for this operation.
    fn due(&mut self, operation: BlockOp) -> Option<MediumError> {
        let mut due = None;
        for (_, before, _) in self.faults.iter_mut().filter(|fault| fault.0 == operation) {
            if *before == 0 {
                due = Some(());
            } else {
                *before -= 1;
            }
        }
        due?;
        let index = self.faults.iter().position(|fault| fault.0 == operation && fault.1 == 0)?;
        Some(self.faults.remove(index).2)
    }

    fn write(&mut self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        checked_end(at, blocks.len() as u64, self.visible.len() as u64)?;
        let fault = self.due(BlockOp::Write);
        let whole = blocks.len() / SECTOR;
        let reached = SECTOR * if fault.is_some() { whole / 2 } else { whole };
        self.visible[at as usize..at as usize + reached].copy_from_slice(&blocks[..reached]);
        self.sectors.written(&self.visible, at, reached);
        self.counters.writes += 1;
        self.counters.written_bytes += reached as u64;
        fault.map_or(Ok(()), Err)
    }

    fn sync_all(&mut self) {
        self.sectors.sync(&mut self.durable, &self.visible, &(0..u64::MAX));
    }

    /// Makes the sectors' written content durable.
    fn flush(&mut self, sectors: &Range<u64>) -> Result<(), MediumError> {
        if let Some(error) = self.due(BlockOp::Flush) {
            // The flush covered only this range, but the device may have lost other written sectors too.
            self.sectors.fail_sync();
            return Err(error);
        }
        self.counters.flushes += 1;
        let omitted = self.omitted.iter().position(|before| *before == 0);
        self.omitted.iter_mut().for_each(|before| *before = before.saturating_sub(1));
        if let Some(index) = omitted {
            self.omitted.remove(index);
            return Ok(());
        }
        self.sectors.sync(&mut self.durable, &self.visible, sectors);
        Ok(())
    }
}

impl Block for RecordingBlock {
    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn len(&self) -> u64 {
        self.lock().visible.len() as u64
    }

    fn preallocate(&self, len: u64) -> Result<(), MediumError> {
        let mut state = self.lock();
        self.before(&state);
        if let Some(error) = state.due(BlockOp::Preallocate) {
            if error.is_failed_flush() {
                state.sectors.fail_sync();
            }
            return Err(error);
        }
        if len <= state.visible.len() as u64 {
            state.sync_all();
            return Ok(());
        }
        if state.limit.is_some_and(|limit| len > limit) {
            return Err(MediumError::NoSpace);
        }
        state.counters.preallocated_bytes += len - state.visible.len() as u64;
        let cut = state.visible.len();
        state.durable.truncate(cut);
        state.visible.resize(len as usize, 0);
        state.durable.resize(len as usize, 0);
        state.sync_all();
        Ok(())
    }

    fn reserve(&self, len: u64) -> Result<(), MediumError> {
        let mut state = self.lock();
        if len <= state.visible.len() as u64 {
            return Ok(());
        }
        self.before(&state);
        if let Some(error) = state.due(BlockOp::Preallocate) {
            return Err(error);
        }
        if state.limit.is_some_and(|limit| len > limit) {
            return Err(MediumError::NoSpace);
        }
        // The growth makes no earlier write durable (see also `write_later`).
        let cut = state.visible.len();
        state.durable.truncate(cut);
        state.visible.resize(len as usize, 0);
        state.durable.resize(len as usize, 0);
        Ok(())
    }

    fn write_later(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        let mut state = self.lock();
        let end = at as usize + blocks.len();
        if end > state.visible.len() {
            self.before(&state);
            // The file reads as zeros past its old end, even if a power failure undoes the growth.
            state.visible.resize(end, 0);
            state.durable.resize(end, 0);
        }
        self.write_blocks(&mut state, at, blocks)
    }

    fn shrink(&self, len: u64) -> Result<(), MediumError> {
        let mut state = self.lock();
        self.before(&state);
        if (len as usize) < state.visible.len() {
            // After a power failure the file may have its old length again, so the durable image keeps the
            // part that was cut off.
            state.visible.truncate(len as usize);
            state.sectors.cut(len);
        }
        Ok(())
    }

    fn refresh_len(&self) -> Result<(), MediumError> {
        Ok(())
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        let mut state = self.lock();
        checked_end(at, buf.len() as u64, state.visible.len() as u64)?;
        if let Some(error) = state.due(BlockOp::Read) {
            return Err(error);
        }
        state.counters.read_bytes += buf.len() as u64;
        buf.copy_from_slice(&state.visible[at as usize..at as usize + buf.len()]);
        Ok(())
    }

    fn write(&self, at: u64, blocks: &[u8]) -> Result<(), MediumError> {
        self.write_blocks(&mut self.lock(), at, blocks)
    }

    fn write_durably(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), MediumError> {
        let mut state = self.lock();
        self.write_blocks(&mut state, at, blocks)?;
        match durability {
            Durability::Full => self.flush_sectors(&mut state, &(0..u64::MAX)),
            Durability::Normal => Ok(()),
            // A FUA commit makes only its own sectors durable.
            Durability::Fua => {
                let first = at / SECTOR as u64;
                let last = first + (blocks.len() / SECTOR) as u64;
                self.flush_sectors(&mut state, &(first..last))
            }
        }
    }

    fn flush(&self) -> Result<(), MediumError> {
        self.flush_sectors(&mut self.lock(), &(0..u64::MAX))
    }

    fn counters(&self) -> BlockCounters {
        self.lock().counters
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::PowerLoss
    }

    fn describe(&self) -> String {
        format!("{} bytes of recorded blocks", self.len())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rustix::io::Errno;

    use super::*;

    fn medium() -> RecordingBlock {
        let block = RecordingBlock::new(512);
        block.preallocate(4096).unwrap();
        block
    }

    #[test]
    fn unflushed_sectors_may_be_old_or_any_version() {
        let block = medium();
        block.write_durably(0, &[1; 1024], Durability::Full).unwrap();
        block.write(512, &[2; 1024]).unwrap();
        block.write(512, &[3; 512]).unwrap();
        assert_eq!(block.uncertain_sectors(), [(1, 3), (2, 2)]);
        let states = |a, b| block.crash(|sector, _| if sector == 1 { a } else { b });
        assert_eq!((states(0, 0)[512], states(0, 0)[1024]), (1, 0));
        assert_eq!((states(1, 1)[512], states(1, 1)[1024]), (2, 2));
        assert_eq!((states(2, 0)[512], states(2, 0)[1024]), (3, 0));
        block.flush().unwrap();
        assert!(block.uncertain_sectors().is_empty());
        assert_eq!(block.crash(|_, _| 0)[512], 3);
    }

    #[test]
    fn one_durable_write_takes_nothing_else_along() {
        let block = medium();
        block.write(0, &[1; 512]).unwrap();
        block.write(2048, &[1; 512]).unwrap();
        block.write_durably(512, &[2; 1024], Durability::Fua).unwrap();
        assert_eq!(block.uncertain_sectors(), [(0, 2), (4, 2)]);
        assert_eq!(block.crash(|_, _| 0)[512..1536], [2; 1024]);
    }

    #[test]
    fn faults_come_when_they_are_due() {
        let block = medium();
        block.fail(BlockOp::Flush, 1, MediumError::from_errno("fdatasync", Errno::IO));
        block.write_durably(0, &[1; 512], Durability::Full).unwrap();
        block.write_durably(0, &[2; 512], Durability::Full).unwrap_err();
        block.flush().unwrap();
        assert_eq!(block.uncertain_sectors(), [(0, 2)], "a later flush is not for what an earlier one lost");
        assert_eq!([0, 1].map(|state| block.crash(|_, _| state)[0]), [1, 2]);
        assert_eq!(block.to_bytes()[0], 2);
        block.fail(BlockOp::Write, 0, MediumError::from_errno("pwrite", Errno::IO));
        block.write(0, &[3; 1024]).unwrap_err();
        assert_eq!((block.to_bytes()[0], block.to_bytes()[512]), (3, 0));
        block.set_limit(4096);
        assert_eq!(block.preallocate(8192), Err(MediumError::NoSpace));
        block.omit_flush(0);
        block.write_durably(1024, &[4; 512], Durability::Full).unwrap();
        assert_eq!(block.crash(|_, _| 0)[1024], 0);
    }

    #[test]
    fn doubt_ends_when_a_sector_is_written_and_flushed_again() {
        let io = || MediumError::from_errno("fdatasync", Errno::IO);
        let block = medium();
        block.write(0, &[1; 1024]).unwrap();
        block.write(0, &[2; 512]).unwrap();
        block.fail(BlockOp::Flush, 0, io());
        assert_eq!(block.flush(), Err(io()));
        block.flush().unwrap();
        assert_eq!(block.uncertain_sectors(), [(0, 3), (1, 2)]);
        block.write(0, &[3; 512]).unwrap();
        assert_eq!(block.uncertain_sectors(), [(0, 4), (1, 2)]);
        let left = |state| block.crash(|sector, _| if sector == 0 { state } else { 0 })[0];
        assert_eq!([0, 1, 2, 3].map(left), [0, 1, 2, 3]);
        block.flush().unwrap();
        assert_eq!(block.uncertain_sectors(), [(1, 2)]);
        assert_eq!(block.crash(|_, _| 0)[0], 3);
    }

    #[test]
    fn a_durable_write_that_fails_leaves_the_others_in_doubt() {
        let block = medium();
        block.write(0, &[1; 512]).unwrap();
        block.write(2048, &[1; 512]).unwrap();
        block.fail(BlockOp::Flush, 0, MediumError::from_errno("pwritev2", Errno::IO));
        block.write_durably(512, &[2; 512], Durability::Fua).unwrap_err();
        block.flush().unwrap();
        assert_eq!(block.uncertain_sectors(), [(0, 2), (1, 2), (4, 2)]);
    }

    #[test]
    fn random_crashes_reach_every_state() {
        let block = medium();
        block.write(0, &[1; 512]).unwrap();
        block.write(0, &[2; 512]).unwrap();
        block.write(1024, &[3; 512]).unwrap();
        let seen: BTreeSet<_> = (0..300)
            .map(|seed| {
                let left = block.crash_at_random(seed);
                (left[0], left[1024])
            })
            .collect();
        assert_eq!(seen, [(0, 0), (0, 3), (1, 0), (1, 3), (2, 0), (2, 3)].into());
    }

    #[test]
    fn a_crash_comes_before_the_step_it_was_told_and_changes_nothing() {
        // Each list says which versions of the first sector a power failure may leave, before the first step
        // and after each step. The steps are a preallocation, a commit (one step or two, depending on its
        // durability), a write and a flush.
        let cases: [(Durability, &[&[u8]]); 3] = [
            (Durability::Full, &[&[0], &[0], &[0, 1], &[1], &[1, 2], &[2]]),
            (Durability::Fua, &[&[0], &[0], &[0, 1], &[1], &[1, 2], &[2]]),
            (Durability::Normal, &[&[0], &[0], &[0, 1], &[0, 1, 2], &[2]]),
        ];
        for (durability, states) in cases {
            for (nth, possible) in states.iter().enumerate() {
                let mut seen = BTreeSet::new();
                for seed in 0..100 {
                    let block = RecordingBlock::from_bytes(vec![0; 512], 512);
                    block.crash_before(nth as u64, seed);
                    block.preallocate(1024).unwrap();
                    block.write_durably(0, &[1; 512], durability).unwrap();
                    block.write(0, &[2; 512]).unwrap();
                    block.flush().unwrap();
                    assert_eq!(block.to_bytes()[0], 2);
                    assert_eq!(block.has_crashed(), nth + 1 < states.len());
                    let image = block.image().unwrap_or_else(|| block.crash_at_random(seed));
                    assert_eq!(image.len(), if nth > 0 { 1024 } else { 512 });
                    seen.insert(image[0]);
                }
                assert_eq!(Vec::from_iter(seen), *possible, "{durability:?}, before step {nth}");
            }
        }
    }

    #[test]
    fn everything_that_can_fail_fails_once() {
        let io = || MediumError::from_errno("pread", Errno::IO);
        let block = medium();
        block.fail(BlockOp::Read, 1, io());
        block.fail(BlockOp::Preallocate, 0, MediumError::NoSpace);
        let mut byte = [0];
        assert_eq!([0; 3].map(|_| block.read(0, &mut byte)), [Ok(()), Err(io()), Ok(())]);
        assert_eq!([0; 2].map(|_| block.preallocate(8192)), [Err(MediumError::NoSpace), Ok(())]);
        assert_eq!(block.len(), 8192);
        assert!(matches!(block.write(8192, &[0; 512]), Err(MediumError::OutOfBounds { .. })));
        assert!(matches!(block.read(8192, &mut byte), Err(MediumError::OutOfBounds { .. })));
        let counters = block.counters();
        assert_eq!((counters.preallocated_bytes, counters.read_bytes, counters.writes), (8192, 2, 0));
    }

    #[test]
    fn reserving_makes_nothing_durable() {
        let block = medium();
        block.write(0, &[1; 512]).unwrap();
        block.reserve(8192).unwrap();
        assert_eq!((block.len(), block.uncertain_sectors()), (8192, vec![(0, 2)]));
        block.write(4096, &[2; 512]).unwrap();
        assert_eq!(block.crash(|_, _| 0), [0; 8192]);
        block.set_limit(8192);
        assert_eq!((block.reserve(4096), block.reserve(8704)), (Ok(()), Err(MediumError::NoSpace)));
    }

    #[test]
    #[should_panic(expected = "whole blocks")]
    fn parts_of_blocks_are_refused() {
        let _ = medium().write(256, &[0; 512]);
    }
}
