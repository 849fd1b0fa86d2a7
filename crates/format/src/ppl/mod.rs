//! Layouts of the `ppl` log. The constants follow `docs/format/ppl.md`.
//!
//! A log is a superblock, a transaction log, slots for page images that are being merged, a page table, and chunks of
//! extents. An extent is a log sector of one page, or a piece of the common pool. Each page has a log of its own, a
//! chain of extents. The bodies of these extents together hold one stream of records.

#[cfg(test)]
mod tests;

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::bytes::{array, put, u32_le, u64_le};
use crate::head::{Format, HEAD_BYTES, LogHead};
use crate::heap::{checked_word, read_checked_word};
use crate::{FormatError, LogId, head};

/// The first bytes of a log file.
pub const MAGIC: [u8; 8] = *b"DURALPPL";
/// The format version.
pub const VERSION: u32 = 1;
/// Size of the superblock in bytes.
pub const SUPERBLOCK_BYTES: u64 = 4096;
/// Offset of the superblock's word that says for how many chunks the file has space.
pub const GROWN_OFFSET: u64 = 1344;
/// Offset of the superblock's word that says how many chunks a log without a limit usually has.
pub const USUAL_OFFSET: usize = 1352;
/// The value of [`Superblock::limit_chunks`] for a log without a limit. A log cannot have more chunks than this,
/// because the numbers of the extents would need more bits than they have.
pub const NO_LIMIT_CHUNKS: u32 = 1 << 24;

/// The offset of the transaction log.
pub const TRANSACTIONS_OFFSET: u64 = SUPERBLOCK_BYTES;
/// The number of records in the transaction log. The index of a transaction's record is the transaction's number modulo
/// this number.
pub const TRANSACTIONS: u64 = 1024;
/// Size in bytes of a record of the transaction log. A record is one cache line.
pub const TRANSACTION_BYTES: usize = 64;
/// The offset of the slots.
pub const SLOTS_OFFSET: u64 = TRANSACTIONS_OFFSET + TRANSACTIONS * TRANSACTION_BYTES as u64;
/// A log may have at most this many slots. For each slot, the shared segment stores which process is merging the slot's
/// page, and the segment has space for only this many.
pub const MOST_SLOTS: u32 = 512;
/// Size of a slot's header in bytes. The page follows the header.
pub const SLOT_HEADER_BYTES: u64 = 64;

/// The number of log sectors in a chunk.
pub const SECTORS_PER_CHUNK: u32 = 32;
/// Size of a piece of the common pool in bytes.
pub const PIECE_BYTES: u32 = 1024;
/// Size of an extent's state in bytes. The states are stored in the chunks, but nobody reads them after the last
/// process that used the log has ended.
pub const STATE_BYTES: u64 = 64;
/// Size of an extent's header in bytes. The body follows the header.
pub const EXTENT_HEADER_BYTES: u32 = 32;
/// Offset of a word in an extent's header: the number of the last transaction whose change of the extent's page has
/// been merged into the database file.
pub const MERGED_AT: u64 = 24;
/// Size of a record's header in bytes. The payload follows the header.
pub const RECORD_HEADER_BYTES: u32 = 16;
/// The highest number that a transaction can have.
pub const LAST_TRANSACTION: u64 = (1 << (64 - LENGTH_BITS)) - 1;

/// How many bits of a record's first word hold the record's length. The other bits hold the transaction's number.
const LENGTH_BITS: u32 = 20;

// The superblock, and the offsets of the parts of a log.

const FORMAT: Format =
    Format { name: "ppl", magic: MAGIC, version: VERSION, superblock_bytes: SUPERBLOCK_BYTES };
/// The bit in an extent's number that marks a piece.
const PIECE: u32 = 1 << 31;

/// Returns whether a log may have sectors of this size.
#[must_use]
pub fn sector_size_is_valid(bytes: u32) -> bool {
    matches!(bytes, 4096 | 8192 | 12288)
}

/// The write-once part of the superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// The fields that tie the log to its database.
    pub head: LogHead,
    /// Size of a log sector in bytes.
    pub sector_bytes: u32,
    /// The largest number of chunks that the log may have.
    pub limit_chunks: u32,
    /// The number of chunks that the log has unless a transaction needs more.
    pub usual_chunks: u32,
    /// Number of slots for page images.
    pub slots: u32,
    /// Number of lists of the page table, a power of two.
    pub buckets: u32,
}

