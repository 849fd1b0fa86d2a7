//! Encodes changes as operations on cells, applies them, and finds the operations that lead from one page to another. A
//! payload stores the operations, then ranges with all bytes that the operations leave different. So if the encoder
//! finds the wrong operations, the payload is only longer.

use super::btree::Tree;
use super::payload::{DAMAGED, Reader, apply_ranges, encode_ranges, first_byte_of_cells, put};
use crate::{FormatError, diff};

/// Inserts a cell where SQLite would place it. Stored: slot, length less one, bytes of the cell.
pub(super) const OP_INSERT: u8 = 1;
/// Inserts a cell at a given place, an offset in the page. Stored: place, then as for [`OP_INSERT`].
pub(super) const OP_INSERT_AT: u8 = 2;
/// Drops cells, the last one first. Stored: slot of the first cell, number of cells less one.
pub(super) const OP_DELETE: u8 = 3;
/// Replaces a cell by a similar cell: drops the old cell, and inserts the new one in the same slot, where SQLite would
/// place it. Stored: slot, length of the new cell less one, length of the tail, size of the ranges in bytes, ranges.
/// The reader builds the new cell from the first bytes of the old cell, then zeros if necessary, then the tail (the
/// last bytes of the old cell). Then it writes the ranges over the new cell.
pub(super) const OP_REPLACE: u8 = 4;
/// Like [`OP_REPLACE`], but the new cell goes to a given place. Stored: place, then as for [`OP_REPLACE`].
pub(super) const OP_REPLACE_AT: u8 = 5;

/// The largest number of operations in a payload.
const MAX_OPERATIONS: usize = 255;

/// One operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation<'a> {
    Insert { slot: usize, at: Option<usize>, cell: &'a [u8] },
    Delete { slot: usize, count: usize },
    Replace { slot: usize, at: Option<usize>, length: usize, tail: usize, patch: &'a [u8] },
}

impl<'a> Operation<'a> {
    fn read(payload: &mut Reader<'a>) -> Result<Self, FormatError> {
        let code = payload.byte()?;
        let at = match code {
            OP_INSERT_AT | OP_REPLACE_AT => Some(payload.number()?),
            _ => None,
        };
        let slot = payload.number()?;
        let length = payload.length()?;
        match code {
            OP_INSERT | OP_INSERT_AT => Ok(Self::Insert { slot, at, cell: payload.bytes(length)? }),
            OP_DELETE => Ok(Self::Delete { slot, count: length }),
            OP_REPLACE | OP_REPLACE_AT => {
                let tail = payload.number()?;
                let patch = payload.number()?;
                Ok(Self::Replace { slot, at, length, tail, patch: payload.bytes(patch)? })
            }
            _ => Err(DAMAGED),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Insert { slot, at, cell } => {
                put_head([OP_INSERT, OP_INSERT_AT], at, slot, cell.len(), out);
                out.extend_from_slice(cell);
            }
            Self::Delete { slot, count } => put_head([OP_DELETE; 2], None, slot, count, out),
            Self::Replace { slot, at, length, tail, patch } => {
                put_head([OP_REPLACE, OP_REPLACE_AT], at, slot, length, out);
                put(out, tail);
                put(out, patch.len());
                out.extend_from_slice(patch);
            }
        }
    }

    /// Applies the operation to a page. `cell` is scratch space.
    ///
    /// # Errors
    /// `Damaged` or `Short` if the operation is not possible on this page. The page may then have a part of the
    /// changes.
    fn apply(
        &self,
        tree: &mut Tree<&mut [u8]>,
        zeroing: bool,
        cell: &mut Vec<u8>,
    ) -> Result<(), FormatError> {
        let done = match *self {
            Self::Insert { slot, at, cell } => tree.insert(slot, at, cell),
            Self::Delete { slot, count } => {
                (slot..slot.saturating_add(count)).rev().try_for_each(|slot| tree.drop_cell(slot, zeroing))
            }
            Self::Replace { slot, at, length, tail, patch } => {
                replaced(tree.cell(slot).ok_or(DAMAGED)?, length, tail, cell).ok_or(DAMAGED)?;
                apply_ranges(cell, &mut Reader(patch))?;
                tree.drop_cell(slot, zeroing).and_then(|()| tree.insert(slot, at, cell))
            }
        };
        done.ok_or(DAMAGED)
    }
}

fn put_head([derived, given]: [u8; 2], at: Option<usize>, slot: usize, length: usize, out: &mut Vec<u8>) {
    match at {
        None => out.push(derived),
        Some(at) => {
            out.push(given);
            put(out, at);
        }
    }
    put(out, slot);
    put(out, length - 1);
}

/// Builds the new cell in `cell`, without the ranges: the front of `old`, zeros, and the tail of `old`.
fn replaced(old: &[u8], length: usize, tail: usize, cell: &mut Vec<u8>) -> Option<()> {
    let front = length.checked_sub(tail)?;
    let end = old.get(old.len().checked_sub(tail)?..)?;
    cell.clear();
    cell.extend_from_slice(&old[..front.min(old.len())]);
    cell.resize(front, 0);
    cell.extend_from_slice(end);
    Some(())
}

/// Memory that the encoder reuses.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// The old page, after the operations that have been encoded so far.
    page: Vec<u8>,
    other: Vec<u8>,
    cell: Vec<u8>,
    patch: Vec<u8>,
    seen: Vec<u64>,
    steps: Vec<Step>,
    /// Whether an operation had to store the place of a cell.
    placed: bool,
}

