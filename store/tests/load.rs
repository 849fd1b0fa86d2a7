//! Bulk loads of sorted rows. Either all rows are in the table afterwards, or none, and other transactions are not
//! disturbed.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::crash::{OnRig, Rig};
use common::{SetAtEnd, options, schemes, value};
use duralite_crashmodel::BlockOp;
use duralite_medium::MediumError;
use duralite_medium::block::Block;
use duralite_store::{Error, Options, Scheme, Store, Table};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn smallest(scheme: Scheme) -> Options {
    let cache_bytes = Options::smallest_cache_bytes(4096);
    options(scheme).log_bytes(4 << 20).cache_bytes(cache_bytes).page_bytes(4096)
}

/// Makes rows of various lengths. Some values are long; some rows have the longest keys and no value.
fn some_rows(seed: u64, count: u32) -> Rows {
    let mut random = fastrand::Rng::with_seed(seed);
    let row = |n: u32| match random.u8(0..60) {
        0 => (n.to_be_bytes().to_vec(), value(n, random.usize(1000..30_000))),
        1 => ([n.to_be_bytes().to_vec(), vec![7; 1020]].concat(), vec![]),
        2 => ([n.to_be_bytes().to_vec(), vec![9; random.usize(0..1000)]].concat(), value(n, 40)),
        _ => (n.to_be_bytes().to_vec(), value(n, random.usize(0..300))),
    };
    (0..count).map(|n| n * 3).map(row).collect()
}

fn rows(store: &Store, table: &Table) -> Rows {
    store.begin().scan(table, ..).map(Result::unwrap).collect()
}

