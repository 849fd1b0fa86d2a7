//! Generations of a log: their numbers, their slots and origins, and the word that says which generation is in force. A
//! new generation begins each time the log starts again from its beginning.
//!
//! A log begins at most a few thousand generations a second, so numbers of 60 bits do not run out. Many fields store
//! only the low bits of the number. The high bits then go into the seed of the checksum over the field. If they are 0,
//! they do not change the seed.
//!
//! The *slot* of a generation is the state in which the generation begins. Its *origin* is its place in the history of
//! the log: how many transactions were sealed before it, and when it began. A slot has no space for the origin, so the
//! log stores the origin separately, with a checksum of its own. If that checksum is wrong, the reader does not know
//! how many transactions were sealed before the generation. It then assumes a number that is certainly too high.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::bytes::{array, put, u32_le, u64_le};
use crate::sqlite_wal::WAL_HEADER_BYTES;
use crate::{FormatError, LogId};

/// Every generation's number is below this limit. The limit only keeps arithmetic with damaged numbers from
/// overflowing.
pub const GENERATION_LIMIT: u64 = 1 << 60;

/// Returns what a generation's high bits (all except the low `bits` bits) contribute to a seed. If the high bits are 0,
/// the contribution is 0.
pub(crate) fn above(generation: u64, bits: u32) -> u64 {
    (generation >> bits).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Returns the low and the high half of a generation, as they are stored.
pub(crate) fn halves(generation: u64) -> [u32; 2] {
    [generation as u32, (generation >> 32) as u32]
}

/// Returns the generation that these two halves make.
pub(crate) fn of_halves(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// The offset of the superblock's `active` word.
pub const ACTIVE_OFFSET: u64 = 1152;
/// The number that stands for no block. It is the `first_block` of an empty log.
pub const NO_BLOCK: u32 = u32::MAX;

/// Returns the word that says which generation is in force. The word's low half is the low half of the generation. Its
/// high half is the complement of its low half, xored with the high half of the generation. Each slot stores its own
/// generation too, so a reader notices if a damaged word leads to the slot of another generation.
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

/// Size of a generation slot in bytes.
pub const SLOT_BYTES: usize = 64;

/// Returns the offset of a generation's slot.
#[must_use]
pub fn slot_offset(generation: u64) -> u64 {
    1216 + generation % 2 * SLOT_BYTES as u64
}

/// Returns the offset of a generation's origin.
#[must_use]
pub fn origin_offset(generation: u64) -> u64 {
    1408 + generation % 2 * SLOT_BYTES as u64
}

/// The fields in the first 64 bytes of a slot, which are at the same offsets in the slots of all engines. Each engine
/// defines for itself what two of the fields mean.
pub(crate) struct SlotFields {
    /// The generation's number.
    pub(crate) generation: u64,
    /// The engine's field at byte 4.
    pub(crate) short: u32,
    /// SQLite's WAL header, zeros for an empty log.
    pub(crate) wal_header: [u8; WAL_HEADER_BYTES],
    /// The engine's field at byte 40.
    pub(crate) long: u64,
}

/// Number of bytes of a slot that the checksum covers. The checksum follows these bytes.
const SLOT_CHECKED: usize = 56;

impl SlotFields {
    pub(crate) fn encode(&self, id: LogId) -> [u8; SLOT_BYTES] {
        let mut out = [0; SLOT_BYTES];
        let [low, high] = halves(self.generation);
        put(&mut out, 0, &low.to_le_bytes());
        put(&mut out, 4, &self.short.to_le_bytes());
        put(&mut out, 8, &self.wal_header);
        put(&mut out, 40, &self.long.to_le_bytes());
        put(&mut out, 48, &high.to_le_bytes());
        let checksum = xxh3_64_with_seed(&out[..SLOT_CHECKED], id.seed());
        put(&mut out, SLOT_CHECKED, &checksum.to_le_bytes());
        out
    }

    /// Reads a slot. Returns `None` if the checksum is wrong.
    pub(crate) fn decode(bytes: &[u8; SLOT_BYTES], id: LogId) -> Option<Self> {
        let checksum = xxh3_64_with_seed(&bytes[..SLOT_CHECKED], id.seed());
        (checksum == u64_le(bytes, SLOT_CHECKED)).then(|| Self {
            generation: of_halves(u32_le(bytes, 0), u32_le(bytes, 48)),
            short: u32_le(bytes, 4),
            wal_header: array(bytes, 8).unwrap_or([0; WAL_HEADER_BYTES]),
            long: u64_le(bytes, 40),
        })
    }
}

/// The state in which a generation of a log in memory begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The generation's number.
    pub generation: u64,
    /// The first block of the generation, or [`NO_BLOCK`].
    pub first_block: u32,
    /// SQLite's WAL header, zeros for an empty log.
    pub wal_header: [u8; WAL_HEADER_BYTES],
    /// Whether all commits are in the database file, so that the log may be deleted.
    pub retired: bool,
}

impl Slot {
    /// Returns the bytes of the slot.
    #[must_use]
    pub fn encode(&self, id: LogId) -> [u8; SLOT_BYTES] {
        let Self { generation, first_block, wal_header, retired } = *self;
        SlotFields { generation, short: first_block, wal_header, long: u64::from(retired) }.encode(id)
    }

    /// Reads the slot of the generation in force.
    ///
    /// # Errors
    /// `Damaged` if the checksum is wrong, the slot belongs to another generation, or its state is unknown.
    pub fn decode(bytes: &[u8; SLOT_BYTES], id: LogId, generation: u64) -> Result<Self, FormatError> {
        let damaged = FormatError::Damaged { what: "the log's generation slot" };
        let found = SlotFields::decode(bytes, id).ok_or(damaged)?;
        if found.generation != generation || found.long > 1 {
            return Err(damaged);
        }
        let SlotFields { short: first_block, wal_header, long, .. } = found;
        Ok(Self { generation, first_block, wal_header, retired: long == 1 })
    }
}

/// Size of an origin in bytes.
pub const ORIGIN_BYTES: usize = 32;
const ORIGIN_CHECKED: usize = 24;
/// How many bits a log has for the number of a transaction within its generation. So a generation has fewer than 2^32
/// transactions.
const POSITION_BITS: u32 = 32;
/// From this generation on, `Origin::unknown` always returns the same position, because a larger one would not fit into
/// 64 bits.
const LAST_COUNTED: u64 = 1 << 31;

/// How many transactions were sealed before a generation, and when the generation began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The generation.
    pub generation: u64,
    /// The number of transactions that were sealed in the log before this generation began.
    pub position: u64,
    /// When the generation began, in milliseconds since 1970; 0 if that is not known.
    pub time_ms: u64,
}

