//! The superblocks of the page file, and the list of pages in its double-write area.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use duralite_format::FormatError;
use duralite_format::bytes::{array, put, u32_le, u64_le};

use super::page::{LARGEST_PAGE, SMALLEST_PAGE};
use super::{Lsn, PageId, TxId};

const STORE_MAGIC: [u8; 8] = *b"DURALSTO";
/// The version of the format. Version 1 had no moved steps (`ObjectKind::Moved`). Version 2 had no bulk loads. Version
/// 3 did not have the field `home` in the superblock.
const STORE_VERSION: u32 = 4;
/// The first version whose superblocks have [`PageFileHead::home`].
const FIRST_WITH_HOME: u32 = 4;
const STORE_CHECKED_BYTES: usize = 88;
const LIST_MAGIC: [u8; 8] = *b"DURALDBW";
/// The size of a superblock in bytes.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// The offsets of the two superblocks.
pub const SLOT_OFFSETS: [u64; 2] = [0, 4096];
/// The number of bytes before the double-write area. It is the same for every page size.
pub const SUPERBLOCK_AREA_BYTES: u64 = 32768;
/// The largest number of pages in one double write.
pub const DOUBLE_WRITE_PAGES: usize = 64;
const LIST_IDS_AT: usize = 32;

/// The superblock of a page file. Of the two superblocks, the valid one with the larger number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageFileHead {
    /// The superblock's number. Each new superblock gets a larger number.
    pub number: u64,
    /// The identity of the store, chosen at random.
    pub store_id: [u8; 16],
    /// The page size in bytes.
    pub page_bytes: u32,
    /// The form of the log: 0 for no log, 1 on blocks, 2 in memory, 3 in memory with a log per thread.
    pub log_kind: u32,
    /// The seed of the log's checksums. It shows whether a log belongs to this store.
    pub log_seed: u64,
    /// The number that the log's first object got.
    pub log_first: u64,
    /// The numbers of all later transactions are larger than this one.
    pub last_tx: TxId,
    /// The number of times that the store has been opened.
    pub opened: u64,
    /// The page file has the changes of all log objects below this number, so the log may begin here. 0 if the number
    /// is not known, because an earlier build has written the superblock.
    pub home: Lsn,
}

impl PageFileHead {
    /// Returns the seed of the pages' checksums.
    #[must_use]
    pub fn seed(&self) -> u64 {
        u64_le(&self.store_id, 0)
    }

    /// Encodes the superblock.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; SUPERBLOCK_BYTES];
        put(&mut out, 0, &STORE_MAGIC);
        put(&mut out, 8, &STORE_VERSION.to_le_bytes());
        put(&mut out, 12, &self.page_bytes.to_le_bytes());
        put(&mut out, 16, &self.store_id);
        put(&mut out, 32, &self.number.to_le_bytes());
        put(&mut out, 40, &self.log_kind.to_le_bytes());
        put(&mut out, 48, &self.log_seed.to_le_bytes());
        put(&mut out, 56, &self.log_first.to_le_bytes());
        put(&mut out, 64, &self.last_tx.to_le_bytes());
        put(&mut out, 72, &self.opened.to_le_bytes());
        put(&mut out, 80, &self.home.to_le_bytes());
        let sum = xxh3_64(&out[..STORE_CHECKED_BYTES]);
        put(&mut out, STORE_CHECKED_BYTES, &sum.to_le_bytes());
        out
    }

    /// Decodes a superblock.
    ///
    /// # Errors
    /// [`FormatError`] if the bytes are not a superblock, are of another version, or are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        if array::<8>(bytes, 0) != Some(STORE_MAGIC) {
            return Err(FormatError::Magic);
        }
        let sum =
            xxh3_64(bytes.get(..STORE_CHECKED_BYTES).ok_or(FormatError::Short { what: "a superblock" })?);
        if sum != u64_le(bytes, STORE_CHECKED_BYTES) {
            return Err(FormatError::Damaged { what: "a superblock of the store" });
        }
        let version = u32_le(bytes, 8);
        if !(1..=STORE_VERSION).contains(&version) {
            return Err(FormatError::Version(version));
        }
        let page_bytes = u32_le(bytes, 12);
        let size = page_bytes as usize;
        if !size.is_power_of_two() || !(SMALLEST_PAGE..=LARGEST_PAGE).contains(&size) {
            return Err(FormatError::Damaged { what: "a superblock of the store" });
        }
        Ok(Self {
            page_bytes,
            store_id: array(bytes, 16).unwrap_or_default(),
            number: u64_le(bytes, 32),
            log_kind: u32_le(bytes, 40),
            log_seed: u64_le(bytes, 48),
            log_first: u64_le(bytes, 56),
            last_tx: u64_le(bytes, 64),
            opened: u64_le(bytes, 72),
            home: if version < FIRST_WITH_HOME { 0 } else { u64_le(bytes, 80) },
        })
    }
}

/// The list of the pages in a double write, in the order in which their images are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchList {
    /// The page numbers; at most [`DOUBLE_WRITE_PAGES`].
    pub pages: Vec<PageId>,
}

impl BatchList {
    /// Encodes the list, in as many bytes as a page has.
    #[must_use]
    pub fn encode(&self, page_bytes: usize, seed: u64) -> Vec<u8> {
        let mut out = vec![0; page_bytes];
        put(&mut out, 0, &LIST_MAGIC);
        put(&mut out, 16, &(self.pages.len() as u64).to_le_bytes());
        for (at, page) in self.pages.iter().take(DOUBLE_WRITE_PAGES).enumerate() {
            put(&mut out, LIST_IDS_AT + at * 8, &page.to_le_bytes());
        }
        let sum = xxh3_64_with_seed(&out[16..], seed);
        put(&mut out, 8, &sum.to_le_bytes());
        out
    }

    /// Decodes a list. Returns `None` if there is no list, or if it is torn. If it is torn, none of its pages has been
    /// written home yet.
    #[must_use]
    pub fn decode(bytes: &[u8], seed: u64) -> Option<Self> {
        let count = u64_le(bytes, 16) as usize;
        let sum = xxh3_64_with_seed(bytes.get(16..)?, seed);
        let valid = array::<8>(bytes, 0) == Some(LIST_MAGIC)
            && u64_le(bytes, 8) == sum
            && count <= DOUBLE_WRITE_PAGES;
        valid.then(|| Self { pages: (0..count).map(|at| u64_le(bytes, LIST_IDS_AT + at * 8)).collect() })
    }
}
