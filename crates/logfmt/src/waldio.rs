//! Layouts of the `waldio` log, versions 2 and 3: see `docs/format/waldio.md`, which these constants
//! follow.

use crate::bytes::{array, put, u32_le, u64_le};
use crate::generation::{GENERATION_LIMIT, above, halves, of_halves};
use crate::head::{self, FileIdentity, Head, Versions};
use crate::sqlite_wal::{Checksum, WAL_HEADER_BYTES};
use crate::{FormatError, LogId, ORIGIN_BYTES, Origin};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// First bytes of a log file.
pub const MAGIC: [u8; 8] = *b"DURALDIO";
/// The format version this build writes.
pub const VERSION: u32 = 3;
/// The oldest version this build reads. A log of it becomes one of [`VERSION`] by that number alone.
pub const OLDEST_VERSION: u32 = 2;
/// Bytes of the superblock and of each generation slot: no device's block is larger.
pub const AREA_BYTES: u64 = 4096;
/// Where the log's blocks begin: behind the superblock and two generation slots.
pub const DATA_OFFSET: u64 = 3 * AREA_BYTES;
/// Bits of the generation in a frame's mark; version 2 had no more.
const MARK_GENERATION_BITS: u32 = 29;

const VERSIONS: Versions =
    Versions { known: &[OLDEST_VERSION, VERSION], oldest: OLDEST_VERSION, raised: VERSION };

/// Whether these first bytes of a log are of an older version, and if so makes them the present one.
/// Only bytes 8..12 change, in one sector.
#[must_use]
pub fn raise_version(first_bytes: &mut [u8]) -> bool {
    let old = u32_le(first_bytes, 8) == OLDEST_VERSION;
    if old {
        put(first_bytes, 8, &VERSION.to_le_bytes());
    }
    old
}

/// How frames are laid out in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// The differential records of a group of transactions packed into as few blocks as they need.
    #[default]
    Delta,
    /// One page per frame, its header in space that the page does not use (WALDIO, section 4.2).
    Embedded,
}

impl Layout {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Delta, Self::Embedded];

    /// The name in settings.
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

/// What a log file begins with; written once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// Database page size.
    pub page_bytes: u32,
    /// Identity of the log.
    pub log_id: LogId,
    /// Inode of the database file.
    pub db_inode: u64,
    /// Birth time of the database file in nanoseconds, 0 if unknown.
    pub db_birth_ns: u64,
    /// Size of a block: every write is a multiple of it.
    pub block_bytes: u32,
    /// Layout of frames.
    pub layout: Layout,
    /// Most bytes the file may take.
    pub limit_bytes: u64,
    /// Where the database was, as bytes of a path, cut at [`crate::PATH_LIMIT`].
    pub path: Vec<u8>,
    /// The file that the log was made in, where it is known.
    pub file: Option<FileIdentity>,
}

impl Superblock {
    /// The bytes of the file's first area.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; AREA_BYTES as usize];
        put(&mut out, 48, &self.block_bytes.to_le_bytes());
        put(&mut out, 52, &u32::from(self.layout == Layout::Embedded).to_le_bytes());
        put(&mut out, 56, &self.limit_bytes.to_le_bytes());
        let Self { page_bytes, log_id, db_inode, db_birth_ns, .. } = *self;
        let (version, path, file) = (VERSION, self.path.clone(), self.file);
        Head { version, page_bytes, log_id, db_inode, db_birth_ns, path, file }.put(&mut out, MAGIC);
        out
    }

    /// Reads a superblock from the first bytes of a file.
    ///
    /// # Errors
    /// `Magic`, `Short`, `Version` or `Damaged`, in this order of precedence.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let Head { page_bytes, log_id, db_inode, db_birth_ns, path, file, .. } =
            Head::read(bytes, MAGIC, VERSIONS, AREA_BYTES)?;
        let layout = u32_le(bytes, 52);
        let it = Self {
            page_bytes,
            log_id,
            db_inode,
            db_birth_ns,
            block_bytes: u32_le(bytes, 48),
            layout: if layout == 0 { Layout::Delta } else { Layout::Embedded },
            limit_bytes: u64_le(bytes, 56),
            path,
            file,
        };
        let sound = layout <= 1 && block_size_is_valid(it.block_bytes) && it.limit_bytes >= DATA_OFFSET;
        if sound { Ok(it) } else { Err(head::damaged()) }
    }
}

