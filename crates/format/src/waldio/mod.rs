//! Layouts of the `waldio` log. The constants follow `docs/format/waldio.md`.

#[cfg(test)]
mod tests;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::bytes::{array, put, u32_le, u64_le};
use crate::generation::{GENERATION_LIMIT, SlotFields, above, halves, of_halves};
use crate::head::{Format, LogHead};
use crate::sqlite_wal::{Checksum, WAL_HEADER_BYTES};
use crate::{FormatError, LogId, ORIGIN_BYTES, Origin, head};

/// The first bytes of a log file.
pub const MAGIC: [u8; 8] = *b"DURALDIO";
/// The format version.
pub const VERSION: u32 = 4;
/// Size in bytes of the superblock and of each generation slot. This is also the largest block size of a device.
pub const AREA_BYTES: u64 = 4096;
/// The offset of the log's blocks, which follow the superblock and two generation slots.
pub const DATA_OFFSET: u64 = 3 * AREA_BYTES;
/// The number of bits for the generation in a frame's mark.
const MARK_GENERATION_BITS: u32 = 29;

const FORMAT: Format =
    Format { name: "waldio", magic: MAGIC, version: VERSION, superblock_bytes: AREA_BYTES };

/// The layout of frames in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// The page changes of a group of transactions, as records packed into as few blocks as possible.
    #[default]
    Delta,
    /// One page per frame. The frame's mark is in bytes that the page does not use (WALDIO, section 4.2).
    Embedded,
}

impl Layout {
    /// Both layouts.
    pub const ALL: [Self; 2] = [Self::Delta, Self::Embedded];

    /// Returns the name of the layout in settings.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delta => "delta",
            Self::Embedded => "embedded",
        }
    }
}

impl std::str::FromStr for Layout {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|layout| layout.as_str() == name).ok_or(())
    }
}

/// The superblock of a log file. A process writes it once, when it makes the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// The fields that tie the log to its database.
    pub head: LogHead,
    /// Size of a block in bytes. Every write is a multiple of it.
    pub block_bytes: u32,
    /// Layout of frames.
    pub layout: Layout,
    /// The largest size that the file may have, in bytes.
    pub limit_bytes: u64,
}

impl Superblock {
    /// Returns the bytes of the file's first area.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; AREA_BYTES as usize];
        put(&mut out, 48, &self.block_bytes.to_le_bytes());
        put(&mut out, 52, &u32::from(self.layout == Layout::Embedded).to_le_bytes());
        put(&mut out, 56, &self.limit_bytes.to_le_bytes());
        self.head.put(&mut out, &FORMAT);
        out
    }

    /// Reads a superblock from the first bytes of a file.
    ///
    /// # Errors
    /// `Magic`, `Short`, `LogVersion` or `Damaged`, in this order of precedence.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let head = LogHead::read(bytes, &FORMAT)?;
        let layout = u32_le(bytes, 52);
        let it = Self {
            head,
            block_bytes: u32_le(bytes, 48),
            layout: if layout == 0 { Layout::Delta } else { Layout::Embedded },
            limit_bytes: u64_le(bytes, 56),
        };
        let sound = layout <= 1 && block_size_is_valid(it.block_bytes) && it.limit_bytes >= DATA_OFFSET;
        if sound { Ok(it) } else { Err(head::damaged()) }
    }
}

/// Returns whether a log may have blocks of this size: a power of two from 512 to 4096.
#[must_use]
pub fn block_size_is_valid(block_bytes: u32) -> bool {
    block_bytes.is_power_of_two() && (512..=4096).contains(&block_bytes)
}

/// Returns the offset of the slot of a generation.
#[must_use]
pub fn slot_offset(generation: u64) -> u64 {
    AREA_BYTES * (1 + generation % 2)
}

/// The state in which a generation begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The generation, from 1.
    pub generation: u64,
    /// SQLite's WAL header; `None` for an empty log.
    pub wal_header: Option<[u8; WAL_HEADER_BYTES]>,
    /// Whether all commits are in the database file, so that the log may be deleted.
    pub retired: bool,
    /// The file has at least this many bytes.
    pub file_bytes: u64,
    /// The number of transactions that were sealed in the log before this generation began.
    pub position: u64,
    /// When the generation began, in milliseconds since 1970; 0 if that is not known.
    pub time_ms: u64,
}

/// Offset of the origin in a slot.
const SLOT_ORIGIN: usize = 64;
const SLOT_EMPTY: u32 = 1;
const SLOT_RETIRED: u32 = 2;

