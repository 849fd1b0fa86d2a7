//! Layouts of the `scratchpad` engine. The constants follow `docs/format/scratchpad.md`.
//!
//! A log consists of a small file of its own, and of pages in a region. The logs of several databases share a region.

#[cfg(test)]
mod tests;

use std::fmt;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::bytes::{array, put, u16_le, u32_le, u64_le};
pub use crate::generation::{
    ACTIVE_OFFSET, NO_BLOCK, SLOT_BYTES, Slot, active_word, origin_offset, read_active_word, slot_offset,
};
use crate::generation::{halves, of_halves};
use crate::head::{Format, HEAD_BYTES, LogHead};
pub use crate::record::{Base, RECORD_HEADER_BYTES, RecordHeader, TxHash, TxHeader};
use crate::{FormatError, LogId, PATH_LIMIT, head};

/// The first bytes of a log's file.
pub const MAGIC: [u8; 8] = *b"DURALSPM";
/// The format version of logs.
pub const VERSION: u32 = 2;
/// Size of a log's file in bytes.
pub const SUPERBLOCK_BYTES: u64 = 4096;
/// Size of a page of the region in bytes.
pub const PAGE_BYTES: u64 = 4096;
/// The largest number of pages that a region may have.
pub const MOST_PAGES: u32 = 1 << 24;

// The file of a log: the database that it belongs to, the region of its pages, and the words that change.

const FORMAT: Format =
    Format { name: "scratchpad", magic: MAGIC, version: VERSION, superblock_bytes: SUPERBLOCK_BYTES };
/// Offset of the word that is 1 if the region's count of logs (`LOGS_AT`) includes this log, else 0.
pub const COUNTED_OFFSET: u64 = 1616;
/// Offset of the reference: the fields by which the log finds its region.
pub const REFERENCE_OFFSET: u64 = 2048;
/// Size in bytes of the reference without its checksum.
const REFERENCE_BYTES: usize = 8 + PATH_LIMIT;

/// Returns the offset of the link to the first transaction of a generation.
#[must_use]
pub fn first_link_offset(generation: u64) -> u64 {
    1536 + generation % 2 * 8
}

/// The write-once part of a log's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// The fields that tie the log to its database.
    pub head: LogHead,
    /// The region that contains the log's pages.
    pub region: RegionId,
    /// The most pages of the region that the log may use; 0 if only the region limits it.
    pub limit_pages: u32,
    /// The directory that contained the region when the log was made, as bytes of a path; empty if the path is longer
    /// than [`PATH_LIMIT`].
    pub region_dir: Vec<u8>,
}

impl Superblock {
    /// Returns the bytes to store at offset 0, and the bytes to store at [`REFERENCE_OFFSET`].
    #[must_use]
    pub fn encode(&self) -> (Vec<u8>, Vec<u8>) {
        let mut out = vec![0; HEAD_BYTES];
        put(&mut out, 48, &self.region.0);
        self.head.put(&mut out, &FORMAT);
        let mut reference = vec![0; REFERENCE_BYTES + 8];
        let dir = if self.region_dir.len() > PATH_LIMIT { &[] } else { &*self.region_dir };
        put(&mut reference, 0, &self.limit_pages.to_le_bytes());
        put(&mut reference, 4, &(dir.len() as u16).to_le_bytes());
        put(&mut reference, 8, dir);
        let check = xxh3_64_with_seed(&reference[..REFERENCE_BYTES], self.head.log_id.seed());
        put(&mut reference, REFERENCE_BYTES, &check.to_le_bytes());
        (out, reference)
    }

    /// Reads a superblock from the first bytes of a file.
    ///
    /// # Errors
    /// `Magic`, `Short`, `LogVersion` or `Damaged`, in this order of precedence.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let head = LogHead::read(bytes, &FORMAT)?;
        let reference = bytes.get(REFERENCE_OFFSET as usize..).unwrap_or_default();
        let checked = reference.get(..REFERENCE_BYTES).ok_or_else(head::damaged)?;
        let dir_bytes = usize::from(u16_le(checked, 4));
        let sound = xxh3_64_with_seed(checked, head.log_id.seed()) == u64_le(reference, REFERENCE_BYTES);
        let region_dir = checked.get(8..8 + dir_bytes).filter(|_| sound).ok_or_else(head::damaged)?;
        Ok(Self {
            head,
            region: RegionId(array(bytes, 48).unwrap_or_default()),
            limit_pages: u32_le(checked, 0),
            region_dir: region_dir.to_vec(),
        })
    }
}

