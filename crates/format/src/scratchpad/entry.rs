//! Entries of a transaction of the write-ahead log: changes of pages, and the last entry, which commits the
//! transaction.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::LogId;
use crate::bytes::{array, put, u32_le};
use crate::record::{RECORD_HEADER_BYTES, RecordHeader};
use crate::transaction::{TxHash, TxHeader};

/// Bytes of a cache line. Each entry begins at a multiple of it, and the last entry of a transaction is one line.
pub const ENTRY_BYTES: u64 = 64;
/// Offset of the page's record in a change.
pub const RECORD_AT: u64 = 16;
/// Bytes of a change before its ranges.
pub const CHANGE_HEADER_BYTES: u64 = RECORD_AT + RECORD_HEADER_BYTES as u64;

/// Codes in the first word of an entry.
const CHANGE: u64 = 1;
const COMMITTING: u64 = 0x0f02;
const COMMITTED: u64 = 0xf0c3;

/// The first word of a change of `size` bytes.
#[must_use]
pub fn change_word(size: u32) -> u64 {
    let check = size.wrapping_mul(0x9E37_79B1) >> 16;
    u64::from(size) << 32 | u64::from(check) << 16 | CHANGE
}

/// The size in bytes of the change that begins with this word. `None` if the word begins no change.
#[must_use]
pub fn read_change_word(word: u64) -> Option<u32> {
    let size = (word >> 32) as u32;
    (change_word(size) == word).then_some(size)
}

/// Bytes in the stream of a change whose record has `record_bytes` bytes.
#[must_use]
pub fn entry_bytes(record_bytes: u32) -> u64 {
    (RECORD_AT + u64::from(record_bytes)).next_multiple_of(ENTRY_BYTES)
}

/// The header of a change, with the header of its record. `hash` is the transaction's hash up to and with this record.
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
    /// The line, with the mark of a transaction that is not committed yet.
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

    /// Reads a line, whatever its mark is. `None` if the line is not the last entry of this transaction.
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

/// The first word of the last entry of a transaction that is not committed yet.
#[must_use]
pub fn committing_mark(id: LogId, generation: u64, transaction: u32) -> u64 {
    mark(COMMITTING, id, generation, transaction)
}

/// The first word of the last entry of a committed transaction. Only the store that commits the transaction writes this
/// word.
#[must_use]
pub fn committed_mark(id: LogId, generation: u64, transaction: u32) -> u64 {
    mark(COMMITTED, id, generation, transaction)
}

/// The codes of the two marks differ in more than one bit, so no flipped bit makes one mark the other.
fn mark(code: u64, id: LogId, generation: u64, transaction: u32) -> u64 {
    let mut place = [0; 12];
    put(&mut place, 0, &generation.to_le_bytes());
    put(&mut place, 8, &transaction.to_le_bytes());
    xxh3_64_with_seed(&place, id.seed()) << 16 | code
}
