//! Frames of the layout `embedded`: a page with a mark in bytes that the page does not use.

use super::{MARK_GENERATION_BITS, seed_of};
use crate::LogId;
use crate::bytes::{array, put, u32_le, u64_le};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of the mark that makes a page a frame of the `embedded` layout.
pub const MARK_BYTES: usize = 32;
const MARK_CHECKED: usize = 24;

const MARK_STARTS_TRANSACTION: u32 = 1 << 29;
const MARK_STARTS_GROUP: u32 = 1 << 30;
const MARK_ORDERED: u32 = 1 << 31;

/// The bits of the generation that a mark stores. The other bits are in the seed of the mark's check.
fn mark_generation(generation: u64) -> u32 {
    generation as u32 & !(u32::MAX << MARK_GENERATION_BITS)
}

/// What the mark of a frame says about the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Database page number.
    pub page_number: u32,
    /// Database size in pages after the commit if it is a commit frame, else 0.
    pub db_pages: u32,
    /// WAL frame number.
    pub frame: u32,
    /// Hash of all pages of the frame's transaction. By it a reader recognises a frame that another transaction wrote
    /// at the same place, but never sealed.
    pub transaction: u64,
    /// Whether the frame is the first of its transaction.
    pub starts_transaction: bool,
    /// Whether the frame is the first of its group.
    pub starts_group: bool,
    /// Whether everything before the frame's group was durable when the group was written.
    pub ordered: bool,
}

impl Mark {
    /// Whether the frame may come next. `transaction` is the hash of the transaction that is not complete yet, or
    /// `None` after a complete one and at the beginning.
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

/// Where the mark of a frame may be, in the order in which writers and readers look.
///
/// A mark inside the page uses 32 bytes that are zero. They are at the page's end (reserved bytes, or an overflow page
/// that is not full), or at either end of the unallocated gap of a b-tree page (SQLite file format, section 1.6). A
/// mark there does not change what the page says about the place of the gap.
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

/// Bytes of a frame. If the mark is `inside` the page, or fits into the padding of the page to whole blocks, the frame
/// needs no more than that; otherwise it needs one more block.
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

/// Appends a page as a frame of the `embedded` layout, for the place `offset` in the log.
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

/// The hash over the pages of a transaction and their numbers.
#[must_use]
pub fn transaction_hash<'a>(pages: impl Iterator<Item = (u32, &'a [u8])>) -> u64 {
    pages.fold(0, |hash, (page_number, page)| {
        xxh3_64_with_seed(&page_number.to_le_bytes(), xxh3_64_with_seed(page, hash))
    })
}

/// Reads the frame at a place in the log. Returns its mark and the number of bytes that the frame has, and copies the
/// page to `page`. `None` if there is no valid frame of this generation; `page` may be overwritten even then.
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
