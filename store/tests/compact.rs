//! Compaction returns space to the file system, while transactions read and write, and when crashes interrupt it.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use common::crash::{OnRig, Rig};
use common::{options, schemes, value};
use duralite_store::{Options, Scheme, Store, Table};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn smallest(scheme: Scheme) -> Options {
    let cache_bytes = Options::smallest_cache_bytes(4096);
    options(scheme).log_bytes(4 << 20).cache_bytes(cache_bytes).page_bytes(4096)
}

/// Puts rows of various lengths, and then deletes most of them.
fn fill(store: &Store, table: &Table, seed: u64) -> Rows {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut model = Rows::new();
    for _ in 0..30 {
        let rows: Vec<_> = (0..60)
            .map(|_| {
                let n = random.u32(..);
                let len = if n.is_multiple_of(40) { 15_000 } else { random.usize(1..400) };
                (n.to_be_bytes().to_vec(), value(n, len))
            })
            .collect();
        store.run(|tx| tx.put_all(table, rows.clone())).unwrap();
        model.extend(rows);
    }
    let gone: Vec<_> = model.keys().filter(|key| key[0] >= 32 || key[1] < 16).cloned().collect();
    for gone in gone.chunks(100) {
        store.run(|tx| gone.iter().try_for_each(|key| tx.delete(table, key).map(|_| ()))).unwrap();
    }
    model.retain(|key, _| key[0] < 32 && key[1] >= 16);
    model
}

fn rows(store: &Store, table: &Table) -> Rows {
    store.begin().scan(table, ..).map(Result::unwrap).collect()
}

#[test]
fn free_space_goes_back_to_the_file_system() {
    for scheme in schemes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let store = Store::open(&path, smallest(scheme)).unwrap();
        let table = store.table("t").unwrap();
        let model = fill(&store, &table, 1);
        let before = std::fs::metadata(path.join("pages")).unwrap().len();
        let compacted = store.compact().unwrap();
        let after = std::fs::metadata(path.join("pages")).unwrap().len();
        assert_eq!((compacted.bytes_before, compacted.bytes_after), (before, after));
        let pages = store.verify().unwrap().pages;
        // The file has slightly more pages than are in use: its head, and free pages that an undo may need.
        assert!(after < before / 2 && after / 4096 < pages + 150, "{scheme:?}: {pages} pages, {compacted:?}");
        assert!(compacted.pages_moved > 0, "{scheme:?}: {compacted:?}");
        assert_eq!(rows(&store, &table), model, "{scheme:?}");
        store.run(|tx| tx.put(&table, b"more", &vec![1; 500_000])).unwrap();
        store.verify().unwrap();
        drop((table, store));
        let store = Store::open(&path, smallest(scheme)).unwrap();
        store.verify().unwrap();
        let table = store.table("t").unwrap();
        assert_eq!(rows(&store, &table).len(), model.len() + 1);
    }
}

#[test]
fn transactions_go_on_while_space_goes_back() {
    for scheme in [Scheme::Auto, Scheme::FlushOnCommit] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("s"), smallest(scheme)).unwrap();
        let table = store.table("t").unwrap();
        let model = fill(&store, &table, 2);
        let own = store.table("own").unwrap();
        let is_over = AtomicBool::new(false);
        let own_rows = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2_u8)
                .map(|thread| {
                    let (store, own, is_over) = (&store, &own, &is_over);
                    scope.spawn(move || {
                        let mut random = fastrand::Rng::with_seed(u64::from(thread));
                        let mut rows = Rows::new();
                        while !is_over.load(Ordering::SeqCst) {
                            let key = vec![thread, random.u8(0..200)];
                            let new = value(random.u32(..), random.usize(1..900));
                            // Between the read and the change, compaction may move the row's leaf.
                            let old = store
                                .run(|tx| {
                                    let old = tx.get_for_update(own, &key)?;
                                    std::thread::yield_now();
                                    if new.len() < 200 {
                                        tx.delete(own, &key)?;
                                    } else {
                                        tx.put(own, &key, &new)?;
                                    }
                                    Ok::<_, duralite_store::Error>(old)
                                })
                                .unwrap();
                            let before =
                                if new.len() < 200 { rows.remove(&key) } else { rows.insert(key, new) };
                            assert_eq!(old, before);
                        }
                        rows
                    })
                })
                .collect();
            let reader = scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    assert_eq!(rows(&store, &table), model);
                }
            });
            let old = store.snapshot();
            let (store, table, model, is_over) = (&store, &table, &model, &is_over);
            let shown = scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    for snapshot in [&old, &store.snapshot()] {
                        let rows: Rows = snapshot.scan(table, ..).map(Result::unwrap).collect();
                        assert_eq!(&rows, model);
                    }
                }
            });
            for _ in 0..5 {
                store.compact().unwrap();
            }
            is_over.store(true, Ordering::SeqCst);
            reader.join().unwrap();
            shown.join().unwrap();
            writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect::<Rows>()
        });
        assert_eq!(rows(&store, &own), own_rows, "{scheme:?}");
        assert_eq!(rows(&store, &table), model, "{scheme:?}");
        store.verify().unwrap();
    }
}

#[test]
fn inv52_a_crash_while_space_goes_back_leaves_every_row() {
    for (seed, scheme) in (1..).zip(schemes()) {
        let rig = Rig::new(None);
        let store = Store::open_on(OnRig(rig.clone()), smallest(scheme)).unwrap();
        let table = store.table("t").unwrap();
        let model = fill(&store, &table, seed);
        let among = match scheme {
            Scheme::FlushOnInsert | Scheme::FlushOnCommit => 2000,
            Scheme::Distributed => 250,
            _ => 60,
        };
        rig.crash(24, among, seed);
        let compacted = store.compact().unwrap();
        assert!(compacted.bytes_after < compacted.bytes_before, "{compacted:?}");
        let now = rows(&store, &table);
        assert_eq!(now, model, "{scheme:?}");
        drop((table, store));
        let crashes = rig.crashes();
        assert!(crashes.len() > 5, "{scheme:?}: {} crashes in {} steps", crashes.len(), rig.steps());
        for crash in crashes {
            let step = crash.step;
            let store = Store::open_on(OnRig(Rig::new(Some(crash.images))), smallest(scheme))
                .unwrap_or_else(|error| panic!("{scheme:?}, step {step}: {error}"));
            store.verify().unwrap_or_else(|error| panic!("{scheme:?}, step {step}: {error}"));
            let table = store.table("t").unwrap();
            assert_eq!(rows(&store, &table), model, "{scheme:?}, step {step}");
            store.compact().unwrap();
            store.verify().unwrap_or_else(|error| panic!("{scheme:?}, step {step}: {error}"));
        }
    }
}
