//! The frames of the generation, and those of the open transaction.
//!
//! For each frame of the generation, memory that the log's users share records which page the frame holds and which
//! transaction wrote it. SQLite needs this information only while it has the log open, because after a crash it finds
//! an empty log. So nothing flushes this information.
//!
//! Each transaction has an entry, which lists its frames. An entry is a sequence of words. The entries follow each
//! other in a list of pieces of the common pool.

use duralite_format::FormatError;
use duralite_format::ppl::{EXTENT_HEADER_BYTES, Extent, PIECE_BYTES};
use duralite_format::sqlite_wal::{Checksum, WalHeader};
use rustc_hash::FxHashMap;

use super::area::{Area, State};
use super::words::{FRAMES_END, FRAMES_LAST, GENERATION, GenerationWords, LOST, SEALED, Turn, Words};
use crate::LogError;
use crate::engine::{Frame, Transaction};

/// The number of words of an entry that come before its pages.
const FIXED_WORDS: u64 = 5;
const WORDS_PER_PIECE: u64 = (PIECE_BYTES - EXTENT_HEADER_BYTES) as u64 / 8;

/// A transaction as SQLite sees it in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) number: u64,
    /// The number of the first frame; 0 if the transaction has no frames.
    pub(super) first_frame: u32,
    pub(super) db_pages: u32,
    pub(super) checksum: Checksum,
    pub(super) time_ms: u64,
    /// The page of each frame, in the order of the frames.
    pub(super) pages: Vec<u32>,
}

impl Entry {
    /// Returns an entry of a transaction without frames.
    pub(super) fn empty(number: u64, db_pages: u32, time_ms: u64) -> Self {
        Self { number, first_frame: 0, db_pages, checksum: [0; 2], time_ms, pages: Vec::new() }
    }

    /// Returns an upper bound on the pieces that an entry with this many pages takes.
    pub(super) fn pieces(pages: usize) -> u64 {
        (FIXED_WORDS + pages.div_ceil(2) as u64).div_ceil(WORDS_PER_PIECE) + 1
    }

    fn words(&self) -> Vec<u64> {
        let mut words = vec![
            self.number,
            u64::from(self.first_frame) | (self.pages.len() as u64) << 32,
            u64::from(self.db_pages),
            u64::from(self.checksum[0]) | u64::from(self.checksum[1]) << 32,
            self.time_ms,
        ];
        let pairs = self.pages.chunks(2);
        words.extend(
            pairs.map(|pair| u64::from(pair[0]) | u64::from(pair.get(1).copied().unwrap_or(0)) << 32),
        );
        words
    }
}

fn halves(word: u64) -> (u32, u32) {
    ((word & 0xffff_ffff) as u32, (word >> 32) as u32)
}

/// A place in the list of pieces that holds the entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Place {
    link: u64,
    offset: u32,
}

impl Area {
    fn out_of_list(&self) -> LogError {
        LogError::Corrupt { offset: 0, what: FormatError::Damaged { what: "the list of frames" } }
    }

    /// Adds an entry at the end of the list. The caller has made sure that there is space.
    pub(super) fn append_entry(&self, words: &Words, turn: &Turn<'_>, entry: &Entry) -> Result<(), LogError> {
        let generation = words.load(GENERATION);
        let (link, end) = words.last_frames();
        let mut place = Place { link, offset: end as u32 };
        for word in entry.words() {
            if place.link == 0 || place.offset >= PIECE_BYTES {
                let piece = self.take(words, turn, true)?;
                let piece = piece.ok_or(LogError::Unexpected("a frame for which there is no room"))?;
                match self.follow(place.link)? {
                    Some(last) => self.set_state(last, State::Next, piece.to_link()),
                    None => words.set_first_frames(generation, piece.to_link()),
                }
                place = Place { link: piece.to_link(), offset: EXTENT_HEADER_BYTES };
            }
            let piece = self.follow(place.link)?.ok_or_else(|| self.out_of_list())?;
            self.nvm.store_u64(self.at(piece, place.offset), word);
            place.offset += 8;
        }
        words.store(FRAMES_LAST, place.link);
        words.store(FRAMES_END, u64::from(place.offset));
        Ok(())
    }

