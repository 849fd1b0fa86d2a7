//! SQLite's b-tree pages: the header, the cell pointers, the cells, and how SQLite changes the bytes of a page when it
//! inserts and drops a cell (`insertCell`, `dropCell`, `allocateSpace`, `freeSpace`, `defragmentPage`).
//!
//! The code trusts nothing in a page. It checks every access, and returns `None` if the page contradicts itself.
//!
//! The installed SQLite may insert and drop cells differently from this code. The log is correct nevertheless, because
//! the encoder runs this code too, and records all bytes that still differ. But this code must never change, because
//! readers must be able to apply the changes that earlier versions have encoded.

use std::ops::{Deref, DerefMut};

/// Offsets in the header of a b-tree page.
const FIRST_FREEBLOCK: usize = 1;
const CELLS: usize = 3;
const CONTENT: usize = 5;
const FRAGMENTS: usize = 7;
/// Size of a leaf's header in bytes. The header of an interior page is longer by a pointer to the last child.
const HEADER_BYTES: usize = 8;
const CHILD_BYTES: usize = 4;

const INDEX_INTERIOR: u8 = 2;
const TABLE_INTERIOR: u8 = 5;
const INDEX_LEAF: u8 = 10;
const TABLE_LEAF: u8 = 13;
/// The bit in a page's type that says that the page is a leaf.
const LEAF: u8 = 8;

/// The least number of bytes that a cell takes, because a dropped cell has to leave space for a freeblock.
const SMALLEST_CELL: usize = 4;
/// Size of the longest varint in bytes.
const VARINT_BYTES: usize = 9;

/// A b-tree page. If its bytes are mutable, callers can insert and drop cells.
#[derive(Clone, Copy)]
pub(super) struct Tree<B> {
    pub(super) bytes: B,
    /// The offset of the b-tree header.
    pub(super) header: usize,
}

impl<B: Deref<Target = [u8]>> Tree<B> {
    /// Returns the page, if it looks like a b-tree page. It must have a known type, and the array of cell pointers must
    /// end before the cells begin.
    pub(super) fn new(bytes: B, header: usize) -> Option<Self> {
        let tree = Self { bytes, header };
        let known = matches!(tree.kind(), INDEX_INTERIOR | TABLE_INTERIOR | INDEX_LEAF | TABLE_LEAF);
        let sound = tree.pointers_end() <= tree.content() && tree.content() <= tree.bytes.len();
        (known && sound).then_some(tree)
    }

    /// Returns the page's type; 0 if the page is too short.
    pub(super) fn kind(&self) -> u8 {
        self.bytes.get(self.header).copied().unwrap_or(0)
    }

    fn is_leaf(&self) -> bool {
        self.kind() & LEAF != 0
    }

    /// Returns the big-endian 16-bit number at `at`; 0 if that is outside the page.
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

    /// Returns the offset of the word that links to the first freeblock.
    pub(super) fn free_list(&self) -> usize {
        self.header + FIRST_FREEBLOCK
    }

    /// Returns where the content (the cells) begins. A stored 0 means 65536, the end of the largest page.
    pub(super) fn content(&self) -> usize {
        match self.number(self.header + CONTENT) {
            0 => 65536,
            at => at,
        }
    }

    pub(super) fn fragments(&self) -> usize {
        usize::from(self.bytes.get(self.header + FRAGMENTS).copied().unwrap_or(0))
    }

    /// Returns where the cell pointers begin.
    pub(super) fn pointers(&self) -> usize {
        self.header + HEADER_BYTES + if self.is_leaf() { 0 } else { CHILD_BYTES }
    }

    pub(super) fn pointers_end(&self) -> usize {
        self.pointers() + 2 * self.cells()
    }

    /// Returns the array of cell pointers as bytes. It is inside the page, because [`Tree::new`] has checked that.
    pub(super) fn pointer_bytes(&self) -> &[u8] {
        self.bytes.get(self.pointers()..self.pointers_end()).unwrap_or(&[])
    }

    /// Returns where the cell of a slot begins. Returns 0 if the slot's pointer would be outside the page.
    #[inline]
    pub(super) fn pointer(&self, slot: usize) -> usize {
        self.number(self.pointers() + 2 * slot)
    }

