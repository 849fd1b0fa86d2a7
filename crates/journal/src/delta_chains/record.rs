//! A record in a log, and what makes records committed.

use duralite_logfmt::sqlite_wal::Checksum;

use crate::JournalError;

/// Number of a record in the generation.
pub(crate) type RecordNumber = u32;

/// A record in the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    /// Offset in the medium.
    pub(crate) at: u64,
    pub(crate) record_bytes: u32,
    pub(crate) page_number: u32,
    /// The page's record before this one, unless this one is a whole image.
    pub(crate) previous: Option<RecordNumber>,
}

/// Lays one record over a page: the engine knows where its bytes are.
pub(crate) type Apply<'a> = &'a mut dyn FnMut(&Record, &mut [u8]) -> Result<(), JournalError>;

/// What makes staged frames committed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Committed {
    pub(crate) last_frame: u32,
    pub(crate) db_pages: u32,
    pub(crate) checksum: Option<Checksum>,
    /// Number of the transaction in the generation.
    pub(crate) sequence: u32,
    pub(crate) time_ms: u64,
}
