//! Stores of each format version, as a crash left them. Every later build has to open them.
//!
//! `STORE_GOLDEN=1 cargo test -p duralite-store --test all golden::` writes the files that are missing. It does not
//! change existing files.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use common::crash::{Images, OnRig, Rig};
use common::options;
use duralite_store::{Error, Options, Scheme, Store};

const PIECE: usize = 512;
const LOADED: u64 = 250;
const SCHEMES: [Scheme; 3] = [Scheme::Auto, Scheme::FlushOnCommit, Scheme::Distributed];

fn path(version: u32, scheme: Scheme) -> PathBuf {
    let name = if scheme == Scheme::Auto { "disk" } else { scheme.as_str() };
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("testdata/v{version}-{name}.pieces"))
}

fn small(scheme: Scheme) -> Options {
    options(scheme).log_bytes(4 << 20).page_bytes(4096)
}

/// Encodes each medium: its length, and those of its pieces that are not all zeros, each with its index.
fn encode(media: [&[u8]; 3]) -> Vec<u8> {
    let mut out = Vec::new();
    for bytes in media {
        let pieces: Vec<_> = (0_u32..)
            .zip(bytes.chunks(PIECE))
            .filter(|(_, piece)| piece.iter().any(|byte| *byte != 0))
            .collect();
        out.extend((bytes.len() as u64).to_le_bytes());
        out.extend((pieces.len() as u32).to_le_bytes());
        for (number, piece) in pieces {
            out.extend(number.to_le_bytes());
            out.extend(piece);
        }
    }
    out
}

fn decode(mut rest: &[u8]) -> Images {
    let mut take = |len: usize| {
        let (head, tail) = rest.split_at(len);
        rest = tail;
        head.to_vec()
    };
    let mut medium = || {
        let mut bytes = vec![0; u64::from_le_bytes(take(8).try_into().unwrap()) as usize];
        for _ in 0..u32::from_le_bytes(take(4).try_into().unwrap()) {
            let at = u32::from_le_bytes(take(4).try_into().unwrap()) as usize * PIECE;
            bytes[at..at + PIECE].copy_from_slice(&take(PIECE));
        }
        bytes
    };
    Images { pages: medium(), blocks: medium(), memory: medium() }
}

fn row(n: u64) -> ([u8; 8], Vec<u8>) {
    let len = if n == 7 { 20_000 } else { 20 + n as usize };
    (n.to_be_bytes(), vec![n as u8; len])
}

/// Makes a store with rows in the page file, rows only in the log, a deleted row, and a transaction that has not
/// committed. It also has a bulk load that has committed, and one that has not.
fn make(scheme: Scheme) -> Images {
    let rig = Rig::new(None);
    let store = Store::open_on(OnRig(Arc::clone(&rig)), small(scheme)).unwrap();
    let table = store.table("golden").unwrap();
    let put = |n| store.run(|tx| tx.put(&table, &row(n).0, &row(n).1)).unwrap();
    (0..100).for_each(put);
    store.checkpoint().unwrap();
    (100..130).for_each(put);
    store.run(|tx| tx.delete(&table, &row(50).0)).unwrap();
    let mut open = store.begin();
    open.put(&table, &row(60).0, b"never committed").unwrap();
    let loaded = store.table("loaded").unwrap();
    store.load(&loaded, (0..LOADED).map(row)).unwrap();
    let unfinished = store.table("unfinished").unwrap();
    let mut load = store.bulk_load(&unfinished).unwrap();
    (0..LOADED).for_each(|n| load.put(&row(n).0, &row(n).1).unwrap());
    store.run(|tx| tx.put(&table, &row(130).0, &row(130).1)).unwrap();
    rig.death()
}

#[test]
fn stores_of_each_version_are_opened() {
    for (version, scheme) in (1..=4).flat_map(|version| SCHEMES.map(|scheme| (version, scheme))) {
        let path = path(version, scheme);
        if std::env::var_os("STORE_GOLDEN").is_some() && !path.exists() {
            let images = make(scheme);
            fs::write(&path, encode([&images.pages, &images.blocks, &images.memory])).unwrap();
        }
        let images = decode(&fs::read(&path).unwrap());
        let store = Store::open_on(OnRig(Rig::new(Some(images))), small(scheme)).unwrap();
        let (undone, loaded) = if version < 3 { (1, 0) } else { (2, LOADED) };
        assert_eq!(store.metrics().recovered_transactions, undone, "version {version}, {scheme:?}");
        assert_eq!(store.verify().unwrap().rows, 130 + loaded);
        let table = store.table("loaded").unwrap();
        let rows = store.begin().scan(&table, ..).map(Result::unwrap).collect::<Vec<_>>();
        assert!(rows.into_iter().eq((0..loaded).map(|n| (row(n).0.to_vec(), row(n).1))), "{scheme:?}");
        let table = store.table("golden").unwrap();
        let rows = store.run(|tx| tx.scan(&table, ..).collect::<Result<Vec<_>, _>>()).unwrap();
        let expected = (0..131).filter(|n| *n != 50).map(|n| (row(n).0.to_vec(), row(n).1));
        assert!(rows.into_iter().eq(expected), "{scheme:?}");
    }
}

/// Before version 4, a superblock had no record of the changes that the page file has. So when this build first opens
/// such a store, it replaces the log, even if the power fails at any step of the opening. An older copy of the page
/// file then no longer finds its log.
#[test]
fn inv76_an_older_copy_that_does_not_say_what_is_home_is_refused() {
    let open = |images: &Images, scheme| {
        let rig = Rig::new(Some(images.clone()));
        (Store::open_on(OnRig(Arc::clone(&rig)), small(scheme)), rig)
    };
    for (version, scheme) in (1..=3).flat_map(|version| SCHEMES.map(|scheme| (version, scheme))) {
        let old = decode(&fs::read(path(version, scheme)).unwrap());
        let (store, rig) = open(&old, scheme);
        drop(store.unwrap());
        let mut left = vec![rig.death()];
        if scheme == Scheme::Auto {
            let rig = Rig::new(Some(old.clone()));
            // With 2000 random crashes among 100 steps, hardly any step is left out.
            rig.crash(2000, 100, u64::from(version));
            drop(Store::open_on(OnRig(Arc::clone(&rig)), small(scheme)).unwrap());
            left.extend(rig.crashes().into_iter().map(|crash| crash.images));
            assert!(left.len() > 10);
        }
        for (nth, images) in left.iter().enumerate() {
            let what = format!("version {version}, {scheme:?}, state {nth}");
            let (store, rig) = open(images, scheme);
            store.unwrap().verify().unwrap();
            let (refused, _) = open(&Images { pages: old.pages.clone(), ..rig.death() }, scheme);
            let error = refused.err().unwrap_or_else(|| panic!("{what}: the copy was opened"));
            assert!(matches!(error, Error::Invalid { .. }), "{what}: {error}");
        }
    }
}
