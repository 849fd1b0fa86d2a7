//! The checksum of the LTX format: CRC-64/GO-ISO with the highest bit set. An LTX file states the checksum of
//! its own bytes, and may also state that of the whole database.

use std::io::{self, Read};

use crc::{CRC_64_GO_ISO, Crc, Digest, Table};

use super::layout::lock_page;

/// A bit that is set in every checksum, so that no checksum is 0.
pub const CHECKSUM_FLAG: u64 = 1 << 63;

static CRC: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_GO_ISO);

/// Computes the checksum of the bytes that the caller adds.
pub struct Checksum(Digest<'static, u64, Table<16>>);

impl Checksum {
    pub fn new() -> Self {
        Self(CRC.digest())
    }

    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn value(&self) -> u64 {
        CHECKSUM_FLAG | self.0.clone().finalize()
    }
}

/// The checksum of a whole database, combined from the checksums of its pages. The lock page is left out.
#[derive(Debug, Clone, Copy)]
pub struct DatabaseChecksum(u64);

impl Default for DatabaseChecksum {
    fn default() -> Self {
        Self::new()
    }
}

impl DatabaseChecksum {
    /// Returns the checksum of a database without pages.
    #[must_use]
    pub const fn new() -> Self {
        Self(CHECKSUM_FLAG)
    }

    /// Adds a page.
    pub fn add(&mut self, page: u32, bytes: &[u8]) {
        let mut checksum = Checksum::new();
        checksum.add(&page.to_be_bytes());
        checksum.add(bytes);
        self.0 = CHECKSUM_FLAG | (self.0 ^ checksum.value());
    }

    /// Returns the checksum of the added pages. Their order makes no difference.
    #[must_use]
    pub const fn value(&self) -> u64 {
        self.0
    }
}

/// Returns the checksum of a whole database. An LTX file states this number in its trailer.
///
/// # Errors
///
/// An error of the reader.
pub fn database_checksum(mut database: impl Read, page_size: u32, pages: u32) -> io::Result<u64> {
    let mut bytes = vec![0; page_size as usize];
    let mut checksum = DatabaseChecksum::new();
    for page in 1..=pages {
        database.read_exact(&mut bytes)?;
        if page != lock_page(page_size) {
            checksum.add(page, &bytes);
        }
    }
    Ok(checksum.value())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_of_the_format() {
        let mut checksum = Checksum::new();
        checksum.add(b"12345");
        checksum.add(b"6789");
        assert_eq!(checksum.value(), CHECKSUM_FLAG | 0xb909_56c7_75a4_1001);
    }
}
