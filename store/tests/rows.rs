//! Rows, transactions and scans, compared with a map, with each scheme.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::collections::BTreeMap;
use std::ops::Bound;

use common::{options, schemes, value};
use duralite_store::{Error, Options, Store};

#[test]
fn rows_come_back_after_the_store_was_closed() {
    for scheme in schemes() {
        let dir = tempfile::tempdir().unwrap();
        {
            let store = Store::open(dir.path().join("s"), options(scheme)).unwrap();
            let table = store.table("t").unwrap();
            let mut tx = store.begin();
            for n in 0..2000_u32 {
                tx.put(&table, &n.to_be_bytes(), &value(n, 100)).unwrap();
            }
            tx.commit().unwrap();
            let mut lost = store.begin();
            lost.put(&table, b"lost", b"lost").unwrap();
        }
        let store = Store::open(dir.path().join("s"), options(scheme)).unwrap();
        let table = store.table("t").unwrap();
        let tx = store.begin();
        let rows: Vec<_> = tx.scan(&table, ..).map(Result::unwrap).collect();
        assert_eq!(rows.len(), 2000, "{scheme:?}");
        for (n, (key, found)) in (0_u32..).zip(rows) {
            assert_eq!((key.as_slice(), found), (&n.to_be_bytes()[..], value(n, 100)));
        }
    }
}

fn model_round(seed: u64, options: Options) {
    let mut random = fastrand::Rng::with_seed(seed);
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(dir.path().join("s"), options.clone()).unwrap();
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for _ in 0..60 {
        let table = store.table("t").unwrap();
        let mut tx = store.begin();
        let mut own = model.clone();
        let mut saved = None;
        for _ in 0..random.usize(1..60) {
            let key = key(&mut random);
            match random.u8(0..14) {
                0..=5 => {
                    let len = [10, 200, 1500, 5000, 40_000][random.usize(0..5)];
                    let value = value(random.u32(..), random.usize(0..len));
                    tx.put(&table, &key, &value).unwrap();
                    own.insert(key, value);
                }
                6 | 7 => assert_eq!(tx.delete(&table, &key).unwrap(), own.remove(&key).is_some()),
                8 => match tx.insert(&table, &key, b"new") {
                    Ok(()) => assert_eq!(own.insert(key, b"new".to_vec()), None),
                    Err(Error::Exists) => assert!(own.contains_key(&key)),
                    Err(error) => panic!("seed {seed}: {error}"),
                },
                9 => assert_eq!(tx.get(&table, &key).unwrap().as_ref(), own.get(&key)),
                10 => saved = Some((tx.savepoint(), own.clone())),
                11 => {
                    if let Some((savepoint, then)) = &saved {
                        tx.rollback_to(*savepoint).unwrap();
                        own.clone_from(then);
                    }
                }
                _ => compare_range(&mut tx, &table, &own, &mut random, seed),
            }
        }
        if random.bool() {
            tx.commit().unwrap();
            model = own;
        } else {
            drop(tx);
        }
        if random.u8(0..8) == 0 {
            store.checkpoint().unwrap();
        }
        if random.u8(0..10) == 0 {
            drop(store);
            store = Store::open(dir.path().join("s"), options.clone()).unwrap();
        }
    }
    let table = store.table("t").unwrap();
    let tx = store.begin();
    let rows: Vec<_> = tx.scan(&table, ..).map(Result::unwrap).collect();
    assert!(rows.into_iter().eq(model), "seed {seed}");
}

fn key(random: &mut fastrand::Rng) -> Vec<u8> {
    let n = random.u32(0..300);
    let mut key = format!("key{n:05}").into_bytes();
    // Some keys are long, so that some separators in inner pages are long too.
    key.resize(if n.is_multiple_of(7) { 1000 } else { 8 }, b'x');
    key
}

