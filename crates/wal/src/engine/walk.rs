//! The results of walking a log transaction by transaction: see [`crate::placement::walk`].

/// One record of a walked transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkedRecord {
    /// Offset in the log file.
    pub offset: u64,
    /// WAL frame number.
    pub frame: u32,
    /// Database page number.
    pub page_number: u32,
    /// Size in bytes, including the record's header.
    pub record_bytes: u32,
    /// Number of ranges of changed bytes; 0 if the record has another form, such as moves of cells or
    /// bytes.
    pub ranges: u16,
    /// Whether the record holds the whole page.
    pub whole: bool,
}

/// One committed transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkedTransaction {
    /// The transaction's number in the generation, from 1.
    pub sequence: u32,
    /// Offset of the transaction's header in the log file.
    pub offset: u64,
    /// The transaction's first frame.
    pub first_frame: u32,
    /// The transaction's commit frame.
    pub last_frame: u32,
    /// Database size in pages after the transaction.
    pub db_pages: u32,
    /// How the log ensures that a commit becomes durable only after the rest of its transaction:
    /// for `nvwal` the kind of the commit mark, for `waldio` the layout.
    pub order: &'static str,
    /// The transaction's records.
    pub records: Vec<WalkedRecord>,
}

/// The totals of a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkSummary {
    /// The generation in force.
    pub generation: u64,
    /// The number of committed transactions.
    pub transactions: u32,
    /// The number of committed frames.
    pub frames: u32,
    /// Whether everything committed is in the database file already.
    pub retired: bool,
    /// The first commit frame whose stored checksum SQLite cannot have computed
    /// ([`crate::engine::checksums::find_checksum_mismatch`]); `None` if there is none.
    pub mismatch: Option<u32>,
}
