//! The cells of a tree's page. Slots, each with the offset of a cell, follow the header in key order. Cells are
//! allocated from the page's end downwards.
//!
//! A page that has passed its checksum is well formed. The code here does not rely on that, but checks each slot's
//! offset before use.

use duralite_format::FormatError;
use duralite_format::bytes::{array, put, u16_le, u32_le, u64_le};

use super::PageId;
use super::page::{
    self, PAGE_HEADER_BYTES, PageKind, count, dead, extra, heap, kind, set_count, set_dead, set_heap,
};

/// The longest key in bytes.
pub const KEY_LIMIT: usize = 1024;
/// The number of bytes before the key in a leaf's cell. They hold the length of the key and the length of the value.
/// The value's length includes a flag.
pub const LEAF_CELL_HEAD: usize = 6;
/// The number of bytes before the key in an inner page's cell. They hold the key's length, and the child.
pub const INNER_CELL_HEAD: usize = 10;
/// A flag in the value's length. It says that the value is in overflow pages.
const LONG_VALUE: u32 = 1 << 31;
/// The number of bytes in the cell of a value that is in overflow pages. They replace the value, and hold its length
/// and the first page of its chain.
const LONG_VALUE_BYTES: usize = 16;
const SLOT_BYTES: usize = 2;

const DAMAGED: FormatError = FormatError::Damaged { what: "a page of a tree" };

/// A row's value, as the cell in the leaf holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// The value is in the leaf.
    Inline(&'a [u8]),
    /// The value is in a chain of overflow pages.
    Long {
        /// The length of the value in bytes.
        bytes: u64,
        /// The first page of the chain.
        first: PageId,
    },
}

/// Makes a cell for a leaf.
#[must_use]
pub fn leaf_cell(key: &[u8], value: Value<'_>) -> Vec<u8> {
    let value_bytes = match value {
        Value::Inline(bytes) => bytes.len(),
        Value::Long { .. } => LONG_VALUE_BYTES,
    };
    let mut cell = Vec::with_capacity(LEAF_CELL_HEAD + key.len() + value_bytes);
    cell.extend((key.len() as u16).to_le_bytes());
    match value {
        Value::Inline(bytes) => {
            cell.extend((bytes.len() as u32).to_le_bytes());
            cell.extend(key);
            cell.extend(bytes);
        }
        Value::Long { bytes, first } => {
            cell.extend((LONG_VALUE | LONG_VALUE_BYTES as u32).to_le_bytes());
            cell.extend(key);
            cell.extend(bytes.to_le_bytes());
            cell.extend(first.to_le_bytes());
        }
    }
    cell
}

/// Makes a cell for an inner page. The child `child` covers the keys from `key` up to the next cell's key.
#[must_use]
pub fn inner_cell(key: &[u8], child: PageId) -> Vec<u8> {
    let mut cell = Vec::with_capacity(INNER_CELL_HEAD + key.len());
    cell.extend((key.len() as u16).to_le_bytes());
    cell.extend(child.to_le_bytes());
    cell.extend(key);
    cell
}

/// Returns the value that a leaf's cell holds.
///
/// # Errors
/// [`FormatError::Damaged`] if the bytes are not a valid cell.
pub fn leaf_value(cell: &[u8]) -> Result<Value<'_>, FormatError> {
    let key = usize::from(u16_le(cell, 0));
    let word = u32_le(cell, 2);
    let bytes = cell.get(LEAF_CELL_HEAD + key..).ok_or(DAMAGED)?;
    if word & LONG_VALUE == 0 {
        return if bytes.len() == word as usize { Ok(Value::Inline(bytes)) } else { Err(DAMAGED) };
    }
    if bytes.len() != LONG_VALUE_BYTES {
        return Err(DAMAGED);
    }
    Ok(Value::Long { bytes: u64_le(bytes, 0), first: u64_le(bytes, 8) })
}

