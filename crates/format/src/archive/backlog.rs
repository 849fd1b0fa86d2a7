//! The backlog of a closed log, a file `app.db-archive-LOGID`. It holds commits that the archive may not have, and that
//! were still in the log when the log was closed.
//!
//! The file has a header, the commits in order, and a trailer. The file holds whole pages, so a reader needs neither
//! the engine of the log nor the database file. A process records a backlog in `app.db-archive` only after the backlog
//! is complete and durable. So a reader treats a backlog that is damaged anywhere as if it did not exist.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::bytes::{array, put, u32_le, u64_le};
use crate::guard::page_size_is_valid;
use crate::{FormatError, LogId};

/// Version of the format.
pub const VERSION: u32 = 1;
/// Size of the header in bytes.
pub const HEADER_BYTES: usize = 56;
/// Size in bytes of a commit without its pages (see `Commit`). The trailer (see `Trailer`) has the same size.
pub const COMMIT_BYTES: usize = 48;
/// Size in bytes of what is stored before each page's image: the page's number and a checksum.
pub const PAGE_BYTES: usize = 16;

const MAGIC: [u8; 8] = *b"DURABACK";
const COMMIT: u32 = u32::from_le_bytes(*b"CMIT");
const TRAILER: u32 = u32::from_le_bytes(*b"ENDS");
const WHAT: &str = "a backlog beside the database";
const DAMAGED: FormatError = FormatError::Damaged { what: WHAT };

/// The beginning of a backlog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The log.
    pub log: LogId,
    /// Page size of the database in bytes.
    pub page_bytes: u32,
    /// The log's position before the first commit, that is, the number of transactions that were sealed in the log
    /// before it.
    pub first: u64,
}

impl Header {
    /// Returns the header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        put(&mut out, 0, &MAGIC);
        put(&mut out, 8, &VERSION.to_le_bytes());
        put(&mut out, 12, &self.page_bytes.to_le_bytes());
        put(&mut out, 16, &self.log.0);
        put(&mut out, 32, &self.first.to_le_bytes());
        let sum = xxh3_64_with_seed(&out[..48], self.log.seed());
        put(&mut out, 48, &sum.to_le_bytes());
        out
    }

    /// Reads a header.
    ///
    /// # Errors
    /// `Magic`, `Version`, `Damaged`.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FormatError> {
        if bytes[..8] != MAGIC {
            return Err(FormatError::Magic);
        }
        let log = LogId(array(bytes, 16).ok_or(DAMAGED)?);
        let found = Self { log, page_bytes: u32_le(bytes, 12), first: u64_le(bytes, 32) };
        match u32_le(bytes, 8) {
            VERSION if found.encode() == *bytes && page_size_is_valid(found.page_bytes) => Ok(found),
            VERSION => Err(DAMAGED),
            other => Err(FormatError::Version(other)),
        }
    }
}

/// What the file stores about a commit, before the commit's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// The log's position after the commit.
    pub position: u64,
    /// When the commit was sealed, in milliseconds since 1970; 0 if unknown.
    pub time_ms: u64,
    /// Size of the database in pages after the commit.
    pub db_pages: u32,
    /// The number of pages in the commit. The pages follow these fields, and no page occurs twice.
    pub pages: u32,
}

/// What the file stores after the last commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// The log's position after the last commit.
    pub position: u64,
    /// The number of commits.
    pub commits: u64,
}

/// What can follow the header or a whole commit in a backlog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// A commit.
    Commit(Commit),
    /// The end of the backlog.
    Trailer(Trailer),
}

impl Next {
    /// Returns the bytes to store in the backlog of log `log`.
    #[must_use]
    pub fn encode(&self, log: LogId) -> [u8; COMMIT_BYTES] {
        let mut out = [0; COMMIT_BYTES];
        match self {
            Self::Commit(commit) => {
                put(&mut out, 0, &COMMIT.to_le_bytes());
                put(&mut out, 4, &commit.pages.to_le_bytes());
                put(&mut out, 8, &commit.position.to_le_bytes());
                put(&mut out, 16, &commit.time_ms.to_le_bytes());
                put(&mut out, 24, &commit.db_pages.to_le_bytes());
            }
            Self::Trailer(trailer) => {
                put(&mut out, 0, &TRAILER.to_le_bytes());
                put(&mut out, 8, &trailer.position.to_le_bytes());
                put(&mut out, 16, &trailer.commits.to_le_bytes());
            }
        }
        let sum = xxh3_64_with_seed(&out[..40], log.seed());
        put(&mut out, 40, &sum.to_le_bytes());
        out
    }

    /// Reads what follows the header or a whole commit in the backlog of log `log`.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn decode(bytes: &[u8; COMMIT_BYTES], log: LogId) -> Result<Self, FormatError> {
        let found = match u32_le(bytes, 0) {
            COMMIT => Self::Commit(Commit {
                pages: u32_le(bytes, 4),
                position: u64_le(bytes, 8),
                time_ms: u64_le(bytes, 16),
                db_pages: u32_le(bytes, 24),
            }),
            TRAILER => Self::Trailer(Trailer { position: u64_le(bytes, 8), commits: u64_le(bytes, 16) }),
            _ => return Err(DAMAGED),
        };
        if found.encode(log) == *bytes { Ok(found) } else { Err(DAMAGED) }
    }
}

/// Returns the bytes before a page's image: the page's number, and a checksum of number and image. `position` is the
/// log's position after the commit that the page belongs to.
#[must_use]
pub fn encode_page(log: LogId, position: u64, number: u32, image: &[u8]) -> [u8; PAGE_BYTES] {
    let mut out = [0; PAGE_BYTES];
    put(&mut out, 0, &number.to_le_bytes());
    let seed = log.seed() ^ position.rotate_left(32) ^ u64::from(number);
    put(&mut out, 8, &xxh3_64_with_seed(image, seed).to_le_bytes());
    out
}

/// Reads the number of a page, and checks its image.
///
/// # Errors
/// `Damaged`.
pub fn decode_page(
    bytes: &[u8; PAGE_BYTES],
    log: LogId,
    position: u64,
    image: &[u8],
) -> Result<u32, FormatError> {
    let number = u32_le(bytes, 0);
    if encode_page(log, position, number, image) == *bytes { Ok(number) } else { Err(DAMAGED) }
}
