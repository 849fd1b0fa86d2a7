//! Moves: bytes of the new page that are elsewhere in the old page, because SQLite packed or rewrote cells, or because
//! an array was shifted. All moves read the old page, so the order of the moves does not matter.

use super::btree::Tree;
use super::payload::{DAMAGED, KIND_MOVES, Reader, apply_ranges, encode_ranges, put};
use crate::{FormatError, diff};

/// The fewest bytes that a move covers. The description of a move takes about this many bytes, so a shorter move saves
/// nothing.
const SHORTEST_MOVE: usize = 8;
/// The largest shift, in bytes, that the search can find on a page that is not a b-tree page.
const FARTHEST_SLIDE: usize = 64;

/// Memory that the encoder reuses.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    page: Vec<u8>,
    moves: Vec<Move>,
}

/// One move: `length` bytes from `from` in the old page to `to` in the new page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Move {
    to: usize,
    from: usize,
    length: usize,
}

/// Applies the moves, then writes the ranges over the page. The targets of the moves must ascend and be disjoint. So
/// all moves together copy at most as many bytes as a page has.
pub(super) fn apply(page: &mut [u8], payload: &mut Reader<'_>) -> Result<(), FormatError> {
    let count = payload.number()?;
    let old = page.to_vec();
    let mut at = 0;
    for _ in 0..count {
        at += payload.number()?;
        let from = payload.number()?;
        let length = payload.length()?;
        let bytes = old.get(from..from + length).ok_or(DAMAGED)?;
        page.get_mut(at..at + length).ok_or(DAMAGED)?.copy_from_slice(bytes);
        at += length;
    }
    apply_ranges(page, payload)
}

/// Stores in `trial` a payload of the kind *moves*. Returns `false` if it finds no moves.
pub(super) fn encode(
    scratch: &mut Scratch,
    old: &[u8],
    new: &[u8],
    header: usize,
    trial: &mut Vec<u8>,
) -> bool {
    let Scratch { page, moves } = scratch;
    moves.clear();
    match (Tree::new(old, header), Tree::new(new, header)) {
        // If all cell pointers are equal, do not search for moves, because SQLite changes the pointer of a cell that it
        // moves.
        (Some(before), Some(after)) if before.pointer_bytes() == after.pointer_bytes() => {}
        (Some(before), Some(after)) if before.kind() == after.kind() => {
            of_pointers(&before, &after, moves);
            of_cells(&before, &after, moves);
        }
        _ => of_a_slide(old, new, moves),
    }
    tidy(moves);
    if moves.is_empty() {
        return false;
    }
    page.clear();
    page.extend_from_slice(old);
    trial.clear();
    trial.push(KIND_MOVES);
    put(trial, moves.len());
    let mut end = 0;
    for &Move { to, from, length } in &*moves {
        let bytes = old.get(from..from + length).zip(page.get_mut(to..to + length));
        let Some((bytes, place)) = bytes else { return false };
        place.copy_from_slice(bytes);
        put(trial, to - end);
        put(trial, from);
        put(trial, length - 1);
        end = to + length;
    }
    encode_ranges(page, new, trial);
    true
}

/// Sorts the moves, joins two moves if the second continues the first, and removes short and overlapping moves.
fn tidy(moves: &mut Vec<Move>) {
    moves.sort_unstable();
    moves.dedup_by(|next, last| {
        let joins = last.to + last.length == next.to && last.from + last.length == next.from;
        if joins {
            last.length += next.length;
        }
        joins
    });
    let mut end = 0;
    moves.retain(|one| {
        let keep = one.length >= SHORTEST_MOVE && one.to >= end;
        if keep {
            end = one.to + one.length;
        }
        keep
    });
}

/// Finds how the pointer array was shifted. If the two arrays differ in length, SQLite has moved the pointers that both
/// have at the end.
fn of_pointers(before: &Tree<&[u8]>, after: &Tree<&[u8]>, moves: &mut Vec<Move>) {
    let (old, new) = (before.pointer_bytes(), after.pointer_bytes());
    let length = diff::common_suffix(old, new) / 2 * 2;
    if old.len() != new.len() {
        let start = after.pointers();
        moves.push(Move { to: start + new.len() - length, from: start + old.len() - length, length });
    }
}

