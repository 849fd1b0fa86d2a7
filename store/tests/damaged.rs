//! Damaged bytes cause an error, but no panic and no endless loop.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::sync::Arc;

use common::crash::{Images, OnRig, Rig};
use common::options;
use duralite_store::format::{PageFileHead, PageKind, kind, page_id, seal, set_lsn};
use duralite_store::{Error, Options, Scheme, Store};

fn small(scheme: Scheme) -> Options {
    options(scheme).log_bytes(4 << 20).page_bytes(4096)
}

/// Returns how many stores the tests damage, for each scheme and each kind of damage. `STORE_DAMAGED` sets another
/// number.
fn rounds() -> u64 {
    std::env::var("STORE_DAMAGED").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(60)
}

fn make(scheme: Scheme) -> Images {
    let rig = Rig::new(None);
    let store = Store::open_on(OnRig(Arc::clone(&rig)), small(scheme)).unwrap();
    let table = store.table("t").unwrap();
    for n in 0..150_u64 {
        let len = if n % 30 == 7 { 9000 } else { 120 };
        store.run(|tx| tx.put(&table, &n.to_be_bytes(), &vec![n as u8; len])).unwrap();
        if n == 100 {
            store.checkpoint().unwrap();
        }
    }
    rig.death()
}

/// Uses the store in many ways, and ignores errors of these uses. Returns the result of the verification.
fn use_all(images: Images, scheme: Scheme) -> Result<(), Error> {
    let store = Store::open_on(OnRig(Rig::new(Some(images))), small(scheme))?;
    let verified = store.verify();
    let table = store.table("t")?;
    let _ = store.run(|tx| tx.scan(&table, ..).rev().collect::<Result<Vec<_>, _>>());
    for n in (0..150_u64).step_by(7) {
        let _ = store.run(|tx| tx.put(&table, &n.to_be_bytes(), &[1; 900]));
        let _ = store.run(|tx| tx.delete(&table, &(n + 1).to_be_bytes()));
    }
    let _ = store.checkpoint();
    verified.map(|_| ())
}

fn some_byte(bytes: &mut [u8], random: &mut fastrand::Rng) -> usize {
    loop {
        let at = random.usize(0..bytes.len());
        let from = at / 512 * 512;
        if bytes[from..(from + 512).min(bytes.len())].iter().any(|byte| *byte != 0) {
            bytes[at] ^= random.u8(1..);
            return at;
        }
    }
}

#[test]
fn a_damaged_byte_anywhere_is_an_error_or_harmless() {
    for scheme in [Scheme::Auto, Scheme::FlushOnInsert, Scheme::Distributed] {
        let images = make(scheme);
        for seed in 0..rounds() {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut damaged = images.clone();
            let log = if scheme == Scheme::Auto { &mut damaged.blocks } else { &mut damaged.memory };
            let medium = if random.bool() { log } else { &mut damaged.pages };
            some_byte(medium, &mut random);
            let _ = use_all(damaged, scheme);
        }
    }
}

/// The damaged pages have a valid checksum, but impossible content.
#[test]
fn pages_that_make_no_sense_are_errors() {
    let mut images = make(Scheme::Auto);
    // First makes a checkpoint, which writes all pages to the page file. Otherwise recovery would redo changes, and so
    // repair the damaged pages.
    {
        let rig = Rig::new(Some(images));
        let store = Store::open_on(OnRig(Arc::clone(&rig)), small(Scheme::Auto)).unwrap();
        store.checkpoint().unwrap();
        drop(store);
        images = rig.death();
    }
    let head =
        PageFileHead::decode(&images.pages).or_else(|_| PageFileHead::decode(&images.pages[4096..])).unwrap();
    let first = 8 + 65;
    let in_use: Vec<usize> = (first..images.pages.len() / 4096)
        .filter(|page| page_id(&images.pages[page * 4096..]) == *page as u64)
        .collect();
    let mut noticed = 0;
    for seed in 0..rounds() * 4 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut damaged = images.clone();
        let page = in_use[random.usize(0..in_use.len())];
        let bytes = &mut damaged.pages[page * 4096..(page + 1) * 4096];
        for _ in 0..random.usize(1..4) {
            // Header, slots and first cells matter most, so half of the changes are there.
            let at = if random.bool() { random.usize(24..120) } else { random.usize(24..4096) };
            bytes[at] = random.u8(..);
        }
        seal(bytes, page as u64, head.seed());
        // Clears the double-write area, so that recovery does not restore the page from it.
        damaged.pages[8 * 4096..9 * 4096].fill(0);
        noticed += u64::from(use_all(damaged, Scheme::Auto).is_err());
    }
    assert!(noticed > rounds(), "{noticed} noticed");
}

