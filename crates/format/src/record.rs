//! A record of a change of one page: the record's header, and how to apply its payload to the page. All engines whose
//! logs have such records share this code.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::bytes::{put, u16_le, u32_le, u64_le};
use crate::generation::above;
use crate::sqlite_wal::Checksum;
use crate::{FormatError, LogId, diff, page_change};

/// Size of a record header in bytes.
pub const RECORD_HEADER_BYTES: u32 = 16;

/// Returns an upper bound on the size of a record in bytes, for pages of this size. The true maximum is lower, because
/// the encoder stores two ranges as one if they are closer together than a range header is long.
#[must_use]
pub fn largest_record(page_bytes: u32) -> u32 {
    RECORD_HEADER_BYTES + 2 * page_bytes
}

/// The image to which a record's payload applies, and the payload's form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// The payload is ranges. They are applied to the page as it is after the page's previous record.
    Previous,
    /// The payload is ranges. They are applied to a page of zeros, and the record is the first in the page's chain.
    Zeros,
    /// The payload is a [`page_change`]. It is applied to the page as it is after the page's previous record.
    Change,
}

/// A record header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// Header and payload in bytes.
    pub record_bytes: u32,
    /// WAL frame number.
    pub frame: u32,
    /// Database page number.
    pub page_number: u32,
    /// Number of ranges; 0 with [`Base::Change`].
    pub ranges: u16,
    /// The form of the payload, and the image to which it applies.
    pub base: Base,
}

impl RecordHeader {
    /// Returns the header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_HEADER_BYTES as usize] {
        let mut out = [0; RECORD_HEADER_BYTES as usize];
        put(&mut out, 0, &self.record_bytes.to_le_bytes());
        put(&mut out, 4, &self.frame.to_le_bytes());
        put(&mut out, 8, &self.page_number.to_le_bytes());
        put(&mut out, 12, &self.ranges.to_le_bytes());
        let base: u16 = match self.base {
            Base::Previous => 0,
            Base::Zeros => 1,
            Base::Change => 2,
        };
        put(&mut out, 14, &base.to_le_bytes());
        out
    }

    /// Reads a header.
    ///
    /// # Errors
    /// `Damaged` when a field is out of its range.
    pub fn decode(bytes: &[u8; RECORD_HEADER_BYTES as usize]) -> Result<Self, FormatError> {
        let damaged = FormatError::Damaged { what: "a log record" };
        let record = Self {
            record_bytes: u32_le(bytes, 0),
            frame: u32_le(bytes, 4),
            page_number: u32_le(bytes, 8),
            ranges: u16_le(bytes, 12),
            base: match u16_le(bytes, 14) {
                0 => Base::Previous,
                1 => Base::Zeros,
                2 if u16_le(bytes, 12) == 0 => Base::Change,
                _ => return Err(damaged),
            },
        };
        let sound = record.record_bytes >= RECORD_HEADER_BYTES && record.frame > 0 && record.page_number > 0;
        if sound { Ok(record) } else { Err(damaged) }
    }

    /// Applies the record's payload to `page`. Before the call, `page` must hold what `base` requires: the page as it
    /// is after its previous record, or zeros.
    ///
    /// # Errors
    /// `Damaged` or `Short` if the payload contradicts itself or the page. Part of the payload may then have been
    /// applied.
    pub fn apply(&self, page: &mut [u8], payload: &[u8]) -> Result<(), FormatError> {
        match self.base {
            Base::Previous | Base::Zeros => diff::apply(page, self.ranges, payload),
            Base::Change => page_change::apply(page, payload),
        }
    }
}

// The header of a transaction, and the hash over its records. All logs that keep records of page changes share this
// code.

/// Hashes and commit marks contain this many low bits of the generation. [`above`] mixes the higher bits in.
pub(crate) const MARK_GENERATION_BITS: u32 = 30;

/// Size of a transaction header in bytes.
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
    /// Returns the header's bytes, with the given commit mark.
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

    /// Reads a header, but does not check it. The caller must have checked the mark already, and must check the hash
    /// after it has read the records. The number of the transaction's first frame is in the first record.
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

    /// Returns the hash of the whole transaction: the hash over the records, continued over the header's own fields.
    #[must_use]
    pub fn seal_hash(&self, records: TxHash) -> u64 {
        xxh3_64_with_seed(&self.encode(0)[16..], records.0)
    }
}

/// The running hash over a transaction's records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxHash(pub(crate) u64);

impl TxHash {
    /// Returns the hash before the first record. The hash ties the transaction to its log, its generation and its
    /// number in the generation.
    #[must_use]
    pub fn new(id: LogId, generation: u64, sequence: u32) -> Self {
        let above = above(generation, MARK_GENERATION_BITS);
        Self(id.seed() ^ (generation << 32 | u64::from(sequence)) ^ above)
    }

    /// Returns the hash after a record.
    #[must_use]
    pub fn record(self, header: &[u8], payload: &[u8]) -> Self {
        Self(xxh3_64_with_seed(payload, xxh3_64_with_seed(header, self.0)))
    }

    /// Returns the hash folded into 32 bits. `scratchpad` stores this value in each change of a transaction.
    #[must_use]
    pub fn short(self) -> u32 {
        (self.0 ^ self.0 >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_payload_is_stands_in_the_header() {
        let of = |ranges, base| RecordHeader { record_bytes: 20, frame: 1, page_number: 2, ranges, base };
        for (ranges, base, bytes) in [
            (1, Base::Previous, [1, 0, 0, 0]),
            (1, Base::Zeros, [1, 0, 1, 0]),
            (0, Base::Change, [0, 0, 2, 0]),
        ] {
            let header = of(ranges, base);
            assert_eq!(header.encode()[12..], bytes);
            assert_eq!(RecordHeader::decode(&header.encode()), Ok(header));
        }
        assert!(RecordHeader::decode(&of(1, Base::Change).encode()).is_err(), "a change has no ranges");
        let mut unknown = of(0, Base::Change).encode();
        unknown[14] = 3;
        assert!(RecordHeader::decode(&unknown).is_err());
    }

    #[test]
    fn a_payload_is_laid_over_the_page_as_its_header_says() {
        let mut page = [9; 512];
        let of = |ranges, base| RecordHeader { record_bytes: 20, frame: 1, page_number: 2, ranges, base };
        assert_eq!(of(1, Base::Previous).apply(&mut page, &[4, 0, 0, 0, 7]), Ok(()));
        assert_eq!(page[3..6], [9, 7, 9]);
        // Move two bytes from 4 to 10, then apply a range.
        assert_eq!(of(0, Base::Change).apply(&mut page, &[2, 1, 10, 4, 1, 20, 0, 8]), Ok(()));
        assert_eq!((page[10..12].to_vec(), page[20]), (vec![7, 9], 8));
        assert!(of(0, Base::Change).apply(&mut page, &[4, 0, 0, 0, 7, 7, 7, 7]).is_err());
        assert!(of(2, Base::Previous).apply(&mut page, &[4, 0, 0, 0, 7]).is_err());
    }
}
