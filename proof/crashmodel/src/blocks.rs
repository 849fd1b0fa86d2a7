//! A block medium in memory that knows what a power failure may lose.
//!
//! It keeps two images, what programs see and what is durable, and between them, sector by sector,
//! what was written since. From these [`RecordingBlock::crash`] builds one of the states that a
//! power failure may leave, as [`Sectors`] says.
//! [`Crashes::crash_before`] takes one in the middle of whatever runs on the medium.
//! A flush that fails leaves its sectors in doubt until they are written and flushed again: their
//! data may or may not have arrived, and the system has forgotten that it had to write them.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use duralite_medium::block::{Block, BlockCounters, Durability};
use duralite_medium::{Guarantee, MediumError, checked_end};

use crate::{Chance, Crashes, DueCrash, SECTOR, Sectors};

/// What can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockOp {
    /// [`Block::read`].
    Read,
    /// [`Block::write`], and the write of [`Block::commit`].
    Write,
    /// [`Block::flush`], and the flush of [`Block::commit`].
    Flush,
    /// [`Block::preallocate`].
    Preallocate,
}

#[derive(Debug, Default)]
struct State {
    /// What the next read returns.
    visible: Vec<u8>,
    /// What is durable for certain.
    durable: Vec<u8>,
    sectors: Sectors,
    limit: Option<u64>,
    /// Faults to come: operation, and how many of its kind go well before.
    faults: Vec<(BlockOp, u64, MediumError)>,
    /// Flushes to be left out: how many go well before.
    omitted: Vec<u64>,
    counters: BlockCounters,
}

/// Blocks in memory. [`RecordingBlock::crash`] gives what a power failure may leave of them, and
/// operations can be made to fail.
#[derive(Debug)]
pub struct RecordingBlock {
    state: Mutex<State>,
    due: DueCrash,
    block_bytes: u32,
}

impl RecordingBlock {
    /// An empty medium.
    #[must_use]
    pub fn new(block_bytes: u32) -> Self {
        Self { state: Mutex::default(), due: DueCrash::default(), block_bytes }
    }

    /// A medium on which these bytes are durable.
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

    /// What a reader sees.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.lock().visible.clone()
    }

    /// Sectors that a power failure may leave in more than one state, and how many each has. A
    /// sector has 512 bytes; they are numbered from the start of the medium.
    #[must_use]
    pub fn uncertain_sectors(&self) -> Vec<(u64, usize)> {
        self.lock().sectors.in_doubt().collect()
    }

    /// What a power failure leaves, where `choose(sector, states)` says which of its states an
    /// uncertain sector is in: 0 the durable one, then those written since, oldest first.
    #[must_use]
    pub fn crash(&self, choose: impl FnMut(u64, usize) -> usize) -> Vec<u8> {
        self.lock().left(choose)
    }

    /// What a power failure may leave, chosen by `seed`.
    #[must_use]
    pub fn crash_at_random(&self, seed: u64) -> Vec<u8> {
        self.lock().left_at_random(seed)
    }

    /// Makes an operation fail, after `before` more of its kind. A write that fails leaves its first
    /// half behind. A flush that fails leaves it open what became durable, and a later flush, though
    /// it succeeds, changes nothing about that, as on Linux.
    pub fn fail(&self, operation: BlockOp, before: u64, error: MediumError) {
        self.lock().faults.push((operation, before, error));
    }

    /// Leaves a flush out, after `before` more of them, for tests that must then fail.
    pub fn omit_flush(&self, before: u64) {
        self.lock().omitted.push(before);
    }

    /// Gives the medium no more than this many bytes.
    pub fn set_limit(&self, bytes: u64) {
        self.lock().limit = Some(bytes);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Comes before an operation that changes the medium. A crash that is due before it comes now.
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
    /// What a power failure leaves, each uncertain sector in the state that `choose` says.
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

    /// The fault that is due for this operation.
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

    /// Makes what was written to these sectors durable.
    fn flush(&mut self, sectors: &Range<u64>) -> Result<(), MediumError> {
        if let Some(error) = self.due(BlockOp::Flush) {
            // What the device could not do for these it may not have done for the others.
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
        if len <= state.visible.len() as u64 {
            state.sync_all();
            return Ok(());
        }
        if let Some(error) = state.due(BlockOp::Preallocate) {
            return Err(error);
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
        // As in `write_later`, and nothing that was written before becomes durable by it.
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
            // As after a power loss in which it did not grow, the file then reads as zeros there.
            state.visible.resize(end, 0);
            state.durable.resize(end, 0);
        }
        self.write_blocks(&mut state, at, blocks)
    }

    fn shrink(&self, len: u64) -> Result<(), MediumError> {
        let mut state = self.lock();
        self.before(&state);
        if (len as usize) < state.visible.len() {
            // A power failure may bring it back: what is durable keeps it.
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

    fn commit(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), MediumError> {
        let mut state = self.lock();
        self.write_blocks(&mut state, at, blocks)?;
        match durability {
            Durability::Full => self.flush_sectors(&mut state, &(0..u64::MAX)),
            Durability::Normal => Ok(()),
            // Only what this call wrote.
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
        block.commit(0, &[1; 1024], Durability::Full).unwrap();
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
        block.commit(512, &[2; 1024], Durability::Fua).unwrap();
        assert_eq!(block.uncertain_sectors(), [(0, 2), (4, 2)]);
        assert_eq!(block.crash(|_, _| 0)[512..1536], [2; 1024]);
    }

    #[test]
    fn faults_come_when_they_are_due() {
        let block = medium();
        block.fail(BlockOp::Flush, 1, MediumError::from_errno("fdatasync", Errno::IO));
        block.commit(0, &[1; 512], Durability::Full).unwrap();
        block.commit(0, &[2; 512], Durability::Full).unwrap_err();
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
        block.commit(1024, &[4; 512], Durability::Full).unwrap();
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
        block.commit(512, &[2; 512], Durability::Fua).unwrap_err();
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
        // What the first sector may hold before each step: a preallocation, then what a commit of each
        // durability counts, then a write and a flush.
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
                    block.commit(0, &[1; 512], durability).unwrap();
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
