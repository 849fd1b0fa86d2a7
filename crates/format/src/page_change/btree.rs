//! SQLite's b-tree pages: the header, the cell pointers, the cells.
//!
//! The code trusts nothing in a page. Every access is checked, and a contradiction yields `None`.

use std::ops::{Deref, DerefMut};

/// Offsets in the header of a b-tree page.
const FIRST_FREEBLOCK: usize = 1;
const CELLS: usize = 3;
const CONTENT: usize = 5;
const FRAGMENTS: usize = 7;
/// Bytes of a leaf's header. An interior page has a pointer to its last child after that.
const HEADER_BYTES: usize = 8;
const CHILD_BYTES: usize = 4;

const INDEX_INTERIOR: u8 = 2;
const TABLE_INTERIOR: u8 = 5;
const INDEX_LEAF: u8 = 10;
const TABLE_LEAF: u8 = 13;
/// The bit in a page's type that makes the page a leaf.
const LEAF: u8 = 8;

/// The smallest cell: when SQLite drops the cell, a freeblock must fit in its place.
const SMALLEST_CELL: usize = 4;
/// Bytes of the longest varint.
const VARINT_BYTES: usize = 9;

/// A b-tree page. If its bytes are mutable, cells can be inserted and dropped (module `space`).
#[derive(Clone, Copy)]
pub(super) struct Tree<B> {
    pub(super) bytes: B,
    /// Where the b-tree header begins.
    pub(super) header: usize,
}

impl<B: Deref<Target = [u8]>> Tree<B> {
    /// The page, if it looks like a b-tree page: it has a known type, and its pointers end before its content begins.
    pub(super) fn new(bytes: B, header: usize) -> Option<Self> {
        let tree = Self { bytes, header };
        let known = matches!(tree.kind(), INDEX_INTERIOR | TABLE_INTERIOR | INDEX_LEAF | TABLE_LEAF);
        let sound = tree.pointers_end() <= tree.content() && tree.content() <= tree.bytes.len();
        (known && sound).then_some(tree)
    }

    /// The page's type; 0 if the page is too short.
    pub(super) fn kind(&self) -> u8 {
        self.bytes.get(self.header).copied().unwrap_or(0)
    }

    fn is_leaf(&self) -> bool {
        self.kind() & LEAF != 0
    }

    /// The big-endian number at `at`; 0 outside the page.
    #[inline]
    pub(super) fn number(&self, at: usize) -> usize {
        let bytes = self.bytes.get(at..at + 2);
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, |bytes| usize::from(u16::from_be_bytes(bytes)))
    }

    pub(super) fn cells(&self) -> usize {
        self.number(self.header + CELLS)
    }

    /// Offset of the word that links to the first freeblock.
    pub(super) fn free_list(&self) -> usize {
        self.header + FIRST_FREEBLOCK
    }

    /// Where the content begins. On a page of 65536 bytes 0 stands for the end of the page.
    pub(super) fn content(&self) -> usize {
        match self.number(self.header + CONTENT) {
            0 => 65536,
            at => at,
        }
    }

    pub(super) fn fragments(&self) -> usize {
        usize::from(self.bytes.get(self.header + FRAGMENTS).copied().unwrap_or(0))
    }

    /// Where the cell pointers begin.
    pub(super) fn pointers(&self) -> usize {
        self.header + HEADER_BYTES + if self.is_leaf() { 0 } else { CHILD_BYTES }
    }

    pub(super) fn pointers_end(&self) -> usize {
        self.pointers() + 2 * self.cells()
    }

    /// The cell pointers as bytes, of a page that [`Tree::new`] has accepted.
    pub(super) fn pointer_bytes(&self) -> &[u8] {
        self.bytes.get(self.pointers()..self.pointers_end()).unwrap_or(&[])
    }

    /// Where the cell of a slot begins; 0 outside the page.
    #[inline]
    pub(super) fn pointer(&self, slot: usize) -> usize {
        self.number(self.pointers() + 2 * slot)
    }

    /// The cell of a slot.
    pub(super) fn cell(&self, slot: usize) -> Option<&[u8]> {
        self.cell_at(self.pointer(slot))
    }

    /// The cell that begins at `at`, without its overflow pages.
    pub(super) fn cell_at(&self, at: usize) -> Option<&[u8]> {
        let length = self.cell_bytes(at)?;
        self.bytes.get(at..at + length)
    }

    /// The length of the cell at `at`, computed from its first bytes by the rules of the file format.
    fn cell_bytes(&self, at: usize) -> Option<usize> {
        let usable = self.bytes.len();
        let child = if self.is_leaf() { 0 } else { CHILD_BYTES };
        let (first, first_bytes) = varint(self.bytes.get(at + child..)?)?;
        let (most, key_bytes) = match self.kind() {
            TABLE_INTERIOR => return Some(child + first_bytes),
            TABLE_LEAF => (usable.checked_sub(35)?, varint(self.bytes.get(at + first_bytes..)?)?.1),
            _ => (index_payload(usable, 64)?, 0),
        };
        let payload = usize::try_from(first).ok()?;
        let head = child + first_bytes + key_bytes;
        if payload <= most {
            return Some((head + payload).max(SMALLEST_CELL));
        }
        let least = index_payload(usable, 32)?;
        let local = least + (payload - least) % (usable - 4);
        Some(head + if local <= most { local } else { least } + CHILD_BYTES)
    }
}

