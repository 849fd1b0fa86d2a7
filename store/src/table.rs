//! The tables of a store by name, and dropped tables.
//!
//! Invariant 51: pages of a dropped table are freed only when the drop's commit is in the log. No page is freed twice.
//! Once the transaction that drops the table can no longer be rolled back, the store refuses handles of the table. No
//! other transaction uses a table before the transaction that made it has committed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use crate::error::Error;
use crate::format::PageId;
use crate::sync::Parker;
use crate::versions::Versions;

/// A table of a store: rows ordered by the bytes of their keys. A handle is cheap to clone, and borrows nothing.
/// Handles stay valid when the table is renamed. Once the table is dropped, its handles are refused
/// ([`Error::NoTable`]). If the store is closed and opened again, it refuses the old handles ([`Error::Foreign`]).
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
/// let table = store.table("accounts")?;
/// assert_eq!(table.name(), "accounts");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Table {
    name: Arc<str>,
    tree: Arc<TreeOfTable>,
}

/// The state that all handles of a table share.
#[derive(Debug)]
pub(crate) struct TreeOfTable {
    pub(crate) root: PageId,
    /// The number of the opening of the store that made the handle. The store refuses handles that were made by another
    /// opening.
    opening: u64,
    /// Whether the table was made by a transaction that has not committed.
    is_new: AtomicBool,
    /// Whether a transaction has dropped the table. That transaction may still be rolled back.
    is_gone: AtomicBool,
    /// Whether the table's pages may already belong to another table.
    is_given_back: AtomicBool,
    /// The moment of the table's last bulk load, or 0. Snapshots of this moment and of earlier moments see no rows,
    /// whatever the pages contain.
    loaded: AtomicU64,
}

/// The value of `loaded` while a bulk load is in progress. A snapshot sees the rows only if its moment is later than
/// `loaded`. No moment is later than this value, so no snapshot sees the rows yet.
const BEING_LOADED: u64 = u64::MAX;

/// The snapshots that may read a table's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForSnapshots {
    /// No snapshot.
    None,
    /// Every snapshot.
    There,
    /// Only snapshots that were opened before the transaction that dropped the table ended.
    Dropped,
}

impl TreeOfTable {
    pub(crate) fn set_gone(&self, is_gone: bool) {
        self.is_gone.store(is_gone, Ordering::SeqCst);
    }

    pub(crate) fn set_new(&self, is_new: bool) {
        self.is_new.store(is_new, Ordering::SeqCst);
    }
}

impl Table {
    /// Returns the name by which the program got this handle.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// assert_eq!(store.table("orders")?.name(), "orders");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn root(&self) -> PageId {
        self.tree.root
    }

    /// Returns the error that reports rows that are not in the order of their keys.
    pub(crate) fn out_of_order(&self) -> Error {
        Error::Corrupt { what: "a table, whose rows are out of order,".to_owned(), page: Some(self.root()) }
    }

    /// Checks that the table has not been dropped. The caller's transaction holds a lock on the table, so no other
    /// transaction can drop the table before this one ends.
    pub(crate) fn check_there(&self) -> Result<(), Error> {
        if self.tree.is_gone.load(Ordering::SeqCst) {
            return Err(Error::NoTable { name: self.name.to_string() });
        }
        Ok(())
    }

    /// Returns whether a snapshot of this moment sees no rows, because they were bulk-loaded later. The caller has to
    /// read the table's pages first.
    pub(crate) fn is_loaded_after(&self, moment: u64) -> bool {
        let loaded = self.tree.loaded.load(Ordering::SeqCst);
        loaded != 0 && moment <= loaded
    }

    /// Returns which snapshots may read the pages. The caller holds no lock. If the table was dropped, the caller reads
    /// the catalog, and then calls this again.
    pub(crate) fn for_snapshots(&self) -> ForSnapshots {
        let is = |word: &AtomicBool| word.load(Ordering::SeqCst);
        if is(&self.tree.is_given_back) || is(&self.tree.is_new) {
            ForSnapshots::None
        } else if is(&self.tree.is_gone) {
            ForSnapshots::Dropped
        } else {
            ForSnapshots::There
        }
    }
}