    /// Returns the pieces that hold the entries of the current generation.
    pub(super) fn frame_pieces(&self, words: &Words) -> Result<Vec<Extent>, LogError> {
        let mut pieces = Vec::new();
        if let Some(first) = self.follow(words.first_frames(words.load(GENERATION)))? {
            self.extents_from(first, &mut pieces)?;
        }
        Ok(pieces)
    }
}

/// The frames as far as this process has read them.
#[derive(Default)]
pub(super) struct Frames {
    generation: u64,
    begun: GenerationWords,
    header: Option<WalHeader>,
    place: Place,
    /// The number of the newest transaction that this process has applied.
    known: u64,
    /// Followers can no longer read the transactions up to this one, because merges may have dropped some of their
    /// records.
    lost: u64,
    transactions: Vec<Known>,
    pages: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Known {
    number: u64,
    last_frame: u32,
    db_pages: u32,
    checksum: Checksum,
    time_ms: u64,
}

impl Frames {
    /// Applies the transactions committed since the last call. Returns whether anything has changed.
    pub(super) fn refresh(&mut self, area: &Area, words: &Words) -> Result<bool, LogError> {
        let mut changed = false;
        loop {
            let generation = words.load(GENERATION);
            if generation != self.generation || self.generation == 0 {
                changed = true;
                self.begin(words)?;
            }
            match self.follow(area, words) {
                Ok(more) if words.load(GENERATION) == self.generation => return Ok(changed | more),
                Err(error) if words.load(GENERATION) == self.generation => return Err(error),
                // The pieces that this process has read now hold something else, so read the list from its beginning.
                _ => self.generation = 0,
            }
        }
    }

    fn begin(&mut self, words: &Words) -> Result<(), LogError> {
        let (generation, begun) = words.generation();
        let header = begun.header.map(|bytes| WalHeader::parse(&bytes)).transpose();
        let header = header.map_err(|what| LogError::Corrupt { offset: 0, what })?;
        *self = Self { generation, begun, header, known: begun.position, ..Self::default() };
        self.lost = begun.position;
        Ok(())
    }

    fn follow(&mut self, area: &Area, words: &Words) -> Result<bool, LogError> {
        let sealed = words.load(SEALED);
        self.lost = self.begun.position.max(words.load(LOST));
        let mut changed = false;
        while self.known < sealed {
            if self.place.link == 0 {
                self.place = Place { link: words.first_frames(self.generation), offset: EXTENT_HEADER_BYTES };
            }
            let entry = self.read_entry(area)?;
            if entry.number != self.known + 1 {
                return Err(area.out_of_list());
            }
            self.apply(&entry);
            changed = true;
        }
        Ok(changed)
    }

    fn read_word(&mut self, area: &Area) -> Result<u64, LogError> {
        let mut piece = area.follow(self.place.link)?.ok_or_else(|| area.out_of_list())?;
        if self.place.offset >= PIECE_BYTES {
            self.place = Place { link: area.state(piece, State::Next), offset: EXTENT_HEADER_BYTES };
            piece = area.follow(self.place.link)?.ok_or_else(|| area.out_of_list())?;
        }
        let word = area.nvm.load_u64(area.at(piece, self.place.offset));
        self.place.offset += 8;
        Ok(word)
    }

    fn read_entry(&mut self, area: &Area) -> Result<Entry, LogError> {
        let number = self.read_word(area)?;
        let (first_frame, count) = halves(self.read_word(area)?);
        let (db_pages, _) = halves(self.read_word(area)?);
        let (low, high) = halves(self.read_word(area)?);
        let time_ms = self.read_word(area)?;
        // In a list that another process is changing, the count may be any value. So refuse an impossible count before
        // memory for it is allocated.
        if u64::from(count) > u64::from(area.grown()?) * area.geometry.chunk_bytes / 4 {
            return Err(area.out_of_list());
        }
        let mut pages = Vec::with_capacity(count as usize + 1);
        for _ in 0..count.div_ceil(2) {
            let (one, other) = halves(self.read_word(area)?);
            pages.extend([one, other]);
        }
        pages.truncate(count as usize);
        Ok(Entry { number, first_frame, db_pages, checksum: [low, high], time_ms, pages })
    }

