//! Encodes and applies changes of pages. A change is a payload that makes the new image of a page from the old one, and
//! is as short as possible. A payload consists of operations on the cells of a b-tree page (SQLite/PPL, section 3.2:
//! physiological records), moves of bytes, ranges of bytes, or the whole page.
//!
//! `docs/format/page-change.md` is the specification. The first byte of a payload says the payload's kind. A reader can
//! be given any bytes, and refuses bytes that are no valid payload (invariant 12). The encoder applies a change to a
//! copy of the old page, just as a reader will, and then records every byte that still differs. So a reader gets
//! exactly the new page, whatever SQLite did.
//!
//! A log of page changes stores the shortest payload ([`encode`]). A log of page differences stores ranges, and stores
//! operations or moves only if cells were rearranged ([`encode_rearranged`]). To find that out at little cost, the
//! encoder compares the cell pointers.

mod btree;
mod cells;
mod moves;
mod payload;

#[cfg(test)]
mod tests;

use crate::{FormatError, diff};
use btree::Tree;
pub use payload::{ChangeKind, header_bytes, kind};
use payload::{
    DATABASE_HEADER_BYTES, KIND_RANGES, KIND_WHOLE, PAGE_ONE, Reader, ZEROED, apply_ranges, encode_ranges,
    encode_ranges_over_zeros,
};

/// If a payload of cell operations has at most this many bytes of ranges, the encoder does not search for a shorter
/// payload.
const LITTLE_LEFT_OVER: usize = 8;
/// If a payload of ranges alone has at most this many bytes, the encoder does not search for a shorter payload.
const SHORT_CHANGE: usize = 10;
/// If a payload of cell operations has at most this many bytes of ranges, the encoder does not search for moves,
/// because that would take too long for what it could save.
const FEW_LEFT_OVER: usize = 48;
/// If ranges alone take at most the page's length divided by this number, the encoder does not search for moves of many
/// cells, because that would take too long for what it could save.
const LONG_CHANGE: usize = 8;
/// If the shortest payload found so far is at most as long as the page's length divided by this number, the encoder
/// does not try to encode the whole page, that is, all its bytes that are not zero.
const WHOLE_FROM: usize = 8;

/// Memory that the encoder reuses. It does not influence the encoding.
#[derive(Debug, Default)]
pub struct Scratch {
    trial: Vec<u8>,
    cells: cells::Scratch,
    moves: moves::Scratch,
}

/// Appends to `out` a payload that makes `new` from `old`, and returns its kind. Both images have the same size, 512 to
/// 65536 bytes. `header_bytes` is 100 for page 1, where the b-tree header follows the database header, else 0.
///
/// If a few cells were inserted or deleted, the encoder first tries a payload of operations on cells. It takes this
/// payload at once if only a few bytes of it are ranges. Otherwise it takes the shortest payload that it finds, which
/// is at most two bytes longer than what `diff::encode` makes.
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
    let Scratch { trial, cells, moves } = scratch;
    if cells::came_or_went(old, new, header_bytes)
        && cells::encode(cells, old, new, header_bytes, usize::MAX, trial)
            .is_some_and(|left_over| left_over <= LITTLE_LEFT_OVER)
    {
        out.extend_from_slice(trial);
        return ChangeKind::Cells;
    }
    out.push(KIND_RANGES);
    encode_ranges(old, new, out);
    let mut best = Best { start, kind: ChangeKind::Ranges, out };
    if best.length() <= SHORT_CHANGE {
        return best.kind;
    }
    let left_over = cells::encode(cells, old, new, header_bytes, best.length(), trial);
    if left_over.is_some() {
        best.offer(trial, ChangeKind::Cells);
    }
    let may_move = left_over.is_none_or(|bytes| bytes > FEW_LEFT_OVER);
    if may_move && moves::encode(moves, old, new, header_bytes, trial) {
        best.offer(trial, ChangeKind::Moves);
    }
    if best.length() > new.len() / WHOLE_FROM {
        trial.clear();
        encode_whole(new, trial);
        best.offer(trial, ChangeKind::Whole);
    }
    best.kind
}