impl Slot {
    /// Returns the bytes of the slot's area.
    #[must_use]
    pub fn encode(&self, id: LogId) -> Vec<u8> {
        let empty = if self.wal_header.is_none() { SLOT_EMPTY } else { 0 };
        let retired = if self.retired { SLOT_RETIRED } else { 0 };
        let fields = SlotFields {
            generation: self.generation,
            short: empty | retired,
            wal_header: self.wal_header.unwrap_or_default(),
            long: self.file_bytes,
        };
        let mut out = vec![0; AREA_BYTES as usize];
        put(&mut out, 0, &fields.encode(id));
        put(&mut out, SLOT_ORIGIN, &self.origin().encode(id));
        out
    }

    /// Returns the generation's place in the history of the log.
    #[must_use]
    pub fn origin(&self) -> Origin {
        Origin { generation: self.generation, position: self.position, time_ms: self.time_ms }
    }

    /// Reads a slot. Returns `None` if the slot is not valid, because it was never written or the write was torn.
    #[must_use]
    pub fn decode(bytes: &[u8], id: LogId) -> Option<Self> {
        let SlotFields { generation, short: flags, wal_header, long: file_bytes } =
            SlotFields::decode(bytes.first_chunk()?, id)?;
        let origin = bytes.get(SLOT_ORIGIN..SLOT_ORIGIN + ORIGIN_BYTES).unwrap_or_default();
        let Origin { position, time_ms, .. } = Origin::decode(origin, id, generation);
        let sound = (1..GENERATION_LIMIT).contains(&generation) && flags <= (SLOT_EMPTY | SLOT_RETIRED);
        sound.then(|| Self {
            generation,
            wal_header: (flags & SLOT_EMPTY == 0).then_some(wal_header),
            retired: flags & SLOT_RETIRED != 0,
            file_bytes,
            position,
            time_ms,
        })
    }
}

/// Returns the seed for a checksum at this offset of the log. Each log, generation and offset has a seed of its own. So
/// a checksum does not match bytes that belong to another log, generation or offset.
fn seed_of(id: LogId, generation: u64, offset: u64) -> u64 {
    id.seed() ^ (generation << 40).wrapping_add(offset) ^ above(generation, MARK_GENERATION_BITS)
}

/// Size of a group header in bytes.
pub const GROUP_HEADER_BYTES: u64 = 64;
/// The first bytes of a group header. A reader cannot mistake this number for the size of a transaction, because a
/// transaction's size is either less than this number or [`TX_TAKES_GROUP`].
pub const GROUP_MAGIC: u32 = 0xD17A_6E0F;

const GROUP_ORDERED: u32 = 1;
const GROUP_GENERATION_HIGH: usize = 36;
const GROUP_TIME: usize = 40;
const GROUP_HASHED: usize = 56;

/// The header of a group. A group consists of the transactions that one write has made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupHeader {
    /// Sequence number of the group's first transaction in the generation, from 1.
    pub first_sequence: u32,
    /// Number of transactions.
    pub transactions: u32,
    /// Bytes from the beginning of the header to the end of the last transaction.
    pub bytes: u64,
    /// Whether everything before the group was durable when the group was written.
    pub ordered: bool,
    /// Hash of the transactions that follow the header.
    pub body_hash: u64,
    /// When the group's first transaction was sealed, in milliseconds since 1970; 0 if that is not known.
    pub time_ms: u64,
}

impl GroupHeader {
    /// Returns the bytes of a header that is stored at this offset of the log.
    #[must_use]
    pub fn encode(&self, id: LogId, generation: u64, offset: u64) -> [u8; GROUP_HEADER_BYTES as usize] {
        let mut out = group_placeholder(generation, self.time_ms);
        put(&mut out, 8, &self.first_sequence.to_le_bytes());
        put(&mut out, 12, &self.transactions.to_le_bytes());
        put(&mut out, 16, &self.bytes.to_le_bytes());
        put(&mut out, 24, &self.body_hash.to_le_bytes());
        put(&mut out, 32, &(if self.ordered { GROUP_ORDERED } else { 0 }).to_le_bytes());
        let hash = xxh3_64_with_seed(&out[..GROUP_HASHED], seed_of(id, generation, offset));
        put(&mut out, GROUP_HASHED, &hash.to_le_bytes());
        out
    }

