//! Makes backups of a running store. Uses the archive to restore them to later moments.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

use common::{lists, options, schemes};
use duralite_histories::{Last, check};
use duralite_store::{Error, RestoreTo, Scheme, Store};

fn content(path: &Path, scheme: Scheme) -> Last {
    let store = Store::open(path, options(scheme)).unwrap();
    store.verify().unwrap();
    let table = store.table("lists").unwrap();
    lists::read_all(&store, &table)
}

#[test]
fn the_metrics_of_the_log_count_from_the_opening_on() {
    for scheme in schemes() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Store::open(dir.path().join("s"), options(scheme)).unwrap();
        let put = |store: &Store| {
            let table = store.table("t").unwrap();
            store.run(|tx| tx.put(&table, b"key", b"value")).unwrap();
            store.metrics()
        };
        let first = put(&open());
        let store = open();
        let before = store.metrics();
        assert_eq!((before.log_objects, before.log_bytes), (0, 0), "{scheme:?}");
        assert!(before.newest_object >= first.newest_object, "{scheme:?}");
        let after = put(&store);
        assert!(after.log_objects > 0 && after.log_bytes > 0, "{scheme:?}");
        assert_eq!(after.newest_object, before.newest_object + after.log_objects, "{scheme:?}");
    }
}

#[test]
fn a_backup_of_a_busy_store_is_of_one_moment() {
    for scheme in schemes() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path().join("s"), options(scheme)).unwrap();
        let table = store.table("lists").unwrap();
        let (next, stop) = (AtomicU64::new(1), AtomicBool::new(false));
        let history = std::thread::scope(|scope| {
            let work = scope.spawn(|| lists::run(&store, &table, 5, 4, 400, &next, &stop));
            for nth in 0..4 {
                store.backup(dir.path().join(format!("backup{nth}"))).unwrap();
                store.checkpoint().unwrap();
            }
            stop.store(true, Ordering::SeqCst);
            work.join().unwrap()
        });
        for nth in 0..4 {
            let path = dir.path().join(format!("again{nth}"));
            let backup = dir.path().join(format!("backup{nth}"));
            Store::restore(&backup, None, &path, RestoreTo::End, options(scheme)).unwrap();
            // The backup has the state at some moment of the run. So each transaction may or may not be in it.
            let mut history = history.clone();
            for tx in &mut history {
                if tx.fate == duralite_histories::Fate::Committed {
                    tx.fate = duralite_histories::Fate::Unknown;
                }
            }
            check(&history, &content(&path, scheme))
                .unwrap_or_else(|why| panic!("{scheme:?}, backup {nth}: {why}"));
        }
    }
}

#[test]
fn a_backup_and_the_archive_make_the_store_of_any_later_moment() {
    for scheme in [Scheme::Auto, Scheme::FlushOnCommit] {
        let dir = tempfile::tempdir().unwrap();
        let (path, archive) = (dir.path().join("s"), dir.path().join("archive"));
        let with_archive = options(scheme).archive(archive.clone());
        let mut moments = Vec::new();
        let backup = dir.path().join("backup");
        for round in 0..3_u64 {
            let store = Store::open(&path, with_archive.clone()).unwrap();
            let table = store.table("lists").unwrap();
            for n in 0..20_u64 {
                let element = round * 100 + n;
                store.run(|tx| tx.put(&table, &(n % 5).to_be_bytes(), &element.to_le_bytes())).unwrap();
                if n == 10 {
                    if round == 0 {
                        store.backup(&backup).unwrap();
                    }
                    let lsn = store.metrics().newest_object;
                    let now = SystemTime::now();
                    moments.push((lsn, now, lists::read_all(&store, &table)));
                }
            }
            store.checkpoint().unwrap();
        }
        let last = content(&path, scheme);
        let restore = |name: &str, to| {
            let path = dir.path().join(name);
            Store::restore(&backup, Some(&archive), &path, to, options(scheme)).unwrap();
            content(&path, scheme)
        };
        assert_eq!(restore("end", RestoreTo::End), last);
        for (nth, (lsn, time, then)) in moments.iter().enumerate() {
            assert_eq!(
                restore(&format!("lsn{nth}"), RestoreTo::Lsn(*lsn)),
                *then,
                "{scheme:?}, moment {nth}"
            );
            assert_eq!(
                restore(&format!("time{nth}"), RestoreTo::Time(*time)),
                *then,
                "{scheme:?}, moment {nth}"
            );
        }
        let too_late = Store::restore(
            &backup,
            Some(&archive),
            dir.path().join("x"),
            RestoreTo::Lsn(1 << 40),
            options(scheme),
        );
        assert!(matches!(too_late, Err(Error::Invalid { .. })));
        let too_early =
            Store::restore(&backup, Some(&archive), dir.path().join("y"), RestoreTo::Lsn(1), options(scheme));
        assert!(matches!(too_early, Err(Error::Invalid { .. })));
        // The restored store continues with a history of its own, so the archive refuses it.
        let early = dir.path().join("lsn0");
        let same = options(scheme).archive(archive.clone());
        assert!(matches!(Store::open(early, same), Err(Error::Invalid { .. })));
    }
}

#[test]
fn what_is_no_backup_is_refused_and_a_backup_is_no_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("s"), options(Scheme::Auto)).unwrap();
    let backup = dir.path().join("backup");
    store.backup(&backup).unwrap();
    assert!(matches!(store.backup(&backup), Err(Error::Invalid { .. })));
    assert!(matches!(Store::open(&backup, options(Scheme::Auto)), Err(Error::NotAStore { .. })));
    let target = dir.path().join("t");
    let none = Store::restore(dir.path(), None, &target, RestoreTo::End, options(Scheme::Auto));
    assert!(matches!(none, Err(Error::NotAStore { .. })));
    let log = fs::read_dir(&backup).unwrap().map(|entry| entry.unwrap().path());
    let log = log.into_iter().find(|path| path.to_string_lossy().contains("log-")).unwrap();
    let mut bytes = fs::read(&log).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&log, bytes).unwrap();
    let damaged = Store::restore(&backup, None, &target, RestoreTo::End, options(Scheme::Auto));
    assert!(matches!(damaged, Err(Error::Corrupt { .. })), "{damaged:?}");
}

#[test]
fn an_archive_that_cannot_be_written_keeps_the_log_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (path, archive) = (dir.path().join("s"), dir.path().join("archive"));
    let with_archive = options(Scheme::Auto).archive(archive.clone());
    let store = Store::open(&path, with_archive.clone()).unwrap();
    let table = store.table("t").unwrap();
    store.run(|tx| tx.put(&table, b"a", b"1")).unwrap();
    fs::remove_dir_all(&archive).unwrap();
    fs::write(&archive, "no directory").unwrap();
    assert!(matches!(store.checkpoint(), Err(Error::Io { .. })));
    store.run(|tx| tx.put(&table, b"b", b"2")).unwrap();
    fs::remove_file(&archive).unwrap();
    fs::create_dir(&archive).unwrap();
    store.checkpoint().unwrap();
    assert!(fs::read_dir(&archive).unwrap().count() > 0);
    drop((table, store));
    let store = Store::open(&path, with_archive).unwrap();
    assert_eq!(store.verify().unwrap().rows, 2);
}