/// What [`encode_rearranged`] has appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// This many ranges, as `diff::encode` makes them.
    Ranges(u16),
    /// A payload of cell operations or of moves.
    Change,
}

/// Appends to `out` the ranges in which `new` differs from `old`, as `diff::encode` does. But if cells were rearranged,
/// it also tries a payload of cell operations or moves. It prefers that payload to the ranges if the payload is
/// shorter, or has only a few bytes of ranges. Cells that stayed in place or were added after all others do not count
/// as rearranged. If no cell was rearranged, this function costs little more than `diff::encode`. The arguments are
/// those of [`encode`].
pub fn encode_rearranged(
    scratch: &mut Scratch,
    old: &[u8],
    new: &[u8],
    header_bytes: usize,
    out: &mut Vec<u8>,
) -> Difference {
    let start = out.len();
    let Scratch { trial, cells, moves } = scratch;
    let seen = rearranged(old, new, header_bytes);
    let left_over = match seen {
        Rearranged::Few => cells::encode(cells, old, new, header_bytes, usize::MAX, trial),
        Rearranged::Hardly | Rearranged::Many => None,
    };
    if left_over.is_some_and(|bytes| bytes <= LITTLE_LEFT_OVER) {
        out.extend_from_slice(trial);
        return Difference::Change;
    }
    let ranges = diff::encode(old, new, out);
    let length = out.len() - start;
    let is_long = length > new.len() / LONG_CHANGE;
    let may_pay = match seen {
        Rearranged::Hardly => false,
        Rearranged::Few => left_over.is_some(),
        Rearranged::Many => is_long && moves::encode(moves, old, new, header_bytes, trial),
    };
    if may_pay && trial.len() < length {
        out.truncate(start);
        out.extend_from_slice(trial);
        return Difference::Change;
    }
    Difference::Ranges(ranges)
}

/// Returns whether a payload changes nothing.
#[must_use]
pub fn is_empty(payload: &[u8]) -> bool {
    payload == [KIND_RANGES]
}

/// The shortest payload found so far, at the end of `out`.
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

/// Appends `new` as a change that needs no older image: the bytes of `new` that are not zero.
pub fn encode_whole(new: &[u8], out: &mut Vec<u8>) {
    out.push(KIND_WHOLE);
    encode_ranges_over_zeros(new, out);
}

/// Applies a payload to `page`, which holds the old image. A payload of the kind *whole* replaces whatever `page`
/// holds.
///
/// # Errors
/// `Short` if the payload ends too early, `Damaged` if it contradicts itself or the page. `page` may then hold a part
/// of the change.
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
        ChangeKind::Ranges => apply_ranges(page, &mut payload),
        ChangeKind::Whole => {
            page.fill(0);
            apply_ranges(page, &mut payload)
        }
    }
}

/// The old and the new pointer array may have their first pointers and their last pointers in common. If at most this
/// many pointers lie between these, few cells were rearranged.
const FEW: usize = 4;

/// The degree to which the cells of a page were rearranged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rearranged {
    /// No cell was rearranged: cells only changed in place or were added after all others. This is also the result for
    /// a page that is not a b-tree page, or that has changed its type.
    Hardly,
    /// A few cells were inserted among others, were deleted, or moved to another place.
    Few,
    /// More than a few cells have another place or another slot.
    Many,
}

/// Compares only the cell pointers of two pages of the same size.
fn rearranged(old: &[u8], new: &[u8], header: usize) -> Rearranged {
    let (Some(before), Some(after)) = (Tree::new(old, header), Tree::new(new, header)) else {
        return Rearranged::Hardly;
    };
    let (from, to) = (before.pointer_bytes(), after.pointer_bytes());
    if before.kind() != after.kind() || to.starts_with(from) {
        return Rearranged::Hardly;
    }
    let both = from.len().min(to.len());
    let first = diff::next_difference(&from[..both], &to[..both], 0).unwrap_or(both) / 2;
    let last = diff::common_suffix(&from[2 * first..], &to[2 * first..]) / 2;
    let between = from.len().max(to.len()) / 2 - first - last;
    if between <= FEW { Rearranged::Few } else { Rearranged::Many }
}
