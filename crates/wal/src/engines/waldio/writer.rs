//! Stages a transaction in this process's memory, and seals it.
//!
//! A transaction that outgrows its share of the ring bypasses the ring. The writer itself then writes the transaction
//! to the device, after all sealed transactions. Recovery ignores these blocks until the writer's last write completes
//! them. In the `delta` layout, the last write replaces zeros by the group's header. In the `embedded` layout, the last
//! write writes the last frames.

use duralite_format::LogId;
use duralite_format::record::{Base, RecordHeader};
use duralite_format::waldio::{
    BodyHash, GROUP_HEADER_BYTES, GroupHeader, Mark, TX_HEADER_BYTES, TX_TAKES_GROUP, TxHeader, encode_frame,
    frame_bytes, has_room_for_mark, transaction_hash,
};
use duralite_medium::block::Durability;

use super::Waldio;
use super::transaction::{Direct, Open, STAGED};
use crate::LogError;
use crate::engine::{Commit, Ticket};
use crate::shared::delta_chains::Committed;
use crate::shared::group::{Content, Group, Placing, RING_SHARE};

/// If more bytes than this are staged, the writer writes them to the device.
const STAGE_LIMIT: usize = 1 << 20;
/// The size in bytes of each write of the frames of a large transaction.
const FRAMES_STEP: usize = 1 << 20;

/// Returns a record header for an embedded frame. The index keeps such a header for each frame.
pub(super) fn frame_record(bytes: u32, frame: u32, page_number: u32) -> RecordHeader {
    RecordHeader { record_bytes: bytes, frame, page_number, ranges: 0, base: Base::Zeros }
}

impl Waldio {
    /// Stages the difference of a page from its last logged image.
    pub(super) fn stage_difference(
        &mut self,
        frame: u32,
        page_number: u32,
        page: &[u8],
    ) -> Result<(), LogError> {
        let (log, open, generation) = ((&*self.group, &self.superblock), &self.open, self.generation);
        let mut payload = std::mem::take(&mut self.payload);
        let mut bytes = Vec::new();
        let header =
            self.chains.encode_record(frame, page_number, page, &mut payload, &mut |record, page| {
                open.apply(log, generation, record, (&mut bytes, None), page)
            });
        let stored = header.and_then(|header| self.store_record(&header, &payload, page));
        self.payload = payload;
        stored
    }

    fn store_record(&mut self, header: &RecordHeader, payload: &[u8], page: &[u8]) -> Result<(), LogError> {
        if self.open.bytes.is_empty() && self.open.direct.is_none() {
            self.open.bytes.resize(TX_HEADER_BYTES as usize, 0);
        }
        if self.open.bytes.len() > STAGE_LIMIT {
            self.spill()?;
        }
        let at = self.open.len();
        let records = self.open.records.checked_add(1);
        let records = records.ok_or(LogError::Unexpected("more records than can be counted"))?;
        self.chains.stored(at | STAGED, header, payload, page)?;
        let open = &mut self.open;
        open.bytes.extend_from_slice(&header.encode());
        open.bytes.extend_from_slice(payload);
        open.bytes.resize(open.bytes.len().next_multiple_of(8), 0);
        open.records = records;
        self.activity.records += 1;
        Ok(())
    }

    /// Writes the staged bytes to the device, as far as they fill whole blocks.
    fn spill(&mut self) -> Result<(), LogError> {
        let group = self.group.clone();
        let unit = self.superblock.block_bytes as usize;
        let mut direct = match self.open.direct.take() {
            Some(direct) => direct,
            None => {
                let start = group.begin_direct()?;
                let offset = group.offset_of(self.generation, start);
                let hash = BodyHash::new(self.log_id(), self.generation, offset);
                Direct { start, written: 0, first_block: Vec::new(), hash }
            }
        };
        let result = self.spill_to(&group, &mut direct, unit);
        self.open.direct = Some(direct);
        result
    }

    fn spill_to(&mut self, group: &Group, direct: &mut Direct, unit: usize) -> Result<(), LogError> {
        let fresh = direct.written == 0;
        let head = if fresh { GROUP_HEADER_BYTES as usize } else { 0 };
        let whole = (head + self.open.bytes.len()) / unit * unit;
        let taken = whole - head;
        let at = if fresh { direct.start } else { direct.start + GROUP_HEADER_BYTES + direct.written };
        group.reserve(at + whole as u64)?;
        let mut blocks = vec![0; head];
        blocks.extend_from_slice(&self.open.bytes[..taken]);
        let offset = group.offset_of(self.generation, at);
        group.block().write(offset, &blocks).map_err(|source| group.poison(group.failed(source)))?;
        if fresh {
            direct.first_block = blocks[..unit].to_vec();
            direct.hash.update(&self.open.bytes[TX_HEADER_BYTES as usize..taken]);
        } else {
            direct.hash.update(&self.open.bytes[..taken]);
        }
        self.open.bytes.drain(..taken);
        direct.written += taken as u64;
        Ok(())
    }

