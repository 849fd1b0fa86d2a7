//! A transaction becomes durable.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use duralite_logfmt::store::{Lsn, ObjectKind};

use super::{State, Transaction};
use crate::controls::Rule;
use crate::engine::now_ns;
use crate::error::Error;
use crate::free::free_chains;
use crate::options::Durability;
use crate::pager::Author;
use crate::running::Running;

/// What a transaction that was committed without waiting is waited for by. As long as there is one the store stays open, also
/// if the [`Store`](crate::Store) has been dropped.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
/// # let table = store.table("t")?;
/// let mut tx = store.begin();
/// tx.put(&table, b"key", b"value")?;
/// let ticket = tx.commit_async()?;
/// // Others see the row already.
/// ticket.wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It is a future too, of any runtime or none: `ticket.await?` waits without keeping a thread.
#[derive(Clone, Debug)]
#[must_use = "the transaction is durable once the ticket has been waited for"]
pub struct Ticket {
    running: Arc<Running>,
    upto: Lsn,
}

impl Ticket {
    /// Waits until the transaction is durable, and with it all that committed before.
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
    /// [`Error::Poisoned`]: whether it is durable is known when the store has been opened again.
    pub fn wait(&self) -> Result<(), Error> {
        if self.upto == 0 { Ok(()) } else { self.running.engine.force(self.upto) }
    }

    /// Whether it is durable already.
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

    /// As [`wait`](Ticket::wait); the thread that polls is not kept.
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
    /// Commits, and ends. On return the transaction is durable, and so is everything that it has read, unless the store was
    /// opened with [`Durability::Eventual`].
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
    /// Nothing is done after the end, as the compiler sees to:
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
    /// [`Error::Finished`] if it has failed and can only be rolled back, [`Error::Full`] if there is no room for saying so:
    /// it has been rolled back then. [`Error::Poisoned`]: then whether it is durable is known when the store has been opened
    /// again.
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

    /// Commits without waiting: locks are free on return, and others may see what was changed. The order of commits is
    /// that in which they become durable.
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

    /// Logs the commit, and gives free what it gave up; what has to be durable before anybody is told. 0 for nothing.
    fn say_commit(&mut self) -> Result<Lsn, Error> {
        self.check()?;
        if !self.is_active {
            return Ok(self.held.get_mut().depends_on());
        }
        let engine = &self.running.engine;
        if !engine.controls.keep(Rule::LockUntilLogged) {
            engine.locks.release(self.held.get_mut(), 0);
            // So that others have time to see what is not committed.
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        self.close_steps();
        let author = Author { kind: ObjectKind::Commit, tx: self.id, previous: self.last };
        let logged = engine.pager.say(author, &now_ns().to_le_bytes())?;
        Ok(logged.lsn.max(self.held.get_mut().depends_on()))
    }

    /// Ends after a commit with this number, or after nothing.
    pub(super) fn finish(&mut self, upto: Lsn) {
        self.state.set(State::Over);
        let chains = self.chains_given_up();
        if !self.engine().controls.keep(Rule::EndBeforeRelease) {
            self.running.engine.locks.release(self.held.get_mut(), upto);
            // So that others have time to end before.
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
        // If that fails the store is poisoned, and recovery does it.
        let _ = free_chains(engine, self.id, &chains);
        engine.counts.commits.add(1);
        self.end(upto);
    }
}
