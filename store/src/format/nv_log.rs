//! The log in persistent memory: a superblock, a circular index with an entry per object, and the objects.

use xxhash_rust::xxh3::xxh3_64;

use duralite_format::FormatError;
use duralite_format::bytes::{array, put, u32_le, u64_le};

const NV_MAGIC: [u8; 8] = *b"DURALNVO";
const NV_VERSION: u32 = 1;
const NV_CHECKED_BYTES: usize = 56;
/// The offset of a word with the number of the oldest object that is still needed. The word has a cache line of its
/// own.
pub const HEAD_OFFSET: u64 = 128;
/// The offset of a word that counts how often the log was opened. The word has a cache line of its own.
pub const EPOCH_OFFSET: u64 = 192;
/// The offset of the index.
pub const INDEX_OFFSET: u64 = 4096;
/// The alignment of objects in bytes, which is the size of a cache line.
pub const OBJECT_ALIGNMENT: u64 = 64;
/// The bit in an index entry that is set once the entry's object is durable.
pub const STATE_BIT: u64 = 1;

/// The superblock of the log. It never changes while the log exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvHead {
    /// The seed of the log's checksums.
    pub seed: u64,
    /// The number of entries in the index.
    pub entries: u64,
    /// The size of an extent in bytes. Objects are allocated within extents.
    pub extent_bytes: u64,
    /// The number of extents.
    pub extents: u64,
    /// The number that the log's first object got.
    pub first_lsn: u64,
}

impl NvHead {
    /// Encodes the superblock.
    #[must_use]
    pub fn encode(&self) -> [u8; 64] {
        let mut out = [0; 64];
        put(&mut out, 0, &NV_MAGIC);
        put(&mut out, 8, &NV_VERSION.to_le_bytes());
        let words = [self.seed, self.entries, self.extent_bytes, self.extents, self.first_lsn];
        for (at, word) in words.iter().enumerate() {
            put(&mut out, 16 + at * 8, &word.to_le_bytes());
        }
        let sum = xxh3_64(&out[..NV_CHECKED_BYTES]);
        put(&mut out, NV_CHECKED_BYTES, &sum.to_le_bytes());
        out
    }

    /// Decodes a superblock.
    ///
    /// # Errors
    /// [`FormatError`] if the bytes are not a superblock, are of another version, or are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        if array::<8>(bytes, 0) != Some(NV_MAGIC) {
            return Err(FormatError::Magic);
        }
        if u32_le(bytes, 8) != NV_VERSION {
            return Err(FormatError::Version(u32_le(bytes, 8)));
        }
        let checked = bytes.get(..NV_CHECKED_BYTES).ok_or(FormatError::Short { what: "a superblock" })?;
        let it = Self {
            seed: u64_le(bytes, 16),
            entries: u64_le(bytes, 24),
            extent_bytes: u64_le(bytes, 32),
            extents: u64_le(bytes, 40),
            first_lsn: u64_le(bytes, 48),
        };
        let sane = it.entries.is_power_of_two()
            && it.entries < 1 << 32
            && it.extent_bytes.is_multiple_of(4096)
            && (1..1 << 32).contains(&it.extent_bytes)
            && (1..1 << 32).contains(&it.extents);
        if xxh3_64(checked) != u64_le(bytes, NV_CHECKED_BYTES) || !sane {
            return Err(FormatError::Damaged { what: "the superblock of the store's log" });
        }
        Ok(it)
    }

    /// Returns the offset of the index entry of the object `lsn`.
    #[must_use]
    pub fn entry_at(&self, lsn: u64) -> u64 {
        INDEX_OFFSET + lsn % self.entries * 8
    }

    /// Returns the offset of an extent.
    #[must_use]
    pub fn extent_at(&self, extent: u64) -> u64 {
        (INDEX_OFFSET + self.entries * 8).next_multiple_of(4096) + extent * self.extent_bytes
    }

    /// Returns the size of the whole log in bytes.
    #[must_use]
    pub fn log_bytes(&self) -> u64 {
        self.extent_at(self.extents)
    }
}

/// Returns the index entry that marks the object at the offset `object` as durable.
#[must_use]
pub fn entry_of(object: u64) -> u64 {
    (object / OBJECT_ALIGNMENT * 2) | STATE_BIT
}

/// Returns the offset of the object of an index entry, or `None` if the entry does not mark the object as durable.
#[must_use]
pub fn object_of(entry: u64) -> Option<u64> {
    (entry & STATE_BIT != 0).then(|| (entry >> 1).saturating_mul(OBJECT_ALIGNMENT))
}