/// Whether a log may have blocks of this size: a power of two from 512 to 4096.
#[must_use]
pub fn block_size_is_valid(block_bytes: u32) -> bool {
    block_bytes.is_power_of_two() && (512..=4096).contains(&block_bytes)
}

/// Where the slot of a generation is.
#[must_use]
pub fn slot_offset(generation: u64) -> u64 {
    AREA_BYTES * (1 + generation % 2)
}

/// What a generation begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The generation, from 1.
    pub generation: u64,
    /// SQLite's WAL header; `None` for an empty log.
    pub wal_header: Option<[u8; WAL_HEADER_BYTES]>,
    /// Everything is in the database file; the log may be deleted.
    pub retired: bool,
    /// Least bytes that the file has.
    pub file_bytes: u64,
    /// Transactions sealed in the log before this generation.
    pub position: u64,
    /// When it began, in milliseconds since 1970; 0 if that is not known.
    pub time_ms: u64,
}

/// Where the origin is in a slot.
const SLOT_ORIGIN: usize = 64;
const SLOT_EMPTY: u32 = 1;
const SLOT_RETIRED: u32 = 2;

impl Slot {
    /// The bytes of the slot's area.
    #[must_use]
    pub fn encode(&self, id: LogId) -> Vec<u8> {
        let mut out = vec![0; AREA_BYTES as usize];
        let empty = if self.wal_header.is_none() { SLOT_EMPTY } else { 0 };
        let retired = if self.retired { SLOT_RETIRED } else { 0 };
        let [low, high] = halves(self.generation);
        put(&mut out, 0, &low.to_le_bytes());
        put(&mut out, 4, &(empty | retired).to_le_bytes());
        put(&mut out, 8, &self.wal_header.unwrap_or_default());
        put(&mut out, 40, &self.file_bytes.to_le_bytes());
        put(&mut out, 48, &high.to_le_bytes());
        let checksum = xxh3_64_with_seed(&out[..56], id.seed());
        put(&mut out, 56, &checksum.to_le_bytes());
        put(&mut out, SLOT_ORIGIN, &self.origin().encode(id));
        out
    }

    /// Where the generation stands in the log's history.
    #[must_use]
    pub fn origin(&self) -> Origin {
        Origin { generation: self.generation, position: self.position, time_ms: self.time_ms }
    }

    /// Reads a slot; `None` when there is no valid one: never written, or torn.
    #[must_use]
    pub fn decode(bytes: &[u8], id: LogId) -> Option<Self> {
        let flags = u32_le(bytes, 4);
        let generation = of_halves(u32_le(bytes, 0), u32_le(bytes, 48));
        let origin = bytes.get(SLOT_ORIGIN..SLOT_ORIGIN + ORIGIN_BYTES).unwrap_or_default();
        let Origin { position, time_ms, .. } = Origin::decode(origin, id, generation);
        let sound = bytes.len() >= 64
            && xxh3_64_with_seed(&bytes[..56], id.seed()) == u64_le(bytes, 56)
            && (1..GENERATION_LIMIT).contains(&generation)
            && flags <= (SLOT_EMPTY | SLOT_RETIRED);
        sound.then(|| Self {
            generation,
            wal_header: if flags & SLOT_EMPTY == 0 { array(bytes, 8) } else { None },
            retired: flags & SLOT_RETIRED != 0,
            file_bytes: u64_le(bytes, 40),
            position,
            time_ms,
        })
    }
}

/// What the checksums of a place in the log are seeded with: bytes of another log, generation or
/// place never verify.
fn seed_of(id: LogId, generation: u64, offset: u64) -> u64 {
    id.seed() ^ (generation << 40).wrapping_add(offset) ^ above(generation, MARK_GENERATION_BITS)
}

/// Bytes of a group header.
pub const GROUP_HEADER_BYTES: u64 = 64;
/// First bytes of a group header: no transaction's size is as large.
pub const GROUP_MAGIC: u32 = 0xD17A_6E0F;

