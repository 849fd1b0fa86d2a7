//! Reads logs for `duralite verify` and `duralite salvage`, with the code that recovery uses.
//!
//! A walk visits a log transaction by transaction. Salvaging a damaged log finds the transactions before the damage, and
//! the complete transactions after it. Each page of the region says to which transaction it belongs. So salvage finds the
//! transactions after the damage without the links of the transactions before it.

use super::Scratchpad;
use super::region::offset_of;
use super::transaction::{self, Expected, Scan};
use crate::LogError;
use crate::engine::checksums::find_checksum_mismatch;
use crate::engine::home::DatabaseFile;
use crate::engine::prelude::*;
use crate::engine::salvage::{Damage, Images, Later, LaterTransaction, Salvaged, damage_of};
use crate::engine::walk::{WalkSummary, WalkedTransaction};
use crate::shared::delta_chains::FoundRecord;

/// Visits every committed transaction in order, then rebuilds every page and checks SQLite's checksums. The offsets that it
/// reports are offsets in the region. Stores nothing.
///
/// # Errors
/// The error with which recovery would fail. The transactions before that point have been visited.
pub(super) fn walk(
    mut log: Scratchpad,
    database: &dyn DatabaseFile,
    visit: &mut dyn FnMut(&WalkedTransaction),
) -> Result<WalkSummary, LogError> {
    let active = log.active_now();
    log.scan = Some(Scan::default());
    while let Some(found) = log.follow(active)? {
        let commit = found.commit.header;
        visit(&WalkedTransaction {
            sequence: log.sequence,
            offset: Scratchpad::offset(log.newest.0),
            first_frame: found.first_frame,
            last_frame: commit.last_frame,
            db_pages: commit.db_pages,
            order: "ordered",
            records: found.records.iter().map(FoundRecord::walked).collect(),
        });
    }
    log.check_nothing_follows()?;
    log.rollback.check()?;
    let (generation, transactions) = (log.in_force.slot.generation, log.transactions());
    let (retired, frames) = (log.is_retired(), log.committed());
    let mismatch = find_checksum_mismatch(&mut log, database)?;
    Ok(WalkSummary { generation, transactions, frames, retired, mismatch })
}

/// Salvages a log. No transaction of the log has been read yet.
pub(super) fn salvage(mut log: Scratchpad, later: Later<'_>) -> Result<Salvaged, LogError> {
    let active = log.active_now();
    log.scan = Some(Scan::default());
    let mut damage = loop {
        match log.follow(active) {
            Ok(Some(_)) => {}
            Ok(None) => {
                break log.check_nothing_follows().and_then(|()| log.rollback.check().map(drop)).err();
            }
            Err(error) => break Some(error),
        }
    }
    .map(damage_of)
    .transpose()?;
    log.chains.discard();
    if log.in_force.slot.generation == 0 {
        // The generation in force is not known, so the log's pages cannot be interpreted.
        return damage.map_or_else(|| Ok(Salvaged::of_frames(Box::new(log), false, None)), Err);
    }
    let (from, until) = (offset_of(log.newest.0), log.read_behind(&mut damage, later)?);
    let damage = damage.map(|error| Damage { error, from, until });
    Ok(Salvaged::of_frames(Box::new(log), true, damage))
}

impl Scratchpad {
    /// Passes to `later` the complete transactions after the last one applied. Returns where the first of them begins.
    fn read_behind(
        &mut self,
        damage: &mut Option<LogError>,
        later: Later<'_>,
    ) -> Result<Option<u64>, LogError> {
        if self.in_force.wal_header.is_none() {
            return Ok(None);
        }
        let generation = self.in_force.slot.generation;
        let page_bytes = self.superblock.head.page_bytes;
        let scan = Scan::of(&self.region, generation);
        let mut images = Images::new(page_bytes);
        let (mut until, mut before) = (None, self.transactions());
        let mut record = Vec::new();
        for sequence in scan.numbers_above(before) {
            let expected = Expected { generation, sequence, frames: u32::MAX - 1, page_bytes };
            let heads = scan.heads(sequence).iter();
            let found = heads.map(|head| transaction::read(&self.region, *head, &expected));
            let Some(found) = found.filter_map(Result::ok).flatten().next() else { continue };
            let Some(first) = found.pages.first() else { continue };
            let missing = || self.region.corrupt(*first, "a transaction before one that is committed");
            damage.get_or_insert_with(missing);
            if until.is_none() || sequence != before + 1 {
                images.clear();
            }
            for part in &found.records {
                record.resize(part.header.record_bytes as usize, 0);
                self.region.read_stream(part.at, &mut record)?;
                // Ignore a record that does not apply. `images` has then dropped the page.
                images.lay(&record).ok();
            }
            before = sequence;
            let offset = offset_of(*first);
            until.get_or_insert(offset);
            later(&LaterTransaction {
                number: Some(sequence.into()),
                position: Some(self.origin().position.saturating_add(sequence.into())),
                time_ms: 0,
                db_pages: found.commit.header.db_pages,
                first_frame: found.first_frame,
                offset,
                pages: images.end_transaction(),
            })?;
        }
        Ok(until)
    }
}