    /// Seals a transaction of the `delta` layout.
    pub(super) fn seal_differences(&mut self, commit: &Commit) -> Result<Ticket, LogError> {
        let length = self.open.len();
        let in_ring = self.open.direct.is_none() && length <= RING_SHARE;
        let header = TxHeader {
            tx_bytes: if in_ring { length as u32 } else { TX_TAKES_GROUP },
            sequence: self.sequence + 1,
            first_frame: commit.first_frame,
            last_frame: commit.last_frame,
            db_pages: commit.db_pages,
            records: self.open.records,
            wal_checksum: commit.checksum,
        };
        let (first, count) = self.chains.staged_frames();
        if self.open.records == 0 || first != commit.first_frame || commit.last_frame - first >= count {
            return Err(LogError::Unexpected("a commit of frames that are not staged"));
        }
        let (at, ticket) = if in_ring {
            self.open.bytes[..TX_HEADER_BYTES as usize].copy_from_slice(&header.encode());
            let time_ms = (self.clock)();
            let (placing, ticket) = self.group.append(Content::Anywhere(&self.open.bytes), time_ms)?;
            if placing.starts_group {
                self.group_ms = time_ms;
            }
            (placing.at, ticket)
        } else {
            self.seal_direct(&header)?
        };
        self.chains.move_staged(at.wrapping_sub(STAGED));
        self.chains.commit(&Committed {
            last_frame: commit.last_frame,
            db_pages: commit.db_pages,
            checksum: Some(commit.checksum),
            sequence: header.sequence,
            time_ms: self.group_ms,
        });
        self.end = at + length;
        self.open.clear();
        Ok(ticket)
    }

    /// Seals a transaction that bypasses the ring. Writes its last blocks, then the group's first block with the header.
    fn seal_direct(&mut self, header: &TxHeader) -> Result<(u64, Ticket), LogError> {
        self.spill()?;
        let group = self.group.clone();
        let Some(direct) = self.open.direct.take() else {
            return Err(LogError::Unexpected("a large transaction that is not begun"));
        };
        let Direct { start, written, mut first_block, mut hash } = direct;
        let rest = &mut self.open.bytes;
        hash.update(rest);
        let length = written + rest.len() as u64;
        let unit = first_block.len();
        if !rest.is_empty() {
            rest.resize(rest.len().next_multiple_of(unit), 0);
            let at = start + GROUP_HEADER_BYTES + written;
            group.reserve(at + rest.len() as u64)?;
            let offset = group.offset_of(self.generation, at);
            group.block().write(offset, rest).map_err(|source| group.poison(group.failed(source)))?;
        }
        let head = header.encode();
        let (group_bytes, tx_bytes) = (GROUP_HEADER_BYTES as usize, TX_HEADER_BYTES as usize);
        first_block[group_bytes..group_bytes + tx_bytes].copy_from_slice(&head);
        let offset = group.offset_of(self.generation, start);
        let group_header = GroupHeader {
            first_sequence: header.sequence,
            transactions: 1,
            bytes: GROUP_HEADER_BYTES + length,
            ordered: group.is_ordered(),
            body_hash: hash.finish(&head),
            time_ms: (self.clock)(),
        };
        self.group_ms = group_header.time_ms;
        let encoded = group_header.encode(self.log_id(), self.generation, offset);
        first_block[..group_bytes].copy_from_slice(&encoded);
        self.write_whole(&group, offset, &first_block)?;
        let ticket = group.publish_direct(start + GROUP_HEADER_BYTES + length)?;
        Ok((start + GROUP_HEADER_BYTES, ticket))
    }

    /// Writes the blocks that complete a group that bypasses the ring, and makes the whole group durable.
    fn write_whole(&mut self, group: &Group, offset: u64, blocks: &[u8]) -> Result<(), LogError> {
        // FUA would make only this write durable. The group's earlier writes need a flush.
        let durability = match self.options.durability {
            Durability::Normal => Durability::Normal,
            Durability::Full | Durability::Fua => Durability::Full,
        };
        self.activity.written_past_ring += 1;
        group
            .block()
            .write_durably(offset, blocks, durability)
            .map_err(|source| group.poison(group.failed(source)))
    }

    /// Stages a page of the `embedded` layout.
    pub(super) fn stage_frame(&mut self, frame: u32, page_number: u32, page: &[u8]) -> Result<(), LogError> {
        let (first, count) = self.chains.staged_frames();
        let slot = if count == 0 { 0 } else { frame.wrapping_sub(first) as usize };
        let record = frame_record(page.len() as u32, frame, page_number);
        self.chains.stored(slot as u64 | STAGED, &record, &[], page)?;
        let staged = (page_number, page.into());
        match self.open.frames.get_mut(slot) {
            Some(place) => *place = staged,
            None => self.open.frames.push(staged),
        }
        self.activity.records += 1;
        Ok(())
    }

