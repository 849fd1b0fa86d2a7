//! The format of SQLite's own write-ahead log (sqlite.org/fileformat2.html, section 4): the 32-byte header, the 24-byte
//! frame header and the cumulative checksum. Duralite needs them because SQLite reads the log as a file of this format.

use crate::FormatError;
use crate::bytes::{put, u32_be};

/// Size of the WAL header in bytes.
pub const WAL_HEADER_BYTES: usize = 32;
/// Size of a frame header in bytes.
pub const FRAME_HEADER_BYTES: usize = 24;

const MAGIC_LITTLE: u32 = 0x377f_0682;
const MAGIC_BIG: u32 = 0x377f_0683;

/// The two running sums of SQLite's WAL checksum.
pub type Checksum = [u32; 2];

/// The header of a WAL, as SQLite wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalHeader {
    /// The header's bytes.
    pub bytes: [u8; WAL_HEADER_BYTES],
    /// Page size in bytes.
    pub page_bytes: u32,
    /// Whether checksums read the data as big-endian words.
    pub big_endian: bool,
    /// Checksum of the header. The cumulative checksum of the frames starts from it.
    pub checksum: Checksum,
}

impl WalHeader {
    /// Reads a header.
    ///
    /// # Errors
    /// `Damaged` if the magic number, the page size or the checksum is wrong.
    pub fn parse(bytes: &[u8; WAL_HEADER_BYTES]) -> Result<Self, FormatError> {
        let damaged = FormatError::Damaged { what: "the SQLite WAL header" };
        let big_endian = match u32_be(bytes, 0) {
            MAGIC_LITTLE => false,
            MAGIC_BIG => true,
            _ => return Err(damaged),
        };
        let page_bytes = u32_be(bytes, 8);
        let checksum = [u32_be(bytes, 24), u32_be(bytes, 28)];
        if !crate::guard::page_size_is_valid(page_bytes)
            || checksum_of(big_endian, [0, 0], &bytes[..24]) != checksum
        {
            return Err(damaged);
        }
        Ok(Self { bytes: *bytes, page_bytes, big_endian, checksum })
    }

    /// Returns the bytes of one frame: header and page.
    #[must_use]
    pub fn frame_bytes(&self) -> u64 {
        FRAME_HEADER_BYTES as u64 + u64::from(self.page_bytes)
    }

    /// Returns the cumulative checksum after a frame. `before` is the checksum before that frame.
    #[must_use]
    pub fn extend(&self, before: Checksum, page_number: u32, db_pages: u32, page: &[u8]) -> Checksum {
        let mut head = [0; 8];
        put(&mut head, 0, &page_number.to_be_bytes());
        put(&mut head, 4, &db_pages.to_be_bytes());
        checksum_of(self.big_endian, checksum_of(self.big_endian, before, &head), page)
    }

    /// Returns the header bytes of a frame of this log.
    #[must_use]
    pub fn frame_header(&self, page_number: u32, db_pages: u32, sum: Checksum) -> [u8; FRAME_HEADER_BYTES] {
        let mut header = [0; FRAME_HEADER_BYTES];
        put(&mut header, 0, &page_number.to_be_bytes());
        put(&mut header, 4, &db_pages.to_be_bytes());
        put(&mut header, 8, &self.bytes[16..24]);
        put(&mut header, 16, &sum[0].to_be_bytes());
        put(&mut header, 20, &sum[1].to_be_bytes());
        header
    }
}

/// The fields of a frame header that Duralite uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Database page in the frame.
    pub page_number: u32,
    /// For a commit frame the database size in pages after the commit, else 0.
    pub db_pages: u32,
    /// Cumulative checksum after the frame.
    pub checksum: Checksum,
}

impl FrameHeader {
    /// Reads a frame header. Every sequence of bytes can be read as a frame header, so this cannot fail.
    #[must_use]
    pub fn parse(bytes: &[u8; FRAME_HEADER_BYTES]) -> Self {
        Self {
            page_number: u32_be(bytes, 0),
            db_pages: u32_be(bytes, 4),
            checksum: [u32_be(bytes, 16), u32_be(bytes, 20)],
        }
    }
}

fn checksum_of(big_endian: bool, start: Checksum, data: &[u8]) -> Checksum {
    let [mut a, mut b] = start;
    for pair in data.chunks_exact(8) {
        let word = |i: usize| {
            let bytes = [pair[i], pair[i + 1], pair[i + 2], pair[i + 3]];
            if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
        };
        a = a.wrapping_add(word(0)).wrapping_add(b);
        b = b.wrapping_add(word(4)).wrapping_add(a);
    }
    [a, b]
}

/// Makes a WAL header as SQLite would write it. Tests, tools and benchmarks that use an engine without SQLite call
/// this function.
#[must_use]
pub fn make_wal_header(page_bytes: u32, sequence: u32, salt: [u32; 2]) -> [u8; WAL_HEADER_BYTES] {
    let mut bytes = [0; WAL_HEADER_BYTES];
    for (i, field) in [MAGIC_LITTLE, 3_007_000, page_bytes, sequence, salt[0], salt[1]].iter().enumerate() {
        put(&mut bytes, i * 4, &field.to_be_bytes());
    }
    let sum = checksum_of(false, [0, 0], &bytes[..24]);
    put(&mut bytes, 24, &sum[0].to_be_bytes());
    put(&mut bytes, 28, &sum[1].to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trips_and_any_flipped_bit_is_refused() {
        let bytes = make_wal_header(4096, 7, [1, 2]);
        let header = WalHeader::parse(&bytes).unwrap();
        assert_eq!((header.page_bytes, header.frame_bytes()), (4096, 4120));
        for at in 0..WAL_HEADER_BYTES {
            for bit in 0..8 {
                let mut bad = bytes;
                bad[at] ^= 1 << bit;
                assert!(WalHeader::parse(&bad).is_err(), "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn frame_header_round_trips() {
        let header = WalHeader::parse(&make_wal_header(512, 0, [3, 4])).unwrap();
        let sum = header.extend(header.checksum, 9, 10, &[5; 512]);
        let frame = header.frame_header(9, 10, sum);
        assert_eq!(FrameHeader::parse(&frame), FrameHeader { page_number: 9, db_pages: 10, checksum: sum });
        assert_eq!(frame[8..16], header.bytes[16..24]);
    }
}
