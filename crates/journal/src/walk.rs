//! Walking a log transaction by transaction, for `duralite verify`.

use std::path::Path;

use crate::pool;
use crate::{JournalError, nvwal, waldio};

/// One record of a walked transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkedRecord {
    /// Offset in the log file.
    pub offset: u64,
    /// WAL frame number.
    pub frame: u32,
    /// Database page.
    pub page_number: u32,
    /// Size with its header in bytes.
    pub record_bytes: u32,
    /// Ranges of changed bytes.
    pub ranges: u16,
    /// Whether it holds the page whole.
    pub whole: bool,
}

/// One committed transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkedTransaction {
    /// Number in the generation, from 1.
    pub sequence: u32,
    /// Offset of its header in the log file.
    pub offset: u64,
    /// First frame.
    pub first_frame: u32,
    /// Commit frame.
    pub last_frame: u32,
    /// Database size in pages afterwards.
    pub db_pages: u32,
    /// How its commit was ordered behind the rest of it: for `nvwal` the kind of its mark, for `waldio`
    /// the layout.
    pub order: &'static str,
    /// Its records.
    pub records: Vec<WalkedRecord>,
}

/// What a walk came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkSummary {
    /// Generation in force.
    pub generation: u64,
    /// Committed transactions.
    pub transactions: u32,
    /// Committed frames.
    pub frames: u32,
    /// Everything is in the database file already.
    pub retired: bool,
    /// The first commit frame at which SQLite's recovery would stop early, if any.
    pub mismatch: Option<u32>,
}

/// Visits every committed transaction of a log in order, by the code that recovers, then rebuilds
/// every page and checks SQLite's checksums. Writes nothing.
///
/// # Errors
/// The one that recovery would fail with; what came before it has been visited.
pub fn walk(path: &Path, visit: &mut dyn FnMut(&WalkedTransaction)) -> Result<WalkSummary, JournalError> {
    if pool::describe(path)?.engine == "waldio" {
        let (block, superblock) = pool::open_blocks_read_only(path)?;
        return waldio::walk(block, superblock, path, visit);
    }
    let (nvm, _) = pool::map_read_only(path)?;
    nvwal::walk(nvm, path, visit)
}
