//! Finds, makes, renames and drops tables. Making, renaming and dropping change rows of the catalog, which is the table
//! that lists all tables.

use std::sync::Arc;

use super::Transaction;
use super::change::Intent;
use super::kept::Renamed;
use crate::error::Error;
use crate::format::{Change, KEY_LIMIT, PageId, PageKind, Undo, Value, blank, leaf_cell, leaf_value};
use crate::locks::{Key, Mode, Target};
use crate::reap::{dropped_key, is_hidden};
use crate::space::{GivenPage, Purpose};
use crate::table::Table;

/// Checks that a name is allowed for a program's table.
fn check_name(name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > KEY_LIMIT || is_hidden(name.as_bytes()) {
        let what = format!("a table's name has from 1 to {KEY_LIMIT} bytes, the first of which is not 0");
        return Err(Error::Invalid { what });
    }
    Ok(())
}

impl Transaction {
    /// Returns the table of this name, or makes it if there is none. If the transaction makes the table but does not
    /// commit, the table is removed. So until this transaction ends, other transactions that use such a table wait. A
    /// table that [`Store::table`](crate::Store::table) makes is committed at once.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// let mut tx = store.begin();
    /// let table = tx.table("new")?;
    /// tx.put(&table, b"key", b"value")?;
    /// tx.commit()?;
    /// assert_eq!(store.tables()?, ["new"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that is empty or too long; the errors of [`put`](Self::put).
    pub fn table(&mut self, name: &str) -> Result<Table, Error> {
        if let Some(root) = self.root_of(name)? {
            return Ok(self.engine().tables.handle(name, root));
        }
        let steps = self.step_count();
        let root = self.changing(|tx| {
            let root = tx.make_root()?;
            let cell = leaf_cell(name.as_bytes(), Value::Inline(&root.to_le_bytes()));
            tx.put_cell(tx.engine().catalog(), name.as_bytes(), &cell)?;
            Ok(root)
        })?;
        // The program may pass the handle to other threads. Their transactions wait for this lock. When they get it,
        // the table is either committed or gone. Without the lock, they could commit rows into the table, and a
        // rollback of this transaction would lose these rows.
        self.take(&Target::Table(root), Mode::Exclusive)?;
        let table = self.engine().tables.handle(name, root);
        let tree = self.engine().tables.tree(root);
        tree.set_new(true);
        self.renamed.push(Renamed { steps, tree: Some((tree, false)) });
        Ok(table)
    }

