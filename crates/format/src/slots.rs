//! Generation slots, and the word that says which generation is in force. All logs that have generation slots of this
//! form share this code.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::bytes::{array, put, u32_le, u64_le};
use crate::generation::{halves, of_halves};
use crate::sqlite_wal::WAL_HEADER_BYTES;
use crate::{FormatError, LogId};

/// Where the superblock's `active` word is.
pub const ACTIVE_OFFSET: u64 = 1152;
/// No block: the `first_block` of an empty log.
pub const NO_BLOCK: u32 = u32::MAX;

/// The word that names the generation in force. Its low half is the generation's low half. Its high half is the
/// complement of that, xored with the generation's high half. The slot names its generation too, so a damaged word
/// leads to a slot that names another generation, and the reader notices.
#[must_use]
pub fn active_word(generation: u64) -> u64 {
    let [low, high] = halves(generation);
    of_halves(low, !low ^ high)
}

/// Reads an [`active_word`].
#[must_use]
pub fn read_active_word(word: u64) -> u64 {
    let [low, high] = halves(word);
    of_halves(low, !low ^ high)
}

/// Bytes of a generation slot.
pub const SLOT_BYTES: usize = 64;

/// Where the slot of a generation is.
#[must_use]
pub fn slot_offset(generation: u64) -> u64 {
    1216 + generation % 2 * SLOT_BYTES as u64
}

/// Where the origin of a generation is.
#[must_use]
pub fn origin_offset(generation: u64) -> u64 {
    1408 + generation % 2 * SLOT_BYTES as u64
}

/// The state in which a generation begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The generation's number.
    pub generation: u64,
    /// The first block of the generation, or [`NO_BLOCK`].
    pub first_block: u32,
    /// SQLite's WAL header, zeros for an empty log.
    pub wal_header: [u8; WAL_HEADER_BYTES],
    /// Whether everything is in the database file, so that the log may be deleted.
    pub retired: bool,
}

impl Slot {
    /// The bytes of the slot.
    #[must_use]
    pub fn encode(&self, id: LogId) -> [u8; SLOT_BYTES] {
        let mut out = [0; SLOT_BYTES];
        let [low, high] = halves(self.generation);
        put(&mut out, 0, &low.to_le_bytes());
        put(&mut out, 4, &self.first_block.to_le_bytes());
        put(&mut out, 8, &self.wal_header);
        put(&mut out, 40, &u64::from(self.retired).to_le_bytes());
        put(&mut out, 48, &high.to_le_bytes());
        let checksum = xxh3_64_with_seed(&out[..56], id.seed());
        put(&mut out, 56, &checksum.to_le_bytes());
        out
    }

    /// Reads the slot of the generation in force.
    ///
    /// # Errors
    /// `Damaged` if the checksum is wrong, the slot belongs to another generation, or its state is unknown.
    pub fn decode(bytes: &[u8; SLOT_BYTES], id: LogId, generation: u64) -> Result<Self, FormatError> {
        let state = u64_le(bytes, 40);
        let slot = Self {
            generation: of_halves(u32_le(bytes, 0), u32_le(bytes, 48)),
            first_block: u32_le(bytes, 4),
            wal_header: array(bytes, 8).unwrap_or([0; WAL_HEADER_BYTES]),
            retired: state == 1,
        };
        if xxh3_64_with_seed(&bytes[..56], id.seed()) != u64_le(bytes, 56)
            || slot.generation != generation
            || state > 1
        {
            return Err(FormatError::Damaged { what: "the log's generation slot" });
        }
        Ok(slot)
    }
}