/// Deleting a row frees the row's overflow pages, as far as they can be read. A damaged page does not prevent the
/// deletion.
#[test]
fn a_damaged_page_of_a_long_row_does_not_keep_it_from_going() {
    let mut images = make(Scheme::Auto);
    {
        let rig = Rig::new(Some(images));
        drop(Store::open_on(OnRig(Arc::clone(&rig)), small(Scheme::Auto)).unwrap());
        images = rig.death();
    }
    let is_long = |page: &usize| kind(&images.pages[page * 4096..]) == PageKind::Overflow;
    // Damages the second page of a chain of three. The pages of a chain follow each other in the file, so the
    // second page of the chain is the second overflow page of the file.
    let overflow: Vec<usize> = (8 + 65..images.pages.len() / 4096).filter(is_long).collect();
    assert_eq!(overflow.len(), 15);
    images.pages[overflow[1] * 4096 + 2000] ^= 1;
    images.pages[8 * 4096..9 * 4096].fill(0);
    let rig = Rig::new(Some(images));
    let store = Store::open_on(OnRig(Arc::clone(&rig)), small(Scheme::Auto)).unwrap();
    let table = store.table("t").unwrap();
    store
        .run(|tx| [7_u64, 37, 67].iter().try_for_each(|n| tx.delete(&table, &n.to_be_bytes()).map(|_| ())))
        .unwrap();
    store.run(|tx| tx.put(&table, b"more", &[1; 9000])).unwrap();
    let images = rig.death();
    drop((table, store));
    for images in [images, rig.death()] {
        let store = Store::open_on(OnRig(Rig::new(Some(images))), small(Scheme::Auto)).unwrap();
        let table = store.table("t").unwrap();
        assert_eq!(store.run(|tx| tx.get(&table, b"more")).unwrap(), Some(vec![1; 9000]));
        let error = store.verify().unwrap_err();
        assert!(error.to_string().contains("no tree reaches"), "{error}");
    }
}

/// The store must refuse a page whose LSN is beyond the end of the log. Otherwise a thread would wait forever until the
/// log is durable up to that LSN.
#[test]
fn a_page_that_is_newer_than_the_log_is_an_error() {
    let mut images = make(Scheme::Auto);
    let head =
        PageFileHead::decode(&images.pages).or_else(|_| PageFileHead::decode(&images.pages[4096..])).unwrap();
    let is_leaf = |page: &usize| kind(&images.pages[page * 4096..]) == PageKind::Leaf;
    let leaves: Vec<usize> = (8 + 65..images.pages.len() / 4096).filter(is_leaf).collect();
    for leaf in leaves {
        let bytes = &mut images.pages[leaf * 4096..(leaf + 1) * 4096];
        set_lsn(bytes, u64::MAX / 2);
        seal(bytes, leaf as u64, head.seed());
    }
    images.pages[8 * 4096..9 * 4096].fill(0);
    let error = use_all(images, Scheme::Auto).unwrap_err();
    assert!(error.to_string().contains("newer than the log"), "{error}");
}
