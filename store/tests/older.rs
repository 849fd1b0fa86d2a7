//! A page file and a log from different moments, because somebody has replaced one of them by an older copy.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::fs;
use std::sync::Arc;

use common::crash::{Images, OnRig, Rig};
use common::{options, schemes};
use duralite_store::format::{PageFileHead, SLOT_OFFSETS};
use duralite_store::{Error, Options, Scheme, Store};

fn small(scheme: Scheme) -> Options {
    options(scheme).log_bytes(4 << 20).page_bytes(4096)
}

fn open(rig: &Arc<Rig>, scheme: Scheme) -> Result<Store, Error> {
    Store::open_on(OnRig(Arc::clone(rig)), small(scheme))
}

fn put(store: &Store, rows: std::ops::Range<u64>) {
    let table = store.table("t").unwrap();
    rows.for_each(|row| store.run(|tx| tx.put(&table, &row.to_be_bytes(), &[7; 50])).unwrap());
}

fn count(store: &Store, table: &str) -> usize {
    let table = store.table(table).unwrap();
    store.snapshot().scan(&table, ..).map(Result::unwrap).count()
}

/// Checks that a store with these files is not opened, and that nothing is written to them.
fn is_refused(images: &Images, scheme: Scheme, what: &str) {
    let rig = Rig::new(Some(images.clone()));
    let error = open(&rig, scheme).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{scheme:?}: {what}: {error}");
    assert!(error.to_string().contains("older than its log"), "{scheme:?}: {what}: {error}");
    let Images { pages, blocks, memory } = rig.death();
    assert!(pages == images.pages && blocks == images.blocks, "{scheme:?}: {what}");
    assert!(memory.starts_with(&images.memory), "{scheme:?}: {what}");
}

/// The copies of the page file were made at four moments: before the first checkpoint, between the first and the
/// second, just before the store was closed, and just after.
#[test]
fn inv76_an_older_page_file_is_refused_once_its_log_was_given_up() {
    for scheme in schemes() {
        let rig = Rig::new(None);
        let store = open(&rig, scheme).unwrap();
        put(&store, 0..50);
        let mut copies = vec![("never checkpointed", rig.death().pages)];
        store.checkpoint().unwrap();
        put(&store, 50..100);
        copies.push(("one checkpoint", rig.death().pages));
        store.checkpoint().unwrap();
        put(&store, 100..150);
        for (what, pages) in &copies {
            is_refused(&Images { pages: pages.clone(), ..rig.death() }, scheme, what);
        }
        copies.push(("the first opening", rig.death().pages));
        drop(store);
        copies.push(("closed", rig.death().pages));
        let store = open(&rig, scheme).unwrap();
        put(&store, 150..200);
        drop(store);
        for (what, pages) in copies {
            is_refused(&Images { pages, ..rig.death() }, scheme, what);
        }
        assert_eq!(count(&open(&rig, scheme).unwrap(), "t"), 200);
    }
}

/// The page file is an older copy. The log still has everything that the copy lacks, so recovery must succeed.
#[test]
fn inv76_an_older_page_file_is_brought_up_to_date_by_a_log_that_has_everything() {
    for scheme in schemes() {
        let rig = Rig::new(None);
        let store = open(&rig, scheme).unwrap();
        put(&store, 0..50);
        store.checkpoint().unwrap();
        let pages = rig.death().pages;
        put(&store, 50..150);
        let images = Images { pages, ..rig.death() };
        drop(store);
        let store = open(&Rig::new(Some(images)), scheme).unwrap();
        assert_eq!(count(&store, "t"), 150, "{scheme:?}");
        store.verify().unwrap();
    }
}

/// The log has the commit of the load, but not the loaded pages.
#[test]
fn inv76_an_older_page_file_is_refused_if_it_lacks_the_pages_of_a_load() {
    for scheme in schemes() {
        let rig = Rig::new(None);
        let store = open(&rig, scheme).unwrap();
        let tables = ["first", "second"].map(|name| store.table(name).unwrap());
        store.checkpoint().unwrap();
        let rows = || (0..2000_u64).map(|row| (row.to_be_bytes(), [3; 40]));
        let mut copies = vec![("before the first load", rig.death().pages)];
        store.load(&tables[0], rows()).unwrap();
        copies.push(("between the loads", rig.death().pages));
        store.load(&tables[1], rows()).unwrap();
        let images = rig.death();
        drop((tables, store));
        for (what, pages) in copies {
            let rig = Rig::new(Some(Images { pages, ..images.clone() }));
            // Tries twice. The first recovery may write something before it fails, and this must not make the copy fit
            // the log.
            for _ in 0..2 {
                let error = open(&rig, scheme).unwrap_err().to_string();
                let is_right = error.contains("older than its log") && error.contains("bulk load");
                assert!(is_right, "{scheme:?}: {what}: {error}");
            }
            // The log is still good for the right page file.
            let whole = Rig::new(Some(Images { pages: images.pages.clone(), ..rig.death() }));
            let store = open(&whole, scheme).unwrap();
            assert_eq!((count(&store, "first"), count(&store, "second")), (2000, 2000), "{scheme:?}: {what}");
            store.verify().unwrap();
        }
    }
}

