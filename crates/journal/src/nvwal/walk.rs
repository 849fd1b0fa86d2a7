//! Walking a log transaction by transaction, for `duralite verify`: by the code that recovers.

use std::path::Path;
use std::sync::Arc;

use duralite_logfmt::nvwal::{ACTIVE_OFFSET, Base, Order};
use duralite_medium::Nvm;

use super::{Nvwal, NvwalOptions};
use crate::JournalError;
use crate::engine::Engine;
use crate::stream::WalStream;

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
    /// `ordered`, `fenced` or `async`.
    pub order: &'static str,
    /// Its records.
    pub records: Vec<WalkedRecord>,
}

/// What a walk came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkSummary {
    /// Generation in force.
    pub generation: u32,
    /// Committed transactions.
    pub transactions: u32,
    /// Committed frames.
    pub frames: u32,
    /// Everything is in the database file already.
    pub retired: bool,
    /// The first commit frame at which SQLite's recovery would stop early, if any.
    pub mismatch: Option<u32>,
}

/// Visits every committed transaction in order, then rebuilds every page and checks SQLite's
/// checksums. Stores nothing.
///
/// # Errors
/// The one that recovery would fail with; what came before it has been visited.
pub fn walk(
    nvm: Arc<dyn Nvm>,
    path: &Path,
    mut visit: impl FnMut(&WalkedTransaction),
) -> Result<WalkSummary, JournalError> {
    let mut log = Nvwal::load(nvm, path, NvwalOptions::default())?;
    let active = log.heap.nvm.load_u64(ACTIVE_OFFSET);
    while let Some(found) = log.follow(active)? {
        let records = found.records.iter().map(|record| WalkedRecord {
            offset: record.at,
            frame: record.header.frame,
            page_number: record.header.page_number,
            record_bytes: record.header.record_bytes,
            ranges: record.header.ranges,
            whole: record.header.base == Base::Zeros,
        });
        visit(&WalkedTransaction {
            sequence: log.sequence,
            offset: log.heap.at(found.start.block, found.start.offset),
            first_frame: found.header.first_frame,
            last_frame: found.header.last_frame,
            db_pages: found.header.db_pages,
            order: match found.order {
                Order::Ordered => "ordered",
                Order::Fenced => "fenced",
                Order::Async => "async",
            },
            records: records.collect(),
        });
    }
    let (generation, transactions, retired) = (log.generation(), log.transactions(), log.is_retired());
    let frames = log.committed();
    let mismatch = WalStream::new(log).find_checksum_mismatch()?;
    Ok(WalkSummary { generation, transactions, frames, retired, mismatch })
}