/// Fills another table, and deletes some of its rows. This frees pages in several parts of the page file. Log objects
/// still refer to these pages.
fn use_pages(store: &Store, seed: u64) -> Rows {
    let other = store.table("other").unwrap();
    let rows = some_rows(seed, 400);
    store.run(|tx| tx.put_all(&other, &rows)).unwrap();
    let gone: Vec<_> = rows.keys().skip(20).take(300).collect();
    store.run(|tx| gone.iter().try_for_each(|key| tx.delete(&other, key).map(|_| ()))).unwrap();
    rows.iter()
        .filter(|row| !gone.contains(&row.0))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

#[test]
fn a_loaded_table_is_as_if_its_rows_had_been_put() {
    for scheme in schemes() {
        for (seed, page_bytes, count) in
            [(1, 4096, 0), (2, 4096, 1), (3, 4096, 40), (4, 4096, 3000), (5, 8192, 2000)]
        {
            let dir = tempfile::tempdir().unwrap();
            let cache_bytes = Options::smallest_cache_bytes(page_bytes);
            let options = smallest(scheme).page_bytes(page_bytes).cache_bytes(cache_bytes);
            let store = Store::open(dir.path().join("s"), options.clone()).unwrap();
            let other = use_pages(&store, seed);
            let table = store.table("t").unwrap();
            let mut model = some_rows(seed, count);
            assert_eq!(store.load(&table, &model).unwrap(), model.len() as u64);
            assert_eq!(rows(&store, &table), model, "{scheme:?}, seed {seed}");
            assert_eq!(store.verify().unwrap().rows, (model.len() + other.len()) as u64);
            // A loaded table must be usable like any other.
            let mut random = fastrand::Rng::with_seed(seed);
            for _ in 0..300 {
                let key = random.u32(0..10_000).to_be_bytes().to_vec();
                if random.bool() {
                    let new = value(random.u32(..), random.usize(0..900));
                    store.run(|tx| tx.put(&table, &key, &new)).unwrap();
                    model.insert(key, new);
                } else {
                    assert_eq!(
                        store.run(|tx| tx.delete(&table, &key)).unwrap(),
                        model.remove(&key).is_some()
                    );
                }
            }
            drop((table, store));
            let store = Store::open(dir.path().join("s"), options).unwrap();
            store.verify().unwrap();
            assert_eq!(rows(&store, &store.table("t").unwrap()), model, "{scheme:?}, seed {seed}");
            assert_eq!(rows(&store, &store.table("other").unwrap()), other, "{scheme:?}, seed {seed}");
        }
    }
}

#[test]
fn each_row_is_written_once() {
    let rig = Rig::new(None);
    let store = Store::open_on(OnRig(rig.clone()), options(Scheme::Auto)).unwrap();
    let table = store.table("t").unwrap();
    store.checkpoint().unwrap();
    let before = (rig.pages.counters(), rig.blocks.counters());
    let all = (0..100_000_u32).map(|n| (n.to_be_bytes(), value(n, 100)));
    let bytes = 100_000 * 104;
    store.load(&table, all).unwrap();
    store.checkpoint().unwrap();
    let (pages, log) = (rig.pages.counters(), rig.blocks.counters());
    let written = pages.written_bytes - before.0.written_bytes;
    let zeros = pages.preallocated_bytes - before.0.preallocated_bytes;
    let logged = log.written_bytes - before.1.written_bytes;
    assert!(
        written < bytes * 5 / 4 && zeros < bytes / 10 && logged < bytes / 10,
        "{written} {zeros} {logged}"
    );
    // The load fills pages completely, so the pages take hardly more space than the rows.
    assert!(store.verify().unwrap().pages < bytes * 5 / 4 / 8192);
}

#[test]
fn what_cannot_be_loaded_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let options = smallest(Scheme::Auto).lock_timeout(Duration::from_millis(30));
    let store = Store::open(dir.path().join("s"), options).unwrap();
    let table = store.table("t").unwrap();
    let pages = store.verify().unwrap().pages;
    let mut load = store.bulk_load(&table).unwrap();
    load.put(b"b", b"1").unwrap();
    for key in [&b"b"[..], b"a", b""] {
        assert!(matches!(load.put(key, b"2"), Err(Error::OutOfOrder)));
    }
    assert!(matches!(load.put(&[7; 1025], b"2"), Err(Error::KeyTooLong { len: 1025 })));
    // The load can continue after these errors. Other transactions have to wait for the table.
    load.put(b"c", &[1; 100_000]).unwrap();
    assert!(matches!(store.begin().get(&table, b"b"), Err(Error::Timeout)));
    assert!(matches!(store.bulk_load(&table), Err(Error::Timeout)));
    drop(load);
    assert_eq!(rows(&store, &table), Rows::new());
    assert_eq!(store.verify().unwrap().pages, pages, "nothing is lost");
    store.run(|tx| tx.put(&table, b"k", b"v")).unwrap();
    let refused = store.bulk_load(&table);
    assert!(matches!(&refused, Err(Error::NotEmpty { name }) if name == "t"), "{refused:?}");
    store.run(|tx| tx.delete(&table, b"k")).unwrap();
    // A table that has lost all of its rows can be loaded again.
    let many = some_rows(3, 2000);
    store.run(|tx| tx.put_all(&table, many.iter().take(500))).unwrap();
    store.run(|tx| many.keys().take(500).try_for_each(|key| tx.delete(&table, key).map(|_| ()))).unwrap();
    store.load(&table, &many).unwrap();
    assert_eq!(rows(&store, &table), many);
    store.verify().unwrap();
    store.drop_table("t").unwrap();
    // The store still frees the pages of the dropped table, and locks it meanwhile.
    let refused = loop {
        match store.bulk_load(&table) {
            Err(Error::Timeout) => {}
            refused => break refused,
        }
    };
    assert!(matches!(&refused, Err(Error::NoTable { .. })), "{refused:?}");
    let other = Store::open(dir.path().join("o"), smallest(Scheme::Auto)).unwrap();
    assert!(matches!(store.bulk_load(&other.table("t").unwrap()), Err(Error::Foreign { .. })));
}

/// Checks that the table has all rows or none, and that all other rows are unchanged. Then uses the store. This also
/// uses pages that the crash tore.
fn check(rig: Arc<Rig>, scheme: Scheme, (model, other): (&Rows, &Rows), is_acknowledged: bool, what: &str) {
    let store =
        Store::open_on(OnRig(rig), smallest(scheme)).unwrap_or_else(|error| panic!("{what}: {error}"));
    let failed = |error: Error| -> ! { panic!("{what}: {error}") };
    store.verify().unwrap_or_else(|error| failed(error));
    let table = store.table("t").unwrap();
    let found = rows(&store, &table);
    assert_eq!(&rows(&store, &store.table("other").unwrap()), other, "{what}");
    if found.is_empty() && !is_acknowledged {
        let dir = tempfile::tempdir().unwrap();
        store.backup(dir.path().join("backup")).unwrap_or_else(|error| failed(error));
        store.compact().unwrap_or_else(|error| failed(error));
        store.load(&table, model).unwrap_or_else(|error| failed(error));
        store.verify().unwrap_or_else(|error| failed(error));
        assert_eq!(&rows(&store, &table), model, "{what}, loaded again");
    } else {
        assert_eq!(&found, model, "{what}");
    }
}

