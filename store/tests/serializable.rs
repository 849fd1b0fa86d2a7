//! Histories of many threads, with transactions and snapshots, must be strictly serializable. Controls show that the
//! checker notices histories that are not.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::sync::atomic::{AtomicBool, AtomicU64};

use common::{lists, options, schemes};
use duralite_histories::{Fate, Last, Op, Tx, check};
use duralite_store::{Options, Rule, Scheme, Store};

fn round(seed: u64, scheme: Scheme, early: bool) {
    let dir = tempfile::tempdir().unwrap();
    let options = options(scheme).early_lock_release(early).lock_inheritance(early);
    let store = Store::open(dir.path().join("s"), options.clone()).unwrap();
    let table = store.table("lists").unwrap();
    let next = AtomicU64::new(1);
    let history = lists::run(&store, &table, seed, 8, 150, &next, &AtomicBool::new(false));
    let last = lists::read_all(&store, &table);
    assert_is_serializable(&history, &last, &format!("seed {seed}, {scheme:?}"));
    assert_eq!(store.metrics().snapshot_bytes, 0, "seed {seed}, {scheme:?}");
    drop((table, store));
    let store = Store::open(dir.path().join("s"), options).unwrap();
    let table = store.table("lists").unwrap();
    assert_eq!(lists::read_all(&store, &table), last, "seed {seed}, {scheme:?}");
}

fn assert_is_serializable(history: &[Tx], last: &Last, what: &str) {
    let is_snapshot = |tx: &&Tx| tx.ops.iter().all(|op| !matches!(op, Op::Append(..) | Op::Write(..)));
    let committed = history.iter().filter(|tx| tx.fate == Fate::Committed);
    let (readers, writers): (Vec<&Tx>, Vec<&Tx>) = committed.partition(is_snapshot);
    assert!(readers.len() > 100 && writers.len() > 100, "{what}: {} and {}", readers.len(), writers.len());
    check(history, last).unwrap_or_else(|why| panic!("{what}: {why}"));
}

#[test]
fn inv36_histories_of_many_threads_are_serializable() {
    for (seed, scheme) in (1..).zip(schemes()) {
        round(seed, scheme, true);
        round(seed + 100, scheme, false);
    }
}

/// The transactions also change other data, ten times as much as the smallest cache holds. So the store evicts and
/// reads pages all the time.
#[test]
fn inv55_histories_with_the_smallest_cache_and_ten_times_its_data_are_serializable() {
    for (seed, scheme) in (1..).zip(schemes()) {
        let dir = tempfile::tempdir().unwrap();
        let cache_bytes = Options::smallest_cache_bytes(4096);
        let options = options(scheme).cache_bytes(cache_bytes).page_bytes(4096);
        let store = Store::open(dir.path().join("s"), options).unwrap();
        let table = store.table("lists").unwrap();
        let history = lists::run_beside(&store, &table, seed, (6, 120), 10 * cache_bytes / 500);
        let last = lists::read_all(&store, &table);
        assert!(store.metrics().pages > 10 * 64);
        assert_is_serializable(&history, &last, &format!("seed {seed}, {scheme:?}"));
        store.verify().unwrap();
    }
}

/// Returns whether, in one of a few histories, the checker notices that a rule is broken.
fn is_noticed(rule: Rule) -> bool {
    (0..20).any(|seed| {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("s"), options(Scheme::FlushOnCommit)).unwrap();
        let table = store.table("lists").unwrap();
        store.break_rule(rule);
        let next = AtomicU64::new(1);
        let history = lists::run(&store, &table, seed, 8, 150, &next, &AtomicBool::new(false));
        check(&history, &lists::read_all(&store, &table)).is_err()
    })
}

#[test]
fn a_store_without_range_locks_is_noticed() {
    assert!(is_noticed(Rule::RangeLocks));
}

#[test]
fn a_store_with_dirty_reads_is_noticed() {
    assert!(is_noticed(Rule::NoDirtyReads));
}

#[test]
fn inv56_snapshots_without_versions_are_noticed() {
    assert!(is_noticed(Rule::LookAtVersions));
    assert!(is_noticed(Rule::NoteVersions));
    assert!(is_noticed(Rule::NoteWhatWasChanged));
}

#[test]
fn inv55_transactions_that_end_after_their_locks_are_released_are_noticed() {
    assert!(is_noticed(Rule::EndBeforeRelease));
}
