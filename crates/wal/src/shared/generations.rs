//! The generation that is in force in a log, and how that generation began. Logs in memory store generations in slots.

use duralite_format::generation::{
    ACTIVE_OFFSET, NO_BLOCK, SLOT_BYTES, Slot, active_word, origin_offset, read_active_word, slot_offset,
};
use duralite_format::sqlite_wal::{WAL_HEADER_BYTES, WalHeader};
use duralite_format::{FormatError, GENERATION_LIMIT, LogId, ORIGIN_BYTES, Origin};
use duralite_medium::Nvm;

use crate::LogError;

/// The generation in force, as this process read or began it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InForce {
    /// The value of the `active` word that names the generation.
    pub(crate) active: u64,
    pub(crate) slot: Slot,
    pub(crate) origin: Origin,
    /// SQLite's WAL header; `None` if the log is empty.
    pub(crate) wal_header: Option<WalHeader>,
}

impl InForce {
    /// Returns the state before any generation has been read.
    pub(crate) fn none() -> Self {
        let slot =
            Slot { generation: 0, first_block: NO_BLOCK, wal_header: [0; WAL_HEADER_BYTES], retired: false };
        Self { active: 0, slot, origin: Origin::unknown(0), wal_header: None }
    }

    /// Returns the generation of an empty log.
    pub(crate) fn first() -> Self {
        let slot = Slot { generation: 1, ..Self::none().slot };
        // No transaction is ever committed in this generation, so nobody needs the time at which it began.
        let origin = Origin { generation: 1, position: 0, time_ms: 0 };
        Self { active: active_word(1), slot, origin, wal_header: None }
    }

    /// Returns three byte ranges of the log: the generation's slot, its origin, and the word that activates the
    /// generation.
    pub(crate) fn extents(&self) -> [(u64, u64); 3] {
        extents_of(self.slot.generation)
    }

    /// Reads the generation that the `active` word names.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn read(nvm: &dyn Nvm, id: LogId, page_bytes: u32, active: u64) -> Result<Self, LogError> {
        let damaged = |offset, what| LogError::Corrupt { offset, what };
        let generation = read_active_word(active);
        if !(1..GENERATION_LIMIT).contains(&generation) {
            return Err(damaged(ACTIVE_OFFSET, FormatError::Damaged { what: "the log's active generation" }));
        }
        let at = slot_offset(generation);
        let mut bytes = [0; SLOT_BYTES];
        nvm.read(at, &mut bytes);
        let slot = Slot::decode(&bytes, id, generation).map_err(|error| damaged(at, error))?;
        let wal_header = if slot.first_block == NO_BLOCK {
            None
        } else {
            let header = WalHeader::parse(&slot.wal_header).map_err(|error| damaged(at, error))?;
            if header.page_bytes != page_bytes {
                return Err(damaged(at, FormatError::Damaged { what: "the log's page size" }));
            }
            Some(header)
        };
        let mut bytes = [0; ORIGIN_BYTES];
        nvm.read(origin_offset(generation), &mut bytes);
        Ok(Self { active, slot, origin: Origin::decode(&bytes, id, generation), wal_header })
    }

    /// Stores the generation, fences, and then stores the word that puts the generation in force. All of this is
    /// durable on return.
    pub(crate) fn store(&self, nvm: &dyn Nvm, id: LogId) {
        for (at, bytes) in self.parts(id) {
            nvm.store(at, &bytes);
            nvm.flush(at, bytes.len() as u64);
        }
        nvm.fence();
        nvm.store_u64(ACTIVE_OFFSET, self.active);
        nvm.flush(ACTIVE_OFFSET, 8);
        nvm.fence();
    }

    /// Stores everything for a new log that no other process knows yet. Makes nothing durable.
    pub(crate) fn write(&self, nvm: &dyn Nvm, id: LogId) {
        for (at, bytes) in self.parts(id) {
            nvm.store(at, &bytes);
        }
        nvm.store_u64(ACTIVE_OFFSET, self.active);
    }

    fn parts(&self, id: LogId) -> [(u64, Vec<u8>); 2] {
        let generation = self.slot.generation;
        [
            (slot_offset(generation), self.slot.encode(id).to_vec()),
            (origin_offset(generation), self.origin.encode(id).to_vec()),
        ]
    }
}

/// Flushes a generation, and the word that puts it in force. Both are durable with the next fence.
pub(crate) fn flush(nvm: &dyn Nvm, generation: u64) {
    for (from, to) in extents_of(generation) {
        nvm.flush(from, to - from);
    }
}

/// Returns three byte ranges of a log: this generation's slot, its origin, and the word that activates the generation.
fn extents_of(generation: u64) -> [(u64, u64); 3] {
    [(slot_offset(generation), SLOT_BYTES), (origin_offset(generation), ORIGIN_BYTES), (ACTIVE_OFFSET, 8)]
        .map(|(at, bytes)| (at, at + bytes as u64))
}

/// The time at which the last transaction of a generation was sealed. If the generation has no transaction, the time at
/// which it began. An engine needs this time because a transaction stores only the time since the previous transaction.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SealTime {
    /// The time in milliseconds since 1970. It has no meaning if the log does not say when the generation began.
    ms: u64,
    is_known: bool,
}

impl SealTime {
    /// Returns the time of the beginning of a generation.
    pub(crate) fn at_begin(origin: &Origin) -> Self {
        Self { ms: origin.time_ms, is_known: origin.time_ms > 0 }
    }

    /// Returns the milliseconds from the last transaction to `now`. If somebody has set the clock back, returns 0 until
    /// the clock has caught up or the log starts over.
    pub(crate) fn until(&self, now: u64) -> u32 {
        u32::try_from(now.saturating_sub(self.ms)).unwrap_or(u32::MAX)
    }

    /// Advances to a transaction that was sealed `elapsed_ms` milliseconds after the previous one.
    pub(crate) fn advance(&mut self, elapsed_ms: u32) {
        self.ms = self.ms.saturating_add(u64::from(elapsed_ms));
    }

    /// Returns the time in milliseconds since 1970; 0 if the log does not store when the generation began.
    pub(crate) fn told(&self) -> u64 {
        if self.is_known { self.ms } else { 0 }
    }
}
