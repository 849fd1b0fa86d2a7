//! Tables, by name, and which of them are gone.
//!
//! Invariant 51: no page of a dropped table is given back before the transaction that dropped it is in the log, and none
//! twice. Who has a handle of it is refused, from the moment on at which that transaction cannot be taken back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use duralite_logfmt::store::PageId;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;

use crate::error::Error;
use crate::sync::Parker;
use crate::versions::Versions;

/// A table of a store: rows ordered by the bytes of their keys. Cheap to clone, and borrows nothing. A table that has
/// been renamed keeps its handles; one that has been dropped refuses them ([`Error::NoTable`]), and so does a store that was
/// opened anew ([`Error::Foreign`]).
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

/// What all handles of a table share.
#[derive(Debug)]
pub(crate) struct TreeOfTable {
    root: PageId,
    /// Which opening of which store.
    opening: u64,
    /// The transaction that made it has not committed.
    is_new: AtomicBool,
    /// Some transaction has dropped it, which may still be taken back.
    is_gone: AtomicBool,
    /// Its pages may be another one's.
    is_given_back: AtomicBool,
    /// For snapshots of this moment and earlier ones it has no rows, whatever its pages say: they were loaded later.
    loaded: AtomicU64,
}

/// In place of that moment: the load has not ended for snapshots, and there is none that shows it.
const BEING_LOADED: u64 = u64::MAX;

/// Whether a snapshot may look at a table's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForSnapshots {
    /// It is no snapshot's.
    None,
    /// It is there.
    There,
    /// It is there for those that are older than the end of the transaction that has dropped it.
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
    /// The name that it was asked for by.
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

    /// Where its rows are not in the order of their keys.
    pub(crate) fn out_of_order(&self) -> Error {
        Error::Corrupt { what: "a table, whose rows are out of order,".to_owned(), page: Some(self.root()) }
    }

    /// Asked with the table locked: until its transaction is over nobody drops it then.
    pub(crate) fn check_there(&self) -> Result<(), Error> {
        if self.tree.is_gone.load(Ordering::SeqCst) {
            return Err(Error::NoTable { name: self.name.to_string() });
        }
        Ok(())
    }

    /// Whether it has no rows for a snapshot of this moment, since they were loaded later. Asked once its pages have been looked at.
    pub(crate) fn is_loaded_after(&self, moment: u64) -> bool {
        let loaded = self.tree.loaded.load(Ordering::SeqCst);
        loaded != 0 && moment <= loaded
    }

    /// Asked without a lock; of a table that is dropped again once the table of tables was looked at.
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

/// A table that was dropped while there was a handle of it.
#[derive(Debug)]
struct Dropped {
    tree: Arc<TreeOfTable>,
    /// Snapshots that are not younger may still read it.
    moment: u64,
}

/// The tables of an open store that programs have handles of.
#[derive(Debug)]
pub(crate) struct Tables {
    /// Another one for each store that is opened in the process.
    opening: u64,
    /// Grows whenever a transaction drops or renames a table, and when such a transaction ends.
    generation: AtomicU64,
    /// By name, with the generation before they were looked for.
    names: RwLock<FxHashMap<String, (Table, u64)>>,
    roots: Mutex<FxHashMap<PageId, Weak<TreeOfTable>>>,
    /// By root; as long as it has pages.
    dropped: Mutex<FxHashMap<PageId, Dropped>>,
    /// Those with rows that were loaded after some snapshot had been opened, with the moment before.
    loaded: Mutex<Vec<(Table, u64)>>,
    /// Whether there may be dropped tables whose pages can be given back.
    pub(crate) are_dropped: AtomicBool,
    /// Whether snapshots keep some that were dropped.
    are_kept: AtomicBool,
    /// Where the reaper sleeps.
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
    /// The handle of a tree.
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

    /// A table that was looked for since the last change of names.
    pub(crate) fn known(&self, name: &str) -> Option<Table> {
        let names = self.names.read();
        let (table, generation) = names.get(name)?;
        (*generation == self.generation()).then(|| table.clone())
    }