fn compare_range(
    tx: &mut duralite_store::Transaction,
    table: &duralite_store::Table,
    own: &BTreeMap<Vec<u8>, Vec<u8>>,
    random: &mut fastrand::Rng,
    seed: u64,
) {
    let (a, b) = (key(random), key(random));
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    let from = [Bound::Included(low.as_slice()), Bound::Excluded(low.as_slice()), Bound::Unbounded];
    let to = [Bound::Included(high.as_slice()), Bound::Excluded(high.as_slice()), Bound::Unbounded];
    let range = (from[random.usize(0..3)], to[random.usize(0..3)]);
    if low == high {
        return;
    }
    let expected: Vec<_> =
        own.range::<[u8], _>(range).map(|(key, value)| (key.clone(), value.clone())).collect();
    let forward: Vec<_> = tx.scan(table, range).map(Result::unwrap).collect();
    assert!(forward == expected, "seed {seed} forward");
    let mut backward: Vec<_> = tx.scan(table, range).rev().map(Result::unwrap).collect();
    backward.reverse();
    assert!(backward == expected, "seed {seed} backward");
    let mut scan = tx.scan(table, range);
    let (mut front, mut back) = (Vec::new(), Vec::new());
    loop {
        let is_front = random.bool();
        match if is_front { scan.next() } else { scan.next_back() } {
            Some(row) if is_front => front.push(row.unwrap()),
            Some(row) => back.push(row.unwrap()),
            None => break,
        }
    }
    front.extend(back.into_iter().rev());
    assert!(front == expected, "seed {seed} from both ends");
}

#[test]
fn a_store_is_a_map() {
    for (seed, scheme) in (1..).zip(schemes()) {
        for page_bytes in [4096, 8192, 32768] {
            let cache_bytes = Options::smallest_cache_bytes(page_bytes);
            let options = options(scheme).page_bytes(page_bytes).cache_bytes(cache_bytes);
            model_round(seed * 1000 + u64::from(page_bytes), options);
        }
    }
}

#[test]
fn a_log_that_was_opened_again_is_as_free_as_a_new_one() {
    for scheme in schemes() {
        let dir = tempfile::tempdir().unwrap();
        let mut free = Vec::new();
        for _ in 0..3 {
            let store = Store::open(dir.path().join("s"), options(scheme)).unwrap();
            free.push(store.metrics().log_free_bytes);
            let table = store.table("t").unwrap();
            // The transactions write so much that the log wraps around more than once.
            for n in 0..60_u32 {
                store.run(|tx| tx.put(&table, &(n % 7).to_be_bytes(), &value(n, 200_000))).unwrap();
            }
        }
        let about = free[0] / 10 * 9;
        assert!(free.iter().all(|free| *free >= about), "{scheme:?}: {free:?}");
    }
}

/// Between the read and the change of a row, other transactions either do nothing, or fill the row's leaf until it is
/// split.
#[test]
fn a_row_that_was_read_for_a_change_is_changed_wherever_it_is_by_then() {
    for others in [0, 1, 200] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("s"), Options::default()).unwrap();
        let table = store.table("t").unwrap();
        let key = |n: u32| (n * 1000).to_be_bytes();
        store.run(|tx| (0..60).try_for_each(|n| tx.put(&table, &key(n), &value(n, 100)))).unwrap();
        for n in 0..60 {
            let mut tx = store.begin();
            assert_eq!(tx.get_for_update(&table, &key(n)).unwrap(), Some(value(n, 100)));
            store
                .run(|other| {
                    let between = (1..=others).map(|at| (n * 1000 + at).to_be_bytes());
                    between.into_iter().try_for_each(|key| other.put(&table, &key, &value(n, 300)))
                })
                .unwrap();
            match n % 3 {
                0 => tx.put(&table, &key(n), b"changed").unwrap(),
                1 => assert!(tx.delete(&table, &key(n)).unwrap()),
                // The transaction's own first change also changes the leaf, so the store has to look the row up again.
                _ => {
                    tx.delete(&table, &key(n)).unwrap();
                    tx.put(&table, &key(n), b"again").unwrap();
                }
            }
            tx.commit().unwrap();
        }
        let wanted = [Some(b"changed".to_vec()), None, Some(b"again".to_vec())];
        let tx = store.begin();
        for n in 0..60 {
            assert_eq!(tx.get(&table, &key(n)).unwrap(), wanted[n as usize % 3], "{n} with {others} others");
        }
        drop(tx);
        assert_eq!(store.verify().unwrap().rows, 60 / 3 * 2 + 60 * u64::from(others));
    }
}