/// The part of a payload that an index cell may keep on the page, or keeps at least if it overflows: `share` 255ths of
/// the page, as the file format defines it.
fn index_payload(usable: usize, share: usize) -> Option<usize> {
    ((usable.checked_sub(12)?) * share / 255).checked_sub(23)
}

/// SQLite's variable-length integer, and its length in bytes.
#[inline]
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0_u64;
    for (i, byte) in bytes.iter().take(VARINT_BYTES).enumerate() {
        if i + 1 == VARINT_BYTES {
            return Some((value << 8 | u64::from(*byte), VARINT_BYTES));
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((value, i + 1));
        }
    }
    None
}

impl<B: DerefMut<Target = [u8]>> Tree<B> {
    /// Writes a big-endian number. 65536 is written as 0.
    pub(super) fn put(&mut self, at: usize, number: usize) -> Option<()> {
        self.bytes.get_mut(at..at + 2)?.copy_from_slice(&(number as u16).to_be_bytes());
        Some(())
    }

    pub(super) fn put_cells(&mut self, cells: usize) -> Option<()> {
        self.put(self.header + CELLS, cells)
    }

    pub(super) fn put_content(&mut self, at: usize) -> Option<()> {
        self.put(self.header + CONTENT, at)
    }

    pub(super) fn put_fragments(&mut self, bytes: usize) -> Option<()> {
        *self.bytes.get_mut(self.header + FRAGMENTS)? = u8::try_from(bytes).ok()?;
        Some(())
    }

    /// Moves `length` bytes within the page.
    pub(super) fn copy(&mut self, from: usize, to: usize, length: usize) -> Option<()> {
        let fits = from + length <= self.bytes.len() && to + length <= self.bytes.len();
        fits.then(|| self.bytes.copy_within(from..from + length, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(kind: u8, at: usize, cell: &[u8]) -> Vec<u8> {
        let mut page = vec![0; 512];
        page[..8].copy_from_slice(&[kind, 0, 0, 0, 1, (at >> 8) as u8, at as u8, 0]);
        page[8..10].copy_from_slice(&(at as u16).to_be_bytes());
        page[at..at + cell.len()].copy_from_slice(cell);
        page
    }

    fn cell_length(kind: u8, cell: &[u8]) -> Option<usize> {
        Tree::new(&leaf(kind, 100, cell)[..], 0).unwrap().cell(0).map(<[u8]>::len)
    }

    #[test]
    fn cells_are_as_long_as_the_file_format_says() {
        assert_eq!(cell_length(TABLE_LEAF, &[10, 1]), Some(12));
        assert_eq!(cell_length(TABLE_LEAF, &[10, 0x81, 1]), Some(13));
        assert_eq!(cell_length(TABLE_LEAF, &[0, 1]), Some(4), "the smallest");
        assert_eq!(cell_length(INDEX_LEAF, &[10]), Some(11));
        // 477 = 512 - 35 bytes fit. Of 478 bytes, 39 + (478 - 39) % 508 = 478 would stay, which is too much, so 39
        // stay.
        assert_eq!(cell_length(TABLE_LEAF, &[0x83, 0x5d, 1]), None, "past the end");
        assert_eq!(cell_length(TABLE_LEAF, &[0x83, 0x5e, 1]), Some(3 + 39 + 4));
        // An index cell keeps at most 102 bytes on the page.
        assert_eq!(cell_length(INDEX_LEAF, &[102]), Some(103));
        assert_eq!(cell_length(INDEX_LEAF, &[103]), Some(1 + 39 + 4));
    }

    #[test]
    fn what_is_no_tree_is_refused() {
        assert!(Tree::new(&leaf(7, 100, &[1])[..], 0).is_none());
        assert!(Tree::new(&leaf(13, 9, &[1])[..], 0).is_none(), "pointers in the content");
        assert!(Tree::new(&leaf(13, 100, &[1])[..], 0).is_some());
        assert!(Tree::new(&[0; 0][..], 0).is_none());
    }
}
