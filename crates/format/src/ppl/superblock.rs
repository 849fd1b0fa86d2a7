//! The superblock, and the offsets of the parts of a log.

use super::{
    MAGIC, MOST_SLOTS, PIECE_BYTES, SECTORS_PER_CHUNK, SLOT_HEADER_BYTES, SLOTS_OFFSET, STATE_BYTES,
    SUPERBLOCK_BYTES, VERSION,
};
use crate::FormatError;
use crate::bytes::{put, u32_le};
use crate::head::{self, Format, HEAD_BYTES, LogHead};

const FORMAT: Format =
    Format { name: "ppl", magic: MAGIC, version: VERSION, superblock_bytes: SUPERBLOCK_BYTES };
/// The bit in an extent's number that says that the extent is a piece.
const PIECE: u32 = 1 << 31;

/// Whether a log may have sectors of this size.
#[must_use]
pub fn sector_size_is_valid(bytes: u32) -> bool {
    matches!(bytes, 4096 | 8192 | 12288)
}

/// The write-once part of the superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// The fields that tie the log to its database.
    pub head: LogHead,
    /// Size of a log sector.
    pub sector_bytes: u32,
    /// The largest number of chunks that the log may have.
    pub limit_chunks: u32,
    /// Number of slots for page images.
    pub slots: u32,
    /// Number of lists of the page table, a power of two.
    pub buckets: u32,
}

impl Superblock {
    /// The bytes to store at offset 0.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; HEAD_BYTES];
        put(&mut out, 48, &self.sector_bytes.to_le_bytes());
        put(&mut out, 52, &self.limit_chunks.to_le_bytes());
        put(&mut out, 56, &self.slots.to_le_bytes());
        put(&mut out, 60, &self.buckets.to_le_bytes());
        self.head.put(&mut out, &FORMAT);
        out
    }

    /// Reads a superblock from the first bytes of a file.
    ///
    /// # Errors
    /// `Magic`, `Short`, `LogVersion` or `Damaged`, in this order of precedence.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let head = LogHead::read(bytes, &FORMAT)?;
        let (sector_bytes, limit_chunks) = (u32_le(bytes, 48), u32_le(bytes, 52));
        let (slots, buckets) = (u32_le(bytes, 56), u32_le(bytes, 60));
        let it = Self { head, sector_bytes, limit_chunks, slots, buckets };
        if it.is_consistent() { Ok(it) } else { Err(head::damaged()) }
    }

    fn is_consistent(&self) -> bool {
        sector_size_is_valid(self.sector_bytes)
            && (1..=1 << 24).contains(&self.limit_chunks)
            && (1..=MOST_SLOTS).contains(&self.slots)
            && self.buckets.is_power_of_two()
            && self.buckets <= 1 << 28
    }

    /// The offsets and sizes of the log's parts.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        let slot_bytes = SLOT_HEADER_BYTES + u64::from(self.head.page_bytes);
        let buckets_offset = SLOTS_OFFSET + u64::from(self.slots) * slot_bytes;
        let chunks_offset = (buckets_offset + 8 * u64::from(self.buckets)).next_multiple_of(SUPERBLOCK_BYTES);
        let pieces = SECTORS_PER_CHUNK * (self.sector_bytes / 4096);
        let extents = u64::from(SECTORS_PER_CHUNK + pieces);
        let bodies = u64::from(SECTORS_PER_CHUNK) * u64::from(self.sector_bytes)
            + u64::from(pieces) * u64::from(PIECE_BYTES);
        Geometry {
            sector_bytes: self.sector_bytes,
            slots: self.slots,
            slot_bytes,
            buckets: self.buckets,
            buckets_offset,
            chunks_offset,
            chunk_bytes: (extents * STATE_BYTES + bodies).next_multiple_of(SUPERBLOCK_BYTES),
            pieces_per_chunk: pieces,
        }
    }
}

/// The number of an extent: a log sector, or a piece of the common pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Extent(pub(super) u32);

impl Extent {
    /// A log sector.
    #[must_use]
    pub fn sector(number: u32) -> Self {
        Self(number & !PIECE)
    }

    /// A piece of the common pool.
    #[must_use]
    pub fn piece(number: u32) -> Self {
        Self(number | PIECE)
    }

