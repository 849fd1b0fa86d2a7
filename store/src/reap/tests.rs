//! Tests what wakes the reaper.
#![allow(clippy::unwrap_used)] // a failed helper is a failed test

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{dropped, reap};
use crate::opening;
use crate::options::Options;
use crate::running::{Running, Stop};
use crate::snapshot::Snapshot;
use crate::table::Table;
use crate::transaction::Transaction;

const ROWS: u32 = 200;

/// Returns a store with two tables, without background threads.
fn opened() -> (Arc<Running>, Table) {
    let options = Options { page_bytes: Some(4096), snapshot_bytes: 100_000, ..Options::default() };
    let running = Running::alone(opening::in_memory(&options));
    let mut tx = Transaction::begin(&running);
    let (dropped, other) = (tx.table("dropped").unwrap(), tx.table("other").unwrap());
    for n in 0..ROWS {
        tx.put(&dropped, &n.to_be_bytes(), &[1; 100]).unwrap();
    }
    tx.commit().unwrap();
    (running, other)
}

fn drop_table(running: &Arc<Running>) {
    let mut tx = Transaction::begin(running);
    assert!(tx.drop_table("dropped").unwrap());
    tx.commit().unwrap();
}

/// Returns whether the reaper has work. If it has, checks that it was woken too, because otherwise it would sleep
/// forever.
fn is_woken(running: &Running) -> bool {
    let tables = &running.engine.tables;
    let is_due = tables.are_dropped.load(Ordering::SeqCst);
    if is_due {
        let begun = std::time::Instant::now();
        tables.wait_for_dropped(Duration::from_secs(600));
        assert!(begun.elapsed() < Duration::from_secs(600), "nobody has woken it");
    }
    is_due
}

fn reap_all(running: &Running) {
    reap(&running.engine, &Stop::default()).unwrap();
}

#[test]
fn whoever_drops_a_table_wakes_the_reaper_and_so_does_the_last_snapshot_that_shows_it() {
    let (running, _) = opened();
    reap_all(&running);
    assert!(!is_woken(&running));
    let first = Snapshot::open(&running);
    let second = first.clone();
    let third = Snapshot::open(&running);
    drop_table(&running);
    assert!(is_woken(&running));
    reap_all(&running);
    // The reaper must not be woken until the last of the snapshots ends.
    assert_eq!(dropped(&running.engine).unwrap().len(), 1);
    assert!(!is_woken(&running));
    drop(first);
    assert!(!is_woken(&running));
    drop(second);
    assert!(is_woken(&running));
    reap_all(&running);
    assert_eq!(dropped(&running.engine).unwrap().len(), 1);
    assert!(!is_woken(&running));
    drop(third);
    assert!(is_woken(&running));
    reap_all(&running);
    assert!(dropped(&running.engine).unwrap().is_empty());
    assert!(!is_woken(&running));
    // No open snapshot shows a dropped table. So when another snapshot ends, it must not wake the reaper.
    drop(Snapshot::open(&running));
    drop(Snapshot::open(&running));
    assert!(!is_woken(&running));
}

#[test]
fn a_snapshot_that_is_ended_because_it_takes_too_much_wakes_the_reaper() {
    let (running, other) = opened();
    let snapshot = Snapshot::open(&running);
    drop_table(&running);
    assert!(is_woken(&running));
    reap_all(&running);
    assert!(!is_woken(&running));
    for n in 0..5000_u32 {
        let mut tx = Transaction::begin(&running);
        tx.put(&other, &n.to_be_bytes(), &[1; 100]).unwrap();
        tx.commit().unwrap();
        if running.engine.versions.ended() > 0 {
            break;
        }
    }
    assert_eq!(running.engine.versions.ended(), 1);
    assert!(is_woken(&running));
    reap_all(&running);
    assert!(dropped(&running.engine).unwrap().is_empty());
    drop(snapshot);
}
