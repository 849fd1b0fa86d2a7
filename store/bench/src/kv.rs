//! What a workload needs from a store: ordered tables of bytes, and serializable transactions.

use anyhow::{Result, bail};

/// The reason why a transaction was not committed.
#[derive(Debug)]
pub(crate) enum Fail {
    /// The transaction has to give way to another one, and be run again.
    Retry,
    /// The workload rolls the transaction back, because its specification demands this in some cases.
    RollBack,
    /// An error that would happen again if the transaction were run again.
    Broken(anyhow::Error),
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Fail {
    fn from(error: E) -> Self {
        Self::Broken(error.into())
    }
}

/// The result of an operation in a transaction.
pub(crate) type Done<T> = std::result::Result<T, Fail>;

/// A function that gets the key and the value of each row of a scan. It returns whether the scan should continue.
pub(crate) type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> bool + 'a;

/// A transaction. `table` is an index into [`Schema`].
pub(crate) trait Tx {
    fn get(&mut self, table: usize, key: &[u8]) -> Done<Option<Vec<u8>>>;
    /// Like [`get`](Self::get), for a row that the transaction will change.
    fn get_for_update(&mut self, table: usize, key: &[u8]) -> Done<Option<Vec<u8>>> {
        self.get(table, key)
    }
    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Done<()>;
    fn delete(&mut self, table: usize, key: &[u8]) -> Done<()>;
    fn rows(&mut self, table: usize, span: Span<'_>, visit: &mut Visit<'_>) -> Done<()>;
    /// Visits the rows with keys from `from` up to, but not including, `to`. Visits them in reverse order if
    /// `is_reverse`.
    fn scan(
        &mut self,
        table: usize,
        from: &[u8],
        to: &[u8],
        is_reverse: bool,
        visit: &mut Visit<'_>,
    ) -> Done<()> {
        self.rows(table, Span { from, to, is_reverse }, visit)
    }
}

/// The rows with keys from `from` up to, but not including, `to`. They are in reverse order if `is_reverse`.
#[derive(Clone, Copy)]
pub(crate) struct Span<'a> {
    pub(crate) from: &'a [u8],
    pub(crate) to: &'a [u8],
    pub(crate) is_reverse: bool,
}

/// Passes the rows to `show` one by one, from the last row backwards if `is_reverse`. Stops when `show` returns false.
pub(crate) fn each<I: DoubleEndedIterator>(
    mut rows: I,
    is_reverse: bool,
    mut show: impl FnMut(I::Item) -> Done<bool>,
) -> Done<()> {
    while let Some(row) = if is_reverse { rows.next_back() } else { rows.next() } {
        if !show(row)? {
            break;
        }
    }
    Ok(())
}

/// The body of a transaction. It may run several times, so it must do the same each time.
pub(crate) type Work<'a> = dyn FnMut(&mut dyn Tx) -> Done<()> + 'a;

/// A thread's access to a store.
pub(crate) trait Session {
    /// Runs `work` in a transaction. Commits if `work` succeeds, and rolls back if it fails. The transaction is durable
    /// if this returns `Ok`.
    fn attempt(&mut self, writes: bool, work: &mut Work<'_>) -> Done<()>;

    /// Runs `work` so that all of its reads see the same committed state. Uses a snapshot if the store offers
    /// snapshots, and otherwise a transaction.
    fn view(&mut self, work: &mut Work<'_>) -> Done<()> {
        self.attempt(false, work)
    }
}

/// A store in which the workload's tables exist.
pub(crate) trait Db: Send + Sync {
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// If the store has a special way to load sorted rows, uses it to load the rows into an empty table, and returns
    /// true. Otherwise does nothing and returns false.
    fn load_sorted(&self, _table: usize, _rows: &mut dyn Iterator<Item = KeyValue>) -> Result<bool> {
        Ok(false)
    }
}

/// A key and its value.
pub(crate) type KeyValue = (Vec<u8>, Vec<u8>);

/// The memory that a store may use in a comparison.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) cache_bytes: u64,
    /// The number of connections. If each connection has a cache of its own, the memory is divided among them.
    pub(crate) connections: u64,
    /// The memory in bytes for data that the store has not written yet, if the store does not keep such data in its
    /// cache. `None` means the store's default.
    #[allow(dead_code)] // only used by stores of optional features
    pub(crate) buffer_bytes: Option<u64>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { cache_bytes: 64 << 20, connections: 1, buffer_bytes: None }
    }
}

/// The names of a workload's tables.
pub(crate) type Schema = &'static [&'static str];

/// The way in which a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Committed,
    RolledBack,
}

/// The largest number of attempts at a transaction.
const TRIES: u32 = 100_000;

/// Runs a transaction until it commits or rolls back. Also returns how often it had to give way.
pub(crate) fn run(session: &mut dyn Session, writes: bool, work: &mut Work<'_>) -> Result<(Outcome, u32)> {
    until_through(&mut || session.attempt(writes, work))
}

/// Runs a long read until it ends. Also returns how often it had to start again.
pub(crate) fn view(session: &mut dyn Session, work: &mut Work<'_>) -> Result<(Outcome, u32)> {
    until_through(&mut || session.view(work))
}

fn until_through(attempt: &mut dyn FnMut() -> Done<()>) -> Result<(Outcome, u32)> {
    for retries in 0..TRIES {
        match attempt() {
            Ok(()) => return Ok((Outcome::Committed, retries)),
            Err(Fail::RollBack) => return Ok((Outcome::RolledBack, retries)),
            Err(Fail::Broken(error)) => return Err(error),
            Err(Fail::Retry) if retries > 2 => {
                let most = 10_u64 << retries.min(9);
                std::thread::sleep(std::time::Duration::from_micros(fastrand::u64(0..most)));
            }
            Err(Fail::Retry) => {}
        }
    }
    bail!("a transaction gave way {TRIES} times")
}

/// A writer of rows, in transactions of a thousand rows each.
pub(crate) struct Loader<'a> {
    session: Box<dyn Session + 'a>,
    rows: Vec<(usize, Vec<u8>, Vec<u8>)>,
}

impl<'a> Loader<'a> {
    pub(crate) fn new(db: &'a dyn Db) -> Result<Self> {
        Ok(Self { session: db.session()?, rows: Vec::new() })
    }

    pub(crate) fn put(&mut self, table: usize, key: Vec<u8>, value: Vec<u8>) -> Result<()> {
        self.rows.push((table, key, value));
        if self.rows.len() >= 1000 { self.finish() } else { Ok(()) }
    }

    pub(crate) fn finish(&mut self) -> Result<()> {
        let rows = std::mem::take(&mut self.rows);
        run(&mut *self.session, true, &mut |tx| {
            rows.iter().try_for_each(|(table, key, value)| tx.put(*table, key, value))
        })?;
        Ok(())
    }
}
