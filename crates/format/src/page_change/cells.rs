//! Changes that are operations on cells: applying them, and finding the operations that lead from one page to another.
//! Bytes that still differ after the operations follow as ranges, so a wrong guess only makes the payload longer.

use super::align::{self, Step};
use super::btree::Tree;
use super::kinds::first_byte_of_cells;
use super::number::{DAMAGED, Reader};
use super::operation::{self, Operation};
use super::ranges;
use crate::{FormatError, diff};

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
    /// Whether an operation had to give the place of a cell.
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
    ranges::apply(page, payload)
}

/// Whether one page has one to four cells more than the other.
pub(super) fn came_or_went(old: &[u8], new: &[u8], header: usize) -> bool {
    let cells = |page| Tree::new(page, header).map(|tree: Tree<&[u8]>| tree.cells());
    cells(old).zip(cells(new)).is_some_and(|(old, new)| (1..=4).contains(&old.abs_diff(new)))
}

/// Makes `trial` a payload of the kind *cells*, if there is one that is shorter than `limit`. Returns how many of its
/// bytes are ranges.
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
    let found = align::steps(&before, &after, &mut scratch.seen, &mut steps)
        .and_then(|()| first_or_better(scratch, &before, &after, &mut steps, limit, trial));
    scratch.steps = steps;
    found
}

/// If at most this many bytes are left to ranges, another order of the operations is not tried.
const GOOD_ENOUGH: usize = 16;

/// Tries two orders of the operations: cells that one statement inserted are on the page in the order of their places,
/// or in the order of their slots.
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

/// Orders the steps: deletions first, from the last slot to the first; then the others by `key` of the slot in the new
/// page.
fn order<K: Ord>(steps: &mut [Step], key: impl Fn(usize) -> K) {
    if steps.len() > 1 {
        steps.sort_unstable_by_key(|step| match *step {
            Step::Delete { old } => (0, std::cmp::Reverse(old), None),
            Step::Insert { new } | Step::Replace { new, .. } => (1, std::cmp::Reverse(0), Some(key(new))),
        });
    }
}

/// Whether SQLite overwrote the step's old cell with zeros when it dropped the cell.
fn was_zeroed(before: &Tree<&[u8]>, after: &Tree<&[u8]>, step: Step) -> bool {
    let (Step::Delete { old } | Step::Replace { old, .. }) = step else { return false };
    let at = before.pointer(old);
    let Some(cell) = before.cell(old) else { return false };
    // The first four bytes may belong to a freeblock now.
    let rest = cell.get(4..).unwrap_or(&[]);
    let now = after.bytes.get(at + 4..at + cell.len()).unwrap_or(&[]);
    rest.iter().any(|byte| *byte != 0) && now.iter().all(|byte| *byte == 0)
}

/// Makes `trial` the payload of these steps in this order. Returns how many of its bytes are ranges. Sets
/// `scratch.placed` if a cell is not where SQLite would have put it.
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
    ranges::encode(page, after.bytes, trial);
    Some(trial.len() - operations)
}

/// The slot of the first of these steps at a time when the steps after it have not been applied.
fn slot_now(steps: &[Step], new: usize) -> usize {
    let missing =
        steps[1..].iter().filter(|step| matches!(step, Step::Insert { new: later } if *later < new));
    new - missing.count()
}

/// Applies operations to a page as a reader will, and appends them to the payload.
struct Writer<'a> {
    tree: Tree<&'a mut [u8]>,
    zeroing: bool,
    out: &'a mut Vec<u8>,
    placed: &'a mut bool,
}

impl Writer<'_> {
    /// Encodes the deletions at the beginning of `steps` whose slots are next to each other as one operation. Returns
    /// how many steps these are.
    fn delete(&mut self, last: usize, steps: &[Step]) -> Option<usize> {
        let is_next = |(i, step): (usize, &Step)| matches!(step, Step::Delete { old } if *old + i == last);
        let count = steps.iter().enumerate().take_while(|step| is_next(*step)).count();
        let operation = Operation::Delete { slot: last + 1 - count, count };
        operation.apply(&mut self.tree, self.zeroing, &mut Vec::new()).ok()?;
        operation.write(self.out);
        Some(count)
    }

    /// The place that the operation has to give, or `None` if SQLite would put the cell there anyway.
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
        operation::replaced(from, to.len(), tail, cell)?;
        patch.clear();
        ranges::encode(cell, to, patch);
        self.tree.drop_cell(slot, self.zeroing)?;
        let at = self.place(after.pointer(new), to.len());
        Operation::Replace { slot, at, length: to.len(), tail, patch }.write(self.out);
        self.tree.insert(slot, at, to)?;
        Some(1)
    }
}