/// Applies the operations, then writes the ranges over the page.
pub(super) fn apply(
    page: &mut [u8],
    header: usize,
    zeroing: bool,
    payload: &mut Reader<'_>,
) -> Result<(), FormatError> {
    let count = payload.byte()?;
    let mut tree = Tree::new(&mut *page, header).ok_or(DAMAGED)?;
    let mut cell = Vec::new();
    for _ in 0..count {
        Operation::read(payload)?.apply(&mut tree, zeroing, &mut cell)?;
    }
    apply_ranges(page, payload)
}

/// Returns whether one page has one to four cells more than the other.
pub(super) fn came_or_went(old: &[u8], new: &[u8], header: usize) -> bool {
    let cells = |page| Tree::new(page, header).map(|tree: Tree<&[u8]>| tree.cells());
    cells(old).zip(cells(new)).is_some_and(|(old, new)| (1..=4).contains(&old.abs_diff(new)))
}

/// Stores in `trial` a payload of the kind *cells*, and returns how many bytes of the payload are ranges. Returns
/// `None` if there is no such payload shorter than `limit` bytes.
pub(super) fn encode(
    scratch: &mut Scratch,
    old: &[u8],
    new: &[u8],
    header: usize,
    limit: usize,
    trial: &mut Vec<u8>,
) -> Option<usize> {
    let (before, after) = (Tree::new(old, header)?, Tree::new(new, header)?);
    if before.kind() != after.kind() {
        return None;
    }
    let mut steps = std::mem::take(&mut scratch.steps);
    let found = steps_between(&before, &after, &mut scratch.seen, &mut steps)
        .and_then(|()| first_or_better(scratch, &before, &after, &mut steps, limit, trial));
    scratch.steps = steps;
    found
}

/// If the ranges in a payload take at most this many bytes, the encoder does not try another order of the operations.
const GOOD_ENOUGH: usize = 16;

