//! The part of the superblock that the logs of all engines share: bytes 0..48 and 64..1120.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::bytes::{array, put, u16_le, u32_le, u64_le};
use crate::{FormatError, LogId};

/// Longest path hint in bytes.
pub const PATH_LIMIT: usize = 1022;
/// Number of bytes that the checksum covers. The checksum follows these bytes.
pub(crate) const CHECKED_BYTES: usize = 1088;

const WHAT: &str = "the log's superblock";

/// What distinguishes the log files of one engine from those of the other engines.
pub(crate) struct Format {
    /// The engine's name.
    pub(crate) name: &'static str,
    pub(crate) magic: [u8; 8],
    /// The version that this build writes, and the only one that it reads.
    pub(crate) version: u32,
    /// Size of the superblock in bytes.
    pub(crate) superblock_bytes: u64,
}

/// Offset of the field that identifies the file in which the log was made. The superblock's checksum does not cover
/// this field.
const FILE_AT: usize = CHECKED_BYTES + 8;
const FILE_BYTES: usize = 24;
/// The size in bytes of the first part of a superblock. A process writes this part only once, when it makes the log.
pub(crate) const HEAD_BYTES: usize = FILE_AT + FILE_BYTES;

/// The identity of the file in which a log was made. If a log is in a file with another identity, it is a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    /// Inode number.
    pub inode: u64,
    /// Birth time in nanoseconds since the epoch, 0 if unknown.
    pub birth_ns: u64,
}

impl FileIdentity {
    fn encode(self, id: LogId) -> [u8; FILE_BYTES] {
        let mut out = [0; FILE_BYTES];
        put(&mut out, 0, &self.inode.to_le_bytes());
        put(&mut out, 8, &self.birth_ns.to_le_bytes());
        let check = xxh3_64_with_seed(&out[..16], id.seed());
        put(&mut out, 16, &check.to_le_bytes());
        out
    }

    /// Reads the identity from the superblock of log `id`. Returns `None` if the superblock holds no valid
    /// identity.
    fn read(bytes: &[u8], id: LogId) -> Option<Self> {
        let bytes: [u8; FILE_BYTES] = array(bytes, FILE_AT)?;
        let it = Self { inode: u64_le(&bytes, 0), birth_ns: u64_le(&bytes, 8) };
        (it.encode(id) == bytes).then_some(it)
    }
}

/// The write-once fields that tie a log to its database. They are the same for all engines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogHead {
    /// Page size of the database in bytes.
    pub page_bytes: u32,
    /// Identity of the log.
    pub log_id: LogId,
    /// Inode of the database's file.
    pub db_inode: u64,
    /// Birth time of the database's file in nanoseconds since the epoch, 0 if unknown.
    pub db_birth_ns: u64,
    /// Path of the database when the log was made, as bytes, truncated to [`PATH_LIMIT`].
    pub path: Vec<u8>,
    /// The file in which the log was made, if it is known.
    pub made_in: Option<FileIdentity>,
}

impl LogHead {
    /// Stores the fields in `out`, and then the checksum, which also covers the fields that the caller stored before.
    pub(crate) fn put(&self, out: &mut [u8], format: &Format) {
        let path = &self.path[..self.path.len().min(PATH_LIMIT)];
        put(out, 0, &format.magic);
        put(out, 8, &format.version.to_le_bytes());
        put(out, 12, &self.page_bytes.to_le_bytes());
        put(out, 16, &self.log_id.0);
        put(out, 32, &self.db_inode.to_le_bytes());
        put(out, 40, &self.db_birth_ns.to_le_bytes());
        put(out, 64, &(path.len() as u16).to_le_bytes());
        put(out, 66, path);
        let checksum = xxh3_64(&out[..CHECKED_BYTES]);
        put(out, CHECKED_BYTES, &checksum.to_le_bytes());
        if let Some(file) = self.made_in {
            put(out, FILE_AT, &file.encode(self.log_id));
        }
    }

    /// Reads the fields, and verifies the checksum.
    pub(crate) fn read(bytes: &[u8], format: &Format) -> Result<Self, FormatError> {
        if array::<8>(bytes, 0) != Some(format.magic) {
            return Err(FormatError::Magic);
        }
        if (bytes.len() as u64) < format.superblock_bytes {
            return Err(FormatError::Short { what: WHAT });
        }
        let found = u32_le(bytes, 8);
        if found != format.version {
            // Do not read further, because the other bytes may mean something else in that version.
            return Err(FormatError::LogVersion { format: format.name, found, reads: format.version });
        }
        let path_bytes = usize::from(u16_le(bytes, 64));
        let page_bytes = u32_le(bytes, 12);
        let sound = xxh3_64(&bytes[..CHECKED_BYTES]) == u64_le(bytes, CHECKED_BYTES)
            && path_bytes <= PATH_LIMIT
            && crate::guard::page_size_is_valid(page_bytes);
        if !sound {
            return Err(damaged());
        }
        let log_id = LogId::of_log(bytes).ok_or_else(damaged)?;
        Ok(Self {
            page_bytes,
            log_id,
            made_in: FileIdentity::read(bytes, log_id),
            db_inode: u64_le(bytes, 32),
            db_birth_ns: u64_le(bytes, 40),
            path: bytes.get(66..66 + path_bytes).unwrap_or_default().to_vec(),
        })
    }
}

/// Returns the error for a superblock in which an engine's own fields are out of range.
pub(crate) fn damaged() -> FormatError {
    FormatError::Damaged { what: WHAT }
}
