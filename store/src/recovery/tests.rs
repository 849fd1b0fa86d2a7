//! Counts the steps that recovery visits.
#![allow(clippy::unwrap_used)] // a failed helper is a failed test

use super::*;
use crate::opening;
use crate::options::Options;
use crate::running::Running;
use crate::transaction::Transaction;

/// The number of steps of the transaction that is rolled back.
const STEPS: u64 = 3000;

/// Recovery visits each step at most twice: when it reads the object that undid the step, and when it reads the object
/// that undid the step after it in the log. So recovery takes time linear in the length of the log.
#[test]
fn recovery_looks_at_each_step_that_was_taken_back_but_twice() {
    let options = Options { page_bytes: Some(4096), ..Options::default() };
    let running = Running::alone(opening::in_memory(&options));
    let mut tx = Transaction::begin(&running);
    let table = tx.table("t").unwrap();
    tx.commit().unwrap();
    let mut tx = Transaction::begin(&running);
    for n in 0..STEPS {
        tx.put(&table, &n.to_be_bytes(), b"value").unwrap();
    }
    tx.rollback().unwrap();
    let log = &running.engine.pager.log;
    running.engine.force(log.next() - 1).unwrap();
    let mut analysis = Analysis::default();
    let (mut compensations, seed) = (0, log.seed());
    log.scan(log.head(), log.next(), &mut |lsn, bytes| {
        let object = Object::decode(bytes, seed).unwrap();
        compensations += u64::from(object.header.kind == ObjectKind::Compensation);
        analysis.repeat(&running.engine, lsn, &object)
    })
    .unwrap();
    assert_eq!(compensations, STEPS);
    assert!(analysis.unfinished.is_empty(), "the transaction is over");
    let visited = analysis.report.steps_visited;
    assert!(
        (STEPS..=STEPS * 2).contains(&visited),
        "{visited} steps looked at for {STEPS} that were taken back"
    );
}
