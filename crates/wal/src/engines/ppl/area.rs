//! A log's memory: its layout, the states of extents, the free lists, and growing the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use duralite_format::heap::{checked_word, read_checked_word};
use duralite_format::ppl::{
    EXTENT_HEADER_BYTES, Extent, ExtentHeader, GROWN_OFFSET, Geometry, PIECE_BYTES, SECTORS_PER_CHUNK,
    Superblock,
};
use duralite_format::{FormatError, LogId};
use duralite_medium::{MediumError, Nvm};

use super::words::{FREE_PIECE, FREE_SECTOR, PIECES_USED, SECTORS_USED, Turn, Words};
use crate::LogError;

/// The words of an extent's state. Those from `Last` on are stored for the first extent of a chain only.
#[derive(Debug, Clone, Copy)]
pub(super) enum State {
    /// The next extent of the chain or of the free list, as a link.
    Next,
    /// The newest committed transaction with a record in the chain.
    Last,
    /// The transaction up to which the page is home.
    Home,
    /// The slot with the image that the page is being merged from, plus 1; 0 if there is none.
    Slot,
    /// The next chain in the same list of the page table, as a link to that chain's first extent.
    Bucket,
    /// The extent in which the chain's next record will begin, as a link.
    TailExtent,
    /// The offset in that extent at which the next record will begin.
    TailOffset,
    /// The bytes of the chain's records.
    Bytes,
}

/// The file grows by at least this many bytes at a time, unless the limit or the medium leaves less.
const LEAST_STEP: u64 = 1 << 20;

/// The memory of one log.
pub(super) struct Area {
    pub(super) nvm: Arc<dyn Nvm>,
    pub(super) id: LogId,
    pub(super) geometry: Geometry,
    pub(super) limit_chunks: u32,
    pub(super) path: PathBuf,
    /// The number of chunks that the file has, as far as this process knows.
    chunks: AtomicU32,
}

impl Area {
    pub(super) fn new(nvm: Arc<dyn Nvm>, superblock: &Superblock, path: &Path) -> Result<Self, LogError> {
        let area = Self {
            nvm,
            id: superblock.head.log_id,
            geometry: superblock.geometry(),
            limit_chunks: superblock.limit_chunks,
            path: path.to_path_buf(),
            chunks: AtomicU32::new(0),
        };
        area.refresh_chunks()?;
        Ok(area)
    }

    pub(super) fn chunks(&self) -> u32 {
        self.chunks.load(Ordering::Relaxed)
    }

    /// Learns how far other processes have grown the file.
    pub(super) fn refresh_chunks(&self) -> Result<(), LogError> {
        let word = self.nvm.load_u64(GROWN_OFFSET);
        let damaged = |what| LogError::Corrupt { offset: GROWN_OFFSET, what };
        let chunks = read_checked_word(word, "the log's size").map_err(damaged)?;
        if chunks > self.limit_chunks {
            return Err(damaged(FormatError::Damaged { what: "the log's size" }));
        }
        let bytes = self.geometry.file_bytes(chunks);
        if bytes > self.nvm.capacity() {
            let what = "a log that is longer than the address space that this process may use";
            return Err(self.medium(MediumError::Unsupported { what }));
        }
        if self.nvm.refresh_len(bytes).is_err() {
            return Err(damaged(FormatError::Short { what: "the log file" }));
        }
        self.chunks.fetch_max(chunks, Ordering::Relaxed);
        Ok(())
    }

    /// The extent that a link leads to; `None` for link 0. Checks that the file has the extent.
    pub(super) fn follow(&self, link: u64) -> Result<Option<Extent>, LogError> {
        if link == 0 {
            return Ok(None);
        }
        let extent = Extent::of_link(link);
        if let Some(extent) = extent {
            if !self.geometry.has(extent, self.chunks()) {
                self.refresh_chunks()?;
            }
            if self.geometry.has(extent, self.chunks()) {
                return Ok(Some(extent));
            }
        }
        Err(LogError::Corrupt { offset: 0, what: FormatError::Damaged { what: "a link between extents" } })
    }

    pub(super) fn state(&self, extent: Extent, state: State) -> u64 {
        self.nvm.load_u64(self.geometry.state_offset(extent) + 8 * state as u64)
    }

    pub(super) fn set_state(&self, extent: Extent, state: State, value: u64) {
        self.nvm.store_u64(self.geometry.state_offset(extent) + 8 * state as u64, value);
    }

    /// Offset in the log of byte `offset` of an extent.
    pub(super) fn at(&self, extent: Extent, offset: u32) -> u64 {
        self.geometry.extent_offset(extent) + u64::from(offset)
    }

