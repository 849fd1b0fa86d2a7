//! SQLite's wal-index, in the byte order of the machine (sqlite.org/walformat.html). The version is 3007000, which all
//! SQLite versions since 3.7 write.
//!
//! A wal-index consists of regions of 32 KiB. A region has the page numbers of up to 4096 frames, and a hash table for
//! finding the frames of a page. The first region begins with a header of 136 bytes, and has 34 page numbers less. This
//! header contains SQLite's own header twice, the number of frames that checkpoints have written to the database, and
//! the readers' marks.

use crate::sqlite_wal::{Checksum, WalHeader};

/// The number of bytes from the beginning of the wal-index that [`WalIndex::decode`] needs.
pub const WAL_INDEX_BYTES: usize = 136;

const VERSION: u32 = 3_007_000;
const HEADER_BYTES: usize = 48;
const IS_INIT: usize = 12;
const FRAMES: usize = 16;
const DB_PAGES: usize = 20;
const BACKFILLED: usize = 96;

/// The state of a log, counted in SQLite's frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalIndex {
    /// The number of committed frames in the log.
    pub frames: u32,
    /// How many frames checkpoints have written to the database, counted from the first frame.
    pub backfilled: u32,
    /// Size of the database in pages.
    pub db_pages: u32,
}

impl WalIndex {
    /// Reads the wal-index. Returns `None` if no connection has made one, or if its two headers differ because a
    /// connection is writing them.
    #[must_use]
    pub fn decode(bytes: &[u8; WAL_INDEX_BYTES]) -> Option<Self> {
        let number = |at: usize| {
            let mut number = [0; 4];
            number.copy_from_slice(&bytes[at..at + 4]);
            u32::from_ne_bytes(number)
        };
        let same = bytes[..HEADER_BYTES] == bytes[HEADER_BYTES..2 * HEADER_BYTES];
        if !same || number(0) != VERSION || bytes[IS_INIT] == 0 {
            return None;
        }
        let frames = number(FRAMES);
        Some(Self { frames, backfilled: number(BACKFILLED).min(frames), db_pages: number(DB_PAGES) })
    }
}

/// The number of words in SQLite's header. The first region has two copies of this header.
pub const HEADER_WORDS: usize = 12;
/// The index, in a header, of the word that says how many frames are committed.
pub const FRAMES_WORD: usize = FRAMES / 4;
/// The index, in the first region, of the word that says how many frames checkpoints have written to the database.
pub const BACKFILLED_WORD: usize = BACKFILLED / 4;
/// The index, in the first region, of the word with the first of the [`MARKS`] readers' marks.
pub const FIRST_MARK_WORD: usize = BACKFILLED_WORD + 1;
/// The number of readers' marks.
pub const MARKS: usize = 5;
/// The index, in the first region, of the word with the number of the last frame that a checkpoint has tried to write
/// to the database.
pub const ATTEMPTED_WORD: usize = 32;
/// The value of a mark that no reader uses.
pub const MARK_NOT_USED: u32 = u32::MAX;
/// The number of slots in a region's hash table. A slot holds the number of a frame, counted from 1 within the region,
/// or 0 if it is empty.
pub const HASH_SLOTS: usize = 8192;
/// The offset of a region's hash table, in bytes.
pub const HASH_OFFSET: usize = 16_384;
/// How many page numbers the first region holds, one for each frame.
const FRAMES_OF_FIRST: u32 = 4062;
/// How many page numbers every other region holds.
const FRAMES_OF_OTHERS: u32 = 4096;
/// How many words the first region has before its page numbers.
const WORDS_BEFORE_PAGES: usize = WAL_INDEX_BYTES / 4;

/// The place of a frame in the wal-index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The region that has the frame.
    pub region: u32,
    /// The number of the last frame before this region.
    pub before: u32,
    /// The index, in the region, of the word with the page number of the region's first frame.
    pub first_word: usize,
}

impl Place {
    /// Returns the place of a frame. The frame's number is at least 1.
    #[must_use]
    pub fn of(frame: u32) -> Self {
        let region = frame.saturating_add(FRAMES_OF_OTHERS - FRAMES_OF_FIRST - 1) / FRAMES_OF_OTHERS;
        Self::of_region(region)
    }