const GROUP_ORDERED: u32 = 1;
const GROUP_GENERATION_HIGH: usize = 36;
const GROUP_TIME: usize = 40;
const GROUP_HASHED: usize = 56;

/// The header of a group: transactions that one write made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupHeader {
    /// Sequence number of its first transaction in the generation, from 1.
    pub first_sequence: u32,
    /// Number of transactions.
    pub transactions: u32,
    /// Bytes, header included, up to the end of the last transaction.
    pub bytes: u64,
    /// Whether everything before was durable when this was written.
    pub ordered: bool,
    /// Hash of what follows the header.
    pub body_hash: u64,
    /// When its first transaction was sealed, in milliseconds since 1970; 0 if that is not known.
    pub time_ms: u64,
}

impl GroupHeader {
    /// The header's bytes for a place in the log.
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

    /// Reads a header; `None` when there is no valid one of this generation at this place.
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

/// The beginning of a group whose header is not complete yet.
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

/// The time of a group, from its header, complete or not.
#[must_use]
pub fn group_time(header: &[u8]) -> u64 {
    u64_le(header, GROUP_TIME)
}

/// The hash of a group's transactions: of everything behind the first transaction's header, and
/// then of that header, which is known last when a large transaction is written piece by piece.
#[derive(Clone)]
pub struct BodyHash(Box<xxhash_rust::xxh3::Xxh3>);

impl BodyHash {
    /// The hash before the first byte, for a group at this place.
    #[must_use]
    pub fn new(id: LogId, generation: u64, offset: u64) -> Self {
        Self(Box::new(xxhash_rust::xxh3::Xxh3::with_seed(seed_of(id, generation, offset))))
    }

    /// Takes in the next bytes behind the first transaction's header.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash, with the first transaction's header.
    #[must_use]
    pub fn finish(mut self, header: &[u8]) -> u64 {
        self.0.update(header);
        self.0.digest()
    }
}

/// The hash of a group's transactions, whole.
#[must_use]
pub fn body_hash(id: LogId, generation: u64, offset: u64, body: &[u8]) -> u64 {
    let (header, rest) = body.split_at(body.len().min(TX_HEADER_BYTES as usize));
    let mut hash = BodyHash::new(id, generation, offset);
    hash.update(rest);
    hash.finish(header)
}

/// Bytes of a transaction header.
pub const TX_HEADER_BYTES: u32 = 32;
/// Stands for the size of a transaction that has its group to itself: it ends with the group. From
/// version 3 on.
pub const TX_TAKES_GROUP: u32 = 0xFFFF_FFF8;

/// The header of a transaction in a group.
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
    /// The header's bytes.
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

/// Bytes of the mark that makes a page a frame of the `embedded` layout.
pub const MARK_BYTES: usize = 32;
const MARK_CHECKED: usize = 24;

const MARK_STARTS_TRANSACTION: u32 = 1 << 29;
const MARK_STARTS_GROUP: u32 = 1 << 30;
const MARK_ORDERED: u32 = 1 << 31;

/// What a mark has of the generation; the rest is in the seed of its check.
fn mark_generation(generation: u64) -> u32 {
    generation as u32 & !(u32::MAX << MARK_GENERATION_BITS)
}

/// What an embedded frame says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Database page number.
    pub page_number: u32,
    /// Database size in pages after the commit if it is a commit frame, else 0.
    pub db_pages: u32,
    /// WAL frame number.
    pub frame: u32,
    /// Hash of all pages of its transaction: a frame that another transaction left behind, which was
    /// begun at the same place and never sealed, is not taken for a part of this one.
    pub transaction: u64,
    /// Whether it is the first of its transaction.
    pub starts_transaction: bool,
    /// Whether it is the first of what one write made durable.
    pub starts_group: bool,
    /// Whether everything before its group was durable when the group was written.
    pub ordered: bool,
}