    /// The page whose chain contains an extent.
    pub(super) fn page_of(&self, extent: Extent) -> u32 {
        (self.nvm.load_u64(self.at(extent, 0)) & 0xffff_ffff) as u32
    }

    pub(super) fn header(&self, extent: Extent) -> Option<ExtentHeader> {
        let mut bytes = [0; EXTENT_HEADER_BYTES as usize];
        self.nvm.read(self.at(extent, 0), &mut bytes);
        ExtentHeader::decode(&bytes, self.id, extent)
    }

    /// Stores the header that makes an extent a part of a page's chain. Does not flush it.
    pub(super) fn store_header(&self, extent: Extent, header: &ExtentHeader, merged: u64) {
        let bytes = header.encode(self.id, extent);
        let at = self.at(extent, 0);
        self.nvm.store(at + 8, &bytes[8..]);
        self.nvm.store(at + bytes.len() as u64, &merged.to_le_bytes());
        self.nvm.store(at, &bytes[..8]);
    }

    /// Takes an extent out of its chain by erasing the extent's header. The erasure is durable once the caller has fenced.
    pub(super) fn erase_header(&self, extent: Extent) {
        let at = self.at(extent, 0);
        self.nvm.store_u64(at, 0);
        self.nvm.flush(at, 8);
    }

    /// The words of a free list: its head, and the number of extents in use.
    fn free_list(piece: bool) -> (u64, u64) {
        if piece { (FREE_PIECE, PIECES_USED) } else { (FREE_SECTOR, SECTORS_USED) }
    }

    /// Puts an extent on its free list. The extent's header has been erased.
    pub(super) fn put_free(&self, words: &Words, _turn: &Turn<'_>, extent: Extent) {
        let (head, _) = Self::free_list(extent.is_piece());
        self.set_state(extent, State::Next, words.load(head));
        words.store(head, extent.to_link());
    }

    /// Puts an extent on its free list and counts one less in use.
    pub(super) fn give_back(&self, words: &Words, turn: &Turn<'_>, extent: Extent) {
        let (_, used) = Self::free_list(extent.is_piece());
        self.put_free(words, turn, extent);
        words.add(used, u64::MAX);
    }

    /// Takes a free extent of this kind, or else of the other kind; `None` if there is none of either kind.
    pub(super) fn take(
        &self,
        words: &Words,
        turn: &Turn<'_>,
        piece: bool,
    ) -> Result<Option<Extent>, LogError> {
        match self.take_of(words, turn, piece)? {
            None => self.take_of(words, turn, !piece),
            found => Ok(found),
        }
    }

    /// Takes a free extent of a kind.
    pub(super) fn take_of(
        &self,
        words: &Words,
        turn: &Turn<'_>,
        piece: bool,
    ) -> Result<Option<Extent>, LogError> {
        let (head, used) = Self::free_list(piece);
        let mut found = self.follow(words.load(head))?;
        if found.is_none() && self.grow(words, turn)? {
            found = self.follow(words.load(head))?;
        }
        let Some(extent) = found else { return Ok(None) };
        words.store(head, self.state(extent, State::Next));
        for state in [State::Next, State::Last, State::Home, State::Slot, State::Bucket, State::Bytes] {
            self.set_state(extent, state, 0);
        }
        // Readers find the extent in its chain before its first record is stored. So its stream of records has to look empty.
        self.nvm.store_u64(self.at(extent, EXTENT_HEADER_BYTES), 0);
        words.add(used, 1);
        Ok(Some(extent))
    }

    /// How many sectors and how many pieces can still be taken.
    pub(super) fn free_counts(&self, words: &Words) -> (u64, u64) {
        let (sectors, pieces) = self.most_extents();
        (sectors.saturating_sub(words.load(SECTORS_USED)), pieces.saturating_sub(words.load(PIECES_USED)))
    }

    /// The most sectors and the most pieces that the log may have, free or in use.
    pub(super) fn most_extents(&self) -> (u64, u64) {
        let chunks = u64::from(self.most_chunks());
        (chunks * u64::from(SECTORS_PER_CHUNK), chunks * u64::from(self.geometry.pieces_per_chunk))
    }

    /// The most chunks that this process can use: the log's limit, or fewer if the process has too little address space.
    fn most_chunks(&self) -> u32 {
        let mapped = self.nvm.capacity().saturating_sub(self.geometry.chunks_offset);
        let mapped = u32::try_from(mapped / self.geometry.chunk_bytes).unwrap_or(u32::MAX);
        self.limit_chunks.min(mapped)
    }

