//! Reads logs for `duralite verify` and `duralite salvage`, with the code that recovery uses.
//!
//! A walk visits a log transaction by transaction. Salvaging a damaged log finds the transactions that can be applied before
//! the damage, and the whole groups after it.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use duralite_format::record::{Base, RECORD_HEADER_BYTES, RecordHeader, largest_record};
use duralite_format::waldio::{
    GROUP_HEADER_BYTES, GroupHeader, Layout, Superblock, TX_HEADER_BYTES, TX_TAKES_GROUP, TxHeader,
};
use duralite_medium::block::Block;

use super::prefetch::Prefetch;
use super::recovery::{Found, Scan};
use super::{Waldio, WaldioOptions};
use crate::LogError;
use crate::engine::checksums::find_checksum_mismatch;
use crate::engine::home::DatabaseFile;
use crate::engine::prelude::*;
use crate::engine::salvage::{Damage, Images, Later, LaterTransaction, Salvaged, damage_of};
use crate::engine::walk::{WalkSummary, WalkedRecord, WalkedTransaction};

/// A log that is readable up to its damage.
struct UpToDamage {
    /// The log. No transaction has been applied yet.
    log: Waldio,
    /// Byte position at which the transactions before the damage end.
    sealed: u64,
    /// The error with which recovery refuses the log; `None` for an undamaged log.
    damage: Option<LogError>,
    /// Whether recovery can read the generation's slot. The slot has the log's position at the beginning of the generation.
    has_slot: bool,
}

impl Waldio {
    /// Opens a log that may be damaged after its head, so that it can be read up to the damage. Changes nothing.
    ///
    /// # Errors
    /// `Corrupt` if no generation is found, `Medium`.
    fn up_to_damage(
        block: Arc<dyn Block>,
        superblock: Superblock,
        path: &Path,
    ) -> Result<UpToDamage, LogError> {
        let failed = |source| LogError::Medium { path: path.to_path_buf(), source };
        let (scan, no_slot) = Scan::begin_damaged(block.as_ref(), &superblock, &failed)?;
        let slot = *scan.slot();
        let (Found { recovered, .. }, behind) = scan.find_damage()?;
        let mut log = Self::alone(block, superblock, path, &WaldioOptions::default(), recovered)?;
        log.begin(&slot)?;
        let sealed = log.group.sealed();
        Ok(UpToDamage { log, sealed, has_slot: no_slot.is_none(), damage: no_slot.or(behind) })
    }
}

/// Visits every committed transaction in order, then rebuilds every page and checks SQLite's checksums. Writes nothing.
///
/// # Errors
/// The error that recovery would return. The transactions before that point have been visited.
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
    /// Returns the transaction that was applied last.
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

/// Salvages a log: applies the transactions before the damage, and passes the whole transactions after it to `later`.
pub(super) fn salvage(
    block: Arc<dyn Block>,
    superblock: Superblock,
    path: &Path,
    later: Later<'_>,
) -> Result<Salvaged, LogError> {
    let UpToDamage { mut log, sealed, mut damage, has_slot } =
        Waldio::up_to_damage(Arc::clone(&block), superblock.clone(), path)?;
    loop {
        match log.take_in_next(sealed) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                damage = Some(damage_of(error)?);
                log.drop_staged();
                break;
            }
        }
    }
    let Some(error) = damage else { return Ok(Salvaged::of_frames(Box::new(log), has_slot, None)) };
    let unit = u64::from(superblock.block_bytes);
    let from = log.group.offset_of(log.generation, log.end).next_multiple_of(unit);
    let failed = |source| LogError::Medium { path: path.to_path_buf(), source };
    let scan = Scan::of_generation(block.as_ref(), &superblock, log.generation, &failed);
    let mut behind = Behind {
        scan,
        images: Images::new(superblock.head.page_bytes),
        before: u64::from(log.transactions()),
        origin: has_slot.then_some(log.origin.position),
        until: None,
        later,
    };
    behind.read(from)?;
    let damage = Damage { error, from, until: behind.until };
    Ok(Salvaged::of_frames(Box::new(log), has_slot, Some(damage)))
}

/// A reader of the part of the log after the damage.
struct Behind<'a, 'b> {
    scan: Scan<'b>,
    images: Images,
    /// Number of the transaction that was read last.
    before: u64,
    /// The log's position at the beginning of the generation, if it is known.
    origin: Option<u64>,
    /// Offset of the first whole transaction after the damage.
    until: Option<u64>,
    later: Later<'a>,
}

impl Behind<'_, '_> {
    fn read(&mut self, from: u64) -> Result<(), LogError> {
        let (unit, end) = (self.scan.unit(), self.scan.block.len());
        let mut at = from;
        while at < end {
            let data = self.scan.block.next_data(at).map_err(self.scan.failed)?;
            // Start a little before the data that follows a hole. A frame that begins with zeros may begin in the hole.
            at = at.max(data.start.saturating_sub(self.scan.longest_frame()) / unit * unit);
            if at >= end {
                break;
            }
            let until = data.end.min(end);
            while at < until {
                let taken = match self.scan.superblock.layout {
                    Layout::Delta => self.group(at)?,
                    Layout::Embedded => self.frames(at)?,
                };
                at = taken.unwrap_or(at + 1).next_multiple_of(unit);
            }
        }
        Ok(())
    }

