//! Walks a log transaction by transaction, for `duralite verify`, with the code that recovery uses.

use std::path::Path;
use std::sync::Arc;

use duralite_format::nvwal::{ACTIVE_OFFSET, Base, Order};
use duralite_medium::Nvm;

use super::{Nvwal, NvwalOptions};
use crate::LogError;
use crate::engine::checksums::find_checksum_mismatch;
use crate::engine::home::DatabaseFile;
use crate::engine::prelude::*;
use crate::engine::walk::{WalkSummary, WalkedRecord, WalkedTransaction};

/// Visits every committed transaction in order, then rebuilds every page and checks SQLite's
/// checksums. Stores nothing.
///
/// # Errors
/// The error that recovery would return. The transactions before it have been visited.
pub fn walk(
    nvm: Arc<dyn Nvm>,
    path: &Path,
    database: &dyn DatabaseFile,
    mut visit: impl FnMut(&WalkedTransaction),
) -> Result<WalkSummary, LogError> {
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
            first_frame: found.first_frame,
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
    log.check_end()?;
    let (generation, transactions, retired) = (log.generation(), log.transactions(), log.is_retired());
    let frames = log.committed();
    let mismatch = find_checksum_mismatch(&mut log, database)?;
    Ok(WalkSummary { generation, transactions, frames, retired, mismatch })
}