    pub(crate) fn remember(&self, table: &Table, generation: u64) {
        self.names.write().insert(table.name().to_owned(), (table.clone(), generation));
    }

    /// Names have changed, or may again be what they were.
    pub(crate) fn changed(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.names.write().clear();
    }

    /// A table was never there: its root may become that of another one.
    pub(crate) fn forget(&self, tree: &TreeOfTable) {
        self.roots.lock().remove(&tree.root);
    }

    /// A table has been dropped for good: its root may become that of another one once no snapshot reads it any more.
    pub(crate) fn dropped(&self, tree: &Arc<TreeOfTable>, versions: &Versions) {
        let dropped = Dropped { tree: Arc::clone(tree), moment: versions.pass() };
        self.dropped.lock().insert(tree.root, dropped);
        self.forget(tree);
        self.are_dropped.store(true, Ordering::SeqCst);
    }

    /// Whether the pages of a table may be given back that was dropped by a transaction which has ended: not as long as a
    /// snapshot is open that is older than that. If so no snapshot reads it from now on.
    pub(crate) fn may_give_back(&self, root: PageId, versions: &Versions) -> bool {
        let all = self.dropped.lock();
        // Dropped before the store was opened, when there were no snapshots of it.
        let Some(dropped) = all.get(&root) else { return true };
        // Before it is looked for them: whichever of them ends after that says so.
        self.are_kept.store(true, Ordering::SeqCst);
        if versions.has_snapshots_until(dropped.moment) {
            return false;
        }
        dropped.tree.is_given_back.store(true, Ordering::SeqCst);
        true
    }

    /// Snapshots have been closed or ended: tables that they kept may go.
    pub(crate) fn snapshot_has_ended(&self) {
        if self.are_kept.load(Ordering::SeqCst) && self.are_kept.swap(false, Ordering::SeqCst) {
            self.are_dropped.store(true, Ordering::SeqCst);
            self.reaper.wake();
        }
    }

    /// Lets the reaper sleep until it is woken, or for so long.
    pub(crate) fn wait_for_dropped(&self, limit: Duration) {
        self.reaper.sleep(limit);
    }

    /// Ends that.
    pub(crate) fn wake_reaper(&self) {
        self.reaper.wake();
    }

    /// A table that is locked, and has no rows for any snapshot, is about to get some: no snapshot sees them.
    pub(crate) fn begin_load(&self, table: &Table) {
        let before = table.tree.loaded.swap(BEING_LOADED, Ordering::SeqCst);
        self.loaded.lock().push((table.clone(), before));
    }

    /// It did not get them.
    pub(crate) fn load_failed(&self, table: &Table) {
        let mut loaded = self.loaded.lock();
        let at = loaded.iter().rposition(|(other, _)| Arc::ptr_eq(&other.tree, &table.tree));
        if let Some((_, before)) = at.map(|at| loaded.remove(at)) {
            table.tree.loaded.store(before, Ordering::SeqCst);
        }
    }

    /// The load has committed: snapshots that are opened from now on see its rows. Others never do, and so one that has been told
    /// that there are none is never told otherwise. Called before the table's lock is released.
    pub(crate) fn loaded(&self, table: &Table, versions: &Versions) {
        let mut loaded = self.loaded.lock();
        versions.pass_and(|moment| table.tree.loaded.store(moment, Ordering::SeqCst));
        // As long as there is such a snapshot whoever asks for the table anew is to be told so too.
        loaded.retain(|(table, _)| {
            let moment = table.tree.loaded.load(Ordering::SeqCst);
            moment == BEING_LOADED || versions.has_snapshots_until(moment)
        });
    }

    /// All pages of a table have been given back.
    pub(crate) fn given_back(&self, root: PageId) {
        let mut all = self.dropped.lock();
        all.remove(&root);
        if all.is_empty() {
            self.are_kept.store(false, Ordering::SeqCst);
        }
    }
}
