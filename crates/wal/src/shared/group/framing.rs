//! The interface between group commit and the log that it serves. Group commit knows byte positions, groups and
//! generations, but no format.

use std::path::PathBuf;
use std::time::Duration;

use duralite_format::sqlite_wal::WAL_HEADER_BYTES;
use duralite_medium::MediumError;
use duralite_medium::block::{Block, Durability};

use crate::LogError;

/// Generations begin at multiples of this, and it divides the file's length: no device has larger blocks.
pub(crate) const AREA_BYTES: u64 = 4096;

/// The layout of groups in the file.
#[derive(Debug, Clone)]
pub(crate) struct Geometry {
    /// Every write is a multiple of this.
    pub(crate) block_bytes: u32,
    /// The file offset at which every generation begins.
    pub(crate) data_offset: u64,
    /// The maximum length of the file in bytes.
    pub(crate) limit_bytes: u64,
    /// The path that errors name.
    pub(crate) path: PathBuf,
}

/// The options from the settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupOptions {
    /// How a group becomes durable.
    pub(crate) durability: Durability,
    /// How long other threads wait for a leader that makes no progress before they replace it.
    pub(crate) leader_patience: Duration,
    /// A number that is equal for processes whose settings agree wherever processes depend on each other.
    pub(crate) settings: u64,
}

/// A generation that begins, as the log stores it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Generation {
    pub(crate) number: u64,
    /// SQLite's WAL header; `None` for an empty log.
    pub(crate) wal_header: Option<[u8; WAL_HEADER_BYTES]>,
    /// Whether everything is in the database file.
    pub(crate) retired: bool,
    /// The least length of the file in bytes.
    pub(crate) file_bytes: u64,
    /// Transactions sealed before this generation: the log's position, not a byte position.
    pub(crate) position: u64,
    /// When the generation began, in milliseconds since 1970.
    pub(crate) time_ms: u64,
}

/// The caller's parameters of a switch to a new generation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewGeneration {
    /// SQLite's WAL header; `None` for an empty log.
    pub(crate) wal_header: Option<[u8; WAL_HEADER_BYTES]>,
    /// Whether everything is in the database file.
    pub(crate) retired: bool,
    /// The number of bytes to which the file may be shrunk; `None` to keep its length.
    pub(crate) keep_bytes: Option<u64>,
    /// Transactions sealed before the new generation: the log's position, not a byte position.
    pub(crate) position: u64,
    /// When the new generation begins, in milliseconds since 1970.
    pub(crate) time_ms: u64,
}

/// The format of groups and generations on the device.
pub(crate) trait Framing: Send + Sync {
    /// Bytes between the beginning of a group and its first transaction, a multiple of 8.
    fn header_bytes(&self) -> u64;

    /// The bytes that stand in for the header of a group that was opened at `time_ms`, until the group is closed.
    fn placeholder(&self, generation: u64, time_ms: u64) -> Vec<u8>;

    /// Completes the header of a closed group that is about to be written at an offset of the file. `ordered` says
    /// whether everything before the group is durable. Returns the number of transactions in the group, for metrics, or 1
    /// where counting them would cost too much.
    ///
    /// # Errors
    /// `Corrupt`.
    fn complete(
        &self,
        group: &mut [u8],
        generation: u64,
        offset: u64,
        ordered: bool,
    ) -> Result<u64, LogError>;

    /// Writes what a generation begins with. Durable on return; with `later`, durable only with the next flush or
    /// preallocation.
    ///
    /// # Errors
    /// The device's.
    fn begin(&self, block: &dyn Block, generation: &Generation, later: bool) -> Result<(), MediumError>;
}