    /// Returns the cell of a slot.
    pub(super) fn cell(&self, slot: usize) -> Option<&[u8]> {
        self.cell_at(self.pointer(slot))
    }

    /// Returns the cell that begins at `at`, without its overflow pages.
    pub(super) fn cell_at(&self, at: usize) -> Option<&[u8]> {
        let length = self.cell_bytes(at)?;
        self.bytes.get(at..at + length)
    }

    /// Returns the length of the cell at `at`, computed from its first bytes by the rules of the file format.
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

/// Returns one of two limits of SQLite's file format for index cells. With `share` 64, returns the largest number of
/// payload bytes that a cell keeps on its page. With `share` 32, returns the smallest number that it keeps there if the
/// payload overflows.
fn index_payload(usable: usize, share: usize) -> Option<usize> {
    ((usable.checked_sub(12)?) * share / 255).checked_sub(23)
}

/// Reads SQLite's variable-length integer. Returns its value, and its length in bytes.
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
    /// Writes a big-endian number. Writes 65536 as 0.
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

/// The size in bytes of the smallest freeblock. Free bytes in a shorter run are called fragments.
const FREEBLOCK_BYTES: usize = 4;
/// In a page with more fragment bytes than this, SQLite makes no further fragments: it does not place a cell in a
/// freeblock if fewer than four bytes of the freeblock would remain.
const MOST_FRAGMENTS: usize = 57;
/// The most fragment bytes that SQLite leaves in a page when it packs the page. SQLite packs in one of two ways. If the
/// page has at most this many fragment bytes, and one or two freeblocks, SQLite only moves the bytes before and between
/// the freeblocks, and the fragments remain. Otherwise it writes all cells again, and no fragments remain. The limit is
/// lower if the new cell needs the space of the fragments.
const FRAGMENTS_KEPT: usize = 4;

/// Where a new cell goes. The *gap* is the unused space between the cell pointers and the cells.
pub(super) enum Place {
    /// In the last bytes of a freeblock, or in all of them. `link` is the offset of the link to that freeblock.
    Freeblock { link: usize, block: usize, bytes: usize },
    /// At the end of the gap, just before the first cell.
    Gap,
    /// At the end of the gap, after the page was packed.
    Packed { fragments_kept: usize },
}

impl<B: Deref<Target = [u8]>> Tree<B> {
    /// Returns the offset at which SQLite places a cell of `length` bytes, and how it makes the space. Returns `None`
    /// if the page has no space for the cell, or contradicts itself.
    pub(super) fn place(&self, length: usize) -> Option<(usize, Place)> {
        let (gap, top) = (self.pointers_end(), self.content());
        if gap > top || top > self.bytes.len() || length < FREEBLOCK_BYTES {
            return None;
        }
        if self.number(self.free_list()) != 0
            && gap + 2 <= top
            && let Some(found) = self.freeblock_for(length)
        {
            return (found.0 > gap).then_some(found);
        }
        if gap + 2 + length <= top {
            return Some((top - length, Place::Gap));
        }
        let spare = self.free_bytes()?.checked_sub(2 + length)?;
        let fragments_kept = spare.min(FRAGMENTS_KEPT);
        Some((self.packed(fragments_kept)?.checked_sub(length)?, Place::Packed { fragments_kept }))
    }

    /// Returns the freeblocks in order. For each freeblock returns the offset of the link that leads to it, its own
    /// offset, and its size in bytes.
    fn freeblocks(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let mut link = self.free_list();
        std::iter::from_fn(move || {
            let block = self.number(link);
            let ascends = block > link && block + FREEBLOCK_BYTES <= self.bytes.len();
            let found = (link, block, self.number(block + 2));
            link = block;
            ascends.then_some(found)
        })
        .fuse()
    }

    fn freeblock_for(&self, length: usize) -> Option<(usize, Place)> {
        let (link, block, bytes) = self.freeblocks().find(|(_, _, bytes)| *bytes >= length)?;
        let excess = bytes - length;
        let place = Place::Freeblock { link, block, bytes };
        if excess < FREEBLOCK_BYTES {
            return (self.fragments() <= MOST_FRAGMENTS).then_some((block, place));
        }
        (block + bytes <= self.bytes.len()).then_some((block + excess, place))
    }

