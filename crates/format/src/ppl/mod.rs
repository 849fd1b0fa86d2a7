//! Layouts of the `ppl` log. The constants follow `docs/format/ppl.md`.
//!
//! A log is a superblock, a transaction log, slots for page images that are being merged, a page table, and chunks of
//! extents. An extent is a log sector of one page, or a piece of the common pool. A page's log is a chain of extents, the
//! bodies of which hold one stream of records.

mod extent;
mod slot;
mod superblock;
mod transaction;

#[cfg(test)]
mod tests;

pub use extent::{ExtentHeader, read_record_word, record_check, record_word};
pub use slot::SlotHeader;
pub use superblock::{Extent, Geometry, Superblock, sector_size_is_valid};
pub use transaction::{TransactionKind, TransactionRecord};

/// First bytes of a log file.
pub const MAGIC: [u8; 8] = *b"DURALPPL";
/// The format version.
pub const VERSION: u32 = 1;
/// Bytes of the superblock.
pub const SUPERBLOCK_BYTES: u64 = 4096;
/// Offset of the word in the superblock that says how many chunks the file backs.
pub const GROWN_OFFSET: u64 = 1344;

/// Where the transaction log is.
pub const TRANSACTIONS_OFFSET: u64 = SUPERBLOCK_BYTES;
/// Records in the transaction log. The record of a transaction is at the transaction's number modulo this.
pub const TRANSACTIONS: u64 = 1024;
/// Bytes of a record of the transaction log: a cache line.
pub const TRANSACTION_BYTES: usize = 64;
/// Where the slots begin.
pub const SLOTS_OFFSET: u64 = TRANSACTIONS_OFFSET + TRANSACTIONS * TRANSACTION_BYTES as u64;
/// The largest number of slots. The segment that the log's users share names for each slot the process that is merging
/// the slot's page, and has room for this many.
pub const MOST_SLOTS: u32 = 512;
/// Bytes of a slot before its page.
pub const SLOT_HEADER_BYTES: u64 = 64;

/// Log sectors in a chunk.
pub const SECTORS_PER_CHUNK: u32 = 32;
/// Bytes of a piece of the common pool.
pub const PIECE_BYTES: u32 = 1024;
/// Bytes of an extent's state. States are kept beside the extents, and do not outlive the processes that use the log.
pub const STATE_BYTES: u64 = 64;
/// Bytes of an extent before its body.
pub const EXTENT_HEADER_BYTES: u32 = 32;
/// Offset in an extent's header of the transaction up to which its page is merged.
pub const MERGED_AT: u64 = 24;
/// Bytes of a record before its payload.
pub const RECORD_HEADER_BYTES: u32 = 16;
/// The largest number of a transaction.
pub const LAST_TRANSACTION: u64 = (1 << (64 - LENGTH_BITS)) - 1;

/// Bits of a record's length in its first word.
const LENGTH_BITS: u32 = 20;
