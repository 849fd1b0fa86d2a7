//! Reads rows as of one moment, without locks.
//!
//! A snapshot takes a row from the row's page, unless [`Versions`](crate::versions::Versions) has an older version for
//! the snapshot. It reads the page first, and looks for older versions only after that (invariant 56).

mod scan;
mod stream;

use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use self::scan::SnapshotScan;
use crate::controls::Rule;
use crate::engine::Engine;
use crate::error::Error;
use crate::format::{KEY_LIMIT, Lsn, PageId, Value, leaf_value};
use crate::noting::note_all;
use crate::options::Durability;
use crate::reader::Reader;
use crate::reap::dropped_key;
use crate::running::Running;
use crate::table::{ForSnapshots, Table};
use crate::tree::read_chain;
use crate::value_reader::ValueReader;
use crate::versions::{Image, Seen};

/// All rows as they were at one moment: the changes of every transaction that had ended by then, and of no other.
///
/// Reading takes no locks, waits for no transaction, and makes no transaction wait. Snapshots and transactions are
/// serializable together. A snapshot behaves like a transaction that only reads, and reads everything at one moment. It
/// shows each transaction whose commit had returned before the snapshot was opened.
///
/// The first read waits until everything that the snapshot shows is durable, so a crash cannot take any of it back
/// (invariant 39). Nearly always, all of it is durable already. With [`Durability::Eventual`] the snapshot does not
/// wait, and a crash may lose the newest part of what it showed.
///
/// While snapshots are open, the store keeps old versions of changed rows in memory: for each row at most one per
/// snapshot, and at most [`Options::snapshot_bytes`](method@crate::Options::snapshot_bytes) in all. If that memory is
/// not enough, the store ends the oldest snapshot. Every later read through that snapshot fails with
/// [`Error::SnapshotTooOld`]. A snapshot also ends with the process. A snapshot that was opened before a table was
/// dropped can still read the table. The table's pages stay until all such snapshots are closed. An open snapshot keeps
/// the store open. Cloning a snapshot is cheap, and all clones show the same moment. Threads may share a snapshot.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
/// # let table = store.table("t")?;
/// store.run(|tx| tx.put(&table, b"a", b"1"))?;
/// let snapshot = store.snapshot();
/// let mut tx = store.begin();
/// tx.put(&table, b"a", b"2")?;
/// tx.put(&table, b"b", b"2")?;
/// // The snapshot neither waits for the transaction nor sees its changes.
/// assert_eq!(snapshot.get(&table, b"a")?, Some(b"1".to_vec()));
/// tx.commit()?;
/// assert_eq!(snapshot.scan(&table, ..).count(), 1);
/// assert_eq!(store.snapshot().scan(&table, ..).count(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Snapshot(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    running: Arc<Running>,
    seen: Arc<Seen>,
    /// The last log object on which the snapshot depends. Once it is durable, everything that the snapshot shows is
    /// durable.
    upto: Lsn,
    is_certain: AtomicBool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let engine = &self.running.engine;
        engine.versions.close(&self.seen);
        engine.tables.snapshot_has_ended();
    }
}

impl Snapshot {
    pub(crate) fn open(running: &Arc<Running>) -> Self {
        let engine = &running.engine;
        let versions = &engine.versions;
        if !versions.begin_to_open() && engine.controls.keep(Rule::NoteWhatWasChanged) {
            engine.active.by_age().iter().for_each(|entry| note_all(versions, &entry.undoable));
        }
        let seen = versions.open();
        // Each transaction that the snapshot shows stored the number of its commit in `newest_commit` before
        // `versions.open` returned. So all these commits have at most the number that is read here. The snapshot does
        // not force later objects, because that might write a block for which no transaction has reserved room in the
        // log.
        let upto = engine.newest_commit.load(Ordering::SeqCst);
        let is_certain = AtomicBool::new(engine.tuning.durability == Durability::Eventual);
        Self(Arc::new(Inner { running: Arc::clone(running), seen, upto, is_certain }))
    }

    fn engine(&self) -> &Engine {
        &self.0.running.engine
    }

    /// Returns a row's value; `None` if there is no such row.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// assert_eq!(store.snapshot().get(&table, b"nobody")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`], [`Error::KeyTooLong`], [`Error::Corrupt`], [`Error::Io`], [`Error::Foreign`],
    /// [`Error::NoTable`] for a table that had been dropped before the snapshot, [`Error::Poisoned`].
    pub fn get(&self, table: &Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.check(table)?;
        if key.len() > KEY_LIMIT {
            return Err(Error::KeyTooLong { len: key.len() });
        }
        self.value(table, key).map_err(|error| self.or_too_old(error))
    }

