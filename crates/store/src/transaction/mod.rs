//! Transactions: rows are read and changed under locks that are held to the end.
//!
//! Invariant 39: a commit is acknowledged when everything up to it is durable; what a reader has seen too. A
//! transaction that is not is taken back, step by step, by objects that are never taken back themselves.

mod catalog;
mod change;
mod commit;
mod kept;
mod load;
mod long;
mod reads;
mod rows;
mod scan;
mod undo;
mod versions;

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use duralite_logfmt::store::{KEY_LIMIT, Lsn, TxId};

pub use self::commit::Ticket;
use self::kept::{Kept, Renamed};
pub(crate) use self::load::{Backups, Loaded};
pub(crate) use self::rows::chain_given_up;
pub use self::scan::Scan;
use crate::admission::Room;
use crate::engine::Engine;
use crate::error::Error;
use crate::locks::{Held, Key, Mode, Refused, TableId, Target};
use crate::running::Running;
use crate::steps::Undoable;
use crate::table::Table;
use crate::tree::Found;

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// It can only be rolled back.
    Failed,
    Over,
}

/// A serializable transaction. It is rolled back if it is dropped before [`commit`](Self::commit). As long as there is one the
/// store stays open, also if the [`Store`](crate::Store) has been dropped.
///
/// What it has read is certain once it has committed, also if it changed nothing.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use duralite_store::{Options, Store};
/// let store = Store::open(dir.path().join("store"), Options::default())?;
/// let fruit = store.table("fruit")?;
/// let mut tx = store.begin();
/// tx.put(&fruit, b"apple", b"3")?;
/// assert_eq!(tx.get(&fruit, b"apple")?.as_deref(), Some(&b"3"[..]));
/// tx.commit()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Transaction {
    running: Arc<Running>,
    id: TxId,
    state: Cell<State>,
    /// What it has done; made with its first change.
    undoable: Option<Arc<Undoable>>,
    /// Locks, which reading takes too. Borrowed while one is taken, and by nobody that calls others.
    held: RefCell<Held>,
    /// The lock that it was refused, and that has made it fail.
    refused: Cell<Option<Refused>>,
    tables: RefCell<Vec<(TableId, Mode)>>,
    /// Whether it has objects in the log.
    is_active: bool,
    /// What is kept for taking it back.
    kept: Kept,
    last: Lsn,
    /// The row that was read last to be changed, and where it was.
    found: RefCell<Option<(TableId, Key, Found)>>,
    /// Those that one can go back to, by number, with the steps before each, and what is kept in the log for them.
    savepoints: Vec<(u64, usize, Room)>,
    next_savepoint: u64,
    /// What it has done to tables that handles have to be told of.
    renamed: Vec<Renamed>,
    /// The table whose rows its commit brings.
    loaded: Option<Table>,
}

/// A moment in a transaction, to go back to.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
/// # let table = store.table("t")?;
/// let mut tx = store.begin();
/// let savepoint = tx.savepoint();
/// tx.put(&table, b"key", b"value")?;
/// tx.rollback_to(savepoint)?;
/// assert_eq!(tx.get(&table, b"key")?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint {
    tx: TxId,
    number: u64,
}

impl Transaction {
    pub(crate) fn begin(running: &Arc<Running>) -> Self {
        let id = running.engine.new_tx();
        Self::with_age(running, id, id)
    }

    /// A transaction that is as old as an earlier one that is over: it does not give way for ever.
    pub(crate) fn with_age(running: &Arc<Running>, id: TxId, age: TxId) -> Self {
        Self {
            running: Arc::clone(running),
            id,
            state: Cell::new(State::Open),
            undoable: None,
            held: RefCell::new(running.engine.locks.begin(age)),
            refused: Cell::default(),
            tables: RefCell::default(),
            is_active: false,
            kept: Kept::default(),
            last: 0,
            found: RefCell::default(),
            savepoints: Vec::new(),
            next_savepoint: 0,
            renamed: Vec::new(),
            loaded: None,
        }
    }

    fn engine(&self) -> &Engine {
        &self.running.engine
    }

