//! Tables, by name.

use std::sync::Arc;

use duralite_logfmt::store::PageId;

/// A table of a store: rows ordered by the bytes of their keys. Cheap to clone, and borrows nothing.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
/// let table = store.table("accounts")?;
/// assert_eq!(table.name(), "accounts");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Table(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    root: PageId,
    store_id: [u8; 16],
}

impl Table {
    pub(crate) fn new(name: &str, root: PageId, store_id: [u8; 16]) -> Self {
        Self(Arc::new(Inner { name: name.to_owned(), root, store_id }))
    }

    /// Its name.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// assert_eq!(store.table("orders")?.name(), "orders");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn root(&self) -> PageId {
        self.0.root
    }

    pub(crate) fn is_of(&self, store_id: &[u8; 16]) -> bool {
        self.0.store_id == *store_id
    }
}
