//! Extents in use, and the records in them.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use super::{Extent, LENGTH_BITS, MERGED_AT};
use crate::LogId;
use crate::bytes::{put, u32_le, u64_le};

/// The header of an extent that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentHeader {
    /// The page whose records the extent holds.
    pub page_number: u32,
    /// The extent's place in the page's chain. The places in a chain have no gaps.
    pub order: u32,
    /// The transaction that took the extent.
    pub taken_by: u64,
}

impl ExtentHeader {
    /// The header's bytes, without the word at [`MERGED_AT`].
    #[must_use]
    pub fn encode(&self, id: LogId, extent: Extent) -> [u8; MERGED_AT as usize] {
        let mut out = [0; MERGED_AT as usize];
        put(&mut out, 0, &self.page_number.to_le_bytes());
        put(&mut out, 4, &self.order.to_le_bytes());
        put(&mut out, 8, &self.taken_by.to_le_bytes());
        let check = self.check(id, extent);
        put(&mut out, 16, &check.to_le_bytes());
        out
    }

    fn check(&self, id: LogId, extent: Extent) -> u64 {
        let mut hash = Xxh3::with_seed(id.seed());
        hash.update(&self.page_number.to_le_bytes());
        hash.update(&self.order.to_le_bytes());
        hash.update(&self.taken_by.to_le_bytes());
        hash.update(&extent.0.to_le_bytes());
        hash.digest()
    }

    /// Reads a header. `None` if the extent is free, or if the check is wrong.
    #[must_use]
    pub fn decode(bytes: &[u8], id: LogId, extent: Extent) -> Option<Self> {
        let it = Self { page_number: u32_le(bytes, 0), order: u32_le(bytes, 4), taken_by: u64_le(bytes, 8) };
        (it.page_number > 0 && u64_le(bytes, 16) == it.check(id, extent)).then_some(it)
    }
}

/// The first word of a record.
#[must_use]
pub fn record_word(transaction: u64, payload_bytes: u32) -> u64 {
    transaction << LENGTH_BITS | u64::from(payload_bytes)
}

/// The transaction and the payload bytes in the first word of a record. `None` if there is no record.
#[must_use]
pub fn read_record_word(word: u64) -> Option<(u64, u32)> {
    let payload = (word & ((1 << LENGTH_BITS) - 1)) as u32;
    (word != 0).then_some((word >> LENGTH_BITS, payload))
}

/// The checksum of a record.
#[must_use]
pub fn record_check(id: LogId, page_number: u32, word: u64, payload: &[u8]) -> u64 {
    let seed = id.seed() ^ word.rotate_left(17) ^ u64::from(page_number).rotate_left(40);
    xxh3_64_with_seed(payload, seed)
}
