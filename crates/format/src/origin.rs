//! The place of a generation in the history of its log: how many transactions were sealed before it, and when it began.
//!
//! A generation's slot has no room for this, so the origin is stored apart, with a checksum of its own. If the checksum
//! is wrong, the reader assumes a position that is beyond every position that can have been counted before the
//! generation.

use crate::LogId;
use crate::bytes::{put, u64_le};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of an origin.
pub const ORIGIN_BYTES: usize = 32;
const CHECKED: usize = 24;
/// A generation has fewer than 2^32 transactions: they are counted with 32 bits.
const GENERATION_BITS: u32 = 32;
/// All generations from this one on share one unknown position, because larger ones do not fit into 64 bits.
const LAST_COUNTED: u64 = 1 << 31;

/// What came before a generation, and when the generation began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The generation.
    pub generation: u64,
    /// Transactions sealed in the log before this generation, since the log was made.
    pub position: u64,
    /// When the generation began, in milliseconds since 1970; 0 if that is not known.
    pub time_ms: u64,
}

impl Origin {
    /// The origin of a generation whose stored origin is damaged. Its position is beyond every position counted before.
    #[must_use]
    pub fn unknown(generation: u64) -> Self {
        let position = generation.min(LAST_COUNTED) << GENERATION_BITS;
        Self { generation, position, time_ms: 0 }
    }

    /// The bytes of an origin.
    #[must_use]
    pub fn encode(&self, id: LogId) -> [u8; ORIGIN_BYTES] {
        let mut out = [0; ORIGIN_BYTES];
        put(&mut out, 0, &self.generation.to_le_bytes());
        put(&mut out, 8, &self.position.to_le_bytes());
        put(&mut out, 16, &self.time_ms.to_le_bytes());
        let check = xxh3_64_with_seed(&out[..CHECKED], id.seed());
        put(&mut out, CHECKED, &check.to_le_bytes());
        out
    }

    /// Reads the origin of a generation. Returns [`Origin::unknown`] if its checksum is wrong, or if it belongs to
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
