//! Bad input. Each kind must get a clear error of its own, and must not lose anything.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use common::options;
use duralite_store::{Error, LogMedium, Options, Scheme, Store};

fn store() -> (tempfile::TempDir, std::path::PathBuf, Store) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = Store::open(&path, options(Scheme::Auto)).unwrap();
    (dir, path, store)
}

#[test]
fn a_store_that_is_open_says_who_has_it() {
    let (_dir, path, _store) = store();
    let error = Store::open(&path, options(Scheme::Auto)).unwrap_err();
    assert!(
        matches!(&error, Error::Locked { holder, .. } if holder.contains(&std::process::id().to_string()))
    );
    assert!(error.to_string().contains("close it there"), "{error}");
}

#[test]
fn another_page_size_is_refused() {
    let (_dir, path, store) = store();
    drop(store);
    let wrong = options(Scheme::Auto).page_bytes(4096);
    assert!(matches!(Store::open(&path, wrong), Err(Error::PageSize { has: 8192, asked: 4096 })));
    Store::open(&path, options(Scheme::Auto).page_bytes(8192)).unwrap();
    for bytes in [0, 1000, 65536, 5000] {
        let none = options(Scheme::Auto).page_bytes(bytes);
        assert!(matches!(Store::open(&path, none), Err(Error::Invalid { .. })));
    }
}

#[test]
fn a_newer_format_is_refused_by_its_number() {
    let (_dir, path, store) = store();
    drop(store);
    let file = fs::OpenOptions::new().write(true).read(true).open(path.join("pages")).unwrap();
    for slot in [0, 4096] {
        let mut bytes = vec![0; 88];
        file.read_exact_at(&mut bytes, slot).unwrap();
        bytes[8] = 9;
        file.write_all_at(&bytes, slot).unwrap();
        file.write_all_at(&xxh3(&bytes).to_le_bytes(), slot + 88).unwrap();
    }
    let error = Store::open(&path, options(Scheme::Auto)).unwrap_err();
    assert!(matches!(error, Error::Version { version: 9, .. }), "{error}");
}

fn xxh3(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

#[test]
fn a_directory_with_something_else_is_no_store() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("letter.txt"), "Dear").unwrap();
    let error = Store::open(dir.path(), options(Scheme::Auto)).unwrap_err();
    assert!(error.to_string().contains("letter.txt"), "{error}");
    fs::remove_file(dir.path().join("letter.txt")).unwrap();
    fs::write(dir.path().join("pages"), vec![7; 100_000]).unwrap();
    let error = Store::open(dir.path(), options(Scheme::Auto)).unwrap_err();
    assert!(matches!(error, Error::NotAStore { .. }), "{error}");
    let file = dir.path().join("pages");
    assert!(matches!(Store::open(file, options(Scheme::Auto)), Err(Error::Io { .. })));
}

/// Somebody has renamed the page file to one of these two names. The store may delete files whose names it uses for
/// unfinished stores and copies, but it uses neither of these two.
#[test]
fn inv75_a_page_file_that_was_renamed_by_hand_stays_and_so_does_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let (path, logs) = (dir.path().join("store"), dir.path().join("logs"));
    fs::create_dir(&logs).unwrap();
    let elsewhere = options(Scheme::NvDisk).log(LogMedium::Nvram(logs));
    for options in [elsewhere, options(Scheme::Auto), options(Scheme::FlushOnCommit)] {
        let store = Store::open(&path, options.clone()).unwrap();
        let table = store.table("t").unwrap();
        store.run(|tx| tx.put(&table, b"k", b"v")).unwrap();
        drop((table, store));
        for name in ["pages.copy", "pages.old"] {
            fs::rename(path.join("pages"), path.join(name)).unwrap();
            let error = Store::open(&path, options.clone()).unwrap_err();
            assert!(matches!(error, Error::NotAStore { .. }), "{options:?}: {error}");
            assert!(path.join(name).exists(), "{options:?}: {name} was removed");
            fs::rename(path.join(name), path.join("pages")).unwrap();
        }
        let store = Store::open(&path, options.clone()).unwrap();
        let table = store.table("t").unwrap();
        assert_eq!(store.run(|tx| tx.get(&table, b"k")).unwrap(), Some(b"v".to_vec()), "{options:?}");
        drop((table, store));
        fs::remove_dir_all(&path).unwrap();
    }
}

