//! Data many times as large as the cache. Recovery must end, and a cache miss must cost only one page read.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::crash::{Images, OnRig, Rig};
use common::{options, schemes, value};
use duralite_store::{Error, Options, RestoreTo, Scheme, Store, Table};

/// The number of rows. Seven of them fit into a page, so there are four hundred leaves, and inner pages on two levels.
const ROWS: u32 = 2800;
const ROW_BYTES: usize = 500;
/// The number of changes that one transaction makes. They change most of the leaves, whatever the seed.
const CHANGES: u32 = 900;

fn smallest(scheme: Scheme) -> Options {
    let cache_bytes = Options::smallest_cache_bytes(4096);
    options(scheme).log_bytes(8 << 20).cache_bytes(cache_bytes).page_bytes(4096)
}

/// Returns a long key, so that an inner page has few children.
fn key(n: u32) -> Vec<u8> {
    let mut key = vec![b'k'; 60];
    key.extend(n.to_be_bytes());
    key
}

fn filled(rig: &Arc<Rig>, scheme: Scheme) -> (Store, Table) {
    let store = Store::open_on(OnRig(Arc::clone(rig)), smallest(scheme)).unwrap();
    let table = store.table("t").unwrap();
    for first in (0..ROWS).step_by(100) {
        let put = |n: u32| (key(n), value(n, ROW_BYTES));
        store
            .run(|tx| (first..first + 100).map(put).try_for_each(|(key, value)| tx.put(&table, &key, &value)))
            .unwrap();
    }
    store.checkpoint().unwrap();
    (store, table)
}

/// Returns what a process leaves when it dies in the middle of a transaction that has made many changes. All of the
/// changes are in the log.
fn killed_in_the_middle(scheme: Scheme, seed: u64) -> Images {
    let rig = Rig::new(None);
    let (store, table) = filled(&rig, scheme);
    let other = store.table("other").unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut open = store.begin();
    for _ in 0..CHANGES {
        open.put(&table, &key(random.u32(0..ROWS)), &value(u32::MAX, ROW_BYTES)).unwrap();
    }
    // This commit makes the whole log durable, including the open transaction's changes.
    store.run(|tx| tx.put(&other, b"key", b"value")).unwrap();
    let images = rig.death();
    drop(open);
    images
}

#[test]
fn inv50_recovery_ends_with_the_smallest_cache() {
    for (seed, scheme) in (1..).zip(schemes()) {
        let what = format!("{scheme:?}, seed {seed}");
        let rig = Rig::new(Some(killed_in_the_middle(scheme, seed)));
        // Recovery redoes each change, and then undoes it. Redo and undo each go through four pages, and most of the
        // inner pages are in the cache. So eight page reads per change suffice.
        let most = u64::from(CHANGES) * 8 + 2000;
        rig.page_reads_left.store(most, Ordering::SeqCst);
        let store = Store::open_on(OnRig(Arc::clone(&rig)), smallest(scheme))
            .unwrap_or_else(|error| panic!("{what}: more than {most} reads of pages: {error}"));
        rig.page_reads_left.store(u64::MAX, Ordering::SeqCst);
        store.verify().unwrap();
        let table = store.table("t").unwrap();
        let tx = store.begin();
        for n in 0..ROWS {
            assert!(tx.get(&table, &key(n)).unwrap() == Some(value(n, ROW_BYTES)), "{what}: row {n}");
        }
    }
}

/// A cache that is too small is refused, both for a new store and for an existing one, and nothing is made or changed.
#[test]
fn inv50_a_cache_that_is_too_small_is_refused_with_the_number() {
    let least = Options::smallest_cache_bytes(4096);
    let rig = Rig::new(None);
    for _ in 0..2 {
        let before = rig.death().pages;
        let too_small = smallest(Scheme::Auto).cache_bytes(least - 1);
        let Err(Error::Invalid { what }) = Store::open_on(OnRig(Arc::clone(&rig)), too_small) else {
            panic!("opened, or refused for another reason");
        };
        assert!(what.contains(&format!("cache_bytes to {least} or more")), "{what}");
        assert!(rig.death().pages == before, "the page file was changed");
        drop(Store::open_on(OnRig(Arc::clone(&rig)), smallest(Scheme::Auto)).unwrap());
    }
}

/// Only leaves miss the cache. Inner pages stay in it.
#[test]
fn inner_pages_stay_while_leaves_come_and_go() {
    const READS: u64 = 4000;
    for (seed, scheme) in (1..).zip(schemes()) {
        let rig = Rig::new(None);
        let (store, table) = filled(&rig, scheme);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut change = |count: u64| {
            for _ in 0..count {
                let key = key(random.u32(0..ROWS));
                store.run(|tx| tx.put(&table, &key, &value(7, ROW_BYTES))).unwrap();
            }
        };
        change(500);
        let before = store.metrics();
        change(READS);
        let after = store.metrics();
        let misses = after.cache_misses - before.cache_misses;
        // Even if no leaf were ever in the cache, each change would read only one leaf.
        assert!(misses <= READS, "{scheme:?}, seed {seed}: {misses} misses in {READS} changes");
        assert_eq!(
            after.inner_pages_left, before.inner_pages_left,
            "{scheme:?}, seed {seed}: inner pages left"
        );
    }
}

/// A restore that is refused because the cache is too small leaves no files. So another restore, with a larger cache,
/// can use the same directory.
#[test]
fn inv50_a_restore_with_too_small_a_cache_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (source, backup, target) =
        (dir.path().join("store"), dir.path().join("backup"), dir.path().join("target"));
    // The page size of the backup decides which cache is too small. The page size in the options does not matter.
    let page_bytes = 16384;
    let least = Options::smallest_cache_bytes(page_bytes);
    let made = smallest(Scheme::Auto).cache_bytes(least).page_bytes(page_bytes);
    let store = Store::open(&source, made).unwrap();
    let table = store.table("t").unwrap();
    store.run(|tx| tx.put(&table, b"key", b"value")).unwrap();
    store.backup(&backup).unwrap();
    let restore = |cache_bytes| {
        let options = Options::default().cache_bytes(cache_bytes);
        Store::restore(&backup, None, &target, RestoreTo::End, options)
    };
    assert!(matches!(restore(least - 1), Err(Error::Invalid { .. })));
    let left: Vec<_> =
        target.read_dir().map(|all| all.map(|one| one.unwrap().file_name()).collect()).unwrap_or_default();
    assert!(left.is_empty(), "{left:?} are left");
    restore(least).unwrap();
    let options = Options::default().cache_bytes(least);
    let store = Store::open(&target, options).unwrap();
    let table = store.table("t").unwrap();
    assert_eq!(store.begin().get(&table, b"key").unwrap(), Some(b"value".to_vec()));
}
