//! Layouts of the `scratchpad` engine. The constants follow `docs/format/scratchpad.md`.
//!
//! A log consists of a small file of its own, and of pages in a region that the logs of several databases share.

mod entry;
mod page;
mod region;
mod superblock;
#[cfg(test)]
mod tests;
mod undo;

pub use entry::{
    CHANGE_HEADER_BYTES, CommitEntry, ENTRY_BYTES, RECORD_AT, change_header, change_word, committed_mark,
    committing_mark, entry_bytes, read_change_word,
};
pub use page::{
    FOLLOW_AT, HEADER_BYTES, Kind, LAST_AT, LINK_AT, Owner, PageHeader, STREAM_BYTES, first_link_tag,
    link_word, read_link,
};
pub use region::{
    LOGS_AT, REGION_MAGIC, REGION_SUPERBLOCK_BYTES, REGION_VERSION, RegionId, RegionSuperblock, USED_AT,
};
pub use superblock::{COUNTED_OFFSET, REFERENCE_OFFSET, Superblock, first_link_offset};
pub use undo::{
    JOURNAL_CHAIN_OFFSET, JOURNAL_CHANGES_OFFSET, JOURNAL_LIMIT, JOURNAL_STATE_OFFSET, UndoChain, UndoState,
};

pub use crate::record::{Base, RECORD_HEADER_BYTES, RecordHeader};
pub use crate::slots::{
    ACTIVE_OFFSET, NO_BLOCK, SLOT_BYTES, Slot, active_word, origin_offset, read_active_word, slot_offset,
};
pub use crate::transaction::{TxHash, TxHeader};

/// First bytes of a log's file.
pub const MAGIC: [u8; 8] = *b"DURALSPM";
/// The format version of logs.
pub const VERSION: u32 = 2;
/// Bytes of a log's file.
pub const SUPERBLOCK_BYTES: u64 = 4096;
/// Bytes of a page of the region.
pub const PAGE_BYTES: u64 = 4096;
/// The largest number of pages that a region may have.
pub const MOST_PAGES: u32 = 1 << 24;