/// Tries two orders of the operations: by the places of the cells in the page, and by their slots. A statement may have
/// inserted its cells in either order.
fn first_or_better(
    scratch: &mut Scratch,
    before: &Tree<&[u8]>,
    after: &Tree<&[u8]>,
    steps: &mut [Step],
    limit: usize,
    trial: &mut Vec<u8>,
) -> Option<usize> {
    let zeroing = steps.iter().any(|step| was_zeroed(before, after, *step));
    order(steps, |slot| std::cmp::Reverse(after.pointer(slot)));
    let first = payload(scratch, before, after, steps, zeroing, trial).filter(|_| trial.len() < limit);
    let one = steps.iter().filter(|step| step.new_slot().is_some()).count() <= 1;
    if one || first.is_some_and(|rest| rest <= GOOD_ENOUGH && !scratch.placed) {
        return first;
    }
    std::mem::swap(trial, &mut scratch.other);
    let length = if first.is_some() { scratch.other.len() } else { limit };
    order(steps, |slot| slot);
    match payload(scratch, before, after, steps, zeroing, trial) {
        Some(rest) if trial.len() < length => Some(rest),
        _ => {
            std::mem::swap(trial, &mut scratch.other);
            first
        }
    }
}

/// Orders the steps. Deletions come first, from the last slot to the first. The other steps follow, ordered by the
/// `key` of their slot in the new page.
fn order<K: Ord>(steps: &mut [Step], key: impl Fn(usize) -> K) {
    if steps.len() > 1 {
        steps.sort_unstable_by_key(|step| match *step {
            Step::Delete { old } => (0, std::cmp::Reverse(old), None),
            Step::Insert { new } | Step::Replace { new, .. } => (1, std::cmp::Reverse(0), Some(key(new))),
        });
    }
}

/// Returns whether SQLite overwrote the old cell of the step with zeros when it dropped the cell.
fn was_zeroed(before: &Tree<&[u8]>, after: &Tree<&[u8]>, step: Step) -> bool {
    let (Step::Delete { old } | Step::Replace { old, .. }) = step else { return false };
    let at = before.pointer(old);
    let Some(cell) = before.cell(old) else { return false };
    // Skip the first four bytes, because they may belong to a freeblock now.
    let rest = cell.get(4..).unwrap_or(&[]);
    let now = after.bytes.get(at + 4..at + cell.len()).unwrap_or(&[]);
    rest.iter().any(|byte| *byte != 0) && now.iter().all(|byte| *byte == 0)
}

/// Stores in `trial` the payload for these steps, in this order. Returns how many bytes of the payload are ranges. Sets
/// `scratch.placed` if an operation has to store the place of its cell, because SQLite would have placed the cell
/// somewhere else.
fn payload(
    scratch: &mut Scratch,
    before: &Tree<&[u8]>,
    after: &Tree<&[u8]>,
    steps: &[Step],
    zeroing: bool,
    trial: &mut Vec<u8>,
) -> Option<usize> {
    let Scratch { page, cell, patch, placed, .. } = scratch;
    page.clear();
    page.extend_from_slice(before.bytes);
    *placed = false;
    trial.clear();
    trial.extend_from_slice(&[first_byte_of_cells(before.header, zeroing), 0]);
    let mut writer =
        Writer { tree: Tree { bytes: &mut page[..], header: before.header }, zeroing, out: trial, placed };
    let mut count = 0;
    let mut rest = steps;
    while let Some(step) = rest.first() {
        let taken = match *step {
            Step::Delete { old } => writer.delete(old, rest)?,
            Step::Insert { new } => writer.insert(slot_now(rest, new), after, new)?,
            Step::Replace { new, .. } => writer.replace(slot_now(rest, new), after, new, cell, patch)?,
        };
        rest = &rest[taken..];
        count += 1;
    }
    trial[1] = u8::try_from(count).ok()?;
    let operations = trial.len();
    encode_ranges(page, after.bytes, trial);
    Some(trial.len() - operations)
}

/// Returns the slot at which the first of these steps inserts or replaces its cell. `new` is the slot of this cell in
/// the new page. The result is lower than `new` by the number of cells that later steps insert before this cell.
fn slot_now(steps: &[Step], new: usize) -> usize {
    let missing =
        steps[1..].iter().filter(|step| matches!(step, Step::Insert { new: later } if *later < new));
    new - missing.count()
}

