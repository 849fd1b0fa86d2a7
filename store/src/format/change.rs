//! Changes of pages, as they are stored in log objects.

use duralite_format::FormatError;
use duralite_format::bytes::{array, put};

use super::page::{KIND_AT, PAGE_HEADER_BYTES, PageKind, heap, kind};
use super::{PageId, space_map, tree_page};

const DAMAGED: FormatError = FormatError::Damaged { what: "a change in the log" };
const SHORT: FormatError = FormatError::Short { what: "a change in the log" };

const PUT: u8 = 1;
const REMOVE: u8 = 2;
const CUT: u8 = 3;
const IMAGE: u8 = 4;
const MAP_SET: u8 = 5;
const MAP_CLEAR: u8 = 6;
const MAP_SET_RUN: u8 = 7;
const MAP_CLEAR_RUN: u8 = 8;

/// A change of one page. Its result depends only on the page's previous content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Puts a cell into a tree's page, in place of the cell with the same key, if there is one.
    Put {
        /// The cell.
        cell: &'a [u8],
    },
    /// Removes the cell with this key.
    Remove {
        /// The key.
        key: &'a [u8],
    },
    /// Removes all cells with this key or a larger one.
    Cut {
        /// The key.
        key: &'a [u8],
    },
    /// Replaces the page's content: puts `front` at byte 24, `tail` at the end of the page, and zeros between them.
    Image {
        /// The bytes after the page's LSN and number.
        front: &'a [u8],
        /// The page's last bytes.
        tail: &'a [u8],
    },
    /// Marks a page as in use in its space map.
    MapSet {
        /// The page's bit in the map.
        bit: u32,
    },
    /// Marks a page as free in its space map.
    MapClear {
        /// The page's bit in the map.
        bit: u32,
    },
    /// Marks adjacent pages as in use.
    MapSetRun {
        /// The first page's bit in the map.
        bit: u32,
        /// The number of pages.
        count: u32,
    },
    /// Marks adjacent pages as free.
    MapClearRun {
        /// The first page's bit in the map.
        bit: u32,
        /// The number of pages.
        count: u32,
    },
}

impl<'a> Change<'a> {
    /// Returns the change that gives a page the content of `page`.
    #[must_use]
    pub fn image_of(page: &'a [u8]) -> Self {
        let (front, tail) = match kind(page) {
            PageKind::Inner | PageKind::Leaf => {
                let cells = super::cell_count(page);
                ((PAGE_HEADER_BYTES + cells * 2).min(page.len()), heap(page).clamp(KIND_AT, page.len()))
            }
            PageKind::Overflow => (PAGE_HEADER_BYTES + super::payload(page).len(), page.len()),
            PageKind::Blank => (PAGE_HEADER_BYTES, page.len()),
            PageKind::SpaceMap => (page.len(), page.len()),
        };
        Change::Image { front: &page[KIND_AT..front], tail: &page[tail..] }
    }

