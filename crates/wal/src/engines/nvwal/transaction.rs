//! The open transaction of a writer, before it is sealed.

use duralite_format::nvwal::TxHash;

use super::scan::Position;

/// The transaction that the writer stores after the log's tail.
#[derive(Default)]
pub(super) struct Writer {
    pub(super) open: Option<OpenTransaction>,
    /// The buffer of the last transaction's ranges, to be used again.
    pub(super) spare: Vec<(u64, u64)>,
}

/// The open transaction in the log.
pub(super) struct OpenTransaction {
    /// Place of the transaction's header.
    pub(super) start: Position,
    /// Place of the transaction's next record.
    pub(super) end: Position,
    pub(super) hash: TxHash,
    pub(super) records: u32,
    /// Blocks that were linked for the transaction.
    pub(super) blocks: Vec<u32>,
    /// Stored ranges that are not flushed yet. Adjacent ranges are merged.
    pub(super) dirty: Vec<(u64, u64)>,
}

impl OpenTransaction {
    /// Adds a stored range to those to be flushed. Within a block the writer stores from low to high addresses.
    pub(super) fn touch(&mut self, from: u64, to: u64) {
        match self.dirty.last_mut() {
            Some((_, end)) if *end == from => *end = to,
            _ => self.dirty.push((from, to)),
        }
    }
}
