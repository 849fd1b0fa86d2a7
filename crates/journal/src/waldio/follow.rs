//! Taking in the transactions that others have sealed, or that recovery has found: the one decoder
//! of transactions behind both, `duralite verify` and fuzzing. It takes any bytes (invariant 12), and
//! memory that depends on the size of a record, not on that of a transaction.

use duralite_logfmt::record::{RECORD_HEADER_BYTES, RecordHeader, largest_record};
use duralite_logfmt::waldio::{
    GROUP_HEADER_BYTES, GROUP_MAGIC, GroupHeader, Layout, MARK_BYTES, Superblock, TX_HEADER_BYTES,
    TX_TAKES_GROUP, TxHeader, decode_frame, frame_bytes, group_time,
};

use super::{Waldio, writer};
use crate::JournalError;
use crate::delta_chains::{Committed, apply_ranges};
use crate::engine::prelude::*;

/// Bytes of a transaction read at a time.
const STEP: u64 = 256 << 10;

const ALONE: &str = "a transaction that takes its group";

/// A part of a transaction in memory.
struct Window {
    bytes: Vec<u8>,
    /// Position of the first of them.
    at: u64,
    /// Where the transaction ends.
    end: u64,
}

impl Window {
    /// The bytes from a position on, which lies in or behind what was asked for last.
    fn get(&mut self, log: &Waldio, from: u64, len: u32) -> Result<&[u8], JournalError> {
        let len = u64::from(len);
        if from + len > self.end {
            return Err(log.damaged(from, "a transaction's records"));
        }
        let within = from.wrapping_sub(self.at);
        if from < self.at || within + len > self.bytes.len() as u64 {
            self.bytes.resize(len.max(STEP).min(self.end - from) as usize, 0);
            self.at = from;
            log.read_log(from, &mut self.bytes)?;
        }
        let within = (from - self.at) as usize;
        Ok(&self.bytes[within..within + len as usize])
    }
}

impl Waldio {
    /// Takes in the transactions that were sealed since this process last looked.
    pub(super) fn follow(&mut self) -> Result<(), JournalError> {
        let sealed = self.group.sealed();
        while self.take_in_next(sealed)? {}
        Ok(())
    }

    /// Takes in one transaction, if there is one before `sealed`.
    pub(super) fn take_in_next(&mut self, sealed: u64) -> Result<bool, JournalError> {
        if self.wal_header.is_none() || self.end >= sealed {
            return Ok(false);
        }
        self.drop_staged();
        self.end = match self.superblock().layout {
            Layout::Delta => self.take_in_group_transaction(sealed)?,
            Layout::Embedded => self.take_in_frames(sealed)?,
        };
        self.sequence += 1;
        Ok(true)
    }

    pub(super) fn read_log(&self, position: u64, buf: &mut [u8]) -> Result<(), JournalError> {
        self.group.read(self.generation, position, buf)
    }

