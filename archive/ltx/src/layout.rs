//! Sizes and flags of the format, and the page that is never in a file.

/// The bytes with which every file begins.
pub const MAGIC: [u8; 4] = *b"LTX1";
/// Bytes of the head of a frame: the page's number and the frame's flags.
pub const FRAME_HEAD_BYTES: usize = 6;
/// Bytes of the length that stands between the head of a frame and its compressed page.
pub const FRAME_SIZE_BYTES: usize = 4;
/// The frame's only flag: a length follows, and the page is an LZ4 block.
pub const FRAME_HAS_SIZE: u16 = 1;
/// Bytes of the length that ends the index.
pub const INDEX_SIZE_BYTES: usize = 8;
/// Bytes of the trailer: the checksum of the database, then that of the file.
pub const TRAILER_BYTES: usize = 16;
/// The sizes that a page of a SQLite database can have.
pub const SMALLEST_PAGE: u32 = 512;
/// See [`SMALLEST_PAGE`].
pub const LARGEST_PAGE: u32 = 65_536;

/// The byte of the database file that SQLite's locks begin at.
const PENDING_BYTE: u32 = 0x4000_0000;

/// Returns the page over SQLite's lock bytes, which SQLite never writes, and which no file has.
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

/// Returns the most bytes that an LZ4 block of this many bytes can need.
pub const fn longest_block(page_size: u32) -> u32 {
    page_size + page_size / 255 + 16
}
