//! Records transactions while they run: which rows they use, and how long each operation takes.

use std::cell::RefCell;
use std::time::Instant;

use anyhow::Result;

use crate::kv::{Db, Done, Schema, Session, Span, Tx, Visit, Work, run};
use crate::workload::{Thread, Workload, unique};

/// The kind of an operation: what it does with its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    /// A read of a row that the transaction will change.
    Claim,
    Change,
    /// A scan of a range.
    Scan,
}

/// An operation.
#[derive(Clone, Debug)]
pub(crate) struct Traced {
    pub(crate) kind: Kind,
    pub(crate) table: usize,
    pub(crate) key: Vec<u8>,
    pub(crate) ns: f64,
}

/// A recorded transaction: its operations, and its time from beginning to end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    pub(crate) ops: Vec<Traced>,
    pub(crate) ns: f64,
}

struct Tracing<'a> {
    inner: Box<dyn Session + 'a>,
    traces: &'a RefCell<Vec<Trace>>,
}

struct TracedTx<'t> {
    tx: &'t mut dyn Tx,
    ops: &'t mut Vec<Traced>,
}

impl TracedTx<'_> {
    fn note<T>(
        &mut self,
        kind: Kind,
        table: usize,
        key: &[u8],
        call: impl FnOnce(&mut dyn Tx) -> Done<T>,
    ) -> Done<T> {
        let begun = Instant::now();
        let done = call(self.tx);
        let ns = begun.elapsed().as_nanos() as f64;
        self.ops.push(Traced { kind, table, key: key.to_vec(), ns });
        done
    }
}

impl Tx for TracedTx<'_> {
    fn get(&mut self, table: usize, key: &[u8]) -> Done<Option<Vec<u8>>> {
        self.note(Kind::Read, table, key, |tx| tx.get(table, key))
    }

    fn get_for_update(&mut self, table: usize, key: &[u8]) -> Done<Option<Vec<u8>>> {
        self.note(Kind::Claim, table, key, |tx| tx.get_for_update(table, key))
    }

    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Done<()> {
        self.note(Kind::Change, table, key, |tx| tx.put(table, key, value))
    }

    fn delete(&mut self, table: usize, key: &[u8]) -> Done<()> {
        self.note(Kind::Change, table, key, |tx| tx.delete(table, key))
    }

    fn rows(&mut self, table: usize, span: Span<'_>, visit: &mut Visit<'_>) -> Done<()> {
        self.note(Kind::Scan, table, span.from, |tx| tx.rows(table, span, visit))
    }
}

impl Session for Tracing<'_> {
    fn attempt(&mut self, writes: bool, work: &mut Work<'_>) -> Done<()> {
        let (begun, mut ops) = (Instant::now(), Vec::new());
        let done = self.inner.attempt(writes, &mut |tx| {
            ops.clear();
            work(&mut TracedTx { tx, ops: &mut ops })
        });
        if done.is_ok() {
            self.traces.borrow_mut().push(Trace { ops, ns: begun.elapsed().as_nanos() as f64 });
        }
        done
    }
}

/// Records the transactions that `threads` threads would run. Runs them one after another, so that nothing disturbs
/// them.
pub(crate) fn trace(
    db: &dyn Db,
    workload: &dyn Workload,
    threads: u64,
    count: usize,
) -> Result<Vec<Vec<Trace>>> {
    let mut all = Vec::new();
    // The first round only warms the store up. It is not recorded.
    for number in std::iter::once(0).chain(0..threads) {
        let rng = fastrand::Rng::with_seed(number);
        let mut thread = Thread { number, rng, serial: unique(), commits: [0; 8] };
        let traces = RefCell::new(Vec::new());
        let mut session = Tracing { inner: db.session()?, traces: &traces };
        while traces.borrow().len() < count {
            workload.step(&mut session, &mut thread)?;
        }
        drop(session);
        all.push(traces.into_inner());
    }
    all.remove(0);
    Ok(all)
}

/// Returns the keys of each table in order, and the size of all rows together in bytes.
pub(crate) fn keys(db: &dyn Db, schema: Schema) -> Result<(Vec<Vec<Vec<u8>>>, u64)> {
    let mut session = db.session()?;
    let (mut tables, mut bytes) = (Vec::new(), 0);
    for table in 0..schema.len() {
        let mut keys = Vec::new();
        run(&mut *session, false, &mut |tx| {
            keys.clear();
            tx.scan(table, &[], &[0xff; 40], false, &mut |key, row| {
                bytes += (key.len() + row.len()) as u64;
                keys.push(key.to_vec());
                true
            })
        })?;
        tables.push(keys);
    }
    Ok((tables, bytes))
}