/// Appends operations to a payload, and applies them to a copy of the old page, as a reader of the payload will.
struct Writer<'a> {
    tree: Tree<&'a mut [u8]>,
    zeroing: bool,
    out: &'a mut Vec<u8>,
    placed: &'a mut bool,
}

impl Writer<'_> {
    /// If `steps` begins with several deletions of adjacent slots, encodes them as one operation. Returns the number of
    /// steps that the operation covers.
    fn delete(&mut self, last: usize, steps: &[Step]) -> Option<usize> {
        let is_next = |(i, step): (usize, &Step)| matches!(step, Step::Delete { old } if *old + i == last);
        let count = steps.iter().enumerate().take_while(|step| is_next(*step)).count();
        let operation = Operation::Delete { slot: last + 1 - count, count };
        operation.apply(&mut self.tree, self.zeroing, &mut Vec::new()).ok()?;
        operation.write(self.out);
        Some(count)
    }

    /// Returns the place that the operation has to store; `None` if SQLite would place the cell there anyway.
    fn place(&mut self, wanted: usize, length: usize) -> Option<usize> {
        let expected = self.tree.place(length).map(|(at, _)| at);
        let said = (expected != Some(wanted)).then_some(wanted);
        *self.placed |= said.is_some();
        said
    }

    fn insert(&mut self, slot: usize, after: &Tree<&[u8]>, new: usize) -> Option<usize> {
        let cell = after.cell(new)?;
        let at = self.place(after.pointer(new), cell.len());
        Operation::Insert { slot, at, cell }.write(self.out);
        self.tree.insert(slot, at, cell)?;
        Some(1)
    }

    fn replace(
        &mut self,
        slot: usize,
        after: &Tree<&[u8]>,
        new: usize,
        cell: &mut Vec<u8>,
        patch: &mut Vec<u8>,
    ) -> Option<usize> {
        let (from, to) = (self.tree.cell(slot)?, after.cell(new)?);
        let tail = diff::common_suffix(from, to);
        replaced(from, to.len(), tail, cell)?;
        patch.clear();
        encode_ranges(cell, to, patch);
        self.tree.drop_cell(slot, self.zeroing)?;
        let at = self.place(after.pointer(new), to.len());
        Operation::Replace { slot, at, length: to.len(), tail, patch }.write(self.out);
        self.tree.insert(slot, at, to)?;
        Some(1)
    }
}

// Determines which cells SQLite inserted, deleted and changed. The search compares the places of cells, or, if SQLite
// packed the page, the bytes of cells.

/// What happened to one cell. `old` is the cell's slot in the old page, and `new` its slot in the new page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Delete { old: usize },
    Insert { new: usize },
    Replace { old: usize, new: usize },
}

impl Step {
    fn new_slot(self) -> Option<usize> {
        match self {
            Self::Delete { .. } => None,
            Self::Insert { new } | Self::Replace { new, .. } => Some(new),
        }
    }
}

/// If a comparison of places finds more steps than this, SQLite may have packed the page. Packing moves all cells to
/// other places, but does not change their bytes.
const FEW: usize = 6;

/// On a packed page, the search finds at most this many consecutive inserted or deleted cells.
const AHEAD: usize = 8;

/// If more cells than this lie between the first and the last cell that differ, the search does not compare the bytes
/// of the cells one by one.
const MIDDLE: usize = 32;

/// Fills `steps`. Returns `None` if no cell was inserted, deleted or changed, or if there are more operations than a
/// payload can hold.
fn steps_between(
    before: &Tree<&[u8]>,
    after: &Tree<&[u8]>,
    seen: &mut Vec<u64>,
    steps: &mut Vec<Step>,
) -> Option<()> {
    steps.clear();
    by_place(before, after, seen, steps);
    if steps.len() > FEW || steps.iter().any(|step| matches!(step, Step::Replace { .. })) && steps.len() > 2 {
        let places = steps.len();
        by_bytes(before, after, steps, places.min(MAX_OPERATIONS));
        if steps.len() - places < places {
            steps.drain(..places);
        } else {
            steps.truncate(places);
        }
    }
    (!steps.is_empty() && steps.len() <= MAX_OPERATIONS).then_some(())
}

