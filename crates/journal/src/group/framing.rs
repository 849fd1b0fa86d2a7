//! What group commit is told of the log that it serves: it knows positions, groups and generations, and
//! no format.

use std::path::PathBuf;
use std::time::Duration;

use duralite_logfmt::sqlite_wal::WAL_HEADER_BYTES;
use duralite_medium::MediumError;
use duralite_medium::block::{Block, Durability};

use crate::JournalError;

/// Generations begin at multiples of it, and the file's length is one: no device's block is larger.
pub(crate) const AREA_BYTES: u64 = 4096;

/// Where groups are in the file.
#[derive(Debug, Clone)]
pub(crate) struct Geometry {
    /// Every write is a multiple of it.
    pub(crate) block_bytes: u32,
    /// Where every generation begins.
    pub(crate) data_offset: u64,
    /// Most bytes the file may take.
    pub(crate) limit_bytes: u64,
    /// What errors name.
    pub(crate) path: PathBuf,
}

/// What the settings choose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupOptions {
    /// How a group becomes durable.
    pub(crate) durability: Durability,
    /// How long one that leads a group and does not come to its end is waited for.
    pub(crate) leader_patience: Duration,
    /// A number that is the same for processes whose settings agree on what others rely on.
    pub(crate) settings: u64,
}

/// A generation that begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Generation {
    pub(crate) number: u64,
    /// SQLite's WAL header; `None` for an empty log.
    pub(crate) wal_header: Option<[u8; WAL_HEADER_BYTES]>,
    /// Everything is in the database file.
    pub(crate) retired: bool,
    /// Least bytes that the file has.
    pub(crate) file_bytes: u64,
    /// Transactions sealed before it.
    pub(crate) position: u64,
    /// When it began, in milliseconds since 1970.
    pub(crate) time_ms: u64,
}

/// How the log starts over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewGeneration {
    /// SQLite's WAL header; `None` for an empty log.
    pub(crate) wal_header: Option<[u8; WAL_HEADER_BYTES]>,
    /// Everything is in the database file.
    pub(crate) retired: bool,
    /// What the file keeps, where it gives back the rest.
    pub(crate) keep_bytes: Option<u64>,
    /// Transactions sealed before it.
    pub(crate) position: u64,
    /// When it begins, in milliseconds since 1970.
    pub(crate) time_ms: u64,
}

/// How groups and generations are told apart on the device.
pub(crate) trait Framing: Send + Sync {
    /// Bytes between the beginning of a group and its first transaction, a multiple of 8.
    fn header_bytes(&self) -> u64;

    /// So many bytes, for a group that is open since `time_ms`.
    fn placeholder(&self, generation: u64, time_ms: u64) -> Vec<u8>;

    /// Completes the header of a closed group, which is to be written at an offset of the file. `ordered` says
    /// that everything before it is durable. Returns how many transactions it has.
    ///
    /// # Errors
    /// `Corrupt`.
    fn complete(
        &self,
        group: &mut [u8],
        generation: u64,
        offset: u64,
        ordered: bool,
    ) -> Result<u64, JournalError>;

    /// Writes what a generation begins with. Durable on return; where `later` is set, with the next flush or preallocation.
    ///
    /// # Errors
    /// That of the device.
    fn begin(&self, block: &dyn Block, generation: &Generation, later: bool) -> Result<(), MediumError>;
}
