//! Stores whose logs are in a separate directory, as with NVRAM. Several stores have the same path one after another,
//! and each one finds its own log again.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use common::options;
use duralite_store::format::{PageFileHead, SLOT_OFFSETS};
use duralite_store::{Error, LogMedium, Options, RestoreTo, Scheme, Store};

/// A directory for stores, and another one for their logs.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let it = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(it.path("logs")).unwrap();
        it
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns options for a log on a block medium in the separate directory. A log in NVRAM would get its name from
    /// the same code, but tests have no NVRAM.
    fn options(&self) -> Options {
        options(Scheme::NvDisk).log(LogMedium::Nvram(self.path("logs")))
    }

    fn open(&self, name: &str) -> Result<Store, Error> {
        Store::open(self.path(name), self.options())
    }

    /// Returns the log files, with their content.
    fn logs(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        files(&self.path("logs"))
    }

    /// Returns the path of the only log.
    fn only_log(&self) -> PathBuf {
        let logs = self.logs();
        assert_eq!(logs.len(), 1, "{:?}", logs.keys());
        logs.into_keys().next().unwrap()
    }

    /// Makes a store, and leaves its files as a crash just after the commit of `row` would: the row is only in the log.
    fn crashed(&self, name: &str, row: &[u8]) {
        let store = self.open(name).unwrap();
        let table = store.table("t").unwrap();
        store.run(|tx| tx.put(&table, row, b"v")).unwrap();
        let (pages, log) = (self.path(name).join("pages"), self.only_log());
        let left = [pages, log].map(|path| (fs::read(&path).unwrap(), path));
        drop(store);
        for (bytes, path) in left {
            fs::write(path, bytes).unwrap();
        }
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }
}

fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

fn has(store: &Store, row: &[u8]) -> bool {
    let table = store.table("t").unwrap();
    store.run(|tx| tx.get(&table, row)).unwrap().is_some()
}

/// Returns the name that earlier builds gave to this log.
fn earlier_name(log: &Path) -> PathBuf {
    let name = log.file_name().unwrap().to_str().unwrap();
    let parts: Vec<&str> = name.rsplitn(3, '.').collect();
    log.with_file_name(format!("{}.{}", parts[2], parts[0]))
}

#[test]
fn inv75_a_new_store_leaves_the_log_of_the_one_that_was_moved_away() {
    let place = Place::new();
    place.crashed("s", b"old");
    let before = place.logs();
    place.rename("s", "moved");
    let store = place.open("s").unwrap();
    assert!(!has(&store, b"old"));
    drop(store);
    let after = place.logs();
    assert!(before.iter().all(|(path, bytes)| after.get(path) == Some(bytes)));
    place.rename("s", "new");
    place.rename("moved", "s");
    let store = place.open("s").unwrap();
    assert!(has(&store, b"old"), "the new store has overwritten the log");
    drop(store);
    // The new store continues with its own log too.
    place.rename("s", "old");
    place.rename("new", "s");
    assert!(!has(&place.open("s").unwrap(), b"old"));
}

/// The old store is moved to another path. The restored store has the same identity, and gets the path that the old
/// store had.
#[test]
fn inv75_a_restore_leaves_the_log_of_the_store_that_it_replaces() {
    let place = Place::new();
    drop(place.open("s").unwrap());
    place.open("s").unwrap().backup(place.path("backup")).unwrap();
    place.crashed("s", b"old");
    let before = place.logs();
    place.rename("s", "moved");
    Store::restore(place.path("backup"), None, place.path("s"), RestoreTo::End, place.options()).unwrap();
    assert!(!has(&place.open("s").unwrap(), b"old"));
    let after = place.logs();
    assert!(before.iter().all(|(path, bytes)| after.get(path) == Some(bytes)));
    place.rename("s", "restored");
    place.rename("moved", "s");
    assert!(has(&place.open("s").unwrap(), b"old"), "the restored store has overwritten the log");
}

/// Builds before this one named a log after the store's path only.
#[test]
fn inv75_a_log_of_an_earlier_name_is_used_only_by_the_store_that_it_belongs_to() {
    let place = Place::new();
    place.crashed("s", b"old");
    let log = place.only_log();
    let earlier = earlier_name(&log);
    fs::rename(&log, &earlier).unwrap();
    // Another store at that path neither uses nor deletes the log, even if that store replaces its own log.
    let before = fs::read(&earlier).unwrap();
    place.rename("s", "moved");
    drop(place.open("s").unwrap());
    drop(Store::open(place.path("s"), place.options().log_bytes(32 << 20)).unwrap());
    assert_eq!(place.logs().len(), 2);
    assert!(fs::read(&earlier).unwrap() == before);
    place.rename("s", "new");
    place.rename("moved", "s");
    let store = place.open("s").unwrap();
    assert!(has(&store, b"old"));
    drop(store);
    // The store that owns the log deletes it when the store gets another log.
    let store = Store::open(place.path("s"), place.options().log_bytes(32 << 20)).unwrap();
    assert!(has(&store, b"old") && !earlier.exists());
    assert_eq!(place.logs().len(), 2);
}