    /// Reads a header. Returns `None` if there is no valid header of this generation at this offset.
    #[must_use]
    pub fn decode(bytes: &[u8], id: LogId, generation: u64, offset: u64) -> Option<Self> {
        let found = of_halves(u32_le(bytes, 4), u32_le(bytes, GROUP_GENERATION_HIGH));
        if u32_le(bytes, 0) != GROUP_MAGIC || found != generation {
            return None;
        }
        let hash = xxh3_64_with_seed(bytes.get(..GROUP_HASHED)?, seed_of(id, generation, offset));
        if hash != u64_le(bytes, GROUP_HASHED) {
            return None;
        }
        Some(Self {
            first_sequence: u32_le(bytes, 8),
            transactions: u32_le(bytes, 12),
            bytes: u64_le(bytes, 16),
            ordered: u32_le(bytes, 32) & GROUP_ORDERED != 0,
            body_hash: u64_le(bytes, 24),
            time_ms: group_time(bytes),
        })
    }
}

/// Returns the header of an open group, that is, of a group to which transactions are still added. Only the magic
/// number, the generation and the time are set in it.
#[must_use]
pub fn group_placeholder(generation: u64, time_ms: u64) -> [u8; GROUP_HEADER_BYTES as usize] {
    let mut out = [0; GROUP_HEADER_BYTES as usize];
    put(&mut out, 0, &GROUP_MAGIC.to_le_bytes());
    let [low, high] = halves(generation);
    put(&mut out, 4, &low.to_le_bytes());
    put(&mut out, GROUP_GENERATION_HIGH, &high.to_le_bytes());
    put(&mut out, GROUP_TIME, &time_ms.to_le_bytes());
    out
}

/// Returns the time of a group, from its header or from the placeholder for its header.
#[must_use]
pub fn group_time(header: &[u8]) -> u64 {
    u64_le(header, GROUP_TIME)
}

/// The hash over a group's transactions. The header of the first transaction is hashed last, because a writer that
/// writes a large transaction piece by piece knows this header only at the end.
#[derive(Clone)]
pub struct BodyHash(Box<xxhash_rust::xxh3::Xxh3>);

impl BodyHash {
    /// Returns the hash before the first byte, for a group at this offset.
    #[must_use]
    pub fn new(id: LogId, generation: u64, offset: u64) -> Self {
        Self(Box::new(xxhash_rust::xxh3::Xxh3::with_seed(seed_of(id, generation, offset))))
    }

    /// Adds the next bytes of the group. The caller leaves out the first transaction's header, which `finish` adds.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the complete hash, after adding the first transaction's header.
    #[must_use]
    pub fn finish(mut self, header: &[u8]) -> u64 {
        self.0.update(header);
        self.0.digest()
    }
}

/// [`body_hash`] copies a body of at most this many bytes, so that it can hash the body in one call. That takes a third
/// of the time, and most groups have such small bodies.
const SMALL_BODY: usize = 1024;

/// Returns the hash of a group's transactions, all of which are in `body`.
#[must_use]
pub fn body_hash(id: LogId, generation: u64, offset: u64, body: &[u8]) -> u64 {
    let (header, rest) = body.split_at(body.len().min(TX_HEADER_BYTES as usize));
    if body.len() <= SMALL_BODY {
        let mut turned = [0; SMALL_BODY];
        put(&mut turned, 0, rest);
        put(&mut turned, rest.len(), header);
        return xxh3_64_with_seed(&turned[..body.len()], seed_of(id, generation, offset));
    }
    let mut hash = BodyHash::new(id, generation, offset);
    hash.update(rest);
    hash.finish(header)
}

/// Size of a transaction header in bytes.
pub const TX_HEADER_BYTES: u32 = 32;
/// The value in a transaction's size field if the transaction is the only one in its group. Such a transaction ends
/// where the group ends.
pub const TX_TAKES_GROUP: u32 = 0xFFFF_FFF8;

/// The header of one transaction in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxHeader {
    /// Bytes of header and records, a multiple of 8, or [`TX_TAKES_GROUP`].
    pub tx_bytes: u32,
    /// Sequence number in the generation, from 1.
    pub sequence: u32,
    /// Frame number of the first frame.
    pub first_frame: u32,
    /// Frame number of the commit frame.
    pub last_frame: u32,
    /// Database size in pages after the commit.
    pub db_pages: u32,
    /// Number of records.
    pub records: u32,
    /// SQLite's cumulative checksum after the commit frame.
    pub wal_checksum: Checksum,
}

