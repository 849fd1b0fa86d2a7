//! The store's interface for programs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::archive::{Archive, Keep, Pruned};
use crate::backup::backup;
use crate::compact::{Compacted, cut, file_bytes, long_rows, relocate};
use crate::engine::Engine;
use crate::error::Error;
use crate::keeper;
use crate::load::BulkLoad;
use crate::media::{Directory, Media};
use crate::metrics::Metrics;
use crate::opening;
use crate::options::{Durability, Options};
use crate::reap::{self, is_hidden};
use crate::recovery::Report;
use crate::restore::{RestoreTo, Restored, restore};
use crate::running::{Running, Stop};
use crate::salvage::{Salvaged, salvage};
use crate::snapshot::Snapshot;
use crate::table::Table;
use crate::transaction::{Ticket, Transaction};
use crate::verify::{Verified, verify};
use crate::waiters;

/// The largest number of times that [`Store::run`] runs a transaction again.
const TRIES: u32 = 1000;
const LONGEST_PAUSE_US: u64 = 10_000;

/// A store. It closes, after a checkpoint, when it and all of its [transactions](Transaction), [tickets](crate::Ticket) and
/// [snapshots](Snapshot) have been dropped. Before that, it cannot be opened again.
///
/// ```
/// use duralite_store::{Options, Store};
/// # let dir = tempfile::tempdir()?;
/// let store = Store::open(dir.path().join("bank"), Options::default())?;
/// let accounts = store.table("accounts")?;
/// store.run(|tx| {
///     let balance = tx.get_for_update(&accounts, b"alice")?.map_or(0, |value| value[0]);
///     tx.put(&accounts, b"alice", &[balance + 10])
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Store {
    running: Arc<Running>,
    report: Report,
}

impl Store {
    /// Opens the store in a directory, or makes a new one there. On return, the store has exactly the changes of the
    /// transactions that had committed, and these changes are durable. Before a process opens a store again, it has to
    /// drop that store's transactions, tickets and snapshots.
    ///
    /// ```
    /// use duralite_store::{Error, Options, Store};
    /// # let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("store");
    /// let store = Store::open(&path, Options::default())?;
    /// // The error names the process that has the store open.
    /// assert!(matches!(Store::open(&path, Options::default()), Err(Error::Locked { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::NotAStore`], [`Error::Version`], [`Error::PageSize`], [`Error::Invalid`], [`Error::Corrupt`],
    /// [`Error::Full`], [`Error::Io`].
    pub fn open(dir: impl AsRef<Path>, options: Options) -> Result<Self, Error> {
        options.check()?;
        let dir = dir.as_ref();
        let media = Directory::open(dir, &options)?;
        Self::open_media(media, &options, dir)
    }

