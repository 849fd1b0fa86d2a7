//! The file of a log: the database that it belongs to, the region of its pages, and the words that change.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{MAGIC, RegionId, SUPERBLOCK_BYTES, VERSION};
use crate::bytes::{array, put, u16_le, u32_le, u64_le};
use crate::head::{self, Format, HEAD_BYTES, LogHead};
use crate::{FormatError, PATH_LIMIT};

const FORMAT: Format =
    Format { name: "scratchpad", magic: MAGIC, version: VERSION, superblock_bytes: SUPERBLOCK_BYTES };
/// Offset of the word that says whether the region's count of logs ([`LOGS_AT`](super::LOGS_AT)) includes this log: 1
/// if so, else 0.
pub const COUNTED_OFFSET: u64 = 1616;
/// Offset of the reference: the fields by which the log finds its region.
pub const REFERENCE_OFFSET: u64 = 2048;
/// Bytes of the reference without its checksum.
const REFERENCE_BYTES: usize = 8 + PATH_LIMIT;

/// Offset of the link to the first transaction of a generation.
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
    /// The largest number of the region's pages that the log may use; 0 if only the region limits it.
    pub limit_pages: u32,
    /// The directory in which the region was when the log was made, as bytes of a path. Empty if the path is longer
    /// than [`PATH_LIMIT`].
    pub region_dir: Vec<u8>,
}

impl Superblock {
    /// The bytes to store at offset 0, and those to store at [`REFERENCE_OFFSET`].
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