    /// Returns the rows of a range of keys, in key order, or backwards with `.rev()`. An item may be one of the errors
    /// of [`get`](Self::get); the scan ends after it.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// store.run(|tx| [b"a", b"b", b"c"].iter().try_for_each(|key| tx.put(&table, *key, b"value")))?;
    /// let rows = store.snapshot().scan(&table, &b"b"[..]..);
    /// let keys = rows.map(|row| row.map(|(key, _)| key)).collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(keys, [b"b", b"c"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scan<'k>(&self, table: &Table, range: impl RangeBounds<&'k [u8]>) -> SnapshotScan {
        SnapshotScan::new(self.clone(), table, range)
    }

    /// Returns about how many rows a table has. The number is exact if the table is small and has not changed since the
    /// snapshot was opened. Otherwise it is an estimate from a few paths down the tree, as the table is now.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// store.run(|tx| tx.put_all(&table, [(b"a", b"1"), (b"b", b"2")]))?;
    /// assert_eq!(store.snapshot().approximate_len(&table)?, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn approximate_len(&self, table: &Table) -> Result<u64, Error> {
        self.check(table)?;
        let rows =
            self.engine().tree(table.root()).approximate_len().map_err(|error| self.or_too_old(error))?;
        // If the snapshot has ended, the pages that were read may belong to another table by now.
        self.check_age()?;
        Ok(if self.is_before_load(table) { 0 } else { rows })
    }

    /// Checks that the snapshot can read the table. At the first call, waits until everything that the snapshot shows
    /// is durable.
    fn check(&self, table: &Table) -> Result<(), Error> {
        self.engine().poison.check()?;
        if !self.engine().tables.has(table) {
            return Err(Error::Foreign { what: "the table" });
        }
        if !self.0.is_certain.load(Ordering::Relaxed) {
            self.engine().force(self.0.upto)?;
            self.0.is_certain.store(true, Ordering::Relaxed);
        }
        self.check_there(table)
    }

    /// Checks that the table exists in this snapshot. If it does, its pages stay as long as the snapshot is open
    /// (invariant 51).
    fn check_there(&self, table: &Table) -> Result<(), Error> {
        let is_there = match table.for_snapshots() {
            ForSnapshots::There => true,
            ForSnapshots::None => false,
            ForSnapshots::Dropped => {
                let dropped = self.image(self.engine().catalog(), &dropped_key(table.root()))?;
                // The row with this key says that the table was dropped. If the drop is newer than the snapshot, the
                // snapshot does not see the row. But the row is also absent if the reaper has freed the table's pages
                // and removed the row. Then `for_snapshots` now returns `None`.
                dropped == Image::Absent && table.for_snapshots() != ForSnapshots::None
            }
        };
        if is_there { Ok(()) } else { Err(Error::NoTable { name: table.name().to_owned() }) }
    }

    /// Returns whether the table was empty at the snapshot's moment, and its rows were bulk-loaded later. The caller
    /// has to read the table's pages first.
    fn is_before_load(&self, table: &Table) -> bool {
        table.is_loaded_after(self.0.seen.moment())
    }

    /// Fails if the snapshot has ended. The caller checks this after it has read pages and versions, because these are
    /// unreliable once the snapshot has ended.
    fn check_age(&self) -> Result<(), Error> {
        if self.0.seen.has_ended() { Err(Error::SnapshotTooOld) } else { Ok(()) }
    }

    /// Returns the error to report. If the snapshot has ended, the cause of `error` may be that pages of a dropped
    /// table were freed. The error to report is then that the snapshot is too old.
    fn or_too_old(&self, error: Error) -> Error {
        if self.0.seen.has_ended() { Error::SnapshotTooOld } else { error }
    }

    /// Returns the row's version for this snapshot; `None` if it is the version in the page.
    fn version(&self, root: PageId, key: &[u8]) -> Option<Image> {
        let versions = &self.engine().versions;
        let looks = self.engine().controls.keep(Rule::LookAtVersions);
        looks.then(|| versions.find(&self.0.seen, root, key)).flatten()
    }

    /// Returns the row as this snapshot shows it. If the table was bulk-loaded after the snapshot, there is no row
    /// (invariant 53).
    fn image_in(&self, table: &Table, key: &[u8]) -> Result<Image, Error> {
        let image = self.image(table.root(), key)?;
        Ok(if self.is_before_load(table) { Image::Absent } else { image })
    }

    /// Returns the row as this snapshot shows it, without regard to bulk loads.
    fn image(&self, root: PageId, key: &[u8]) -> Result<Image, Error> {
        let page = self.engine().tree(root).get(key)?;
        let image = match self.version(root, key) {
            Some(version) => version,
            None => page.map_or(Image::Absent, |(cell, _)| Image::Cell(cell.into())),
        };
        self.check_age()?;
        Ok(image)
    }

    fn value(&self, table: &Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut image = self.image_in(table, key)?;
        loop {
            let cell = match &image {
                Image::Absent => return Ok(None),
                Image::Copied(value) => return Ok(Some(value.to_vec())),
                Image::Damaged => return Err(damaged()),
                Image::Cell(cell) => cell,
            };
            let (bytes, first) = match leaf_value(cell).map_err(|_| damaged())? {
                Value::Inline(value) => return Ok(Some(value.to_vec())),
                Value::Long { bytes, first } => (bytes, first),
            };
            // The pages of the value may be freed during the read. Before they are freed, the row or its noted version
            // changes. So compare it again after the read.
            let value = read_chain(&self.engine().pager, first, bytes);
            let now = self.image_in(table, key)?;
            if now == image {
                return value.map(Some);
            }
            image = now;
        }
    }
}

impl Reader for Snapshot {
    type Rows<'r> = SnapshotScan;

    fn get(&self, table: &Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.get(table, key)
    }

    fn scan<'k>(&self, table: &Table, range: impl RangeBounds<&'k [u8]>) -> SnapshotScan {
        self.scan(table, range)
    }

    fn get_stream(&self, table: &Table, key: &[u8]) -> Result<Option<ValueReader<'_>>, Error> {
        self.get_stream(table, key)
    }

    fn approximate_len(&self, table: &Table) -> Result<u64, Error> {
        self.approximate_len(table)
    }
}

fn damaged() -> Error {
    Error::corrupt("a row")
}