    /// Returns the freeblock from which SQLite could have taken the `length` bytes at `at` for a cell.
    fn freeblock_around(&self, at: usize, length: usize) -> Option<Place> {
        let (link, block, bytes) = self.freeblocks().take_while(|(_, block, _)| *block <= at).last()?;
        let excess = bytes.checked_sub(length)?;
        let taken = if excess < FREEBLOCK_BYTES { block } else { block + excess };
        (taken == at).then_some(Place::Freeblock { link, block, bytes })
    }

    fn free_bytes(&self) -> Option<usize> {
        let blocks: usize = self.freeblocks().map(|(_, _, bytes)| bytes).sum();
        (self.content() + blocks + self.fragments()).checked_sub(self.pointers_end())
    }

    /// Returns the page's freeblocks, if there are one or two of them and SQLite can pack the page by moving the bytes
    /// before them. (0, 0) stands for a second freeblock that does not exist.
    fn one_or_two_freeblocks(&self, fragments_kept: usize) -> Option<[(usize, usize); 2]> {
        let mut blocks = self.freeblocks().map(|(_, block, bytes)| (block, bytes));
        let found = [blocks.next()?, blocks.next().unwrap_or((0, 0))];
        (self.fragments() <= fragments_kept && blocks.next().is_none()).then_some(found)
    }

    /// Returns the offset at which the cells would begin after packing.
    fn packed(&self, fragments_kept: usize) -> Option<usize> {
        if let Some([(_, first), (_, second)]) = self.one_or_two_freeblocks(fragments_kept) {
            return Some(self.content() + first + second);
        }
        Some(self.pointers_end() + self.free_bytes()?)
    }
}

impl<B: DerefMut<Target = [u8]>> Tree<B> {
    /// Inserts a cell. If `at` is given, the cell goes to that offset, which may be anywhere after the cell pointers.
    /// Without `at`, it goes where SQLite would place it.
    pub(super) fn insert(&mut self, slot: usize, at: Option<usize>, cell: &[u8]) -> Option<()> {
        let cells = self.cells();
        if slot > cells {
            return None;
        }
        let at = match at {
            Some(at) => self.occupy(at, cell.len())?,
            None => self.allocate(cell.len())?,
        };
        self.bytes.get_mut(at..at + cell.len())?.copy_from_slice(cell);
        let pointer = self.pointers() + 2 * slot;
        self.copy(pointer, pointer + 2, 2 * (cells - slot))?;
        self.put(pointer, at)?;
        self.put_cells(cells + 1)
    }

    fn occupy(&mut self, at: usize, length: usize) -> Option<usize> {
        if at < self.pointers_end() + 2 {
            return None;
        }
        if at + length == self.content() {
            self.put_content(at)?;
        } else if let Some(Place::Freeblock { link, block, bytes }) = self.freeblock_around(at, length) {
            self.take(link, block, bytes, length)?;
        }
        Some(at)
    }

    fn allocate(&mut self, length: usize) -> Option<usize> {
        let (at, place) = self.place(length)?;
        match place {
            Place::Freeblock { link, block, bytes } => self.take(link, block, bytes, length)?,
            Place::Gap => self.put_content(at)?,
            Place::Packed { fragments_kept } => {
                self.pack(fragments_kept)?;
                self.put_content(at)?;
            }
        }
        (at >= self.pointers_end() + 2).then_some(at)
    }

    /// Takes `length` bytes from a freeblock.
    fn take(&mut self, link: usize, block: usize, bytes: usize, length: usize) -> Option<()> {
        let excess = bytes - length;
        if excess < FREEBLOCK_BYTES {
            self.put(link, self.number(block))?;
            return self.put_fragments(self.fragments() + excess);
        }
        self.put(block + 2, excess)
    }

