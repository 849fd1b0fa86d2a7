//! Byte layouts of the transactional store: pages, log objects, and the heads of its files.
//!
//! `docs/store/format.md` is the specification. Pages change only by [`Change::apply`], both when a transaction runs
//! and when recovery redoes the log objects.

mod change;
mod disk_log;
mod nv_log;
mod object;
mod page;
mod page_file;
mod rings_log;
mod space_map;
mod tree_page;

pub use change::Change;
pub use disk_log::{
    BATCH_HEADER_BYTES, Batch, DISK_DATA_OFFSET, DISK_SLOT_BYTES, DISK_SLOT_OFFSETS, DiskHead, DiskSlot,
    LARGEST_BLOCK,
};
pub use nv_log::{
    EPOCH_OFFSET, HEAD_OFFSET, INDEX_OFFSET, NvHead, OBJECT_ALIGNMENT, STATE_BIT, entry_of, object_of,
};
pub use object::{
    COMMIT_OF_PAGES_AT_HOME, OBJECT_HEADER_BYTES, Object, ObjectHeader, ObjectKind, Undo, claim_durable,
    seal_object,
};
pub use page::{
    LARGEST_PAGE, PAGE_HEADER_BYTES, PageKind, SMALLEST_PAGE, blank, check, extra, kind, level, lsn, page_id,
    payload, seal, set_extra, set_lsn, set_payload,
};
pub use page_file::{
    BatchList, DOUBLE_WRITE_PAGES, PageFileHead, SLOT_OFFSETS, SUPERBLOCK_AREA_BYTES, SUPERBLOCK_BYTES,
};
pub use rings_log::{RINGS_OFFSET, RingsHead};
pub use space_map::{bits_of, first_clear, is_set, pages_in_use};
pub use tree_page::{
    INNER_CELL_HEAD, KEY_LIMIT, LEAF_CELL_HEAD, Value, cell, cell_count, cell_key, child_at, child_for,
    dead_bytes, free_bytes, inner_cell, leaf_cell, leaf_cell_head, leaf_value, push_cell, search, used_bytes,
    validate,
};

/// Returns the seed of the log that begins with `head`, which has at least 64 bytes. Returns `None` if these bytes are
/// not the head of a log.
#[must_use]
pub fn log_seed(head: &[u8]) -> Option<u64> {
    let on_blocks = || DiskHead::decode(head).map(|it| it.seed);
    let in_memory = || NvHead::decode(head).map(|it| it.seed);
    on_blocks().or_else(|_| in_memory()).or_else(|_| RingsHead::decode(head).map(|it| it.seed)).ok()
}

/// The number of a log object. Objects have consecutive numbers. If two objects change the same page, the later one has
/// the larger number. 0 means no object.
pub type Lsn = u64;
/// The number of a page: the page's offset in the page file, divided by the page size.
pub type PageId = u64;
/// The number of a transaction; 0 for changes that belong to no transaction.
pub type TxId = u64;

#[cfg(test)]
mod tests;
