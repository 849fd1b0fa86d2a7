//! Counts the pages that scans read ahead.

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::snapshot::Snapshot;

/// The number of rows in the table.
const ROWS: u64 = FRAMES * 12 * ROWS_OF_A_LEAF;
/// The largest number of pages that may be read ahead and still unused, in a cache of `FRAMES` frames.
const MOST: u64 = FRAMES / 16;

/// The counts of the cache and of the page file so far.
#[derive(Clone, Copy, Debug)]
struct Counted {
    misses: u64,
    /// The number of read calls of the page file.
    reads: u64,
    /// The number of pages that these calls have read.
    pages: u64,
    /// The number of pages that were read ahead.
    ahead: u64,
    /// The number of pages that were read ahead and evicted unused.
    in_vain: u64,
}

impl Tried {
    fn counted(&self) -> Counted {
        let pool = &self.running.engine.pager.pool;
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counted {
            misses: get(&pool.misses),
            reads: get(&pool.file().reads),
            pages: get(&pool.file().read),
            ahead: get(&pool.came_ahead),
            in_vain: get(&pool.came_in_vain),
        }
    }

    /// Counts the misses and reads while `work` runs.
    fn count(&self, work: impl FnOnce(&Self)) -> Counted {
        let before = self.counted();
        work(self);
        let after = self.counted();
        Counted {
            misses: after.misses - before.misses,
            reads: after.reads - before.reads,
            pages: after.pages - before.pages,
            ahead: after.ahead - before.ahead,
            in_vain: after.in_vain - before.in_vain,
        }
    }

    /// Returns how many pages are read ahead and still unused, by the cache's own count.
    fn unused(&self) -> usize {
        self.running.engine.pager.pool.tallies.ahead.load(Ordering::Relaxed)
    }

    /// Reads `rows` rows through a snapshot or a transaction, from the row `from` on. If `is_reverse`, reads backwards,
    /// beginning with the row before `from`.
    fn read(&self, from: u64, rows: u64, is_reverse: bool, by_snapshot: bool) {
        let key = from.to_be_bytes();
        let range = match is_reverse {
            false => (Bound::Included(&key[..]), Bound::Unbounded),
            true => (Bound::Unbounded, Bound::Excluded(&key[..])),
        };
        let tx = Transaction::begin(&self.running);
        let found: Box<dyn Iterator<Item = _>> = match (by_snapshot, is_reverse) {
            (false, false) => Box::new(tx.scan(&self.table, range)),
            (false, true) => Box::new(tx.scan(&self.table, range).rev()),
            (true, false) => Box::new(Snapshot::open(&self.running).scan(&self.table, range)),
            (true, true) => Box::new(Snapshot::open(&self.running).scan(&self.table, range).rev()),
        };
        let mut expected: Box<dyn Iterator<Item = u64>> =
            if is_reverse { Box::new((0..from).rev()) } else { Box::new(from..ROWS) };
        let mut count = 0;
        for row in found.take(rows as usize) {
            let (key, value) = row.unwrap();
            assert_eq!(key, expected.next().unwrap().to_be_bytes());
            assert_eq!(value, [7; ROW_BYTES]);
            count += 1;
            self.keep();
        }
        let all = if is_reverse { from } else { ROWS - from };
        assert_eq!(count, rows.min(all));
    }
}

const WAYS: [(bool, bool); 4] = [(false, false), (true, false), (false, true), (true, true)];

#[test]
fn inv54_a_scan_reads_each_page_once_many_by_one_call_and_none_in_vain() {
    let tried = Tried::new(3);
    let leaves = ROWS / ROWS_OF_A_LEAF;
    for (is_reverse, by_snapshot) in WAYS {
        let what = format!("reverse {is_reverse}, by a snapshot {by_snapshot}");
        let from = if is_reverse { ROWS } else { 0 };
        // First scans in the other direction. The pages that this scan reads last are the first ones of the measured
        // scan. So the measured scan always finds its first pages in the cache.
        tried.read(ROWS - from, ROWS, !is_reverse, by_snapshot);
        let counted = tried.count(|tried| tried.read(from, ROWS, is_reverse, by_snapshot));
        assert!(counted.pages > leaves * 9 / 10, "{what}: {counted:?}: nothing was tried");
        assert!(counted.pages < leaves * 11 / 10, "{what}: {counted:?} for {leaves} leaves");
        assert!(counted.reads * MOST / 2 < counted.pages, "{what}: {counted:?}");
        // The scan misses only its first leaves, and the first leaf below each further inner page.
        assert!(counted.misses < leaves / 20, "{what}: {counted:?}");
        assert_eq!(counted.in_vain, 0, "{what}");
        assert_eq!(tried.unused(), 0, "{what}");
    }
}

