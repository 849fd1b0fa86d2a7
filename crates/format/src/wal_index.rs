//! The state of a log in SQLite's wal-index, in the byte order of the machine. The version is 3007000, which all SQLite
//! versions since 3.7 write.

/// Bytes at the beginning of the wal-index that [`WalIndex::decode`] needs.
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
    /// Committed frames in the log.
    pub frames: u32,
    /// How many of the frames, from the first one on, a checkpoint has written to the database.
    pub backfilled: u32,
    /// Size of the database in pages.
    pub db_pages: u32,
}

impl WalIndex {
    /// Reads the wal-index. `None` if no connection has made one, or if its two headers differ because a connection is
    /// writing it.
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

#[cfg(test)]
mod tests {
    use super::*;

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
