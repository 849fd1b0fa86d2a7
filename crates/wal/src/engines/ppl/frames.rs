//! The frames of the generation: which page each frame holds, and after which transaction. SQLite needs them only while it has
//! the log open, since it finds an empty log after a crash. So they are in memory that users share, and nothing flushes them.
//!
//! Each transaction has an entry. Entries are words in a list of pieces of the common pool.

use duralite_format::FormatError;
use duralite_format::ppl::{EXTENT_HEADER_BYTES, Extent, PIECE_BYTES};
use duralite_format::sqlite_wal::{Checksum, WalHeader};

use super::area::{Area, State};
use super::words::{FRAMES_END, FRAMES_LAST, GENERATION, GenerationWords, LOST, SEALED, Turn, Words};
use crate::LogError;
use crate::engine::{Frame, Transaction};

/// Words of an entry that precede its pages.
const FIXED_WORDS: u64 = 5;
const WORDS_PER_PIECE: u64 = (PIECE_BYTES - EXTENT_HEADER_BYTES) as u64 / 8;

/// A transaction as SQLite sees it in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) number: u64,
    /// 0 if the transaction has no frames.
    pub(super) first_frame: u32,
    pub(super) db_pages: u32,
    pub(super) checksum: Checksum,
    pub(super) time_ms: u64,
    /// The pages of the frames, in the order of the frames.
    pub(super) pages: Vec<u32>,
}

impl Entry {
    /// An entry of a transaction without frames.
    pub(super) fn empty(number: u64, db_pages: u32, time_ms: u64) -> Self {
        Self { number, first_frame: 0, db_pages, checksum: [0; 2], time_ms, pages: Vec::new() }
    }

    /// An upper bound on the pieces that an entry with this many pages takes.
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

/// A place in the list of pieces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Place {
    link: u64,
    offset: u32,
}

impl Area {
    fn out_of_list(&self) -> LogError {
        LogError::Corrupt { offset: 0, what: FormatError::Damaged { what: "the list of frames" } }
    }

    /// Adds an entry at the end. The caller has made sure that there is room.
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

    /// The pieces of the list.
    pub(super) fn frame_pieces(&self, words: &Words) -> Result<Vec<Extent>, LogError> {
        let mut pieces = Vec::new();
        if let Some(first) = self.follow(words.first_frames(words.load(GENERATION)))? {
            self.extents_from(first, &mut pieces)?;
        }
        Ok(pieces)
    }
}

/// What this process knows of the frames.
#[derive(Default)]
pub(super) struct Frames {
    generation: u64,
    begun: GenerationWords,
    header: Option<WalHeader>,
    place: Place,
    /// The newest transaction that this process has applied.
    known: u64,
    /// Transactions up to this one can no longer be told.
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
    /// Applies what has been committed since the last call. Returns whether anything has changed.
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
                // The pieces that were read had been reused for something else.
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
        // Any value may be found in a list that another process is changing.
        if u64::from(count) > u64::from(area.chunks()) * area.geometry.chunk_bytes / 4 {
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

    /// The position before the first transaction that can be told, and the time at which the generation began.
    pub(super) fn origin(&self) -> (u64, u64) {
        (self.lost, self.begun.time_ms)
    }

    /// Whether the transactions that this process knows may still be told.
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

    /// The transaction of a frame.
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
            // A merge may have removed the page's records since.
            record_bytes: None,
        })
    }

    /// The first transaction with frames whose number is above `number`.
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

    /// The transactions whose frames a new transaction from `first_frame` on replaces: the first one's number, and the pages of
    /// all.
    pub(super) fn replaced_by(&self, first_frame: u32) -> Option<(u64, &[u32])> {
        let number = self.number_of(first_frame)?;
        Some((number, self.pages.get(first_frame.saturating_sub(1) as usize..)?))
    }

    /// Each page that has a frame, with its newest frame; in ascending order of pages.
    pub(super) fn newest(&self) -> Vec<(u32, u32)> {
        let mut newest = rustc_hash::FxHashMap::default();
        for (frame, page) in (1u32..).zip(&self.pages) {
            newest.insert(*page, frame);
        }
        let mut newest: Vec<_> = newest.into_iter().collect();
        newest.sort_unstable();
        newest
    }
}
