//! Backups and archives must contain bulk-loaded rows. If an archive lacks them, a restore must report the gap.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{SetAtEnd, options, schemes, value};
use duralite_store::{Error, Options, RestoreTo, Scheme, Store, Table};

const COUNT: u32 = 4000;

fn small(scheme: Scheme) -> Options {
    options(scheme).log_bytes(4 << 20).cache_bytes(2 << 20).page_bytes(4096)
}

fn load(store: &Store, table: &Table) {
    let rows = (0..COUNT).map(|n| (n.to_be_bytes(), value(n, if n % 500 == 0 { 20_000 } else { 150 })));
    assert_eq!(store.load(table, rows).unwrap(), u64::from(COUNT));
}

/// Opens and verifies a store, and counts the rows of its table. Also checks their values.
fn count(path: &Path, scheme: Scheme) -> usize {
    let store = Store::open(path, small(scheme).create(false)).unwrap();
    store.verify().unwrap();
    let table = store.table("t").unwrap();
    let tx = store.begin();
    let rows = tx.scan(&table, ..).inspect(|row| {
        let (key, found) = row.as_ref().unwrap();
        let n = u32::from_be_bytes(key[..].try_into().unwrap());
        assert_eq!(*found, value(n, found.len()));
    });
    rows.count()
}

#[test]
fn inv53_an_archive_has_the_rows_of_a_load() {
    for scheme in schemes() {
        let dir = tempfile::tempdir().unwrap();
        let (path, archive) = (dir.path().join("s"), dir.path().join("archive"));
        let backup = dir.path().join("backup");
        let store = Store::open(&path, small(scheme).archive(archive.clone())).unwrap();
        let table = store.table("t").unwrap();
        store.backup(&backup).unwrap();
        let before = store.metrics().newest_object;
        load(&store, &table);
        drop((table, store));
        for (to, rows) in [(RestoreTo::End, COUNT as usize), (RestoreTo::Lsn(before), 0)] {
            let again = dir.path().join(format!("again {rows}"));
            Store::restore(&backup, Some(&archive), &again, to, small(scheme)).unwrap();
            assert_eq!(count(&again, scheme), rows, "{scheme:?}");
        }
    }
}

#[test]
fn inv53_a_backup_during_a_load_has_all_rows_or_none() {
    for scheme in schemes() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("s"), small(scheme)).unwrap();
        let table = store.table("t").unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let backups = std::thread::scope(|scope| {
            let (store, is_over, dir) = (&store, &is_over, &dir);
            let backing_up = scope.spawn(move || {
                let mut backups = 0;
                // The last backup begins after the load has ended. The backup before it may have begun before the end
                // of the load, and ended after it.
                loop {
                    let is_last = is_over.load(Ordering::SeqCst);
                    store.backup(dir.path().join(format!("backup {backups}"))).unwrap();
                    backups += 1;
                    if is_last {
                        return backups;
                    }
                }
            });
            let at_end = SetAtEnd(is_over.clone());
            load(store, &table);
            drop(at_end);
            backing_up.join().unwrap()
        });
        for nth in 0..backups {
            let again = dir.path().join(format!("again {nth}"));
            let backup = dir.path().join(format!("backup {nth}"));
            Store::restore(&backup, None, &again, RestoreTo::End, small(scheme)).unwrap();
            let rows = count(&again, scheme);
            assert!(rows == COUNT as usize || rows == 0 && nth + 1 < backups, "{scheme:?}, {nth}: {rows}");
        }
    }
}

/// A backup that begins during a load may end after the load, so the load has to log its rows. In this test the backup
/// ends before the load. So a restore without the archive has none of the rows, and a restore with the archive has all
/// of them.
#[test]
fn inv53_a_load_that_a_backup_began_in_is_in_the_log() {
    for has_archive in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let archive = dir.path().join("archive");
        let options = small(Scheme::Auto);
        let options = if has_archive { options.archive(archive.clone()) } else { options };
        let store = Store::open(dir.path().join("s"), options).unwrap();
        let table = store.table("t").unwrap();
        let mut load = store.bulk_load(&table).unwrap();
        let logged = |store: &Store| store.metrics().log_bytes;
        let before = logged(&store);
        for n in 0..COUNT {
            load.put(&n.to_be_bytes(), &value(n, 150)).unwrap();
            if n == COUNT / 2 {
                store.backup(dir.path().join("backup")).unwrap();
            }
        }
        load.finish().unwrap();
        assert!(logged(&store) - before > u64::from(COUNT) * 150);
        drop((table, store));
        let again = dir.path().join("again");
        let archive = has_archive.then_some(archive.as_path());
        Store::restore(dir.path().join("backup"), archive, &again, RestoreTo::End, small(Scheme::Auto))
            .unwrap();
        assert_eq!(count(&again, Scheme::Auto), if has_archive { COUNT as usize } else { 0 });
    }
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn inv53_a_load_that_the_archive_lacks_is_a_gap() {
    for scheme in schemes() {
        let dir = tempfile::tempdir().unwrap();
        let (path, archive) = (dir.path().join("s"), dir.path().join("archive"));
        let (backup, later) = (dir.path().join("backup"), dir.path().join("later"));
        let with_archive = small(scheme).archive(archive.clone());
        let store = Store::open(&path, with_archive.clone()).unwrap();
        store.table("t").unwrap();
        store.backup(&backup).unwrap();
        drop(store);
        // The store runs without its archive, and dies with the load in its log. The next opening, with the archive,
        // archives that log.
        let store = Store::open(&path, small(scheme)).unwrap();
        let table = store.table("t").unwrap();
        let before = store.metrics().newest_object;
        load(&store, &table);
        let died = dir.path().join("died");
        copy_all(&path, &died);
        store.backup(&later).unwrap();
        drop((table, store));
        let store = Store::open(&died, with_archive).unwrap();
        store.run(|tx| tx.put(&store.table("u")?, b"k", b"v")).unwrap();
        drop(store);
        let restore = |from: &Path, name: &str, to| {
            let again = dir.path().join(name);
            Store::restore(from, Some(&archive), &again, to, small(scheme)).map(|_| count(&again, scheme))
        };
        let gap = restore(&backup, "gap", RestoreTo::End);
        let Err(Error::Gap { last, .. }) = gap else { panic!("{scheme:?}: {gap:?}") };
        assert!(last >= before);
        assert_eq!(restore(&backup, "before", RestoreTo::Lsn(last)).unwrap(), 0, "{scheme:?}");
        // A backup that was taken after the load contains the loaded pages.
        let restored = restore(&later, "later restored", RestoreTo::Lsn(last + 1));
        assert_eq!(restored.unwrap(), COUNT as usize, "{scheme:?}");
    }
}
