//! A snapshot shows one moment, whatever other transactions do.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use common::crash::{OnRig, Rig};
use common::{options, schemes, value};
use duralite_store::{Error, Options, Scheme, Snapshot, Store, Table, Transaction};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn smallest(scheme: Scheme) -> Options {
    let cache_bytes = Options::smallest_cache_bytes(4096);
    options(scheme).cache_bytes(cache_bytes).page_bytes(4096)
}

fn opened(options: Options) -> (Store, Table) {
    let store = Store::open_on(OnRig(Rig::new(None)), options).unwrap();
    let table = store.table("t").unwrap();
    (store, table)
}

fn rows(snapshot: &Snapshot, table: &Table) -> Model {
    snapshot.scan(table, ..).collect::<Result<_, _>>().unwrap()
}

fn key(n: u32) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

#[test]
fn inv55_a_snapshot_shows_what_had_committed_and_waits_for_nobody() {
    for scheme in schemes() {
        let lock_timeout = Duration::from_secs(100);
        let (store, table) = opened(options(scheme).lock_timeout(lock_timeout));
        store.run(|tx| (0..50).try_for_each(|n| tx.put(&table, &key(n), &value(n, 40)))).unwrap();
        let mut open = store.begin();
        open.put(&table, &key(1), b"changed").unwrap();
        open.delete(&table, &key(2)).unwrap();
        open.insert(&table, &key(100), b"new").unwrap();
        // The first snapshot is opened in the middle of the transaction, and the second one after more changes.
        let first = store.snapshot();
        open.put(&table, &key(3), b"changed").unwrap();
        open.put(&table, &key(1), b"again").unwrap();
        let second = store.snapshot();
        let before: Model = (0..50).map(|n| (key(n), value(n, 40))).collect();
        for snapshot in [&first, &second] {
            assert_eq!(rows(snapshot, &table), before, "{scheme:?}");
            assert_eq!(snapshot.get(&table, &key(1)).unwrap(), Some(value(1, 40)), "{scheme:?}");
            assert_eq!(snapshot.get(&table, &key(100)).unwrap(), None, "{scheme:?}");
        }
        open.commit().unwrap();
        let third = store.snapshot();
        let mut after = before.clone();
        after.extend([
            (key(1), b"again".to_vec()),
            (key(3), b"changed".to_vec()),
            (key(100), b"new".to_vec()),
        ]);
        after.remove(&key(2));
        assert_eq!(rows(&third, &table), after, "{scheme:?}");
        assert_eq!(rows(&first, &table), before, "{scheme:?}");
        drop((first, second));
        assert_eq!(rows(&third, &table), after, "{scheme:?}");
        drop(third);
        assert_eq!(store.metrics().snapshot_bytes, 0, "{scheme:?}");
    }
}

#[test]
fn inv56_what_is_taken_back_was_never_seen() {
    let (store, table) = opened(options(Scheme::Auto));
    let long = vec![7; 30_000];
    store.run(|tx| tx.put(&table, &key(1), b"one").and_then(|()| tx.put(&table, &key(2), &long))).unwrap();
    let before: Model = [(key(1), b"one".to_vec()), (key(2), long)].into();
    let mut tx = store.begin();
    tx.put(&table, &key(1), b"two").unwrap();
    let savepoint = tx.savepoint();
    tx.put(&table, &key(1), b"three").unwrap();
    tx.delete(&table, &key(2)).unwrap();
    let during = store.snapshot();
    tx.rollback_to(savepoint).unwrap();
    assert_eq!(rows(&during, &table), before);
    tx.put(&table, &key(1), b"four").unwrap();
    tx.put(&table, &key(2), &[8; 20_000]).unwrap();
    assert_eq!(rows(&during, &table), before);
    tx.rollback().unwrap();
    let after = store.snapshot();
    // The next transaction deletes the row and frees its pages. So the row's state after the rollback becomes an old
    // version too.
    store.run(|tx| tx.delete(&table, &key(2))).unwrap();
    store.run(|tx| tx.put(&table, &key(3), &[9; 40_000])).unwrap();
    assert_eq!(rows(&during, &table), before);
    assert_eq!(rows(&after, &table), before);
}