    /// Drops the cell of a slot. With `zeroing`, zeroes the freed bytes, as a connection with `PRAGMA secure_delete`
    /// does.
    pub(super) fn drop_cell(&mut self, slot: usize, zeroing: bool) -> Option<()> {
        let cells = self.cells();
        if slot >= cells {
            return None;
        }
        let length = self.cell(slot)?.len();
        self.free(self.pointer(slot), length, zeroing)?;
        if cells == 1 {
            self.put(self.free_list(), 0)?;
            self.put_fragments(0)?;
            self.put_content(self.bytes.len())?;
        } else {
            let pointer = self.pointers() + 2 * slot;
            self.copy(pointer + 2, pointer, 2 * (cells - 1 - slot))?;
        }
        self.put_cells(cells - 1)
    }

    /// Frees `start..start + length`. The bytes become part of the gap, or part of a freeblock that also absorbs
    /// adjacent freeblocks.
    fn free(&mut self, mut start: usize, length: usize, zeroing: bool) -> Option<()> {
        let mut end = start + length;
        let before = self.freeblocks().take_while(|(_, block, _)| *block < start).last();
        let mut link = before.map_or(self.free_list(), |(_, block, _)| block);
        let mut next = self.number(link);
        let mut fragments = 0;
        if next != 0 && end + FREEBLOCK_BYTES > next {
            fragments = next.checked_sub(end)?;
            end = next + self.number(next + 2);
            next = self.number(next);
        }
        if let Some((named_by, block, bytes)) = before
            && block + bytes + FREEBLOCK_BYTES > start
        {
            fragments += start.checked_sub(block + bytes)?;
            start = block;
            link = named_by;
        }
        self.put_fragments(self.fragments().checked_sub(fragments)?)?;
        if zeroing {
            self.bytes.get_mut(start..end)?.fill(0);
        }
        if start <= self.content() {
            if start < self.content() || link != self.free_list() || end > self.bytes.len() {
                return None;
            }
            self.put(link, next)?;
            return self.put_content(end);
        }
        self.put(link, start)?;
        self.put(start, next)?;
        self.put(start + 2, end - start)
    }

    /// Packs the page: moves all cells towards the page's end, so that no freeblock remains.
    fn pack(&mut self, fragments_kept: usize) -> Option<()> {
        let top = match self.one_or_two_freeblocks(fragments_kept) {
            Some([first, second]) => self.close_freeblocks(first, second)?,
            None => self.rewrite_cells()?,
        };
        let gap = self.pointers_end();
        self.put_content(top)?;
        self.put(self.free_list(), 0)?;
        self.bytes.get_mut(gap..top)?.fill(0);
        Some(())
    }

    /// Closes one or two freeblocks by moving the bytes before and between them towards the page's end. Returns where
    /// the content begins.
    fn close_freeblocks(&mut self, first: (usize, usize), second: (usize, usize)) -> Option<usize> {
        let (top, moved) = (self.content(), first.1 + second.1);
        if top >= first.0 {
            return None;
        }
        if second.0 != 0 {
            let between = first.0 + first.1;
            self.copy(between, between + second.1, second.0.checked_sub(between)?)?;
        }
        self.copy(top, top + moved, first.0 - top)?;
        for slot in 0..self.cells() {
            let at = self.pointer(slot);
            let by = if at < first.0 { moved } else { second.1 };
            if at < first.0 || at < second.0 {
                self.put(self.pointers() + 2 * slot, at + by)?;
            }
        }
        Some(top + moved)
    }

    /// Writes the cells from the page's end downwards, in the order of their slots. Returns where the content begins.
    fn rewrite_cells(&mut self) -> Option<usize> {
        let before = Tree { bytes: self.bytes.to_vec(), header: self.header };
        let mut top = self.bytes.len();
        for slot in 0..before.cells() {
            let cell = before.cell(slot)?;
            top = top.checked_sub(cell.len())?;
            self.put(self.pointers() + 2 * slot, top)?;
            self.bytes.get_mut(top..top + cell.len())?.copy_from_slice(cell);
        }
        self.put_fragments(0)?;
        (top >= self.pointers_end()).then_some(top)
    }
}

#[cfg(test)]
#[path = "btree_tests.rs"]
mod tests;
