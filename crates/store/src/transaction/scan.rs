//! Rows of a range, in order from either end.

use std::collections::VecDeque;
use std::ops::{Bound, RangeBounds};

use duralite_logfmt::store::{PageKind, cell_key};

use super::{State, Transaction};
use crate::controls::Rule;
use crate::error::Error;
use crate::locks::{Key, KeyRange, Mode, Target, is_empty};
use crate::range::{beside, edge, is_above, is_below, is_earlier, is_later};
use crate::reader::Row;
use crate::table::Table;
use crate::tree::Want;

/// Most rows that are locked ahead of whoever reads them.
const MOST_AHEAD: usize = 512;

/// The rows of a range, in key order or with `.rev()` backwards. What has been read stays locked against changes and
/// new rows until the transaction is over; what has not been read is not.
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
    /// What has not been read from either end; `None` when all has.
    rest: Option<KeyRange>,
    front: VecDeque<Vec<u8>>,
    back: VecDeque<Vec<u8>>,
    ahead: usize,
    error: Option<Error>,
}

impl Transaction {
    /// The rows of a range of keys. Nobody changes, adds or removes one of those that were read, or between them, before
    /// this transaction is over.
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
    /// Each row may be an error, as of [`get`](Self::get); the scan is over then.
    pub fn scan<'k>(&self, table: &Table, range: impl RangeBounds<&'k [u8]>) -> Scan<'_> {
        let owned = |bound: Bound<&&[u8]>| bound.map(|key| Key::from(*key));
        let range = (owned(range.start_bound()), owned(range.end_bound()));
        let error = self.check().and_then(|()| self.check_table(table)).err();
        Scan {
            tx: self,
            table: table.clone(),
            rest: (!is_empty(&range)).then_some(range),
            front: VecDeque::new(),
            back: VecDeque::new(),
            ahead: 1,
            error,
        }
    }
}

impl Scan<'_> {
    /// Goes on with the first row whose key is not below this one; never back. What is passed over is neither read nor
    /// locked, as far as it has not been.
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
        let is_before = |cell: &Vec<u8>| cell_key(PageKind::Leaf, cell).is_ok_and(|own| own < key);
        while self.front.front().is_some_and(is_before) {
            self.front.pop_front();
        }
        if !self.front.is_empty() {
            return;
        }
        if let Some((from, to)) = self.rest.take() {
            let is_ahead = is_above(key, edge(&from));
            let from = if is_ahead { Bound::Included(Key::from(key)) } else { from };
            self.rest = Some((from, to)).filter(|rest| !is_empty(rest));
        }
        if self.rest.is_none() {
            while self.back.front().is_some_and(is_before) {
                self.back.pop_front();
            }
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

    fn ahead(&mut self) -> usize {
        let ahead = self.ahead;
        self.ahead = (ahead * 4).min(MOST_AHEAD);
        ahead
    }

    /// Reads the next rows from the front: first where they are, then they are locked, then they are read.
    fn fill_front(&mut self, (from, to): KeyRange) -> Result<(), Error> {
        let before = from.clone();
        let ahead = self.ahead();
        let tree = self.tx.engine().tree(self.table.root());
        let seen = tree.first_piece(edge(&from), edge(&to), Want::End(ahead))?;
        let end = match (&seen.fence, seen.is_cut, seen.cells.last()) {
            (_, true, Some(last)) => Bound::Included(self.tx.row_key(last)?.as_slice().into()),
            (Some(fence), _, _) if is_below(fence, edge(&to)) => Bound::Excluded(fence.as_slice().into()),
            _ => to.clone(),
        };
        self.lock((from.clone(), end.clone()))?;
        let piece = tree.first_piece(edge(&from), edge(&end), Want::Rows)?;
        self.front.extend(piece.cells);
        // The leaf may have been split meanwhile: what is in the next one is read next.
        let rest = match piece.fence {
            Some(fence) if is_below(&fence, edge(&end)) => {
                Some((Bound::Included(fence.as_slice().into()), to))
            }
            _ if end == to => None,
            _ => Some((beside(end), to)),
        };
        if rest.as_ref().is_some_and(|(now, _)| !is_later(edge(&before), edge(now))) {
            return Err(self.table.out_of_order());
        }
        self.rest = rest.filter(|rest| !is_empty(rest));
        Ok(())
    }

    /// The same from the back.
    fn fill_back(&mut self, (from, to): KeyRange) -> Result<(), Error> {
        let before = to.clone();
        let ahead = self.ahead();
        let tree = self.tx.engine().tree(self.table.root());
        let seen = tree.last_piece(edge(&from), edge(&to), Want::End(ahead))?;
        let begin = match (&seen.fence, seen.is_cut, seen.cells.first()) {
            (_, true, Some(first)) => Bound::Included(self.tx.row_key(first)?.as_slice().into()),
            (Some(fence), _, _) if is_above(fence, edge(&from)) => Bound::Included(fence.as_slice().into()),
            _ => from.clone(),
        };
        self.lock((begin.clone(), to.clone()))?;
        let piece = tree.last_piece(edge(&begin), edge(&to), Want::Rows)?;
        for cell in piece.cells.into_iter().rev() {
            self.back.push_front(cell);
        }
        let rest = match piece.fence {
            Some(fence) if is_above(&fence, edge(&begin)) => {
                Some((from, Bound::Excluded(fence.as_slice().into())))
            }
            _ if begin == from => None,
            _ => Some((from, beside(begin))),
        };
        if rest.as_ref().is_some_and(|(_, now)| !is_earlier(edge(now), edge(&before))) {
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
                return self.tx.row(&cell).map(Some);
            }
            match self.rest.take() {
                Some(rest) if is_front => self.fill_front(rest)?,
                Some(rest) => self.fill_back(rest)?,
                // What is left was read from the other end.
                None => {
                    let other = if is_front { self.back.pop_front() } else { self.front.pop_back() };
                    return other.map(|cell| self.tx.row(&cell)).transpose();
                }
            }
        }
    }

    fn give(&mut self, is_front: bool) -> Option<Result<Row, Error>> {
        let row = self.step(is_front);
        if let Err(error) = &row {
            self.rest = None;
            self.front.clear();
            self.back.clear();
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