    /// Drops a table with all its rows. Returns whether the table existed. Once the transaction has committed, the
    /// store refuses handles of the table, and frees the table's pages in the background, even after a crash. If the
    /// transaction does not commit, the table stays. The transaction waits for other transactions that use the table.
    /// From then until it ends, other transactions have to wait if they want to use the table.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// store.table("old")?;
    /// let mut tx = store.begin();
    /// assert!(tx.drop_table("old")?);
    /// assert!(!tx.drop_table("old")?);
    /// tx.commit()?;
    /// assert!(store.tables()?.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn drop_table(&mut self, name: &str) -> Result<bool, Error> {
        let Some(root) = self.root_of(name)? else { return Ok(false) };
        self.take(&Target::Table(root), Mode::Exclusive)?;
        let steps = self.step_count();
        let catalog = self.engine().catalog();
        let hidden = dropped_key(root);
        self.lock(catalog, &Target::Row(catalog, Key::from(&hidden[..])), Mode::Exclusive)?;
        let tree = self.engine().tables.tree(root);
        self.changing(|tx| {
            tx.remove_cell(catalog, name.as_bytes())?;
            tx.put_cell(catalog, &hidden, &leaf_cell(&hidden, Value::Inline(&root.to_le_bytes())))
        })?;
        tree.set_gone(true);
        self.engine().tables.changed();
        self.renamed.push(Renamed { steps, tree: Some((tree, true)) });
        Ok(true)
    }

    /// Renames a table. The table's rows do not change, and its handles stay valid.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// // A new table replaces an old one in a single step.
    /// store.table("names")?;
    /// store.table("names.new")?;
    /// let mut tx = store.begin();
    /// tx.drop_table("names")?;
    /// tx.rename_table("names.new", "names")?;
    /// tx.commit()?;
    /// assert_eq!(store.tables()?, ["names"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoTable`], [`Error::TableExists`], [`Error::Invalid`] for a name that is not valid; the errors of
    /// [`put`](Self::put).
    pub fn rename_table(&mut self, from: &str, to: &str) -> Result<(), Error> {
        let Some(root) = self.root_of(from)? else { return Err(Error::NoTable { name: from.to_owned() }) };
        if self.root_of(to)?.is_some() {
            return Err(Error::TableExists { name: to.to_owned() });
        }
        let steps = self.step_count();
        let catalog = self.engine().catalog();
        self.changing(|tx| {
            tx.remove_cell(catalog, from.as_bytes())?;
            let cell = leaf_cell(to.as_bytes(), Value::Inline(&root.to_le_bytes()));
            tx.put_cell(catalog, to.as_bytes(), &cell)
        })?;
        self.engine().tables.changed();
        self.renamed.push(Renamed { steps, tree: None });
        Ok(())
    }

    /// Returns the table of this name, if there is one.
    pub(crate) fn find_table(&mut self, name: &str) -> Result<Option<Table>, Error> {
        let root = self.root_of(name)?;
        Ok(root.map(|root| self.engine().tables.handle(name, root)))
    }

    /// Prevents other transactions from dropping a table until this one ends. Other transactions may still read and
    /// change the table's rows.
    pub(crate) fn keep_table(&self, table: &Table) -> Result<(), Error> {
        self.check()?;
        self.take(&Target::Table(table.root()), Mode::IntentionShared)?;
        table.check_there()
    }

    /// Returns the root of the table of this name. Until this transaction ends, no other transaction can give the name
    /// to another table.
    fn root_of(&mut self, name: &str) -> Result<Option<PageId>, Error> {
        check_name(name)?;
        self.check()?;
        let (catalog, key) = (self.engine().catalog(), name.as_bytes());
        self.lock(catalog, &Target::Row(catalog, Key::from(key)), Mode::Exclusive)?;
        let Some((cell, _)) = self.engine().tree(catalog).get(key)? else { return Ok(None) };
        let damaged = || Error::corrupt("the list of tables");
        match leaf_value(&cell).map_err(|_| damaged())? {
            Value::Inline(root) => Ok(Some(u64::from_le_bytes(root.try_into().map_err(|_| damaged())?))),
            Value::Long { .. } => Err(damaged()),
        }
    }

    fn remove_cell(&mut self, root: PageId, key: &[u8]) -> Result<(), Error> {
        let bytes = self.page_bytes() as u64;
        let intent = Intent { author: self.author(), key, bytes, root, new: 0, found: None };
        self.change_row(intent, |tree, may| tree.remove(intent.author, key, may)).map(|_| ())
    }

    /// Gives the handles of tables the state that they had after the first `steps` steps. The caller has undone all
    /// later steps.
    pub(super) fn tables_back(&mut self, steps: usize) {
        if self.renamed.is_empty() {
            return;
        }
        while let Some(renamed) = self.renamed.pop_if(|renamed| renamed.steps >= steps) {
            if let Some((tree, was_dropped)) = renamed.tree {
                tree.set_gone(!was_dropped);
                if !was_dropped {
                    self.engine().tables.forget(&tree);
                    // The root page is free, so a table that is made later may get this page as its root.
                    self.running.engine.locks.release_table(self.held.get_mut(), tree.root);
                    self.tables.get_mut().retain(|(held, _)| *held != tree.root);
                }
            }
        }
        self.engine().tables.changed();
    }

    /// Updates the handles of tables after the transaction has committed. The caller has already recorded for snapshots
    /// that the transaction has ended.
    pub(super) fn tables_committed(&mut self) {
        if let Some(table) = self.loaded.take() {
            self.engine().tables.loaded(&table, &self.engine().versions);
        }
        if self.renamed.is_empty() {
            return;
        }
        for renamed in std::mem::take(&mut self.renamed) {
            match renamed.tree {
                Some((tree, true)) => self.engine().tables.dropped(&tree, &self.engine().versions),
                Some((tree, false)) => tree.set_new(false),
                None => {}
            }
        }
        self.engine().tables.changed();
        self.engine().tables.wake_reaper();
    }

    /// Makes the root page of an empty tree. A rollback frees the page.
    fn make_root(&mut self) -> Result<PageId, Error> {
        let kept = self.admit(0)?;
        let undoable = Arc::clone(self.undoable.get_or_insert_default());
        let busy = undoable.busy.lock();
        let made = self.step_for_root();
        self.admitted(kept);
        let (root, logged, undo) = made?;
        self.add_step(logged, undo);
        drop(busy);
        Ok(root)
    }

    fn step_for_root(&self) -> Result<(PageId, crate::pager::Logged, Vec<u8>), Error> {
        let engine = self.engine();
        let mut given = engine.space.find(&engine.pager, 1, Purpose::Do)?;
        let GivenPage { id: root, set, .. } = given.pages[0];
        let mut page = engine.pager.pool.make(root)?;
        let mut image = page.bytes().to_vec();
        blank(&mut image, PageKind::Leaf, 0);
        let mut undo = Vec::new();
        Undo::Page { page: root }.encode(&mut undo);
        let changes = [(0, set), (1, Change::image_of(&image))];
        let logged =
            engine.pager.step(self.author(), &undo, &mut [&mut given.maps[0], &mut page], &changes)?;
        given.taken();
        Ok((root, logged, undo))
    }
}