    fn apply(&mut self, entry: &Entry) {
        self.known = entry.number;
        if entry.pages.is_empty() {
            return;
        }
        let before = entry.first_frame.saturating_sub(1);
        while self.transactions.last().is_some_and(|known| known.last_frame > before) {
            self.transactions.pop();
        }
        self.pages.truncate(before as usize);
        self.pages.extend_from_slice(&entry.pages);
        let Entry { number, db_pages, checksum, time_ms, .. } = *entry;
        let last_frame = self.pages.len() as u32;
        self.transactions.push(Known { number, last_frame, db_pages, checksum, time_ms });
    }

    pub(super) fn header(&self) -> Option<&WalHeader> {
        self.header.as_ref()
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns two values: the position before the first transaction that can still be read, and the time at which the
    /// generation began.
    pub(super) fn origin(&self) -> (u64, u64) {
        (self.lost, self.begun.time_ms)
    }

    /// Returns whether the transactions that this process knows are still those in the log.
    pub(super) fn is_current(&self, words: &Words) -> bool {
        words.load(GENERATION) == self.generation && self.begun.position.max(words.load(LOST)) == self.lost
    }

    pub(super) fn known(&self) -> u64 {
        self.known
    }

    pub(super) fn count(&self) -> u32 {
        self.pages.len() as u32
    }

    pub(super) fn page_of(&self, frame: u32) -> Option<u32> {
        self.pages.get(frame.checked_sub(1)? as usize).copied()
    }

    fn transaction_of(&self, frame: u32) -> Option<&Known> {
        let at = self.transactions.partition_point(|known| known.last_frame < frame);
        self.transactions.get(at)
    }

    /// Returns the number of the transaction that wrote a frame.
    pub(super) fn number_of(&self, frame: u32) -> Option<u64> {
        self.transaction_of(frame).map(|known| known.number)
    }

    pub(super) fn frame(&self, frame: u32) -> Option<Frame> {
        let page_number = self.page_of(frame)?;
        let known = self.transaction_of(frame)?;
        let is_last = known.last_frame == frame;
        Some(Frame {
            page_number,
            db_pages: if is_last { known.db_pages } else { 0 },
            checksum: is_last.then_some(known.checksum),
            // Unknown: a merge may have removed the page's records.
            record_bytes: None,
        })
    }

    /// Returns the first transaction that has frames and a number above `number`.
    pub(super) fn after(&self, number: u64) -> Option<Transaction> {
        let at = self.transactions.partition_point(|known| known.number <= number);
        let known = self.transactions.get(at)?;
        let first_frame = at.checked_sub(1).map_or(1, |before| self.transactions[before].last_frame + 1);
        Some(Transaction {
            sequence: u32::try_from(known.number.saturating_sub(self.lost)).unwrap_or(u32::MAX),
            first_frame,
            last_frame: known.last_frame,
            db_pages: known.db_pages,
            time_ms: known.time_ms,
        })
    }

    /// Finds the transactions that a new transaction replaces if its first frame is `first_frame`. Returns the number
    /// of the first of them, and the pages of all of them.
    pub(super) fn replaced_by(&self, first_frame: u32) -> Option<(u64, &[u32])> {
        let number = self.number_of(first_frame)?;
        Some((number, self.pages.get(first_frame.saturating_sub(1) as usize..)?))
    }

    /// Returns each page that has a frame, with the number of its newest frame, in ascending order of pages.
    pub(super) fn newest(&self) -> Vec<(u32, u32)> {
        let mut newest = FxHashMap::default();
        for (frame, page) in (1u32..).zip(&self.pages) {
            newest.insert(*page, frame);
        }
        let mut newest: Vec<_> = newest.into_iter().collect();
        newest.sort_unstable();
        newest
    }
}

/// A frame of the open transaction, kept as the change from the committed page.
#[derive(Debug)]
pub(super) struct StagedFrame {
    pub(super) page_number: u32,
    /// The version of the page to which the change applies.
    pub(super) base: u64,
    pub(super) payload: Vec<u8>,
}

/// If more frames than this are staged, the writer uses a map to find the newest frame of each page.
const FEW: usize = 16;
/// The number of payload buffers that the writer keeps for reuse, and the largest capacity in bytes of such a buffer.
const SPARE: usize = 16;
const SPARE_BYTES: usize = 16 << 10;

/// The frames of the open transaction, in the order of their numbers.
#[derive(Default)]
pub(super) struct Staged {
    first: u32,
    frames: Vec<Option<StagedFrame>>,
    bytes: u64,
    spare: Vec<Vec<u8>>,
}

impl Staged {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns the size in bytes of all changes together.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn slot(&self, frame: u32) -> Option<usize> {
        frame.checked_sub(self.first).map(|slot| slot as usize)
    }