/// The middle slots of the old page (`old..old_end`) and of the new page (`new..new_end`). Both pages have the same
/// slots before the middle, and the same slots after it.
struct Middle {
    old: usize,
    old_end: usize,
    new: usize,
    new_end: usize,
}

fn by_place(before: &Tree<&[u8]>, after: &Tree<&[u8]>, seen: &mut Vec<u64>, steps: &mut Vec<Step>) {
    let (old, new) = (before.pointer_bytes(), after.pointer_bytes());
    let both = old.len().min(new.len());
    let first = diff::next_difference(&old[..both], &new[..both], 0).unwrap_or(both) / 2;
    let last = diff::common_suffix(&old[2 * first..], &new[2 * first..]) / 2;
    let (old_end, new_end) = (old.len() / 2 - last, new.len() / 2 - last);
    let middle = Middle { old: first, old_end, new: first, new_end };
    if old_end == first || new_end == first || (old_end, new_end) == (first + 1, first + 1) {
        return finish(&middle, steps);
    }
    between(before, after, middle, seen, steps);
}

/// Appends the steps for the slots that are left in the middle. Pairs the old slots and the new slots in order: in each
/// pair, the new cell replaces the old one. Old slots without a partner were deleted, and new slots without a partner
/// were inserted.
fn finish(middle: &Middle, steps: &mut Vec<Step>) {
    let pairs = (middle.old..middle.old_end).zip(middle.new..middle.new_end);
    let replaced = pairs.len();
    steps.extend(pairs.map(|(old, new)| Step::Replace { old, new }));
    steps.extend((middle.old + replaced..middle.old_end).map(|old| Step::Delete { old }));
    steps.extend((middle.new + replaced..middle.new_end).map(|new| Step::Insert { new }));
}

/// Sets, in the bitmap `places`, the bit for the place of each cell.
fn mark(places: &mut [u64], tree: &Tree<&[u8]>, slots: std::ops::Range<usize>) {
    for slot in slots {
        let at = tree.pointer(slot);
        if let Some(word) = places.get_mut(at / 64) {
            *word |= 1 << (at % 64);
        }
    }
}

fn between(
    before: &Tree<&[u8]>,
    after: &Tree<&[u8]>,
    middle: Middle,
    seen: &mut Vec<u64>,
    steps: &mut Vec<Step>,
) {
    let Middle { mut old, old_end, mut new, new_end } = middle;
    let words = before.bytes.len().div_ceil(64);
    seen.clear();
    seen.resize(2 * words, 0);
    let (in_old, in_new) = seen.split_at_mut(words);
    mark(in_old, before, old..old_end);
    mark(in_new, after, new..new_end);
    let has = |places: &[u64], at: usize| places.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 != 0);
    while old < old_end && new < new_end {
        let (from, to) = (before.pointer(old), after.pointer(new));
        match (has(in_new, from), has(in_old, to)) {
            _ if from == to => (old, new) = (old + 1, new + 1),
            (true, true) | (false, true) => {
                steps.push(Step::Delete { old });
                old += 1;
            }
            (true, false) => {
                steps.push(Step::Insert { new });
                new += 1;
            }
            (false, false) => {
                steps.push(Step::Replace { old, new });
                (old, new) = (old + 1, new + 1);
            }
        }
    }
    finish(&Middle { old, old_end, new, new_end }, steps);
}

