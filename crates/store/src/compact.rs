//! Space that is free goes back to the file system, while transactions go on.
//!
//! Invariant 52: the page file is cut only behind the last page in use, with the maps of what goes latched, once no object that
//! recovery would repeat speaks of any page there, and never so far that taking back what is open might lack pages.

use std::ops::Bound;
use std::time::{Duration, Instant};

use duralite_logfmt::store::{PageId, Value, leaf_value};

use crate::admission::Room;
use crate::engine::Engine;
use crate::error::Error;
use crate::table::Table;
use crate::tree::MOST_MOVES;

/// For so long checkpoints are made to let go of what speaks of the file's end.
const PATIENCE: Duration = Duration::from_secs(10);

/// What compacting a store came to.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let store = duralite_store::Store::open(dir.path().join("store"), duralite_store::Options::default())?;
/// let compacted = store.compact()?;
/// assert!(compacted.bytes_after <= compacted.bytes_before);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compacted {
    /// Pages that were moved; those of long values are not counted.
    pub pages_moved: u64,
    /// Bytes of the page file before.
    pub bytes_before: u64,
    /// Bytes of the page file after.
    pub bytes_after: u64,
}

/// Bytes of the page file.
pub(crate) fn file_bytes(engine: &Engine) -> u64 {
    let file = engine.pager.pool.file();
    file.pages() * file.page_bytes() as u64
}

/// Moves a tree's pages before `limit`, as far as there are free ones; how many.
pub(crate) fn relocate(engine: &Engine, root: PageId, limit: PageId) -> Result<u64, Error> {
    let page = engine.pager.pool.page_bytes() as u64;
    let room = Room { bytes: MOST_MOVES * (3 * page + 1024), objects: MOST_MOVES };
    let mut moved = 0;
    let mut key = Vec::new();
    loop {
        engine.poison.check()?;
        engine.admission.keep(room, Room::default(), engine.tuning.lock_timeout)?;
        let done = engine.tree(root).relocate(&key, limit);
        engine.admission.give_back(room);
        let done = done?;
        moved += done.pages;
        match done.next {
            Some(next) if next > key || done.pages > 0 => key = next,
            _ => return Ok(moved),
        }
    }
}

/// Keys of rows whose values have chains, as they are now.
pub(crate) fn long_rows(engine: &Engine, table: &Table) -> Result<Vec<Vec<u8>>, Error> {
    let mut keys = Vec::new();
    engine.tree(table.root()).each_cell((Bound::Unbounded, Bound::Unbounded), |key, cell| {
        if let Value::Long { first: 1.., .. } = leaf_value(cell).map_err(|_| Error::corrupt("a row"))? {
            keys.push(key.to_vec());
        }
        Ok(())
    })?;
    Ok(keys)
}

/// Cuts the file behind the last page in use.
pub(crate) fn cut(engine: &Engine) -> Result<(), Error> {
    // What has been moved so far, and freed before.
    let last = engine.pager.log.next();
    let begun = Instant::now();
    loop {
        engine.poison.check()?;
        engine.checkpoint(&|| false)?;
        let head = engine.pager.log.head();
        engine.space.cut(&engine.pager, head)?;
        if head >= last || begun.elapsed() > PATIENCE {
            return Ok(());
        }
        // An open transaction needs older log: it may end.
        std::thread::sleep(Duration::from_millis(20));
    }
}
