//! Reads logs for `duralite verify` and `duralite salvage`, with the code that recovery uses.
//!
//! A walk visits a log transaction by transaction. Salvaging a damaged log finds the transactions that can be applied before
//! the damage, and the whole transactions after it.

use std::path::Path;
use std::sync::Arc;

use duralite_format::Origin;
use duralite_format::nvwal::{
    ACTIVE_OFFSET, BLOCK_HEADER_BYTES, NO_BLOCK, Order, SLOT_BYTES, Slot, decode_mark, read_active_word,
    slot_offset,
};
use duralite_format::sqlite_wal::{WalHeader, make_wal_header};
use duralite_medium::Nvm;

use super::scan::Position;
use super::{Nvwal, NvwalOptions};
use crate::LogError;
use crate::engine::checksums::find_checksum_mismatch;
use crate::engine::home::DatabaseFile;
use crate::engine::prelude::*;
use crate::engine::salvage::{Damage, Images, Later, LaterTransaction, Salvaged, damage_of};
use crate::engine::walk::{WalkSummary, WalkedTransaction};
use crate::shared::delta_chains::FoundRecord;
use crate::shared::generations::InForce;
use crate::shared::heap::Heap;

/// Visits every committed transaction in order, then rebuilds every page and checks SQLite's checksums. Stores nothing.
///
/// # Errors
/// The error that recovery would return. The transactions before that point have been visited.
pub fn walk(
    nvm: Arc<dyn Nvm>,
    path: &Path,
    database: &dyn DatabaseFile,
    mut visit: impl FnMut(&WalkedTransaction),
) -> Result<WalkSummary, LogError> {
    let mut log = Nvwal::load(nvm, path, NvwalOptions::default())?;
    let active = log.heap.nvm.load_u64(ACTIVE_OFFSET);
    while let Some(found) = log.follow(active)? {
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
            records: found.records.iter().map(FoundRecord::walked).collect(),
        });
    }
    log.check_end()?;
    let (generation, transactions, retired) = (log.generation(), log.transactions(), log.is_retired());
    let frames = log.committed();
    let mismatch = find_checksum_mismatch(&mut log, database)?;
    Ok(WalkSummary { generation, transactions, frames, retired, mismatch })
}

/// Salvages a log: applies the transactions before the damage, and passes the whole transactions after it to `later`.
pub(super) fn salvage(nvm: Arc<dyn Nvm>, path: &Path, later: Later<'_>) -> Result<Salvaged, LogError> {
    let mut log = Nvwal::load(nvm, path, NvwalOptions::default())?;
    let active = log.heap.nvm.load_u64(ACTIVE_OFFSET);
    let mut damage = log.follow_all(active)?;
    let mut has_position = true;
    if log.in_force.slot.generation == 0 {
        let Some(error) = damage else { return Ok(Salvaged::of_frames(Box::new(log), false, None)) };
        if !log.enter_headless(active) {
            if !log.enter_found(active)? {
                return Err(error);
            }
            has_position = false;
        }
        log.follow_all(active)?;
        damage = Some(error);
    }
    let from = log.heap.at(log.tail.block, log.tail.offset);
    let until = log.read_behind(has_position, &mut damage, later)?;
    let damage = damage.map(|error| Damage { error, from, until });
    Ok(Salvaged::of_frames(Box::new(log), has_position, damage))
}

impl Nvwal {
    /// Applies the transactions that can be read. Returns the error with which recovery refuses the log; `None` for an
    /// undamaged log.
    fn follow_all(&mut self, active: u64) -> Result<Option<LogError>, LogError> {
        loop {
            match self.follow(active) {
                Ok(Some(_)) => {}
                Ok(None) => return self.check_end().err().map(damage_of).transpose(),
                Err(error) => {
                    self.drop_staged();
                    return damage_of(error).map(Some);
                }
            }
        }
    }

    /// Enters the generation in force without checking the header of its first block, because each transaction names its
    /// generation itself. Returns whether there is such a generation.
    fn enter_headless(&mut self, active: u64) -> bool {
        let found =
            InForce::read(self.heap.nvm.as_ref(), self.log_id(), self.superblock.head.page_bytes, active);
        let found = found
            .ok()
            .filter(|found| found.wal_header.is_some() && found.slot.first_block < self.heap.grown());
        found.map(|found| self.enter_generation(found)).is_some()
    }

