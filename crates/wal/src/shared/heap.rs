//! The user-level heap of NVRAM blocks (NVWAL, section 3.3, and algorithm 1, lines 4 to 13).
//!
//! A block is free, pending or in use. The writer takes a block in four steps: state *pending*, block header, link,
//! state *in use*. Each step is durable before the next. So after a crash the list either has a link to the block or
//! has none, and without a link recovery frees the block. The table of states in NVRAM is the only copy. Processes
//! share the table, and only the holder of SQLite's WRITE lock changes it (invariant 11).

use std::path::PathBuf;
use std::sync::Arc;

use duralite_format::heap::{
    BLOCK_HEADER_BYTES, BlockState, block_header_matches, checked_word, decode_link, encode_block_header,
    encode_link, read_checked_word,
};
use duralite_medium::{MediumError, Nvm};
use rustc_hash::FxHashSet;

use crate::LogError;

/// The least number of bytes by which the file grows at a time, unless the file system is nearly full.
const CHUNK_BYTES: u32 = 1 << 20;
/// The most bytes by which the file grows at a time.
const LARGEST_STEP: u32 = 256 << 20;
/// The number of states that a process reads from the table at once.
const TABLE_STEP: usize = 256;

/// Where the space of a record comes from (section 3.3, and the variants of figure 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeapMode {
    /// Many records share a block of the user-level heap, as in the paper.
    #[default]
    User,
    /// Each record takes a block of its own from the system: the paper's variants without `UH`.
    System,
}

impl HeapMode {
    /// Returns the name in settings.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::System => "system",
        }
    }
}

impl std::str::FromStr for HeapMode {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        [Self::User, Self::System].into_iter().find(|mode| mode.as_str() == name).ok_or(())
    }
}

/// The offsets and sizes of a heap's parts on its medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Size of a block.
    pub(crate) block_bytes: u32,
    /// The most blocks there may be.
    pub(crate) limit_blocks: u32,
    /// Offset of block 0. The medium ends with the last block.
    pub(crate) blocks_offset: u64,
    /// Offset of the table of states, a byte for each block.
    pub(crate) states_offset: u64,
    /// Offset of the word that says how many blocks the medium backs with file space.
    pub(crate) grown_offset: u64,
}

impl Geometry {
    /// Returns how many blocks a new log of this geometry starts with.
    pub(crate) fn initial_blocks(&self) -> u32 {
        (CHUNK_BYTES / self.block_bytes).clamp(1, self.limit_blocks)
    }

    /// Returns the offset of a block.
    fn block_offset(&self, block: u32) -> u64 {
        self.blocks_offset + u64::from(block) * u64::from(self.block_bytes)
    }

    /// Returns the bytes of a medium with this many blocks.
    pub(crate) fn file_bytes(&self, blocks: u32) -> u64 {
        self.block_offset(blocks)
    }

    fn state_offset(&self, block: u32) -> u64 {
        self.states_offset + u64::from(block)
    }
}

/// The blocks of one log.
pub(crate) struct Heap {
    pub(crate) nvm: Arc<dyn Nvm>,
    geometry: Geometry,
    pub(crate) path: PathBuf,
    mode: HeapMode,
    grown: u32,
    /// Whether another process stored the value of `grown`.
    grown_by_another: bool,
    /// Where the search for a free block begins.
    hint: u32,
}

impl Heap {
    /// Opens the heap of a formatted medium.
    ///
    /// # Errors
    /// `Corrupt` if the medium's size word is damaged, or if the file is shorter than the size word says. `Medium` if the
    /// log needs more address space than this process may use.
    pub(crate) fn open(
        nvm: Arc<dyn Nvm>,
        geometry: Geometry,
        path: PathBuf,
        mode: HeapMode,
    ) -> Result<Self, LogError> {
        let mut heap = Self { nvm, geometry, path, mode, grown: 0, grown_by_another: false, hint: 0 };
        heap.refresh_grown()?;
        Ok(heap)
    }

    pub(crate) fn block_bytes(&self) -> u32 {
        self.geometry.block_bytes
    }

    /// Returns the offset in the medium of byte `offset` of a block.
    pub(crate) fn at(&self, block: u32, offset: u32) -> u64 {
        self.geometry.block_offset(block) + u64::from(offset)
    }

