//! Repeats what SQLite does to the bytes of a b-tree page when it inserts and drops a cell (`insertCell`, `dropCell`,
//! `allocateSpace`, `freeSpace`, `defragmentPage`).
//!
//! The SQLite version at hand may do something else. The encoder applies this code too, and records all bytes that
//! still differ. But this code must never change, because later versions read the same logs.

use std::ops::{Deref, DerefMut};

use super::btree::Tree;

/// Free bytes that are too few for a freeblock are called fragments.
const FREEBLOCK_BYTES: usize = 4;
/// With more fragment bytes than this, SQLite takes no freeblock that would leave more fragments.
const MOST_FRAGMENTS: usize = 57;
/// The largest number of fragment bytes with which a page is packed by moving the bytes before its freeblocks.
const FRAGMENTS_KEPT: usize = 4;

/// Where a cell is put.
pub(super) enum Place {
    /// In the freeblock that `link` links to: at the end of the block, or all of it.
    Freeblock { link: usize, block: usize, bytes: usize },
    /// At the end of the gap, before the content.
    Gap,
    /// At the end of the gap, after the page was packed.
    Packed { fragments_kept: usize },
}

impl<B: Deref<Target = [u8]>> Tree<B> {
    /// Where SQLite puts a cell of `length` bytes. `None` if the page has no room, or contradicts itself.
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

    /// The freeblocks in order. Each is given by the offset of the link to it, its offset, and its size.
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

    /// The freeblock from which SQLite would take `length` bytes such that the cell is at `at`.
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

    /// The freeblocks, if the page can be packed by moving the bytes before them.
    fn one_or_two_freeblocks(&self, fragments_kept: usize) -> Option<[(usize, usize); 2]> {
        let mut blocks = self.freeblocks().map(|(_, block, bytes)| (block, bytes));
        let found = [blocks.next()?, blocks.next().unwrap_or((0, 0))];
        (self.fragments() <= fragments_kept && blocks.next().is_none()).then_some(found)
    }

    /// Where the content begins after packing.
    fn packed(&self, fragments_kept: usize) -> Option<usize> {
        if let Some([(_, first), (_, second)]) = self.one_or_two_freeblocks(fragments_kept) {
            return Some(self.content() + first + second);
        }
        Some(self.pointers_end() + self.free_bytes()?)
    }
}

impl<B: DerefMut<Target = [u8]>> Tree<B> {
    /// Inserts a cell where SQLite would put it, or at `at`. The place `at` is before the content, in a freeblock, or
    /// anywhere else after the pointers.
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

    /// Drops the cell of a slot. With `zeroing` the freed bytes are zeroed, as by a connection with `PRAGMA
    /// secure_delete`.
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

    /// Frees `start..start + length`. It becomes part of the gap, or a freeblock, together with the freeblocks next to
    /// it.
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

    /// Moves the cells to the page's end, so that no freeblock remains.
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

    /// Closes one or two freeblocks, by moving the bytes before and between them up. Returns where the content begins.
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

    /// Writes the cells one before the other, from the page's end on, in the order of their slots. Returns where the
    /// content begins.
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
#[path = "space_tests.rs"]
mod tests;
