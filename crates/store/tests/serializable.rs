//! Histories of many threads are serializable, and the checker notices those that are not.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64};

use common::history::{Fate, Op, Tx, check};
use common::{lists, options, schemes};
use duralite_store::{Rule, Scheme, Store};

fn round(seed: u64, scheme: Scheme, early: bool) {
    let dir = tempfile::tempdir().unwrap();
    let options = options(scheme).early_lock_release(early).lock_inheritance(early);
    let store = Store::open(dir.path().join("s"), options.clone()).unwrap();
    let table = store.table("lists").unwrap();
    let next = AtomicU64::new(1);
    let history = lists::run(&store, &table, seed, 8, 150, &next, &AtomicBool::new(false));
    let last = lists::read_all(&store, &table);
    let committed = history.iter().filter(|tx| tx.fate == Fate::Committed).count();
    assert!(committed > 100, "seed {seed}: {committed} committed only");
    check(&history, &last).unwrap_or_else(|why| panic!("seed {seed}, {scheme:?}: {why}"));
    drop((table, store));
    let store = Store::open(dir.path().join("s"), options).unwrap();
    let table = store.table("lists").unwrap();
    assert_eq!(lists::read_all(&store, &table), last, "seed {seed}, {scheme:?}");
}

#[test]
fn inv36_histories_of_many_threads_are_serializable() {
    for (seed, scheme) in (1..).zip(schemes()) {
        round(seed, scheme, true);
        round(seed + 100, scheme, false);
    }
}

/// Whether the checker notices within some histories that a rule is broken.
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

fn committed(ops: &[Op]) -> Tx {
    Tx { ops: ops.to_vec(), fate: Fate::Committed }
}

fn verdict(history: &[Tx], last: &[(u64, &[u64])]) -> Result<(), String> {
    let last: BTreeMap<_, _> = last.iter().map(|(list, elements)| (*list, elements.to_vec())).collect();
    check(history, &last)
}

#[test]
fn the_checker_accepts_what_is_serializable() {
    let history = [
        committed(&[Op::Append(1, 10), Op::Append(2, 20)]),
        committed(&[Op::Read(1, vec![10]), Op::Append(2, 21)]),
        committed(&[Op::Scan(1, 3, vec![(1, vec![10]), (2, vec![20, 21])])]),
        Tx { ops: vec![Op::Append(1, 11)], fate: Fate::Aborted },
    ];
    verdict(&history, &[(1, &[10]), (2, &[20, 21])]).unwrap();
}

/// What would come about without range locks.
#[test]
fn the_checker_catches_a_phantom() {
    let history = [
        committed(&[Op::Scan(1, 9, vec![]), Op::Append(3, 30)]),
        committed(&[Op::Scan(1, 9, vec![]), Op::Append(4, 40)]),
    ];
    let why = verdict(&history, &[(3, &[30]), (4, &[40])]).unwrap_err();
    assert!(why.contains("rw"), "{why}");
}

/// What would come about if locks were released before the log's order is fixed, and the newer commit were lost.
#[test]
fn the_checker_catches_a_lost_dependency() {
    let history = [
        Tx { ops: vec![Op::Append(1, 10)], fate: Fate::Unknown },
        committed(&[Op::Read(1, vec![10]), Op::Append(2, 20)]),
    ];
    assert!(verdict(&history, &[(2, &[20])]).is_err());
}

#[test]
fn the_checker_catches_dirty_and_stale_reads_and_what_is_lost() {
    let dirty =
        [Tx { ops: vec![Op::Append(1, 10)], fate: Fate::Aborted }, committed(&[Op::Read(1, vec![10])])];
    assert!(verdict(&dirty, &[]).is_err());
    let aborted = [Tx { ops: vec![Op::Append(1, 10)], fate: Fate::Aborted }];
    assert!(verdict(&aborted, &[(1, &[10])]).is_err());
    let lost = [committed(&[Op::Append(1, 10)])];
    assert!(verdict(&lost, &[]).is_err());
    let skew = [
        committed(&[Op::Read(1, vec![]), Op::Append(2, 20)]),
        committed(&[Op::Read(2, vec![]), Op::Append(1, 10)]),
    ];
    assert!(verdict(&skew, &[(1, &[10]), (2, &[20])]).is_err());
}