impl Superblock {
    /// Returns the bytes to store at offset 0.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; HEAD_BYTES];
        put(&mut out, 48, &self.sector_bytes.to_le_bytes());
        put(&mut out, 52, &self.limit_chunks.to_le_bytes());
        put(&mut out, 56, &self.slots.to_le_bytes());
        put(&mut out, 60, &self.buckets.to_le_bytes());
        self.head.put(&mut out, &FORMAT);
        if self.usual_chunks != self.limit_chunks {
            out.resize(USUAL_OFFSET + 8, 0);
            put(&mut out, USUAL_OFFSET, &checked_word(self.usual_chunks).to_le_bytes());
        }
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
        let usual = bytes.get(USUAL_OFFSET..).and_then(|rest| rest.first_chunk());
        let usual_chunks = match u64::from_le_bytes(usual.copied().unwrap_or_default()) {
            0 => limit_chunks,
            word => read_checked_word(word, "the log's usual size")?,
        };
        let it = Self { head, sector_bytes, limit_chunks, usual_chunks, slots, buckets };
        if it.is_consistent() { Ok(it) } else { Err(head::damaged()) }
    }

    fn is_consistent(&self) -> bool {
        sector_size_is_valid(self.sector_bytes)
            && (1..=NO_LIMIT_CHUNKS).contains(&self.limit_chunks)
            && (1..=self.limit_chunks).contains(&self.usual_chunks)
            && (1..=MOST_SLOTS).contains(&self.slots)
            && self.buckets.is_power_of_two()
            && self.buckets <= 1 << 28
    }

    /// Returns the offsets and sizes of the log's parts.
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
pub struct Extent(u32);

impl Extent {
    /// Returns the extent that is the log sector with this number.
    #[must_use]
    pub fn sector(number: u32) -> Self {
        Self(number & !PIECE)
    }

    /// Returns the extent that is the piece of the common pool with this number.
    #[must_use]
    pub fn piece(number: u32) -> Self {
        Self(number | PIECE)
    }

    /// Returns whether the extent is a piece of the common pool.
    #[must_use]
    pub fn is_piece(self) -> bool {
        self.0 & PIECE != 0
    }

    /// Returns the extent's number among the extents of its kind.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0 & !PIECE
    }

    /// Returns the word that links to this extent. It is never 0.
    #[must_use]
    pub fn to_link(self) -> u64 {
        u64::from(self.0) + 1
    }

    /// Returns the extent that a link leads to; `None` for 0.
    #[must_use]
    pub fn of_link(link: u64) -> Option<Self> {
        u32::try_from(link.checked_sub(1)?).ok().map(Self)
    }
}

/// The offsets and sizes of the log's parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Size of a log sector in bytes.
    pub sector_bytes: u32,
    /// Number of slots.
    pub slots: u32,
    /// Size of a slot in bytes, with its header.
    pub slot_bytes: u64,
    /// Number of lists of the page table.
    pub buckets: u32,
    /// Offset of the heads of the page table's lists.
    pub buckets_offset: u64,
    /// Offset of the first chunk.
    pub chunks_offset: u64,
    /// Size of a chunk in bytes.
    pub chunk_bytes: u64,
    /// Number of pieces of the common pool in a chunk.
    pub pieces_per_chunk: u32,
}

impl Geometry {
    /// Returns the size of a file with this many chunks.
    #[must_use]
    pub fn file_bytes(&self, chunks: u32) -> u64 {
        self.chunks_offset + u64::from(chunks) * self.chunk_bytes
    }

    /// Returns the offset of the chunk that an extent is in, and the extent's number within the chunk.
    fn place(&self, extent: Extent) -> (u64, u64) {
        let (per_chunk, before) = if extent.is_piece() {
            (self.pieces_per_chunk, SECTORS_PER_CHUNK)
        } else {
            (SECTORS_PER_CHUNK, 0)
        };
        let (chunk, within) = (extent.number() / per_chunk, extent.number() % per_chunk);
        (self.file_bytes(chunk), u64::from(before + within))
    }

    /// Returns the offset of an extent's state.
    #[must_use]
    pub fn state_offset(&self, extent: Extent) -> u64 {
        let (chunk, within) = self.place(extent);
        chunk + within * STATE_BYTES
    }

    /// Returns the offset of an extent.
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

    /// Returns the size of an extent in bytes.
    #[must_use]
    pub fn extent_bytes(&self, extent: Extent) -> u32 {
        if extent.is_piece() { PIECE_BYTES } else { self.sector_bytes }
    }

    /// Returns the number of the chunk that an extent is in.
    #[must_use]
    pub fn chunk_of(&self, extent: Extent) -> u32 {
        let per_chunk = if extent.is_piece() { self.pieces_per_chunk } else { SECTORS_PER_CHUNK };
        extent.number() / per_chunk
    }