/// The page file is elsewhere, perhaps only for a while. The log may have commits that the page file lacks. A killed
/// restore may also have left a partial copy of pages. The store must not conclude from this copy that the log belongs
/// to that restore.
#[test]
fn inv75_no_store_is_made_over_a_log_whose_pages_are_elsewhere() {
    for (scheme, log) in [(Scheme::Auto, "log"), (Scheme::FlushOnCommit, "log.nvram")] {
        let dir = tempfile::tempdir().unwrap();
        let (path, elsewhere) = (dir.path().join("store"), dir.path().join("pages"));
        let store = Store::open(&path, options(scheme)).unwrap();
        let table = store.table("t").unwrap();
        store.run(|tx| tx.put(&table, b"k", b"v")).unwrap();
        drop((table, store));
        fs::rename(path.join("pages"), &elsewhere).unwrap();
        let before = fs::read(path.join(log)).unwrap();
        for left in [None, Some(path.join("pages.unfinished-copy"))] {
            left.iter().for_each(|left| fs::write(left, b"a part").unwrap());
            let error = Store::open(&path, options(scheme)).unwrap_err();
            assert!(matches!(error, Error::NotAStore { .. }), "{scheme:?}: {error}");
            assert!(error.to_string().contains(&format!("move {log} away")), "{scheme:?}: {error}");
            assert!(fs::read(path.join(log)).unwrap() == before, "{scheme:?}");
        }
        fs::rename(&elsewhere, path.join("pages")).unwrap();
        let store = Store::open(&path, options(scheme)).unwrap();
        let table = store.table("t").unwrap();
        assert_eq!(store.run(|tx| tx.get(&table, b"k")).unwrap(), Some(b"v".to_vec()), "{scheme:?}");
    }
}

#[test]
fn a_store_that_was_not_finished_is_made_anew() {
    for log in ["log", "log.nvram"] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("pages.new"), vec![7; 100_000]).unwrap();
        fs::write(dir.path().join(log), vec![7; 100_000]).unwrap();
        let store = Store::open(dir.path(), options(Scheme::Auto)).unwrap();
        store.table("t").unwrap();
        store.verify().unwrap();
    }
}

#[test]
fn keys_and_rows_that_are_too_long_are_refused_and_the_longest_are_not() {
    let (_dir, _path, store) = store();
    let table = store.table("t").unwrap();
    let mut tx = store.begin();
    assert!(matches!(tx.put(&table, &[1; 1025], b"v"), Err(Error::KeyTooLong { len: 1025 })));
    assert!(matches!(tx.get(&table, &[1; 1025]), Err(Error::KeyTooLong { len: 1025 })));
    tx.put(&table, &[1; 1024], &vec![3; 1 << 20]).unwrap();
    tx.put(&table, &[], b"the empty key").unwrap();
    tx.commit().unwrap();
    assert_eq!(store.run(|tx| tx.get(&table, &[1; 1024])).unwrap(), Some(vec![3; 1 << 20]));
    assert_eq!(store.run(|tx| tx.get(&table, &[])).unwrap(), Some(b"the empty key".to_vec()));
    for name in [String::new(), "n".repeat(1025)] {
        assert!(matches!(store.table(&name), Err(Error::Invalid { .. })));
    }
}

#[test]
fn inv38_a_transaction_larger_than_the_log_is_refused_and_taken_back() {
    for scheme in Scheme::ALL {
        let dir = tempfile::tempdir().unwrap();
        let options = options(scheme).log_bytes(4 << 20).lock_timeout(Duration::from_millis(200));
        let store = Store::open(dir.path().join("s"), options).unwrap();
        let table = store.table("t").unwrap();
        store.run(|tx| tx.put(&table, b"old", b"1")).unwrap();
        let mut tx = store.begin();
        tx.put(&table, b"old", b"2").unwrap();
        let error = (0..10_000_u64).find_map(|n| tx.put(&table, &n.to_be_bytes(), &[1; 1000]).err()).unwrap();
        assert!(matches!(error, Error::Full { .. }), "{scheme:?}: {error}");
        assert!(matches!(tx.put(&table, b"x", b"y"), Err(Error::Finished)));
        tx.rollback().unwrap();
        assert_eq!(store.run(|tx| tx.get(&table, b"old")).unwrap(), Some(b"1".to_vec()));
        assert_eq!(store.verify().unwrap().rows, 1);
        // Later transactions must have room again.
        for n in 0..1200_u64 {
            store.run(|tx| tx.put(&table, &n.to_be_bytes(), &[1; 1000])).unwrap();
        }
    }
}

#[test]
fn savepoints_and_tables_of_others_are_refused() {
    let (_dir, _path, store_a) = store();
    let (_other_dir, _other_path, store_b) = store();
    let table = store_b.table("t").unwrap();
    let mut tx = store_a.begin();
    assert!(matches!(tx.put(&table, b"k", b"v"), Err(Error::Foreign { .. })));
    let savepoint = store_a.begin().savepoint();
    assert!(matches!(tx.rollback_to(savepoint), Err(Error::Foreign { .. })));
    let first = tx.savepoint();
    let second = tx.savepoint();
    tx.rollback_to(first).unwrap();
    assert!(matches!(tx.rollback_to(second), Err(Error::Foreign { .. })));
}