#[test]
fn inv54_a_scan_of_a_range_reads_nothing_beyond_it() {
    let tried = Tried::new(4);
    for (is_reverse, by_snapshot) in WAYS {
        // This scan evicts the range's pages from the cache.
        tried.read(ROWS / 2, ROWS, false, by_snapshot);
        let (from, to) = (1000_u64, 1000 + 100 * ROWS_OF_A_LEAF);
        let (from, to) = (from.to_be_bytes(), to.to_be_bytes());
        let range = (Bound::Included(&from[..]), Bound::Excluded(&to[..]));
        let counted = tried.count(|tried| {
            let tx = Transaction::begin(&tried.running);
            let rows = match (by_snapshot, is_reverse) {
                (false, false) => tx.scan(&tried.table, range).count(),
                (false, true) => tx.scan(&tried.table, range).rev().count(),
                (true, false) => Snapshot::open(&tried.running).scan(&tried.table, range).count(),
                (true, true) => Snapshot::open(&tried.running).scan(&tried.table, range).rev().count(),
            };
            assert_eq!(rows as u64, 100 * ROWS_OF_A_LEAF);
        });
        assert!((100..=103).contains(&counted.pages), "{counted:?}");
        assert!(counted.ahead > 90, "{counted:?}");
        assert_eq!(tried.unused(), 0);
    }
}

#[test]
fn inv54_who_looks_at_a_few_rows_reads_nothing_ahead_and_who_stops_in_the_middle_not_much() {
    let tried = Tried::new(5);
    let mut random = fastrand::Rng::with_seed(5);
    for rows in [1, ROWS_OF_A_LEAF, 2 * ROWS_OF_A_LEAF - 3] {
        for (is_reverse, by_snapshot) in WAYS {
            let from = random.u64(100..ROWS - 100);
            let counted = tried.count(|tried| tried.read(from, rows, is_reverse, by_snapshot));
            assert_eq!(counted.ahead, 0, "{rows} rows: {counted:?}");
        }
    }
    let counted = tried.count(|tried| {
        for nth in 0..200 {
            let (is_reverse, by_snapshot) = WAYS[nth % 4];
            let leaves = random.u64(1..60);
            tried.read(random.u64(0..ROWS), leaves * ROWS_OF_A_LEAF, is_reverse, by_snapshot);
            assert!(tried.unused() as u64 <= MOST, "{} pages of {FRAMES} frames", tried.unused());
        }
    });
    // By now, nearly all pages that were read ahead needlessly have been evicted, and so were counted.
    assert!(counted.in_vain > 0, "{counted:?}: nothing was tried");
    assert!(counted.in_vain * 3 < counted.ahead, "{counted:?}");
}

/// Reads other rows with `read`, and after that the hot rows. Returns how many misses the hot rows cause.
fn hot_misses_after(read: impl FnOnce(&Tried)) -> u64 {
    let mut tried = Tried::new(6);
    for _ in 0..3 {
        tried.read_hot();
    }
    assert_eq!(tried.read_hot(), 0);
    read(&tried);
    tried.read_hot()
}

#[test]
fn inv54_a_scan_drives_out_no_more_of_what_is_used_than_one_that_reads_nothing_ahead() {
    for is_reverse in [false, true] {
        // For comparison, reads all rows one by one, which reads nothing ahead.
        let one_by_one = hot_misses_after(|tried| {
            for nth in 0..ROWS {
                let row = if is_reverse { ROWS - 1 - nth } else { nth };
                let tx = Transaction::begin(&tried.running);
                tx.get(&tried.table, &row.to_be_bytes()).unwrap().unwrap();
                tried.keep();
            }
        });
        for by_snapshot in [false, true] {
            let after = hot_misses_after(|tried| {
                let from = if is_reverse { ROWS } else { 0 };
                let counted = tried.count(|tried| tried.read(from, ROWS, is_reverse, by_snapshot));
                assert!(counted.ahead > ROWS / ROWS_OF_A_LEAF / 2, "{counted:?}");
            });
            let what = format!("reverse {is_reverse}, by a snapshot {by_snapshot}");
            assert!(
                after <= one_by_one + 2,
                "{what}: {after} misses, and {one_by_one} without reading ahead"
            );
        }
    }
}

#[test]
fn inv54_many_scans_at_once_share_what_is_read_ahead() {
    let tried = Tried::new(7);
    let snapshot = Snapshot::open(&tried.running);
    let mut scans: Vec<_> = (0..40)
        .map(|nth: u64| {
            let from = (nth * ROWS / 50).to_be_bytes();
            snapshot.scan(&tried.table, &from[..]..)
        })
        .collect();
    let counted = tried.count(|tried| {
        for _ in 0..100 * ROWS_OF_A_LEAF {
            for scan in &mut scans {
                scan.next().unwrap().unwrap();
                tried.keep();
            }
            assert!(tried.unused() as u64 <= MOST);
        }
    });
    let leaves = 40 * 100;
    // The scans together want more pages than may be read ahead, so some pages are evicted before their use.
    assert!(counted.in_vain > 0, "{counted:?}: nothing was tried");
    assert!(counted.pages < leaves * 4 / 3, "{counted:?} for {leaves} leaves");
    assert!(counted.in_vain < leaves / 4 + MOST, "{counted:?} for {leaves} leaves");
}
