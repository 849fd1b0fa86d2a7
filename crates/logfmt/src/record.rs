//! The header of a logged page difference, the same in every log that keeps them.

use crate::FormatError;
use crate::bytes::{put, u16_le, u32_le};

/// Bytes of a record header.
pub const RECORD_HEADER_BYTES: u32 = 16;

/// Most bytes of a record of pages of this size, with room to spare: ranges that are too close to be
/// worth two headers are one.
#[must_use]
pub fn largest_record(page_bytes: u32) -> u32 {
    RECORD_HEADER_BYTES + 2 * page_bytes
}

/// Whether a record continues its page's chain or begins it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// The ranges apply to the image after the page's previous record.
    Previous,
    /// The ranges apply to a page of zeros.
    Zeros,
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
    /// Number of ranges.
    pub ranges: u16,
    /// What the ranges apply to.
    pub base: Base,
}

impl RecordHeader {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_HEADER_BYTES as usize] {
        let mut out = [0; RECORD_HEADER_BYTES as usize];
        put(&mut out, 0, &self.record_bytes.to_le_bytes());
        put(&mut out, 4, &self.frame.to_le_bytes());
        put(&mut out, 8, &self.page_number.to_le_bytes());
        put(&mut out, 12, &self.ranges.to_le_bytes());
        put(&mut out, 14, &[u8::from(self.base == Base::Zeros), 0]);
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
                _ => return Err(damaged),
            },
        };
        let sound = record.record_bytes >= RECORD_HEADER_BYTES && record.frame > 0 && record.page_number > 0;
        if sound { Ok(record) } else { Err(damaged) }
    }
}