/// A dropped table that had a handle when it was dropped.
#[derive(Debug)]
struct Dropped {
    tree: Arc<TreeOfTable>,
    /// Snapshots of this moment and of earlier moments may still read the table.
    moment: u64,
}

/// The tables of an open store for which programs have handles.
#[derive(Debug)]
pub(crate) struct Tables {
    /// The number of this opening of the store, which no other opening in this process has.
    opening: u64,
    /// A number that grows whenever a transaction drops or renames a table, and whenever such a transaction ends.
    generation: AtomicU64,
    /// Tables by name. Each has the value that `generation` had when its lookup began.
    names: RwLock<FxHashMap<String, (Table, u64)>>,
    roots: Mutex<FxHashMap<PageId, Weak<TreeOfTable>>>,
    /// Dropped tables that still have pages, by root.
    dropped: Mutex<FxHashMap<PageId, Dropped>>,
    /// Tables that a load is filling, or has filled while an older snapshot is open. Each has the value that `loaded`
    /// had before the load.
    loaded: Mutex<Vec<(Table, u64)>>,
    /// Whether there may be dropped tables whose pages can be freed now.
    pub(crate) are_dropped: AtomicBool,
    /// Whether open snapshots may keep pages of dropped tables in use.
    are_kept: AtomicBool,
    /// The parker on which the reaper sleeps.
    reaper: Parker,
}

impl Default for Tables {
    fn default() -> Self {
        static OPENINGS: AtomicU64 = AtomicU64::new(0);
        Self {
            opening: OPENINGS.fetch_add(1, Ordering::Relaxed),
            generation: AtomicU64::new(0),
            names: RwLock::default(),
            roots: Mutex::default(),
            dropped: Mutex::default(),
            loaded: Mutex::default(),
            are_dropped: AtomicBool::new(true),
            are_kept: AtomicBool::new(false),
            reaper: Parker::default(),
        }
    }
}

impl Tables {
    /// Returns a handle of the table with this name and root.
    pub(crate) fn handle(&self, name: &str, root: PageId) -> Table {
        Table { name: name.into(), tree: self.tree(root) }
    }

    pub(crate) fn tree(&self, root: PageId) -> Arc<TreeOfTable> {
        let mut roots = self.roots.lock();
        if let Some(tree) = roots.get(&root).and_then(Weak::upgrade) {
            return tree;
        }
        roots.retain(|_, tree| tree.strong_count() > 0);
        let tree = Arc::new(TreeOfTable {
            root,
            opening: self.opening,
            is_new: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
            is_given_back: AtomicBool::new(false),
            loaded: AtomicU64::new(0),
        });
        roots.insert(root, Arc::downgrade(&tree));
        tree
    }

    pub(crate) fn has(&self, table: &Table) -> bool {
        table.tree.opening == self.opening
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Returns the table of this name, if it was looked up since names last changed.
    pub(crate) fn known(&self, name: &str) -> Option<Table> {
        let names = self.names.read();
        let (table, generation) = names.get(name)?;
        (*generation == self.generation()).then(|| table.clone())
    }

    pub(crate) fn remember(&self, table: &Table, generation: u64) {
        self.names.write().insert(table.name().to_owned(), (table.clone(), generation));
    }

    /// Forgets all remembered names, because a transaction has changed names, or has rolled such a change back.
    pub(crate) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.names.write().clear();
    }

    /// Forgets a table whose creation was rolled back. From now on, its root page may become the root of another table.
    pub(crate) fn forget(&self, tree: &TreeOfTable) {
        self.roots.lock().remove(&tree.root);
    }

