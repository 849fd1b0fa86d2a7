//! What a change is recorded as, and the first byte of a payload, which says so.

use super::number::{DAMAGED, Reader};
use crate::FormatError;

/// First bytes of a payload, but for the bits of [`KIND_CELLS`].
pub(super) const KIND_CELLS: u8 = 1;
/// See `ChangeKind::Moves`.
pub(super) const KIND_MOVES: u8 = 2;
/// See `ChangeKind::Ranges`.
pub(super) const KIND_RANGES: u8 = 3;
/// See `ChangeKind::Whole`.
pub(super) const KIND_WHOLE: u8 = 4;
/// With [`KIND_CELLS`]: the b-tree header begins after the database header.
pub(super) const PAGE_ONE: u8 = 0x10;
/// With [`KIND_CELLS`]: what is freed is filled with zeros (`PRAGMA secure_delete`).
pub(super) const ZEROED: u8 = 0x20;
/// The header of a database, which page 1 begins with.
pub(super) const DATABASE_HEADER_BYTES: usize = 100;

/// Bytes of a page before the header of its b-tree page.
#[must_use]
pub fn header_bytes(page_number: u32) -> usize {
    if page_number == 1 { DATABASE_HEADER_BYTES } else { 0 }
}

/// What a change is recorded as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// Cells of a b-tree page are inserted, deleted and replaced by slot; then ranges.
    Cells,
    /// Bytes move within the page; then ranges.
    Moves,
    /// Bytes are laid over the page.
    Ranges,
    /// Bytes are laid over a page of zeros.
    Whole,
}

impl ChangeKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Cells, Self::Moves, Self::Ranges, Self::Whole];

    /// The name for people and in tables of status.
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

/// Of what kind a payload is, by its first byte.
///
/// # Errors
/// `Short` if the payload is empty, `Damaged` if its first byte is that of no kind.
pub fn kind(payload: &[u8]) -> Result<ChangeKind, FormatError> {
    match Reader(payload).byte()? {
        KIND_MOVES => Ok(ChangeKind::Moves),
        KIND_RANGES => Ok(ChangeKind::Ranges),
        KIND_WHOLE => Ok(ChangeKind::Whole),
        byte if byte & !(PAGE_ONE | ZEROED) == KIND_CELLS => Ok(ChangeKind::Cells),
        _ => Err(DAMAGED),
    }
}

/// The first byte of operations on cells.
pub(super) fn first_byte_of_cells(header_bytes: usize, zeroed: bool) -> u8 {
    let page_one = if header_bytes == 0 { 0 } else { PAGE_ONE };
    KIND_CELLS | page_one | if zeroed { ZEROED } else { 0 }
}