impl Origin {
    /// Returns a substitute for a damaged origin. Its position is certainly higher than the true position.
    #[must_use]
    pub fn unknown(generation: u64) -> Self {
        let position = generation.min(LAST_COUNTED) << POSITION_BITS;
        Self { generation, position, time_ms: 0 }
    }

    /// Returns the bytes of an origin.
    #[must_use]
    pub fn encode(&self, id: LogId) -> [u8; ORIGIN_BYTES] {
        let mut out = [0; ORIGIN_BYTES];
        put(&mut out, 0, &self.generation.to_le_bytes());
        put(&mut out, 8, &self.position.to_le_bytes());
        put(&mut out, 16, &self.time_ms.to_le_bytes());
        let check = xxh3_64_with_seed(&out[..ORIGIN_CHECKED], id.seed());
        put(&mut out, ORIGIN_CHECKED, &check.to_le_bytes());
        out
    }

    /// Reads the origin of a generation. Returns [`Origin::unknown`] if the checksum is wrong, or the origin belongs to
    /// another generation.
    #[must_use]
    pub fn decode(bytes: &[u8], id: LogId, generation: u64) -> Self {
        let it =
            Self { generation: u64_le(bytes, 0), position: u64_le(bytes, 8), time_ms: u64_le(bytes, 16) };
        let stands = it.generation == generation && bytes.get(..ORIGIN_BYTES) == Some(&it.encode(id));
        if stands { it } else { Self::unknown(generation) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_make_the_number_and_only_what_is_above_matters() {
        for generation in [1, u64::from(u32::MAX), 1 << 32, (1 << 45) + 7] {
            let [low, high] = halves(generation);
            assert_eq!(of_halves(low, high), generation);
        }
        assert_eq!(above((1 << 29) - 1, 29), 0);
        assert_ne!(above(1 << 29, 29), 0);
        assert_ne!(above(1 << 29, 29), above(2 << 29, 29));
    }

    const ID: LogId = LogId([7; 16]);

    #[test]
    fn an_origin_round_trips_and_every_flipped_bit_is_noticed() {
        let origin = Origin { generation: 5, position: 1 << 40, time_ms: 99 };
        let bytes = origin.encode(ID);
        assert_eq!(Origin::decode(&bytes, ID, 5), origin);
        assert_eq!(Origin::decode(&bytes, ID, 6), Origin::unknown(6));
        assert_eq!(Origin::decode(&bytes, LogId([8; 16]), 5), Origin::unknown(5));
        assert_eq!(Origin::decode(&bytes[..31], ID, 5), Origin::unknown(5));
        for bit in 0..8 * ORIGIN_BYTES {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Origin::decode(&bad, ID, 5), Origin::unknown(5), "bit {bit}");
        }
    }

    #[test]
    fn an_unknown_origin_is_behind_everything_before() {
        for generation in [2, 3, 1 << 20, LAST_COUNTED] {
            let before = Origin::unknown(generation - 1).position;
            assert!(Origin::unknown(generation).position >= before + u64::from(u32::MAX));
        }
        assert_eq!(Origin::unknown(u64::MAX).position, 1 << 63);
    }
}
