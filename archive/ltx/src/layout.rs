//! Sizes and flags of the format, and the number of the lock page, which no file contains.

/// The bytes with which every file begins.
pub const MAGIC: [u8; 4] = *b"LTX1";
/// The length in bytes of the head of a frame: the page's number and the frame's flags.
pub const FRAME_HEAD_BYTES: usize = 6;
/// The size in bytes of the field between the head of a frame and its compressed page. The field holds the length of
/// the compressed page.
pub const FRAME_SIZE_BYTES: usize = 4;
/// The only flag that a frame can have. It says that a length comes next, and that the page is stored as an LZ4 block.
pub const FRAME_HAS_SIZE: u16 = 1;
/// The size in bytes of the last field of the index, which holds the length of the index.
pub const INDEX_SIZE_BYTES: usize = 8;
/// The length in bytes of the trailer: the checksum of the database, then the checksum of the file.
pub const TRAILER_BYTES: usize = 16;
/// The smallest page that a SQLite database can have, in bytes.
pub const SMALLEST_PAGE: u32 = 512;
/// The largest page that a SQLite database can have, in bytes.
pub const LARGEST_PAGE: u32 = 65_536;

/// The offset in the database file at which SQLite's lock bytes begin.
const PENDING_BYTE: u32 = 0x4000_0000;

/// Returns the number of the page that contains SQLite's lock bytes. SQLite never writes this page, and no LTX file
/// has it.
#[must_use]
pub const fn lock_page(page_size: u32) -> u32 {
    PENDING_BYTE / page_size + 1
}

/// Returns the first page that comes after `page` in a snapshot.
pub const fn page_after(page: u32, page_size: u32) -> Option<u32> {
    match page.checked_add(1) {
        Some(next) if next == lock_page(page_size) => next.checked_add(1),
        next => next,
    }
}

/// Returns the greatest length in bytes that a page of this size can have as an LZ4 block.
pub const fn longest_block(page_size: u32) -> u32 {
    page_size + page_size / 255 + 16
}