fn head_bytes(kind: PageKind) -> usize {
    if kind == PageKind::Inner { INNER_CELL_HEAD } else { LEAF_CELL_HEAD }
}

/// Returns the key in a cell of a page of the kind `kind`.
///
/// # Errors
/// [`FormatError::Damaged`] if the cell is shorter than its key.
pub fn cell_key(kind: PageKind, cell: &[u8]) -> Result<&[u8], FormatError> {
    let head = head_bytes(kind);
    let len = usize::from(u16_le(cell, 0));
    cell.get(head..head + len).ok_or(DAMAGED)
}

/// Returns the number of cells in the page.
#[must_use]
pub fn cell_count(page: &[u8]) -> usize {
    count(page)
}

fn slot_at(index: usize) -> usize {
    PAGE_HEADER_BYTES + index * SLOT_BYTES
}

/// Returns the cell with this index, in key order.
///
/// # Errors
/// [`FormatError::Damaged`] if there is no such cell, or if the cell is not within the page.
#[inline]
pub fn cell(page: &[u8], index: usize) -> Result<&[u8], FormatError> {
    let at = usize::from(u16::from_le_bytes(array(page, slot_at(index)).ok_or(DAMAGED)?));
    let rest = page.get(at..).ok_or(DAMAGED)?;
    let len = cell_bytes(kind(page), rest)?;
    if index >= count(page) || at < PAGE_HEADER_BYTES {
        return Err(DAMAGED);
    }
    rest.get(..len).ok_or(DAMAGED)
}

/// Returns the length of the cell at the beginning of `bytes`.
#[inline]
fn cell_bytes(kind: PageKind, bytes: &[u8]) -> Result<usize, FormatError> {
    let key = usize::from(u16::from_le_bytes(array(bytes, 0).ok_or(DAMAGED)?));
    if kind == PageKind::Inner {
        return Ok(INNER_CELL_HEAD + key);
    }
    let value = u32::from_le_bytes(array(bytes, 2).ok_or(DAMAGED)?);
    Ok(LEAF_CELL_HEAD + key + (value & !LONG_VALUE) as usize)
}

/// Searches for a key among the cells. Returns `Ok` with the index of the cell that has the key, or `Err` with the
/// index where such a cell would be inserted.
///
/// # Errors
/// [`FormatError::Damaged`] if a slot or a cell is not within the page.
pub fn search(page: &[u8], key: &[u8]) -> Result<Result<usize, usize>, FormatError> {
    // Most lookups spend their time in this function. So everything that is the same for all cells is computed outside
    // the loop.
    let head = head_bytes(kind(page));
    let slots = page.get(PAGE_HEADER_BYTES..slot_at(count(page))).ok_or(DAMAGED)?;
    let (slots, _) = slots.as_chunks::<SLOT_BYTES>();
    let (mut low, mut high) = (0, slots.len());
    while low < high {
        let middle = low + (high - low) / 2;
        match key_at(page, head, slots[middle])?.cmp(key) {
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Equal => return Ok(Ok(middle)),
            std::cmp::Ordering::Greater => high = middle,
        }
    }
    Ok(Err(low))
}

/// Returns the key of the cell to which a slot points. `head` is the number of bytes before the key.
#[inline]
fn key_at(page: &[u8], head: usize, slot: [u8; SLOT_BYTES]) -> Result<&[u8], FormatError> {
    let at = usize::from(u16::from_le_bytes(slot));
    if at < PAGE_HEADER_BYTES {
        return Err(DAMAGED);
    }
    let cell = page.get(at..).ok_or(DAMAGED)?;
    let len = usize::from(u16::from_le_bytes(*cell.first_chunk().ok_or(DAMAGED)?));
    cell.get(head..head + len).ok_or(DAMAGED)
}

