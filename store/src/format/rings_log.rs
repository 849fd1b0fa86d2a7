//! A log per thread in persistent memory: a superblock, a word for each ring, and the rings with the objects.

use xxhash_rust::xxh3::xxh3_64;

use duralite_format::FormatError;
use duralite_format::bytes::{array, put, u32_le, u64_le};

const RINGS_MAGIC: [u8; 8] = *b"DURALRGS";
const RINGS_VERSION: u32 = 1;
const RINGS_CHECKED_BYTES: usize = 48;
/// The offset of the first ring's word. A ring's word holds the place (see [`RingsHead::offset`]) of the oldest byte
/// that is still needed in the ring. Each word has a cache line of its own.
pub const RING_WORDS_OFFSET: u64 = 256;
/// The offset of two words. Each holds the number of the first object of an epoch. The first word is for epochs with
/// even numbers, and the second one for epochs with odd numbers.
pub const RINGS_BEGAN_OFFSET: u64 = 200;
/// The largest number of rings that a log can have.
pub const MOST_RINGS: u64 = 32;
/// The offset of the first ring.
pub const RINGS_OFFSET: u64 = 4096;

/// The superblock of the logs. It never changes while the logs exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingsHead {
    /// The seed of the logs' checksums.
    pub seed: u64,
    /// The number of rings.
    pub rings: u64,
    /// The size of each ring in bytes.
    pub ring_bytes: u64,
    /// The number that the logs' first object got.
    pub first_lsn: u64,
}

impl RingsHead {
    /// Encodes the superblock.
    #[must_use]
    pub fn encode(&self) -> [u8; 64] {
        let mut out = [0; 64];
        put(&mut out, 0, &RINGS_MAGIC);
        put(&mut out, 8, &RINGS_VERSION.to_le_bytes());
        for (at, word) in [self.seed, self.rings, self.ring_bytes, self.first_lsn].iter().enumerate() {
            put(&mut out, 16 + at * 8, &word.to_le_bytes());
        }
        let sum = xxh3_64(&out[..RINGS_CHECKED_BYTES]);
        put(&mut out, RINGS_CHECKED_BYTES, &sum.to_le_bytes());
        out
    }

    /// Decodes a superblock.
    ///
    /// # Errors
    /// [`FormatError`] if the bytes are not a superblock, are of another version, or are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        if array::<8>(bytes, 0) != Some(RINGS_MAGIC) {
            return Err(FormatError::Magic);
        }
        if u32_le(bytes, 8) != RINGS_VERSION {
            return Err(FormatError::Version(u32_le(bytes, 8)));
        }
        let checked = bytes.get(..RINGS_CHECKED_BYTES).ok_or(FormatError::Short { what: "a superblock" })?;
        let it = Self {
            seed: u64_le(bytes, 16),
            rings: u64_le(bytes, 24),
            ring_bytes: u64_le(bytes, 32),
            first_lsn: u64_le(bytes, 40),
        };
        let sane = (1..=MOST_RINGS).contains(&it.rings)
            && it.ring_bytes.is_multiple_of(4096)
            && (4096..1 << 44).contains(&it.ring_bytes);
        if xxh3_64(checked) != u64_le(bytes, RINGS_CHECKED_BYTES) || !sane {
            return Err(FormatError::Damaged { what: "the superblock of the store's logs" });
        }
        Ok(it)
    }

    /// Returns the offset of the word that holds the number of an epoch's first object. Two consecutive epochs use
    /// different words, so writing the new epoch's word leaves the old one intact.
    #[must_use]
    pub fn began_at(&self, epoch: u32) -> u64 {
        RINGS_BEGAN_OFFSET + u64::from(epoch % 2) * 8
    }

    /// Returns the offset of a ring's word.
    #[must_use]
    pub fn word_at(&self, ring: u64) -> u64 {
        RING_WORDS_OFFSET + ring * 64
    }

    /// Converts a place in a ring to an offset in the file. A place is a byte position in the ring, and places only
    /// grow. Offsets wrap around at the end of the ring.
    #[must_use]
    pub fn offset(&self, ring: u64, place: u64) -> u64 {
        RINGS_OFFSET + ring * self.ring_bytes + place % self.ring_bytes
    }

    /// Returns the size of all rings and the superblock together, in bytes.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        RINGS_OFFSET + self.rings * self.ring_bytes
    }
}
