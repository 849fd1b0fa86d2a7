//! Scans read leaf pages ahead of the rows that they return. Meanwhile, other transactions change the same rows, and
//! some pages cannot be read.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use common::crash::{Images, OnRig, Rig};
use common::options;
use duralite_crashmodel::BlockOp;
use duralite_medium::MediumError;
use duralite_store::format::{PageKind, cell, cell_count, cell_key, kind, page_id};
use duralite_store::{Error, Options, Row, Scheme, Store, Table};

const PAGE: usize = 4096;
/// The size of a row's value in bytes. Four such rows fit into a page.
const ROW_BYTES: usize = 800;
/// The number of rows. They fill several hundred leaves.
const ROWS: u32 = 2000;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn smallest() -> Options {
    options(Scheme::Auto)
        .page_bytes(PAGE as u32)
        .cache_bytes(Options::smallest_cache_bytes(PAGE as u32))
        .lock_timeout(Duration::from_millis(1))
}

fn key(n: u32) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

fn fill(store: &Store, name: &str) -> Table {
    let table = store.table(name).unwrap();
    for first in (0..ROWS).step_by(50) {
        let put = |n: u32| (key(n), vec![n as u8; ROW_BYTES]);
        store.run(|tx| tx.put_all(&table, (first..first + 50).map(put))).unwrap();
    }
    table
}

/// Returns the media of a store that has written all its pages to the page file.
fn images() -> Images {
    let rig = Rig::new(None);
    let store = Store::open_on(OnRig(Arc::clone(&rig)), smallest()).unwrap();
    fill(&store, "t");
    store.checkpoint().unwrap();
    drop(store);
    rig.death()
}

/// Returns the numbers of the rows in a page; `None` if the page is not a leaf with such rows.
fn rows_of(page: &[u8]) -> Option<Range<u32>> {
    let number = |index| {
        let key = cell_key(PageKind::Leaf, cell(page, index).ok()?).ok()?;
        Some(u32::from_be_bytes(key.try_into().ok()?))
    };
    let is_leaf = kind(page) == PageKind::Leaf && cell_count(page) > 0;
    is_leaf.then(|| Some(number(0)?..number(cell_count(page) - 1)? + 1)).flatten()
}

/// Scans all rows in one of four ways. Returns the rows found, and the error that ended the scan, if any.
fn scan(store: &Store, table: &Table, way: u32) -> (Vec<u32>, Option<Error>) {
    let (tx, snapshot) = (store.begin(), store.snapshot());
    let rows: Box<dyn Iterator<Item = Result<Row, Error>>> = match way {
        0 => Box::new(tx.scan(table, ..)),
        1 => Box::new(tx.scan(table, ..).rev()),
        2 => Box::new(snapshot.scan(table, ..)),
        _ => Box::new(snapshot.scan(table, ..).rev()),
    };
    let mut found = Vec::new();
    for row in rows {
        match row {
            Ok((key, value)) => {
                let n = u32::from_be_bytes(key.try_into().unwrap());
                assert_eq!(value, [n as u8; ROW_BYTES]);
                found.push(n);
            }
            Err(error) => return (found, Some(error)),
        }
    }
    (found, None)
}

fn all(way: u32) -> Vec<u32> {
    if way.is_multiple_of(2) { (0..ROWS).collect() } else { (0..ROWS).rev().collect() }
}

#[test]
fn inv54_a_damaged_page_is_told_to_who_needs_it_and_to_nobody_before() {
    let mut images = images();
    let middle = images.pages.chunks_mut(PAGE).zip(0..).find_map(|(page, id)| {
        let rows = rows_of(page).filter(|rows| page_id(page) == id && rows.contains(&(ROWS / 2)))?;
        page[PAGE - 1] ^= 1;
        Some((id, rows))
    });
    let (damaged, rows) = middle.unwrap();
    for way in 0..4 {
        let store = Store::open_on(OnRig(Rig::new(Some(images.clone()))), smallest()).unwrap();
        let table = store.table("t").unwrap();
        let (found, error) = scan(&store, &table, way);
        let until = if way.is_multiple_of(2) { rows.start } else { ROWS - rows.end };
        assert_eq!(found, all(way)[..until as usize], "way {way}");
        assert!(
            matches!(error, Some(Error::Corrupt { page: Some(page), .. }) if page == damaged),
            "way {way}: {error:?}"
        );
        assert!(store.metrics().pages_read_ahead > u64::from(until) / 8, "way {way}: nothing was read ahead");
        // A scan that stops before the damaged page gets no error, and neither does a scan that needs only other pages.
        let before = key(rows.start);
        assert_eq!(store.snapshot().scan(&table, ..&before[..]).filter(Result::is_err).count(), 0);
        let after = key(rows.end);
        assert_eq!(store.begin().scan(&table, &after[..]..).filter(Result::is_err).count(), 0);
        assert!(store.begin().get(&table, &key(rows.start)).is_err());
    }
}