impl Mark {
    /// Whether a frame may stand behind one of this unfinished transaction; with `None`, behind a
    /// finished one or at the beginning.
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

/// Where a frame's mark may be, in the order in which both sides look.
///
/// Inside the page it takes 32 bytes that are zero: those at the page's end (reserved bytes, or
/// an overflow page that is not full), or at either end of the unallocated gap of a b-tree page
/// (SQLite file format, section 1.6). Filling them changes nothing that says where the gap is.
fn places(page: &[u8], first_page: bool) -> [Option<usize>; 3] {
    let gap = gap_of(page, first_page).filter(|gap| gap.len() >= MARK_BYTES);
    [
        page.len().checked_sub(MARK_BYTES),
        gap.as_ref().map(|gap| gap.start),
        gap.as_ref().map(|gap| gap.end - MARK_BYTES),
    ]
}

/// The unallocated gap of a b-tree page, between its cell pointers and its cells.
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

/// Bytes that a frame takes whose mark is `inside` the page, or inside what pads it to whole
/// blocks; else it takes one block more.
#[must_use]
pub fn frame_bytes(page_bytes: u32, block_bytes: u32, inside: bool) -> u32 {
    let whole = page_bytes.next_multiple_of(block_bytes);
    if inside || whole - page_bytes >= MARK_BYTES as u32 { whole } else { whole + block_bytes }
}

/// Whether a page has room for its mark.
#[must_use]
pub fn has_room_for_mark(page: &[u8], page_number: u32) -> bool {
    place_of(page, page_number).is_some()
}

fn place_of(page: &[u8], page_number: u32) -> Option<usize> {
    let zero = |at: usize| page.get(at..at + MARK_BYTES).is_some_and(|bytes| bytes == [0; MARK_BYTES]);
    places(page, page_number == 1).into_iter().flatten().find(|&at| zero(at))
}

/// Appends a page as a frame of the `embedded` layout for a place in the log.
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

/// The hash of a transaction's pages, with their numbers.
#[must_use]
pub fn transaction_hash<'a>(pages: impl Iterator<Item = (u32, &'a [u8])>) -> u64 {
    pages.fold(0, |hash, (page_number, page)| {
        xxh3_64_with_seed(&page_number.to_le_bytes(), xxh3_64_with_seed(page, hash))
    })
}