// The header of a page of the region. The header is one cache line, and says which log owns the page, and where the
// page is in its transaction.

/// Size in bytes of a page's header. The header is one cache line.
pub const HEADER_BYTES: u64 = 64;
/// Number of bytes in a page after its header. These bytes are a part of the stream of the page's transaction.
pub const STREAM_BYTES: u64 = PAGE_BYTES - HEADER_BYTES;
/// Offset in a page's header of the link to the transaction's next page.
pub const LINK_AT: u64 = 32;
/// Offset, in the header of a transaction's first page, of the link to the transaction's last entry. This link holds
/// the number of a cache line, counted from the region's beginning.
pub const LAST_AT: u64 = 40;
/// Offset, in the header of a transaction's first page, of the link to the first page of the next transaction.
pub const FOLLOW_AT: u64 = 48;

/// The number of low bits of an owner's word that hold the process slot.
const SLOT_BITS: u32 = 8;

/// The log that owns a page. The first word of a page in the region names the owner, and the low byte of that word is
/// the slot of the process that took the page. The first word of a free page is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(u64);

impl Owner {
    /// Returns the owner that stands for the log `id`.
    #[must_use]
    pub fn of(id: LogId) -> Self {
        Self(((id.seed() >> SLOT_BITS).max(1)) << SLOT_BITS)
    }

    /// Returns the log that a word names; `None` for a free page.
    #[must_use]
    pub fn in_word(word: u64) -> Option<Self> {
        (word != 0).then_some(Self(word >> SLOT_BITS << SLOT_BITS))
    }

    /// Returns the word that a process with this slot stores in a page to take the page.
    #[must_use]
    pub fn word(self, slot: usize) -> u64 {
        self.0 | (slot as u64 & ((1 << SLOT_BITS) - 1))
    }

    /// Returns the process slot in an owner's word.
    #[must_use]
    pub fn slot_in(word: u64) -> usize {
        (word & ((1 << SLOT_BITS) - 1)) as usize
    }

    /// Returns a number below 2^56 that differs between owners.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0 >> SLOT_BITS
    }
}

/// What a page holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Entries of a transaction of the write-ahead log.
    Redo,
    /// Bytes of a rollback journal.
    Undo,
}

/// The fields of a page's header other than its owner and its links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageHeader {
    /// What the page holds.
    pub kind: Kind,
    /// The generation of the transaction, or the number of the rollback journal.
    pub generation: u64,
    /// The transaction's number in the generation; 0 for a rollback journal.
    pub transaction: u32,
    /// The page's place in its transaction, from 0.
    pub index: u32,
}

impl PageHeader {
    /// Returns the header of the page `page`, without the owner's word, and with zeros for the links.
    #[must_use]
    pub fn encode(&self, id: LogId, page: u32) -> [u8; HEADER_BYTES as usize - 8] {
        let mut out = [0; HEADER_BYTES as usize - 8];
        put(&mut out, 0, &self.generation.to_le_bytes());
        put(&mut out, 8, &self.transaction.to_le_bytes());
        put(&mut out, 12, &self.index.to_le_bytes());
        let kind: u32 = match self.kind {
            Kind::Redo => 1,
            Kind::Undo => 2,
        };
        put(&mut out, 16, &kind.to_le_bytes());
        let check = check_of(&out[..20], id, page);
        put(&mut out, 20, &check.to_le_bytes());
        out
    }

    /// Reads the header of page `page` of this log. Also returns the tag of the header's links. Returns `None` if the
    /// bytes are not such a header.
    #[must_use]
    pub fn decode(bytes: &[u8; HEADER_BYTES as usize], id: LogId, page: u32) -> Option<(Self, u32)> {
        let kind = match u32_le(bytes, 24) {
            1 => Kind::Redo,
            2 => Kind::Undo,
            _ => return None,
        };
        let tag = u32_le(bytes, 28);
        let it = Self {
            kind,
            generation: u64_le(bytes, 8),
            transaction: u32_le(bytes, 16),
            index: u32_le(bytes, 20),
        };
        (tag == check_of(&bytes[8..28], id, page)).then_some((it, tag))
    }