    /// Returns whether an extent is in one of the first `chunks` chunks.
    #[must_use]
    pub fn has(&self, extent: Extent, chunks: u32) -> bool {
        self.chunk_of(extent) < chunks
    }

    /// Returns the extents of a chunk: its sectors, then its pieces.
    pub fn extents_of(&self, chunk: u32) -> impl Iterator<Item = Extent> + use<> {
        let pieces = self.pieces_per_chunk;
        let sectors = chunk * SECTORS_PER_CHUNK..(chunk + 1) * SECTORS_PER_CHUNK;
        sectors.map(Extent::sector).chain((chunk * pieces..(chunk + 1) * pieces).map(Extent::piece))
    }

    /// Returns the offset of a slot.
    #[must_use]
    pub fn slot_offset(&self, slot: u32) -> u64 {
        SLOTS_OFFSET + u64::from(slot) * self.slot_bytes
    }

    /// The page table consists of lists of pages. Returns the offset of the head of the list to which this page
    /// belongs.
    #[must_use]
    pub fn bucket_offset(&self, page_number: u32) -> u64 {
        let mixed = page_number.wrapping_mul(0x9E37_79B1);
        let bits = self.buckets.trailing_zeros();
        let bucket = if bits == 0 { 0 } else { mixed >> (32 - bits) };
        self.buckets_offset + 8 * u64::from(bucket)
    }
}

// Extents in use, and the records in them.

/// The header of an extent that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtentHeader {
    /// The number of the page whose records the extent holds.
    pub page_number: u32,
    /// The extent's number in the page's chain. Extents that follow each other have consecutive numbers.
    pub order: u32,
    /// The transaction that took the extent.
    pub taken_by: u64,
}

impl ExtentHeader {
    /// Returns the header's bytes, without the word at [`MERGED_AT`].
    #[must_use]
    pub fn encode(&self, id: LogId, extent: Extent) -> [u8; MERGED_AT as usize] {
        let mut out = [0; MERGED_AT as usize];
        put(&mut out, 0, &self.page_number.to_le_bytes());
        put(&mut out, 4, &self.order.to_le_bytes());
        put(&mut out, 8, &self.taken_by.to_le_bytes());
        let check = self.check(id, extent);
        put(&mut out, 16, &check.to_le_bytes());
        out
    }

    fn check(&self, id: LogId, extent: Extent) -> u64 {
        let mut hash = Xxh3::with_seed(id.seed());
        hash.update(&self.page_number.to_le_bytes());
        hash.update(&self.order.to_le_bytes());
        hash.update(&self.taken_by.to_le_bytes());
        hash.update(&extent.0.to_le_bytes());
        hash.digest()
    }

    /// Reads a header. Returns `None` if the extent is free, or if the check is wrong.
    #[must_use]
    pub fn decode(bytes: &[u8], id: LogId, extent: Extent) -> Option<Self> {
        let it = Self { page_number: u32_le(bytes, 0), order: u32_le(bytes, 4), taken_by: u64_le(bytes, 8) };
        (it.page_number > 0 && u64_le(bytes, 16) == it.check(id, extent)).then_some(it)
    }
}

/// Returns the first word of a record.
#[must_use]
pub fn record_word(transaction: u64, payload_bytes: u32) -> u64 {
    transaction << LENGTH_BITS | u64::from(payload_bytes)
}

/// Returns what the first word of a record says: the number of the transaction, and the size of the payload in bytes.
/// Returns `None` if there is no record.
#[must_use]
pub fn read_record_word(word: u64) -> Option<(u64, u32)> {
    let payload = (word & ((1 << LENGTH_BITS) - 1)) as u32;
    (word != 0).then_some((word >> LENGTH_BITS, payload))
}

/// Returns the checksum of a record.
#[must_use]
pub fn record_check(id: LogId, page_number: u32, word: u64, payload: &[u8]) -> u64 {
    let seed = id.seed() ^ word.rotate_left(17) ^ u64::from(page_number).rotate_left(40);
    xxh3_64_with_seed(payload, seed)
}

// Slots for the images of pages that are being merged.

/// The header of a slot with the image of a page that is being merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotHeader {
    /// The page.
    pub page_number: u32,
    /// The last transaction whose change the image includes.
    pub transaction: u64,
}

impl SlotHeader {
    /// Returns the header's bytes.
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

