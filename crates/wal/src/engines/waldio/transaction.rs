//! The parts of a commit: the transaction being staged, and the groups in which sealed transactions reach the device.

use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use duralite_format::waldio::{
    AREA_BYTES, BodyHash, DATA_OFFSET, GROUP_HEADER_BYTES, GroupHeader, Layout, Slot, Superblock,
    TX_HEADER_BYTES, TxHeader, body_hash, decode_frame, group_placeholder, group_time, slot_offset,
};
use duralite_format::{FormatError, LogId};
use duralite_medium::block::{Block, Durability};
use duralite_medium::{MediumError, Segment};

use super::ahead::Ahead;
use super::options::WaldioOptions;
use crate::LogError;
use crate::shared::delta_chains::{Record, apply_record};
use crate::shared::group::{self, Framing, Generation, Geometry, Group, GroupOptions, RING_SHARE, Recovered};

/// A flag in the position of a record. If it is set, the record is in the open transaction, and the lower bits are an
/// offset in the transaction (`delta`) or the number of a frame in it (`embedded`).
pub(super) const STAGED: u64 = 1 << 63;
/// The transaction being staged.
#[derive(Default)]
pub(super) struct Open {
    /// The header and the records (`delta`), except for the bytes that have been written to the device already.
    pub(super) bytes: Vec<u8>,
    pub(super) records: u32,
    pub(super) direct: Option<Direct>,
    /// The page numbers and the pages of the staged frames (`embedded`), in order.
    pub(super) frames: Vec<(u32, Box<[u8]>)>,
}

/// A transaction that bypasses the ring.
pub(super) struct Direct {
    /// Byte position of the transaction's group.
    pub(super) start: u64,
    /// The number of bytes of the transaction that have been written to the device.
    pub(super) written: u64,
    /// The group's first block. The writer writes it again at the end, with the group's header.
    pub(super) first_block: Vec<u8>,
    pub(super) hash: BodyHash,
}

impl Open {
    /// Drops the transaction, but keeps the memory for the next one.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.records = 0;
        self.direct = None;
        self.frames.clear();
    }

    /// Returns the number of bytes of the transaction so far.
    pub(super) fn len(&self) -> u64 {
        self.direct.as_ref().map_or(0, |direct| direct.written) + self.bytes.len() as u64
    }

    /// Returns whether the transaction may have to bypass the ring if the writer stages `bytes` more bytes of pages.
    /// Pages may take more bytes in the log than in the database: less than one and a half times as many if the log
    /// holds differences, and at most one block more in the layout `embedded`.
    pub(super) fn outgrows(&self, bytes: usize, block_bytes: usize) -> bool {
        let frame = self.frames.first().map_or(0, |(_, page)| page.len() + block_bytes);
        let staged = self.bytes.len() + self.frames.len() * frame + block_bytes;
        self.direct.is_none() && (staged + bytes) as u64 > RING_SHARE / 2
    }

    /// Reads bytes of the transaction from its offset `at` on. Reads them from the device if they have been written there
    /// already, otherwise from memory.
    pub(super) fn read(
        &self,
        group: &Group,
        generation: u64,
        at: u64,
        buf: &mut [u8],
    ) -> Result<(), LogError> {
        let mut rest = buf;
        let mut from = at;
        if let Some(direct) = &self.direct
            && at < direct.written
        {
            let (head, tail) = rest.split_at_mut(rest.len().min((direct.written - at) as usize));
            let offset = group.offset_of(generation, direct.start + GROUP_HEADER_BYTES + at);
            group.block().read(offset, head).map_err(|source| group.failed(source))?;
            from += head.len() as u64;
            rest = tail;
        }
        if rest.is_empty() {
            return Ok(());
        }
        let from = (from - self.direct.as_ref().map_or(0, |direct| direct.written)) as usize;
        let found = self.bytes.get(from..from + rest.len());
        rest.copy_from_slice(found.ok_or(LogError::Unexpected("a record that is not staged"))?);
        Ok(())
    }

    /// Applies a record to a page. The record may be in memory, in the ring or on the device. `bytes` is a buffer. With
    /// `ahead`, the records are read in about the order of the log.
    pub(super) fn apply(
        &self,
        (group, superblock): (&Group, &Superblock),
        generation: u64,
        record: &Record,
        (bytes, ahead): (&mut Vec<u8>, Option<&mut Ahead>),
        page: &mut [u8],
    ) -> Result<(), LogError> {
        let corrupt = |what| LogError::Corrupt { offset: record.at, what };
        let staged = record.at & STAGED != 0;
        let within = record.at & !STAGED;
        if staged && self.direct.is_none() && self.bytes.is_empty() {
            let (_, staged) =
                self.frames.get(within as usize).ok_or(LogError::Unexpected("a frame that is not staged"))?;
            page.copy_from_slice(staged);
            return Ok(());
        }
        bytes.resize(record.record_bytes as usize, 0);
        if staged {
            self.read(group, generation, within, bytes)?;
        } else {
            read_committed(group, generation, record.at, bytes, ahead)?;
        }
        match superblock.layout {
            Layout::Delta => apply_record(page, bytes).map_err(corrupt),
            Layout::Embedded => {
                let (log_id, block_bytes) = (superblock.head.log_id, superblock.block_bytes);
                let offset = group.offset_of(generation, record.at);
                let what = FormatError::Damaged { what: "a frame" };
                decode_frame(bytes, page, block_bytes, log_id, generation, offset)
                    .map(|_| ())
                    .ok_or(LogError::Corrupt { offset, what })
            }
        }
    }
}

