//! A transaction that stays idle for long does not prevent other transactions from writing.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::crash::{Images, OnRig, Rig};
use common::{options, schemes};
use duralite_store::{Error, LogMedium, Options, Scheme, Store};

fn small(scheme: Scheme) -> Options {
    options(scheme).log_bytes(4 << 20).page_bytes(4096)
}

/// Puts `rounds` rows of 1000 bytes, each in a transaction of its own, to use up space in the log.
fn write(store: &Store, rounds: u64) -> Result<(), Error> {
    let busy = store.table("busy")?;
    let value = [7; 1000];
    (0..rounds).try_for_each(|n| store.run(|tx| tx.put(&busy, &(n % 50).to_be_bytes(), &value)))
}

fn open(images: Option<Images>, scheme: Scheme) -> (Arc<Rig>, Store) {
    let rig = Rig::new(images);
    let store = Store::open_on(OnRig(Arc::clone(&rig)), small(scheme)).unwrap();
    (rig, store)
}

/// Verifies all pages, and returns the rows of the old transaction's table.
fn old(store: &Store) -> Vec<(Vec<u8>, Vec<u8>)> {
    let table = store.table("old").unwrap();
    store.verify().unwrap();
    store.run(|tx| tx.scan(&table, ..).collect()).unwrap()
}

fn rows(value: u8) -> Vec<(Vec<u8>, Vec<u8>)> {
    (0..20_u64).map(|n| (n.to_be_bytes().to_vec(), vec![value; 300])).collect()
}

/// The way in which the idle transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Commit,
    Rollback,
    Savepoint,
    Crash,
}

#[test]
fn inv49_writers_go_on_beside_an_idle_transaction_however_it_ends() {
    for scheme in schemes() {
        for end in [End::Commit, End::Rollback, End::Savepoint, End::Crash] {
            let (rig, store) = open(None, scheme);
            let table = store.table("old").unwrap();
            let put = |tx: &mut duralite_store::Transaction, value: u8| {
                rows(value).iter().try_for_each(|(key, value)| tx.put(&table, key, value))
            };
            store.run(|tx| put(tx, 1)).unwrap();
            let mut idle = store.begin();
            put(&mut idle, 2).unwrap();
            write(&store, 6000).unwrap_or_else(|error| panic!("{scheme:?}, {end:?}: {error}"));
            let savepoint = idle.savepoint();
            put(&mut idle, 3).unwrap();
            write(&store, 6000).unwrap_or_else(|error| panic!("{scheme:?}, {end:?}: {error}"));
            let mut crashed = None;
            let expected = match end {
                End::Commit => {
                    idle.commit().unwrap();
                    rows(3)
                }
                End::Rollback => {
                    idle.rollback().unwrap();
                    rows(1)
                }
                End::Savepoint => {
                    idle.rollback_to(savepoint).unwrap();
                    write(&store, 6000).unwrap();
                    idle.commit().unwrap();
                    rows(2)
                }
                End::Crash => {
                    crashed = Some(rig.death());
                    drop(idle);
                    rows(1)
                }
            };
            let crashed = crashed.unwrap_or_else(|| rig.death());
            if end != End::Crash {
                assert_eq!(old(&store), expected, "{scheme:?}, {end:?}");
            }
            drop((table, store));
            let (_, store) = open(Some(crashed), scheme);
            assert_eq!(old(&store), expected, "{scheme:?}, {end:?} after a crash");
        }
    }
}

/// Crashes at many moments while the store copies the undo data of an idle transaction forward in the log.
#[test]
fn inv49_a_crash_while_what_takes_back_moves_on_takes_back_the_same() {
    for scheme in schemes() {
        for seed in 0..3_u64 {
            let (rig, store) = open(None, scheme);
            let table = store.table("old").unwrap();
            let put = |tx: &mut duralite_store::Transaction, value: u8| {
                rows(value).iter().try_for_each(|(key, value)| tx.put(&table, key, value))
            };
            store.run(|tx| put(tx, 1)).unwrap();
            let mut idle = store.begin();
            put(&mut idle, 2).unwrap();
            write(&store, 500).unwrap();
            // With a log in memory there are more steps, because each write to the memory is a step of its own.
            let among = if options(scheme).log == LogMedium::Disk { 3000 } else { 30_000 };
            rig.crash(40, among, seed);
            for n in 0..8 {
                write(&store, 400).unwrap();
                store.checkpoint().unwrap();
                idle.put(&table, &(n % 20_u64).to_be_bytes(), &[9; 100]).unwrap();
            }
            let crashes = rig.crashes();
            drop((idle, table, store));
            assert!(crashes.len() > 20, "{scheme:?}: {}", crashes.len());
            for crash in crashes {
                let (_, store) = open(Some(crash.images), scheme);
                assert_eq!(old(&store), rows(1), "{scheme:?}, seed {seed}, step {}", crash.step);
            }
        }
    }
}

/// Runs slow transactions beside writers that fill the log. Parts of the slow transactions are rolled back. After a
/// crash, each transaction is either completely there or not at all.
#[test]
fn inv49_slow_transactions_are_whole_after_a_crash_anywhere() {
    for scheme in schemes() {
        let (rig, store) = open(None, scheme);
        let table = store.table("old").unwrap();
        let stop = AtomicBool::new(false);
        let among = if options(scheme).log == LogMedium::Disk { 6000 } else { 60_000 };
        rig.crash(30, among, 5);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        write(&store, 50).unwrap();
                    }
                });
            }
            let mut random = fastrand::Rng::with_seed(3);
            for value in 1..=6_u8 {
                let mut tx = store.begin();
                for (key, value) in rows(value) {
                    let savepoint = tx.savepoint();
                    tx.put(&table, &key, &value).unwrap();
                    if random.bool() {
                        tx.delete(&table, &key).unwrap();
                        tx.rollback_to(savepoint).unwrap();
                        tx.put(&table, &key, &value).unwrap();
                    }
                    write(&store, 60).unwrap();
                }
                tx.commit().unwrap();
                rig.acknowledged.store(value.into(), Ordering::SeqCst);
            }
            stop.store(true, Ordering::SeqCst);
        });
        assert_eq!(old(&store), rows(6));
        let crashes = rig.crashes();
        drop((table, store));
        assert!(crashes.len() > 10, "{scheme:?}: {}", crashes.len());
        for crash in crashes {
            let (_, store) = open(Some(crash.images), scheme);
            let found = old(&store);
            let value = found.first().map_or(0, |(_, value)| value[0]);
            let is_whole = found == if value == 0 { Vec::new() } else { rows(value) };
            let may_be = crash.acknowledged..=crash.acknowledged + 1;
            assert!(is_whole && may_be.contains(&value.into()), "{scheme:?}, step {}: {value}", crash.step);
        }
    }
}

/// A table is durable when the call that makes it returns, even if commits do not wait for durability.
#[test]
fn a_table_is_durable_on_return_also_where_commits_are_not() {
    for scheme in schemes() {
        let rig = Rig::new(None);
        let eventual = duralite_store::Durability::Eventual;
        let options = small(scheme).durability(eventual);
        let store = Store::open_on(OnRig(Arc::clone(&rig)), options).unwrap();
        for n in 0..5 {
            store.table(&format!("t{n}")).unwrap();
            // Lets the power fail now, which may lose writes that were not flushed.
            rig.crash(1, 1, n);
            rig.idle_step();
            let crash = rig.crashes().pop().unwrap();
            let (_, after) = open(Some(crash.images), scheme);
            assert_eq!(after.tables().unwrap().len() as u64, n + 1, "{scheme:?}");
        }
    }
}
