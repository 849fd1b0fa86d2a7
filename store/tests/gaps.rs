//! Archives with gaps. A restore must report a gap, and never skip it.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use common::options;
use duralite_store::{Error, Options, RestoreTo, Scheme, Store};

/// A directory with a store, the store's archive, and a backup.
struct Place {
    dir: tempfile::TempDir,
    scheme: Scheme,
}

impl Place {
    /// Makes a store with one row, and a backup of it.
    fn new(scheme: Scheme) -> Self {
        let it = Self { dir: tempfile::tempdir().unwrap(), scheme };
        let store = Store::open(it.path("store"), it.archived()).unwrap();
        put(&store, 0);
        store.backup(it.path("backup")).unwrap();
        drop(store);
        it
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn archived(&self) -> Options {
        options(self.scheme).archive(self.path("archive"))
    }

    /// Opens the store, puts a row, and closes the store. If the options name an archive, the round adds at least one
    /// segment to the archive.
    fn round(&self, n: u64, options: &Options) {
        put(&Store::open(self.path("store"), options.clone()).unwrap(), n);
    }

    fn segments(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("archive")).unwrap().map(|entry| entry.unwrap().path());
        let mut segments: Vec<PathBuf> =
            entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("log-")).collect();
        segments.sort();
        segments
    }

    /// Restores a backup. Returns the numbers of the rows in the restored store.
    fn restore(&self, backup: &str, to: RestoreTo) -> Result<Vec<u64>, Error> {
        let target = self.path("restored");
        let archive = self.path("archive");
        let done = Store::restore(self.path(backup), Some(&archive), &target, to, options(self.scheme));
        if done.is_err() {
            // After a failure the directory is empty again, so that another attempt can use it.
            assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
        }
        done?;
        let rows = rows(&target, self.scheme);
        fs::remove_dir_all(&target).unwrap();
        Ok(rows)
    }
}

fn put(store: &Store, n: u64) {
    let table = store.table("t").unwrap();
    store.run(|tx| tx.put(&table, &n.to_be_bytes(), b"row")).unwrap();
}

fn rows(path: &Path, scheme: Scheme) -> Vec<u64> {
    let store = Store::open(path, options(scheme)).unwrap();
    let table = store.table("t").unwrap();
    let key = |row: Result<(Vec<u8>, Vec<u8>), Error>| {
        Ok::<_, Error>(u64::from_be_bytes(row?.0.try_into().unwrap()))
    };
    store.run(|tx| tx.scan(&table, ..).map(key).collect()).unwrap()
}

const SCHEMES: [Scheme; 3] = [Scheme::Auto, Scheme::FlushOnCommit, Scheme::Distributed];

/// Returns the last moment that can be restored, which the text of the error contains.
fn named(error: &Error) -> u64 {
    let text = error.to_string();
    let after = text.split("RestoreTo::Lsn(").nth(1).unwrap_or_else(|| panic!("no moment in: {text}"));
    after.split(')').next().unwrap().parse().unwrap()
}

#[test]
fn inv47_a_missing_segment_is_an_error_that_names_the_last_moment_whichever_it_is() {
    for scheme in SCHEMES {
        let place = Place::new(scheme);
        let moments: Vec<SystemTime> = (1..=5)
            .map(|n| {
                place.round(n, &place.archived());
                SystemTime::now()
            })
            .collect();
        assert_eq!(place.restore("backup", RestoreTo::End).unwrap(), [0, 1, 2, 3, 4, 5]);
        let segments = place.segments();
        assert!(segments.len() >= 5, "{segments:?}");
        let mut had = 0;
        for missing in &segments {
            let hidden = place.path("hidden");
            fs::rename(missing, &hidden).unwrap();
            let found = place.restore("backup", RestoreTo::End);
            // The segment is not needed if the backup itself has the segment's objects.
            if let Ok(rows) = &found {
                assert_eq!((rows.len(), missing), (6, &segments[0]), "{scheme:?}");
            } else {
                let error = found.unwrap_err();
                assert!(matches!(error, Error::Gap { .. }), "{scheme:?}: {error}");
                let before = place.restore("backup", RestoreTo::Lsn(named(&error))).unwrap();
                assert_eq!(before, (0..before.len() as u64).collect::<Vec<_>>());
                assert!(before.len() < 6 && before.len() >= had, "{scheme:?}: {before:?}");
                had = before.len();
                // A restore to a moment after the gap must fail, and must not stop before the gap instead. A moment
                // before the gap can be restored.
                let earlier = place.restore("backup", RestoreTo::Time(SystemTime::now()));
                assert!(matches!(earlier, Err(Error::Gap { .. })), "{earlier:?}");
                if before.len() > 2 {
                    let then = place.restore("backup", RestoreTo::Time(moments[0])).unwrap();
                    assert_eq!(then, [0, 1]);
                }
            }
            fs::rename(&hidden, missing).unwrap();
        }
        assert!(had >= 4, "{scheme:?}: {had}");
    }
}