    pub(super) fn get(&self, frame: u32) -> Option<&StagedFrame> {
        self.frames.get(self.slot(frame)?)?.as_ref()
    }

    /// Stores a frame of the open transaction. The new frame replaces a frame that was staged under the same number.
    pub(super) fn put(&mut self, frame: u32, staged: StagedFrame) -> Result<(), LogError> {
        if self.frames.is_empty() {
            self.first = frame;
        }
        let gap = LogError::Unexpected("a gap in the frame numbers");
        let slot = self.slot(frame).filter(|slot| *slot <= self.frames.len()).ok_or(gap)?;
        self.bytes += staged.payload.len() as u64;
        if slot == self.frames.len() {
            self.frames.push(Some(staged));
        } else if let Some(before) = self.frames[slot].replace(staged) {
            self.bytes -= before.payload.len() as u64;
            self.reuse(before.payload);
        }
        Ok(())
    }

    /// Returns the page of each frame from `first` to `last`. Also returns, for each of these pages, the index of its
    /// newest frame. Returns `None` if one of the frames is not staged.
    pub(super) fn newest(&self, first: u32, last: u32) -> Option<(Vec<u32>, Vec<usize>)> {
        let (from, to) = (self.slot(first)?, self.slot(last)?);
        let frames = self.frames.get(from..=to)?;
        let pages: Option<Vec<u32>> =
            frames.iter().map(|staged| staged.as_ref().map(|staged| staged.page_number)).collect();
        let pages = pages?;
        let newest = if pages.len() <= FEW {
            (0..pages.len()).filter(|at| !pages[at + 1..].contains(&pages[*at])).map(|at| from + at).collect()
        } else {
            let last: FxHashMap<u32, usize> =
                pages.iter().enumerate().map(|(at, page)| (*page, at)).collect();
            (0..pages.len()).filter(|at| last.get(&pages[*at]) == Some(at)).map(|at| from + at).collect()
        };
        Some((pages, newest))
    }

    /// Removes and returns the frame with this index.
    pub(super) fn take(&mut self, place: usize) -> Option<StagedFrame> {
        self.frames.get_mut(place)?.take()
    }

    pub(super) fn clear(&mut self) {
        let mut frames = std::mem::take(&mut self.frames);
        frames.drain(..).flatten().for_each(|staged| self.reuse(staged.payload));
        self.frames = frames;
        self.bytes = 0;
    }

    /// Returns an empty payload buffer.
    pub(super) fn spare(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps a payload buffer for reuse.
    pub(super) fn reuse(&mut self, mut payload: Vec<u8>) {
        if self.spare.len() < SPARE && payload.capacity() <= SPARE_BYTES {
            payload.clear();
            self.spare.push(payload);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(page_number: u32) -> StagedFrame {
        StagedFrame { page_number, base: 1, payload: vec![1; 10] }
    }

    #[test]
    fn of_a_page_that_is_there_twice_the_last_frame_counts() {
        for count in [6, 60] {
            let mut staged = Staged::default();
            for number in 0..count {
                staged.put(5 + number, frame(number % (count / 2))).unwrap();
            }
            assert_eq!(staged.bytes(), u64::from(count) * 10);
            let (pages, newest) = staged.newest(5, 4 + count).unwrap();
            assert_eq!(pages.len(), count as usize);
            assert_eq!(newest, (count as usize / 2..count as usize).collect::<Vec<_>>());
            assert_eq!(staged.newest(5, 5 + count), None);
            assert!(staged.newest(4, 5).is_none() && staged.get(4).is_none());
            staged.put(6, frame(900)).unwrap();
            assert_eq!(staged.get(6).unwrap().page_number, 900);
            assert!(staged.put(6 + count, frame(1)).is_err());
            staged.clear();
            assert!(staged.is_empty() && staged.bytes() == 0);
            staged.put(1, frame(1)).unwrap();
        }
    }
}