    /// Returns the place of the first frame of a region.
    #[must_use]
    pub fn of_region(region: u32) -> Self {
        match region.checked_sub(1) {
            None => Self { region, before: 0, first_word: WORDS_BEFORE_PAGES },
            Some(others) => {
                Self { region, before: FRAMES_OF_FIRST + others * FRAMES_OF_OTHERS, first_word: 0 }
            }
        }
    }
}

/// Returns the slot at which the search for a page begins.
#[must_use]
pub fn first_slot(page: u32) -> usize {
    page.wrapping_mul(383) as usize & (HASH_SLOTS - 1)
}

/// SQLite's header of a wal-index.
#[derive(Debug, Clone, Copy)]
pub struct IndexHeader([u32; HEADER_WORDS]);

impl PartialEq for IndexHeader {
    /// Compares in a loop, which takes less time than a call of the C library's `memcmp`. Each transaction compares
    /// several headers.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differs, (own, its)| differs | (own ^ its)) == 0
    }
}

impl Eq for IndexHeader {}

impl IndexHeader {
    /// Returns the header in these words; `None` unless a connection has written the header completely.
    #[must_use]
    pub fn of(words: [u32; HEADER_WORDS]) -> Option<Self> {
        let header = Self(words);
        let is_whole = words[0] == VERSION && header.flags()[0] != 0 && header.checksum() == words[10..];
        is_whole.then_some(header)
    }

    /// Returns the header of a wal-index that a process builds from a log. `wal` is the log's WAL header (`None` if
    /// nothing was ever committed), `checksum` the checksum after the last frame, `frames` the number of frames, and
    /// `db_pages` the size of the database in pages.
    #[must_use]
    pub fn new(wal: Option<&WalHeader>, checksum: Checksum, frames: u32, db_pages: u32) -> Self {
        let mut words = [0; HEADER_WORDS];
        words[0] = VERSION;
        let page_bytes = wal.map_or(0, |wal| wal.page_bytes);
        words[3] = flags_of(wal.is_some_and(|wal| wal.big_endian), page_bytes);
        (words[4], words[5]) = (frames, db_pages);
        [words[6], words[7]] = checksum;
        if let Some(wal) = wal {
            let salt = |at: usize| u32::from_ne_bytes(std::array::from_fn(|byte| wal.bytes[at + byte]));
            (words[8], words[9]) = (salt(16), salt(20));
        }
        Self(words).summed()
    }

    /// Returns the words of the header.
    #[must_use]
    pub fn words(&self) -> &[u32; HEADER_WORDS] {
        &self.0
    }

    /// Returns the number of committed frames in the log.
    #[must_use]
    pub fn frames(&self) -> u32 {
        self.0[4]
    }

    /// Returns the size of the database in pages; 0 if nothing was committed since the log started over.
    #[must_use]
    pub fn db_pages(&self) -> u32 {
        self.0[5]
    }

    /// Returns the salt, which changes when the log starts over.
    #[must_use]
    pub fn salt(&self) -> [u32; 2] {
        [self.0[8], self.0[9]]
    }

    /// Returns the same header after a commit. `frames` and `db_pages` are the values after the commit. In place of the
    /// last frame's checksum the new header has zeros, which mean that nobody has computed this checksum.
    #[must_use]
    pub fn after_commit(&self, page_bytes: u32, frames: u32, db_pages: u32) -> Self {
        let mut words = self.0;
        words[2] = words[2].wrapping_add(1);
        words[3] = flags_of(self.flags()[1] != 0, page_bytes);
        (words[4], words[5], words[6], words[7]) = (frames, db_pages, 0, 0);
        Self(words).summed()
    }

    /// Returns the same header for a log that has started over, as SQLite writes it: without frames, and with another
    /// salt.
    #[must_use]
    pub fn started_over(&self, random: u32) -> Self {
        let mut words = self.0;
        words[4] = 0;
        // The salt is stored in big-endian order, as in the WAL's header.
        words[8] = u32::from_be(words[8]).wrapping_add(1).to_be();
        words[9] = random;
        Self(words).summed()
    }