#[test]
fn inv53_a_crash_at_any_step_leaves_all_rows_or_none() {
    // Each seed tears different pages.
    for (seed, scheme) in (1..).zip(schemes().into_iter().cycle().take(12)) {
        let rig = Rig::new(None);
        let store = Store::open_on(OnRig(rig.clone()), smallest(scheme)).unwrap();
        let other = use_pages(&store, seed);
        let table = store.table("t").unwrap();
        let model = some_rows(seed, 3500);
        let has_many = matches!(scheme, Scheme::FlushOnInsert | Scheme::FlushOnCommit);
        rig.crash(90, if has_many { 150 } else { 30 }, seed);
        store.load(&table, &model).unwrap();
        rig.acknowledged.store(1, Ordering::SeqCst);
        let steps = rig.steps();
        store.run(|tx| tx.put(&table, b"more", b"")).unwrap();
        store.run(|tx| tx.delete(&table, b"more")).unwrap();
        store.checkpoint().unwrap();
        drop((table, store));
        let crashes = rig.crashes();
        assert!(crashes.iter().filter(|crash| crash.step < steps).count() > 6, "{scheme:?}: {steps} steps");
        for crash in crashes {
            let what = format!("{scheme:?}, step {} of {steps}", crash.step);
            let is_after = crash.acknowledged > 0;
            let again = Rig::new(Some(crash.images));
            // The row that was put after the load may have survived; delete it.
            if is_after {
                let store = Store::open_on(OnRig(again.clone()), smallest(scheme)).unwrap();
                store.run(|tx| tx.delete(&store.table("t")?, b"more").map(|_| ())).unwrap();
                drop(store);
            }
            check(again, scheme, (&model, &other), is_after, &what);
        }
    }
}

fn some_error() -> MediumError {
    MediumError::Unsupported { what: "this call, which was made to fail," }
}

#[test]
fn inv53_a_write_or_flush_that_fails_leaves_all_rows_or_none() {
    for operation in [BlockOp::Write, BlockOp::Flush, BlockOp::Preallocate] {
        let mut noticed = 0;
        for nth in 0..12 {
            let rig = Rig::new(None);
            let store = Store::open_on(OnRig(rig.clone()), smallest(Scheme::Auto)).unwrap();
            let other = use_pages(&store, nth);
            let table = store.table("t").unwrap();
            store.checkpoint().unwrap();
            let model = some_rows(nth, 5000);
            rig.pages.fail(operation, nth, some_error());
            let loaded = store.load(&table, &model);
            noticed += u32::from(loaded.is_err());
            let what = format!("{operation:?} {nth}: {loaded:?}");
            check(Rig::new(Some(rig.death())), Scheme::Auto, (&model, &other), loaded.is_ok(), &what);
        }
        assert!(noticed > 0, "{operation:?}: {noticed}");
    }
}

#[test]
fn a_disk_that_runs_full_in_a_load_loses_nothing() {
    let rig = Rig::new(None);
    let store = Store::open_on(OnRig(rig.clone()), smallest(Scheme::Auto)).unwrap();
    let other = use_pages(&store, 1);
    let table = store.table("t").unwrap();
    let model = some_rows(1, 4000);
    let pages = store.verify().unwrap().pages;
    rig.pages.set_limit(rig.pages.len() + (1 << 20));
    let full = store.load(&table, &model);
    assert!(matches!(full, Err(Error::Full { .. })), "{full:?}");
    assert_eq!(rows(&store, &table), Rows::new());
    assert_eq!(store.verify().unwrap().pages, pages);
    // The failed load has freed its pages, so other transactions can use them.
    store.run(|tx| tx.put(&table, b"k", &[1; 100_000])).unwrap();
    store.run(|tx| tx.delete(&table, b"k")).unwrap();
    rig.pages.set_limit(u64::MAX);
    store.load(&table, &model).unwrap();
    assert_eq!(rows(&store, &table), model);
    store.verify().unwrap();
    drop((table, store));
    check(Rig::new(Some(rig.death())), Scheme::Auto, (&model, &other), true, "after a full disk");
}

