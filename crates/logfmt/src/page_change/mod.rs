//! What makes the new image of a page of the old one, as small as it gets: operations on the cells of a b-tree
//! page (SQLite/PPL, section 3.2: physiological records), bytes that moved, ranges of bytes, or all of it.
//!
//! `docs/format/page-change.md` is the specification. A payload says of what kind it is, and any bytes may be
//! taken for one (invariant 12). Who encodes a change does to a copy of the old page what a reader will do, and
//! adds what is still different; so it comes out byte for byte, whatever SQLite did.

mod align;
mod btree;
mod cells;
mod moves;
mod number;
mod operation;
mod ranges;
mod space;

#[cfg(test)]
mod tests;

use crate::FormatError;
use number::Reader;

pub use cells::MAX_OPERATIONS;

/// First bytes of a payload, but for the bits of [`KIND_CELLS`].
pub const KIND_CELLS: u8 = 1;
/// See `ChangeKind::Moves`.
pub const KIND_MOVES: u8 = 2;
/// See `ChangeKind::Ranges`.
pub const KIND_RANGES: u8 = 3;
/// See `ChangeKind::Whole`.
pub const KIND_WHOLE: u8 = 4;
/// With [`KIND_CELLS`]: the b-tree header begins after the database header.
pub const PAGE_ONE: u8 = 0x10;
/// With [`KIND_CELLS`]: what is freed is filled with zeros (`PRAGMA secure_delete`).
pub const ZEROED: u8 = 0x20;
/// The header of a database, which page 1 begins with.
pub const DATABASE_HEADER_BYTES: usize = 100;

/// A payload that contradicts itself or the page.
const DAMAGED: FormatError = FormatError::Damaged { what: "a page change" };

/// Ranges up to this long are not worth looking for anything else.
const SHORT_CHANGE: usize = 10;
/// Cells that leave no more than this to ranges are not worth looking for moves.
const FEW_LEFT_OVER: usize = 48;
/// What is longer than this part of a page may be longer than the page without its zeros.
const WHOLE_FROM: usize = 8;

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

/// Memory that encoding uses again and again. It has no influence on what is encoded.
#[derive(Debug, Default)]
pub struct Scratch {
    /// The old page, with done to it what is encoded so far.
    page: Vec<u8>,
    trial: Vec<u8>,
    other: Vec<u8>,
    cell: Vec<u8>,
    patch: Vec<u8>,
    seen: Vec<u64>,
    steps: Vec<align::Step>,
    moves: Vec<moves::Move>,
    /// Whether the trial says the place of a cell.
    placed: bool,
}

/// Appends to `out` a payload that makes `new` of `old`, and returns its kind. Both are of one page size, 512 to
/// 65536 bytes. `header_bytes` is 100 for page 1, where the b-tree header comes after the database header, else
/// 0. The payload is the smallest that was found, at most two bytes longer than what `diff::encode` makes.
pub fn encode(
    scratch: &mut Scratch,
    old: &[u8],
    new: &[u8],
    header_bytes: usize,
    out: &mut Vec<u8>,
) -> ChangeKind {
    debug_assert!(old.len() == new.len() && new.len() <= 65536);
    debug_assert!(header_bytes == 0 || header_bytes == DATABASE_HEADER_BYTES);
    let start = out.len();
    out.push(KIND_RANGES);
    ranges::encode(old, new, out);
    let mut best = Best { start, kind: ChangeKind::Ranges, out };
    if best.length() <= SHORT_CHANGE {
        return best.kind;
    }
    let cells = cells::encode(scratch, old, new, header_bytes, best.length());
    if cells.is_some() {
        best.offer(&scratch.trial, ChangeKind::Cells);
    }
    if cells.is_none_or(|left_over| left_over > FEW_LEFT_OVER)
        && moves::encode(scratch, old, new, header_bytes)
    {
        best.offer(&scratch.trial, ChangeKind::Moves);
    }
    if best.length() > new.len() / WHOLE_FROM {
        scratch.trial.clear();
        encode_whole(new, &mut scratch.trial);
        best.offer(&scratch.trial, ChangeKind::Whole);
    }
    best.kind
}

/// The shortest payload so far, which `out` ends with.
struct Best<'a> {
    start: usize,
    kind: ChangeKind,
    out: &'a mut Vec<u8>,
}

impl Best<'_> {
    fn length(&self) -> usize {
        self.out.len() - self.start
    }

    fn offer(&mut self, payload: &[u8], kind: ChangeKind) {
        if payload.len() < self.length() {
            self.out.truncate(self.start);
            self.out.extend_from_slice(payload);
            self.kind = kind;
        }
    }
}

/// Appends `new` as a change that needs no older image: what is not zero of it.
pub fn encode_whole(new: &[u8], out: &mut Vec<u8>) {
    out.push(KIND_WHOLE);
    ranges::encode_over_zeros(new, out);
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

/// Lays a payload over `page`, which holds the old image, or for a whole page anything.
///
/// # Errors
/// `Short` if the payload ends too early, `Damaged` if it contradicts itself or the page. `page` may then hold
/// part of the change.
pub fn apply(page: &mut [u8], payload: &[u8]) -> Result<(), FormatError> {
    let kind = kind(payload)?;
    let mut payload = Reader(payload);
    let first = payload.byte()?;
    match kind {
        ChangeKind::Cells => {
            let header = if first & PAGE_ONE == 0 { 0 } else { DATABASE_HEADER_BYTES };
            cells::apply(page, header, first & ZEROED != 0, &mut payload)
        }
        ChangeKind::Moves => moves::apply(page, &mut payload),
        ChangeKind::Ranges => ranges::apply(page, &mut payload),
        ChangeKind::Whole => {
            page.fill(0);
            ranges::apply(page, &mut payload)
        }
    }
}

fn first_byte_of_cells(header_bytes: usize, zeroed: bool) -> u8 {
    let page_one = if header_bytes == 0 { 0 } else { PAGE_ONE };
    KIND_CELLS | page_one | if zeroed { ZEROED } else { 0 }
}