    fn give(&mut self, transaction: &LaterTransaction) -> Result<(), LogError> {
        self.until.get_or_insert(transaction.offset);
        (self.later)(transaction)
    }

    /// Reads the group that begins at this offset. Returns where the group ends, or `None` if no whole group begins
    /// there.
    fn group(&mut self, at: u64) -> Result<Option<u64>, LogError> {
        let log_id = self.scan.superblock.head.log_id;
        let room = self.scan.block.len().saturating_sub(at);
        if room < GROUP_HEADER_BYTES + u64::from(TX_HEADER_BYTES) {
            return Ok(None);
        }
        let mut head = [0; GROUP_HEADER_BYTES as usize];
        self.scan.read(at, &mut head)?;
        let Some(group) = GroupHeader::decode(&head, log_id, self.scan.generation(), at) else {
            return Ok(None);
        };
        let least = GROUP_HEADER_BYTES + u64::from(TX_HEADER_BYTES);
        if !(least..=room).contains(&group.bytes) {
            return Ok(None);
        }
        let scan = &self.scan;
        let hash = thread::scope(|scope| {
            let log = &mut Prefetch::new(scan.block, scope);
            scan.body_hash(log, at, group.bytes, &mut Vec::new())
        })?;
        if hash != Some(group.body_hash) {
            return Ok(None);
        }
        let end = at + group.bytes;
        let mut place = at + GROUP_HEADER_BYTES;
        while place + u64::from(TX_HEADER_BYTES) <= end {
            match self.transaction(place, end, group.time_ms)? {
                Some(next) => place = next,
                // The group's hash is right, so the transaction was already wrong when its writer wrote it. Use neither
                // this transaction nor the rest of the group.
                None => break,
            }
        }
        Ok(Some(end))
    }

    /// Reads a transaction of a whole group. Returns where the transaction ends, or `None` if the transaction contradicts
    /// itself.
    fn transaction(&mut self, at: u64, group_end: u64, time_ms: u64) -> Result<Option<u64>, LogError> {
        let mut head = [0; TX_HEADER_BYTES as usize];
        self.scan.read(at, &mut head)?;
        let Ok(header) = TxHeader::decode(&head) else { return Ok(None) };
        let end = match header.tx_bytes {
            TX_TAKES_GROUP => group_end,
            bytes => at + u64::from(bytes),
        };
        if end > group_end {
            return Ok(None);
        }
        let number = u64::from(header.sequence);
        if number != self.before + 1 || self.until.is_none() {
            self.images.clear();
        }
        let largest = u64::from(largest_record(self.scan.superblock.head.page_bytes));
        let mut place = at + u64::from(TX_HEADER_BYTES);
        let mut record = Vec::new();
        for _ in 0..header.records {
            if place + u64::from(RECORD_HEADER_BYTES) > end {
                return Ok(None);
            }
            let mut head = [0; RECORD_HEADER_BYTES as usize];
            self.scan.read(place, &mut head)?;
            let Ok(RecordHeader { record_bytes, .. }) = RecordHeader::decode(&head) else { return Ok(None) };
            if u64::from(record_bytes) > largest || place + u64::from(record_bytes) > end {
                return Ok(None);
            }
            record.resize(record_bytes as usize, 0);
            self.scan.read(place, &mut record)?;
            if self.images.lay(&record).is_err() {
                return Ok(None);
            }
            place = (place + u64::from(record_bytes)).next_multiple_of(8);
        }
        self.before = number;
        let pages = self.images.end_transaction();
        self.give(&LaterTransaction {
            number: Some(number),
            position: self.origin.map(|origin| origin.saturating_add(number)),
            time_ms,
            db_pages: header.db_pages,
            first_frame: header.first_frame,
            offset: at,
            pages,
        })?;
        Ok(Some(end))
    }

    /// Reads the transaction of embedded frames that begins at this offset. Returns where the transaction ends, or
    /// `None` if no whole transaction begins there.
    fn frames(&mut self, from: u64) -> Result<Option<u64>, LogError> {
        let mut page = vec![0; self.scan.superblock.head.page_bytes as usize];
        let mut bytes = Vec::new();
        let (mut at, mut transaction, mut first_frame) = (from, None, 0);
        self.images.clear();
        loop {
            let room = self.scan.block.len().saturating_sub(at);
            bytes.resize(room.min(self.scan.longest_frame()) as usize, 0);
            self.scan.read(at, &mut bytes)?;
            let Some((mark, taken)) = self.scan.frame(&bytes, &mut page, at) else { return Ok(None) };
            if !mark.follows(transaction) {
                return Ok(None);
            }
            if transaction.is_none() {
                first_frame = mark.frame;
            }
            transaction = Some(mark.transaction);
            self.images.put(mark.page_number, &page);
            at += u64::from(taken);
            if mark.db_pages == 0 {
                continue;
            }
            let pages = self.images.end_transaction();
            self.give(&LaterTransaction {
                number: None,
                position: None,
                time_ms: 0,
                db_pages: mark.db_pages,
                first_frame,
                offset: from,
                pages,
            })?;
            return Ok(Some(at));
        }
    }
}