    /// Whether the extent is a piece of the common pool.
    #[must_use]
    pub fn is_piece(self) -> bool {
        self.0 & PIECE != 0
    }

    /// The extent's number among the extents of its kind.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0 & !PIECE
    }

    /// The word that links to this extent. It is never 0.
    #[must_use]
    pub fn to_link(self) -> u64 {
        u64::from(self.0) + 1
    }

    /// The extent that a link leads to; `None` for 0.
    #[must_use]
    pub fn of_link(link: u64) -> Option<Self> {
        u32::try_from(link.checked_sub(1)?).ok().map(Self)
    }
}

/// The offsets and sizes of the log's parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Size of a log sector.
    pub sector_bytes: u32,
    /// Number of slots.
    pub slots: u32,
    /// Bytes of a slot with its header.
    pub slot_bytes: u64,
    /// Number of lists of the page table.
    pub buckets: u32,
    /// Where the heads of the page table's lists begin.
    pub buckets_offset: u64,
    /// Where the first chunk begins.
    pub chunks_offset: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Pieces of the common pool in a chunk.
    pub pieces_per_chunk: u32,
}

impl Geometry {
    /// Size of a file with this many chunks.
    #[must_use]
    pub fn file_bytes(&self, chunks: u32) -> u64 {
        self.chunks_offset + u64::from(chunks) * self.chunk_bytes
    }

    /// Offset of the chunk that an extent is in, and the extent's number within the chunk.
    fn place(&self, extent: Extent) -> (u64, u64) {
        let (per_chunk, before) = if extent.is_piece() {
            (self.pieces_per_chunk, SECTORS_PER_CHUNK)
        } else {
            (SECTORS_PER_CHUNK, 0)
        };
        let (chunk, within) = (extent.number() / per_chunk, extent.number() % per_chunk);
        (self.file_bytes(chunk), u64::from(before + within))
    }

    /// Where an extent's state is.
    #[must_use]
    pub fn state_offset(&self, extent: Extent) -> u64 {
        let (chunk, within) = self.place(extent);
        chunk + within * STATE_BYTES
    }

    /// Where an extent begins.
    #[must_use]
    pub fn extent_offset(&self, extent: Extent) -> u64 {
        let (chunk, within) = self.place(extent);
        let bodies = chunk + u64::from(SECTORS_PER_CHUNK + self.pieces_per_chunk) * STATE_BYTES;
        let sectors = u64::from(SECTORS_PER_CHUNK) * u64::from(self.sector_bytes);
        if extent.is_piece() {
            bodies + sectors + (within - u64::from(SECTORS_PER_CHUNK)) * u64::from(PIECE_BYTES)
        } else {
            bodies + within * u64::from(self.sector_bytes)
        }
    }

    /// Bytes of an extent.
    #[must_use]
    pub fn extent_bytes(&self, extent: Extent) -> u32 {
        if extent.is_piece() { PIECE_BYTES } else { self.sector_bytes }
    }

    /// Whether an extent is in one of the first `chunks` chunks.
    #[must_use]
    pub fn has(&self, extent: Extent, chunks: u32) -> bool {
        let per_chunk = if extent.is_piece() { self.pieces_per_chunk } else { SECTORS_PER_CHUNK };
        extent.number() / per_chunk < chunks
    }

    /// The extents of a chunk: its sectors, then its pieces.
    pub fn extents_of(&self, chunk: u32) -> impl Iterator<Item = Extent> + use<> {
        let pieces = self.pieces_per_chunk;
        let sectors = chunk * SECTORS_PER_CHUNK..(chunk + 1) * SECTORS_PER_CHUNK;
        sectors.map(Extent::sector).chain((chunk * pieces..(chunk + 1) * pieces).map(Extent::piece))
    }

    /// Where a slot is.
    #[must_use]
    pub fn slot_offset(&self, slot: u32) -> u64 {
        SLOTS_OFFSET + u64::from(slot) * self.slot_bytes
    }

    /// Where the head of the list is that contains a page.
    #[must_use]
    pub fn bucket_offset(&self, page_number: u32) -> u64 {
        let mixed = page_number.wrapping_mul(0x9E37_79B1);
        let bits = self.buckets.trailing_zeros();
        let bucket = if bits == 0 { 0 } else { mixed >> (32 - bits) };
        self.buckets_offset + 8 * u64::from(bucket)
    }
}