    /// If the active word or the slot of a log is damaged, enters the generation to which the log's blocks belong. The
    /// generation's first block is the block that begins with transaction 1. Returns whether it found a generation.
    fn enter_found(&mut self, active: u64) -> Result<bool, LogError> {
        let named = read_active_word(active);
        let of_slots = [0, 1].into_iter().filter_map(|parity| {
            let mut bytes = [0; SLOT_BYTES];
            self.heap.nvm.read(slot_offset(parity), &mut bytes);
            let generation = (0..8).try_fold(0_u64, |value, byte| {
                bytes.get(byte).map(|part| value | u64::from(*part) << (8 * byte))
            })?;
            [generation, generation & 0xffff_ffff]
                .into_iter()
                .find(|generation| Slot::decode(&bytes, self.log_id(), *generation).is_ok())
        });
        let newest = of_slots.max().unwrap_or(0);
        for generation in [named, newest + 1, newest] {
            if generation == 0 {
                continue;
            }
            let Some(first_block) = self.first_block_of(generation) else { continue };
            let bytes = make_wal_header(self.superblock.head.page_bytes, 0, [0; 2]);
            let header =
                WalHeader::parse(&bytes).map_err(|what| LogError::Corrupt { offset: ACTIVE_OFFSET, what })?;
            let slot = Slot { generation, first_block, wal_header: bytes, retired: false };
            let origin = Origin::unknown(generation);
            self.enter_generation(InForce { active, slot, origin, wal_header: Some(header) });
            return Ok(true);
        }
        Ok(false)
    }

    fn first_block_of(&mut self, generation: u64) -> Option<u32> {
        (0..self.heap.grown()).filter(|block| *block != NO_BLOCK).find(|block| {
            let is_first = |heap: &Heap| {
                let word = heap.nvm.load_u64(heap.at(*block, BLOCK_HEADER_BYTES));
                decode_mark(word, generation, 1).is_some()
            };
            self.heap.check_block(*block, generation).is_ok() && is_first(&self.heap)
        })
    }

    /// Returns the places of marks of transactions later than the last one applied, sorted by the transactions' numbers.
    fn marks_behind(&mut self) -> Vec<(u32, Position)> {
        let generation = self.in_force.slot.generation;
        let mut found = Vec::new();
        for block in 0..self.heap.grown() {
            if self.heap.check_block(block, generation).is_ok() {
                self.marks_in(block, (BLOCK_HEADER_BYTES, self.heap.block_bytes()), &mut found);
            }
        }
        found.sort_unstable_by_key(|(sequence, at)| (*sequence, at.block, at.offset));
        found
    }

    /// Passes to `later` the whole transactions after the last one applied. Returns where the first of them begins. If
    /// the first one has the order `Ordered`, the log is damaged. In that case sets `damage` if it is still `None`.
    fn read_behind(
        &mut self,
        has_position: bool,
        damage: &mut Option<LogError>,
        later: Later<'_>,
    ) -> Result<Option<u64>, LogError> {
        let mut images = Images::new(self.superblock.head.page_bytes);
        let (mut until, mut before, nvm) = (None, self.sequence, Arc::clone(&self.heap.nvm));
        let marks = if self.in_force.wal_header.is_some() { self.marks_behind() } else { Vec::new() };
        let mut record = Vec::new();
        for (sequence, at) in marks {
            if sequence == before && until.is_some() {
                continue;
            }
            let found = self.transaction_at(at, sequence);
            let Ok(Some(found)) = found else { continue };
            if damage.is_none() && found.order != Order::Ordered {
                // This is no damage: a crash may leave a whole transaction of another order after an incomplete one.
                return Ok(None);
            }
            if until.is_none() || sequence != before + 1 {
                images.clear();
            }
            damage.get_or_insert_with(|| self.broken_off());
            for part in &found.records {
                record.resize(part.header.record_bytes as usize, 0);
                nvm.read(part.at, &mut record);
                // Ignore an error, because `images` has dropped the page in that case.
                images.lay(&record).ok();
            }
            before = sequence;
            let offset = self.heap.at(found.start.block, found.start.offset);
            until.get_or_insert(offset);
            later(&LaterTransaction {
                number: Some(sequence.into()),
                position: has_position.then(|| self.in_force.origin.position.saturating_add(sequence.into())),
                time_ms: 0,
                db_pages: found.header.db_pages,
                first_frame: found.first_frame,
                offset,
                pages: images.end_transaction(),
            })?;
        }
        Ok(until)
    }
}