    /// Returns how many bytes of the medium have file space, as far as this process knows.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.geometry.file_bytes(self.grown)
    }

    /// Returns how many blocks have file space, as far as this process knows.
    pub(crate) fn grown(&self) -> u32 {
        self.grown
    }

    /// Returns the block that `block` links to.
    ///
    /// # Errors
    /// `Corrupt` if the link or the header of its block is not of this generation.
    pub(crate) fn next(&mut self, block: u32, generation: u64) -> Result<Option<u32>, LogError> {
        let word = self.nvm.load_u64(self.at(block, 0));
        if (word & 0xffff_ffff) > u64::from(self.grown) {
            self.refresh_grown()?;
        }
        let next = decode_link(word, generation, self.grown).map_err(|what| self.corrupt(block, 0, what))?;
        if let Some(next) = next {
            self.check_block(next, generation)?;
        }
        Ok(next)
    }

    /// Checks that a block was taken in this generation.
    pub(crate) fn check_block(&mut self, block: u32, generation: u64) -> Result<(), LogError> {
        if block >= self.grown {
            self.refresh_grown()?;
        }
        let what = duralite_format::FormatError::Damaged { what: "a log block's header" };
        if block >= self.grown {
            return Err(self.corrupt(block, 0, what));
        }
        let mut header = [0; BLOCK_HEADER_BYTES as usize];
        self.nvm.read(self.at(block, 0), &mut header);
        if block_header_matches(&header, generation, block) {
            Ok(())
        } else {
            Err(self.corrupt(block, 8, what))
        }
    }

    /// Takes a free block. On return the block is pending, and has a header and an empty body. All of this is durable.
    ///
    /// # Errors
    /// `NoSpace`, `LimitReached`.
    pub(crate) fn allocate(&mut self, generation: u64) -> Result<u32, LogError> {
        let block = match self.find_free() {
            Some(block) => block,
            None => self.grow()?,
        };
        self.hint = block + 1;
        if self.mode == HeapMode::System {
            let result = self.nvm.system_allocate(self.at(block, 0), u64::from(self.block_bytes()));
            result.map_err(|source| self.medium(source))?;
        }
        self.set_state(block, BlockState::Pending);
        if std::mem::take(&mut self.grown_by_another) {
            // Another process may have grown the log to include this block, and may have died before the new size was
            // durable. So flush the size.
            self.nvm.flush(self.geometry.grown_offset, 8);
        }
        self.nvm.fence();
        let header = encode_block_header(generation, block);
        self.nvm.store(self.at(block, 0), &header);
        self.nvm.flush(self.at(block, 0), header.len() as u64);
        self.nvm.fence();
        Ok(block)
    }

    /// Links a pending block to the list, after block `from`, and marks it in use.
    pub(crate) fn link(&self, from: u32, generation: u64, to: u32) {
        self.store_link(from, encode_link(generation, to));
        self.set_state(to, BlockState::InUse);
    }

    /// Ends the list at a block. The change is durable on return.
    pub(crate) fn unlink_after(&self, block: u32) {
        self.store_link(block, 0);
    }

    /// Makes the link of a block durable without changing it.
    pub(crate) fn flush_link(&self, block: u32) {
        if block < self.grown {
            self.nvm.flush(self.at(block, 0), 8);
            self.nvm.fence();
        }
    }

    fn store_link(&self, block: u32, word: u64) {
        let at = self.at(block, 0);
        self.nvm.store_u64(at, word);
        self.nvm.flush(at, 8);
        self.nvm.fence();
    }

    /// Frees blocks to which no link leads any more, starting from the end of the list (section 4.3).
    pub(crate) fn free(&mut self, list: &[u32]) {
        for &block in list.iter().rev() {
            self.set_state(block, BlockState::Free);
            self.hint = self.hint.min(block);
            if self.mode == HeapMode::System {
                // Ignore an error: if the file system does not take back the block's space, the space stays allocated
                // in the file.
                let _ = self.nvm.system_free(self.at(block, 0), u64::from(self.block_bytes()));
            }
        }
        self.nvm.fence();
    }

    /// Corrects every block's state. Marks reachable blocks as in use, and frees unreachable blocks that a dead process left
    /// pending or in use.
    pub(crate) fn reconcile(&mut self, reachable: &BlockList) {
        let mut states = [0; TABLE_STEP];
        for &block in reachable.as_slice() {
            let state = &mut states[..1];
            self.nvm.read(self.geometry.state_offset(block), state);
            if *state != [BlockState::InUse.byte()] {
                self.set_state(block, BlockState::InUse);
            }
        }
        let mut at = 0;
        while at < self.grown {
            // Skip holes in the table, because a damaged size word may give far more blocks than the log has.
            let skipped = self.nvm.next_data(self.geometry.state_offset(at)) - self.geometry.states_offset;
            at = skipped.min(u64::from(self.grown)) as u32;
            let count = ((self.grown - at) as usize).min(TABLE_STEP);
            self.nvm.read(self.geometry.state_offset(at), &mut states[..count]);
            for (block, state) in (at..).zip(&states[..count]) {
                if *state != BlockState::Free.byte() && !reachable.contains(block) {
                    self.set_state(block, BlockState::Free);
                }
            }
            at += count as u32;
        }
        self.hint = 0;
        self.nvm.fence();
    }

    /// Returns the blocks that are not free according to the table. The caller uses the result only as a hint. Skips
    /// holes in the table.
    pub(crate) fn taken(&self) -> Vec<u32> {
        let (mut taken, mut states, mut at) = (Vec::new(), [0; TABLE_STEP], 0);
        while at < self.grown {
            let skipped = self.nvm.next_data(self.geometry.state_offset(at)) - self.geometry.states_offset;
            at = skipped.min(u64::from(self.grown)) as u32;
            let count = ((self.grown - at) as usize).min(TABLE_STEP);
            self.nvm.read(self.geometry.state_offset(at), &mut states[..count]);
            let is_taken = |(_, state): &(u32, &u8)| **state != BlockState::Free.byte();
            taken.extend((at..).zip(&states[..count]).filter(is_taken).map(|(block, _)| block));
            at += count as u32;
        }
        taken
    }

    fn set_state(&self, block: u32, state: BlockState) {
        let at = self.geometry.state_offset(block);
        self.nvm.store(at, &[state.byte()]);
        self.nvm.flush(at, 1);
    }

    fn find_free(&mut self) -> Option<u32> {
        // Another process may have grown the log. If its size cannot be read, search the blocks that this process knows.
        let _ = self.refresh_grown();
        let hint = self.hint.min(self.grown);
        self.find_free_in(hint, self.grown).or_else(|| self.find_free_in(0, hint))
    }

    fn find_free_in(&self, from: u32, to: u32) -> Option<u32> {
        let mut states = [0; TABLE_STEP];
        let mut at = from;
        while at < to {
            let count = ((to - at) as usize).min(TABLE_STEP);
            self.nvm.read(self.geometry.state_offset(at), &mut states[..count]);
            let free = states[..count]
                .iter()
                .position(|byte| BlockState::from_byte(*byte) == Some(BlockState::Free));
            if let Some(i) = free {
                return Some(at + i as u32);
            }
            at += count as u32;
        }
        None
    }

    /// Allocates file space for more blocks: for a chunk, or for half of the log's present number of blocks if that is
    /// more. Returns the first new block.
    fn grow(&mut self) -> Result<u32, LogError> {
        let limit = self.limit_blocks();
        if self.grown >= limit {
            return Err(LogError::LimitReached { limit_bytes: self.geometry.file_bytes(limit) });
        }
        let most = (LARGEST_STEP / self.block_bytes()).max(1);
        let step = self.geometry.initial_blocks().max((self.grown / 2).min(most));
        let small = self.grown + 1;
        let wanted = (self.grown + step).min(limit);
        let grown = match self.back(wanted) {
            Ok(()) => wanted,
            // The file system is nearly full, but one block may still fit.
            Err(MediumError::NoSpace) => {
                self.back(small).map_err(|source| self.medium(source))?;
                small
            }
            Err(source) => return Err(self.medium(source)),
        };
        let first = self.grown;
        self.store_grown(grown);
        Ok(first)
    }

    /// Returns the most blocks that this process can use. That is the log's limit, or fewer if the process has too
    /// little address space.
    fn limit_blocks(&self) -> u32 {
        let mapped = self.nvm.capacity().saturating_sub(self.geometry.blocks_offset);
        let mapped = u32::try_from(mapped / u64::from(self.block_bytes())).unwrap_or(u32::MAX);
        self.geometry.limit_blocks.min(mapped)
    }

    /// Returns the bytes of all the blocks that this process can use.
    pub(crate) fn limit_bytes(&self) -> u64 {
        u64::from(self.limit_blocks()) * u64::from(self.block_bytes())
    }

    /// Returns the number of blocks that stay if the file shrinks to `keep_bytes`. The number is at least that of a new
    /// log.
    pub(crate) fn kept_blocks(&self, keep_bytes: u64) -> u32 {
        let body = keep_bytes.saturating_sub(self.geometry.blocks_offset);
        let blocks = u32::try_from(body / u64::from(self.block_bytes())).unwrap_or(u32::MAX);
        blocks.max(self.geometry.initial_blocks())
    }

    /// Gives back to the file system the space of the blocks beyond `keep_bytes`. None of these blocks may be in use.
    /// The file keeps its length, because other processes have it mapped. If they still read in that part, they must
    /// see zeros instead of faulting.
    pub(crate) fn shrink(&mut self, keep_bytes: u64) {
        let kept = self.kept_blocks(keep_bytes);
        if kept >= self.grown {
            return;
        }
        let (from, to) = (self.geometry.file_bytes(kept), self.geometry.file_bytes(self.grown));
        // First make the new size durable, so that no process takes a block beyond it, even after a power loss.
        self.store_grown(kept);
        self.hint = self.hint.min(kept);
        // If the file system does not take back the space, the space stays allocated.
        let _ = self.nvm.system_free(from, to - from);
    }

    fn store_grown(&mut self, grown: u32) {
        self.nvm.store_u64(self.geometry.grown_offset, checked_word(grown));
        self.nvm.flush(self.geometry.grown_offset, 8);
        self.nvm.fence();
        self.grown = grown;
    }

    /// Allocates file space for the blocks below number `blocks`. The file may have holes there, which a shrink has
    /// left.
    fn back(&self, blocks: u32) -> Result<(), MediumError> {
        let (from, to) = (self.geometry.file_bytes(self.grown), self.geometry.file_bytes(blocks));
        if from < self.nvm.len() { self.nvm.restore(from, to - from) } else { self.nvm.grow(to) }
    }

    fn refresh_grown(&mut self) -> Result<(), LogError> {
        let word = self.nvm.load_u64(self.geometry.grown_offset);
        let damaged = |what| LogError::Corrupt { offset: self.geometry.grown_offset, what };
        let grown = read_checked_word(word, "the log's size").map_err(damaged)?;
        if grown > self.geometry.limit_blocks {
            return Err(damaged(duralite_format::FormatError::Damaged { what: "the log's size" }));
        }
        if grown != self.grown {
            let bytes = self.geometry.file_bytes(grown);
            if bytes > self.nvm.capacity() {
                let what = "a log that is longer than the address space that this process may use";
                return Err(self.medium(MediumError::Unsupported { what }));
            }
            if self.nvm.refresh_len(bytes).is_err() {
                return Err(damaged(duralite_format::FormatError::Short { what: "the log file" }));
            }
            self.grown = grown;
            self.grown_by_another = true;
        }
        Ok(())
    }

    /// Returns the error for damage at byte `offset` of a block.
    pub(crate) fn corrupt(&self, block: u32, offset: u32, what: duralite_format::FormatError) -> LogError {
        LogError::Corrupt { offset: self.at(block, offset), what }
    }

    pub(crate) fn medium(&self, source: MediumError) -> LogError {
        match source {
            MediumError::NoSpace => LogError::NoSpace { dir: self.path.clone() },
            source => LogError::Medium { path: self.path.clone(), source },
        }
    }
}

// The list of a generation's blocks, as far as this process has followed the links.

/// Blocks in the order of the list. No block is in the list twice. In a damaged log, a link may lead back to a block
/// that is in the list already. Readers refuse such a log. So a reader that follows a damaged list takes at most one
/// step for each block with a valid header.
#[derive(Debug, Default)]
pub(crate) struct BlockList {
    order: Vec<u32>,
    members: FxHashSet<u32>,
}

impl BlockList {
    /// Appends a block. If the list has the block already, changes nothing and returns `false`.
    #[must_use]
    pub(crate) fn push(&mut self, block: u32) -> bool {
        let new = self.members.insert(block);
        if new {
            self.order.push(block);
        }
        new
    }

    /// Appends blocks that the caller knows not to be in the list.
    pub(crate) fn extend(&mut self, blocks: &[u32]) {
        self.members.extend(blocks);
        self.order.extend(blocks);
    }

    pub(crate) fn contains(&self, block: u32) -> bool {
        self.members.contains(&block)
    }

    pub(crate) fn as_slice(&self) -> &[u32] {
        &self.order
    }

    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}
