//! The log on a block device: a head, two slots, and a circular area with batches of objects.

use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

use duralite_format::FormatError;
use duralite_format::bytes::{array, put, u32_le, u64_le};

const DISK_MAGIC: [u8; 8] = *b"DURALDSO";
const DISK_VERSION: u32 = 1;
const DISK_CHECKED_BYTES: usize = 40;
const BATCH_MAGIC: u32 = 0xD17A_B47C;
const SLOT_CHECKED_BYTES: usize = 40;
/// The size of the head, and of each slot, in bytes.
pub const DISK_SLOT_BYTES: usize = 4096;
/// The offsets of the two slots.
pub const DISK_SLOT_OFFSETS: [u64; 2] = [4096, 8192];
/// The offset of the circular area with the batches.
pub const DISK_DATA_OFFSET: u64 = 12288;
/// The size of a batch's header in bytes.
pub const BATCH_HEADER_BYTES: usize = 64;
/// The largest block size that a device may have, in bytes. When a log moves to a device with larger blocks, the first
/// batch that is written there begins at a multiple of this size.
pub const LARGEST_BLOCK: u64 = 4096;

/// The head of the log. It never changes while the log exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskHead {
    /// The seed of the log's checksums.
    pub seed: u64,
    /// The size of the circular area in bytes.
    pub circle_bytes: u64,
    /// The block size in bytes. Each batch begins at a multiple of it.
    pub block_bytes: u32,
}

fn is_block(bytes: u32) -> bool {
    (512..=LARGEST_BLOCK).contains(&u64::from(bytes)) && bytes.is_power_of_two()
}

impl DiskHead {
    /// Encodes the head, in 4096 bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; DISK_SLOT_BYTES];
        put(&mut out, 0, &DISK_MAGIC);
        put(&mut out, 8, &DISK_VERSION.to_le_bytes());
        put(&mut out, 12, &self.block_bytes.to_le_bytes());
        put(&mut out, 16, &self.seed.to_le_bytes());
        put(&mut out, 24, &self.circle_bytes.to_le_bytes());
        let sum = xxh3_64(&out[..DISK_CHECKED_BYTES]);
        put(&mut out, DISK_CHECKED_BYTES, &sum.to_le_bytes());
        out
    }

    /// Decodes a head.
    ///
    /// # Errors
    /// [`FormatError`] if the bytes are not a head, are of another version, or are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        if array::<8>(bytes, 0) != Some(DISK_MAGIC) {
            return Err(FormatError::Magic);
        }
        if u32_le(bytes, 8) != DISK_VERSION {
            return Err(FormatError::Version(u32_le(bytes, 8)));
        }
        let checked = bytes.get(..DISK_CHECKED_BYTES).ok_or(FormatError::Short { what: "a head" })?;
        let it =
            Self { block_bytes: u32_le(bytes, 12), seed: u64_le(bytes, 16), circle_bytes: u64_le(bytes, 24) };
        let sane = is_block(it.block_bytes)
            && it.circle_bytes.is_multiple_of(4096)
            && (4096..1 << 48).contains(&it.circle_bytes);
        if xxh3_64(checked) != u64_le(bytes, DISK_CHECKED_BYTES) || !sane {
            return Err(FormatError::Damaged { what: "the head of the store's log" });
        }
        Ok(it)
    }

    /// Converts a place in the log to an offset in the file. A place is a byte position in the log, and places only
    /// grow. Offsets wrap around at the end of the circular area.
    #[must_use]
    pub fn offset(&self, place: u64) -> u64 {
        DISK_DATA_OFFSET + place % self.circle_bytes
    }
}

/// One of the two slots of a log. A slot names the oldest object that is still needed. Of the two slots, the valid one
/// with the larger number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSlot {
    /// The slot's number. Each new slot gets a larger number.
    pub number: u64,
    /// The oldest object that is still needed.
    pub head: u64,
    /// The place (see [`DiskHead::offset`]) of the batch that contains the object `head`. If the log has no such batch
    /// yet, the place at which it will be written.
    pub place: u64,
    /// The number of times that the log had been opened when the slot was written.
    pub epoch: u32,
    /// The place where this epoch began. Batches at and after this place belong to the log only if they have this
    /// epoch.
    pub began: u64,
}