/// Flips a bit in one of the two superblocks, and returns the changed pages. Damages the superblock with the larger
/// number if `newer`, and otherwise the other one.
fn with_a_damaged_superblock(pages: &[u8], newer: bool) -> Vec<u8> {
    let number = |at: &u64| PageFileHead::decode(&pages[*at as usize..]).unwrap().number;
    let newest = SLOT_OFFSETS.into_iter().max_by_key(number).unwrap();
    let slot = SLOT_OFFSETS.into_iter().find(|at| (*at == newest) == newer).unwrap();
    let mut pages = pages.to_vec();
    pages[slot as usize + 60] ^= 1;
    pages
}

#[test]
fn inv76_a_store_that_was_closed_needs_only_one_of_its_superblocks() {
    for scheme in schemes() {
        let rig = Rig::new(None);
        let store = open(&rig, scheme).unwrap();
        put(&store, 0..50);
        store.checkpoint().unwrap();
        put(&store, 50..100);
        drop(store);
        for newer in [false, true] {
            let pages = with_a_damaged_superblock(&rig.death().pages, newer);
            let store = open(&Rig::new(Some(Images { pages, ..rig.death() })), scheme).unwrap();
            assert_eq!(count(&store, "t"), 100, "{scheme:?}, the newer one: {newer}");
        }
    }
}

/// The store was not closed after its last checkpoint, so the older superblock does not fit the log.
#[test]
fn a_store_that_needs_a_damaged_superblock_says_that_it_is_damaged() {
    for scheme in schemes() {
        let rig = Rig::new(None);
        let store = open(&rig, scheme).unwrap();
        put(&store, 0..50);
        store.checkpoint().unwrap();
        put(&store, 50..100);
        store.checkpoint().unwrap();
        let pages = with_a_damaged_superblock(&rig.death().pages, true);
        let error = open(&Rig::new(Some(Images { pages, ..rig.death() })), scheme).unwrap_err().to_string();
        let says_both =
            error.contains("older than its log") && error.contains("superblocks of the page file");
        assert!(says_both, "{scheme:?}: {error}");
        drop(store);
    }
}

/// The superblock records which changes the page file has. The older log ends before the last of these changes.
#[test]
fn inv48_a_log_that_is_older_than_its_page_file_is_damaged() {
    for scheme in schemes() {
        let rig = Rig::new(None);
        let store = open(&rig, scheme).unwrap();
        put(&store, 0..50);
        let old = rig.death();
        put(&store, 50..100);
        store.checkpoint().unwrap();
        let images = Images { pages: rig.death().pages, ..old };
        drop(store);
        let rig = Rig::new(Some(images.clone()));
        let error = open(&rig, scheme).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{scheme:?}: {error}");
        assert!(error.to_string().contains("had been durable"), "{scheme:?}: {error}");
        let Images { pages, blocks, memory } = rig.death();
        assert!(pages == images.pages && blocks == images.blocks, "{scheme:?}");
        assert!(memory.starts_with(&images.memory), "{scheme:?}");
    }
}

/// Even a salvage refuses to combine the old page file with the newer log. After the copy of the page file was made,
/// the store either kept its log or replaced it.
#[test]
fn inv76_a_restored_page_file_beside_a_newer_log_stays_as_it_is() {
    for log_bytes in [4 << 20, 32 << 20] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let files = [path.join("pages"), path.join("log")];
        let store = Store::open(&path, small(Scheme::Auto)).unwrap();
        put(&store, 0..50);
        drop(store);
        let old = fs::read(&files[0]).unwrap();
        let store = Store::open(&path, small(Scheme::Auto).log_bytes(log_bytes)).unwrap();
        put(&store, 50..100);
        drop(store);
        fs::write(&files[0], &old).unwrap();
        let before = files.each_ref().map(|file| fs::read(file).unwrap());
        let opened = Store::open(&path, small(Scheme::Auto));
        let salvaged = Store::salvage(&path, dir.path().join("out"), small(Scheme::Auto));
        for error in [opened.unwrap_err(), salvaged.unwrap_err()] {
            assert!(error.to_string().contains("a page file and a log of the same moment"), "{error}");
        }
        assert!(files.map(|file| fs::read(file).unwrap()) == before);
    }
}

/// After the copy was made, the store replaced its log by one of another kind. The log that the copy names is gone.
#[test]
fn inv76_a_page_file_that_is_older_than_a_change_of_the_log_finds_no_log() {
    let kinds = [(Scheme::Auto, "log"), (Scheme::FlushOnCommit, "log.nvram"), (Scheme::NvDisk, "log")];
    for pair in kinds.windows(2) {
        let [(before, old_log), (after, new_log)] = [pair[0], pair[1]];
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let store = Store::open(&path, small(before)).unwrap();
        put(&store, 0..50);
        drop(store);
        let old = fs::read(path.join("pages")).unwrap();
        let store = Store::open(&path, small(after)).unwrap();
        put(&store, 50..100);
        drop(store);
        let new = fs::read(path.join("pages")).unwrap();
        assert!(!path.join(old_log).exists() && path.join(new_log).exists(), "{before:?}, then {after:?}");
        fs::write(path.join("pages"), old).unwrap();
        for scheme in [before, after] {
            let error = Store::open(&path, small(scheme)).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{before:?}, then {after:?}: {error}");
        }
        fs::write(path.join("pages"), new).unwrap();
        assert_eq!(count(&Store::open(&path, small(after)).unwrap(), "t"), 100, "{before:?}, then {after:?}");
    }
}
