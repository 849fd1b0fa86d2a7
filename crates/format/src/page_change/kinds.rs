//! The kinds of changes. The first byte of a payload names its kind.

use super::number::{DAMAGED, Reader};
use crate::FormatError;

/// The first byte of a payload of cell operations, without the bits [`PAGE_ONE`] and [`ZEROED`].
pub(super) const KIND_CELLS: u8 = 1;
/// See `ChangeKind::Moves`.
pub(super) const KIND_MOVES: u8 = 2;
/// See `ChangeKind::Ranges`.
pub(super) const KIND_RANGES: u8 = 3;
/// See `ChangeKind::Whole`.
pub(super) const KIND_WHOLE: u8 = 4;
/// With [`KIND_CELLS`]: the b-tree header begins after the database header.
pub(super) const PAGE_ONE: u8 = 0x10;
/// With [`KIND_CELLS`]: bytes that are freed are filled with zeros (`PRAGMA secure_delete`).
pub(super) const ZEROED: u8 = 0x20;
/// Bytes of the header of the database, with which page 1 begins.
pub(super) const DATABASE_HEADER_BYTES: usize = 100;

/// Bytes of a page before the header of its b-tree page.
#[must_use]
pub fn header_bytes(page_number: u32) -> usize {
    if page_number == 1 { DATABASE_HEADER_BYTES } else { 0 }
}

/// The form in which a change is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// Cells of a b-tree page are inserted, deleted and replaced by slot; then ranges are written.
    Cells,
    /// Bytes move within the page; then ranges are written.
    Moves,
    /// Ranges are written over the page.
    Ranges,
    /// Ranges are written over a page of zeros.
    Whole,
}

impl ChangeKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Cells, Self::Moves, Self::Ranges, Self::Whole];

    /// The name of the kind in output for people and in status tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cells => "cells",
            Self::Moves => "moves",
            Self::Ranges => "ranges",
            Self::Whole => "whole",
        }
    }
}

/// The kind of a payload, from its first byte.
///
/// # Errors
/// `Short` if the payload is empty, `Damaged` if its first byte names no kind.
pub fn kind(payload: &[u8]) -> Result<ChangeKind, FormatError> {
    match Reader(payload).byte()? {
        KIND_MOVES => Ok(ChangeKind::Moves),
        KIND_RANGES => Ok(ChangeKind::Ranges),
        KIND_WHOLE => Ok(ChangeKind::Whole),
        byte if byte & !(PAGE_ONE | ZEROED) == KIND_CELLS => Ok(ChangeKind::Cells),
        _ => Err(DAMAGED),
    }
}

/// The first byte of a payload of cell operations.
pub(super) fn first_byte_of_cells(header_bytes: usize, zeroed: bool) -> u8 {
    let page_one = if header_bytes == 0 { 0 } else { PAGE_ONE };
    KIND_CELLS | page_one | if zeroed { ZEROED } else { 0 }
}
