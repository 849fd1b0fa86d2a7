//! Tests that prune the oldest part of an archive. A backup can still be restored to later moments if the rest of the
//! archive begins no later than the backup's end.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::path::Path;
use std::time::Duration;

use common::options;
use duralite_store::{Error, Keep, Options, RestoreTo, Scheme, Store};

/// Returns the first object of each segment of an archive, and the segment's size in bytes.
fn segments(archive: &Path) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(archive).unwrap() {
        let entry = entry.unwrap();
        if let Some(first) = entry.file_name().to_str().and_then(|name| name.strip_prefix("log-")) {
            found.push((first.parse().unwrap(), entry.metadata().unwrap().len()));
        }
    }
    found.sort_unstable();
    found
}

fn put(store: &Store, n: u64) {
    let table = store.table("t").unwrap();
    store.run(|tx| tx.put(&table, &n.to_be_bytes(), &[n as u8; 1000])).unwrap();
    store.checkpoint().unwrap();
}

fn restored(dir: &Path, backup: &str, options: &Options, name: &str) -> Result<usize, Error> {
    let to = dir.join(name);
    Store::restore(dir.join(backup), Some(&dir.join("archive")), &to, RestoreTo::End, options.clone())?;
    let store = Store::open(&to, options.clone())?;
    let table = store.table("t")?;
    store.run(|tx| Ok(tx.scan(&table, ..).count()))
}

#[test]
fn what_is_left_of_an_archive_restores_what_it_can() {
    for keep in [0, 1, 2] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let archive = dir.join("archive");
        let plain = options(Scheme::Auto);
        let store = Store::open(dir.join("s"), plain.clone().archive(&archive)).unwrap();
        let old = store.backup(dir.join("old")).unwrap();
        (0..5).for_each(|n| put(&store, n));
        let new = store.backup(dir.join("new")).unwrap();
        (5..10).for_each(|n| put(&store, n));
        let before = segments(&archive);
        assert!(before.len() >= 10, "{before:?}");
        assert_eq!(store.prune_archive(Keep::Bytes(u64::MAX)).unwrap().segments, 0);
        assert_eq!(store.prune_archive(Keep::For(Duration::from_secs(3600))).unwrap().segments, 0);
        assert_eq!(store.prune_archive(Keep::After(old)).unwrap().segments, 0);
        let pruned = match keep {
            0 => store.prune_archive(Keep::After(new)).unwrap(),
            1 => {
                let half = before.iter().skip(before.len() / 2).map(|(_, bytes)| bytes).sum();
                store.prune_archive(Keep::Bytes(half)).unwrap()
            }
            _ => store.prune_archive(Keep::For(Duration::ZERO)).unwrap(),
        };
        let left = segments(&archive);
        assert_eq!(left, before[pruned.segments as usize..]);
        assert!(pruned.segments > 0 && !left.is_empty(), "{pruned:?}");
        assert_eq!(pruned.bytes, before[..pruned.segments as usize].iter().map(|(_, bytes)| bytes).sum());
        assert_eq!(store.metrics().archived_from, left[0].0);
        put(&store, 10);
        drop(store);
        assert!(matches!(restored(dir, "old", &plain, "from old"), Err(Error::Gap { .. })));
        let from_new = restored(dir, "new", &plain, "from new");
        if keep == 2 {
            assert!(matches!(from_new, Err(Error::Gap { .. })), "{from_new:?}");
        } else {
            assert_eq!(from_new.unwrap(), 11);
        }
        // The store must be able to continue with the pruned archive.
        let store = Store::open(dir.join("s"), plain.clone().archive(&archive)).unwrap();
        store.backup(dir.join("last")).unwrap();
        put(&store, 11);
        drop(store);
        assert_eq!(restored(dir, "last", &plain, "from last").unwrap(), 12);
    }
}

#[test]
fn a_store_without_an_archive_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("s"), Options::default()).unwrap();
    assert!(matches!(store.prune_archive(Keep::Bytes(0)), Err(Error::Invalid { .. })));
}