    /// The number that it has in the log.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// assert_ne!(store.begin().id(), store.begin().id());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// This moment, for [`rollback_to`](Self::rollback_to).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// let mut tx = store.begin();
    /// let savepoint = tx.savepoint();
    /// tx.rollback_to(savepoint)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn savepoint(&mut self) -> Savepoint {
        self.next_savepoint += 1;
        self.savepoints.push((self.next_savepoint, self.step_count(), self.kept.room));
        Savepoint { tx: self.id, number: self.next_savepoint }
    }

    /// Takes back what was changed since a savepoint, which stays. Locks stay too. A transaction that could only be
    /// rolled back goes on.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
    /// # let table = store.table("t")?;
    /// let mut tx = store.begin();
    /// tx.put(&table, b"a", b"1")?;
    /// let savepoint = tx.savepoint();
    /// tx.put(&table, b"a", b"2")?;
    /// tx.rollback_to(savepoint)?;
    /// assert_eq!(tx.get(&table, b"a")?, Some(b"1".to_vec()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Foreign`] for a savepoint of another transaction or one that was rolled back over, [`Error::Poisoned`].
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<(), Error> {
        let known = self.savepoints.iter().position(|(number, ..)| *number == savepoint.number);
        let at = known.filter(|_| savepoint.tx == self.id).ok_or(Error::Foreign { what: "the savepoint" })?;
        let (_, steps, room) = self.savepoints[at];
        self.take_back(steps)?;
        self.kept.back_to(&self.running.engine, steps, room);
        self.tables_back(steps);
        self.savepoints.truncate(at + 1);
        self.state.set(State::Open);
        self.refused.set(None);
        Ok(())
    }

    /// How many steps would be taken back.
    fn step_count(&self) -> usize {
        self.undoable.as_ref().map_or(0, |undoable| undoable.list.lock().steps.len())
    }

    /// Whether it goes on.
    fn check(&self) -> Result<(), Error> {
        match self.state.get() {
            State::Open => self.engine().poison.check(),
            State::Failed | State::Over => Err(Error::Finished),
        }
    }

    fn check_key(&self, table: &Table, key: &[u8]) -> Result<(), Error> {
        self.check()?;
        self.check_table(table)?;
        if key.len() > KEY_LIMIT { Err(Error::KeyTooLong { len: key.len() }) } else { Ok(()) }
    }

    fn check_table(&self, table: &Table) -> Result<(), Error> {
        if self.engine().tables.has(table) { Ok(()) } else { Err(Error::Foreign { what: "the table" }) }
    }

    /// Takes a lock, and the one of the table that announces it.
    fn lock(&self, table: TableId, target: &Target, mode: Mode) -> Result<(), Error> {
        let announced = if mode.changes() { Mode::IntentionExclusive } else { Mode::IntentionShared };
        let (held, mode_held) = {
            let tables = self.tables.borrow();
            let held = tables.iter().position(|(held, _)| *held == table);
            (held, held.and_then(|at| tables.get(at)).map(|(_, mode)| *mode))
        };
        if mode_held.is_none_or(|held| held.and(announced) != held) {
            self.take(&Target::Table(table), announced)?;
            let now = mode_held.map_or(announced, |held| held.and(announced));
            let mut tables = self.tables.borrow_mut();
            match held {
                Some(at) => tables[at].1 = now,
                None => tables.push((table, now)),
            }
        }
        self.take(target, mode)
    }

    /// Takes the lock of a row, whose table is there as long as it is held.
    fn lock_row(&self, table: &Table, key: &[u8], mode: Mode) -> Result<(), Error> {
        self.lock(table.root(), &Target::Row(table.root(), Key::from(key)), mode)?;
        table.check_there()
    }

    /// Keeps everybody from changing a table.
    pub(crate) fn lock_table(&self, table: TableId) -> Result<(), Error> {
        self.check()?;
        self.take(&Target::Table(table), Mode::Shared)
    }

    fn take(&self, target: &Target, mode: Mode) -> Result<(), Error> {
        let limit = self.running.engine.tuning.lock_timeout;
        let taken = self.running.engine.locks.take(&mut self.held.borrow_mut(), target, mode, limit);
        if let Err(refused) = taken {
            self.state.set(State::Failed);
            self.refused.set(Some(refused));
            return Err(refused.into());
        }
        // Whoever cannot take back what it has changed releases its locks all the same, and says so first.
        self.engine().poison.check()
    }

    /// What was refused, if it can only be rolled back for that.
    pub(crate) fn refused(&self) -> Option<Error> {
        self.refused.get().filter(|_| self.state.get() == State::Failed).map(Error::from)
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Deadlock => Self::Deadlock,
            Refused::Timeout => Self::Timeout,
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        // What cannot be taken back poisons the store, and the next user is told.
        let _ = self.give_up();
    }
}
