//! Tests a transaction that ends during a checkpoint.
#![allow(clippy::unwrap_used)] // a failed helper is a failed test

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::*;
use crate::log::{Log, LogCounters, Space as LogSpace, Visit};
use crate::opening;
use crate::options::{LogMedium, Options, Scheme};
use crate::running::Running;
use crate::transaction::Transaction;

type Work = Box<dyn FnOnce() + Send>;

/// A log that calls a closure at one chosen call of [`next`](Log::next).
struct Interrupted {
    log: Arc<dyn Log>,
    then: Mutex<Option<(u32, Work)>>,
}

impl fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.log.fmt(f)
    }
}

impl Log for Interrupted {
    fn append(&self, object: &mut [u8]) -> Result<Lsn, Error> {
        self.log.append(object)
    }
    fn next(&self) -> Lsn {
        let next = self.log.next();
        let mut then = self.then.lock();
        if let Some((after, _)) = then.as_mut() {
            *after -= 1;
        }
        let due = then.take_if(|(after, _)| *after == 0);
        drop(then);
        if let Some((_, work)) = due {
            work();
        }
        next
    }
    fn durable(&self) -> Lsn {
        self.log.durable()
    }
    fn head(&self) -> Lsn {
        self.log.head()
    }
    fn force(&self, upto: Lsn) -> Result<(), Error> {
        self.log.force(upto)
    }
    fn scan(&self, from: Lsn, to: Lsn, visit: &mut Visit<'_>) -> Result<(), Error> {
        self.log.scan(from, to, visit)
    }
    fn truncate(&self, head: Lsn) -> Result<(), Error> {
        self.log.truncate(head)
    }
    fn space(&self) -> LogSpace {
        self.log.space()
    }
    fn persist_some(&self) {
        self.log.persist_some();
    }
    fn counters(&self) -> LogCounters {
        self.log.counters()
    }
    fn memory_bytes(&self) -> u64 {
        self.log.memory_bytes()
    }
    fn describe(&self) -> String {
        self.log.describe()
    }
    fn seed(&self) -> u64 {
        self.log.seed()
    }
}

fn open(scheme: Scheme) -> (Arc<Running>, Arc<Interrupted>) {
    let is_on_disk = matches!(scheme, Scheme::NvDisk | Scheme::NvDiskDecentralized);
    let log = if is_on_disk { LogMedium::Disk } else { LogMedium::Emulated };
    let options = Options { page_bytes: Some(4096), log, scheme, ..Options::default() };
    let mut engine = opening::in_memory(&options);
    let log = Arc::new(Interrupted { log: Arc::clone(&engine.pager.log), then: Mutex::default() });
    engine.pager.log = log.clone();
    (Running::alone(engine), log)
}

/// A transaction ends after the checkpoint has read the log's next number, but before the checkpoint looks for open
/// transactions.
#[test]
fn inv40_what_a_checkpoint_gives_up_of_the_log_had_durably_ended() {
    for scheme in [Scheme::FlushOnCommit, Scheme::Distributed, Scheme::NvDisk, Scheme::NvDiskDecentralized] {
        for is_commit in [false, true] {
            let (running, log) = open(scheme);
            let mut tx = Transaction::begin(&running);
            let table = tx.table("t").unwrap();
            tx.commit().unwrap();
            let mut tx = Transaction::begin(&running);
            let first = log.log.next();
            tx.put(&table, b"key", b"value").unwrap();
            let end: Work = Box::new(move || {
                if is_commit {
                    drop(tx.commit_async().unwrap());
                } else {
                    tx.rollback().unwrap();
                }
            });
            *log.then.lock() = Some((2, end));
            running.engine.checkpoint(&|| false).unwrap();
            let what = format!("{scheme:?}, commits: {is_commit}");
            assert!(log.then.lock().is_none(), "{what}: nothing has ended");
            let (head, durable, next) = (log.log.head(), log.log.durable(), log.log.next());
            assert!(
                head <= first || durable == next,
                "{what}: {first} is given up, {durable} of {next} durable"
            );
        }
    }
}
