//! Reads and changes rows.

use std::sync::Arc;

use super::change::{Intent, OBJECT_OVERHEAD, undo_room};
use super::{State, Transaction};
use crate::admission::Room;
use crate::controls::Rule;
use crate::error::{Error, VALUE_LIMIT};
use crate::format::{
    LEAF_CELL_HEAD, ObjectKind, PageId, PageKind, Undo, Value, cell_key, leaf_cell, leaf_value,
};
use crate::locks::{Key, Mode};
use crate::pager::{Author, Logged};
use crate::steps::Step;
use crate::table::Table;
use crate::tree::{Found, inline_limit, read_chain};

impl Transaction {
    /// Takes a shared lock on a row, and returns its value; `None` if there is no such row.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// let tx = store.begin();
    /// assert_eq!(tx.get(&table, b"nobody")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Deadlock`], [`Error::Timeout`], [`Error::KeyTooLong`], [`Error::Corrupt`], [`Error::Io`],
    /// [`Error::Finished`], [`Error::Foreign`], [`Error::Poisoned`].
    pub fn get(&self, table: &Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.read(table, key, Mode::Shared)
    }

    /// Takes an exclusive lock on a row, and returns its value; `None` if there is no such row. Use this for a row that
    /// the transaction will change, because two transactions that read a row under shared locks and then both change it
    /// would deadlock.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// let mut tx = store.begin();
    /// let old = tx.get_for_update(&table, b"count")?.map_or(0, |value| value[0]);
    /// tx.put(&table, b"count", &[old + 1])?;
    /// tx.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn get_for_update(&self, table: &Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.read(table, key, Mode::Exclusive)
    }

    fn read(&self, table: &Table, key: &[u8], mode: Mode) -> Result<Option<Vec<u8>>, Error> {
        self.cell(table, key, mode)?.map(|cell| self.value(&cell)).transpose()
    }

    /// Locks a row, and returns its cell.
    pub(super) fn cell(&self, table: &Table, key: &[u8], mode: Mode) -> Result<Option<Vec<u8>>, Error> {
        self.check_key(table, key)?;
        if mode.changes() || self.engine().controls.keep(Rule::NoDirtyReads) {
            self.lock_row(table, key, mode)?;
        }
        let Some((cell, found)) = self.engine().tree(table.root()).get(key)? else { return Ok(None) };
        if mode.changes() {
            self.found.replace(Some((table.root(), Key::from(key), found)));
        }
        Ok(Some(cell))
    }

    /// Returns the value of a cell, and reads a long value from its pages.
    pub(super) fn value(&self, cell: &[u8]) -> Result<Vec<u8>, Error> {
        match leaf_value(cell).map_err(|_| Error::corrupt("a row"))? {
            Value::Inline(value) => Ok(value.to_vec()),
            Value::Long { bytes, first } => read_chain(&self.engine().pager, first, bytes),
        }
    }

    /// Returns the key and the value of a cell.
    pub(super) fn row(&self, cell: &[u8]) -> Result<(Vec<u8>, Vec<u8>), Error> {
        Ok((self.row_key(cell)?, self.value(cell)?))
    }

    pub(super) fn row_key(&self, cell: &[u8]) -> Result<Vec<u8>, Error> {
        let key = cell_key(PageKind::Leaf, cell).map_err(|_| Error::corrupt("a row"))?;
        Ok(key.to_vec())
    }

    /// Takes an exclusive lock on a row, and sets its value. Adds the row if it does not exist.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// let mut tx = store.begin();
    /// tx.put(&table, b"key", b"one")?;
    /// tx.put(&table, b"key", b"two")?;
    /// tx.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get), and [`Error::Full`], [`Error::RowTooLong`].
    pub fn put(&mut self, table: &Table, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.write(table, key, value, false)
    }

    /// Adds a row that does not exist yet.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// use duralite_store::Error;
    /// let mut tx = store.begin();
    /// tx.insert(&table, b"key", b"value")?;
    /// assert!(matches!(tx.insert(&table, b"key", b"other"), Err(Error::Exists)));
    /// tx.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`put`](Self::put), and [`Error::Exists`], after which nothing has changed and the transaction can continue.
    pub fn insert(&mut self, table: &Table, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.write(table, key, value, true)
    }

    /// Sets rows, each like [`put`](Self::put). The call is fastest if the keys ascend.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// let rows = (0..100_u32).map(|n| (n.to_be_bytes(), format!("row {n}")));
    /// store.run(|tx| tx.put_all(&table, rows.clone()))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`put`](Self::put). After an error, the rows before the failed one have been set; rolling the transaction
    /// back undoes them.
    pub fn put_all<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        table: &Table,
        rows: impl IntoIterator<Item = (K, V)>,
    ) -> Result<(), Error> {
        rows.into_iter().try_for_each(|(key, value)| self.put(table, key.as_ref(), value.as_ref()))
    }

    fn write(&mut self, table: &Table, key: &[u8], value: &[u8], is_new: bool) -> Result<(), Error> {
        self.check_key(table, key)?;
        if value.len() as u64 > VALUE_LIMIT {
            return Err(Error::RowTooLong { len: value.len() as u64 });
        }
        let root = table.root();
        self.lock_row(table, key, Mode::Exclusive)?;
        if is_new && self.engine().tree(root).get(key)?.is_some() {
            return Err(Error::Exists);
        }
        self.changing(|tx| {
            let cell = if LEAF_CELL_HEAD + key.len() + value.len() <= inline_limit(tx.page_bytes()) {
                leaf_cell(key, Value::Inline(value))
            } else {
                tx.check_long(value.len() as u64)?;
                let (bytes, first) = tx.write_long(&mut &*value)?;
                leaf_cell(key, Value::Long { bytes, first })
            };
            tx.put_cell(root, key, &cell)
        })
    }

    pub(super) fn page_bytes(&self) -> usize {
        self.engine().pager.pool.page_bytes()
    }

    /// Stores a row's cell, in place of the row's old one if there is one.
    pub(crate) fn put_cell(&mut self, root: PageId, key: &[u8], cell: &[u8]) -> Result<(), Error> {
        let intent = Intent {
            author: self.author(),
            key,
            bytes: cell.len() as u64 * 2 + inline_limit(self.page_bytes()) as u64,
            root,
            new: cell.len() as u64,
            found: self.found_row(root, key),
        };
        self.change_row(intent, |tree, may| tree.put(intent.author, key, cell, may)).map(|_| ())
    }

    /// Returns where this row was found, if the transaction's last read in order to change a row was of this row.
    fn found_row(&self, root: PageId, key: &[u8]) -> Option<Found> {
        let is_it = |row: &&(PageId, Key, Found)| row.0 == root && *row.1 == *key;
        self.found.borrow().as_ref().filter(is_it).map(|(.., found)| *found)
    }

    /// Removes a row. Returns whether it existed.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// let mut tx = store.begin();
    /// tx.put(&table, b"key", b"value")?;
    /// assert!(tx.delete(&table, b"key")?);
    /// assert!(!tx.delete(&table, b"key")?);
    /// tx.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get), and [`Error::Full`].
    pub fn delete(&mut self, table: &Table, key: &[u8]) -> Result<bool, Error> {
        self.check_key(table, key)?;
        let root = table.root();
        self.lock_row(table, key, Mode::Exclusive)?;
        self.changing(|tx| {
            let bytes = inline_limit(tx.page_bytes()) as u64 * 2;
            let found = tx.found_row(root, key);
            let intent = Intent { author: tx.author(), key, bytes, root, new: 0, found };
            tx.change_row(intent, |tree, may| tree.remove(intent.author, key, may))
        })
    }

    /// Runs a change of rows. If it fails, the transaction can only be rolled back.
    pub(crate) fn changing<T>(
        &mut self,
        change: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        change(self).inspect_err(|_| self.state.set(State::Failed))
    }

    /// Reserves room for one step of about `bytes` bytes, and for the splits that it may cause.
    pub(crate) fn admit(&mut self, bytes: u64) -> Result<Room, Error> {
        let page = self.page_bytes() as u64;
        let room = Room { bytes: bytes + 4 * page + OBJECT_OVERHEAD, objects: 8 };
        self.enter()?;
        let engine = &self.running.engine;
        engine.admission.keep(room, self.kept.room, engine.tuning.lock_timeout)?;
        Ok(room)
    }

    /// Gives back the room of a step, whether the step was made or failed. [`add_step`](Self::add_step) reserves the
    /// room for undoing the step.
    pub(crate) fn admitted(&self, room: Room) {
        self.engine().admission.give_back(room);
    }

    /// When the transaction makes its first change, reserves room for its commit, or for the object that ends its
    /// rollback. The room includes the space for another batch, because that object may be alone in its batch.
    pub(super) fn enter(&mut self) -> Result<(), Error> {
        if !self.is_active {
            let force_bytes = self.engine().pager.log.space().force_bytes;
            let room = Room { bytes: OBJECT_OVERHEAD * 2 + force_bytes, objects: 2 };
            self.keep(room)?;
            // The reservation remains after a rollback to a savepoint, so add it to each savepoint.
            for (.., kept) in &mut self.savepoints {
                kept.bytes += room.bytes;
                kept.objects += room.objects;
            }
            self.is_active = true;
            let engine = &self.running.engine;
            let undoable = self.undoable.get_or_insert_default();
            engine.active.enter(self.id, engine.pager.log.next(), Arc::clone(undoable));
        }
        Ok(())
    }

    pub(crate) fn author(&self) -> Author {
        Author { kind: ObjectKind::Update, tx: self.id, previous: self.last }
    }

    /// Remembers a step, and reserves room for its undo.
    pub(crate) fn add_step(&mut self, logged: Logged, undo: Vec<u8>) {
        self.engine().admission.keep_for_undo(undo_room(logged));
        self.remember(logged, undo);
    }

    /// Remembers a step. The room for its undo is already reserved.
    pub(super) fn remember(&mut self, logged: Logged, undo: Vec<u8>) {
        let room = undo_room(logged);
        self.kept.room.bytes += room.bytes;
        self.kept.room.objects += room.objects;
        self.last = logged.lsn;
        let undoable = self.undoable.get_or_insert_default();
        undoable.list.lock().steps.push(Step { lsn: logged.lsn, undo });
    }

    /// Returns the chains of long values that the steps on the list have replaced or removed.
    pub(super) fn chains_given_up(&self) -> Vec<PageId> {
        let Some(undoable) = &self.undoable else { return Vec::new() };
        undoable.list.lock().steps.iter().filter_map(|step| chain_given_up(&step.undo)).collect()
    }
}

/// Returns the first page of the chain of the long value that a step has replaced or removed.
pub(crate) fn chain_given_up(undo: &[u8]) -> Option<PageId> {
    match Undo::decode(undo) {
        Ok(Undo::Row { old: Some(old), .. }) => match leaf_value(old) {
            // A long key with an empty value has no chain.
            Ok(Value::Long { first, .. }) => Some(first).filter(|first| *first != 0),
            _ => None,
        },
        _ => None,
    }
}