/// Reads the bytes of a committed record. With `ahead`, reads what follows on the device too.
fn read_committed(
    group: &Group,
    generation: u64,
    at: u64,
    bytes: &mut [u8],
    ahead: Option<&mut Ahead>,
) -> Result<(), LogError> {
    // The records before the first of a backlog are read in any order, and a large piece for each would be in vain.
    let Some(ahead) = ahead.filter(|ahead| ahead.is_at_or_before(at)) else {
        return group.read(generation, at, bytes);
    };
    // What has not left the ring may not be on the device.
    let at_once = || group.past_ring().saturating_sub(at);
    let found = ahead.get(at, bytes.len() as u64, at_once, |at, buf| group.read(generation, at, buf))?;
    bytes.copy_from_slice(found);
    Ok(())
}

/// What group commit needs to know about a log to encode the log's groups.
struct WaldioFraming {
    id: LogId,
    layout: Layout,
}

impl Framing for WaldioFraming {
    fn header_bytes(&self) -> u64 {
        match self.layout {
            Layout::Delta => GROUP_HEADER_BYTES,
            Layout::Embedded => 0,
        }
    }

    fn placeholder(&self, generation: u64, time_ms: u64) -> Vec<u8> {
        group_placeholder(generation, time_ms).to_vec()
    }

    fn complete(
        &self,
        group: &mut [u8],
        generation: u64,
        offset: u64,
        ordered: bool,
    ) -> Result<u64, LogError> {
        if self.layout == Layout::Embedded {
            // A group may hold more than one transaction. To count them, this method would have to decode all frames
            // and check their checksums.
            return Ok(1);
        }
        let corrupt = |what| LogError::Corrupt { offset, what };
        let (head, body) = group.split_at_mut(GROUP_HEADER_BYTES as usize);
        let (mut at, mut transactions, mut first_sequence) = (0, 0, 0);
        while at < body.len() {
            let tx = TxHeader::decode(&body[at..]).map_err(corrupt)?;
            if transactions == 0 {
                first_sequence = tx.sequence;
            }
            transactions += 1;
            at += tx.tx_bytes as usize;
        }
        let header = GroupHeader {
            first_sequence,
            transactions,
            bytes: GROUP_HEADER_BYTES + body.len() as u64,
            ordered,
            body_hash: body_hash(self.id, generation, offset, body),
            time_ms: group_time(head),
        };
        head.copy_from_slice(&header.encode(self.id, generation, offset));
        Ok(u64::from(transactions))
    }

    fn begin(&self, block: &dyn Block, generation: &Generation, later: bool) -> Result<(), MediumError> {
        let Generation { number: generation, wal_header, retired, file_bytes, position, time_ms } =
            *generation;
        let slot = Slot { generation, wal_header, retired, file_bytes, position, time_ms };
        let (at, slot) = (slot_offset(generation), slot.encode(self.id));
        if later { block.write_later(at, &slot) } else { block.write_durably(at, &slot, Durability::Full) }
    }
}

/// Joins the processes that share the log's group commit. With `recovered`, initialises the shared state to what recovery
/// found.
pub(super) fn join(
    segment: Arc<dyn Segment>,
    base: u64,
    block: Arc<dyn Block>,
    superblock: &Superblock,
    options: &WaldioOptions,
    recovered: Option<Recovered>,
) -> Result<Group, LogError> {
    let framing = WaldioFraming { id: superblock.head.log_id, layout: superblock.layout };
    let geometry = Geometry {
        block_bytes: superblock.block_bytes,
        data_offset: DATA_OFFSET,
        limit_bytes: superblock.limit_bytes,
        path: std::ffi::OsStr::from_bytes(&superblock.head.path).into(),
    };
    let options = GroupOptions {
        durability: options.durability,
        leader_patience: options.leader_patience,
        settings: options.fingerprint(),
    };
    Group::join(segment, base, block, geometry, Arc::new(framing), options, recovered)
}

const _: () = assert!(TX_HEADER_BYTES.is_multiple_of(8) && GROUP_HEADER_BYTES.is_multiple_of(8));
const _: () = assert!(AREA_BYTES == group::AREA_BYTES && DATA_OFFSET.is_multiple_of(AREA_BYTES));