#[test]
fn a_damaged_page_is_named_and_others_are_read() {
    let (_dir, path, store) = store();
    let (good, bad) = (store.table("good").unwrap(), store.table("bad").unwrap());
    store
        .run(|tx| {
            tx.put(&good, b"k", b"v")?;
            tx.put(&bad, b"needle-in-a-page", b"v")
        })
        .unwrap();
    drop((good, bad, store));
    let bytes = fs::read(path.join("pages")).unwrap();
    let needle = b"needle-in-a-page";
    let file = fs::OpenOptions::new().write(true).open(path.join("pages")).unwrap();
    // Damages the row both in its page and in the double-write area.
    for at in 0..bytes.len() - needle.len() {
        if bytes[at..].starts_with(needle) {
            file.write_all_at(b"N", at as u64).unwrap();
        }
    }
    let store = Store::open(&path, options(Scheme::Auto)).unwrap();
    let (good, bad) = (store.table("good").unwrap(), store.table("bad").unwrap());
    assert_eq!(store.run(|tx| tx.get(&good, b"k")).unwrap(), Some(b"v".to_vec()));
    let error = store.run(|tx| tx.get(&bad, b"k")).unwrap_err();
    assert!(matches!(error, Error::Corrupt { page: Some(_), .. }), "{error}");
    assert!(store.verify().is_err());
}

#[test]
fn schemes_without_their_medium_and_small_logs_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let wrong = Options::default().scheme(Scheme::FlushOnInsert).log(LogMedium::Disk);
    assert!(matches!(Store::open(dir.path(), wrong), Err(Error::Invalid { .. })));
    let small = Options::default().log_bytes(1000);
    assert!(matches!(Store::open(dir.path(), small), Err(Error::Invalid { .. })));
    let not_dax = Options::default().log(LogMedium::Nvram(dir.path().to_owned()));
    let other = tempfile::tempdir().unwrap();
    assert!(Store::open(other.path().join("s"), not_dax).is_err());
}

#[test]
fn a_store_changes_its_scheme_and_the_size_of_its_log_when_it_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut rows = 0_u64;
    for log_bytes in [4 << 20, 16 << 20] {
        for scheme in Scheme::ALL {
            let store = Store::open(&path, options(scheme).log_bytes(log_bytes)).unwrap();
            let table = store.table("t").unwrap();
            for _ in 0..50 {
                store.run(|tx| tx.put(&table, &rows.to_be_bytes(), b"v")).unwrap();
                rows += 1;
            }
            assert_eq!(store.verify().unwrap().rows, rows, "{scheme:?}");
        }
    }
}

#[test]
fn a_store_is_open_as_long_as_a_transaction_or_a_ticket_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = Store::open(&path, Options::default()).unwrap();
    let table = store.table("t").unwrap();
    let reader = store.begin();
    let mut tx = store.begin();
    tx.put(&table, b"k", b"v").unwrap();
    let ticket = tx.commit_async().unwrap();
    drop((store, reader));
    assert!(matches!(Store::open(&path, Options::default()), Err(Error::Locked { .. })));
    ticket.wait().unwrap();
    drop(ticket);
    // A table's handle does not keep the store open, and is valid only until the store is closed.
    let store = Store::open(&path, Options::default()).unwrap();
    assert!(matches!(store.begin().get(&table, b"k"), Err(Error::Foreign { .. })));
    let table = store.table("t").unwrap();
    assert_eq!(store.run(|tx| tx.get(&table, b"k")).unwrap(), Some(b"v".to_vec()));
}

#[test]
fn work_that_hides_a_deadlock_is_run_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store"), Options::default()).unwrap();
    let table = store.table("t").unwrap();
    let mut other = store.begin();
    other.put(&table, b"b", b"other").unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            let mut tries = 0;
            let done = store.run(|tx| {
                tries += 1;
                tx.put(&table, b"a", b"run")?;
                let _ = sender.send(());
                // This put waits for the transaction `other`, which then waits for this transaction. That is a
                // deadlock, and this transaction has to give way because it is the younger one.
                let _ = tx.put(&table, b"b", b"run");
                Ok::<_, Error>(())
            });
            (done, tries)
        });
        receiver.recv().unwrap();
        other.put(&table, b"a", b"other").unwrap();
        other.commit().unwrap();
        let (done, tries) = run.join().unwrap();
        done.unwrap();
        // If the other transaction takes long to commit, there are more than two attempts.
        assert!(tries > 1, "it was not run again");
    });
    let row = |key: &[u8]| store.run(|tx| tx.get(&table, key)).unwrap();
    assert_eq!((row(b"a"), row(b"b")), (Some(b"run".to_vec()), Some(b"run".to_vec())));
}