/// Finds the steps by comparing the bytes of the cells, and appends them to `steps`. Gives up if there are `limit`
/// steps or more: then it appends at least `limit` steps, which may be wrong.
fn by_bytes(before: &Tree<&[u8]>, after: &Tree<&[u8]>, steps: &mut Vec<Step>, limit: usize) {
    let same = |old: usize, new: usize| {
        let cell = before.cell(old);
        cell.is_some() && cell == after.cell(new)
    };
    let (cells_before, cells_after) = (before.cells(), after.cells());
    let both = cells_before.min(cells_after);
    let first = (0..both).take_while(|slot| same(*slot, *slot)).count();
    let last = (1..=both - first).take_while(|i| same(cells_before - i, cells_after - i)).count();
    let (old_end, new_end) = (cells_before - last, cells_after - last);
    if old_end.max(new_end) - first > MIDDLE {
        return steps.extend((0..limit).map(|old| Step::Delete { old }));
    }
    let (mut old, mut new) = (first, first);
    let end = steps.len() + limit;
    while old < old_end && new < new_end && steps.len() < end {
        let (left_old, left_new) = (old_end - old, new_end - new);
        if same(old, new) {
            (old, new) = (old + 1, new + 1);
        } else if (1..=left_new.saturating_sub(left_old).min(AHEAD)).any(|ahead| same(old, new + ahead)) {
            steps.push(Step::Insert { new });
            new += 1;
        } else if (1..=left_old.saturating_sub(left_new).min(AHEAD)).any(|ahead| same(old + ahead, new)) {
            steps.push(Step::Delete { old });
            old += 1;
        } else {
            steps.push(Step::Replace { old, new });
            (old, new) = (old + 1, new + 1);
        }
    }
    finish(&Middle { old, old_end, new, new_end }, steps);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_the_bytes_that_the_document_says() {
        let cases: [(Operation<'_>, &[u8]); 5] = [
            (Operation::Insert { slot: 2, at: None, cell: &[7, 8] }, &[1, 2, 1, 7, 8]),
            (Operation::Insert { slot: 2, at: Some(130), cell: &[7] }, &[2, 127, 3, 2, 0, 7]),
            (Operation::Delete { slot: 5, count: 3 }, &[3, 5, 2]),
            (
                Operation::Replace { slot: 1, at: None, length: 9, tail: 4, patch: &[0, 0, 6] },
                &[4, 1, 8, 4, 3, 0, 0, 6],
            ),
            (
                Operation::Replace { slot: 1, at: Some(99), length: 9, tail: 9, patch: &[] },
                &[5, 99, 1, 8, 9, 0],
            ),
        ];
        for (operation, bytes) in cases {
            let mut written = Vec::new();
            operation.write(&mut written);
            assert_eq!(written, bytes);
            let mut payload = Reader(bytes);
            assert_eq!(Operation::read(&mut payload), Ok(operation));
            assert!(payload.is_empty());
            assert!(Operation::read(&mut Reader(&bytes[..bytes.len() - 1])).is_err());
        }
        assert!(Operation::read(&mut Reader(&[6, 1, 1, 1, 1])).is_err());
    }

    #[test]
    fn a_replaced_cell_has_the_old_ones_beginning_and_end() {
        let mut cell = Vec::new();
        assert_eq!(replaced(&[1, 2, 3, 4], 6, 2, &mut cell), Some(()));
        assert_eq!(cell, [1, 2, 3, 4, 3, 4]);
        assert_eq!(replaced(&[1, 2, 3, 4], 7, 1, &mut cell), Some(()));
        assert_eq!(cell, [1, 2, 3, 4, 0, 0, 4]);
        assert_eq!(replaced(&[1, 2, 3, 4], 3, 2, &mut cell), Some(()));
        assert_eq!(cell, [1, 3, 4]);
        assert_eq!(replaced(&[1, 2, 3, 4], 6, 5, &mut cell), None, "longer than the old one");
        assert_eq!(replaced(&[1, 2, 3, 4], 1, 2, &mut cell), None, "longer than the new one");
    }
}