/// Returns the page number of a child of an inner page. Child 0 is left of all keys; child `n` belongs to cell `n - 1`.
///
/// # Errors
/// [`FormatError::Damaged`] if there is no such child.
#[inline]
pub fn child_at(page: &[u8], place: usize) -> Result<PageId, FormatError> {
    match place.checked_sub(1) {
        None => Ok(extra(page)),
        Some(index) => Ok(u64_le(cell(page, index)?, 2)),
    }
}

/// Returns the index of the child that covers this key, for [`child_at`].
///
/// # Errors
/// [`FormatError::Damaged`] if a slot or a cell is not within the page.
#[inline]
pub fn child_for(page: &[u8], key: &[u8]) -> Result<usize, FormatError> {
    Ok(match search(page, key)? {
        Ok(index) => index + 1,
        Err(index) => index,
    })
}

/// Returns how many bytes one more cell and its slot may take together. The page may have to be compacted to make that
/// room.
#[must_use]
pub fn free_bytes(page: &[u8]) -> usize {
    (heap(page) + dead(page)).saturating_sub(slot_at(count(page)))
}

/// Returns how many bytes between the cells belong to no cell.
#[must_use]
pub fn dead_bytes(page: &[u8]) -> usize {
    dead(page)
}

/// Returns the size of all cells and slots in bytes.
#[must_use]
pub fn used_bytes(page: &[u8]) -> usize {
    (page.len() - PAGE_HEADER_BYTES).saturating_sub(free_bytes(page))
}

/// Checks that slots and cells do not overlap, and do not exceed the page. Every change of a page checks this first.
fn check_shape(page: &[u8]) -> Result<(), FormatError> {
    let fits = slot_at(count(page)) <= heap(page) && heap(page) + dead(page) <= page.len();
    if fits { Ok(()) } else { Err(DAMAGED) }
}

/// Puts a cell into the page, in place of the cell with the same key, if there is one.
pub(super) fn put_cell(page: &mut [u8], new: &[u8]) -> Result<(), FormatError> {
    check_shape(page)?;
    let kind = kind(page);
    if cell_bytes(kind, new)? != new.len() {
        return Err(DAMAGED);
    }
    let index = match search(page, cell_key(kind, new)?)? {
        Ok(index) => {
            let old = cell(page, index)?.len();
            if old == new.len() {
                let at = usize::from(u16_le(page, slot_at(index)));
                put(page, at, new);
                return Ok(());
            }
            remove_at(page, index)?;
            index
        }
        Err(index) => index,
    };
    insert_at(page, index, new)
}

fn insert_at(page: &mut [u8], index: usize, new: &[u8]) -> Result<(), FormatError> {
    check_shape(page)?;
    if free_bytes(page) < new.len() + SLOT_BYTES {
        return Err(FormatError::Damaged { what: "a change that does not fit into its page" });
    }
    let cells = count(page);
    if heap(page) < slot_at(cells + 1) + new.len() {
        compact(page)?;
    }
    let at = heap(page).checked_sub(new.len()).ok_or(DAMAGED)?;
    if at < slot_at(cells + 1) {
        return Err(DAMAGED);
    }
    put(page, at, new);
    set_heap(page, at as u16);
    page.copy_within(slot_at(index)..slot_at(cells), slot_at(index + 1));
    put(page, slot_at(index), &(at as u16).to_le_bytes());
    set_count(page, cells + 1);
    Ok(())
}

/// Appends a cell, given in pieces, after all others. The caller has to append cells in key order; this function does
/// not check that.
///
/// # Errors
/// [`FormatError::Damaged`] if the cell does not fit. The page is then unchanged.
pub fn push_cell(page: &mut [u8], pieces: &[&[u8]]) -> Result<(), FormatError> {
    check_shape(page)?;
    let (cells, bytes) = (count(page), pieces.iter().map(|piece| piece.len()).sum());
    let at = heap(page).checked_sub(bytes).filter(|at| slot_at(cells + 1) <= *at);
    let at = at.ok_or(FormatError::Damaged { what: "a cell that does not fit into its page" })?;
    let mut next = at;
    for piece in pieces {
        put(page, next, piece);
        next += piece.len();
    }
    put(page, slot_at(cells), &(at as u16).to_le_bytes());
    set_heap(page, at as u16);
    set_count(page, cells + 1);
    Ok(())
}

