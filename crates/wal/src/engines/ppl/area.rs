//! A log's memory: its layout, the states of extents, the free lists, and growing the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use duralite_format::heap::{checked_word, read_checked_word};
use duralite_format::ppl::{
    EXTENT_HEADER_BYTES, Extent, ExtentHeader, GROWN_OFFSET, Geometry, NO_LIMIT_CHUNKS, PIECE_BYTES,
    SECTORS_PER_CHUNK, Superblock,
};
use duralite_format::{FormatError, LogId};
use duralite_medium::{MediumError, Nvm};
use rustix::io::Errno;

use super::words::{FREE_PIECE, FREE_SECTOR, PIECES_USED, SECTORS_USED, Turn, Words};
use crate::LogError;

/// The words of an extent's state. Only the first extent of a chain has the words from `Last` on.
#[derive(Debug, Clone, Copy)]
pub(super) enum State {
    /// The next extent of the chain or of the free list, as a link.
    Next,
    /// The newest committed transaction with a record in the chain.
    Last,
    /// The page's own home position. If the home position that all pages share is later, it applies instead.
    Home,
    /// While the page is being merged, 1 plus the number of the slot that holds the page's new image; otherwise 0.
    Slot,
    /// The next chain in the same list of the page table, as a link to that chain's first extent.
    Bucket,
    /// The extent in which the chain's next record will begin, as a link.
    TailExtent,
    /// The offset in that extent at which the next record will begin.
    TailOffset,
    /// The number of bytes of the chain's records.
    Bytes,
}

/// The least number of bytes by which the log grows at a time. The log grows by less if its usual size, its limit or
/// the medium allows no more.
const LEAST_STEP: u64 = 1 << 20;
/// A log that grows beyond its usual size grows by more than it has to, so that the next transactions need not grow it
/// again. The surplus is the usual size divided by this number.
const SPARE: u32 = 8;

/// The memory of one log.
pub(super) struct Area {
    pub(super) nvm: Arc<dyn Nvm>,
    pub(super) id: LogId,
    pub(super) geometry: Geometry,
    limit_chunks: u32,
    usual_chunks: u32,
    pub(super) path: PathBuf,
    /// The largest number of chunks that the log has had, as far as this process knows. The file is still long enough
    /// for all of these chunks. A chunk whose space the log has given back reads as zeros.
    chunks: AtomicU32,
}

impl Area {
    pub(super) fn new(nvm: Arc<dyn Nvm>, superblock: &Superblock, path: &Path) -> Result<Self, LogError> {
        let area = Self {
            nvm,
            id: superblock.head.log_id,
            geometry: superblock.geometry(),
            limit_chunks: superblock.limit_chunks,
            usual_chunks: superblock.usual_chunks,
            path: path.to_path_buf(),
            chunks: AtomicU32::new(0),
        };
        area.grown()?;
        Ok(area)
    }

    /// Returns a number of chunks that contain all extents known to this process.
    pub(super) fn known_chunks(&self) -> u32 {
        self.chunks.load(Ordering::Relaxed)
    }

    /// Returns the number of chunks that the log has. The number changes only while a process holds the lock.
    pub(super) fn grown(&self) -> Result<u32, LogError> {
        let word = self.nvm.load_u64(GROWN_OFFSET);
        let damaged = |what| LogError::Corrupt { offset: GROWN_OFFSET, what };
        let chunks = read_checked_word(word, "the log's size").map_err(damaged)?;
        if chunks > self.limit_chunks {
            return Err(damaged(FormatError::Damaged { what: "the log's size" }));
        }
        if chunks > self.known_chunks() {
            let bytes = self.geometry.file_bytes(chunks);
            if bytes > self.nvm.capacity() {
                let what = "a log that is longer than the address space that this process may use";
                return Err(self.medium(MediumError::Unsupported { what }));
            }
            self.nvm.refresh_len(bytes).map_err(|source| match source {
                MediumError::OutOfBounds { .. } => damaged(FormatError::Short { what: "the log file" }),
                source => self.medium(source),
            })?;
            self.chunks.fetch_max(chunks, Ordering::Relaxed);
        }
        Ok(chunks)
    }