    /// Hands a dropped table over to the reaper, now that the drop has committed. Once no snapshot reads the table, its
    /// root page may become the root of another table.
    pub(crate) fn dropped(&self, tree: &Arc<TreeOfTable>, versions: &Versions) {
        let dropped = Dropped { tree: Arc::clone(tree), moment: versions.pass() };
        self.dropped.lock().insert(tree.root, dropped);
        self.forget(tree);
        self.are_dropped.store(true, Ordering::SeqCst);
    }

    /// Returns whether the pages of a table may be freed. The caller has made sure that the transaction that dropped
    /// the table has ended. The pages must stay while a snapshot from before the drop is open. If this returns true, no
    /// snapshot can begin to read the table from then on.
    pub(crate) fn may_give_back(&self, root: PageId, versions: &Versions) -> bool {
        let all = self.dropped.lock();
        // The table was dropped before the store was opened, so no snapshot can show it.
        let Some(dropped) = all.get(&root) else { return true };
        // Sets the flag before the check. So a snapshot that ends after the check sees the flag, and wakes the reaper.
        self.are_kept.store(true, Ordering::SeqCst);
        if versions.has_snapshots_until(dropped.moment) {
            return false;
        }
        dropped.tree.is_given_back.store(true, Ordering::SeqCst);
        true
    }

    /// Wakes the reaper, if snapshots kept pages of dropped tables. A thread calls this when a snapshot was closed or
    /// ended, because the reaper may then be able to free these pages.
    pub(crate) fn snapshot_has_ended(&self) {
        if self.are_kept.load(Ordering::SeqCst) && self.are_kept.swap(false, Ordering::SeqCst) {
            self.are_dropped.store(true, Ordering::SeqCst);
            self.reaper.wake();
        }
    }

    /// Lets the reaper sleep until it is woken, or for at most `limit`.
    pub(crate) fn wait_for_dropped(&self, limit: Duration) {
        self.reaper.sleep(limit);
    }

    /// Wakes the reaper.
    pub(crate) fn wake_reaper(&self) {
        self.reaper.wake();
    }

    /// Hides a table's rows from all snapshots, before a load adds rows. The caller has locked the table, and no open
    /// snapshot sees a row of it.
    pub(crate) fn begin_load(&self, table: &Table) {
        let before = table.tree.loaded.swap(BEING_LOADED, Ordering::SeqCst);
        self.loaded.lock().push((table.clone(), before));
    }

    /// Makes the table visible to snapshots as it was before the load, because the load has failed.
    pub(crate) fn load_failed(&self, table: &Table) {
        let mut loaded = self.loaded.lock();
        let at = loaded.iter().rposition(|(other, _)| Arc::ptr_eq(&other.tree, &table.tree));
        if let Some((_, before)) = at.map(|at| loaded.remove(at)) {
            table.tree.loaded.store(before, Ordering::SeqCst);
        }
    }

    /// Shows the loaded rows to snapshots that are opened from now on. Snapshots that were opened earlier saw an empty
    /// table, and never see these rows. The load has committed, and still holds the table's lock.
    pub(crate) fn loaded(&self, table: &Table, versions: &Versions) {
        let mut loaded = self.loaded.lock();
        versions.pass_and(|moment| table.tree.loaded.store(moment, Ordering::SeqCst));
        // While an older snapshot is open, this list keeps the table's shared state in memory. So if a program gets a
        // new handle of the table, the snapshot does not see the rows through that handle either.
        loaded.retain(|(table, _)| {
            let moment = table.tree.loaded.load(Ordering::SeqCst);
            moment == BEING_LOADED || versions.has_snapshots_until(moment)
        });
    }

    /// Forgets a dropped table, because all of its pages have been freed.
    pub(crate) fn given_back(&self, root: PageId) {
        let mut all = self.dropped.lock();
        all.remove(&root);
        if all.is_empty() {
            self.are_kept.store(false, Ordering::SeqCst);
        }
    }
}
