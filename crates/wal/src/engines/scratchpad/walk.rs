//! Walking a log transaction by transaction for `duralite verify`, with the code that recovers logs.

use duralite_format::scratchpad::Base;

use super::scan::Scan;
use super::{Scratchpad, files};
use crate::LogError;
use crate::engine::checksums::find_checksum_mismatch;
use crate::engine::descriptor::OpenFile;
use crate::engine::home::DatabaseFile;
use crate::engine::prelude::*;
use crate::engine::walk::{WalkSummary, WalkedRecord, WalkedTransaction};

/// Visits every committed transaction in order, then rebuilds every page and checks SQLite's checksums. Offsets are offsets in
/// the region. Stores nothing.
///
/// # Errors
/// The error with which recovery would fail. The transactions before it have been visited.
pub(super) fn walk(
    log: &OpenFile<'_>,
    database: &dyn DatabaseFile,
    visit: &mut dyn FnMut(&WalkedTransaction),
) -> Result<WalkSummary, LogError> {
    let mut log = files::open_to_walk(log)?;
    let active = log.active_now();
    log.scan = Some(Scan::default());
    while let Some(found) = log.follow(active)? {
        let commit = found.commit.header;
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
            offset: Scratchpad::offset(log.newest.0),
            first_frame: found.first_frame,
            last_frame: commit.last_frame,
            db_pages: commit.db_pages,
            order: "ordered",
            records: records.collect(),
        });
    }
    log.check_nothing_follows()?;
    log.rollback.check()?;
    let (generation, transactions) = (log.in_force.slot.generation, log.transactions());
    let (retired, frames) = (log.is_retired(), log.committed());
    let mismatch = find_checksum_mismatch(&mut log, database)?;
    Ok(WalkSummary { generation, transactions, frames, retired, mismatch })
}