#[test]
fn older_snapshots_see_no_rows_of_a_load() {
    for scheme in schemes() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("s"), smallest(scheme)).unwrap();
        let table = store.table("t").unwrap();
        let model = some_rows(1, 500);
        let key = model.keys().nth(77).unwrap().clone();
        let old = store.snapshot();
        let mut scan = old.scan(&table, ..);
        let mut load = store.bulk_load(&table).unwrap();
        model.iter().for_each(|(key, value)| load.put(key, value).unwrap());
        let during = store.snapshot();
        assert_eq!(during.scan(&table, ..).count(), 0);
        load.finish().unwrap();
        let new = store.snapshot();
        store.run(|tx| tx.put(&table, &key, b"changed")).unwrap();
        store.run(|tx| tx.put(&table, b"zzz", b"added")).unwrap();
        // The snapshots must not show the rows through a new handle of the table either.
        drop(table);
        store.rename_table("t", "u").unwrap();
        let table = store.table("u").unwrap();
        for older in [&old, &during] {
            assert_eq!(older.get(&table, &key).unwrap(), None, "{scheme:?}");
            for key in model.keys() {
                assert!(older.get_stream(&table, key).unwrap().is_none(), "{scheme:?}");
            }
            assert_eq!(older.approximate_len(&table).unwrap(), 0, "{scheme:?}");
            assert_eq!(older.scan(&table, ..).count(), 0, "{scheme:?}");
            assert_eq!(older.scan(&table, ..).rev().count(), 0, "{scheme:?}");
        }
        assert!(scan.next().is_none());
        assert_eq!(new.scan(&table, ..).map(Result::unwrap).collect::<Rows>(), model, "{scheme:?}");
        assert_eq!(store.snapshot().get(&table, &key).unwrap(), Some(b"changed".to_vec()));
        // A snapshot still shows rows of this table. Loaded rows would mix with them, so the load is refused.
        let keys: Vec<_> = rows(&store, &table).into_keys().collect();
        store.run(|tx| keys.iter().try_for_each(|key| tx.delete(&table, key).map(|_| ()))).unwrap();
        assert!(matches!(store.bulk_load(&table), Err(Error::NotEmpty { .. })));
        assert_eq!(new.scan(&table, ..).count(), model.len());
        drop((old, during, new, scan));
        store.load(&table, &model).unwrap();
        assert_eq!(rows(&store, &table), model);
        store.verify().unwrap();
    }
}

#[test]
fn transactions_on_other_tables_go_on_during_a_load() {
    for scheme in schemes() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("s"), smallest(scheme)).unwrap();
        let model = some_rows(9, 3000);
        let is_over = Arc::new(AtomicBool::new(false));
        let others: Vec<(Table, Rows)> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..3_u64)
                .map(|thread| {
                    let (store, is_over) = (&store, &is_over);
                    scope.spawn(move || {
                        let own = store.table(&format!("own {thread}")).unwrap();
                        let mut random = fastrand::Rng::with_seed(thread);
                        let mut rows = Rows::new();
                        while !is_over.load(Ordering::SeqCst) {
                            let key = vec![random.u8(..)];
                            let len = if random.u8(0..9) == 0 { 9000 } else { random.usize(0..600) };
                            let new = value(random.u32(..), len);
                            if random.u8(0..3) == 0 {
                                store.run(|tx| tx.delete(&own, &key).map(|_| ())).unwrap();
                                rows.remove(&key);
                            } else {
                                store.run(|tx| tx.put(&own, &key, &new)).unwrap();
                                rows.insert(key, new);
                            }
                        }
                        (own, rows)
                    })
                })
                .collect();
            let at_end = SetAtEnd(is_over.clone());
            for nth in 0..4 {
                let table = store.table(&format!("t {nth}")).unwrap();
                store.load(&table, &model).unwrap();
                assert_eq!(rows(&store, &table), model, "{scheme:?}");
                if nth % 2 == 0 {
                    store.drop_table(&format!("t {nth}")).unwrap();
                } else {
                    store.compact().unwrap();
                }
            }
            drop(at_end);
            workers.into_iter().map(|worker| worker.join().unwrap()).collect()
        });
        for (own, model) in others {
            assert_eq!(rows(&store, &own), model, "{scheme:?}");
        }
        store.verify().unwrap();
    }
}

/// The cache may still have old contents of free pages. A reader must get what the load wrote to these pages.
#[test]
fn inv53_pages_that_others_had_are_read_anew() {
    for scheme in schemes() {
        let dir = tempfile::tempdir().unwrap();
        // This cache is large enough for all pages.
        let store = Store::open(dir.path().join("s"), options(scheme).page_bytes(4096)).unwrap();
        let model = some_rows(5, 2500);
        let old = store.table("old").unwrap();
        store.load(&old, some_rows(6, 2500)).unwrap();
        assert_eq!(rows(&store, &old).len(), 2500);
        store.drop_table("old").unwrap();
        while store.verify().unwrap().dropped > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        // A load reuses no page to which an object in the log refers. After this checkpoint, the log has no such
        // objects.
        store.checkpoint().unwrap();
        let pages = store.metrics().pages;
        let table = store.table("t").unwrap();
        store.load(&table, &model).unwrap();
        assert_eq!(rows(&store, &table), model, "{scheme:?}");
        store.verify().unwrap();
        assert!(store.metrics().pages < pages + pages / 2, "{scheme:?}: they are used again");
    }
}
