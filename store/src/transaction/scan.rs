//! Scans of a transaction: the rows of a range, in order from either end.

use std::ops::{Bound, RangeBounds};

use super::{State, Transaction};
use crate::controls::Rule;
use crate::error::Error;
use crate::locks::{Key, KeyRange, Mode, Target, is_empty};
use crate::range::{beside, edge, is_above, is_below, is_earlier, is_later};
use crate::reader::Row;
use crate::table::Table;
use crate::tree::{Ahead, Rows};

/// The largest number of rows that a scan locks at a time.
const MOST_AHEAD: usize = 512;

/// The rows of a range, in key order, or backwards with `.rev()`. Until the transaction ends, no other transaction can
/// change the rows that the scan has read, or insert rows between them. The scan locks at most 512 rows ahead of what
/// the program has read.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
/// # let table = store.table("t")?;
/// let mut tx = store.begin();
/// tx.put(&table, b"a", b"1")?;
/// tx.put(&table, b"b", b"2")?;
/// let last = tx.scan(&table, ..).rev().next().transpose()?;
/// assert_eq!(last, Some((b"b".to_vec(), b"2".to_vec())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Scan<'t> {
    tx: &'t Transaction,
    table: Table,
    /// The range that has not been read yet, from either end; `None` when everything has been read.
    rest: Option<KeyRange>,
    front: Rows,
    back: Rows,
    /// The number of rows that the scan locks next time.
    most: usize,
    /// The state of reading leaves ahead, from the front and from the back.
    ahead: (Ahead, Ahead),
    error: Option<Error>,
}

impl Transaction {
    /// Returns the rows of a range of keys. Until this transaction ends, no other transaction can change or remove a
    /// row that the scan has read, or add a row between two of them.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// let mut tx = store.begin();
    /// for key in [b"a", b"b", b"c"] {
    ///     tx.put(&table, key, b"value")?;
    /// }
    /// let mut keys = Vec::new();
    /// for row in tx.scan(&table, &b"b"[..]..) {
    ///     let (key, _) = row?;
    ///     keys.push(key);
    /// }
    /// assert_eq!(keys, [b"b", b"c"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// An item may be one of the errors of [`get`](Self::get); the scan ends after it.
    pub fn scan<'k>(&self, table: &Table, range: impl RangeBounds<&'k [u8]>) -> Scan<'_> {
        let owned = |bound: Bound<&&[u8]>| bound.map(|key| Key::from(*key));
        let range = (owned(range.start_bound()), owned(range.end_bound()));
        let error = self.check().and_then(|()| self.check_table(table)).err();
        Scan {
            tx: self,
            table: table.clone(),
            rest: (!is_empty(&range)).then_some(range),
            front: Rows::default(),
            back: Rows::default(),
            most: 1,
            ahead: (Ahead::default(), Ahead::default()),
            error,
        }
    }
}