#[test]
fn inv54_a_read_that_fails_once_fails_only_who_needs_the_page() {
    let images = images();
    let (mut told, mut passed) = (0, 0);
    for nth in (0..120).chain((120..500).step_by(19)) {
        let way = nth as u32 % 4;
        let rig = Rig::new(Some(images.clone()));
        let store = Store::open_on(OnRig(Arc::clone(&rig)), smallest()).unwrap();
        let table = store.table("t").unwrap();
        rig.pages.fail(
            BlockOp::Read,
            nth,
            MediumError::Unsupported { what: "this read, which was made to fail," },
        );
        let (found, error) = scan(&store, &table, way);
        assert_eq!(found, all(way)[..found.len()], "read {nth}");
        match error {
            Some(Error::Io { .. } | Error::Corrupt { .. }) => told += 1,
            Some(error) => panic!("read {nth}: {error}"),
            None => {
                passed += 1;
                assert_eq!(found, all(way), "read {nth}");
            }
        }
        // The read failed only once, so another scan must find all rows.
        let (found, error) = scan(&store, &table, way);
        assert!(error.is_none(), "read {nth}: {error:?}");
        assert_eq!(found, all(way), "read {nth}");
    }
    assert!(told > 0 && passed > 100, "{told} scans were told, {passed} were not");
}

/// Changes some neighbouring rows, each in a transaction of its own. Either puts rows, which may split a leaf, or
/// deletes rows, which may empty a leaf.
fn change(store: &Store, table: &Table, model: &mut Model, random: &mut fastrand::Rng) {
    // Because the rows are neighbours, some leaves fill up, and others become empty and are freed.
    let from = random.u32(0..ROWS);
    let is_put = random.bool();
    for n in from..(from + random.u32(1..12)).min(ROWS) {
        let mut own = key(n);
        if random.bool() {
            own.push(random.u8(..));
        }
        let mut tx = store.begin();
        let value = vec![n as u8; random.usize(0..ROW_BYTES)];
        let done = if is_put { tx.put(table, &own, &value) } else { tx.delete(table, &own).map(|_| ()) };
        match done {
            Ok(()) => {
                tx.commit().unwrap();
                if is_put {
                    model.insert(own, value);
                } else {
                    model.remove(&own);
                }
            }
            // The transaction's scan holds a lock on this row.
            Err(error) => assert!(matches!(error, Error::Timeout), "{error}"),
        }
    }
}

/// Reads some more rows of a scan, from the front only or also from the back. Returns `false` if the scan has ended.
fn step<S: DoubleEndedIterator<Item = Result<Row, Error>>>(
    scan: &mut S,
    (front, back): &mut (Vec<Row>, Vec<Row>),
    random: &mut fastrand::Rng,
    is_both_ways: bool,
) -> bool {
    for _ in 0..random.u32(1..40) {
        let is_back = is_both_ways && random.u8(..4) == 0;
        match if is_back { scan.next_back() } else { scan.next() } {
            Some(row) => if is_back { &mut *back } else { &mut *front }.push(row.unwrap()),
            None => return false,
        }
    }
    true
}

