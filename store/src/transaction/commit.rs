//! Commits a transaction.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use super::{State, Transaction};
use crate::controls::Rule;
use crate::engine::now_ns;
use crate::error::Error;
use crate::format::{Lsn, ObjectKind};
use crate::free::free_chains;
use crate::options::Durability;
use crate::pager::Author;
use crate::running::Running;

/// A handle of a transaction that was committed without waiting. With it, the program can wait until the transaction is
/// durable. A ticket keeps the store open, even if the [`Store`](crate::Store) has been dropped.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
/// # let table = store.table("t")?;
/// let mut tx = store.begin();
/// tx.put(&table, b"key", b"value")?;
/// let ticket = tx.commit_async()?;
/// // Other transactions already see the row.
/// ticket.wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A ticket is also a future, for any async runtime: `ticket.await?` waits without blocking a thread.
#[derive(Clone, Debug)]
#[must_use = "the transaction is durable once the ticket has been waited for"]
pub struct Ticket {
    running: Arc<Running>,
    upto: Lsn,
}

impl Ticket {
    /// Waits until the transaction is durable, together with all transactions that committed before it.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// let tx = store.begin();
    /// tx.commit_async()?.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Poisoned`]: the transaction may or may not be durable; opening the store again shows which.
    pub fn wait(&self) -> Result<(), Error> {
        if self.upto == 0 { Ok(()) } else { self.running.engine.force(self.upto) }
    }

    /// Returns whether the transaction is already durable.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// let mut tx = store.begin();
    /// tx.put(&table, b"key", b"value")?;
    /// let ticket = tx.commit_async()?;
    /// ticket.wait()?;
    /// assert!(ticket.is_durable());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.running.engine.pager.log.durable() > self.upto
    }
}

impl Future for Ticket {
    type Output = Result<(), Error>;

    /// Like [`wait`](Ticket::wait), but does not block the thread.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.upto == 0 || self.is_durable() {
            return Poll::Ready(Ok(()));
        }
        let engine = &self.running.engine;
        if let Err(error) = engine.poison.check() {
            return Poll::Ready(Err(error));
        }
        engine.waiters.add(self.upto, context.waker());
        Poll::Pending
    }
}

impl Transaction {
    /// Commits and ends the transaction. On return, the transaction and everything that it has read are durable, unless
    /// the store was opened with [`Durability::Eventual`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// let mut tx = store.begin();
    /// tx.put(&table, b"key", b"value")?;
    /// tx.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The compiler ensures that a transaction is not used after its end:
    ///
    /// ```compile_fail,E0382
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// let mut tx = store.begin();
    /// tx.commit()?;
    /// tx.put(&table, b"key", b"value")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Finished`] if the transaction has failed and can only be rolled back, [`Error::Full`] if there is no
    /// room for the commit record; in both cases the transaction has been rolled back. [`Error::Poisoned`]: the
    /// transaction may or may not be durable; opening the store again shows which.
    pub fn commit(mut self) -> Result<(), Error> {
        let tuning = self.engine().tuning;
        let waits = tuning.durability == Durability::Immediate;
        let is_early = tuning.early_lock_release || !waits;
        let upto = self.say_commit()?;
        if is_early {
            self.finish(upto);
        }
        let forced = if waits && upto != 0 { self.engine().force(upto) } else { Ok(()) };
        if !is_early {
            self.finish(0);
        }
        forced
    }

    /// Commits without waiting. On return the locks are released, and other transactions may see the changes.
    /// Transactions become durable in the order of their commits.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// let mut tx = store.begin();
    /// tx.put(&table, b"key", b"value")?;
    /// let ticket = tx.commit_async()?;
    /// ticket.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn commit_async(mut self) -> Result<Ticket, Error> {
        let upto = self.say_commit()?;
        self.finish(upto);
        Ok(Ticket { running: Arc::clone(&self.running), upto })
    }

    /// Logs the commit. Returns the log object that has to be durable before the commit is acknowledged; 0 if there is
    /// none.
    fn say_commit(&mut self) -> Result<Lsn, Error> {
        self.check()?;
        if !self.is_active {
            return Ok(self.held.get_mut().depends_on());
        }
        let engine = &self.running.engine;
        if !engine.controls.keep(Rule::LockUntilLogged) {
            engine.locks.release(self.held.get_mut(), 0);
            // A test has broken the rule. Gives other transactions time to see uncommitted changes, so that the test
            // notices.
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        self.close_steps();
        let author = Author { kind: ObjectKind::Commit, tx: self.id, previous: self.last };
        let logged = engine.pager.say(author, &now_ns().to_le_bytes())?;
        engine.newest_commit.fetch_max(logged.lsn, Ordering::SeqCst);
        Ok(logged.lsn.max(self.held.get_mut().depends_on()))
    }

    /// Ends the transaction after its commit. A transaction that later takes one of the released locks depends on the
    /// object `upto`, unless `upto` is 0.
    pub(super) fn finish(&mut self, upto: Lsn) {
        self.state.set(State::Over);
        let chains = self.chains_given_up();
        if !self.engine().controls.keep(Rule::EndBeforeRelease) {
            self.running.engine.locks.release(self.held.get_mut(), upto);
            // A test has broken the rule. Gives other transactions time to end before this one, so that the test
            // notices.
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let noted = self.end_for_snapshots();
        self.tables_committed();
        let engine = &self.running.engine;
        engine.locks.release(self.held.get_mut(), upto);
        self.look_at(&noted);
        if !chains.is_empty() {
            self.copy_long_values();
        }
        // If this fails, the store is poisoned, and recovery frees the chains.
        let _ = free_chains(engine, self.id, &chains);
        engine.counts.commits.add(1);
        self.end(upto);
    }
}