    /// Opens a store on media that the caller provides. The caller ensures that no other store is open on these media.
    ///
    /// See [`Media`] for an example.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_on(media: impl Media, options: Options) -> Result<Self, Error> {
        Self::open_media(media, &options, Path::new("the store"))
    }

    fn open_media(mut media: impl Media, options: &Options, path: &Path) -> Result<Self, Error> {
        let (engine, report) = opening::open(&media, options, path)?;
        let engine = Arc::new(engine);
        let stop = Arc::new(Stop::default());
        let mut threads = keeper::start(&engine, &stop)?;
        threads.push(reap::start(&engine, &stop)?);
        let forced = Arc::clone(&engine);
        // If this fails, the store is poisoned, and the woken tasks get that error.
        let force = move |upto| drop(forced.force(upto));
        threads.push(waiters::start(Arc::clone(&engine.waiters), force)?);
        let running = Running { threads: Mutex::new(threads), engine, stop, held: media.take_lock() };
        Ok(Self { running: Arc::new(running), report })
    }

    /// Breaks a rule from now on. A test that does this shows that it would notice such a mistake.
    #[cfg(feature = "controls")]
    #[doc(hidden)]
    pub fn break_rule(&self, rule: crate::controls::Rule) {
        self.engine().controls.break_rule(rule);
    }

    fn engine(&self) -> &Engine {
        &self.running.engine
    }

    /// Returns the table of this name, or makes it if there is none. The table is durable on return, even with
    /// [`Durability::Eventual`]. So it is durable before any of its rows.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// let accounts = store.table("accounts")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that is empty or too long, and any error of a transaction.
    pub fn table(&self, name: &str) -> Result<Table, Error> {
        let tables = &self.engine().tables;
        if let Some(table) = tables.known(name) {
            return Ok(table);
        }
        let generation = tables.generation();
        let table = self.run(|tx| tx.table(name))?;
        // The table may come from another transaction that did not wait for durability. So force the log here in every
        // case.
        self.force_all()?;
        tables.remember(&table, generation);
        Ok(table)
    }

    fn force_all(&self) -> Result<(), Error> {
        self.engine().force(self.engine().pager.log.next() - 1)
    }

    /// Drops a table with all its rows. Returns whether the table existed. The drop is durable on return, even with
    /// [`Durability::Eventual`]. See [`Transaction::drop_table`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// use duralite_store::Error;
    /// let table = store.table("t")?;
    /// assert!(store.drop_table("t")?);
    /// assert!(matches!(store.begin().get(&table, b"key"), Err(Error::NoTable { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Any error of a transaction; [`Error::Timeout`] if other transactions use the table for too long.
    pub fn drop_table(&self, name: &str) -> Result<bool, Error> {
        let was_there = self.run(|tx| tx.drop_table(name))?;
        self.force_all()?;
        Ok(was_there)
    }

    /// Renames a table. The new name is durable on return, even with [`Durability::Eventual`]. See
    /// [`Transaction::rename_table`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// store.table("old")?;
    /// store.rename_table("old", "new")?;
    /// assert_eq!(store.tables()?, ["new"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoTable`], [`Error::TableExists`], and any error of a transaction.
    pub fn rename_table(&self, from: &str, to: &str) -> Result<(), Error> {
        self.run(|tx| tx.rename_table(from, to))?;
        self.force_all()
    }

    /// Returns the names of all tables, sorted.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// store.table("b")?;
    /// store.table("a")?;
    /// assert_eq!(store.tables()?, ["a", "b"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Any error of a transaction.
    pub fn tables(&self) -> Result<Vec<String>, Error> {
        let catalog = self.engine().tables.handle("", self.engine().catalog());
        self.run(|tx| {
            let names = tx.scan(&catalog, ..).filter(|row| !row.as_ref().is_ok_and(|row| is_hidden(&row.0)));
            names.map(|row| Ok(String::from_utf8_lossy(&row?.0).into_owned())).collect()
        })
    }

    /// Begins a transaction.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// let tx = store.begin();
    /// tx.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn begin(&self) -> Transaction {
        Transaction::begin(&self.running)
    }

    /// Opens a snapshot, which shows all rows as they are at this moment. It shows every transaction whose commit has returned. Reading it
    /// takes no locks, and it may stay open for as long as needed.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// store.run(|tx| tx.put(&table, b"key", b"old"))?;
    /// let snapshot = store.snapshot();
    /// store.run(|tx| tx.put(&table, b"key", b"new"))?;
    /// assert_eq!(snapshot.get(&table, b"key")?, Some(b"old".to_vec()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::open(&self.running)
    }

    /// Begins a transaction, calls `work` with it, and commits. The transaction is durable on return, as after
    /// [`Transaction::commit`]. If a lock is refused ([`Error::is_retryable`]), `run` rolls the transaction back,
    /// pauses, and calls `work` again. It does this even if `work` hides that error. `work` may return any error type
    /// that implements `From<Error>`. If `work` fails for another reason, `run` rolls the transaction back and returns
    /// the error of `work`. Before it returns the error, it waits until everything that `work` has read is durable, as
    /// a commit does.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// use duralite_store::{Error, Transaction};
    /// let old = store.run(|tx: &mut Transaction| -> Result<_, Error> {
    ///     let old = tx.get_for_update(&table, b"key")?;
    ///     tx.put(&table, b"key", b"new")?;
    ///     Ok(old)
    /// })?;
    /// assert_eq!(old, None);
    /// let refused: Result<(), Box<dyn std::error::Error>> = store.run(|tx| {
    ///     tx.put(&table, b"key", b"never")?;
    ///     Err("an error of the program's".into())
    /// });
    /// assert_eq!(refused.unwrap_err().to_string(), "an error of the program's");
    /// assert_eq!(store.begin().get(&table, b"key")?, Some(b"new".to_vec()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The error of `work` or of the commit, if running the transaction again would not help, or if it has failed a thousand times.
    pub fn run<T, E: From<Error>>(&self, work: impl FnMut(&mut Transaction) -> Result<T, E>) -> Result<T, E> {
        self.run_and(work, Transaction::commit).map(|(value, ())| value)
    }

    /// Like [`run`](Self::run), but returns as soon as other transactions can see the changes. The changes are durable once
    /// [`Ticket::wait`] or an `await` of the ticket has returned.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// let ((), ticket) = store.run_async(|tx| tx.put(&table, b"key", b"value"))?;
    /// ticket.wait()?; // or `ticket.await?`
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_async<T, E: From<Error>>(
        &self,
        work: impl FnMut(&mut Transaction) -> Result<T, E>,
    ) -> Result<(T, Ticket), E> {
        self.run_and(work, Transaction::commit_async)
    }

    fn run_and<T, C, E: From<Error>>(
        &self,
        mut work: impl FnMut(&mut Transaction) -> Result<T, E>,
        commit: impl Fn(Transaction) -> Result<C, Error>,
    ) -> Result<(T, C), E> {
        let mut age = None;
        let mut pause = Pause::default();
        loop {
            let id = self.engine().new_tx();
            let age = *age.get_or_insert(id);
            let mut tx = Transaction::with_age(&self.running, id, age);
            let done = work(&mut tx);
            // `work` may have ignored the refused lock and continued, hidden the error, or returned another error instead.
            if let Some(refused) = tx.refused() {
                if pause.tries == TRIES {
                    self.give_up(tx)?;
                    return Err(done.err().unwrap_or_else(|| refused.into()));
                }
                tx.rollback()?;
                pause.sleep();
                continue;
            }
            match done {
                Ok(value) => return Ok((value, commit(tx)?)),
                Err(error) => {
                    self.give_up(tx)?;
                    return Err(error);
                }
            }
        }
    }

    /// Rolls back a transaction, because the program gets an error. Then waits until everything that the transaction
    /// has read is durable, because the program may tell others what it has read.
    fn give_up(&self, tx: Transaction) -> Result<(), Error> {
        let upto = tx.depends_on();
        // If this fails, the store is poisoned, and the next call of any transaction gets the error.
        drop(tx);
        let waits = self.engine().tuning.durability == Durability::Immediate && upto != 0;
        if waits { self.engine().force(upto) } else { Ok(()) }
    }

    /// Writes dirty pages home, and discards the log objects that are no longer needed. Transactions continue during
    /// the checkpoint.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// store.checkpoint()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Full`] or [`Error::Io`] if the archive cannot store the log, which the store then keeps. [`Error::Poisoned`].
    pub fn checkpoint(&self) -> Result<(), Error> {
        self.engine().poison.check()?;
        self.engine().checkpoint(&|| false)
    }

    /// Begins a load of rows, in ascending order of their keys, into a table without rows. The load writes each row once, and bypasses the
    /// log and the cache. An image of each page is logged only if there is an [archive](method@Options::archive), or if a backup runs
    /// during the load. Transactions that use the table wait until the load ends, and older snapshots do not see the loaded rows.
    ///
    /// See [`BulkLoad`] for an example.
    ///
    /// # Errors
    /// [`Error::NotEmpty`], [`Error::NoTable`], [`Error::Foreign`], [`Error::Poisoned`]; [`Error::Timeout`] if other transactions use the
    /// table for too long.
    pub fn bulk_load(&self, table: &Table) -> Result<BulkLoad, Error> {
        BulkLoad::begin(&self.running, table)
    }

    /// Loads rows, in ascending order of their keys, into a table without rows. Returns how many rows it loaded, all of which are in the
    /// table and durable on return. After an error or a crash, none of them is in the table. See [`bulk_load`](Self::bulk_load).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// let table = store.table("t")?;
    /// let rows = (0..1000_u32).map(|n| (n.to_be_bytes(), format!("row {n}")));
    /// assert_eq!(store.load(&table, rows)?, 1000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`bulk_load`](Self::bulk_load), [`BulkLoad::put`] and [`BulkLoad::finish`].
    pub fn load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        table: &Table,
        rows: impl IntoIterator<Item = (K, V)>,
    ) -> Result<u64, Error> {
        let mut load = self.bulk_load(table)?;
        rows.into_iter().try_for_each(|(key, value)| load.put(key.as_ref(), value.as_ref()))?;
        load.finish()
    }

    /// Checks the checksum of every page and the order of the keys in it. Checks that each page in use is reachable exactly once, that no
    /// free page is reachable, and that long values are complete. During the check, transactions can read the tables; transactions that
    /// change them wait. On return everything that was checked is durable, even with [`Durability::Eventual`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// let verified = store.verify()?;
    /// assert_eq!(verified.rows, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Corrupt`] says what is wrong and where; [`Error::Timeout`] if `verify` cannot lock the tables in time;
    /// [`Error::Poisoned`].
    pub fn verify(&self) -> Result<Verified, Error> {
        let engine = self.engine();
        let catalog = engine.tables.handle("", engine.catalog());
        let (verified, upto) = self.run(|tx| {
            let mut roots = vec![catalog.root()];
            let rows: Vec<_> = tx.scan(&catalog, ..).collect::<Result<_, _>>()?;
            let dropped = rows.iter().filter(|(name, _)| is_hidden(name)).count() as u64;
            for (_, root) in rows {
                let root = <[u8; 8]>::try_from(root).map_err(|_| Error::corrupt("the list of tables"))?;
                roots.push(u64::from_le_bytes(root));
            }
            for root in &roots {
                tx.lock_table(*root)?;
            }
            // With these locks no other transaction changes a table. Each transaction that did stored the number of its
            // commit in `newest_commit` before it released a lock. A lock of a table alone need not depend on that
            // commit: the table's rows have other locks, and a thread keeps its table locks for its next transaction.
            let upto = engine.newest_commit.load(Ordering::SeqCst);
            let verified = verify(engine, &roots)?;
            Ok::<_, Error>((Verified { tables: verified.tables - dropped, dropped, ..verified }, upto))
        })?;
        if upto != 0 {
            engine.force(upto)?;
        }
        Ok(verified)
    }

    /// Returns free space in the page file to the file system, while transactions continue. The store moves pages from
    /// the end of the file to free pages nearer to its beginning, and rewrites long values there. Then it cuts the
    /// file. The store cannot move the root page of a table, nor a long value whose row another transaction has locked.
    /// A transaction or a backup that stays open for long may prevent the cut; in that case, call `compact` again
    /// later. `compact` needs two pages of log for each page that it moves.
    ///
    /// See [`Compacted`] for an example.
    ///
    /// # Errors
    /// [`Error::Full`] if the log has no room for a move; [`Error::Corrupt`], [`Error::Io`], [`Error::Poisoned`]. Pages that were moved
    /// before the error stay at their new places.
    pub fn compact(&self) -> Result<Compacted, Error> {
        let engine = self.engine();
        let bytes_before = file_bytes(engine);
        let limit = engine.space.pages_wanted();
        let mut pages_moved = relocate(engine, engine.catalog(), limit)?;
        for name in self.tables()? {
            let Some(table) = self.run(|tx| tx.find_table(&name))? else { continue };
            let done = self.run(|tx| {
                tx.keep_table(&table)?;
                let moved = relocate(engine, table.root(), limit)?;
                let rows = long_rows(engine, &table)?;
                Ok((moved, rows))
            });
            let (moved, rows) = match done {
                Err(Error::NoTable { .. }) => continue,
                done => done?,
            };
            pages_moved += moved;
            for key in rows {
                match self.run(|tx| tx.rewrite_long(&table, &key, limit)) {
                    Ok(()) | Err(Error::Timeout | Error::Deadlock | Error::NoTable { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        cut(engine)?;
        Ok(Compacted { pages_moved, bytes_before, bytes_after: file_bytes(engine) })
    }

    /// Makes a backup in a new or empty directory while transactions continue. Returns the number of the last log object in the backup.
    /// With the archive, [`restore`](Self::restore) can restore the store to the moment of that object, or to any later one. The backup is
    /// durable on return.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// store.backup(dir.path().join("backup"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the directory is not empty, [`Error::Corrupt`] if a page is damaged, [`Error::Full`], [`Error::Io`].
    pub fn backup(&self, dir: impl AsRef<Path>) -> Result<u64, Error> {
        self.engine().poison.check()?;
        backup(self.engine(), dir.as_ref())
    }

    /// Removes the oldest segments of the [archive](method@Options::archive), and returns how much that freed. The
    /// removal is durable on return. From now on, a backup can be restored to a later moment only if it reaches the
    /// object [`Metrics::archived_from`]. For a backup that ends before the oldest remaining segment, such a restore
    /// fails with [`Error::Gap`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use duralite_store::{Keep, Options, Store};
    /// let options = Options::default().archive(dir.path().join("archive"));
    /// let store = Store::open(dir.path().join("store"), options)?;
    /// let last = store.backup(dir.path().join("backup"))?;
    /// store.prune_archive(Keep::After(last))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the store has no archive; [`Error::Io`], [`Error::Corrupt`].
    pub fn prune_archive(&self, keep: Keep) -> Result<Pruned, Error> {
        let archive = self.engine().archive.as_ref();
        archive
            .ok_or_else(|| Error::invalid("the store was opened without an archive; set Options::archive"))?
            .prune(keep)
    }

    /// Makes a store in a new or empty directory from a backup. To restore to a moment after the backup, this also needs the archive.
    /// `options` are the options of the new store, whose own archive has to be another directory. The new store is durable on return.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use duralite_store::{Options, RestoreTo, Store};
    /// # let store = Store::open(dir.path().join("store"), Options::default())?;
    /// # store.backup(dir.path().join("backup"))?;
    /// let again = dir.path().join("again");
    /// Store::restore(dir.path().join("backup"), None, &again, RestoreTo::End, Options::default())?;
    /// let store = Store::open(&again, Options::default())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotAStore`] if `backup` is not a backup; [`Error::Gap`], with the last moment that can be restored, if the archive lacks
    /// log before the requested moment; [`Error::Invalid`] if the backup and the archive do not contain that moment; [`Error::Corrupt`],
    /// [`Error::Full`], [`Error::Io`].
    pub fn restore(
        backup: impl AsRef<Path>,
        archive: Option<&Path>,
        dir: impl AsRef<Path>,
        to: RestoreTo,
        options: Options,
    ) -> Result<Restored, Error> {
        restore(backup.as_ref(), archive, dir.as_ref(), to, &options)
    }

    /// Makes a store in a new or empty directory from a store whose log is damaged before its end. [`open`](Self::open)
    /// refuses such a store. The new store has the state after the last transaction before the damage. `options` are
    /// the options with which the damaged store is opened. The damaged store does not change. The new store has another
    /// history, so it cannot use the archive of the damaged store. The new store is durable on return.
    ///
    /// See [`Salvaged`] for an example.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the log is not damaged; [`Error::Corrupt`] if pages contain changes from after the damage, or are damaged
    /// themselves, so that only a backup helps; [`Error::Locked`], [`Error::NotAStore`], [`Error::Full`], [`Error::Io`].
    pub fn salvage(
        dir: impl AsRef<Path>,
        out: impl AsRef<Path>,
        options: Options,
    ) -> Result<Salvaged, Error> {
        salvage(dir.as_ref(), out.as_ref(), &options)
    }

    /// Returns the metrics of the store.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// assert_eq!(store.metrics().deadlocks, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let engine = self.engine();
        let (pool, log) = (&engine.pager.pool, &engine.pager.log);
        let counters = log.counters();
        let newest_object = log.next() - 1;
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Metrics {
            commits: engine.counts.commits.get(),
            aborts: engine.counts.aborts.get(),
            deadlocks: get(&engine.locks.deadlocks),
            lock_timeouts: get(&engine.locks.timeouts),
            lock_waits: get(&engine.locks.waited),
            locks_inherited: engine.locks.inherited(),
            active: engine.active.count() as u64,
            snapshots: engine.versions.open_snapshots() as u64,
            snapshot_bytes: engine.versions.bytes(),
            snapshots_ended: engine.versions.ended(),
            log_objects: newest_object - engine.log_at_opening.newest_object,
            log_bytes: counters.bytes - engine.log_at_opening.bytes,
            newest_object,
            log_writes: counters.writes,
            log_flushes: counters.flushes,
            log_free_bytes: log.space().free_bytes,
            pages: pool.file().pages(),
            pages_read: get(&pool.file().read),
            page_reads: get(&pool.file().reads),
            pages_read_ahead: get(&pool.came_ahead),
            pages_read_in_vain: get(&pool.came_in_vain),
            pages_written: get(&pool.file().written),
            pages_dirty: pool.dirty() as u64,
            cache_hits: pool.hits(),
            cache_misses: get(&pool.misses),
            cache_waits: get(&pool.waits),
            inner_pages_left: get(&pool.inner_left),
            checkpoints: get(&engine.counts.checkpoints),
            archived_from: engine.archive.as_ref().map_or(0, Archive::from),
            recovered_objects: self.report.objects,
            recovered_transactions: self.report.undone,
            log: log.describe(),
        }
    }
}

/// Pauses of random length. They become longer with each attempt.
#[derive(Debug, Default)]
struct Pause {
    tries: u32,
}

impl Pause {
    fn sleep(&mut self) {
        let most = (20_u64 << self.tries.min(10)).min(LONGEST_PAUSE_US);
        self.tries += 1;
        let mut chance = [0; 8];
        // If there are no random bytes, the pauses are not random. That is slower, but still correct.
        let _ = getrandom::fill(&mut chance);
        std::thread::sleep(Duration::from_micros(u64::from_le_bytes(chance) % most + most / 4));
    }
}
