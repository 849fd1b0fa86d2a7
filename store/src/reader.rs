//! The interface for reading rows, which transactions and snapshots have in common.

use std::ops::{Bound, RangeBounds};

use crate::error::Error;
use crate::table::Table;
use crate::value_reader::ValueReader;

/// A row: its key and its value.
pub type Row = (Vec<u8>, Vec<u8>);

/// A type that reads rows through a shared reference, so that several scans and reads can be open at once. Generic code
/// takes `&impl Reader`. [`Transaction`](crate::Transaction) has methods of the same names that need no import.
///
/// ```
/// use duralite_store::{Error, Options, Reader, Store, Table};
/// fn count(rows: &impl Reader, table: &Table) -> Result<usize, Error> {
///     rows.scan(table, ..).try_fold(0, |count, row| row.map(|_| count + 1))
/// }
/// # let dir = tempfile::tempdir()?;
/// let store = Store::open(dir.path().join("store"), Options::default())?;
/// let table = store.table("t")?;
/// store.run(|tx| tx.put(&table, b"key", b"value"))?;
/// assert_eq!(count(&store.begin(), &table)?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Reader {
    /// The rows that [`scan`](Self::scan) returns: in key order, or backwards with `.rev()`.
    type Rows<'r>: DoubleEndedIterator<Item = Result<Row, Error>>
    where
        Self: 'r;

    /// Returns a row's value; `None` if there is no such row.
    ///
    /// # Errors
    /// The errors of `get` of the implementing type.
    fn get(&self, table: &Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error>;

    /// Returns the rows of a range of keys. An item may be an error; the scan ends after it.
    fn scan<'k>(&self, table: &Table, range: impl RangeBounds<&'k [u8]>) -> Self::Rows<'_>;

    /// Returns a row's value as a reader, which reads the value piece by piece.
    ///
    /// ```
    /// use std::io::Read;
    /// use duralite_store::{Error, Options, Reader, Store, Table};
    /// fn sum(rows: &impl Reader, table: &Table, key: &[u8]) -> Result<u64, Box<dyn std::error::Error>> {
    ///     let value = rows.get_stream(table, key)?.ok_or("no such row")?;
    ///     value.bytes().try_fold(0, |sum, byte| Ok(sum + u64::from(byte?)))
    /// }
    /// # let dir = tempfile::tempdir()?;
    /// let store = Store::open(dir.path().join("store"), Options::default())?;
    /// let table = store.table("t")?;
    /// store.run(|tx| tx.put_stream(&table, b"long", &mut std::io::repeat(2).take(1 << 20)))?;
    /// assert_eq!(sum(&store.snapshot(), &table, b"long")?, 2 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get). Errors of later reads are the source of an [`io::Error`](std::io::Error).
    fn get_stream(&self, table: &Table, key: &[u8]) -> Result<Option<ValueReader<'_>>, Error>;

    /// Returns about how many rows a table has, estimated from a few of its pages.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    fn approximate_len(&self, table: &Table) -> Result<u64, Error>;

    /// Returns whether there is a row with this key.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    fn contains(&self, table: &Table, key: &[u8]) -> Result<bool, Error> {
        self.get(table, key).map(|value| value.is_some())
    }

    /// Returns the row with the smallest key.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    fn first(&self, table: &Table) -> Result<Option<Row>, Error> {
        self.scan(table, ..).next().transpose()
    }

    /// Returns the row with the largest key.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    fn last(&self, table: &Table) -> Result<Option<Row>, Error> {
        self.scan(table, ..).next_back().transpose()
    }

    /// Returns the rows whose keys begin with these bytes.
    fn prefix(&self, table: &Table, prefix: &[u8]) -> Self::Rows<'_> {
        let after = after_prefix(prefix);
        let end = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        self.scan(table, (Bound::Included(prefix), end))
    }
}

/// Returns the smallest key above all keys with this prefix; `None` if there is no such key.
pub(crate) fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut after = prefix[..=last].to_vec();
    after[last] += 1;
    Some(after)
}

#[cfg(test)]
mod tests {
    use super::after_prefix;

    #[test]
    fn what_comes_after_a_prefix() {
        let cases: [(&[u8], Option<&[u8]>); 5] = [
            (b"", None),
            (b"a", Some(b"b")),
            (b"a\xff", Some(b"b")),
            (b"\xff\xff", None),
            (b"\x00\xfe", Some(b"\x00\xff")),
        ];
        for (prefix, after) in cases {
            assert_eq!(after_prefix(prefix).as_deref(), after, "{prefix:?}");
        }
    }
}