/// Makes the first bytes of a leaf's cell, before the key, for a value that is in the leaf itself.
#[must_use]
pub fn leaf_cell_head(key: &[u8], value: &[u8]) -> [u8; LEAF_CELL_HEAD] {
    let mut head = [0; LEAF_CELL_HEAD];
    put(&mut head, 0, &(key.len() as u16).to_le_bytes());
    put(&mut head, 2, &(value.len() as u32).to_le_bytes());
    head
}

/// Moves the cells together, so that no unused bytes are left between them.
fn compact(page: &mut [u8]) -> Result<(), FormatError> {
    check_shape(page)?;
    let mut ordered = page.to_vec();
    let mut at = page.len();
    for index in 0..count(page) {
        let bytes = cell(page, index)?;
        at = at.checked_sub(bytes.len()).ok_or(DAMAGED)?;
        if at < slot_at(count(page)) {
            return Err(DAMAGED);
        }
        put(&mut ordered, at, bytes);
        put(&mut ordered, slot_at(index), &(at as u16).to_le_bytes());
    }
    set_heap(&mut ordered, at as u16);
    set_dead(&mut ordered, 0);
    page.copy_from_slice(&ordered);
    Ok(())
}

fn remove_at(page: &mut [u8], index: usize) -> Result<(), FormatError> {
    check_shape(page)?;
    let at = usize::from(u16_le(page, slot_at(index)));
    let len = cell(page, index)?.len();
    let cells = count(page);
    page.copy_within(slot_at(index + 1)..slot_at(cells), slot_at(index));
    set_count(page, cells - 1);
    if at == heap(page) {
        set_heap(page, (at + len) as u16);
    } else {
        let gone = dead(page) + len;
        set_dead(page, gone);
    }
    if cells == 1 {
        let end = page.len() as u16;
        set_heap(page, end);
        set_dead(page, 0);
    }
    Ok(())
}

/// Removes the cell with this key, if there is one.
pub(super) fn remove_key(page: &mut [u8], key: &[u8]) -> Result<(), FormatError> {
    if let Ok(index) = search(page, key)? {
        remove_at(page, index)?;
    }
    Ok(())
}

/// Removes every cell with this key or a larger one.
pub(super) fn cut_from(page: &mut [u8], key: &[u8]) -> Result<(), FormatError> {
    let (Ok(first) | Err(first)) = search(page, key)?;
    while count(page) > first {
        let last = count(page) - 1;
        remove_at(page, last)?;
    }
    compact(page)
}

/// Checks that a tree's page is well formed: all cells are within the page, none overlap, and keys ascend.
///
/// # Errors
/// [`FormatError::Damaged`] if the page is not well formed.
pub fn validate(page: &[u8]) -> Result<(), FormatError> {
    let kind = page::kind(page);
    if kind != PageKind::Inner && kind != PageKind::Leaf {
        return Err(DAMAGED);
    }
    let mut bytes = 0;
    let mut before: Option<&[u8]> = None;
    for index in 0..count(page) {
        let one = cell(page, index)?;
        let key = cell_key(kind, one)?;
        if kind == PageKind::Leaf {
            leaf_value(one)?;
        }
        if before.is_some_and(|before| before >= key) || key.len() > KEY_LIMIT {
            return Err(DAMAGED);
        }
        before = Some(key);
        bytes += one.len();
    }
    let fits = heap(page) >= slot_at(count(page)) && heap(page) + bytes + dead(page) == page.len();
    if fits { Ok(()) } else { Err(DAMAGED) }
}
