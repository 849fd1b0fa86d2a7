//! Transactions, which read and change rows under locks that they hold until they end.
//!
//! Invariant 39: a commit is acknowledged only when everything up to it is durable. So everything that a committed
//! reader has seen is durable too. A transaction that does not commit is undone step by step, by log objects that are
//! never undone themselves.

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

pub use self::commit::Ticket;
use self::kept::{Kept, Renamed};
pub(crate) use self::load::{Backups, Loaded};
pub(crate) use self::rows::chain_given_up;
pub use self::scan::Scan;
use crate::admission::Room;
use crate::engine::Engine;
use crate::error::Error;
use crate::format::{KEY_LIMIT, Lsn, TxId};
use crate::locks::{Held, Key, Mode, Refused, TableId, Target};
use crate::running::Running;
use crate::steps::Undoable;
use crate::table::Table;
use crate::tree::Found;

/// The state of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// The transaction can only be rolled back.
    Failed,
    Over,
}

/// A serializable transaction. It is rolled back if it is dropped before [`commit`](Self::commit). A transaction keeps
/// the store open, even if the [`Store`](crate::Store) has been dropped.
///
/// Once a transaction has committed, no crash can take back what it has read, even if it changed nothing.
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
    /// The steps of the transaction; `None` before its first change.
    undoable: Option<Arc<Undoable>>,
    /// The transaction's locks. Reads take locks too. The `RefCell` is borrowed only while a lock is taken, and never
    /// while the program's code runs.
    held: RefCell<Held>,
    /// The reason why a lock was refused, if the transaction has failed because of this.
    refused: Cell<Option<Refused>>,
    tables: RefCell<Vec<(TableId, Mode)>>,
    /// Whether the transaction has objects in the log.
    is_active: bool,
    /// The reservations for the transaction's undo and its commit.
    kept: Kept,
    last: Lsn,
    /// The row that was last read in order to change it, and the place where it was found.
    found: RefCell<Option<(TableId, Key, Found)>>,
    /// The savepoints by number. Each has the number of steps before it, and the log space that was reserved when it
    /// was set.
    savepoints: Vec<(u64, usize, Room)>,
    next_savepoint: u64,
    /// Changes of the catalog that affect handles when the transaction commits or is rolled back.
    renamed: Vec<Renamed>,
    /// The table to which the commit adds bulk-loaded rows.
    loaded: Option<Table>,
}

/// A point to which a transaction can be rolled back.
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

    /// Begins a transaction that takes over the age of an earlier one, which has ended. In a deadlock the youngest
    /// transaction gives way. Because this one is as old as the earlier one, it does not have to give way again and
    /// again.
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

    /// Returns the number that identifies the transaction in the log.
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

    /// Marks this point in the transaction for [`rollback_to`](Self::rollback_to).
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

    /// Undoes all changes since a savepoint. The savepoint remains valid, and the transaction keeps its locks. A
    /// transaction that had failed can continue after this.
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
    /// [`Error::Foreign`] for a savepoint of another transaction, or one that an earlier rollback has removed;
    /// [`Error::Poisoned`].
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<(), Error> {
        let known = self.savepoints.iter().position(|(number, ..)| *number == savepoint.number);
        let at = known.filter(|_| savepoint.tx == self.id).ok_or(Error::Foreign { what: "the savepoint" })?;
        let (_, steps, room) = self.savepoints[at];
        self.undo_to(steps)?;
        self.kept.back_to(&self.running.engine, steps, room);
        self.tables_back(steps);
        self.savepoints.truncate(at + 1);
        self.state.set(State::Open);
        self.refused.set(None);
        Ok(())
    }

    /// Returns how many steps a complete rollback would undo.
    fn step_count(&self) -> usize {
        self.undoable.as_ref().map_or(0, |undoable| undoable.list.lock().steps.len())
    }

    /// Checks that the transaction can make another step.
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

    /// Takes a lock. Before that, takes the intention lock on the table.
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

    /// Takes the lock of a row. While the transaction holds this lock, no other transaction can drop the table.
    fn lock_row(&self, table: &Table, key: &[u8], mode: Mode) -> Result<(), Error> {
        self.lock(table.root(), &Target::Row(table.root(), Key::from(key)), mode)?;
        table.check_there()
    }

    /// Prevents other transactions from changing a table until this one ends.
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
        // If the undo of a transaction fails, that poisons the store. The transaction's locks are released
        // nevertheless, and this may be one of them. So check the poison after every lock.
        self.engine().poison.check()
    }

    /// Returns the log object that has to be durable before the program may pass on what the transaction has read; 0 if
    /// there is none.
    pub(crate) fn depends_on(&self) -> Lsn {
        self.held.borrow().depends_on()
    }

    /// Returns the error of the refused lock, if the transaction failed because of it.
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
        // If the undo fails, it poisons the store, and the next call of any transaction gets the error.
        let _ = self.give_up();
    }
}