impl Scan<'_> {
    /// Moves the scan forward to the first row whose key is not below `key`. Never moves it back. The scan neither
    /// reads nor locks the skipped rows, except those that it has already read ahead.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// let mut tx = store.begin();
    /// for key in [b"a", b"b", b"c"] {
    ///     tx.put(&table, key, b"value")?;
    /// }
    /// let mut scan = tx.scan(&table, ..);
    /// scan.seek(b"b");
    /// assert_eq!(scan.next().transpose()?.map(|(key, _)| key), Some(b"b".to_vec()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn seek(&mut self, key: &[u8]) {
        self.pass_over(true, key);
        if !self.front.is_empty() {
            return;
        }
        if let Some((from, to)) = self.rest.take() {
            let is_ahead = is_above(key, edge(&from));
            let from = if is_ahead { Bound::Included(Key::from(key)) } else { from };
            self.rest = Some((from, to)).filter(|rest| !is_empty(rest));
        }
        if self.rest.is_none() {
            self.pass_over(false, key);
        }
    }

    fn lock(&mut self, range: KeyRange) -> Result<(), Error> {
        self.tx.check()?;
        if !self.tx.engine().controls.keep(Rule::RangeLocks) {
            return Ok(());
        }
        self.tx.lock(self.table.root(), &Target::Range(self.table.root(), range), Mode::Shared)?;
        self.table.check_there()
    }

    fn pass_over(&mut self, is_front: bool, key: &[u8]) {
        let rows = if is_front { &mut self.front } else { &mut self.back };
        if let Err(error) = rows.seek(key) {
            self.error.get_or_insert(error);
        }
    }

    fn most(&mut self) -> usize {
        let most = self.most;
        self.most = (most * 4).min(MOST_AHEAD);
        most
    }

    /// Reads the next rows from the front. Copies the leaf, and locks a range in it. If the leaf has changed before the
    /// lock is granted, copies the leaf again.
    fn fill_front(&mut self, (from, to): KeyRange) -> Result<(), Error> {
        let most = self.most();
        let tree = self.tx.engine().tree(self.table.root());
        let seen = tree.first_leaf((edge(&from), edge(&to)), &mut self.ahead.0)?;
        let places = seen.places((edge(&from), edge(&to)))?;
        let end = match &seen.fence {
            _ if places.len() > most => Bound::Included(seen.key(places.start + most - 1)?.into()),
            Some(fence) if is_below(fence, edge(&to)) => Bound::Excluded(fence.as_slice().into()),
            _ => to.clone(),
        };
        self.lock((from.clone(), end.clone()))?;
        let range = (edge(&from), edge(&end));
        let mut leaf = if tree.is_current(&seen) { seen } else { tree.first_leaf(range, &mut self.ahead.0)? };
        let places = leaf.places(range)?;
        // If the leaf was split before it was copied again, the rest of the range is in the next leaf, which the scan
        // reads next.
        let rest = match leaf.fence.take() {
            Some(fence) if is_below(&fence, edge(&end)) => {
                Some((Bound::Included(fence.as_slice().into()), to))
            }
            _ if end == to => None,
            _ => Some((beside(end), to)),
        };
        self.front = leaf.rows(places);
        if rest.as_ref().is_some_and(|(now, _)| !is_later(edge(&from), edge(now))) {
            return Err(self.table.out_of_order());
        }
        self.rest = rest.filter(|rest| !is_empty(rest));
        Ok(())
    }

    /// Reads the next rows from the back, like `fill_front`.
    fn fill_back(&mut self, (from, to): KeyRange) -> Result<(), Error> {
        let most = self.most();
        let tree = self.tx.engine().tree(self.table.root());
        let seen = tree.last_leaf((edge(&from), edge(&to)), &mut self.ahead.1)?;
        let places = seen.places((edge(&from), edge(&to)))?;
        let begin = match &seen.fence {
            _ if places.len() > most => Bound::Included(seen.key(places.end - most)?.into()),
            Some(fence) if is_above(fence, edge(&from)) => Bound::Included(fence.as_slice().into()),
            _ => from.clone(),
        };
        self.lock((begin.clone(), to.clone()))?;
        let range = (edge(&begin), edge(&to));
        let mut leaf = if tree.is_current(&seen) { seen } else { tree.last_leaf(range, &mut self.ahead.1)? };
        let places = leaf.places(range)?;
        let rest = match leaf.fence.take() {
            Some(fence) if is_above(&fence, edge(&begin)) => {
                Some((from, Bound::Excluded(fence.as_slice().into())))
            }
            _ if begin == from => None,
            _ => Some((from, beside(begin))),
        };
        self.back = leaf.rows(places);
        if rest.as_ref().is_some_and(|(_, now)| !is_earlier(edge(now), edge(&to))) {
            return Err(self.table.out_of_order());
        }
        self.rest = rest.filter(|rest| !is_empty(rest));
        Ok(())
    }

    fn step(&mut self, is_front: bool) -> Result<Option<Row>, Error> {
        if let Some(error) = self.error.take() {
            self.rest = None;
            return Err(error);
        }
        loop {
            let own = if is_front { self.front.pop_front() } else { self.back.pop_back() };
            if let Some(cell) = own {
                return self.tx.row(cell?).map(Some);
            }
            match self.rest.take() {
                Some(rest) if is_front => self.fill_front(rest)?,
                Some(rest) => self.fill_back(rest)?,
                // The remaining rows were already read from the other end.
                None => {
                    let other = if is_front { self.back.pop_front() } else { self.front.pop_back() };
                    return other.map(|cell| self.tx.row(cell?)).transpose();
                }
            }
        }
    }

    fn give(&mut self, is_front: bool) -> Option<Result<Row, Error>> {
        let row = self.step(is_front);
        if let Err(error) = &row {
            self.rest = None;
            (self.front, self.back) = (Rows::default(), Rows::default());
            if !matches!(error, Error::Finished | Error::Foreign { .. } | Error::NoTable { .. }) {
                self.tx.state.set(State::Failed);
            }
        }
        row.transpose()
    }
}

impl Iterator for Scan<'_> {
    type Item = Result<Row, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.give(true)
    }
}

impl DoubleEndedIterator for Scan<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.give(false)
    }
}
