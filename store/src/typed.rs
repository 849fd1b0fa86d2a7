//! Tables with typed keys and values, as views of tables of bytes.

use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use crate::codec::{Key, Value};
use crate::error::Error;
use crate::reader::{Reader, Row};
use crate::table::Table;
use crate::transaction::Transaction;

/// A table with typed keys and values: a view of a [`Table`] of bytes. The store does not record the types of a table.
/// Reading a row that does not fit the types fails with [`Error::NotOfType`].
///
/// ```
/// use duralite_store::{Error, Options, Store, Transaction, TypedTable};
/// # let dir = tempfile::tempdir()?;
/// let store = Store::open(dir.path().join("store"), Options::default())?;
/// let orders: TypedTable<(String, u64), f64> = store.table("orders")?.into();
/// store.run(|tx: &mut Transaction| -> Result<(), Error> {
///     orders.put(tx, &("alice".to_owned(), 2), &9.5)?;
///     orders.put(tx, &("alice".to_owned(), 10), &1.25)
/// })?;
/// let tx = store.begin();
/// let from = ("alice".to_owned(), 3);
/// let later: Vec<_> = orders.scan(&tx, from..).collect::<Result<_, _>>()?;
/// assert_eq!(later, [(("alice".to_owned(), 10), 1.25)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TypedTable<K, V> {
    table: Table,
    types: PhantomData<fn(K) -> V>,
}

impl<K, V> Clone for TypedTable<K, V> {
    fn clone(&self) -> Self {
        self.table.clone().into()
    }
}

impl<K, V> From<Table> for TypedTable<K, V> {
    fn from(table: Table) -> Self {
        Self { table, types: PhantomData }
    }
}

/// Returns a key in its encoded form, as the store keeps it.
fn encoded<K: Key>(key: &K::Borrowed) -> Vec<u8> {
    let mut bytes = Vec::new();
    K::encode_last(key, &mut bytes);
    bytes
}

impl<K: Key, V: Value> TypedTable<K, V> {
    /// Returns the underlying table of bytes.
    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    fn not_of_type(&self) -> Error {
        Error::NotOfType {
            table: self.table.name().to_owned(),
            key: std::any::type_name::<K>(),
            value: std::any::type_name::<V>(),
        }
    }

    fn value(&self, bytes: &[u8]) -> Result<V, Error> {
        V::decode(bytes).ok_or_else(|| self.not_of_type())
    }

    fn row(&self, (key, value): Row) -> Result<(K, V), Error> {
        let key = K::decode_last(&key).ok_or_else(|| self.not_of_type())?;
        Ok((key, self.value(&value)?))
    }

    /// Reads a row's value through `rows`, a transaction or a snapshot.
    ///
    /// # Errors
    /// As [`Reader::get`], and [`Error::NotOfType`].
    pub fn get(&self, rows: &impl Reader, key: &K::Borrowed) -> Result<Option<V>, Error> {
        rows.get(&self.table, &encoded::<K>(key))?.map(|value| self.value(&value)).transpose()
    }

    /// Takes an exclusive lock on a row, and returns its value.
    ///
    /// # Errors
    /// As [`Transaction::get_for_update`], and [`Error::NotOfType`].
    pub fn get_for_update(&self, tx: &Transaction, key: &K::Borrowed) -> Result<Option<V>, Error> {
        tx.get_for_update(&self.table, &encoded::<K>(key))?.map(|value| self.value(&value)).transpose()
    }

    /// Sets a row.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    pub fn put(&self, tx: &mut Transaction, key: &K::Borrowed, value: &V::Borrowed) -> Result<(), Error> {
        let mut bytes = Vec::new();
        V::encode(value, &mut bytes);
        tx.put(&self.table, &encoded::<K>(key), &bytes)
    }

    /// Removes a row. Returns whether it existed.
    ///
    /// # Errors
    /// As [`Transaction::delete`].
    pub fn delete(&self, tx: &mut Transaction, key: &K::Borrowed) -> Result<bool, Error> {
        tx.delete(&self.table, &encoded::<K>(key))
    }

    /// Returns the rows of a range of keys, in key order, or backwards with `.rev()`.
    pub fn scan<'r, R: Reader>(
        &self,
        rows: &'r R,
        range: impl RangeBounds<K>,
    ) -> TypedRows<K, V, R::Rows<'r>> {
        let bytes = |bound: Bound<&K>| bound.map(|key| encoded::<K>(key.borrow()));
        let (from, to) = (bytes(range.start_bound()), bytes(range.end_bound()));
        let range = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
        TypedRows { table: self.clone(), rows: rows.scan(&self.table, range) }
    }
}

/// The rows of a range of keys in a [`TypedTable`].
#[derive(Debug)]
pub struct TypedRows<K, V, R> {
    table: TypedTable<K, V>,
    rows: R,
}

impl<K: Key, V: Value, R: Iterator<Item = Result<Row, Error>>> Iterator for TypedRows<K, V, R> {
    type Item = Result<(K, V), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.rows.next().map(|row| self.table.row(row?))
    }
}

impl<K: Key, V: Value, R: DoubleEndedIterator<Item = Result<Row, Error>>> DoubleEndedIterator
    for TypedRows<K, V, R>
{
    fn next_back(&mut self) -> Option<Self::Item> {
        self.rows.next_back().map(|row| self.table.row(row?))
    }
}