#[test]
fn inv47_a_store_that_was_opened_without_its_archive_begins_another_line_in_it() {
    for scheme in SCHEMES {
        let place = Place::new(scheme);
        place.round(1, &place.archived());
        place.round(2, &options(scheme));
        place.round(3, &place.archived());
        let store = Store::open(place.path("store"), place.archived()).unwrap();
        store.backup(place.path("later")).unwrap();
        drop(store);
        place.round(4, &place.archived());
        let error = place.restore("backup", RestoreTo::End).unwrap_err();
        assert!(matches!(error, Error::Gap { .. }), "{scheme:?}: {error}");
        assert!(error.to_string().contains("without this archive"), "{error}");
        assert_eq!(place.restore("backup", RestoreTo::Lsn(named(&error))).unwrap(), [0, 1]);
        assert_eq!(place.restore("later", RestoreTo::End).unwrap(), [0, 1, 2, 3, 4]);
        let store = Store::open(place.path("store"), place.archived()).unwrap();
        assert!(store.metrics().archived_from > 1, "the store says from where on its archive is whole");
    }
}

/// If the options ask for another log size, the store makes a new log, which continues where the old one ended.
#[test]
fn a_new_log_of_the_same_history_is_no_gap() {
    let place = Place::new(Scheme::Auto);
    place.round(1, &place.archived());
    place.round(2, &place.archived().log_bytes(32 << 20));
    place.round(3, &place.archived());
    assert_eq!(place.restore("backup", RestoreTo::End).unwrap(), [0, 1, 2, 3]);
}

/// The numbers of the restored store's log objects continue those in the archive, but the objects belong to another
/// history.
#[test]
fn inv47_a_restored_store_does_not_go_on_in_the_archive_of_the_other() {
    let place = Place::new(Scheme::Auto);
    place.round(1, &place.archived());
    place.round(2, &place.archived());
    let again = place.path("again");
    Store::restore(place.path("backup"), None, &again, RestoreTo::End, options(Scheme::Auto)).unwrap();
    // Gives the restored store more objects than the archive has. All of them are still in its log.
    let store = Store::open(&again, options(Scheme::Auto)).unwrap();
    (10..40).for_each(|n| put(&store, n));
    drop(store);
    let opened = Store::open(&again, place.archived());
    assert!(matches!(opened, Err(Error::Invalid { .. })), "{opened:?}");
    assert_eq!(place.restore("backup", RestoreTo::End).unwrap(), [0, 1, 2]);
}

#[test]
fn a_damaged_head_of_a_segment_is_damage_and_no_end() {
    let place = Place::new(Scheme::Auto);
    (1..4).for_each(|n| place.round(n, &place.archived()));
    let segments = place.segments();
    let middle = &segments[segments.len() / 2];
    let whole = fs::read(middle).unwrap();
    for at in 0..64 {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(middle, bytes).unwrap();
        let restored = place.restore("backup", RestoreTo::End);
        assert!(matches!(restored, Err(Error::Corrupt { .. })), "byte {at}: {restored:?}");
    }
    fs::write(middle, &whole[..40]).unwrap();
    let restored = place.restore("backup", RestoreTo::End);
    assert!(matches!(restored, Err(Error::Corrupt { .. })), "{restored:?}");
    fs::write(middle, whole).unwrap();
    assert_eq!(place.restore("backup", RestoreTo::End).unwrap(), [0, 1, 2, 3]);
}