/// Compares the rows of a random range, and one more row, with the model.
fn compare(snapshot: &Snapshot, table: &Table, model: &Model, random: &mut fastrand::Rng, what: &str) {
    let bound = |random: &mut fastrand::Rng| {
        let key = key(random.u32(0..KEYS));
        match random.u8(0..4) {
            0 => Bound::Unbounded,
            1 => Bound::Excluded(key),
            _ => Bound::Included(key),
        }
    };
    let (from, to) = (bound(random), bound(random));
    let range = (from.as_ref().map(Vec::as_slice), to.as_ref().map(Vec::as_slice));
    let inside = |key: &[u8]| std::ops::RangeBounds::<[u8]>::contains(&range, key);
    let expected: Vec<_> =
        model.iter().filter(|(key, _)| inside(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
    // The test reads the rows from the front, from the back, or from both ends.
    let mut scan = snapshot.scan(table, range);
    let (mut front, mut back) = (Vec::new(), Vec::new());
    let way = random.u8(0..3);
    loop {
        let is_front = way == 0 || (way == 1 && random.bool());
        let next = if is_front { scan.next() } else { scan.next_back() };
        let Some(row) = next else { break };
        if is_front { &mut front } else { &mut back }.push(row.unwrap());
    }
    front.extend(back.into_iter().rev());
    assert!(front == expected, "{what}: {range:?}: {} rows, not {}", front.len(), expected.len());
    let one = key(random.u32(0..KEYS));
    assert_eq!(snapshot.get(table, &one).unwrap().as_ref(), model.get(&one), "{what}: {one:?}");
}

const KEYS: u32 = 600;

/// An open transaction, and what it has changed.
struct Open {
    tx: Transaction,
    changed: Model,
    gone: Vec<Vec<u8>>,
}

/// Makes a few changes in a transaction. Each transaction has its own keys, so none waits for another.
fn change(open: &mut Open, table: &Table, nth: u32, random: &mut fastrand::Rng) {
    for _ in 0..random.u32(1..12) {
        let key = key(random.u32(0..KEYS / 4) * 4 + nth);
        open.changed.remove(&key);
        open.gone.retain(|gone| *gone != key);
        if random.u8(0..3) == 0 {
            open.tx.delete(table, &key).unwrap();
            open.gone.push(key);
        } else {
            let len = if random.u8(0..40) == 0 { random.usize(2000..12_000) } else { random.usize(0..90) };
            let value = value(random.u32(..), len);
            open.tx.put(table, &key, &value).unwrap();
            open.changed.insert(key, value);
        }
    }
}

/// Transactions and snapshots begin, continue and end in random order. Each snapshot is compared with a model of its
/// moment.
fn against_a_model(seed: u64, options: Options, steps: u32) {
    let what = format!("seed {seed}, {:?}", options.scheme);
    let mut random = fastrand::Rng::with_seed(seed);
    let (store, table) = opened(options);
    let mut model = Model::new();
    let mut open: [Option<Open>; 4] = [None, None, None, None];
    let mut snapshots: Vec<(Snapshot, Model)> = Vec::new();
    for step in 0..steps {
        let what = format!("{what}, step {step}");
        let nth = random.usize(0..4);
        match random.u8(0..10) {
            0..=3 => {
                let new = || Open { tx: store.begin(), changed: Model::new(), gone: Vec::new() };
                let open = open[nth].get_or_insert_with(new);
                if random.u8(0..5) == 0 {
                    let before = (open.changed.clone(), open.gone.clone());
                    let savepoint = open.tx.savepoint();
                    change(open, &table, nth as u32, &mut random);
                    open.tx.rollback_to(savepoint).unwrap();
                    (open.changed, open.gone) = before;
                } else {
                    change(open, &table, nth as u32, &mut random);
                }
            }
            4..=5 => {
                if let Some(ended) = open[nth].take()
                    && random.u8(0..4) > 0
                {
                    if random.bool() {
                        ended.tx.commit().unwrap();
                    } else {
                        let _later = ended.tx.commit_async().unwrap();
                    }
                    ended.gone.iter().for_each(|key| drop(model.remove(key)));
                    model.extend(ended.changed);
                }
            }
            6 if snapshots.len() < 5 => snapshots.push((store.snapshot(), model.clone())),
            7 if !snapshots.is_empty() => drop(snapshots.swap_remove(random.usize(0..snapshots.len()))),
            _ => {
                for (snapshot, model) in &snapshots {
                    compare(snapshot, &table, model, &mut random, &what);
                }
            }
        }
        if random.u8(0..60) == 0 {
            store.checkpoint().unwrap();
        }
    }
    open.iter_mut().for_each(|open| drop(open.take()));
    for (snapshot, model) in snapshots {
        assert_eq!(rows(&snapshot, &table), model, "{what}, at the end");
    }
    let metrics = store.metrics();
    assert_eq!((metrics.snapshots, metrics.snapshot_bytes, metrics.snapshots_ended), (0, 0, 0), "{what}");
    assert_eq!(rows(&store.snapshot(), &table), model, "{what}");
    store.verify().unwrap();
}

#[test]
fn inv56_snapshots_are_as_a_model_of_their_moments() {
    for (seed, scheme) in (1..).zip(schemes()) {
        against_a_model(seed, options(scheme), 400);
        against_a_model(seed + 100, smallest(scheme), 400);
    }
}

/// The changes make more old versions than the limit allows.
#[test]
fn inv57_a_snapshot_that_is_too_old_says_so() {
    let (store, table) = opened(options(Scheme::Auto).snapshot_bytes(20_000));
    store.run(|tx| (0..1000).try_for_each(|n| tx.put(&table, &key(n), &value(n, 40)))).unwrap();
    let old = store.snapshot();
    let mut half = old.scan(&table, ..);
    half.next().unwrap().unwrap();
    let mut most = 0;
    let mut newest = store.snapshot();
    for n in 0..1000 {
        store.run(|tx| tx.put(&table, &key(n), b"other")).unwrap();
        most = most.max(store.metrics().snapshot_bytes);
        if n % 10 == 0 {
            // A younger snapshot needs fewer versions, so it can still be read.
            assert_eq!(newest.get(&table, &key(n)).unwrap(), Some(value(n, 40)));
            newest = store.snapshot();
        }
    }
    assert!(matches!(old.get(&table, &key(0)), Err(Error::SnapshotTooOld)));
    assert!(matches!(old.scan(&table, ..).next_back(), Some(Err(Error::SnapshotTooOld))));
    // The scan returns the rows that it had already read, and then a single error.
    let rest: Vec<_> = half.collect();
    assert!(matches!(rest.last(), Some(Err(Error::SnapshotTooOld))));
    assert!(rest.iter().filter(|row| row.is_err()).count() == 1 && rest.len() < 900);
    assert!(most < 24_000, "{most}");
    let metrics = store.metrics();
    assert_eq!((metrics.snapshots_ended, metrics.snapshots), (1, 1));
    drop((old, newest));
    assert_eq!(store.metrics().snapshot_bytes, 0);
}

/// When a long value is deleted, it is copied for the snapshots that need it. If there is no room for the copy, the
/// oldest snapshots are ended.
#[test]
fn inv57_a_long_value_that_does_not_fit_ends_a_snapshot() {
    let (store, table) = opened(options(Scheme::Auto).snapshot_bytes(100_000));
    let long = |n: u8| vec![n; 60_000];
    store.run(|tx| (0..3).try_for_each(|n| tx.put(&table, &[n], &long(n)))).unwrap();
    let first = store.snapshot();
    store.run(|tx| tx.delete(&table, &[0])).unwrap();
    assert_eq!(first.get(&table, &[0]).unwrap(), Some(long(0)));
    let second = store.snapshot();
    store.run(|tx| tx.put(&table, &[1], b"short")).unwrap();
    assert!(matches!(first.get(&table, &[2]), Err(Error::SnapshotTooOld)));
    assert_eq!(second.get(&table, &[1]).unwrap(), Some(long(1)));
    assert_eq!(second.get(&table, &[0]).unwrap(), None);
    // New values reuse the pages that were freed.
    store.run(|tx| (10..14).try_for_each(|n| tx.put(&table, &[n], &long(n)))).unwrap();
    assert_eq!(second.get(&table, &[1]).unwrap(), Some(long(1)));
    drop((first, second));
    assert_eq!(store.metrics().snapshot_bytes, 0);
}

/// The log wraps around several times while a snapshot is open. A row that changes often must not have more versions
/// than there are snapshots.
#[test]
fn inv57_a_snapshot_holds_back_neither_the_log_nor_memory() {
    for scheme in schemes() {
        let (store, table) = opened(smallest(scheme).log_bytes(4 << 20));
        store.run(|tx| (0..20).try_for_each(|n| tx.put(&table, &key(n), &value(n, 900)))).unwrap();
        let snapshot = store.snapshot();
        let before = store.metrics().log_bytes;
        let mut n = 0;
        while store.metrics().log_bytes - before < 12 << 20 {
            n += 1;
            store
                .run(|tx| (0..20).try_for_each(|key_of| tx.put(&table, &key(key_of), &value(n, 900))))
                .unwrap();
        }
        let bytes = store.metrics().snapshot_bytes;
        assert!(bytes < 20 * 1500, "{scheme:?}: {bytes}");
        assert!((0..20).all(|n| snapshot.get(&table, &key(n)).unwrap() == Some(value(n, 900))), "{scheme:?}");
    }
}

/// All rows are deleted, and their leaves are freed. So the snapshot's scan can find them only among the versions.
#[test]
fn inv56_a_scan_finds_what_has_gone_since() {
    let (store, table) = opened(smallest(Scheme::Auto));
    let before: Model = (0..5000).map(|n| (key(n), value(n, 30))).collect();
    for rows in before.iter().collect::<Vec<_>>().chunks(500) {
        store.run(|tx| rows.iter().try_for_each(|(key, value)| tx.put(&table, key, value))).unwrap();
    }
    let snapshot = store.snapshot();
    for keys in before.keys().collect::<Vec<_>>().chunks(500) {
        store.run(|tx| keys.iter().try_for_each(|key| tx.delete(&table, key).map(drop))).unwrap();
    }
    assert_eq!(rows(&snapshot, &table), before);
    let mut back: Vec<_> = snapshot.scan(&table, ..).rev().collect::<Result<_, _>>().unwrap();
    back.reverse();
    assert_eq!(back, before.into_iter().collect::<Vec<_>>());
    assert_eq!(store.snapshot().scan(&table, ..).count(), 0);
}

/// What a snapshot has shown must survive a crash, unless the store is set not to wait for durability.
#[test]
fn inv39_what_a_snapshot_shows_survives_a_power_failure() {
    for (seed, scheme) in (1..).zip(schemes()) {
        let rig = Rig::new(None);
        let store = Store::open_on(OnRig(Arc::clone(&rig)), smallest(scheme)).unwrap();
        let table = store.table("t").unwrap();
        let mut tx = store.begin();
        tx.put(&table, b"key", b"value").unwrap();
        let ticket = tx.commit_async().unwrap();
        assert_eq!(store.snapshot().get(&table, b"key").unwrap(), Some(b"value".to_vec()));
        rig.crash(1, 1, seed);
        rig.idle_step();
        let crash = rig.crashes().remove(0);
        drop((ticket, table, store));
        let store = Store::open_on(OnRig(Rig::new(Some(crash.images))), smallest(scheme)).unwrap();
        let table = store.table("t").unwrap();
        assert_eq!(store.snapshot().get(&table, b"key").unwrap(), Some(b"value".to_vec()), "{scheme:?}");
    }
}

#[test]
fn a_snapshot_refuses_what_is_not_its_own() {
    let (store, table) = opened(options(Scheme::Auto));
    let (other, _) = opened(options(Scheme::Auto));
    let snapshot = other.snapshot();
    assert!(matches!(snapshot.get(&table, b"key"), Err(Error::Foreign { .. })));
    assert!(matches!(snapshot.scan(&table, ..).next(), Some(Err(Error::Foreign { .. }))));
    assert!(matches!(store.snapshot().get(&table, &[0; 5000]), Err(Error::KeyTooLong { .. })));
    // A range that ends before it begins is empty, and not an error.
    assert_eq!(store.snapshot().scan(&table, &b"b"[..]..&b"a"[..]).count(), 0);
}

/// A snapshot keeps the store open, so it can be read after the store's handle is dropped.
#[test]
fn a_snapshot_outlives_the_store() {
    let (store, table) = opened(options(Scheme::Auto));
    store.run(|tx| tx.put(&table, b"key", b"value")).unwrap();
    let snapshot = store.snapshot();
    drop(store);
    let again = snapshot.clone();
    drop(snapshot);
    let read = std::thread::spawn(move || again.get(&table, b"key"));
    assert_eq!(read.join().unwrap().unwrap(), Some(b"value".to_vec()));
}
