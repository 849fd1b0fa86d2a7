//! What a workload asks of a store: ordered tables of bytes, and transactions that are serializable.

use anyhow::{Result, bail};

/// Why a transaction did not go through.
#[derive(Debug)]
pub(crate) enum Fail {
    /// It has to give way to another and is to be run again.
    Retry,
    /// The workload says that it is to be rolled back, as some are by specification.
    RollBack,
    /// Something that running it again does not mend.
    Broken(anyhow::Error),
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Fail {
    fn from(error: E) -> Self {
        Self::Broken(error.into())
    }
}

/// What an operation in a transaction comes to.
pub(crate) type Done<T> = std::result::Result<T, Fail>;

/// Shown rows of a scan; says whether it wants more.
pub(crate) type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> bool + 'a;

/// A transaction, over tables by their place in [`Schema`].
pub(crate) trait Tx {
    fn get(&mut self, table: usize, key: &[u8]) -> Done<Option<Vec<u8>>>;
    /// As [`get`](Self::get), of a row that will be changed.
    fn get_for_update(&mut self, table: usize, key: &[u8]) -> Done<Option<Vec<u8>>> {
        self.get(table, key)
    }
    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Done<()>;
    fn delete(&mut self, table: usize, key: &[u8]) -> Done<()>;
    fn rows(&mut self, table: usize, span: Span<'_>, visit: &mut Visit<'_>) -> Done<()>;
    /// Rows from `from` on and before `to`, from the end if `is_reverse`.
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

/// Rows from `from` on and before `to`, from the end if `is_reverse`.
#[derive(Clone, Copy)]
pub(crate) struct Span<'a> {
    pub(crate) from: &'a [u8],
    pub(crate) to: &'a [u8],
    pub(crate) is_reverse: bool,
}

/// Shows rows from one end, as long as more are wanted.
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

/// The body of a transaction; run again, it does the same.
pub(crate) type Work<'a> = dyn FnMut(&mut dyn Tx) -> Done<()> + 'a;

/// What one thread has of a store.
pub(crate) trait Session {
    /// Begins, works, and commits; rolls back when the work fails. Durable when it returns `Ok`.
    fn attempt(&mut self, writes: bool, work: &mut Work<'_>) -> Done<()>;

    /// Reads what was committed at one moment, for as long as it takes: a snapshot, where the store has them apart from transactions.
    fn view(&mut self, work: &mut Work<'_>) -> Done<()> {
        self.attempt(false, work)
    }
}

/// A store, with its tables made.
pub(crate) trait Db: Send + Sync {
    fn session(&self) -> Result<Box<dyn Session + '_>>;

    /// Loads sorted rows into a table that has none, if the store has a way of its own for that; whether it has.
    fn load_sorted(&self, _table: usize, _rows: &mut dyn Iterator<Item = KeyValue>) -> Result<bool> {
        Ok(false)
    }
}

/// A key and its value.
pub(crate) type KeyValue = (Vec<u8>, Vec<u8>);

/// What a store may keep in memory when they are compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) cache_bytes: u64,
    /// Among so many the cache is divided, where each connection has its own.
    pub(crate) connections: u64,
    /// For what waits to be written, where that is not in the cache; as the store itself has it if `None`.
    #[allow(dead_code)] // of stores that are not built in
    pub(crate) buffer_bytes: Option<u64>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { cache_bytes: 64 << 20, connections: 1, buffer_bytes: None }
    }
}

/// The tables of a workload.
pub(crate) type Schema = &'static [&'static str];

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Committed,
    RolledBack,
}

/// So often a transaction is tried.
const TRIES: u32 = 100_000;

/// Runs a transaction until it is through; also how often it had to give way.
pub(crate) fn run(session: &mut dyn Session, writes: bool, work: &mut Work<'_>) -> Result<(Outcome, u32)> {
    until_through(&mut || session.attempt(writes, work))
}

/// Runs a long read until it is through; also how often it had to begin again.
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

/// Puts rows in transactions of a thousand.
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