impl TxHeader {
    /// Returns the header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; TX_HEADER_BYTES as usize] {
        let mut out = [0; TX_HEADER_BYTES as usize];
        let fields = [
            self.tx_bytes,
            self.sequence,
            self.first_frame,
            self.last_frame,
            self.db_pages,
            self.records,
            self.wal_checksum[0],
            self.wal_checksum[1],
        ];
        for (i, field) in fields.iter().enumerate() {
            put(&mut out, 4 * i, &field.to_le_bytes());
        }
        out
    }

    /// Reads a header.
    ///
    /// # Errors
    /// `Damaged` when a field is out of its range.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let field = |i: usize| u32_le(bytes, 4 * i);
        let it = Self {
            tx_bytes: field(0),
            sequence: field(1),
            first_frame: field(2),
            last_frame: field(3),
            db_pages: field(4),
            records: field(5),
            wal_checksum: [field(6), field(7)],
        };
        let sound = bytes.len() >= TX_HEADER_BYTES as usize
            && it.tx_bytes >= TX_HEADER_BYTES
            && (it.tx_bytes < GROUP_MAGIC || it.tx_bytes == TX_TAKES_GROUP)
            && it.tx_bytes.is_multiple_of(8)
            && it.first_frame > 0
            && it.last_frame >= it.first_frame
            && it.last_frame < u32::MAX
            && it.db_pages > 0;
        if sound { Ok(it) } else { Err(FormatError::Damaged { what: "a transaction's header" }) }
    }
}

// Frames of the layout `embedded`: a page with a mark in bytes that the page does not use.

/// Size in bytes of the mark that makes a page a frame of the `embedded` layout.
pub const MARK_BYTES: usize = 32;
const MARK_CHECKED: usize = 24;

const MARK_STARTS_TRANSACTION: u32 = 1 << 29;
const MARK_STARTS_GROUP: u32 = 1 << 30;
const MARK_ORDERED: u32 = 1 << 31;

/// Returns the low bits of the generation. A mark stores only these. The other bits are part of the seed of the mark's
/// check.
fn mark_generation(generation: u64) -> u32 {
    generation as u32 & !(u32::MAX << MARK_GENERATION_BITS)
}

/// The contents of a frame's mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Database page number.
    pub page_number: u32,
    /// In a commit frame, the size of the database in pages after the commit; otherwise 0.
    pub db_pages: u32,
    /// WAL frame number.
    pub frame: u32,
    /// Hash of all pages of the frame's transaction. If two frames in a row have different hashes, and no new
    /// transaction starts between them, one of the two belongs to a transaction that was never sealed.
    pub transaction: u64,
    /// Whether the frame is the first of its transaction.
    pub starts_transaction: bool,
    /// Whether the frame is the first of its group.
    pub starts_group: bool,
    /// Whether everything before the frame's group was durable when the group was written.
    pub ordered: bool,
}

impl Mark {
    /// Returns whether the frame with this mark can follow the previous frame. If the transaction of the previous frame
    /// is not complete yet, `transaction` is its hash; otherwise it is `None`.
    #[must_use]
    pub fn follows(&self, transaction: Option<u64>) -> bool {
        match transaction {
            None => self.starts_transaction,
            Some(hash) => !self.starts_transaction && self.transaction == hash,
        }
    }

    fn fields(&self, generation: u64) -> [u8; MARK_BYTES] {
        let mut out = [0; MARK_BYTES];
        let low = mark_generation(generation);
        let group = if self.starts_group { MARK_STARTS_GROUP } else { 0 };
        let transaction = if self.starts_transaction { MARK_STARTS_TRANSACTION } else { 0 };
        let ordered = if self.ordered { MARK_ORDERED } else { 0 };
        put(&mut out, 0, &self.page_number.to_le_bytes());
        put(&mut out, 4, &self.db_pages.to_le_bytes());
        put(&mut out, 8, &(low | transaction | group | ordered).to_le_bytes());
        put(&mut out, 12, &self.frame.to_le_bytes());
        put(&mut out, 16, &self.transaction.to_le_bytes());
        out
    }
}

/// Returns the offsets at which a frame's mark may be. Writers and readers try them in this order.
///
/// A mark inside the page replaces 32 bytes that are zero. These bytes are at the page's end (reserved bytes, or the
/// unused end of an overflow page), or at either end of the unallocated gap of a b-tree page (SQLite file format,
/// section 1.6). The page's own fields say where the gap is. A mark in the gap does not change these fields, so a
/// reader can still use them to find the gap.
fn places(page: &[u8], first_page: bool) -> [Option<usize>; 3] {
    let gap = gap_of(page, first_page).filter(|gap| gap.len() >= MARK_BYTES);
    [
        page.len().checked_sub(MARK_BYTES),
        gap.as_ref().map(|gap| gap.start),
        gap.as_ref().map(|gap| gap.end - MARK_BYTES),
    ]
}

