//! Counts which pages stay in the cache, and what a miss costs. No keeper thread runs; the tests call [`Tried::keep`]
//! instead.
#![allow(clippy::unwrap_used)] // a failed helper is a failed test

mod ahead;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::opening;
use crate::options::Options;
use crate::running::Running;
use crate::table::Table;
use crate::transaction::Transaction;

/// The number of frames of the cache. The table has twelve leaves for each frame. One leaf for every two frames is hot,
/// that is, used often.
const FRAMES: u64 = 256;
/// The number of frames that are kept ready for eviction.
const READY: u64 = FRAMES / 16;
const ROW_BYTES: usize = 900;
/// The number of rows in a leaf of 4096 bytes.
const ROWS_OF_A_LEAF: u64 = 3;

struct Tried {
    running: Arc<Running>,
    table: Table,
    random: fastrand::Rng,
}

impl Tried {
    fn new(seed: u64) -> Self {
        let smallest = Options::smallest_cache_bytes(4096);
        let mut options = Options { page_bytes: Some(4096), cache_bytes: smallest, ..Options::default() };
        let running = loop {
            let engine = opening::in_memory(&options);
            // The cache's size includes memory of the log, which leaves fewer frames. So raise the size until there are
            // enough.
            match FRAMES.saturating_sub(engine.pager.pool.frames.len() as u64) {
                0 => break Running::alone(engine),
                missing => options.cache_bytes += missing * 4344,
            }
        };
        assert!(running.engine.pager.pool.frames.len() < FRAMES as usize + 16);
        let mut tx = Transaction::begin(&running);
        let table = tx.table("t").unwrap();
        tx.commit().unwrap();
        let mut it = Self { running, table, random: fastrand::Rng::with_seed(seed) };
        for row in 0..FRAMES * 12 * ROWS_OF_A_LEAF {
            it.change(row);
        }
        it
    }

    fn change(&mut self, row: u64) {
        let mut tx = Transaction::begin(&self.running);
        tx.put(&self.table, &row.to_be_bytes(), &[7; ROW_BYTES]).unwrap();
        tx.commit().unwrap();
        self.keep();
    }

    /// Does the work of the keeper thread.
    fn keep(&self) {
        let engine = &self.running.engine;
        while engine.pager.pool.stay_ahead().unwrap() {}
        let space = engine.pager.log.space();
        if space.free_bytes < space.all_bytes / 2 {
            engine.checkpoint(&|| false).unwrap();
        }
    }

    /// Reads rows from the hot leaves, and returns how many misses that took.
    fn read_hot(&mut self) -> u64 {
        let pool = &self.running.engine.pager.pool;
        let before = pool.misses.load(Ordering::Relaxed);
        for _ in 0..FRAMES * 8 {
            let row = self.random.u64(0..FRAMES / 2 * ROWS_OF_A_LEAF);
            let tx = Transaction::begin(&self.running);
            tx.get(&self.table, &row.to_be_bytes()).unwrap().unwrap();
            self.keep();
        }
        pool.misses.load(Ordering::Relaxed) - before
    }

    fn scan(&self) -> usize {
        let tx = Transaction::begin(&self.running);
        tx.scan(&self.table, ..).inspect(|row| assert!(row.is_ok())).inspect(|_| self.keep()).count()
    }
}

#[test]
fn a_scan_of_ten_times_the_cache_leaves_what_is_used_in_it() {
    let mut tried = Tried::new(1);
    for _ in 0..3 {
        tried.read_hot();
    }
    let before = tried.read_hot();
    let left = tried.running.engine.pager.pool.inner_left.load(Ordering::Relaxed);
    assert_eq!(tried.scan() as u64, FRAMES * 12 * ROWS_OF_A_LEAF);
    let after = tried.read_hot();
    // Up to `READY` hot pages may have been ready for eviction before the scan. The scan itself may cause up to two
    // more misses, because it uses two leaves more often than the others: the leaf where it begins, and one where a
    // batch of rows ends.
    assert!(after <= before + READY + 2, "{before} misses before the scan, {after} after it");
    assert_eq!(tried.running.engine.pager.pool.inner_left.load(Ordering::Relaxed), left, "inner pages left");
}

#[test]
fn whoever_misses_a_page_waits_for_no_other_to_be_home_and_needs_one_read() {
    let mut tried = Tried::new(2);
    let pool = Arc::clone(&tried.running.engine.pager.pool);
    let waits = pool.waits.load(Ordering::Relaxed);
    let (misses, reads) = (pool.misses.load(Ordering::Relaxed), pool.file().read.load(Ordering::Relaxed));
    let inner = pool.inner_left.load(Ordering::Relaxed);
    const CHANGES: u64 = 3000;
    for _ in 0..CHANGES {
        let row = tried.random.u64(0..FRAMES * 12 * ROWS_OF_A_LEAF);
        tried.change(row);
    }
    let misses = pool.misses.load(Ordering::Relaxed) - misses;
    assert!(misses > CHANGES / 2, "{misses} misses only: nothing was tried");
    assert!(misses <= CHANGES, "{misses} misses in {CHANGES} changes of one leaf each");
    assert_eq!(pool.file().read.load(Ordering::Relaxed) - reads, misses, "reads");
    assert_eq!(pool.waits.load(Ordering::Relaxed) - waits, 0, "of {misses} misses waited");
    assert_eq!(pool.inner_left.load(Ordering::Relaxed) - inner, 0, "inner pages left");
}

#[test]
fn an_order_that_changes_while_it_sorts_is_read_once() {
    let mut items: Vec<u32> = (0..500).collect();
    let (mut random, mut reads) = (fastrand::Rng::with_seed(8), 0);
    super::frame::sort_by_changing(&mut items, |_| {
        reads += 1;
        random.u32(..7)
    });
    assert_eq!(reads, items.len());
    items.sort_unstable();
    assert!(items.into_iter().eq(0..500));
}
