//! The store finds rows through copies of inner pages. Meanwhile trees change, and their pages are evicted from a small
//! cache and read again.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::{options, value};
use duralite_store::{Error, Options, Scheme, Store, Table};

/// The number of keys. Every fourth key always has a row.
const KEYS: u32 = 4000;
const ROUNDS: u32 = 6;

fn key(n: u32) -> Vec<u8> {
    // The keys are long, so that few cells fit into an inner page, and there are more inner pages.
    format!("{n:08}{}", "k".repeat(200)).into_bytes()
}

fn is_there_always(n: u32) -> bool {
    n.is_multiple_of(4)
}

/// Puts rows under some keys of a range, and then deletes these rows. Leaves out the keys that always have a row. The
/// puts split pages, and the deletions empty and free pages.
fn churn(store: &Store, table: &Table, first: u32, round: u32) {
    let keys: Vec<u32> = (first..first + KEYS / 4).filter(|n| !is_there_always(*n)).collect();
    for some in keys.chunks(20) {
        store.run(|tx| some.iter().try_for_each(|n| tx.put(table, &key(*n), &value(round, 300)))).unwrap();
    }
    for some in keys.chunks(20) {
        store.run(|tx| some.iter().try_for_each(|n| tx.delete(table, &key(*n)).map(|_| ()))).unwrap();
    }
}

fn look(store: &Store, table: &Table, random: &mut fastrand::Rng) {
    let n = random.u32(0..KEYS / 4) * 4;
    let found = store.run(|tx| tx.get(table, &key(n))).unwrap();
    assert_eq!(found, Some(value(n, 60)), "row {n}");
    let (from, to) = (key(n), key(n + 40));
    let there: Result<usize, Error> = store.run(|tx| {
        let rows: Result<Vec<_>, Error> =
            tx.scan(table, &from[..]..&to[..]).map(|row| row.map(|(key, _)| key)).collect();
        Ok(rows?.into_iter().filter(|found| (n..n + 40).step_by(4).any(|n| key(n) == *found)).count())
    });
    assert_eq!(there.unwrap(), (n..(n + 40).min(KEYS)).step_by(4).count(), "rows from {n} on");
}

#[test]
fn inv43_rows_are_found_while_pages_above_them_change_and_move() {
    for scheme in [Scheme::FlushOnCommit, Scheme::NvDisk] {
        let dir = tempfile::tempdir().unwrap();
        // The smallest cache has to evict inner pages too.
        let cache_bytes = Options::smallest_cache_bytes(4096);
        let small = options(scheme).page_bytes(4096).cache_bytes(cache_bytes);
        let store = Store::open(dir.path().join("store"), small).unwrap();
        let table = store.table("t").unwrap();
        for n in (0..KEYS).filter(|n| is_there_always(*n)) {
            store.run(|tx| tx.put(&table, &key(n), &value(n, 60))).unwrap();
        }
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|part| {
                    let (store, table) = (&store, &table);
                    scope.spawn(move || {
                        (0..ROUNDS).for_each(|round| churn(store, table, part * KEYS / 4, round))
                    })
                })
                .collect();
            for seed in 0..2 {
                let (store, table, is_over) = (&store, &table, &is_over);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed);
                    while !is_over.load(Ordering::Relaxed) {
                        look(store, table, &mut random);
                    }
                });
            }
            let ended: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            is_over.store(true, Ordering::Relaxed);
            assert!(ended.iter().all(Result::is_ok));
        });
        store.verify().unwrap();
        drop(store);
    }
}
