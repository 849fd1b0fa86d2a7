//! Applies transactions to the index in the order of their commits (invariant 7). Other processes have sealed these
//! transactions, or recovery has found them. `duralite verify` and fuzzing use the same decoder. The decoder accepts any
//! bytes (invariant 12). It needs memory for one record, not for a whole transaction.

use duralite_format::record::{RECORD_HEADER_BYTES, RecordHeader, largest_record};
use duralite_format::waldio::{
    GROUP_HEADER_BYTES, GROUP_MAGIC, GroupHeader, Layout, MARK_BYTES, TX_HEADER_BYTES, TX_TAKES_GROUP,
    TxHeader, decode_frame, frame_bytes, group_time,
};

use super::ahead::Ahead;
use super::recovery::CheckedGroup;
use super::{Waldio, writer};
use crate::LogError;
use crate::engine::prelude::*;
use crate::shared::delta_chains::{Committed, apply_record};

const ALONE: &str = "a transaction that takes its group";

/// The most bytes of new transactions that are copied from the ring in one piece.
const AT_HAND: u64 = 64 << 10;

/// A copy of a part of the log, in memory. The copy stays valid, because sealed bytes do not change within a generation.
struct Window(Ahead);

impl Window {
    /// Returns `len` bytes from a byte position on. May also read the bytes that follow, but only bytes that are before
    /// `end`, or that are only on the device.
    fn get(&mut self, log: &Waldio, from: u64, len: u32, end: u64) -> Result<&[u8], LogError> {
        // Load the shared words only if bytes have to be read, because recovery calls this method for each record of
        // the log.
        let at_once = || end.max(log.group.past_ring()).saturating_sub(from);
        self.0.get(from, len.into(), at_once, |at, buf| log.read_log(at, buf))
    }

    /// Like [`Window::get`], for bytes that must end at or before `end`.
    fn within(&mut self, log: &Waldio, from: u64, len: u32, end: u64) -> Result<&[u8], LogError> {
        if from + u64::from(len) > end {
            return Err(log.damaged(from, "a transaction's records"));
        }
        self.get(log, from, len, end)
    }

    /// Returns `N` bytes from a byte position on.
    fn array<const N: usize>(&mut self, log: &Waldio, from: u64) -> Result<[u8; N], LogError> {
        let bytes = self.get(log, from, N as u32, 0)?.first_chunk();
        bytes.copied().ok_or_else(|| log.damaged(from, "a transaction's records"))
    }
}

impl Waldio {
    /// Applies the transactions that were sealed since this process last looked.
    pub(super) fn follow(&mut self) -> Result<(), LogError> {
        let sealed = self.group.sealed();
        let len = sealed.saturating_sub(self.end);
        if len > 0 && len <= AT_HAND {
            // Copy everything that is new at once, instead of a few bytes at a time for each header and record.
            let (group, end) = (&self.group, self.end);
            self.window.fill(end, len as usize, |buf| group.read_sealed(end, buf));
        }
        let followed = loop {
            match self.take_in_next(sealed) {
                Ok(true) => {}
                other => break other.map(drop),
            }
        };
        self.window.clear();
        followed
    }

    /// Applies the transactions of a group that recovery has just read. During recovery a byte position is an offset in the
    /// file.
    pub(super) fn take_in_group(&mut self, group: &CheckedGroup<'_>) -> Result<(), LogError> {
        self.window.put(group.at, group.bytes);
        // The bytes between the last group and this one are padding.
        self.end = group.at;
        while self.take_in_next(group.end)? {}
        Ok(())
    }

    /// Applies the next transaction, if there is one before the byte position `sealed`. Returns whether there was
    /// one.
    pub(super) fn take_in_next(&mut self, sealed: u64) -> Result<bool, LogError> {
        if self.wal_header.is_none() || self.end >= sealed {
            return Ok(false);
        }
        self.drop_staged();
        self.end = match self.superblock().layout {
            Layout::Delta => {
                let mut window = Window(std::mem::take(&mut self.window));
                let end = self.take_in_group_transaction(&mut window, sealed);
                self.window = window.0;
                end?
            }
            Layout::Embedded => self.take_in_frames(sealed)?,
        };
        self.sequence += 1;
        Ok(true)
    }

    pub(super) fn read_log(&self, position: u64, buf: &mut [u8]) -> Result<(), LogError> {
        self.group.read(self.generation, position, buf)
    }

    /// Applies the next transaction of the `delta` layout. Returns where it ends.
    fn take_in_group_transaction(&mut self, window: &mut Window, sealed: u64) -> Result<u64, LogError> {
        let unit = u64::from(self.superblock().block_bytes);
        let mut at = self.end;
        let mut group = None;
        loop {
            match u32::from_le_bytes(window.array(self, at)?) {
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
            let head: [u8; GROUP_HEADER_BYTES as usize] = window.array(self, group)?;
            self.group_ms = group_time(&head);
        }
        let head: [u8; TX_HEADER_BYTES as usize] = window.array(self, at)?;
        let corrupt = |what| LogError::Corrupt { offset: self.group.offset_of(self.generation, at), what };
        let header = TxHeader::decode(&head).map_err(corrupt)?;
        let end = match header.tx_bytes {
            TX_TAKES_GROUP => self.end_of_group(group.ok_or_else(|| self.damaged(at, ALONE))?)?,
            bytes => at + u64::from(bytes),
        };
        if header.sequence != self.sequence + 1 || end > sealed || header.first_frame > self.committed() + 1 {
            return Err(self.damaged(at, "the order of transactions"));
        }
        let largest = largest_record(self.superblock().head.page_bytes);
        let mut place = at + u64::from(TX_HEADER_BYTES);
        for _ in 0..header.records {
            let head = window.within(self, place, RECORD_HEADER_BYTES, end)?.first_chunk();
            let head = head.ok_or_else(|| self.damaged(at, "a transaction's records"))?;
            let record = RecordHeader::decode(head).map_err(corrupt)?;
            if record.record_bytes > largest {
                return Err(self.damaged(at, "a transaction's records"));
            }
            let content = window.within(self, place, record.record_bytes, end)?;
            let change = |page: &mut [u8]| apply_record(page, content);
            if !self.chains.found_at_hand(place, &record, change) {
                return Err(self.damaged(at, "a transaction's frame numbers"));
            }
            place = (place + u64::from(record.record_bytes)).next_multiple_of(8);
        }
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

    /// Returns the end of a group that bypassed the ring and begins at byte position `at`. Reads the group's header from the
    /// device. The header is there already, because the writer writes it before it seals the transaction.
    fn end_of_group(&self, at: u64) -> Result<u64, LogError> {
        let mut head = [0; GROUP_HEADER_BYTES as usize];
        self.read_log(at, &mut head)?;
        let offset = self.group.offset_of(self.generation, at);
        let group = GroupHeader::decode(&head, self.log_id(), self.generation, offset);
        let group = group.filter(|group| group.transactions == 1).ok_or_else(|| self.damaged(at, ALONE))?;
        at.checked_add(group.bytes).ok_or_else(|| self.damaged(at, ALONE))
    }

    /// Applies the next transaction of the `embedded` layout. Returns where it ends.
    fn take_in_frames(&mut self, sealed: u64) -> Result<u64, LogError> {
        let (page_bytes, block_bytes) = (self.superblock.head.page_bytes, self.superblock.block_bytes);
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
                decode_frame(&bytes, &mut page, block_bytes, self.log_id(), self.generation, offset)
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