    /// Seals a transaction of embedded frames.
    pub(super) fn seal_frames(&mut self, commit: &Commit) -> Result<Ticket, LogError> {
        let (first, count) = self.chains.staged_frames();
        if first != commit.first_frame || commit.last_frame - first >= count {
            return Err(LogError::Unexpected("a commit of frames that are not staged"));
        }
        let Open { mut frames, .. } = std::mem::take(&mut self.open);
        frames.truncate((commit.last_frame + 1 - first) as usize);
        let (page_bytes, block_bytes) = (self.superblock.head.page_bytes, self.superblock.block_bytes);
        let size = |(page_number, page): &(u32, Box<[u8]>)| {
            frame_bytes(page_bytes, block_bytes, has_room_for_mark(page, *page_number))
        };
        let length: u64 = frames.iter().map(|frame| u64::from(size(frame))).sum();
        let group = self.group.clone();
        let (at, ticket) = if length <= RING_SHARE {
            let mut make = |placing| self.encode_frames(&frames, commit, placing);
            let (placing, ticket) = group.append(Content::At(length, &mut make), 0)?;
            (placing.at, ticket)
        } else {
            let start = group.begin_direct()?;
            group.reserve(start + length)?;
            self.write_frames(&group, &frames, commit, start)?;
            (start, group.publish_direct(start + length)?)
        };
        self.chains.discard();
        let mut place = at;
        for (number, frame) in (first..).zip(&frames) {
            let bytes = size(frame);
            self.chains.stored(place, &frame_record(bytes, number, frame.0), &[], &frame.1)?;
            place += u64::from(bytes);
        }
        self.chains.commit(&self.frames_committed(commit.last_frame, commit.db_pages));
        self.end = at + length;
        Ok(ticket)
    }

    /// Returns what the index needs to know about the next transaction of embedded frames. Leaves the time and SQLite's
    /// checksum out, because the marks of embedded frames do not hold them.
    pub(super) fn frames_committed(&self, last_frame: u32, db_pages: u32) -> Committed {
        Committed { last_frame, db_pages, checksum: None, sequence: self.sequence + 1, time_ms: 0 }
    }

    /// Writes the frames of a transaction to the device from a byte position on, bypassing the ring. Only the last write
    /// waits until it is durable. The other writes need not wait, because the transaction is not committed as long as any
    /// frame is missing.
    fn write_frames(
        &mut self,
        group: &Group,
        frames: &[(u32, Box<[u8]>)],
        commit: &Commit,
        start: u64,
    ) -> Result<(), LogError> {
        let mut at = group.offset_of(self.generation, start);
        let mut bytes = Vec::new();
        let mut encoder = self.encoder(frames, commit, true);
        for (i, frame) in frames.iter().enumerate() {
            encoder.encode(&mut bytes, at, frame);
            if i + 1 < frames.len() && bytes.len() >= FRAMES_STEP {
                group.block().write(at, &bytes).map_err(|source| group.poison(group.failed(source)))?;
                at += bytes.len() as u64;
                bytes.clear();
            }
        }
        self.write_whole(group, at, &bytes)
    }

    fn encode_frames(&self, frames: &[(u32, Box<[u8]>)], commit: &Commit, placing: Placing) -> Vec<u8> {
        let at = self.group.offset_of(self.generation, placing.at);
        let mut bytes = Vec::new();
        let mut encoder = self.encoder(frames, commit, placing.starts_group);
        frames.iter().for_each(|frame| encoder.encode(&mut bytes, at, frame));
        bytes
    }

    fn encoder(&self, frames: &[(u32, Box<[u8]>)], commit: &Commit, starts_group: bool) -> FrameEncoder {
        let (log_id, block_bytes) = (self.superblock.head.log_id, self.superblock.block_bytes);
        FrameEncoder {
            block_bytes,
            log_id,
            generation: self.generation,
            commit: *commit,
            transaction: transaction_hash(frames.iter().map(|(number, page)| (*number, &**page))),
            starts_group,
            ordered: self.group.is_ordered(),
            frame: commit.first_frame,
        }
    }
}

/// Encodes the frames of a transaction, in order.
struct FrameEncoder {
    block_bytes: u32,
    log_id: LogId,
    generation: u64,
    commit: Commit,
    transaction: u64,
    starts_group: bool,
    ordered: bool,
    /// Number of the next frame.
    frame: u32,
}

impl FrameEncoder {
    /// Appends the next frame to `bytes`. The first byte of `bytes` belongs at `offset` in the file.
    fn encode(&mut self, bytes: &mut Vec<u8>, offset: u64, (page_number, page): &(u32, Box<[u8]>)) {
        let Commit { first_frame, last_frame, db_pages, .. } = self.commit;
        let first = self.frame == first_frame;
        let mark = Mark {
            page_number: *page_number,
            db_pages: if self.frame == last_frame { db_pages } else { 0 },
            frame: self.frame,
            transaction: self.transaction,
            starts_transaction: first,
            starts_group: first && self.starts_group,
            ordered: self.ordered,
        };
        let offset = offset + bytes.len() as u64;
        encode_frame(bytes, page, &mark, self.block_bytes, self.log_id, self.generation, offset);
        self.frame += 1;
    }
}
