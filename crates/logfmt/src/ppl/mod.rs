//! Layouts of the `ppl` log: see `docs/format/ppl.md`, which these constants follow.
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
/// Where the superblock's word is that says how many chunks the file backs.
pub const GROWN_OFFSET: u64 = 1344;

/// Where the transaction log is.
pub const TRANSACTIONS_OFFSET: u64 = SUPERBLOCK_BYTES;
/// Records in it; the one of a transaction has the place of its number modulo this.
pub const TRANSACTIONS: u64 = 1024;
/// Bytes of one of them: a cache line.
pub const TRANSACTION_BYTES: usize = 64;
/// Where the slots begin.
pub const SLOTS_OFFSET: u64 = TRANSACTIONS_OFFSET + TRANSACTIONS * TRANSACTION_BYTES as u64;
/// Most slots: what the log's users share says of each who merges its page.
pub const MOST_SLOTS: u32 = 512;
/// Bytes of a slot before its page.
pub const SLOT_HEADER_BYTES: u64 = 64;

/// Log sectors in a chunk.
pub const SECTORS_PER_CHUNK: u32 = 32;
/// Bytes of a piece of the common pool.
pub const PIECE_BYTES: u32 = 1024;
/// Bytes of what is kept of an extent beside it, and does not outlive its users.
pub const STATE_BYTES: u64 = 64;
/// Bytes of an extent before its body.
pub const EXTENT_HEADER_BYTES: u32 = 32;
/// Where in an extent's header the number of the transaction is up to which its page is merged.
pub const MERGED_AT: u64 = 24;
/// Bytes of a record before its payload.
pub const RECORD_HEADER_BYTES: u32 = 16;
/// The largest number of a transaction.
pub const LAST_TRANSACTION: u64 = (1 << (64 - LENGTH_BITS)) - 1;

/// Bits of a record's length in its first word.
const LENGTH_BITS: u32 = 20;