/// Reads the frame at a place in the log: its mark, and how many bytes of `bytes` it takes.
/// `page` then holds the page. `None` when there is no valid frame of this generation here.
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: LogId = LogId([7; 16]);

    fn superblock() -> Superblock {
        Superblock {
            page_bytes: 4096,
            log_id: ID,
            db_inode: 12,
            db_birth_ns: 34,
            block_bytes: 512,
            layout: Layout::Embedded,
            limit_bytes: 1 << 30,
            path: b"/data/app.db".to_vec(),
            file: None,
        }
    }

    #[test]
    fn superblock_round_trips_and_any_flipped_bit_is_refused() {
        let bytes = superblock().encode();
        assert_eq!(Superblock::decode(&bytes), Ok(superblock()));
        for at in 0..crate::head::CHECKED_BYTES + 8 {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << (at % 8);
            assert!(Superblock::decode(&bad).is_err(), "byte {at}");
        }
        assert!(Superblock::decode(&bytes[..4095]).is_err());
        assert_eq!(Superblock::decode(b"SQLite"), Err(FormatError::Magic));
    }

    #[test]
    fn slots_and_group_headers_round_trip_and_any_flipped_bit_is_refused() {
        let slots = [
            Slot {
                generation: 5,
                wal_header: Some([9; 32]),
                retired: false,
                file_bytes: 1 << 20,
                position: 3,
                time_ms: 4,
            },
            Slot {
                generation: 6,
                wal_header: None,
                retired: true,
                file_bytes: 0,
                position: 1 << 60,
                time_ms: 0,
            },
        ];
        for slot in slots {
            let bytes = slot.encode(ID);
            assert_eq!(Slot::decode(&bytes, ID), Some(slot));
            assert_eq!(Slot::decode(&bytes, LogId([8; 16])), None);
            for bit in 0..512 {
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Slot::decode(&bad, ID), None, "bit {bit}");
            }
        }
        let group = GroupHeader {
            first_sequence: 3,
            transactions: 2,
            bytes: 700,
            ordered: true,
            body_hash: 77,
            time_ms: 78,
        };
        let bytes = group.encode(ID, 4, 12288);
        assert_eq!(GroupHeader::decode(&bytes, ID, 4, 12288), Some(group));
        assert_eq!(GroupHeader::decode(&bytes, ID, 5, 12288), None);
        assert_eq!(GroupHeader::decode(&bytes, ID, 4, 12800), None);
        for bit in 0..512 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(GroupHeader::decode(&bad, ID, 4, 12288), None, "bit {bit}");
        }
    }

    #[test]
    fn no_generation_passes_for_another_however_high() {
        let generations = [1, 1 << 24, 1 << 29, (1 << 29) + 1, 1 << 32, (1 << 32) + 1, (1 << 59) + 1];
        let group = GroupHeader {
            first_sequence: 1,
            transactions: 1,
            bytes: 700,
            ordered: true,
            body_hash: 7,
            time_ms: 8,
        };
        for written in generations {
            let bytes = group.encode(ID, written, 12288);
            let slot = Slot {
                generation: written,
                wal_header: None,
                retired: false,
                file_bytes: 1,
                position: 9,
                time_ms: 8,
            };
            assert_eq!(Slot::decode(&slot.encode(ID), ID), Some(slot));
            let mut frame = Vec::new();
            encode_frame(&mut frame, &[7; 512], &mark(), 512, ID, written, 12288);
            for read in generations {
                let same = read == written;
                assert_eq!(GroupHeader::decode(&bytes, ID, read, 12288).is_some(), same);
                let found = decode_frame(&frame, &mut [0; 512], 512, ID, read, 12288);
                assert_eq!(found.is_some(), same, "{written} {read}");
                assert_eq!(
                    body_hash(ID, written, 12288, &[1; 64]) == body_hash(ID, read, 12288, &[1; 64]),
                    same || (read ^ written).trailing_zeros() >= 24 && read.max(written) < 1 << 29
                );
            }
        }
        let end = Slot {
            generation: GENERATION_LIMIT,
            wal_header: None,
            retired: false,
            file_bytes: 1,
            position: 0,
            time_ms: 0,
        };
        assert_eq!(Slot::decode(&end.encode(ID), ID), None);
    }

    #[test]
    fn a_log_of_the_oldest_version_is_read_and_raised_by_one_number() {
        let mut old = superblock().encode();
        old[8] = OLDEST_VERSION as u8;
        assert!(Superblock::decode(&old).is_err(), "a flipped version is damage");
        let sum = xxhash_rust::xxh3::xxh3_64(&old[..crate::head::CHECKED_BYTES]);
        old[crate::head::CHECKED_BYTES..][..8].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(Superblock::decode(&old), Ok(superblock()));
        let mut raised = old.clone();
        assert!(raise_version(&mut raised[..512]));
        assert!(!raise_version(&mut raised[..512]));
        assert_eq!(Superblock::decode(&raised), Ok(superblock()));
        assert!((0..old.len()).all(|at| at == 8 || old[at] == raised[at]));
    }

    #[test]
    fn a_body_hashes_the_same_whole_and_in_pieces() {
        let body: Vec<u8> = (0..5000u32).map(|i| i as u8).collect();
        let mut pieces = BodyHash::new(ID, 1, 2);
        pieces.update(&body[32..77]);
        pieces.update(&body[77..]);
        let whole = pieces.finish(&body[..32]);
        assert_eq!(whole, body_hash(ID, 1, 2, &body));
        assert_ne!(whole, body_hash(ID, 1, 3, &body));
        let mut other = body.clone();
        other[3] ^= 1;
        assert_ne!(whole, body_hash(ID, 1, 2, &other));
    }

    #[test]
    fn transaction_headers_round_trip_and_bad_ones_are_refused() {
        let header = TxHeader {
            tx_bytes: 64,
            sequence: 2,
            first_frame: 3,
            last_frame: 4,
            db_pages: 5,
            records: 1,
            wal_checksum: [6, 7],
        };
        assert_eq!(TxHeader::decode(&header.encode()), Ok(header));
        for bad in [
            TxHeader { tx_bytes: 24, ..header },
            TxHeader { tx_bytes: 65, ..header },
            TxHeader { tx_bytes: GROUP_MAGIC, ..header },
            TxHeader { first_frame: 0, ..header },
            TxHeader { last_frame: 2, ..header },
            TxHeader { db_pages: 0, ..header },
        ] {
            assert!(TxHeader::decode(&bad.encode()).is_err());
        }
        assert!(TxHeader::decode(&header.encode()[..31]).is_err());
    }

    fn mark() -> Mark {
        let (transaction, starts_transaction) = (77, true);
        Mark {
            page_number: 3,
            db_pages: 9,
            frame: 4,
            transaction,
            starts_transaction,
            starts_group: true,
            ordered: false,
        }
    }

    /// A leaf page with `cells` pointers and cells from `content` on.
    fn leaf(page_bytes: usize, at: usize, cells: u16, content: u16, fill: u8) -> Vec<u8> {
        let mut page = vec![fill; page_bytes];
        page[at] = 13;
        page[at + 3..at + 5].copy_from_slice(&cells.to_be_bytes());
        page[at + 5..at + 7].copy_from_slice(&content.to_be_bytes());
        page
    }

    fn round_trip(page: &[u8], mark: &Mark, block_bytes: u32) -> u32 {
        let mut out = vec![1, 2, 3];
        encode_frame(&mut out, page, mark, block_bytes, ID, 5, 8192);
        let mut back = vec![0; page.len()];
        let bytes = &out[3..];
        let found = decode_frame(bytes, &mut back, block_bytes, ID, 5, 8192);
        let (found, taken) = found.expect("a frame");
        assert_eq!((found, back.as_slice()), (*mark, page));
        assert_eq!(taken as usize, bytes.len());
        assert!(decode_frame(bytes, &mut back, block_bytes, ID, 6, 8192).is_none());
        assert!(decode_frame(bytes, &mut back, block_bytes, ID, 5, 4096).is_none());
        for at in (0..page.len()).step_by(97) {
            let mut bad = bytes.to_vec();
            bad[at] ^= 1;
            assert!(decode_frame(&bad, &mut back, block_bytes, ID, 5, 8192).is_none(), "byte {at}");
        }
        taken
    }

    #[test]
    fn a_frame_takes_one_block_where_the_page_has_room_and_two_where_not() {
        assert_eq!(round_trip(&[0; 4096], &mark(), 4096), 4096);
        assert_eq!(round_trip(&[7; 4096], &mark(), 4096), 8192);
        assert_eq!(round_trip(&[7; 4096], &mark(), 512), 4608);
        // Smaller than a block: the mark is in the padding.
        assert_eq!(round_trip(&[7; 1024], &mark(), 4096), 4096);
        assert_eq!(round_trip(&[7; 65536], &mark(), 4096), 69632);
        // Zeros in the gap only.
        let mut page = leaf(4096, 0, 10, 1000, 9);
        page[28..1000].fill(0);
        assert_eq!(round_trip(&page, &mark(), 4096), 4096);
        // Only the far end of the gap is zero, as after the first cells were removed.
        page[28..60].fill(3);
        assert_eq!(round_trip(&page, &mark(), 4096), 4096);
        // Page 1 keeps its b-tree header behind the database header.
        let mut page = leaf(4096, 100, 2, 4000, 9);
        page[112..4000].fill(0);
        assert_eq!(round_trip(&page, &Mark { page_number: 1, ..mark() }, 4096), 4096);
    }

    proptest! {
        #[test]
        fn any_page_comes_back(
            bytes in prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 512),
            kind in prop_oneof![Just(2u8), Just(5), Just(10), Just(13), any::<u8>()],
            number in 1u32..4,
            block in prop_oneof![Just(512u32), Just(4096)],
        ) {
            let mut page = bytes;
            page[0] = kind;
            round_trip(&page, &Mark { page_number: number, ..mark() }, block);
        }

        #[test]
        fn any_bytes_are_refused_or_decoded(bytes in prop::collection::vec(any::<u8>(), 0..1200)) {
            let mut page = [0; 512];
            let _ = decode_frame(&bytes, &mut page, 512, ID, 1, 0);
            let _ = GroupHeader::decode(&bytes, ID, 1, 0);
            let _ = TxHeader::decode(&bytes);
            let _ = Slot::decode(&bytes, ID);
            let _ = Superblock::decode(&bytes);
        }
    }
}