impl DiskSlot {
    /// Encodes the slot, in 4096 bytes.
    #[must_use]
    pub fn encode(&self, seed: u64) -> Vec<u8> {
        let mut out = vec![0; DISK_SLOT_BYTES];
        put(&mut out, 0, &self.number.to_le_bytes());
        put(&mut out, 8, &self.head.to_le_bytes());
        put(&mut out, 16, &self.place.to_le_bytes());
        put(&mut out, 24, &self.epoch.to_le_bytes());
        put(&mut out, 32, &self.began.to_le_bytes());
        let sum = xxh3_64_with_seed(&out[..SLOT_CHECKED_BYTES], seed);
        put(&mut out, SLOT_CHECKED_BYTES, &sum.to_le_bytes());
        out
    }

    /// Decodes a slot. Returns `None` if the slot was never written, or is torn.
    #[must_use]
    pub fn decode(bytes: &[u8], seed: u64) -> Option<Self> {
        let sum = xxh3_64_with_seed(bytes.get(..SLOT_CHECKED_BYTES)?, seed);
        (u64_le(bytes, SLOT_CHECKED_BYTES) == sum).then(|| Self {
            number: u64_le(bytes, 0),
            head: u64_le(bytes, 8),
            place: u64_le(bytes, 16),
            epoch: u32_le(bytes, 24),
            began: u64_le(bytes, 32),
        })
    }
}

/// The header of a batch of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The number of the batch's first object. The other objects have the numbers that follow.
    pub first_lsn: u64,
    /// The number of objects in the batch.
    pub objects: u32,
    /// The length of all objects together, in bytes.
    pub bytes: u64,
    /// The number of times that the log had been opened when the batch was written.
    pub epoch: u32,
    /// The place of the batch in the log, from which its offset in the file follows.
    pub place: u64,
    /// The batch's claim: when it was sealed, all objects below this number were durable. 0 means no claim.
    pub durable: u64,
    /// The block size in bytes to which the batch was padded; 0 if that is the size in the log's head.
    pub block_bytes: u32,
}

impl Batch {
    /// Writes the header to the beginning of `bytes`. The objects are already in `bytes`, after the header.
    pub fn seal(&self, bytes: &mut [u8], seed: u64) {
        put(bytes, 0, &BATCH_MAGIC.to_le_bytes());
        put(bytes, 4, &self.objects.to_le_bytes());
        put(bytes, 8, &self.bytes.to_le_bytes());
        put(bytes, 16, &self.first_lsn.to_le_bytes());
        put(bytes, 24, &self.place.to_le_bytes());
        put(bytes, 32, &self.epoch.to_le_bytes());
        put(bytes, 36, &self.block_bytes.to_le_bytes());
        bytes[48..56].fill(0);
        put(bytes, 40, &self.durable.to_le_bytes());
        let sum = self.checksum(bytes, seed);
        put(bytes, 56, &sum.to_le_bytes());
    }

    fn checksum(&self, bytes: &[u8], seed: u64) -> u64 {
        let mut hash = Xxh3::with_seed(seed);
        hash.update(bytes.get(..56).unwrap_or_default());
        let end = (self.bytes as usize).saturating_add(BATCH_HEADER_BYTES);
        hash.update(bytes.get(BATCH_HEADER_BYTES..end).unwrap_or_default());
        hash.digest()
    }

    /// Decodes the header of the batch at this place. Does not verify the checksum, because it also covers the objects,
    /// which have not been read yet. Returns `None` if there is no header of a batch at this place.
    #[must_use]
    pub fn claimed(header: &[u8], place: u64) -> Option<Self> {
        Self::claimed_anywhere(header).filter(|it| it.place == place)
    }

    /// Decodes a batch header like [`claimed`](Self::claimed), but accepts any place.
    #[must_use]
    pub fn claimed_anywhere(header: &[u8]) -> Option<Self> {
        let it = Self {
            objects: u32_le(header, 4),
            bytes: u64_le(header, 8),
            first_lsn: u64_le(header, 16),
            place: u64_le(header, 24),
            epoch: u32_le(header, 32),
            durable: u64_le(header, 40),
            block_bytes: u32_le(header, 36),
        };
        let is_padded = it.block_bytes == 0 || is_block(it.block_bytes);
        (header.len() >= BATCH_HEADER_BYTES && u32_le(header, 0) == BATCH_MAGIC && is_padded).then_some(it)
    }

    /// Returns whether `bytes` contain the header and all objects of this batch, undamaged.
    #[must_use]
    pub fn is_whole(&self, bytes: &[u8], seed: u64) -> bool {
        bytes.len() as u64 >= self.bytes.saturating_add(BATCH_HEADER_BYTES as u64)
            && u64_le(bytes, 56) == self.checksum(bytes, seed)
    }
}
