//! Slots for the images of pages that are being merged.

use xxhash_rust::xxh3::Xxh3;

use crate::LogId;
use crate::bytes::{array, put, u32_le, u64_le};

/// The header of a slot with the image of a page that is being merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotHeader {
    /// The page.
    pub page_number: u32,
    /// The transaction up to which the image has all changes.
    pub transaction: u64,
}

impl SlotHeader {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self, id: LogId, image: &[u8]) -> [u8; 24] {
        let mut out = [0; 24];
        put(&mut out, 0, &self.page_number.to_le_bytes());
        put(&mut out, 8, &self.transaction.to_le_bytes());
        let check = self.check(id, image);
        put(&mut out, 16, &check.to_le_bytes());
        out
    }

    fn check(&self, id: LogId, image: &[u8]) -> u64 {
        let mut hash = Xxh3::with_seed(id.seed());
        hash.update(&self.page_number.to_le_bytes());
        hash.update(&self.transaction.to_le_bytes());
        hash.update(image);
        hash.digest()
    }

    /// Reads the header of a slot with this image. `None` if the slot is free or torn.
    #[must_use]
    pub fn decode(bytes: &[u8], id: LogId, image: &[u8]) -> Option<Self> {
        let it = Self { page_number: u32_le(bytes, 0), transaction: u64_le(bytes, 8) };
        (it.page_number > 0 && u64_le(bytes, 16) == it.check(id, image)).then_some(it)
    }

    /// The page in a slot, from the first bytes of the slot's header; 0 if the slot is free.
    #[must_use]
    pub fn page_of(bytes: &[u8]) -> u32 {
        array(bytes, 0).map_or(0, u32::from_le_bytes)
    }
}
