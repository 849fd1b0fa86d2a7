//! The header of a transaction, and the hash over its records. All logs that keep records of page changes share this
//! code.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::LogId;
use crate::bytes::{put, u32_le, u64_le};
use crate::generation::above;
use crate::sqlite_wal::Checksum;

/// Bits of the generation for which hashes and commit marks have room. Higher bits are mixed in by [`above`].
pub(crate) const MARK_GENERATION_BITS: u32 = 30;

/// Bytes of a transaction header.
pub const TX_HEADER_BYTES: u32 = 40;

/// A transaction header without its commit mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxHeader {
    /// Hash over the rest of the header and the records.
    pub hash: u64,
    /// Milliseconds since the previous transaction was sealed, or since the generation began.
    pub elapsed_ms: u32,
    /// Frame number of the commit frame.
    pub last_frame: u32,
    /// Database size in pages after the commit.
    pub db_pages: u32,
    /// Number of records.
    pub records: u32,
    /// SQLite's cumulative checksum after the commit frame.
    pub wal_checksum: Checksum,
}

impl TxHeader {
    /// The header's bytes, with the given commit mark.
    #[must_use]
    pub fn encode(&self, mark: u64) -> [u8; TX_HEADER_BYTES as usize] {
        let mut out = [0; TX_HEADER_BYTES as usize];
        put(&mut out, 0, &mark.to_le_bytes());
        put(&mut out, 8, &self.hash.to_le_bytes());
        let fields = [self.elapsed_ms, self.last_frame, self.db_pages, self.records];
        for (i, field) in fields.iter().chain(&self.wal_checksum).enumerate() {
            put(&mut out, 16 + 4 * i, &field.to_le_bytes());
        }
        out
    }

    /// Reads a header. The caller checks the mark before, and the hash after it has read the records. The first record
    /// says which frame is the transaction's first.
    #[must_use]
    pub fn decode(bytes: &[u8; TX_HEADER_BYTES as usize]) -> Self {
        Self {
            hash: u64_le(bytes, 8),
            elapsed_ms: u32_le(bytes, 16),
            last_frame: u32_le(bytes, 20),
            db_pages: u32_le(bytes, 24),
            records: u32_le(bytes, 28),
            wal_checksum: [u32_le(bytes, 32), u32_le(bytes, 36)],
        }
    }

    /// The hash of the whole transaction: the hash over the records, continued over the header's own fields.
    #[must_use]
    pub fn seal_hash(&self, records: TxHash) -> u64 {
        xxh3_64_with_seed(&self.encode(0)[16..], records.0)
    }
}

/// The running hash over a transaction's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxHash(pub(crate) u64);

impl TxHash {
    /// The hash before the first record. It ties the transaction to its log, its generation and its place there.
    #[must_use]
    pub fn new(id: LogId, generation: u64, sequence: u32) -> Self {
        let above = above(generation, MARK_GENERATION_BITS);
        Self(id.seed() ^ (generation << 32 | u64::from(sequence)) ^ above)
    }

    /// The hash after a record.
    #[must_use]
    pub fn record(self, header: &[u8], payload: &[u8]) -> Self {
        Self(xxh3_64_with_seed(payload, xxh3_64_with_seed(header, self.0)))
    }

    /// A short form of the hash, for each change that a transaction of `scratchpad` stores.
    #[must_use]
    pub fn short(self) -> u32 {
        (self.0 ^ self.0 >> 32) as u32
    }
}