#[test]
fn inv54_scans_beside_splits_merges_and_drops_show_what_they_would() {
    for seed in 0..12 {
        let mut random = fastrand::Rng::with_seed(seed);
        let store = Store::open_on(OnRig(Rig::new(None)), smallest()).unwrap();
        let table = fill(&store, "t");
        let mut model: Model = (0..ROWS).map(|n| (key(n), vec![n as u8; ROW_BYTES])).collect();
        (0..200).for_each(|_| change(&store, &table, &mut model, &mut random));
        let (tx, snapshot, of_snapshot) = (store.begin(), store.snapshot(), model.clone());
        // The transaction's scan locks the rows that it has read, so a transaction that changes one of them has to
        // wait. The snapshot's scan shows the rows as they were when the snapshot was opened.
        let (mut holding, mut showing) = (tx.scan(&table, ..), snapshot.scan(&table, ..));
        let mut found = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
        let is_both_ways = seed % 2 == 1;
        let (mut holds_on, mut shows_on) = (true, true);
        while holds_on || shows_on {
            holds_on = holds_on && step(&mut holding, &mut found[0], &mut random, is_both_ways);
            shows_on = shows_on && step(&mut showing, &mut found[1], &mut random, is_both_ways);
            change(&store, &table, &mut model, &mut random);
        }
        let [held, shown] = found.map(|(mut front, back)| {
            front.extend(back.into_iter().rev());
            front
        });
        assert!(shown == of_snapshot.into_iter().collect::<Vec<_>>(), "seed {seed}: the snapshot");
        assert!(held == model.into_iter().collect::<Vec<_>>(), "seed {seed}: the transaction");
        drop((holding, showing, snapshot));
        tx.commit().unwrap();
        assert!(store.metrics().pages_read_ahead > 0, "seed {seed}: nothing was tried");
        store.verify().unwrap();
    }
}

#[test]
fn inv54_a_table_that_is_dropped_while_it_is_read_ahead_gives_all_its_pages_back() {
    for seed in 0..8 {
        let mut random = fastrand::Rng::with_seed(seed);
        let store = Store::open_on(OnRig(Rig::new(None)), smallest()).unwrap();
        let kept = fill(&store, "kept");
        let pages = store.verify().unwrap().pages;
        let table = fill(&store, "t");
        let snapshot = store.snapshot();
        let mut scan = snapshot.scan(&table, ..);
        for n in 0..random.u32(20..ROWS) {
            assert_eq!(scan.next().unwrap().unwrap().0, key(n));
        }
        store.drop_table("t").unwrap();
        let is_read_on = seed % 2 == 0;
        if is_read_on {
            let rest = scan.by_ref().map(|row| row.unwrap().0).last();
            assert_eq!(rest, Some(key(ROWS - 1)), "seed {seed}");
        }
        // Pages that were read ahead for this scan may soon belong to another table.
        drop((scan, snapshot));
        fill(&store, "other");
        while store.verify().unwrap().dropped > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        for name in ["kept", "other"] {
            let table = store.table(name).unwrap();
            let rows: Vec<_> = store.begin().scan(&table, ..).collect::<Result<_, _>>().unwrap();
            assert_eq!(rows.len(), ROWS as usize, "seed {seed}: {name}");
        }
        drop(kept);
        store.drop_table("other").unwrap();
        while store.verify().unwrap().dropped > 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(store.verify().unwrap().pages, pages, "seed {seed}");
    }
}

#[test]
fn inv54_many_threads_scan_in_the_smallest_cache_beside_writers() {
    let store = Store::open_on(OnRig(Rig::new(None)), smallest()).unwrap();
    let table = fill(&store, "t");
    std::thread::scope(|scope| {
        for way in 0..8_u32 {
            let (store, table) = (&store, &table);
            scope.spawn(move || {
                for _ in 0..3 {
                    let snapshot = store.snapshot();
                    let rows = snapshot.scan(table, ..);
                    let count = if way.is_multiple_of(2) {
                        rows.filter(Result::is_ok).count()
                    } else {
                        rows.rev().filter(Result::is_ok).count()
                    };
                    assert_eq!(count, ROWS as usize);
                }
            });
        }
        for thread in 0..2 {
            let (store, table) = (&store, &table);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                for _ in 0..300 {
                    let n = random.u32(0..ROWS);
                    store.run(|tx| tx.put(table, &key(n), &[n as u8; ROW_BYTES])).unwrap();
                }
            });
        }
    });
    assert!(store.metrics().pages_read_ahead > 0);
    store.verify().unwrap();
}