    /// Appends the change, as a change of page `page`, to the body of a log object.
    pub fn encode(&self, page: PageId, into: &mut Vec<u8>) {
        let (kind, first, second): (u8, &[u8], &[u8]) = match self {
            Self::Put { cell } => (PUT, cell, &[]),
            Self::Remove { key } => (REMOVE, key, &[]),
            Self::Cut { key } => (CUT, key, &[]),
            Self::Image { front, tail } => (IMAGE, front, tail),
            Self::MapSet { bit } => return map_change(MAP_SET, page, *bit, into),
            Self::MapClear { bit } => return map_change(MAP_CLEAR, page, *bit, into),
            Self::MapSetRun { bit, count } => return map_run(MAP_SET_RUN, page, (*bit, *count), into),
            Self::MapClearRun { bit, count } => return map_run(MAP_CLEAR_RUN, page, (*bit, *count), into),
        };
        let mut head = [kind, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        put(&mut head, 1, &page.to_le_bytes());
        put(&mut head, 9, &(first.len() as u16).to_le_bytes());
        put(&mut head, 11, &(second.len() as u16).to_le_bytes());
        into.reserve(head.len() + first.len() + second.len());
        into.extend(head);
        into.extend(first);
        into.extend(second);
    }

    /// Decodes the change at the beginning of `bytes` and the number of its page, and moves `bytes` past both. Returns
    /// `None` if `bytes` is empty.
    ///
    /// # Errors
    /// [`FormatError`] if the bytes are not a valid change.
    pub fn decode(bytes: &mut &'a [u8]) -> Result<Option<(PageId, Self)>, FormatError> {
        let Some((kind, rest)) = bytes.split_first() else { return Ok(None) };
        let page = u64::from_le_bytes(array(rest, 0).ok_or(SHORT)?);
        let first = usize::from(u16::from_le_bytes(array(rest, 8).ok_or(SHORT)?));
        let second = usize::from(u16::from_le_bytes(array(rest, 10).ok_or(SHORT)?));
        let rest = rest.get(12..).ok_or(SHORT)?;
        let (one, rest) = rest.split_at_checked(first).ok_or(SHORT)?;
        let (two, rest) = rest.split_at_checked(second).ok_or(SHORT)?;
        let word = |at| Ok::<_, FormatError>(u32::from_le_bytes(array(one, at).ok_or(SHORT)?));
        let bit = || word(0);
        let change = match *kind {
            PUT => Self::Put { cell: one },
            REMOVE => Self::Remove { key: one },
            CUT => Self::Cut { key: one },
            IMAGE => Self::Image { front: one, tail: two },
            MAP_SET => Self::MapSet { bit: bit()? },
            MAP_CLEAR => Self::MapClear { bit: bit()? },
            MAP_SET_RUN => Self::MapSetRun { bit: bit()?, count: word(4)? },
            MAP_CLEAR_RUN => Self::MapClearRun { bit: bit()?, count: word(4)? },
            _ => return Err(DAMAGED),
        };
        *bytes = rest;
        Ok(Some((page, change)))
    }

    /// Applies the change to a page. The caller sets the page's LSN.
    ///
    /// # Errors
    /// [`FormatError::Damaged`] if the change does not fit this page. Part of the change may then have been applied.
    pub fn apply(&self, page: &mut [u8]) -> Result<(), FormatError> {
        let is_tree = matches!(kind(page), PageKind::Inner | PageKind::Leaf);
        match self {
            Self::Put { .. } | Self::Remove { .. } | Self::Cut { .. } if !is_tree => Err(DAMAGED),
            Self::Put { cell } => tree_page::put_cell(page, cell),
            Self::Remove { key } => tree_page::remove_key(page, key),
            Self::Cut { key } => tree_page::cut_from(page, key),
            Self::Image { front, tail } => {
                let tail_at = page.len().checked_sub(tail.len()).ok_or(DAMAGED)?;
                if KIND_AT + front.len() > tail_at {
                    return Err(DAMAGED);
                }
                page[KIND_AT..].fill(0);
                put(page, KIND_AT, front);
                put(page, tail_at, tail);
                Ok(())
            }
            Self::MapSet { bit } => space_map::set(page, *bit, true),
            Self::MapClear { bit } => space_map::set(page, *bit, false),
            Self::MapSetRun { bit, count } => space_map::set_run(page, *bit, *count, true),
            Self::MapClearRun { bit, count } => space_map::set_run(page, *bit, *count, false),
        }
    }
}

fn map_change(kind: u8, page: PageId, bit: u32, into: &mut Vec<u8>) {
    into.push(kind);
    into.extend(page.to_le_bytes());
    into.extend(4_u16.to_le_bytes());
    into.extend(0_u16.to_le_bytes());
    into.extend(bit.to_le_bytes());
}

fn map_run(kind: u8, page: PageId, (bit, count): (u32, u32), into: &mut Vec<u8>) {
    into.push(kind);
    into.extend(page.to_le_bytes());
    into.extend(8_u16.to_le_bytes());
    into.extend(0_u16.to_le_bytes());
    into.extend(bit.to_le_bytes());
    into.extend(count.to_le_bytes());
}