/// Returns the unallocated gap of a b-tree page, between its cell pointers and its cells.
fn gap_of(page: &[u8], first_page: bool) -> Option<std::ops::Range<usize>> {
    let at = if first_page { crate::guard::HEADER_BYTES } else { 0 };
    let header_bytes = match page.get(at)? {
        2 | 5 => 12,
        10 | 13 => 8,
        _ => return None,
    };
    let number = |at: usize| array(page, at).map(u16::from_be_bytes).map(usize::from);
    let cells = number(at + 3)?;
    let end = match number(at + 5)? {
        0 => 65536,
        content => content,
    };
    let start = at + header_bytes + 2 * cells;
    (start < end && end <= page.len()).then_some(start..end)
}

/// Returns the size of a frame in bytes. A frame is a page, padded to whole blocks. If the mark is not `inside` the
/// page and does not fit into the padding, the frame has one more block.
#[must_use]
pub fn frame_bytes(page_bytes: u32, block_bytes: u32, inside: bool) -> u32 {
    let whole = page_bytes.next_multiple_of(block_bytes);
    if inside || whole - page_bytes >= MARK_BYTES as u32 { whole } else { whole + block_bytes }
}

/// Returns whether a page has space for its mark.
#[must_use]
pub fn has_room_for_mark(page: &[u8], page_number: u32) -> bool {
    place_of(page, page_number).is_some()
}

fn place_of(page: &[u8], page_number: u32) -> Option<usize> {
    let zero = |at: usize| page.get(at..at + MARK_BYTES).is_some_and(|bytes| bytes == [0; MARK_BYTES]);
    places(page, page_number == 1).into_iter().flatten().find(|&at| zero(at))
}

/// Appends a page as a frame of the `embedded` layout. `offset` is the frame's offset in the log.
pub fn encode_frame(
    out: &mut Vec<u8>,
    page: &[u8],
    mark: &Mark,
    block_bytes: u32,
    id: LogId,
    generation: u64,
    offset: u64,
) {
    let start = out.len();
    out.extend_from_slice(page);
    let place = place_of(page, mark.page_number);
    let bytes = frame_bytes(page.len() as u32, block_bytes, place.is_some());
    out.resize(start + bytes as usize, 0);
    let mut fields = mark.fields(generation);
    let check = mark_check(page, &fields, seed_of(id, generation, offset));
    put(&mut fields, MARK_CHECKED, &check.to_le_bytes());
    put(out, start + place.unwrap_or(page.len()), &fields);
}

fn mark_check(page: &[u8], fields: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(&fields[..MARK_CHECKED], xxh3_64_with_seed(page, seed))
}

/// Returns the hash over the pages of a transaction and their numbers.
#[must_use]
pub fn transaction_hash<'a>(pages: impl Iterator<Item = (u32, &'a [u8])>) -> u64 {
    pages.fold(0, |hash, (page_number, page)| {
        xxh3_64_with_seed(&page_number.to_le_bytes(), xxh3_64_with_seed(page, hash))
    })
}

/// Reads the frame at an offset of the log and copies its page to `page`. Returns the frame's mark and the number of
/// its bytes. Returns `None` if there is no valid frame of this generation. `page` may be overwritten even then.
#[must_use]
pub fn decode_frame(
    bytes: &[u8],
    page: &mut [u8],
    block_bytes: u32,
    id: LogId,
    generation: u64,
    offset: u64,
) -> Option<(Mark, u32)> {
    let content = bytes.get(..page.len())?;
    let behind = page.len();
    for first_page in [false, true] {
        let inside = places(content, first_page).into_iter().flatten();
        for at in inside.chain(Some(behind).filter(|_| !first_page)) {
            let Some(fields) = bytes.get(at..at + MARK_BYTES) else { continue };
            let word = u32_le(fields, 8);
            if word & !(u32::MAX << MARK_GENERATION_BITS) != mark_generation(generation) {
                continue;
            }
            page.copy_from_slice(content);
            if at < behind {
                page[at..at + MARK_BYTES].fill(0);
            }
            if mark_check(page, fields, seed_of(id, generation, offset)) != u64_le(fields, MARK_CHECKED) {
                continue;
            }
            let mark = Mark {
                page_number: u32_le(fields, 0),
                db_pages: u32_le(fields, 4),
                frame: u32_le(fields, 12),
                transaction: u64_le(fields, 16),
                starts_transaction: word & MARK_STARTS_TRANSACTION != 0,
                starts_group: word & MARK_STARTS_GROUP != 0,
                ordered: word & MARK_ORDERED != 0,
            };
            if mark.page_number == 0 || mark.frame == 0 {
                return None;
            }
            return Some((mark, frame_bytes(page.len() as u32, block_bytes, at < behind)));
        }
    }
    None
}