    /// Returns the tag of the links in this header.
    #[must_use]
    pub fn tag(&self, id: LogId, page: u32) -> u32 {
        u32_le(&self.encode(id, page), 20)
    }
}

fn check_of(bytes: &[u8], id: LogId, page: u32) -> u32 {
    xxh3_64_with_seed(bytes, id.seed() ^ u64::from(page).rotate_left(32)) as u32
}

/// Returns the tag of the link to the first transaction of a generation.
#[must_use]
pub fn first_link_tag(id: LogId, generation: u64) -> u32 {
    xxh3_64_with_seed(&generation.to_le_bytes(), id.seed()) as u32
}

/// Returns the word that links to `target`, the number of a page or of a cache line. The word is never 0.
#[must_use]
pub fn link_word(target: u32, tag: u32) -> u64 {
    u64::from(target)
        | u64::from(xxh3_64(&(u64::from(target) << 32 | u64::from(tag)).to_le_bytes()) as u32) << 32
}

/// Reads a [`link_word`]. Returns `None` if the word is 0, was made with another tag, or leads to a target outside
/// `1..targets`.
#[must_use]
pub fn read_link(word: u64, tag: u32, targets: u32) -> Option<u32> {
    let target = word as u32;
    (target != 0 && target < targets && word == link_word(target, tag)).then_some(target)
}

const _: () = assert!((MOST_PAGES as u64) * (PAGE_BYTES / HEADER_BYTES) <= u32::MAX as u64);

// Entries of a transaction of the write-ahead log: changes of pages, and the last entry, which commits the
// transaction.

/// Size of a cache line in bytes. Each entry begins at a multiple of this, and the last entry of a transaction is one
/// line.
pub const ENTRY_BYTES: u64 = 64;
/// Offset of the page's record in a change.
pub const RECORD_AT: u64 = 16;
/// Size in bytes of what precedes the ranges in a change: the change's own words, and the header of the record.
pub const CHANGE_HEADER_BYTES: u64 = RECORD_AT + RECORD_HEADER_BYTES as u64;

/// Codes in the first word of an entry.
const CHANGE: u64 = 1;
const COMMITTING: u64 = 0x0f02;
const COMMITTED: u64 = 0xf0c3;

/// Returns the first word of a change of `size` bytes.
#[must_use]
pub fn change_word(size: u32) -> u64 {
    let check = size.wrapping_mul(0x9E37_79B1) >> 16;
    u64::from(size) << 32 | u64::from(check) << 16 | CHANGE
}

/// Returns the size in bytes of the change that begins with this word; `None` if the word begins no change.
#[must_use]
pub fn read_change_word(word: u64) -> Option<u32> {
    let size = (word >> 32) as u32;
    (change_word(size) == word).then_some(size)
}

/// Returns how many bytes a change takes in the transaction's stream if the change's record has `record_bytes` bytes.
#[must_use]
pub fn entry_bytes(record_bytes: u32) -> u64 {
    (RECORD_AT + u64::from(record_bytes)).next_multiple_of(ENTRY_BYTES)
}

/// Returns the header of a change, with the header of its record. `hash` is the transaction's hash including this
/// record.
#[must_use]
pub fn change_header(
    transaction: u32,
    record: &RecordHeader,
    hash: TxHash,
) -> [u8; CHANGE_HEADER_BYTES as usize] {
    let mut out = [0; CHANGE_HEADER_BYTES as usize];
    let size = RECORD_AT as u32 + record.record_bytes;
    put(&mut out, 0, &change_word(size).to_le_bytes());
    put(&mut out, 8, &transaction.to_le_bytes());
    put(&mut out, 12, &hash.short().to_le_bytes());
    put(&mut out, RECORD_AT as usize, &record.encode());
    out
}

