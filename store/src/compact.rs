//! Gives free space in the page file back to the file system, while transactions continue.
//!
//! Invariant 52: the store cuts off only pages behind the last page in use. Meanwhile it holds the latches of the space
//! maps of these pages, so no transaction can allocate them. No log object that recovery would redo refers to a removed
//! page. Enough pages always remain to undo the open transactions.

use std::ops::Bound;
use std::time::{Duration, Instant};

use crate::admission::Room;
use crate::engine::Engine;
use crate::error::Error;
use crate::format::{PageId, Value, leaf_value};
use crate::table::Table;
use crate::tree::MOST_MOVES;

/// The longest time for which `cut` repeats checkpoints. It repeats them until the store has discarded the log objects
/// that refer to pages at the end of the file.
const PATIENCE: Duration = Duration::from_secs(10);

/// The result of compacting a store.
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
    /// The number of pages that were moved, not counting pages of long values.
    pub pages_moved: u64,
    /// The size of the page file before the compaction, in bytes.
    pub bytes_before: u64,
    /// The size of the page file after the compaction, in bytes.
    pub bytes_after: u64,
}

/// Returns the size of the page file in bytes.
pub(crate) fn file_bytes(engine: &Engine) -> u64 {
    let file = engine.pager.pool.file();
    file.pages() * file.page_bytes() as u64
}

/// Moves a tree's pages to free pages before `limit`, as long as there are free ones. Returns how many pages it moved.
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

/// Returns the keys of rows whose values are currently stored as chains of pages.
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

/// Removes the free pages behind the last page in use from the file.
pub(crate) fn cut(engine: &Engine) -> Result<(), Error> {
    // Before these pages can be removed, the store has to discard the log objects of all earlier moves and frees.
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
        // An open transaction still needs some of these log objects. It may end soon, so wait and try again.
        std::thread::sleep(Duration::from_millis(20));
    }
}
