//! Scans of a snapshot: the rows of a range as of the snapshot's moment, in order from either end.

use std::collections::VecDeque;
use std::ops::{Bound, RangeBounds};

use super::{Snapshot, damaged};
use crate::controls::Rule;
use crate::error::Error;
use crate::format::{PageId, Value, leaf_value};
use crate::locks::{Key, KeyRange, is_empty};
use crate::range::{Edges, beside, edge, is_above, is_below, is_earlier, is_later};
use crate::reader::Row;
use crate::table::Table;
use crate::tree::{Ahead, LeafCopy};
use crate::versions::{Changed, End, Image};

/// The largest number of rows with noted versions that one step of a scan handles.
const MOST: usize = 512;

/// A row that the scan has found: its key, and its value. If the value is `None`, the scan reads it later by the key.
type Found = (Vec<u8>, Option<Vec<u8>>);

/// The rows of a range in a [`Snapshot`], in key order, or backwards with `.rev()`. No transaction waits for a scan,
/// however long the scan takes. The scan copies each page as a whole, and holds no lock or latch between two rows.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
/// # let table = store.table("t")?;
/// store.run(|tx| tx.put(&table, b"a", b"1").and_then(|()| tx.put(&table, b"b", b"2")))?;
/// let last = store.snapshot().scan(&table, ..).next_back().transpose()?;
/// assert_eq!(last, Some((b"b".to_vec(), b"2".to_vec())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SnapshotScan {
    snapshot: Snapshot,
    table: Table,
    /// The range that has not been read yet, from either end; `None` when everything has been read.
    rest: Option<KeyRange>,
    front: VecDeque<Found>,
    back: VecDeque<Found>,
    /// The state of reading leaves ahead, from the front and from the back.
    ahead: (Ahead, Ahead),
}

impl SnapshotScan {
    pub(super) fn new<'k>(snapshot: Snapshot, table: &Table, range: impl RangeBounds<&'k [u8]>) -> Self {
        let owned = |bound: Bound<&&[u8]>| bound.map(|key| Key::from(*key));
        let range = (owned(range.start_bound()), owned(range.end_bound()));
        Self {
            snapshot,
            table: table.clone(),
            rest: (!is_empty(&range)).then_some(range),
            front: VecDeque::new(),
            back: VecDeque::new(),
            ahead: (Ahead::default(), Ahead::default()),
        }
    }

    fn root(&self) -> PageId {
        self.table.root()
    }

    fn changed(&self, range: Edges<'_>, end: End) -> Changed {
        let engine = self.snapshot.engine();
        if !engine.controls.keep(Rule::LookAtVersions) {
            return Changed::default();
        }
        engine.versions.changed(&self.snapshot.0.seen, self.root(), range, end, MOST)
    }

    /// Reads the next rows from the front: first a leaf, and then the noted versions of rows in the leaf's range.
    fn fill_front(&mut self, (from, to): KeyRange) -> Result<(), Error> {
        let tree = self.snapshot.engine().tree(self.root());
        let leaf = tree.first_leaf((edge(&from), edge(&to)), &mut self.ahead.0)?;
        let mut end = match &leaf.fence {
            Some(fence) if is_below(fence, edge(&to)) => Bound::Excluded(fence.as_slice().into()),
            _ => to.clone(),
        };
        let changed = self.changed((edge(&from), edge(&end)), End::Front);
        self.snapshot.check_age()?;
        if self.snapshot.is_before_load(&self.table) {
            return Ok(());
        }
        if let Some(cut) = &changed.cut {
            end = Bound::Included(cut.clone());
        }
        let found = merge(&leaf, changed, (edge(&from), edge(&end)))?;
        self.front.extend(found);
        if end != to {
            let rest = (beside(end), to);
            // If rows are out of order, the scan has not moved forward, and would never end.
            if !is_later(edge(&from), edge(&rest.0)) {
                return Err(self.table.out_of_order());
            }
            self.rest = (!is_empty(&rest)).then_some(rest);
        }
        Ok(())
    }

    /// Reads the next rows from the back, like `fill_front`.
    fn fill_back(&mut self, (from, to): KeyRange) -> Result<(), Error> {
        let tree = self.snapshot.engine().tree(self.root());
        let leaf = tree.last_leaf((edge(&from), edge(&to)), &mut self.ahead.1)?;
        let mut begin = match &leaf.fence {
            Some(fence) if is_above(fence, edge(&from)) => Bound::Included(fence.as_slice().into()),
            _ => from.clone(),
        };
        let changed = self.changed((edge(&begin), edge(&to)), End::Back);
        self.snapshot.check_age()?;
        if self.snapshot.is_before_load(&self.table) {
            return Ok(());
        }
        if let Some(cut) = &changed.cut {
            begin = Bound::Included(cut.clone());
        }
        let found = merge(&leaf, changed, (edge(&begin), edge(&to)))?;
        for row in found.into_iter().rev() {
            self.back.push_front(row);
        }
        if begin != from {
            let rest = (from, beside(begin));
            if !is_earlier(edge(&rest.1), edge(&to)) {
                return Err(self.table.out_of_order());
            }
            self.rest = (!is_empty(&rest)).then_some(rest);
        }
        Ok(())
    }

    fn step(&mut self, end: End) -> Result<Option<Row>, Error> {
        loop {
            let (own, other) = match end {
                End::Front => (self.front.pop_front(), &mut self.back),
                End::Back => (self.back.pop_back(), &mut self.front),
            };
            let found = match (own, &self.rest) {
                (Some(found), _) => Some(found),
                // The remaining rows were already read from the other end.
                (None, None) if end == End::Front => other.pop_front(),
                (None, None) => other.pop_back(),
                (None, Some(_)) => None,
            };
            if let Some((key, value)) = found {
                return match value {
                    Some(value) => Ok(Some((key, value))),
                    None => self.long(key).map(Some),
                };
            }
            let Some(rest) = self.rest.take() else { return Ok(None) };
            self.snapshot.check(&self.table)?;
            match end {
                End::Front => self.fill_front(rest)?,
                End::Back => self.fill_back(rest)?,
            }
        }
    }

    /// Reads a row's long value. The scan calls this only when the program asks for the row.
    fn long(&self, key: Vec<u8>) -> Result<Row, Error> {
        self.snapshot.check(&self.table)?;
        let value = self.snapshot.value(&self.table, &key)?;
        value.map(|value| (key, value)).ok_or_else(damaged)
    }

    fn give(&mut self, end: End) -> Option<Result<Row, Error>> {
        let row = self.step(end);
        if row.is_err() {
            self.rest = None;
            self.front.clear();
            self.back.clear();
        }
        row.map_err(|error| self.snapshot.or_too_old(error)).transpose()
    }
}