/// The last entry of a transaction: one cache line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitEntry {
    /// Hash, time, last frame and size of the transaction.
    pub header: TxHeader,
    /// The generation.
    pub generation: u64,
    /// The transaction's number in the generation.
    pub transaction: u32,
    /// Number of the region's pages that the transaction uses.
    pub pages: u32,
}

impl CommitEntry {
    /// Returns the bytes of the entry, with the mark of a transaction that is not committed yet.
    #[must_use]
    pub fn encode(&self, id: LogId) -> [u8; ENTRY_BYTES as usize] {
        let mut out = [0; ENTRY_BYTES as usize];
        put(&mut out, 0, &self.header.encode(committing_mark(id, self.generation, self.transaction)));
        put(&mut out, 40, &self.generation.to_le_bytes());
        put(&mut out, 48, &self.transaction.to_le_bytes());
        put(&mut out, 52, &self.pages.to_le_bytes());
        let check = xxh3_64_with_seed(&out[8..56], id.seed());
        put(&mut out, 56, &check.to_le_bytes());
        out
    }

    /// Reads a cache line, which may have either mark. Returns `None` if it is not the last entry of this transaction.
    #[must_use]
    pub fn decode(
        bytes: &[u8; ENTRY_BYTES as usize],
        id: LogId,
        generation: u64,
        transaction: u32,
    ) -> Option<Self> {
        let header = TxHeader::decode(&array(bytes, 0)?);
        let pages = u32_le(bytes, 52);
        let it = Self { header, generation, transaction, pages };
        (it.encode(id)[8..] == bytes[8..]).then_some(it)
    }
}

/// Returns the first word of the last entry of a transaction that is not committed yet.
#[must_use]
pub fn committing_mark(id: LogId, generation: u64, transaction: u32) -> u64 {
    mark(COMMITTING, id, generation, transaction)
}

/// Returns the first word of the last entry of a committed transaction. A writer commits the transaction by storing
/// this word.
#[must_use]
pub fn committed_mark(id: LogId, generation: u64, transaction: u32) -> u64 {
    mark(COMMITTED, id, generation, transaction)
}

/// Returns the mark with this code. The codes of the two marks differ in more than one bit, so no single flipped bit
/// turns one mark into the other.
fn mark(code: u64, id: LogId, generation: u64, transaction: u32) -> u64 {
    let mut place = [0; 12];
    put(&mut place, 0, &generation.to_le_bytes());
    put(&mut place, 8, &transaction.to_le_bytes());
    xxh3_64_with_seed(&place, id.seed()) << 16 | code
}

// The first page of a region.

/// The first bytes of a region.
pub const REGION_MAGIC: [u8; 8] = *b"DURALREG";
/// The format version of regions.
pub const REGION_VERSION: u32 = 1;
/// The number of bytes of a region's superblock that a process writes only once.
pub const REGION_SUPERBLOCK_BYTES: usize = 48;
/// Offset of the count of pages in use. The count may be wrong, and serves only as a hint.
pub const USED_AT: u64 = 128;
/// Offset of the count of the logs in the region. The count is never too low. It is too high if something other than
/// this library deleted a log.
pub const LOGS_AT: u64 = 136;

const WHAT: &str = "the superblock of a region";

/// The identity of a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RegionId(pub [u8; 16]);

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionId({self})")
    }
}

/// The write-once fields of a region's superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionSuperblock {
    /// The region's identity.
    pub id: RegionId,
    /// The largest number of pages that the region may have, its first page included.
    pub limit_pages: u32,
}

impl RegionSuperblock {
    /// Returns the superblock of a region that may have `bytes` bytes, but at least 16 pages.
    #[must_use]
    pub fn for_bytes(id: RegionId, bytes: u64) -> Self {
        let pages = u32::try_from(bytes / PAGE_BYTES).unwrap_or(u32::MAX).clamp(16, MOST_PAGES);
        Self { id, limit_pages: pages }
    }

