//! The first page of a region.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

use super::{MOST_PAGES, PAGE_BYTES};
use crate::FormatError;
use crate::bytes::{array, put, u32_le, u64_le};

/// First bytes of a region.
pub const REGION_MAGIC: [u8; 8] = *b"DURALREG";
/// The format version of regions.
pub const REGION_VERSION: u32 = 1;
/// Bytes of a region's superblock that are written once.
pub const REGION_SUPERBLOCK_BYTES: usize = 48;
/// Offset of the count of pages in use. The count is a hint only.
pub const USED_AT: u64 = 128;
/// Offset of the count of the logs in the region. The count is never too low; it is too high if something other than
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
    /// The superblock of a region that may have `bytes` bytes, but at least 16 pages.
    #[must_use]
    pub fn for_bytes(id: RegionId, bytes: u64) -> Self {
        let pages = u32::try_from(bytes / PAGE_BYTES).unwrap_or(u32::MAX).clamp(16, MOST_PAGES);
        Self { id, limit_pages: pages }
    }

    /// The largest number of bytes that the region may have.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        u64::from(self.limit_pages) * PAGE_BYTES
    }

    /// The bytes to store at offset 0.
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