/// Finds the cells that have moved to another offset.
fn of_cells(before: &Tree<&[u8]>, after: &Tree<&[u8]>, moves: &mut Vec<Move>) {
    // Limit the number of comparisons. A cell that is new has to be compared with all remaining cells of the old page.
    let mut comparisons = before.cells() + after.cells() + 64;
    let mut next = 0;
    for slot in 0..after.cells() {
        let Some(cell) = after.cell(slot) else { return };
        let left = (before.cells() - next).min(comparisons);
        let found = (next..next + left).find(|old| before.cell(*old) == Some(cell));
        comparisons -= found.map_or(left, |old| old - next + 1);
        let Some(old) = found else { continue };
        next = old + 1;
        let (from, to) = (before.pointer(old), after.pointer(slot));
        if from != to {
            moves.push(Move { to, from, length: cell.len() });
        }
    }
}

/// Finds a shift of bytes on a page that is not a b-tree page: from the first difference on, the new page may repeat
/// bytes of the old page at slightly different offsets.
fn of_a_slide(old: &[u8], new: &[u8], moves: &mut Vec<Move>) {
    let Some(first) = diff::next_difference(old, new, 0) else { return };
    let end = new.len() - diff::common_suffix(old, new);
    let word = |page: &[u8], at: usize| -> Option<[u8; SHORTEST_MOVE]> {
        page.get(at..at + SHORTEST_MOVE)?.try_into().ok()
    };
    // If all bytes have the same value, they would match at every distance, so do not search.
    let is_run =
        |page: &[u8]| page.get(first..end).is_none_or(|bytes| bytes.windows(2).all(|two| two[0] == two[1]));
    if is_run(old) || is_run(new) {
        return;
    }
    for by in 1..=FARTHEST_SLIDE {
        for (from, to) in [(first, first + by), (first + by, first)] {
            if word(old, from).is_some_and(|bytes| word(new, to) == Some(bytes)) {
                let equal = old[from..].iter().zip(&new[to..]).take_while(|(a, b)| a == b).count();
                let length = equal.min(end.saturating_sub(to));
                return moves.push(Move { to, from, length });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(old: &[u8], payload: &[u8]) -> Result<Vec<u8>, FormatError> {
        let mut page = old.to_vec();
        apply(&mut page, &mut Reader(payload)).map(|()| page)
    }

    fn counting() -> Vec<u8> {
        (0..512_u32).map(|i| (i * 7 % 251) as u8).collect()
    }

    #[test]
    fn moves_read_the_page_as_it_was_and_ranges_come_last() {
        let old = counting();
        let mut new = old.clone();
        new[0..4].copy_from_slice(&old[100..104]);
        new[10..13].copy_from_slice(&old[0..3]);
        new[11] = 99;
        let payload = [2, 0, 100, 3, 6, 0, 2, 11, 0, 99];
        assert_eq!(applied(&old, &payload), Ok(new));
    }

    #[test]
    fn moves_that_leave_the_page_are_refused() {
        for payload in [&[1, 0, 128, 129, 0][..], &[1, 128, 129, 0, 0], &[1, 0], &[2, 0, 0, 0], &[]] {
            assert!(applied(&counting(), payload).is_err(), "{payload:?}");
        }
    }

    #[test]
    fn bytes_that_slide_are_one_move() {
        let old = counting();
        let mut new = old.clone();
        new.copy_within(40..400, 49);
        new[40..49].fill(3);
        let (mut scratch, mut payload) = (Scratch::default(), Vec::new());
        assert!(encode(&mut scratch, &old, &new, 0, &mut payload));
        assert_eq!(applied(&old, &payload[1..]), Ok(new.clone()));
        assert!(payload.len() < 30, "{:?}", payload);
        // Encode the change back as well.
        assert!(encode(&mut scratch, &new, &old, 0, &mut payload));
        assert_eq!(applied(&new, &payload[1..]), Ok(old));
        assert!(payload.len() < 30, "{:?}", payload);
    }

    #[test]
    fn moves_are_ordered_joined_and_disjoint() {
        let of = |to, from, length| Move { to, from, length };
        let mut moves = vec![of(30, 130, 20), of(10, 110, 20), of(40, 0, 20), of(90, 0, 7), of(60, 0, 8)];
        tidy(&mut moves);
        assert_eq!(moves, [of(10, 110, 40), of(60, 0, 8)]);
    }
}