    /// Returns the largest number of bytes that the region may have.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        u64::from(self.limit_pages) * PAGE_BYTES
    }

    /// Returns the bytes to store at offset 0.
    #[must_use]
    pub fn encode(&self) -> [u8; REGION_SUPERBLOCK_BYTES] {
        let mut out = [0; REGION_SUPERBLOCK_BYTES];
        put(&mut out, 0, &REGION_MAGIC);
        put(&mut out, 8, &REGION_VERSION.to_le_bytes());
        put(&mut out, 12, &self.limit_pages.to_le_bytes());
        put(&mut out, 16, &self.id.0);
        let check = xxh3_64(&out[..40]);
        put(&mut out, 40, &check.to_le_bytes());
        out
    }

    /// Reads a superblock.
    ///
    /// # Errors
    /// `Magic`, `Short`, `Version` or `Damaged`, in this order of precedence.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        if array::<8>(bytes, 0) != Some(REGION_MAGIC) {
            return Err(FormatError::Magic);
        }
        if bytes.len() < REGION_SUPERBLOCK_BYTES {
            return Err(FormatError::Short { what: WHAT });
        }
        let version = u32_le(bytes, 8);
        if version != REGION_VERSION {
            return Err(FormatError::Version(version));
        }
        let it = Self { id: RegionId(array(bytes, 16).unwrap_or_default()), limit_pages: u32_le(bytes, 12) };
        let sound = xxh3_64(&bytes[..40]) == u64_le(bytes, 40) && (2..=MOST_PAGES).contains(&it.limit_pages);
        if sound { Ok(it) } else { Err(FormatError::Damaged { what: WHAT }) }
    }
}

// The words in a log's file that say where a rollback journal begins, and how long it is.

/// Offset of the word that names the journal's first page.
pub const JOURNAL_CHAIN_OFFSET: u64 = 1600;
/// Offset of the word that says whether a journal exists, and how long it is. This word and the word before it are in
/// the same cache line.
pub const JOURNAL_STATE_OFFSET: u64 = 1608;
/// Offset of the word that counts how often the journal has been changed, in the same cache line as the two words
/// before it. The word is odd while a change is in progress: from the change's first store until the whole change is
/// durable.
pub const JOURNAL_CHANGES_OFFSET: u64 = 1624;
/// Every journal has fewer bytes than this.
pub const JOURNAL_LIMIT: u64 = 1 << 47;

const DAMAGED: FormatError = FormatError::Damaged { what: "the state of the rollback journal" };

/// The chain of pages of a rollback journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UndoChain {
    /// The first page of the chain.
    pub first: u32,
    /// Low half of the journal's number. The headers of the journal's pages hold the whole number.
    pub number: u32,
}

impl UndoChain {
    /// Returns the word that stores the chain.
    #[must_use]
    pub fn word(self) -> u64 {
        of_halves(self.first, self.number)
    }

    /// Reads the word that stores the chain.
    #[must_use]
    pub fn read(word: u64) -> Self {
        let [first, number] = halves(word);
        Self { first, number }
    }
}

/// Whether a rollback journal exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UndoState {
    /// No journal exists.
    Gone,
    /// A journal of this many bytes exists.
    Bytes(u64),
}

impl UndoState {
    /// Returns the word that stores this state of the journal in `chain`.
    #[must_use]
    pub fn word(self, id: LogId, chain: UndoChain) -> u64 {
        match self {
            Self::Gone => 0,
            Self::Bytes(bytes) => {
                (bytes % JOURNAL_LIMIT) << 16 | u64::from(check_of_length(bytes, id, chain))
            }
        }
    }

    /// Reads the word that stores the state of the journal in `chain`.
    ///
    /// # Errors
    /// `Damaged` if the word does not belong to this chain.
    pub fn read(word: u64, id: LogId, chain: UndoChain) -> Result<Self, FormatError> {
        if word == 0 {
            return Ok(Self::Gone);
        }
        let it = Self::Bytes(word >> 16);
        let sound = word >> 16 < JOURNAL_LIMIT && it.word(id, chain) == word;
        if sound && (1..MOST_PAGES).contains(&chain.first) { Ok(it) } else { Err(DAMAGED) }
    }
}

/// Returns the check to store in the word that says how long a journal is. The check is never 0, so the word of a
/// journal that exists is never 0 either.
fn check_of_length(bytes: u64, id: LogId, chain: UndoChain) -> u16 {
    xxh3_64_with_seed(&bytes.to_le_bytes(), id.seed() ^ chain.word()) as u16 | 1
}
