//! The purposes of requests.

use serde::Serialize;

/// The purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// The database file.
    Database,
    /// A log or journal of SQLite or Duralite.
    Log,
    /// The file system's journal.
    Journal,
    /// Anything else.
    Other,
}

impl Class {
    /// All purposes, in the order in which tables show them.
    pub const ALL: [Self; 4] = [Self::Database, Self::Log, Self::Journal, Self::Other];

    /// Returns the purpose's name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Database => "database",
            Self::Log => "log",
            Self::Journal => "file-system journal",
            Self::Other => "other",
        }
    }
}
