//! Recovery must tell damage in the middle of a log from an end that a crash may have left.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use common::crash::{Images, OnRig, Rig};
use common::{options, schemes};
use duralite_store::{Error, LogMedium, Options, Scheme, Store};

const ROWS: u64 = 300;
const BLOCK: usize = 4096;

fn small(scheme: Scheme) -> Options {
    options(scheme).log_bytes(4 << 20).page_bytes(4096)
}

fn is_in_memory(scheme: Scheme) -> bool {
    options(scheme).log == LogMedium::Emulated
}

/// Returns the media of a store that committed its rows one after another. All of the rows are only in the log.
fn made(scheme: Scheme) -> Images {
    let rig = Rig::new(None);
    let store = Store::open_on(OnRig(Arc::clone(&rig)), small(scheme)).unwrap();
    let table = store.table("t").unwrap();
    for n in 0..ROWS {
        store.run(|tx| tx.put(&table, &n.to_be_bytes(), &[n as u8; 200])).unwrap();
    }
    rig.death()
}

fn rows(store: &Store) -> Result<u64, Error> {
    let table = store.table("t")?;
    let rows = store.run(|tx| tx.scan(&table, ..).collect::<Result<Vec<_>, _>>())?;
    for (n, (key, value)) in (0_u64..).zip(&rows) {
        assert_eq!((key.as_slice(), value), (&n.to_be_bytes()[..], &vec![n as u8; 200]));
    }
    store.verify()?;
    Ok(rows.len() as u64)
}

fn log_of(images: &mut Images, scheme: Scheme) -> &mut Vec<u8> {
    if is_in_memory(scheme) { &mut images.memory } else { &mut images.blocks }
}

/// Damage to the last blocks may look like a crash, because nothing was written after them.
#[test]
fn inv48_a_block_of_the_log_that_is_zeroed_or_flipped_is_refused_or_loses_nothing() {
    for scheme in schemes() {
        let images = made(scheme);
        let mut whole = images.clone();
        let blocks: Vec<usize> = log_of(&mut whole, scheme)
            .chunks(BLOCK)
            .enumerate()
            .filter(|(_, block)| block.iter().any(|byte| *byte != 0))
            .map(|(at, _)| at)
            .collect();
        let (mut refused, mut lossless, mut torn) = (0, 0, 0);
        for (nth, at) in blocks.iter().enumerate() {
            // Damages the whole block, or only a few bytes of it. In a log in memory, these bytes belong to only a few
            // objects.
            for way in 0..4 {
                let mut damaged = images.clone();
                let block = &mut log_of(&mut damaged, scheme)[at * BLOCK..(at + 1) * BLOCK];
                match way {
                    0 => block.fill(0),
                    1 => block.iter_mut().for_each(|byte| *byte = !*byte),
                    2 => block[..512].fill(0),
                    _ => block[64..128].iter_mut().for_each(|byte| *byte ^= 1),
                }
                let rig = Rig::new(Some(damaged.clone()));
                let opened = Store::open_on(OnRig(Arc::clone(&rig)), small(scheme));
                match opened.and_then(|store| rows(&store)) {
                    Ok(ROWS) => lossless += 1,
                    Ok(rows) => {
                        torn += 1;
                        // Only the last commit may be lost. If this is the last block, all commits in it may be lost.
                        // Nothing was written after these commits, so nothing proves the damage.
                        let is_last = nth + 1 == blocks.len();
                        assert!(
                            rows + 1 >= ROWS || is_last,
                            "{scheme:?}: block {at} ({nth}), way {way}: {rows} rows"
                        );
                    }
                    Err(error) => {
                        assert!(matches!(error, Error::Corrupt { .. }), "{scheme:?}: {error}");
                        refused += 1;
                        // A refused log must not be changed.
                        assert_eq!(*log_of(&mut rig.death(), scheme), *log_of(&mut damaged, scheme));
                    }
                }
            }
        }
        println!("{scheme:?}: {refused} refused, {lossless} lossless, {torn} torn");
        assert!(refused > 20 && torn < 8, "{scheme:?}: {refused} refused, {lossless} lossless, {torn} torn");
    }
}

/// Makes a store in a directory. Its log is in the state in which a dying process left it, except that a block in the
/// middle is filled with zeros.
fn damaged(dir: &Path, scheme: Scheme) {
    drop(Store::open(dir, small(scheme)).unwrap());
    let mut images = made(scheme);
    let log = log_of(&mut images, scheme);
    let used: Vec<usize> = (0..log.len() / BLOCK)
        .filter(|at| log[at * BLOCK..(at + 1) * BLOCK].iter().any(|byte| *byte != 0))
        .collect();
    let at = used[used.len() / 2];
    log[at * BLOCK..(at + 1) * BLOCK].fill(0);
    let name = if is_in_memory(scheme) { "log.nvram" } else { "log" };
    fs::write(dir.join(name), &*log).unwrap();
    fs::write(dir.join("pages"), &images.pages).unwrap();
}

#[test]
fn inv48_salvage_makes_the_store_of_before_the_damage_and_changes_nothing_in_place() {
    for scheme in schemes() {
        let dir = tempfile::tempdir().unwrap();
        let (path, out) = (dir.path().join("s"), dir.path().join("out"));
        damaged(&path, scheme);
        let files =
            || ["pages", "log", "log.nvram"].map(|name| fs::read(path.join(name)).unwrap_or_default());
        let before = files();
        let error = Store::open(&path, small(scheme)).unwrap_err();
        assert!(error.to_string().contains("duralite store salvage"), "{scheme:?}: {error}");
        let salvaged = Store::salvage(&path, &out, small(scheme)).unwrap();
        assert!(files() == before, "{scheme:?}: the damaged store was changed");
        let options = small(scheme).scheme(Scheme::Auto);
        let saved = rows(&Store::open(&out, options).unwrap()).unwrap();
        // The transaction that made the table is counted too.
        assert_eq!(salvaged.transactions, saved + 1, "{scheme:?}: {salvaged:?}");
        assert!(saved > 0 && saved < ROWS, "{scheme:?}: {saved}");
        assert!(
            salvaged.lost_commits > 0 && saved + salvaged.lost_commits <= ROWS,
            "{scheme:?}: {salvaged:?}"
        );
        // A second attempt needs another directory. Salvaging a store without damage is refused.
        assert!(matches!(Store::salvage(&path, &out, small(scheme)), Err(Error::Invalid { .. })));
        let again = dir.path().join("again");
        let whole = Store::salvage(&out, &again, small(scheme).scheme(Scheme::Auto));
        assert!(matches!(whole, Err(Error::Invalid { .. })), "{whole:?}");
    }
}