#[test]
fn a_store_whose_log_is_missing_says_which_file_it_needs() {
    let place = Place::new();
    place.crashed("s", b"old");
    let log = place.only_log();
    place.rename("s", "moved");
    let error = place.open("moved").unwrap_err().to_string();
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(error.contains(&name(&log)) && error.contains("rename"), "{error}");
    // The error says which name the log file has to get.
    let wanted = name(&log).replace("_2fs.", "_2fmoved.");
    assert!(error.contains(&wanted), "{error}");
    assert_eq!(place.only_log(), log);
    fs::rename(&log, log.with_file_name(wanted)).unwrap();
    assert!(has(&place.open("moved").unwrap(), b"old"));
    let log = place.only_log();
    fs::remove_file(&log).unwrap();
    let error = place.open("moved").unwrap_err().to_string();
    assert!(error.contains(&name(&log)), "{error}");
    assert!(place.logs().is_empty());
    // Without NVRAM in the options, the store looks for the log in its own directory. The log is not there either.
    let error = Store::open(place.path("moved"), options(Scheme::NvDisk)).unwrap_err().to_string();
    let own = place.path("moved").join("log");
    assert!(error.contains(own.to_str().unwrap()) && !error.contains("damaged"), "{error}");
    assert!(!own.exists());
}

/// A salvage needs the log file too, even if its content is damaged.
#[test]
fn a_salvage_without_the_log_says_which_file_it_needs() {
    let place = Place::new();
    place.crashed("s", b"old");
    let log = place.only_log();
    fs::remove_file(&log).unwrap();
    let salvage =
        |options| Store::salvage(place.path("s"), place.path("out"), options).unwrap_err().to_string();
    let error = salvage(place.options());
    let name = log.file_name().unwrap().to_str().unwrap();
    assert!(error.contains(name) && error.contains(place.path("logs").to_str().unwrap()), "{error}");
    let error = salvage(options(Scheme::NvDisk));
    let own = place.path("s").join("log");
    assert!(error.contains(own.to_str().unwrap()) && !error.contains("damaged"), "{error}");
    assert!(place.logs().is_empty() && !own.exists());
}

/// The store does not exist until its page file has been renamed to the final name.
#[test]
fn no_log_is_left_behind_when_making_a_store_is_killed() {
    let place = Place::new();
    let killed_at_the_end = |name: &str| {
        fs::rename(place.path(name).join("pages"), place.path(name).join("pages.new")).unwrap();
    };
    place.crashed("s", b"old");
    let first = place.only_log();
    killed_at_the_end("s");
    let store = place.open("s").unwrap();
    assert!(!has(&store, b"old"));
    assert_ne!(place.only_log(), first);
    let table = store.table("t").unwrap();
    store.run(|tx| tx.put(&table, b"new", b"v")).unwrap();
    store.backup(place.path("backup")).unwrap();
    drop(store);
    let restore =
        || Store::restore(place.path("backup"), None, place.path("r"), RestoreTo::End, place.options());
    restore().unwrap();
    killed_at_the_end("r");
    // The files that the killed restore left do not make another restore fail.
    restore().unwrap();
    assert_eq!(place.logs().len(), 2, "{:?}", place.logs().keys());
    assert!(has(&place.open("r").unwrap(), b"new"));
    killed_at_the_end("r");
    assert!(!has(&place.open("r").unwrap(), b"new"));
    assert_eq!(place.logs().len(), 2, "{:?}", place.logs().keys());
}

/// While a restore copies the pages of a backup, the copy still names the log of the store that was backed up.
#[test]
fn inv75_a_restore_that_is_killed_while_it_copies_takes_no_log_away() {
    let place = Place::new();
    drop(place.open("s").unwrap());
    place.open("s").unwrap().backup(place.path("backup")).unwrap();
    place.crashed("s", b"old");
    let log = place.only_log();
    place.rename("s", "moved");
    let backup = fs::read(place.path("backup").join("pages")).unwrap();
    // The superblocks of earlier builds had no record of the changes that the page file has. Those builds also gave the
    // unfinished copy another name.
    let mut earlier = backup.clone();
    let slot = |at: u64| PageFileHead::decode(&backup[at as usize..]).ok();
    let mut head = SLOT_OFFSETS.into_iter().filter_map(slot).max_by_key(|head| head.number).unwrap();
    assert!(head.opened > 0 && head.home > 0);
    (head.home, head.number) = (0, head.number + 1);
    let at = SLOT_OFFSETS[(head.number % 2) as usize] as usize;
    let encoded = head.encode();
    earlier[at..at + encoded.len()].copy_from_slice(&encoded);
    for (name, pages) in [("pages.unfinished-copy", &backup), ("pages.new", &earlier)] {
        fs::create_dir(place.path("s")).unwrap();
        fs::write(place.path("s").join(name), pages).unwrap();
        let store = place.open("s").unwrap();
        assert!(log.exists(), "{name}");
        drop(store);
        fs::remove_dir_all(place.path("s")).unwrap();
    }
    place.rename("moved", "s");
    assert!(has(&place.open("s").unwrap(), b"old"));
}

