//! Finds which cells of a page were inserted, deleted and changed. It compares their places, or their bytes if the page
//! was packed.

use super::btree::Tree;
use super::operation::MAX_OPERATIONS;
use crate::diff;

/// What happened to a cell. Slots are those in the old page, in the new page, or in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Delete { old: usize },
    Insert { new: usize },
    Replace { old: usize, new: usize },
}

impl Step {
    pub(super) fn new_slot(self) -> Option<usize> {
        match self {
            Self::Delete { .. } => None,
            Self::Insert { new } | Self::Replace { new, .. } => Some(new),
        }
    }
}

/// With more steps than this, the page may have been packed: then all places differ, but few cells do.
const FEW: usize = 6;

/// The largest number of consecutive cells that may have been inserted or deleted on a packed page.
const AHEAD: usize = 8;

/// If more cells than this lie between the first and the last that differ, the cells are not compared one by one.
const MIDDLE: usize = 32;

/// Fills `steps`. `None` if no cell was inserted, deleted or changed, or if a payload cannot hold so many operations.
pub(super) fn steps(
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

/// The slots between the common beginning and the common end of the two pages.
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

/// Appends steps for the rest of the middle. Cells at the same distance replace each other; cells that only one page
/// has left were deleted or inserted.
fn finish(middle: &Middle, steps: &mut Vec<Step>) {
    let pairs = (middle.old..middle.old_end).zip(middle.new..middle.new_end);
    let replaced = pairs.len();
    steps.extend(pairs.map(|(old, new)| Step::Replace { old, new }));
    steps.extend((middle.old + replaced..middle.old_end).map(|old| Step::Delete { old }));
    steps.extend((middle.new + replaced..middle.new_end).map(|new| Step::Insert { new }));
}

/// Sets a bit for the place of each cell.
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

/// Appends steps to `steps`, found by comparing cells, and stops at `limit` of them.
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
