//! The transaction being staged, before it is sealed.

use duralite_format::FormatError;
use duralite_format::waldio::{BodyHash, GROUP_HEADER_BYTES, Layout, Superblock, decode_frame};

use crate::LogError;
use crate::shared::delta_chains::{Record, apply_record};
use crate::shared::group::{Group, RING_SHARE};

/// Marks the place of a record of the open transaction. The lower bits are then an offset in the transaction (`delta`), or the
/// number of one of its frames (`embedded`).
pub(super) const STAGED: u64 = 1 << 63;
/// The transaction being staged.
#[derive(Default)]
pub(super) struct Open {
    /// `delta`: header and records, without the bytes that have been written to the device.
    pub(super) bytes: Vec<u8>,
    pub(super) records: u32,
    pub(super) direct: Option<Direct>,
    /// `embedded`: page numbers and pages of the staged frames, in order.
    pub(super) frames: Vec<(u32, Box<[u8]>)>,
}

/// A transaction that bypasses the ring.
pub(super) struct Direct {
    /// Byte position of the transaction's group.
    pub(super) start: u64,
    /// Bytes of the transaction that have been written to the device.
    pub(super) written: u64,
    /// The group's first block, to be written again with the group's header.
    pub(super) first_block: Vec<u8>,
    pub(super) hash: BodyHash,
}

impl Open {
    /// Drops the transaction, and keeps the memory for the next one.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.records = 0;
        self.direct = None;
        self.frames.clear();
    }

    /// Bytes of the transaction so far.
    pub(super) fn len(&self) -> u64 {
        self.direct.as_ref().map_or(0, |direct| direct.written) + self.bytes.len() as u64
    }

    /// Whether the transaction may have to bypass the ring once `bytes` more bytes of pages have been staged. A page may take
    /// more than its own bytes in the log: by less than half or, embedded, by a block.
    pub(super) fn outgrows(&self, bytes: usize, block_bytes: usize) -> bool {
        let frame = self.frames.first().map_or(0, |(_, page)| page.len() + block_bytes);
        let staged = self.bytes.len() + self.frames.len() * frame + block_bytes;
        self.direct.is_none() && (staged + bytes) as u64 > RING_SHARE / 2
    }

    /// Reads bytes of the transaction from its offset `at` on. Those that have been written to the device are read from there,
    /// the rest from memory.
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

    /// Applies a record to a page, wherever the record is stored.
    pub(super) fn apply(
        &self,
        (group, superblock): (&Group, &Superblock),
        generation: u64,
        record: &Record,
        bytes: &mut Vec<u8>,
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
            group.read(generation, record.at, bytes)?;
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