    /// Bytes of the extents in use, and the most bytes that extents may have.
    pub(super) fn fill(&self, words: &Words) -> (u64, u64) {
        let sectors = words.load(SECTORS_USED) * u64::from(self.geometry.sector_bytes);
        let pieces = words.load(PIECES_USED) * u64::from(duralite_format::ppl::PIECE_BYTES);
        (sectors + pieces, u64::from(self.most_chunks()) * self.geometry.chunk_bytes)
    }

    /// Grows the file until the extents of `need` can be taken without growing it further.
    pub(super) fn back(&self, words: &Words, turn: &Turn<'_>, need: Need) -> Result<(), LogError> {
        self.refresh_chunks()?;
        loop {
            let chunks = u64::from(self.chunks());
            let free =
                |per_chunk: u32, used| (chunks * u64::from(per_chunk)).saturating_sub(words.load(used));
            let sectors = free(SECTORS_PER_CHUNK, SECTORS_USED);
            let pieces = free(self.geometry.pieces_per_chunk, PIECES_USED);
            if need.sectors <= sectors && need.pieces <= pieces {
                return Ok(());
            }
            if !self.grow(words, turn)? {
                return Err(LogError::LimitReached { limit_bytes: self.fill(words).1 });
            }
        }
    }

    /// Grows the file. Returns `false` if the limit does not allow it.
    fn grow(&self, words: &Words, turn: &Turn<'_>) -> Result<bool, LogError> {
        self.refresh_chunks()?;
        let (have, most) = (self.chunks(), self.most_chunks());
        if have >= most {
            return Ok(false);
        }
        let least = LEAST_STEP.div_ceil(self.geometry.chunk_bytes) as u32;
        let wanted = have.saturating_add((have / 2).max(least)).min(most);
        let grown = match self.nvm.grow(self.geometry.file_bytes(wanted)) {
            Ok(()) => wanted,
            // The medium is nearly full, but one chunk may still fit.
            Err(MediumError::NoSpace) => {
                self.nvm.grow(self.geometry.file_bytes(have + 1)).map_err(|source| self.medium(source))?;
                have + 1
            }
            Err(source) => return Err(self.medium(source)),
        };
        self.nvm.store_u64(GROWN_OFFSET, checked_word(grown));
        self.nvm.flush(GROWN_OFFSET, 8);
        self.nvm.fence();
        self.chunks.fetch_max(grown, Ordering::Relaxed);
        for chunk in (have..grown).rev() {
            let extents: Vec<Extent> = self.geometry.extents_of(chunk).collect();
            extents.into_iter().rev().for_each(|extent| self.put_free(words, turn, extent));
        }
        Ok(true)
    }

    pub(super) fn medium(&self, source: MediumError) -> LogError {
        match source {
            MediumError::NoSpace => LogError::NoSpace { dir: self.path.clone() },
            source => LogError::Medium { path: self.path.clone(), source },
        }
    }
}

/// Bytes of a piece that records can use.
pub(super) const PIECE_ROOM: u32 = PIECE_BYTES - EXTENT_HEADER_BYTES;

/// The extents that a transaction takes. They are counted before the transaction stores anything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) sectors: u64,
    pub(super) pieces: u64,
}

impl Need {
    pub(super) fn add(&mut self, other: Self) {
        self.sectors += other.sectors;
        self.pieces += other.pieces;
    }

    /// A need for the same space as `self` that the free extents can satisfy: pieces replace missing sectors, and sectors
    /// replace missing pieces. `None` if the free extents are not enough.
    pub(super) fn within(self, sectors: u64, pieces: u64, sector_bytes: u32) -> Option<Self> {
        let short = self.sectors.saturating_sub(sectors);
        let in_pieces = u64::from(sector_bytes.div_ceil(PIECE_ROOM));
        let wanted = self.pieces + short * in_pieces;
        let instead = wanted.saturating_sub(pieces);
        let found = Self { sectors: self.sectors - short + instead, pieces: wanted - instead };
        (found.sectors <= sectors).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_and_pieces_stand_in_for_each_other() {
        let need = Need { sectors: 3, pieces: 4 };
        assert_eq!(need.within(3, 4, 4096), Some(need));
        assert_eq!(need.within(2, 9, 4096), Some(Need { sectors: 2, pieces: 9 }));
        assert_eq!(need.within(2, 8, 4096), None);
        assert_eq!(need.within(5, 2, 4096), Some(Need { sectors: 5, pieces: 2 }));
        assert_eq!(need.within(4, 2, 4096), None);
    }
}
