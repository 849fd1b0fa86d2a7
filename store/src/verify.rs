//! Verifies a store: checks each page's checksum, the order of its keys, whether it is reachable, and whether its space
//! map agrees.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::error::Error;
use crate::format::{
    PageId, PageKind, Value, bits_of, cell, cell_count, cell_key, child_at, extra, is_set, kind, leaf_value,
    level, payload, validate,
};
use crate::tree::Ahead;

/// The result of [`Store::verify`](crate::Store::verify).
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
/// store.table("t")?;
/// assert_eq!(store.verify()?.tables, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// The number of tables that the store has.
    pub tables: u64,
    /// The number of tables that were dropped, but still have pages, which are being freed.
    pub dropped: u64,
    /// The number of rows that all tables have together.
    pub rows: u64,
    /// The number of pages in use.
    pub pages: u64,
    /// The number of free pages before the last page in use.
    pub free_pages: u64,
}

/// The longest wait for open transactions to end.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
struct Walk {
    reached: HashSet<PageId>,
    rows: u64,
    ahead: Ahead,
}

fn wrong(page: PageId, what: &str) -> Error {
    Error::Corrupt { what: what.to_owned(), page: Some(page) }
}

/// Verifies everything. The caller prevents other transactions from changing the trees with these roots during the
/// check.
pub(crate) fn verify(engine: &Engine, roots: &[PageId]) -> Result<Verified, Error> {
    let begun = Instant::now();
    while engine.active.count() > 0 {
        if begun.elapsed() > PATIENCE {
            return Err(Error::Timeout);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut walk = Walk::default();
    for root in roots {
        walk.page(engine, *root, None, None, None)?;
    }
    let catalog_rows = roots.len() as u64 - 1;
    let (pages, free_pages) = compare_maps(engine, &walk.reached)?;
    Ok(Verified { tables: catalog_rows, dropped: 0, rows: walk.rows - catalog_rows, pages, free_pages })
}

impl Walk {
    fn reach(&mut self, page: PageId) -> Result<(), Error> {
        if self.reached.insert(page) { Ok(()) } else { Err(wrong(page, "a page that is reached twice")) }
    }

    /// Verifies a page and the pages below it. All keys must be at least `low` and below `high`.
    fn page(
        &mut self,
        engine: &Engine,
        id: PageId,
        expected_level: Option<u8>,
        low: Option<&[u8]>,
        high: Option<&[u8]>,
    ) -> Result<(), Error> {
        self.reach(id)?;
        // Works on a copy, so that this page is not latched while its children are read.
        let bytes = engine.pager.pool.read(id)?.bytes().to_vec();
        let damaged = |error| Error::page(id, error);
        validate(&bytes).map_err(damaged)?;
        if expected_level.is_some_and(|expected| expected != level(&bytes)) {
            return Err(wrong(id, "a tree, where a page is on a wrong level,"));
        }
        let kind = kind(&bytes);
        let key = |index| cell_key(kind, cell(&bytes, index)?);
        for index in 0..cell_count(&bytes) {
            let key = key(index).map_err(damaged)?;
            if low.is_some_and(|low| key < low) || high.is_some_and(|high| key >= high) {
                return Err(wrong(id, "a tree, where a key is on a wrong page,"));
            }
            if kind == PageKind::Leaf {
                self.rows += 1;
                let cell = cell(&bytes, index).map_err(damaged)?;
                if let Value::Long { bytes, first } = leaf_value(cell).map_err(damaged)? {
                    self.chain(engine, first, bytes)?;
                }
            }
        }
        if kind == PageKind::Leaf {
            return Ok(());
        }
        let below = level(&bytes).checked_sub(1).ok_or_else(|| wrong(id, "a tree's level"))?;
        for place in 0..=cell_count(&bytes) {
            let from = if place == 0 { low } else { Some(key(place - 1).map_err(damaged)?) };
            let to = if place == cell_count(&bytes) { high } else { Some(key(place).map_err(damaged)?) };
            let child = child_at(&bytes, place).map_err(damaged)?;
            self.page(engine, child, Some(below), from, to)?;
            if below == 0 {
                let next = place + 1..=cell_count(&bytes);
                let coming =
                    next.take(self.ahead.most()).map(|place| child_at(&bytes, place).map_err(damaged));
                let coming: Vec<PageId> = coming.collect::<Result<_, _>>()?;
                self.ahead.come_to(&engine.pager.pool, child, &coming);
            }
        }
        Ok(())
    }

    fn chain(&mut self, engine: &Engine, first: PageId, bytes: u64) -> Result<(), Error> {
        let (mut next, mut found) = (first, 0);
        while next != 0 {
            self.reach(next)?;
            let page = engine.pager.pool.read(next)?;
            if kind(page.bytes()) != PageKind::Overflow {
                return Err(wrong(next, "a long row"));
            }
            found += payload(page.bytes()).len() as u64;
            next = extra(page.bytes());
        }
        if found == bytes { Ok(()) } else { Err(wrong(first, "a long row")) }
    }
}

/// Checks that the pages in use are exactly those that were reached from the roots.
fn compare_maps(engine: &Engine, reached: &HashSet<PageId>) -> Result<(u64, u64), Error> {
    let pool = &engine.pager.pool;
    let first = pool.file().first_page();
    let bits = bits_of(pool.page_bytes());
    let (mut used, mut last) = (0, first);
    let mut map_id = first;
    while map_id < pool.file().pages() {
        let map = pool.read(map_id)?.bytes().to_vec();
        for bit in 1..bits {
            let page = map_id + bit;
            match (is_set(&map, bit as u32), reached.contains(&page)) {
                (true, true) => {
                    used += 1;
                    last = page;
                }
                (true, false) => return Err(wrong(page, "a page in use that no tree reaches")),
                (false, true) => return Err(wrong(page, "a page that the map says is free")),
                (false, false) => {}
            }
        }
        map_id += bits;
    }
    if used != reached.len() as u64 {
        return Err(Error::corrupt("a tree that leads out of the page file"));
    }
    Ok((used, last - first - used))
}
