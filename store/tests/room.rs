//! Logs and disks that are nearly full. The store must be able to finish or undo every transaction that it has
//! admitted.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::crash::{OnRig, Rig};
use common::{options, schemes, value};
use duralite_store::{Error, Options, Scheme, Store, Table, Transaction};

fn small(scheme: Scheme) -> Options {
    options(scheme).log_bytes(4 << 20).cache_bytes(4 << 20).page_bytes(4096)
}

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

/// Changes rows in transactions that roll back, commit, or end early because there is no room.
fn fill_and_roll_back(store: &Store, table: &Table, thread: u64, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed * 64 + thread);
    for _ in 0..6 {
        let mut tx = store.begin();
        for _ in 0..random.u64(100..700) {
            let len = random.usize(100..900);
            match tx.put(table, &key(thread << 32 | random.u64(0..500)), &vec![7; len]) {
                Ok(()) => {}
                Err(Error::Full { .. }) => break,
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
        if random.bool() {
            tx.rollback().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        } else {
            match tx.commit() {
                Ok(()) | Err(Error::Finished) => {}
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
    }
}

#[test]
fn inv38_a_small_log_has_the_room_that_was_promised() {
    for scheme in schemes() {
        for seed in 0..2 {
            let rig = Rig::new(None);
            let options = small(scheme).lock_timeout(Duration::from_millis(20));
            let store = Store::open_on(OnRig(Arc::clone(&rig)), options).unwrap();
            let table = store.table("t").unwrap();
            std::thread::scope(|scope| {
                for thread in 0..6 {
                    let (store, table) = (&store, &table);
                    scope.spawn(move || fill_and_roll_back(store, table, thread, seed));
                }
            });
            store.verify().unwrap_or_else(|error| panic!("{scheme:?}, seed {seed}: {error}"));
        }
    }
}

/// To make the log durable, the store fills up a whole block of the log. But a transaction reserves room only for the
/// block of its own commit. If a snapshot made uncommitted changes durable, many snapshots could fill the log, and a
/// rollback would find no room.
#[test]
fn inv38_a_snapshot_writes_nothing_that_has_not_committed() {
    for scheme in [Scheme::Auto, Scheme::NvDisk, Scheme::NvDiskDecentralized] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("s"), options(scheme)).unwrap();
        let table = store.table("t").unwrap();
        store.run(|tx| tx.put(&table, b"k", b"old")).unwrap();
        let mut tx = store.begin();
        tx.put(&table, b"k", b"new").unwrap();
        let writes = store.metrics().log_writes;
        assert_eq!(store.snapshot().get(&table, b"k").unwrap().unwrap(), b"old");
        assert_eq!(store.metrics().log_writes, writes, "{scheme:?}");
        let ticket = tx.commit_async().unwrap();
        assert_eq!(store.snapshot().get(&table, b"k").unwrap().unwrap(), b"new");
        assert!(ticket.is_durable(), "{scheme:?}");
    }
}

/// Returns a store with a small log, and a table with a row that has very many pages. The log has no room for the
/// objects that would free these pages.
fn with_long_row(dir: &Path) -> (Store, Table) {
    let options = small(Scheme::Auto).lock_timeout(Duration::from_millis(20));
    let large = options.clone().log_bytes(64 << 20);
    let store = Store::open(dir, large).unwrap();
    store
        .run(|tx| tx.put_stream(&store.table("t")?, b"long", &mut std::io::repeat(1).take(80 << 20)))
        .unwrap();
    drop(store);
    let store = Store::open(dir, options).unwrap();
    let table = store.table("t").unwrap();
    (store, table)
}

#[test]
fn inv38_room_for_giving_back_a_long_value_is_there_before_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (store, table) = with_long_row(&path);
    let gone = store.run(|tx| tx.delete(&table, b"long"));
    let Err(Error::Full { what }) = gone else { panic!("{gone:?}") };
    store.run(|tx| tx.put(&table, b"after", b"1")).unwrap();
    store.verify().unwrap();
    drop(store);
    // With the log size that the error names, the row can be deleted.
    let number = what.split(' ').filter_map(|word| word.parse::<u64>().ok()).next_back().unwrap();
    let store = Store::open(&path, small(Scheme::Auto).log_bytes(number)).unwrap();
    let table = store.table("t").unwrap();
    assert!(store.run(|tx| tx.delete(&table, b"long")).unwrap(), "{what}");
    assert!(store.verify().unwrap().pages < 20);
}