impl Iterator for SnapshotScan {
    type Item = Result<Row, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.give(End::Front)
    }
}

impl DoubleEndedIterator for SnapshotScan {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.give(End::Back)
    }
}

/// Merges the rows of a leaf with the noted versions of rows in the range. If a row has a noted version, uses that
/// version.
fn merge(leaf: &LeafCopy, changed: Changed, range: Edges<'_>) -> Result<Vec<Found>, Error> {
    let mut changed = changed.rows.into_iter().peekable();
    let mut found = Vec::new();
    for place in leaf.places(range)? {
        let (key, cell) = (leaf.key(place)?, leaf.cell(place)?);
        while let Some((key, image)) = changed.next_if(|(other, _)| **other < *key) {
            found.extend(row(&key, &image)?);
        }
        match changed.next_if(|(other, _)| **other == *key) {
            Some((key, image)) => found.extend(row(&key, &image)?),
            None => found.push(row_of_cell(key, cell)?),
        }
    }
    for (key, image) in changed {
        found.extend(row(&key, &image)?);
    }
    Ok(found)
}

fn row(key: &[u8], image: &Image) -> Result<Option<Found>, Error> {
    match image {
        Image::Absent => Ok(None),
        Image::Cell(cell) => row_of_cell(key, cell).map(Some),
        // Only long values are copied, so the scan reads this value later, by the key. A damaged value is read later
        // too, and that read reports the error.
        Image::Copied(_) | Image::Damaged => Ok(Some((key.to_vec(), None))),
    }
}

fn row_of_cell(key: &[u8], cell: &[u8]) -> Result<Found, Error> {
    Ok(match leaf_value(cell).map_err(|_| damaged())? {
        Value::Inline(value) => (key.to_vec(), Some(value.to_vec())),
        Value::Long { .. } => (key.to_vec(), None),
    })
}
