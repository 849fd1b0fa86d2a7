//! Walks a log transaction by transaction, for `duralite verify`, with the code that recovery uses.

use std::path::Path;
use std::sync::Arc;

use duralite_format::record::{Base, RECORD_HEADER_BYTES, RecordHeader};
use duralite_format::waldio::{Layout, Superblock};
use duralite_medium::block::Block;

use super::Waldio;
use super::salvage::UpToDamage;
use crate::LogError;
use crate::engine::checksums::find_checksum_mismatch;
use crate::engine::home::DatabaseFile;
use crate::engine::prelude::*;
use crate::engine::walk::{WalkSummary, WalkedRecord, WalkedTransaction};

/// Visits every committed transaction in order, then rebuilds every page and checks SQLite's
/// checksums. Writes nothing.
///
/// # Errors
/// The error that recovery would return. The transactions before it have been visited.
pub fn walk(
    block: Arc<dyn Block>,
    superblock: Superblock,
    path: &Path,
    database: &dyn DatabaseFile,
    visit: &mut dyn FnMut(&WalkedTransaction),
) -> Result<WalkSummary, LogError> {
    let UpToDamage { mut log, sealed, damage, .. } = Waldio::up_to_damage(block, superblock, path)?;
    while log.take_in_next(sealed)? {
        visit(&log.last_transaction()?);
    }
    if let Some(error) = damage {
        return Err(error);
    }
    let (generation, transactions, retired) = (log.generation(), log.transactions(), log.is_retired());
    let frames = log.committed();
    let mismatch = find_checksum_mismatch(&mut log, database)?;
    Ok(WalkSummary { generation, transactions, frames, retired, mismatch })
}

impl Waldio {
    /// The transaction that was applied last.
    fn last_transaction(&self) -> Result<WalkedTransaction, LogError> {
        let missing = || LogError::Unexpected("a frame number");
        let last_frame = self.committed();
        let db_pages = self.frame(last_frame).ok_or_else(missing)?.db_pages;
        let is_commit = |number: &u32| self.frame(*number).is_some_and(|frame| frame.db_pages != 0);
        let first_frame = (1..last_frame).rev().find(is_commit).map_or(1, |before| before + 1);
        let mut records = Vec::new();
        for frame in first_frame..=last_frame {
            let record = self.chains.record_of_frame(frame).ok_or_else(missing)?;
            let mut ranges = 1;
            let mut whole = true;
            if self.superblock().layout == Layout::Delta {
                let mut head = [0; RECORD_HEADER_BYTES as usize];
                self.read_log(record.at, &mut head)?;
                let offset = record.at;
                let header =
                    RecordHeader::decode(&head).map_err(|what| LogError::Corrupt { offset, what })?;
                (ranges, whole) = (header.ranges, header.base == Base::Zeros);
            }
            records.push(WalkedRecord {
                offset: self.group.offset_of(self.generation, record.at),
                frame,
                page_number: record.page_number,
                record_bytes: record.record_bytes,
                ranges,
                whole,
            });
        }
        Ok(WalkedTransaction {
            sequence: self.sequence,
            offset: records.first().map_or(0, |record| record.offset),
            first_frame,
            last_frame,
            db_pages,
            order: self.superblock().layout.as_str(),
            records,
        })
    }
}
