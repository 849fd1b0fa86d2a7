//! A bulk load of sorted rows into an empty table. It writes each row only once.
//!
//! The load builds pages from the leaves up, outside of the cache. It allocates runs of free pages, and writes its
//! pages home there, many at a time. When the pages are durable, one log object adds them to the table (invariant 53).

mod build;
mod pages;
mod writer;

use std::sync::Arc;

use self::build::Builder;
use self::pages::Pages;
use crate::error::{Error, VALUE_LIMIT};
use crate::format::KEY_LIMIT;
use crate::running::Running;
use crate::table::Table;

/// A load of rows, in ascending order of their keys, into a table without rows; see
/// [`Store::bulk_load`](crate::Store::bulk_load). Until [`finish`](Self::finish) has returned, no transaction and no
/// snapshot sees a row of the table. If the load is dropped before that, the table stays empty. Transactions that use
/// the table wait until the load has ended. A load takes a few megabytes of memory besides the cache.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
/// let squares = store.table("squares")?;
/// let mut load = store.bulk_load(&squares)?;
/// for n in 0..1000_u64 {
///     load.put(&n.to_be_bytes(), &(n * n).to_le_bytes())?;
/// }
/// assert_eq!(load.finish()?, 1000);
/// assert_eq!(store.begin().get(&squares, &30_u64.to_be_bytes())?, Some(900_u64.to_le_bytes().to_vec()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct BulkLoad {
    builder: Builder,
    pages: Pages,
}

impl BulkLoad {
    pub(crate) fn begin(running: &Arc<Running>, table: &Table) -> Result<Self, Error> {
        let pages = Pages::begin(running, table)?;
        Ok(Self { builder: Builder::new(running.engine.pager.pool.page_bytes()), pages })
    }

    /// Adds a row. Nothing is durable on return.
    ///
    /// # Errors
    /// [`Error::OutOfOrder`] unless the key is above the key of the previous row, [`Error::KeyTooLong`] or
    /// [`Error::RowTooLong`]. The row is then not added, and the load can continue. [`Error::Full`], [`Error::Io`] or
    /// [`Error::Timeout`]. The load has then failed, and can only be dropped; further calls return [`Error::Finished`].
    /// [`Error::Poisoned`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.pages.check()?;
        if key.len() > KEY_LIMIT {
            return Err(Error::KeyTooLong { len: key.len() });
        }
        if value.len() as u64 > VALUE_LIMIT {
            return Err(Error::RowTooLong { len: value.len() as u64 });
        }
        if !self.builder.is_next(key) {
            return Err(Error::OutOfOrder);
        }
        let put = self.builder.put(key, value, &mut self.pages);
        put.inspect_err(|_| self.pages.fail())
    }

    /// Commits the load, and returns the number of rows. The rows appear all at once. They are durable on return, even
    /// with [`Durability::Eventual`](crate::Durability::Eventual).
    ///
    /// # Errors
    /// [`Error::Full`], [`Error::Io`], [`Error::Timeout`], [`Error::Corrupt`]: the table is still empty.
    /// [`Error::Finished`] if the load has already failed. [`Error::Poisoned`]: the table may or may not have the rows;
    /// opening the store again shows which.
    pub fn finish(self) -> Result<u64, Error> {
        let Self { mut builder, mut pages } = self;
        pages.check()?;
        let rows = builder.rows();
        if let Some(root) = builder.finish(&mut pages)? {
            pages.commit(&root)?;
        }
        Ok(rows)
    }
}