/// The path of the log directory is so long that only a name as short as the log's can follow it. Before the store
/// makes a log, it makes a probe file, whose name is longer. So this attempt fails, even for a user who may write
/// everywhere.
#[test]
fn a_store_keeps_its_log_while_no_other_can_be_made() {
    let place = Place::new();
    place.crashed("s", b"old");
    let log = place.only_log();
    let longest = 4095 - 1 - log.file_name().unwrap().len();
    let mut dir = place.path("logs").into_os_string();
    dir.push("/".repeat(longest - dir.len()));
    let other = place.options().log_bytes(32 << 20);
    let error = Store::open(place.path("s"), other.clone().log(LogMedium::Nvram(dir.into()))).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    assert!(error.to_string().contains(place.path("logs").to_str().unwrap()), "{error}");
    // The failed attempt does the store no harm.
    assert_eq!(place.only_log(), log);
    assert!(has(&place.open("s").unwrap(), b"old"));
    assert_eq!(place.only_log(), log);
    assert!(has(&Store::open(place.path("s"), other).unwrap(), b"old"));
    assert_ne!(place.only_log(), log);
}

/// The directory contains empty probe files of killed attempts. It also contains files and a link that do not belong to
/// the store.
#[test]
fn a_store_that_gets_another_log_removes_old_probes_and_nothing_of_anybody_else() {
    let place = Place::new();
    place.crashed("s", b"old");
    let log = place.only_log();
    let named = |end: &str| earlier_name(&log).with_extension(end);
    let old = ["7-0123456789abcdef.probe", "4194304-fedcba9876543210.probe"].map(named);
    let others = ["new", "7-0123456789abcdef.log", "x-0123456789abcdef.probe", "7-0.probe"].map(named);
    let (letter, link) = (named("7-1111111111111111.probe"), named("7-2222222222222222.probe"));
    let elsewhere = place.path("elsewhere");
    old.iter().chain(&others).for_each(|path| fs::write(path, b"").unwrap());
    fs::write(&letter, b"Dear").unwrap();
    std::os::unix::fs::symlink(&elsewhere, &link).unwrap();
    let other = place.options().log_bytes(32 << 20);
    assert!(has(&Store::open(place.path("s"), other).unwrap(), b"old"));
    assert!(!elsewhere.exists(), "the store made a file elsewhere");
    old.iter().for_each(|path| assert!(!path.exists(), "{path:?}"));
    others.iter().chain([&letter]).for_each(|path| assert!(path.exists(), "{path:?}"));
    // Of the store's own files, only the new log is left.
    let left = fs::read_dir(place.path("logs")).unwrap().count();
    assert_eq!(left, others.len() + 3);
    assert!(link.is_symlink() && !log.exists());
}

/// The store can make files in the directory, but the directory is not on a DAX file system. The store finds that out
/// only after it has removed the old log.
#[test]
fn a_store_that_could_not_get_another_log_loses_nothing() {
    let place = Place::new();
    place.crashed("s", b"old");
    Store::open(place.path("s"), place.options().scheme(Scheme::FlushOnCommit)).unwrap_err();
    assert!(has(&place.open("s").unwrap(), b"old"));
    place.only_log();
}

#[test]
fn no_log_is_left_behind_when_a_store_gets_another_one_or_is_not_made() {
    let place = Place::new();
    drop(place.open("s").unwrap());
    for log_bytes in [32 << 20, 8 << 20] {
        drop(Store::open(place.path("s"), place.options().log_bytes(log_bytes)).unwrap());
        place.only_log();
    }
    place.open("s").unwrap().backup(place.path("backup")).unwrap();
    // The directory is no DAX file system, so a log in memory cannot be made there.
    let in_memory = place.options().scheme(Scheme::FlushOnCommit);
    Store::restore(place.path("backup"), None, place.path("r"), RestoreTo::End, in_memory.clone())
        .unwrap_err();
    place.only_log();
    for _ in 0..3 {
        Store::open(place.path("n"), in_memory.clone()).unwrap_err();
    }
    assert!(place.logs().len() <= 2, "{:?}", place.logs().keys());
    drop(place.open("n").unwrap());
    assert_eq!(place.logs().len(), 2, "{:?}", place.logs().keys());
}
