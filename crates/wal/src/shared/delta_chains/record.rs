//! A record in a log, and what a commit says about staged records.

use duralite_format::sqlite_wal::Checksum;

use crate::LogError;

/// Number of a record in the index of a generation.
pub(crate) type RecordNumber = u32;

/// A record in the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    /// Place of the record, as the engine counts places.
    pub(crate) at: u64,
    pub(crate) record_bytes: u32,
    pub(crate) page_number: u32,
    /// The page's record before this one, unless this one is a whole image.
    pub(crate) previous: Option<RecordNumber>,
}

/// Applies one record to a page. The engine provides this function, since only the engine knows where the record's bytes are.
pub(crate) type Apply<'a> = &'a mut dyn FnMut(&Record, &mut [u8]) -> Result<(), LogError>;

/// What a commit says about the staged frames.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Committed {
    pub(crate) last_frame: u32,
    pub(crate) db_pages: u32,
    pub(crate) checksum: Option<Checksum>,
    /// Number of the transaction in the generation.
    pub(crate) sequence: u32,
    pub(crate) time_ms: u64,
}
