//! The header of a file: its first 100 bytes. It says which transactions the file has, and how large the database is
//! after the last of them.

use super::checksum::CHECKSUM_FLAG;
use super::error::LtxError;
use super::layout::{LARGEST_PAGE, MAGIC, SMALLEST_PAGE};

/// The length of a header in bytes.
pub const HEADER_BYTES: usize = 100;

/// The flag of a file that has no checksums of the database, only the checksum of the file.
const NO_CHECKSUM: u32 = 1 << 1;

const FLAGS: usize = 4;
const PAGE_SIZE: usize = 8;
const COMMIT: usize = 12;
const MIN_TXID: usize = 16;
const MAX_TXID: usize = 24;
const TIMESTAMP: usize = 32;
const PRE_CHECKSUM: usize = 40;
const WAL_OFFSET: usize = 48;
const WAL_SIZE: usize = 56;
const WAL_SALT1: usize = 64;
const WAL_SALT2: usize = 68;
const NODE_ID: usize = 72;
const RESERVED: usize = 80;

/// What a file says about itself. In the file, numbers are big-endian. In the default header, the log and the node are
/// not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Header {
    /// The page size in bytes: a power of two from 512 to 65,536.
    pub page_size: u32,
    /// The size of the database in pages, after the file's last transaction.
    pub commit: u32,
    /// The first transaction. If it is 1, the file is a snapshot and has all pages.
    pub min_txid: u64,
    /// The last transaction.
    pub max_txid: u64,
    /// The time at which the last transaction was committed, in milliseconds since 1970.
    pub timestamp_ms: i64,
    /// The checksum of the database before the file's first transaction, if the file has checksums of the database; 0
    /// in a snapshot.
    pub pre_checksum: Option<u64>,
    /// The position after the last transaction in the *source log*, from which the transactions come; 0 if it is not
    /// known.
    pub wal_offset: u64,
    /// How much of the source log the file covers, in the unit of `wal_offset`; 0 if it is not known.
    pub wal_size: u64,
    /// The identity of the source log; 0 if `wal_offset` is 0.
    pub wal_salt: [u32; 2],
    /// The node that made the file; 0 if it is not known.
    pub node_id: u64,
}

impl Header {
    /// Returns whether the file has all pages of the database.
    #[must_use]
    pub const fn is_snapshot(&self) -> bool {
        self.min_txid == 1
    }

    /// Returns the header's bytes.
    ///
    /// # Errors
    ///
    /// [`LtxError::Refused`] if [`Header::decode`] would not accept this header.
    pub fn encode(&self) -> Result<[u8; HEADER_BYTES], LtxError> {
        self.validate().map_err(|(_, what)| LtxError::Refused(what))?;
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(FLAGS, &if self.pre_checksum.is_some() { 0 } else { NO_CHECKSUM }.to_be_bytes());
        put(PAGE_SIZE, &self.page_size.to_be_bytes());
        put(COMMIT, &self.commit.to_be_bytes());
        put(MIN_TXID, &self.min_txid.to_be_bytes());
        put(MAX_TXID, &self.max_txid.to_be_bytes());
        put(TIMESTAMP, &self.timestamp_ms.to_be_bytes());
        put(PRE_CHECKSUM, &self.pre_checksum.unwrap_or(0).to_be_bytes());
        put(WAL_OFFSET, &self.wal_offset.to_be_bytes());
        put(WAL_SIZE, &self.wal_size.to_be_bytes());
        put(WAL_SALT1, &self.wal_salt[0].to_be_bytes());
        put(WAL_SALT2, &self.wal_salt[1].to_be_bytes());
        put(NODE_ID, &self.node_id.to_be_bytes());
        Ok(bytes)
    }

    /// Reads a header.
    ///
    /// # Errors
    ///
    /// [`LtxError::Damaged`] if these are not the bytes of a header of version 3.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, LtxError> {
        let damaged = |(offset, what): (usize, _)| LtxError::Damaged { offset: offset as u64, what };
        if bytes[..MAGIC.len()] != MAGIC {
            return Err(damaged((0, "it does not begin as an LTX file")));
        }
        let flags = u32_at(bytes, FLAGS);
        if flags & !NO_CHECKSUM != 0 {
            return Err(damaged((FLAGS, "the header has flags that version 3 does not know")));
        }
        let pre_checksum = u64_at(bytes, PRE_CHECKSUM);
        if flags != 0 && pre_checksum != 0 {
            return Err(damaged((PRE_CHECKSUM, "the header says that it has no checksum, and has one")));
        }
        if bytes[RESERVED..].iter().any(|byte| *byte != 0) {
            return Err(damaged((RESERVED, "the header's reserved bytes are not 0")));
        }
        let header = Self {
            page_size: u32_at(bytes, PAGE_SIZE),
            commit: u32_at(bytes, COMMIT),
            min_txid: u64_at(bytes, MIN_TXID),
            max_txid: u64_at(bytes, MAX_TXID),
            timestamp_ms: u64_at(bytes, TIMESTAMP).cast_signed(),
            pre_checksum: (flags == 0).then_some(pre_checksum),
            wal_offset: u64_at(bytes, WAL_OFFSET),
            wal_size: u64_at(bytes, WAL_SIZE),
            wal_salt: [u32_at(bytes, WAL_SALT1), u32_at(bytes, WAL_SALT2)],
            node_id: u64_at(bytes, NODE_ID),
        };
        header.validate().map_err(damaged)?;
        Ok(header)
    }

    /// Checks each field, and the rules that several fields must keep together. The error has the offset of a field
    /// that breaks a rule.
    fn validate(&self) -> Result<(), (usize, &'static str)> {
        let is_page_size =
            self.page_size.is_power_of_two() && (SMALLEST_PAGE..=LARGEST_PAGE).contains(&self.page_size);
        let is_pre_checksum = match self.pre_checksum {
            None => true,
            Some(checksum) if self.is_snapshot() => checksum == 0,
            Some(checksum) => checksum & CHECKSUM_FLAG != 0,
        };
        let rules = [
            (is_page_size, PAGE_SIZE, "this is not a page size of SQLite"),
            (self.commit != 0, COMMIT, "the database has no pages after the file"),
            (self.min_txid != 0, MIN_TXID, "transactions are counted from 1"),
            (self.min_txid <= self.max_txid, MAX_TXID, "the last transaction is before the first"),
            (self.timestamp_ms >= 0, TIMESTAMP, "the time is before 1970"),
            (is_pre_checksum, PRE_CHECKSUM, "this is not the checksum of a database"),
            (self.wal_offset >> 63 == 0, WAL_OFFSET, "the position in the log is negative"),
            (self.wal_size >> 63 == 0, WAL_SIZE, "the size in the log is negative"),
            (
                self.wal_offset != 0 || (self.wal_size == 0 && self.wal_salt == [0, 0]),
                WAL_OFFSET,
                "a log is named, and no position in it",
            ),
        ];
        rules.iter().find(|(holds, ..)| !holds).map_or(Ok(()), |(_, at, what)| Err((*at, *what)))
    }
}

fn u32_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn u64_at(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    bytes[at..at + 8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