    /// Reads the header of a slot with this image. Returns `None` if the slot is free or torn.
    #[must_use]
    pub fn decode(bytes: &[u8], id: LogId, image: &[u8]) -> Option<Self> {
        let it = Self { page_number: u32_le(bytes, 0), transaction: u64_le(bytes, 8) };
        (it.page_number > 0 && u64_le(bytes, 16) == it.check(id, image)).then_some(it)
    }

    /// Returns the number of the page that a slot holds, from the first bytes of the slot's header; 0 if the slot is
    /// free.
    #[must_use]
    pub fn page_of(bytes: &[u8]) -> u32 {
        array(bytes, 0).map_or(0, u32::from_le_bytes)
    }
}

// The records of the transaction log.

/// The state of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionKind {
    /// The writer is storing the transaction.
    Begin,
    /// The transaction is committed.
    Commit,
    /// The transaction was rolled back. The format has a mark for this state because the paper has one. No writer
    /// stores the mark, because a transaction that is rolled back leaves nothing in the log.
    Abort,
}

impl TransactionKind {
    const ALL: [Self; 3] = [Self::Begin, Self::Commit, Self::Abort];

    /// Returns the mark for this state that a writer stores in the record of transaction `number`. Each transaction has
    /// marks of its own. So a reader recognises a mark that an earlier transaction has left in the same place.
    #[must_use]
    pub fn mark(self, id: LogId, number: u64) -> u64 {
        xxh3_64_with_seed(&number.to_le_bytes(), id.seed().wrapping_add(self as u64 + 1))
    }
}

/// A record of the transaction log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionRecord {
    /// The transaction's number, one more than that of the previous transaction.
    pub number: u64,
    /// The transaction's state.
    pub kind: TransactionKind,
    /// Size of the database in pages after the transaction.
    pub db_pages: u32,
    /// When the transaction was sealed, in milliseconds since 1970.
    pub time_ms: u64,
    /// Whether all commits are in the database file, so that the log may be deleted.
    pub retired: bool,
}

impl TransactionRecord {
    /// Returns the offset of the record of a transaction.
    #[must_use]
    pub fn offset(number: u64) -> u64 {
        TRANSACTIONS_OFFSET + number % TRANSACTIONS * TRANSACTION_BYTES as u64
    }

    /// Returns the offset of the mark of a transaction.
    #[must_use]
    pub fn mark_offset(number: u64) -> u64 {
        Self::offset(number) + 8
    }

    /// Returns the record's bytes.
    #[must_use]
    pub fn encode(&self, id: LogId) -> [u8; TRANSACTION_BYTES] {
        let mut out = [0; TRANSACTION_BYTES];
        put(&mut out, 0, &self.number.to_le_bytes());
        put(&mut out, 16, &self.db_pages.to_le_bytes());
        put(&mut out, 20, &u32::from(self.retired).to_le_bytes());
        put(&mut out, 24, &self.time_ms.to_le_bytes());
        let check = xxh3_64_with_seed(&out[..56], id.seed());
        put(&mut out, 8, &self.kind.mark(id, self.number).to_le_bytes());
        put(&mut out, 56, &check.to_le_bytes());
        out
    }

    /// Reads the record with the index `place` in the transaction log, counted from 0. Returns `None` if there is no
    /// record, or if the writer never completed it.
    ///
    /// # Errors
    /// `Damaged` if the mark says *commit* but the rest of the record does not match the check. A crash cannot cause
    /// that, because the writer stores that mark only after the rest is durable.
    pub fn decode(
        bytes: &[u8; TRANSACTION_BYTES],
        id: LogId,
        place: u64,
    ) -> Result<Option<Self>, FormatError> {
        let number = u64_le(bytes, 0);
        let mark = u64_le(bytes, 8);
        let kind = TransactionKind::ALL.into_iter().find(|kind| kind.mark(id, number) == mark);
        let mut checked = *bytes;
        put(&mut checked, 8, &[0; 8]);
        let retired = u32_le(bytes, 20);
        let sound = xxh3_64_with_seed(&checked[..56], id.seed()) == u64_le(bytes, 56)
            && number % TRANSACTIONS == place
            && number <= LAST_TRANSACTION
            && retired <= 1;
        match kind {
            Some(TransactionKind::Commit) if !sound => {
                Err(FormatError::Damaged { what: "a record of the transaction log" })
            }
            Some(kind) if sound => {
                let (db_pages, time_ms) = (u32_le(bytes, 16), u64_le(bytes, 24));
                Ok(Some(Self { number, kind, db_pages, time_ms, retired: retired == 1 }))
            }
            _ => Ok(None),
        }
    }
}
