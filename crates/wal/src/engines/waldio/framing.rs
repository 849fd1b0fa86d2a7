//! Encodes the groups and generations of a `waldio` log for group commit.

use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use duralite_format::LogId;
use duralite_format::waldio::{
    AREA_BYTES, DATA_OFFSET, GROUP_HEADER_BYTES, GroupHeader, Layout, Slot, Superblock, TX_HEADER_BYTES,
    TxHeader, body_hash, group_placeholder, group_time, slot_offset,
};
use duralite_medium::block::{Block, Durability};
use duralite_medium::{MediumError, Segment};

use super::WaldioOptions;
use crate::LogError;
use crate::shared::group::{self, Framing, Generation, Geometry, Group, GroupOptions, Recovered};

/// What group commit needs to know of a log to encode its groups.
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
            // A group may hold more transactions. Only decoding all its frames, checksums included, would count them.
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

/// Joins the processes that share the log. With `recovered`, initialises the shared state to what recovery found.
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
