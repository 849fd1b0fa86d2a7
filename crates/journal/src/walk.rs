//! What walking a log transaction by transaction shows: see [`crate::directory::walk`].

/// One record of a walked transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkedRecord {
    /// Offset in the log file.
    pub offset: u64,
    /// WAL frame number.
    pub frame: u32,
    /// Database page.
    pub page_number: u32,
    /// Size with its header in bytes.
    pub record_bytes: u32,
    /// Ranges of changed bytes; 0 where cells or bytes moved.
    pub ranges: u16,
    /// Whether it holds the page whole.
    pub whole: bool,
}

/// One committed transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkedTransaction {
    /// Number in the generation, from 1.
    pub sequence: u32,
    /// Offset of its header in the log file.
    pub offset: u64,
    /// First frame.
    pub first_frame: u32,
    /// Commit frame.
    pub last_frame: u32,
    /// Database size in pages afterwards.
    pub db_pages: u32,
    /// How its commit was ordered behind the rest of it: for `nvwal` the kind of its mark, for `waldio`
    /// the layout.
    pub order: &'static str,
    /// Its records.
    pub records: Vec<WalkedRecord>,
}

/// What a walk came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkSummary {
    /// Generation in force.
    pub generation: u64,
    /// Committed transactions.
    pub transactions: u32,
    /// Committed frames.
    pub frames: u32,
    /// Everything is in the database file already.
    pub retired: bool,
    /// The first commit frame at which SQLite's recovery would stop early, if any.
    pub mismatch: Option<u32>,
}