    /// The next transaction of the `delta` layout; returns where it ends.
    fn take_in_group_transaction(&mut self, sealed: u64) -> Result<u64, JournalError> {
        let unit = u64::from(self.superblock().block_bytes);
        let mut at = self.end;
        let mut group = None;
        loop {
            let mut word = [0; 4];
            self.read_log(at, &mut word)?;
            match u32::from_le_bytes(word) {
                0 if !at.is_multiple_of(unit) => at = at.next_multiple_of(unit),
                GROUP_MAGIC => {
                    group = Some(at);
                    at += GROUP_HEADER_BYTES;
                }
                _ => break,
            }
            if at + u64::from(TX_HEADER_BYTES) > sealed {
                return Err(self.damaged(at, "a group of transactions"));
            }
        }
        if let Some(group) = group {
            let mut head = [0; GROUP_HEADER_BYTES as usize];
            self.read_log(group, &mut head)?;
            self.group_ms = group_time(&head);
        }
        let mut head = [0; TX_HEADER_BYTES as usize];
        self.read_log(at, &mut head)?;
        let offset = self.group.offset_of(self.generation, at);
        let corrupt = |what| JournalError::Corrupt { offset, what };
        let header = TxHeader::decode(&head).map_err(corrupt)?;
        let end = match header.tx_bytes {
            TX_TAKES_GROUP => self.end_of_group(group.ok_or_else(|| self.damaged(at, ALONE))?)?,
            bytes => at + u64::from(bytes),
        };
        if header.sequence != self.sequence + 1 || end > sealed || header.first_frame > self.committed() + 1 {
            return Err(self.damaged(at, "the order of transactions"));
        }
        let largest = largest_record(self.superblock().page_bytes);
        let mut window = Window { bytes: std::mem::take(&mut self.payload), at, end };
        window.bytes.clear();
        let mut place = at + u64::from(TX_HEADER_BYTES);
        for _ in 0..header.records {
            let head = window.get(self, place, RECORD_HEADER_BYTES)?.first_chunk();
            let head = head.ok_or_else(|| self.damaged(at, "a transaction's records"))?;
            let record = RecordHeader::decode(head).map_err(corrupt)?;
            if record.record_bytes > largest {
                return Err(self.damaged(at, "a transaction's records"));
            }
            let content = window.get(self, place, record.record_bytes)?;
            let change = |page: &mut [u8]| apply_ranges(page, content);
            if !self.chains.found_at_hand(place, &record, change) {
                return Err(self.damaged(at, "a transaction's frame numbers"));
            }
            place = (place + u64::from(record.record_bytes)).next_multiple_of(8);
        }
        self.payload = window.bytes;
        let (first, count) = self.chains.staged_frames();
        let complete = place == end && first == header.first_frame && header.last_frame - first < count;
        if header.records == 0 || !complete {
            return Err(self.damaged(at, "a transaction's frame numbers"));
        }
        self.chains.commit(&Committed {
            last_frame: header.last_frame,
            db_pages: header.db_pages,
            checksum: Some(header.wal_checksum),
            sequence: header.sequence,
            time_ms: self.group_ms,
        });
        Ok(end)
    }

    /// Where the group ends that begins at a position and was written past the ring: its header is on
    /// the device as long as its transaction is sealed.
    fn end_of_group(&self, at: u64) -> Result<u64, JournalError> {
        let mut head = [0; GROUP_HEADER_BYTES as usize];
        self.read_log(at, &mut head)?;
        let offset = self.group.offset_of(self.generation, at);
        let group = GroupHeader::decode(&head, self.log_id(), self.generation, offset);
        let group = group.filter(|group| group.transactions == 1).ok_or_else(|| self.damaged(at, ALONE))?;
        at.checked_add(group.bytes).ok_or_else(|| self.damaged(at, ALONE))
    }

    /// The next transaction of the `embedded` layout; returns where it ends.
    fn take_in_frames(&mut self, sealed: u64) -> Result<u64, JournalError> {
        let Superblock { page_bytes, block_bytes, log_id, .. } = *self.superblock();
        let longest = u64::from(frame_bytes(page_bytes, block_bytes, false));
        let mut page = vec![0; page_bytes as usize];
        let mut bytes = Vec::new();
        let mut at = self.end.max(self.group.start_of(self.generation));
        let mut transaction = None;
        loop {
            bytes.resize(longest.min(sealed.saturating_sub(at)) as usize, 0);
            self.read_log(at, &mut bytes)?;
            let offset = self.group.offset_of(self.generation, at);
            let found = if bytes.len() < page.len().max(MARK_BYTES) {
                None
            } else {
                decode_frame(&bytes, &mut page, block_bytes, log_id, self.generation, offset)
            };
            let Some((mark, taken)) = found else {
                return Err(self.damaged(at, "a frame"));
            };
            if !mark.follows(transaction) {
                return Err(self.damaged(at, "a transaction's frames"));
            }
            transaction = Some(mark.transaction);
            if !self.chains.has_staged() && mark.frame > self.committed() + 1 {
                return Err(self.damaged(at, "the order of frames"));
            }
            let record = writer::frame_record(taken, mark.frame, mark.page_number);
            let change = |image: &mut [u8]| {
                image.copy_from_slice(&page);
                Ok(())
            };
            if !self.chains.found_at_hand(at, &record, change) {
                return Err(self.damaged(at, "a transaction's frame numbers"));
            }
            at += u64::from(taken);
            if mark.db_pages != 0 {
                self.chains.commit(&self.frames_committed(mark.frame, mark.db_pages));
                return Ok(at);
            }
        }
    }
}
