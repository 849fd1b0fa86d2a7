//! The header of the store's pages.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use duralite_format::FormatError;
use duralite_format::bytes::{put, u16_le, u32_le, u64_le};

use super::{Lsn, PageId};

/// The smallest page size in bytes.
pub const SMALLEST_PAGE: usize = 4096;
/// The largest page size in bytes.
pub const LARGEST_PAGE: usize = 32768;
/// The size of a page's header in bytes.
pub const PAGE_HEADER_BYTES: usize = 48;

const LSN_AT: usize = 8;
const ID_AT: usize = 16;
/// The offset in a page of the first byte that an image in the log contains. An image leaves out the bytes before it:
/// checksum, LSN and number.
pub(super) const KIND_AT: usize = 24;
const LEVEL_AT: usize = 25;
const COUNT_AT: usize = 26;
const HEAP_AT: usize = 28;
const DEAD_AT: usize = 30;
const EXTRA_AT: usize = 32;
const PAYLOAD_AT: usize = 40;

/// The kind of content that a page has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Nothing yet: the page is all zeros, or still has bytes from an earlier use.
    Blank,
    /// A space map: bits that say which pages are in use.
    SpaceMap,
    /// An inner page of a B-tree: children, and the keys between them.
    Inner,
    /// A leaf of a B-tree: rows.
    Leaf,
    /// A piece of a long value.
    Overflow,
}

impl PageKind {
    fn from_byte(byte: u8) -> Self {
        match byte {
            1 => Self::SpaceMap,
            2 => Self::Inner,
            3 => Self::Leaf,
            4 => Self::Overflow,
            _ => Self::Blank,
        }
    }

    fn to_byte(self) -> u8 {
        match self {
            Self::Blank => 0,
            Self::SpaceMap => 1,
            Self::Inner => 2,
            Self::Leaf => 3,
            Self::Overflow => 4,
        }
    }
}

/// Clears a page, and sets its kind and its level in the tree. The page keeps its number and its LSN.
pub fn blank(page: &mut [u8], kind: PageKind, level: u8) {
    page[KIND_AT..].fill(0);
    page[KIND_AT] = kind.to_byte();
    page[LEVEL_AT] = level;
    let end = page.len() as u16;
    set_heap(page, end);
}

/// Returns what the page holds.
#[must_use]
#[inline]
pub fn kind(page: &[u8]) -> PageKind {
    PageKind::from_byte(page.get(KIND_AT).copied().unwrap_or(0))
}

/// Returns how many levels of the tree are below this page: 0 for a leaf.
#[must_use]
#[inline]
pub fn level(page: &[u8]) -> u8 {
    page.get(LEVEL_AT).copied().unwrap_or(0)
}

/// Returns the number of the newest log object whose change is in the page.
#[must_use]
#[inline]
pub fn lsn(page: &[u8]) -> Lsn {
    u64_le(page, LSN_AT)
}

/// Sets the number of the newest log object whose change is in the page.
#[inline]
pub fn set_lsn(page: &mut [u8], lsn: Lsn) {
    put(page, LSN_AT, &lsn.to_le_bytes());
}

/// Returns the page number in the page's header.
#[must_use]
pub fn page_id(page: &[u8]) -> PageId {
    u64_le(page, ID_AT)
}

/// Returns the page number that an extra field of the header contains. In an inner page it is the leftmost child; in an
/// overflow page it is the next page of the chain.
#[must_use]
#[inline]
pub fn extra(page: &[u8]) -> PageId {
    u64_le(page, EXTRA_AT)
}

/// Sets the value that [`extra`] returns.
pub fn set_extra(page: &mut [u8], value: PageId) {
    put(page, EXTRA_AT, &value.to_le_bytes());
}

/// Returns the part of a long value that is in this overflow page.
#[must_use]
pub fn payload(page: &[u8]) -> &[u8] {
    let len = u32_le(page, PAYLOAD_AT) as usize;
    page.get(PAGE_HEADER_BYTES..PAGE_HEADER_BYTES.saturating_add(len)).unwrap_or_default()
}

/// Fills an overflow page with bytes from the beginning of `bytes`, as far as they fit.
pub fn set_payload(page: &mut [u8], bytes: &[u8]) {
    let len = bytes.len().min(page.len() - PAGE_HEADER_BYTES);
    put(page, PAYLOAD_AT, &(len as u32).to_le_bytes());
    put(page, PAGE_HEADER_BYTES, &bytes[..len]);
}

#[inline]
pub(super) fn count(page: &[u8]) -> usize {
    u16_le(page, COUNT_AT).into()
}

pub(super) fn set_count(page: &mut [u8], count: usize) {
    put(page, COUNT_AT, &(count as u16).to_le_bytes());
}

/// Returns the offset of the cell that is nearest to the page's beginning.
#[inline]
pub(super) fn heap(page: &[u8]) -> usize {
    u16_le(page, HEAP_AT).into()
}

pub(super) fn set_heap(page: &mut [u8], at: u16) {
    put(page, HEAP_AT, &at.to_le_bytes());
}

/// Returns how many bytes between the cells belong to no cell.
#[inline]
pub(super) fn dead(page: &[u8]) -> usize {
    u16_le(page, DEAD_AT).into()
}

pub(super) fn set_dead(page: &mut [u8], bytes: usize) {
    put(page, DEAD_AT, &(bytes as u16).to_le_bytes());
}

/// Sets the page's number and checksum, so that the page can be written to the file.
pub fn seal(page: &mut [u8], id: PageId, seed: u64) {
    put(page, ID_AT, &id.to_le_bytes());
    let sum = checksum(page, id, seed);
    put(page, 0, &sum.to_le_bytes());
}

fn checksum(page: &[u8], id: PageId, seed: u64) -> u64 {
    xxh3_64_with_seed(page.get(LSN_AT..).unwrap_or_default(), seed ^ id.rotate_left(32))
}

/// Checks that the bytes are those of page `id`: either sealed with this number, or all zeros because the page was
/// never written.
///
/// # Errors
/// [`FormatError::Damaged`] if they are neither.
pub fn check(page: &[u8], id: PageId, seed: u64) -> Result<(), FormatError> {
    let sealed = page_id(page) == id && u64_le(page, 0) == checksum(page, id, seed);
    if sealed || page.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    Err(FormatError::Damaged { what: "a page of the store" })
}