    /// Stores the number of chunks that the log has. The number is durable on return.
    fn store_grown(&self, chunks: u32) {
        self.nvm.store_u64(GROWN_OFFSET, checked_word(chunks));
        self.nvm.flush(GROWN_OFFSET, 8);
        self.nvm.fence();
        self.chunks.fetch_max(chunks, Ordering::Relaxed);
    }

    /// Returns the extent that a link leads to, or `None` for link 0. Checks that the file has the extent. This check
    /// is needed because a process without the lock may follow a link after the log has given the extent back.
    pub(super) fn follow(&self, link: u64) -> Result<Option<Extent>, LogError> {
        if link == 0 {
            return Ok(None);
        }
        if let Some(extent) = Extent::of_link(link) {
            if self.geometry.has(extent, self.known_chunks()) || self.geometry.has(extent, self.grown()?) {
                return Ok(Some(extent));
            }
            let chunks = self.geometry.chunk_of(extent) + 1;
            if chunks <= self.limit_chunks && self.nvm.refresh_len(self.geometry.file_bytes(chunks)).is_ok() {
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

    /// Returns the offset in the log of byte `offset` of an extent.
    pub(super) fn at(&self, extent: Extent, offset: u32) -> u64 {
        self.geometry.extent_offset(extent) + u64::from(offset)
    }

    /// Returns the page whose chain contains an extent.
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

    /// Returns the words of a free list: its head, and the number of extents in use.
    fn free_list(piece: bool) -> (u64, u64) {
        if piece { (FREE_PIECE, PIECES_USED) } else { (FREE_SECTOR, SECTORS_USED) }
    }

    /// Puts an extent on its free list. The extent's header has been erased.
    pub(super) fn put_free(&self, words: &Words, _turn: &Turn<'_>, extent: Extent) {
        let (head, _) = Self::free_list(extent.is_piece());
        self.set_state(extent, State::Next, words.load(head));
        words.store(head, extent.to_link());
    }

    /// Puts an extent on its free list, and counts it as no longer in use.
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

    /// Takes a free extent of the given kind.
    pub(super) fn take_of(
        &self,
        words: &Words,
        turn: &Turn<'_>,
        piece: bool,
    ) -> Result<Option<Extent>, LogError> {
        let (head, used) = Self::free_list(piece);
        let mut found = self.follow(words.load(head))?;
        let grown = self.grown()?;
        if found.is_none() && grown < self.usual_chunks {
            match self.grow(words, turn, grown + 1) {
                Ok(true) => found = self.follow(words.load(head))?,
                Ok(false) | Err(LogError::NoSpace { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let Some(extent) = found else { return Ok(None) };
        words.store(head, self.state(extent, State::Next));
        for state in [State::Next, State::Last, State::Home, State::Slot, State::Bucket, State::Bytes] {
            self.set_state(extent, state, 0);
        }
        // Readers find the extent in its chain before the extent's first record is stored. So until then the extent's stream
        // of records has to look empty.
        self.nvm.store_u64(self.at(extent, EXTENT_HEADER_BYTES), 0);
        words.add(used, 1);
        Ok(Some(extent))
    }

    /// Returns how many sectors and how many pieces are free for transactions, if the log does not grow beyond its
    /// usual size. For a log that is already larger, the numbers refer to its present size.
    pub(super) fn free_counts(&self, words: &Words) -> Result<(u64, u64), LogError> {
        Ok(self.free_within(words, self.grown()?.max(self.usual_chunks()).min(self.most_chunks())))
    }

    /// Returns the numbers of sectors and of pieces that are free for transactions in a log with this many chunks.
    fn free_within(&self, words: &Words, chunks: u32) -> (u64, u64) {
        let (sectors, pieces) = self.extents(chunks);
        (sectors.saturating_sub(words.load(SECTORS_USED)), pieces.saturating_sub(words.load(PIECES_USED)))
    }

    fn extents(&self, chunks: u32) -> (u64, u64) {
        let chunks = u64::from(chunks);
        (chunks * u64::from(SECTORS_PER_CHUNK), chunks * u64::from(self.geometry.pieces_per_chunk))
    }

    /// Returns the numbers of sectors and of pieces in a log of the usual size, both free and in use.
    pub(super) fn usual_extents(&self) -> (u64, u64) {
        self.extents(self.usual_chunks())
    }

    /// Returns the most chunks that this process can use. That is the log's limit, or fewer if the process has too little
    /// address space.
    fn most_chunks(&self) -> u32 {
        let mapped = self.nvm.capacity().saturating_sub(self.geometry.chunks_offset);
        let mapped = u32::try_from(mapped / self.geometry.chunk_bytes).unwrap_or(u32::MAX);
        self.limit_chunks.min(mapped)
    }

    fn usual_chunks(&self) -> u32 {
        self.usual_chunks.min(self.most_chunks())
    }

    /// Returns whether the log is larger than usual, because a transaction needed more.
    pub(super) fn has_outgrown(&self) -> Result<bool, LogError> {
        Ok(self.grown()? > self.usual_chunks)
    }

    /// Returns the number of bytes of the extents in use, and the number of bytes that a log of the usual size has for
    /// extents.
    pub(super) fn fill(&self, words: &Words) -> (u64, u64) {
        let sectors = words.load(SECTORS_USED) * u64::from(self.geometry.sector_bytes);
        let pieces = words.load(PIECES_USED) * u64::from(PIECE_BYTES);
        (sectors + pieces, u64::from(self.usual_chunks()) * self.geometry.chunk_bytes)
    }

    /// Returns the most bytes that extents may have; `u64::MAX` if the log has no limit.
    pub(super) fn limit_bytes(&self) -> u64 {
        match self.limit_chunks {
            NO_LIMIT_CHUNKS => u64::MAX,
            _ => u64::from(self.most_chunks()) * self.geometry.chunk_bytes,
        }
    }

    /// Makes sure that the file has enough free extents for `need`. Sectors may replace missing pieces, and pieces
    /// missing sectors. If the file has too few, grows the log to at most its usual size, or with `may_outgrow` to at
    /// most its limit (invariant 10).
    ///
    /// # Errors
    /// `LimitReached`, `NoSpace`: pages have to be merged first.
    pub(super) fn make_room(
        &self,
        words: &Words,
        turn: &Turn<'_>,
        need: Need,
        may_outgrow: bool,
    ) -> Result<(), LogError> {
        let within = |(sectors, pieces)| need.within(sectors, pieces, self.geometry.sector_bytes);
        let mut found = within(self.free_counts(words)?);
        if may_outgrow {
            found = found.or_else(|| within(self.free_within(words, self.most_chunks())));
        }
        let backed = match found {
            Some(need) => self.back(words, turn, need),
            None => Err(LogError::LimitReached { limit_bytes: self.limit_bytes() }),
        };
        match backed {
            // The file has no space for another chunk, but free pieces may still replace sectors, or free sectors
            // replace pieces.
            Err(LogError::NoSpace { .. }) if within(self.free_within(words, self.grown()?)).is_some() => {
                Ok(())
            }
            backed => backed,
        }
    }

    /// Grows the log, if necessary, until the extents of `need` are free in the file.
    fn back(&self, words: &Words, turn: &Turn<'_>, need: Need) -> Result<(), LogError> {
        let sectors = (words.load(SECTORS_USED) + need.sectors).div_ceil(u64::from(SECTORS_PER_CHUNK));
        let pieces =
            (words.load(PIECES_USED) + need.pieces).div_ceil(u64::from(self.geometry.pieces_per_chunk));
        let chunks = u32::try_from(sectors.max(pieces)).unwrap_or(u32::MAX);
        if chunks <= self.grown()? || self.grow(words, turn, chunks)? {
            return Ok(());
        }
        Err(LogError::LimitReached { limit_bytes: self.limit_bytes() })
    }

    /// Grows the log to at least this many chunks. Returns `false` if the limit does not allow it. After `NoSpace` the log is
    /// as large as before.
    fn grow(&self, words: &Words, turn: &Turn<'_>, least: u32) -> Result<bool, LogError> {
        let (have, most) = (self.grown()?, self.most_chunks());
        if least > most {
            return Ok(false);
        }
        let step = (have / 2).max(LEAST_STEP.div_ceil(self.geometry.chunk_bytes) as u32);
        let roomy = match self.usual_chunks {
            usual if least <= usual => have.saturating_add(step).min(usual),
            usual => least.saturating_add(usual / SPARE),
        };
        let roomy = roomy.clamp(least, most);
        let grown = match self.extend(have, roomy) {
            // The medium is nearly full, but may have the space for the chunks that are needed.
            Err(MediumError::NoSpace) if roomy > least => self.extend(have, least).map(|()| least),
            extended => extended.map(|()| roomy),
        };
        let grown = grown.map_err(|source| self.medium(source))?;
        self.store_grown(grown);
        for chunk in (have..grown).rev() {
            let extents: Vec<Extent> = self.geometry.extents_of(chunk).collect();
            extents.into_iter().rev().for_each(|extent| self.put_free(words, turn, extent));
        }
        Ok(true)
    }

    /// Allocates file space for the chunks from number `from` on, up to but not including number `to`. The file may
    /// already be long enough, and have holes where chunks were given back.
    fn extend(&self, from: u32, to: u32) -> Result<(), MediumError> {
        let (from, to) = (self.geometry.file_bytes(from), self.geometry.file_bytes(to));
        let extended =
            if from < self.nvm.len() { self.nvm.restore(from, to - from) } else { self.nvm.grow(to) };
        extended.map_err(|source| match source {
            // This process has no address space left for a larger log.
            MediumError::Io { op: "mmap", source: Errno::NOMEM } => MediumError::NoSpace,
            source => source,
        })
    }

    /// Gives back to the file system the space of all chunks except the first `kept` ones. No extent in the other
    /// chunks is in use or in a free list. The file keeps its length, because other processes have it mapped. A process
    /// that still reads in the part given back must see zeros instead of faulting.
    pub(super) fn shrink(&self, turn: &Turn<'_>, kept: u32) -> Result<(), LogError> {
        // First make the new size durable, so that no process takes an extent beyond it, even after a power loss.
        self.store_grown(kept);
        self.give_back_rest(turn)
    }

    /// Gives back to the file system the space after the log's chunks. It consists of chunks that the log has given up,
    /// and of space that a process added and did not make a part of the log before it died.
    pub(super) fn give_back_rest(&self, _turn: &Turn<'_>) -> Result<(), LogError> {
        let from = self.geometry.file_bytes(self.grown()?);
        // The file may be longer than this process knows. If it is shorter than the length that is passed here, the
        // call fails, which does no harm.
        let _ = self.nvm.refresh_len(self.geometry.file_bytes(self.limit_chunks).min(self.nvm.capacity()));
        // If the file system does not take back the space, the space stays allocated.
        let _ = self.nvm.system_free(from, self.nvm.len().saturating_sub(from));
        Ok(())
    }

    /// Returns the number of chunks to keep: enough to contain these extents, and at least as many as a log of the
    /// usual size has.
    pub(super) fn chunks_for<'a>(&self, used: impl Iterator<Item = &'a Extent>) -> u32 {
        used.map(|extent| self.geometry.chunk_of(*extent) + 1).fold(self.usual_chunks, u32::max)
    }

    pub(super) fn medium(&self, source: MediumError) -> LogError {
        match source {
            MediumError::NoSpace => LogError::NoSpace { dir: self.path.clone() },
            source => LogError::Medium { path: self.path.clone(), source },
        }
    }
}

/// The number of bytes of a piece that records can use.
pub(super) const PIECE_ROOM: u32 = PIECE_BYTES - EXTENT_HEADER_BYTES;

/// The extents that a transaction takes. The writer counts them before it stores anything of the transaction.
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

    /// Returns the extents to take instead of `self`, if only `sectors` sectors and `pieces` pieces are free. Pieces
    /// replace missing sectors, and sectors replace missing pieces. Returns `None` if the free extents are not enough.
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