fn with_large_log() -> Options {
    small(Scheme::Auto).log_bytes(64 << 20)
}

/// Makes a store with full leaves, on a disk that has room for only a few more pages.
fn on_a_small_disk() -> (Arc<Rig>, Store, Table) {
    let rig = Rig::new(None);
    let store = Store::open_on(OnRig(Arc::clone(&rig)), with_large_log()).unwrap();
    let table = store.table("t").unwrap();
    for n in 0..200 {
        store.run(|tx| tx.put(&table, &key(n * 100), &[1; 900])).unwrap();
    }
    rig.pages.set_limit(2 << 20);
    (rig, store, table)
}

fn fill_disk(store: &Store) {
    let filler = store.table("filler").unwrap();
    for n in 0.. {
        match store.run(|tx| tx.put(&filler, &key(n), &[3; 900])) {
            Ok(()) => {}
            Err(Error::Full { what }) if what.contains("disk") => return,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn inv41_a_full_disk_does_not_keep_a_transaction_from_being_rolled_back() {
    for is_delete in [false, true] {
        let (rig, store, table) = on_a_small_disk();
        let mut tx = store.begin();
        for n in 20..60 {
            if is_delete {
                tx.delete(&table, &key(n * 100)).unwrap();
            } else {
                tx.put(&table, &key(n * 100), b"short").unwrap();
            }
        }
        // Other rows fill the space that the changes have freed, and then other data fills the disk.
        for n in 20..60 {
            store.run(|tx| tx.put(&table, &key(n * 100 + 1), &[2; 880])).unwrap();
        }
        fill_disk(&store);
        tx.rollback().unwrap_or_else(|error| panic!("{is_delete}: {error}"));
        for n in 0..200 {
            assert_eq!(store.run(|tx| tx.get(&table, &key(n * 100))).unwrap().unwrap(), [1; 900]);
        }
        store.verify().unwrap();
        drop((table, store));
        // Recovery after the death of the process must succeed too.
        let again = Store::open_on(OnRig(Rig::new(Some(rig.death()))), with_large_log()).unwrap();
        again.verify().unwrap();
    }
}

/// Recovery, too, must be able to undo a transaction on a full disk.
#[test]
fn inv41_nor_recovery_from_taking_it_back() {
    let (rig, store, table) = on_a_small_disk();
    let mut tx = store.begin();
    for n in 20..60 {
        tx.put(&table, &key(n * 100), b"short").unwrap();
    }
    for n in 20..60 {
        store.run(|tx| tx.put(&table, &key(n * 100 + 1), &[2; 880])).unwrap();
    }
    fill_disk(&store);
    store.run(|tx| tx.delete(&table, &key(0))).unwrap();
    let again = Rig::new(Some(rig.death()));
    again.pages.set_limit(2 << 20);
    let again = Store::open_on(OnRig(again), with_large_log()).unwrap();
    let table = again.table("t").unwrap();
    assert_eq!(again.run(|tx| tx.get(&table, &key(3000))).unwrap().unwrap(), [1; 900]);
    again.verify().unwrap();
}

/// Steps that have been undone must not keep room reserved in the log or in the page file, even if a transaction undoes
/// steps many times.
#[test]
fn inv38_steps_that_were_taken_back_to_a_savepoint_keep_no_room() {
    for scheme in schemes() {
        let dir = tempfile::tempdir().unwrap();
        let options = options(scheme).log_bytes(4 << 20);
        let store = Store::open(dir.path().join("s"), options).unwrap();
        let table = store.table("t").unwrap();
        let put = |tx: &mut Transaction, round: u32| {
            (0..100_u32).try_for_each(|n| tx.put(&table, &n.to_be_bytes(), &value(round, 600)))
        };
        let mut tx = store.begin();
        let empty = tx.savepoint();
        put(&mut tx, 1).unwrap();
        let savepoint = tx.savepoint();
        for round in 2..100 {
            put(&mut tx, round).unwrap_or_else(|error| panic!("{scheme:?}, round {round}: {error}"));
            tx.rollback_to(savepoint).unwrap();
        }
        // The steps before the savepoint must still be undoable.
        tx.rollback_to(empty).unwrap();
        assert_eq!(tx.first(&table).unwrap(), None);
        put(&mut tx, 100).unwrap();
        tx.commit().unwrap();
        assert_eq!(store.begin().get(&table, &7_u32.to_be_bytes()).unwrap(), Some(value(100, 600)));
        store.verify().unwrap();
    }
}
