//! The settings of one open database, as values.

use duralite_wal::EngineOptions;

use super::values::Journal;

/// The setting that also counts where no database is opened through this VFS.
pub const STRICT: &str = "strict";

/// The settings of one open database.
#[derive(Debug, Clone)]
pub struct Settings {
    pub journal: Journal,
    /// The settings of engines and media.
    pub options: EngineOptions,
    /// Whether a reader waits until what it reads is durable.
    pub read_durable: bool,
    /// The number of frames at which a thread checkpoints the log, so that no committer has to; 0 for never.
    pub background_checkpoint: u32,
    /// Whether an open that would end as plain SQLite is refused.
    pub strict: bool,
    /// What the log's file keeps when the log starts over: SQLite's own `PRAGMA journal_size_limit`.
    pub size_limit: Option<u64>,
    /// The names of the settings that were given, as opposed to defaults.
    pub(super) explicit: Vec<&'static str>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            journal: Journal::Auto,
            options: EngineOptions::default(),
            read_durable: false,
            background_checkpoint: 0,
            strict: false,
            size_limit: None,
            explicit: Vec::new(),
        }
    }
}