    /// Returns the header of a private wal-index, which only one connection sees. The header says that the log has
    /// `frames` frames, and has this change counter and this salt. The page size and the database size are those of
    /// `self`.
    #[must_use]
    pub fn private(&self, frames: u32, change: u32, salt: [u32; 2]) -> Self {
        let mut words = self.0;
        (words[2], words[4], words[6], words[7]) = (change, frames, 0, 0);
        [words[8], words[9]] = salt;
        Self(words).summed()
    }

    fn flags(&self) -> [u8; 4] {
        self.0[3].to_ne_bytes()
    }

    fn checksum(&self) -> [u32; 2] {
        self.0[..10].chunks_exact(2).fold([0; 2], |[a, b], pair| {
            let a = a.wrapping_add(pair[0]).wrapping_add(b);
            [a, b.wrapping_add(pair[1]).wrapping_add(a)]
        })
    }

    fn summed(mut self) -> Self {
        [self.0[10], self.0[11]] = self.checksum();
        self
    }
}

/// Returns a word with three fields of the header: a flag that says that the header is complete, the byte order of
/// checksums, and the page size.
fn flags_of(big_endian: bool, page_bytes: u32) -> u32 {
    let [low, high] = (((page_bytes & 0xff00) | (page_bytes >> 16)) as u16).to_ne_bytes();
    u32::from_ne_bytes([1, u8::from(big_endian), low, high])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_lie_where_sqlite_puts_them() {
        let place = |frame| Place::of(frame);
        assert_eq!([1, 4062].map(place), [Place { region: 0, before: 0, first_word: 34 }; 2]);
        assert_eq!([4063, 8158].map(place), [Place { region: 1, before: 4062, first_word: 0 }; 2]);
        assert_eq!(place(8159), Place { region: 2, before: 8158, first_word: 0 });
        assert_eq!([1, 2, 8192].map(first_slot), [383, 766, 0]);
    }

    #[test]
    fn a_header_counts_if_its_checksum_is_right() {
        let mut words = [0; HEADER_WORDS];
        words[0] = VERSION;
        words[3] = u32::from_ne_bytes([1, 0, 0, 16]);
        (words[4], words[5]) = (7, 9);
        assert_eq!(IndexHeader::of(words), None);
        let header = IndexHeader(words).summed();
        assert_eq!(IndexHeader::of(*header.words()), Some(header));
        let after = header.after_commit(65_536, 8, 10);
        assert_eq!((after.frames(), after.db_pages(), after.0[2]), (8, 10, 1));
        assert_eq!(after.flags()[2..], 1_u16.to_ne_bytes());
        let over = after.started_over(5);
        assert_eq!((over.frames(), over.db_pages()), (0, 10));
        assert_eq!(over.salt(), [1_u32.to_be(), 5]);
        for header in [after, over, over.private(7, 3, [1, 2])] {
            assert_eq!(IndexHeader::of(*header.words()), Some(header));
        }
    }

    fn made() -> [u8; WAL_INDEX_BYTES] {
        let mut bytes = [0; WAL_INDEX_BYTES];
        let mut set = |at: usize, number: u32| bytes[at..at + 4].copy_from_slice(&number.to_ne_bytes());
        for header in [0, HEADER_BYTES] {
            set(header, VERSION);
            set(header + FRAMES, 7);
            set(header + DB_PAGES, 9);
        }
        set(BACKFILLED, 5);
        for header in [0, HEADER_BYTES] {
            bytes[header + IS_INIT] = 1;
        }
        bytes
    }

    #[test]
    fn an_index_is_read_that_is_whole() {
        assert_eq!(WalIndex::decode(&made()), Some(WalIndex { frames: 7, backfilled: 5, db_pages: 9 }));
        let mut torn = made();
        torn[FRAMES] ^= 1;
        assert_eq!(WalIndex::decode(&torn), None);
        assert_eq!(WalIndex::decode(&[0; WAL_INDEX_BYTES]), None);
        let mut behind = made();
        behind[BACKFILLED..BACKFILLED + 4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(
            WalIndex::decode(&behind).map(|index| index.backfilled),
            Some(7),
            "never more than there are"
        );
    }
}
