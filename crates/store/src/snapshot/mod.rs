//! Reading as of one moment, without locks.
//!
//! What a row is comes from its page, unless [`Versions`](crate::versions::Versions) say that it was something else: first
//! the page is looked at, then these (invariant 56).

mod scan;
mod stream;

use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use duralite_logfmt::store::{KEY_LIMIT, Lsn, PageId, Value, leaf_value};

pub use self::scan::SnapshotScan;
use crate::controls::Rule;
use crate::engine::Engine;
use crate::error::Error;
use crate::noting::note_all;
use crate::options::Durability;
use crate::reader::Reader;
use crate::reap::dropped_key;
use crate::running::Running;
use crate::table::{ForSnapshots, Table};
use crate::tree::read_chain;
use crate::value_reader::ValueReader;
use crate::versions::{Image, Seen};

/// All rows as they were at one moment: every transaction that had committed by then, and nothing of any other.
///
/// Reading takes no lock, waits for no transaction, and keeps none from anything. Transactions that write are serializable with
/// snapshots too: a snapshot is where one stands that only reads, and reads everything at once. It shows
/// each transaction whose commit returned before it was opened.
///
/// What it shows is certain: the first read waits until that is durable, which it nearly always is (invariant 39). With
/// [`Durability::Eventual`] it does not wait, and a crash may take the newest of what was shown.
///
/// While a snapshot is open the store keeps in memory what rows were before they were changed, of each at most as often as there are
/// snapshots: [`Options::snapshot_bytes`](method@crate::Options::snapshot_bytes) at most. Where that is not enough the oldest
/// snapshot ends, and everything that is read by it from then on is [`Error::SnapshotTooOld`]. It ends with the
/// process too. A table that is dropped can be read by the snapshots that are older, and its pages stay until they are
/// closed. As long as there is one the store stays open. Cloning it is cheap, and all clones are the same moment;
/// threads may share it.
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
/// // It does not wait for the transaction, nor see anything of it.
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
    /// Everything that it shows is durable once this object is.
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
        // What has ended before has said its commit before that.
        let upto = engine.pager.log.next() - 1;
        let is_certain = AtomicBool::new(engine.tuning.durability == Durability::Eventual);
        Self(Arc::new(Inner { running: Arc::clone(running), seen, upto, is_certain }))
    }

    fn engine(&self) -> &Engine {
        &self.0.running.engine
    }

    /// A row's value.
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
    /// [`Error::NoTable`] for a table that had been dropped, [`Error::Poisoned`].
    pub fn get(&self, table: &Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.check(table)?;
        if key.len() > KEY_LIMIT {
            return Err(Error::KeyTooLong { len: key.len() });
        }
        self.value(table, key).map_err(|error| self.or_too_old(error))
    }

    /// The rows of a range of keys, in key order or with `.rev()` backwards. Each may be an error, as of [`get`](Self::get);
    /// the scan is over then.
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

    /// About how many rows a table has: exact for one of a few pages that nobody has changed since, otherwise from a few ways down
    /// the tree. What others have changed since counts as it is now.
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
        // Otherwise the pages may have been another table's.
        self.check_age()?;
        Ok(if self.is_before_load(table) { 0 } else { rows })
    }

    /// Whether it can be read.
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

    /// Whether there is the table for this snapshot. If so its pages stay: invariant 51.
    fn check_there(&self, table: &Table) -> Result<(), Error> {
        let is_there = match table.for_snapshots() {
            ForSnapshots::There => true,
            ForSnapshots::None => false,
            ForSnapshots::Dropped => {
                let dropped = self.image(self.engine().catalog(), &dropped_key(table.root()))?;
                // If that row has gone the pages had gone before.
                dropped == Image::Absent && table.for_snapshots() != ForSnapshots::None
            }
        };
        if is_there { Ok(()) } else { Err(Error::NoTable { name: table.name().to_owned() }) }
    }

    /// Whether the table was empty then, and its rows were loaded since. Asked once its pages have been looked at.
    fn is_before_load(&self, table: &Table) -> bool {
        table.is_loaded_after(self.0.seen.moment())
    }

    /// Called once pages and versions have been looked at: whether that was in time.
    fn check_age(&self) -> Result<(), Error> {
        if self.0.seen.has_ended() { Err(Error::SnapshotTooOld) } else { Ok(()) }
    }

    /// Why reading has failed: the pages of a dropped table stay only as long as the snapshot.
    fn or_too_old(&self, error: Error) -> Error {
        if self.0.seen.has_ended() { Error::SnapshotTooOld } else { error }
    }

    /// What a row was, if it has become something else.
    fn version(&self, root: PageId, key: &[u8]) -> Option<Image> {
        let versions = &self.engine().versions;
        let looks = self.engine().controls.keep(Rule::LookAtVersions);
        looks.then(|| versions.find(&self.0.seen, root, key)).flatten()
    }

    /// The row for this snapshot, which sees none of those that a bulk load has brought since (invariant 53).
    fn image_in(&self, table: &Table, key: &[u8]) -> Result<Image, Error> {
        let image = self.image(table.root(), key)?;
        Ok(if self.is_before_load(table) { Image::Absent } else { image })
    }

    /// The row for this snapshot, in a table that no bulk load is for.
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
            // Its pages may be given back meanwhile; if so the row, or what is noted of it, is another one before that.
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
