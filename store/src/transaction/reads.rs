//! Reads that consist of other reads.

use std::ops::{Bound, RangeBounds};

use super::Transaction;
use super::scan::Scan;
use crate::error::Error;
use crate::locks::Mode;
use crate::reader::{Reader, Row, after_prefix};
use crate::table::Table;
use crate::value_reader::ValueReader;

impl Transaction {
    /// Returns whether there is a row with this key. Takes a shared lock on the key, and does not read the value.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// let tx = store.begin();
    /// assert!(!tx.contains(&table, b"nobody")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn contains(&self, table: &Table, key: &[u8]) -> Result<bool, Error> {
        self.cell(table, key, Mode::Shared).map(|cell| cell.is_some())
    }

    /// Returns the row with the smallest key. Until this transaction ends, no other one can add a row before that row.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// let mut tx = store.begin();
    /// tx.put(&table, b"a", b"1")?;
    /// tx.put(&table, b"b", b"2")?;
    /// assert_eq!(tx.first(&table)?, Some((b"a".to_vec(), b"1".to_vec())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn first(&self, table: &Table) -> Result<Option<Row>, Error> {
        self.scan(table, ..).next().transpose()
    }

    /// Returns the row with the largest key. Until this transaction ends, no other one can add a row after that row.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// assert_eq!(store.begin().last(&table)?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn last(&self, table: &Table) -> Result<Option<Row>, Error> {
        self.scan(table, ..).next_back().transpose()
    }

    /// Returns the rows whose keys begin with these bytes, and locks them like [`scan`](Self::scan).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// let mut tx = store.begin();
    /// for key in ["user/1", "user/2", "users"] {
    ///     tx.put(&table, key.as_bytes(), b"value")?;
    /// }
    /// assert_eq!(tx.prefix(&table, b"user/").count(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prefix(&self, table: &Table, prefix: &[u8]) -> Scan<'_> {
        let after = after_prefix(prefix);
        let end = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        self.scan(table, (Bound::Included(prefix), end))
    }

    /// Returns about how many rows a table has. The number is exact for a table of a few pages, and otherwise an
    /// estimate from a few paths down the tree. The transaction locks no rows, so uncommitted changes of other
    /// transactions may count.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// let mut tx = store.begin();
    /// tx.put_all(&table, [(b"a", b"1"), (b"b", b"2")])?;
    /// assert_eq!(tx.approximate_len(&table)?, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn approximate_len(&self, table: &Table) -> Result<u64, Error> {
        self.check_table(table)?;
        self.keep_table(table)?;
        self.engine().tree(table.root()).approximate_len()
    }
}

impl Reader for Transaction {
    type Rows<'r> = Scan<'r>;

    fn get(&self, table: &Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Self::get(self, table, key)
    }

    fn scan<'k>(&self, table: &Table, range: impl RangeBounds<&'k [u8]>) -> Scan<'_> {
        Self::scan(self, table, range)
    }

    fn contains(&self, table: &Table, key: &[u8]) -> Result<bool, Error> {
        Self::contains(self, table, key)
    }

    fn get_stream(&self, table: &Table, key: &[u8]) -> Result<Option<ValueReader<'_>>, Error> {
        Self::get_stream(self, table, key)
    }

    fn approximate_len(&self, table: &Table) -> Result<u64, Error> {
        Self::approximate_len(self, table)
    }
}
