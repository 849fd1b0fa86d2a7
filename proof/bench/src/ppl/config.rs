//! What workloads are run on: stock SQLite in its journal modes, and Duralite's engines with the same NVRAM.

use std::path::Path;
use std::sync::Once;

use duralite_journal::engines;

use super::paper::{PCM_FENCE_NS, PCM_READ_NS, PCM_WRITE_NS};

/// What a log in NVRAM may take, whichever engine keeps it.
const LOG_LIMIT: &str = "64m";
/// Sizes of a page's log, in bytes: the default first, as in the paper.
const SECTORS: [u32; 3] = [4096, 8192, 12_288];

/// The latency that emulated NVRAM is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Latency {
    /// That of the machine's memory.
    None,
    /// PCM's, from the paper's table 1.
    Pcm,
}

/// How PCM's latencies are set, for notes.
#[must_use]
pub fn pcm_note() -> String {
    format!(
        "`PCM`: the paper's table 1 (408 ns to read 4 bytes, 7.5 us to write them; its board writes up to 32 at \
         once), a line of 64 bytes being two such accesses: nvram_write_ns={PCM_WRITE_NS}, nvram_read_ns={PCM_READ_NS}, \
         and no cost of a fence besides, as none is named."
    )
}

/// Which line of the paper's tables a configuration stands beside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InPaper {
    /// SQLite with a rollback journal that is deleted.
    Delete,
    /// SQLite with a write-ahead log.
    Wal,
    /// SQLite/PPL.
    Ppl,
    /// Not in it.
    Absent,
}

/// A way to keep a database.
#[derive(Debug, Clone)]
pub struct Config {
    /// The name in tables.
    pub name: String,
    /// What the paper has beside it.
    pub in_paper: InPaper,
    /// Parameters of the URI; none for stock SQLite.
    parameters: Option<String>,
}

impl Config {
    /// Stock SQLite, `journal_mode=DELETE`.
    #[must_use]
    pub fn delete() -> Self {
        Self { name: "DELETE".to_owned(), in_paper: InPaper::Delete, parameters: None }
    }

    /// Stock SQLite, `journal_mode=WAL`.
    #[must_use]
    pub fn wal() -> Self {
        Self { name: "WAL".to_owned(), in_paper: InPaper::Wal, parameters: None }
    }

    /// `journal=nvwal`.
    #[must_use]
    pub fn nvwal(latency: Latency) -> Self {
        Self::in_nvram("nvwal", InPaper::Absent, "journal=nvwal", latency)
    }

    /// `journal=ppl` with its default settings; none where there is no such engine.
    #[must_use]
    pub fn ppl(latency: Latency) -> Option<Self> {
        Self::sectors(latency).into_iter().next()
    }

    /// `journal=ppl` with sectors of each size; empty where there is no such engine.
    #[must_use]
    pub fn sectors(latency: Latency) -> Vec<Self> {
        static ONCE: Once = Once::new();
        if engines::by_name("ppl").is_none() {
            ONCE.call_once(|| eprintln!("journal=ppl is left out: there is no such engine"));
            return Vec::new();
        }
        let each = |bytes: u32| {
            let settings = format!("journal=ppl&sector_bytes={bytes}");
            Self::in_nvram(&format!("ppl, {bytes}"), InPaper::Ppl, &settings, latency)
        };
        SECTORS.into_iter().map(each).collect()
    }

    fn in_nvram(name: &str, in_paper: InPaper, settings: &str, latency: Latency) -> Self {
        let mut parameters = format!("{settings}&nvram=emulate&log_limit={LOG_LIMIT}");
        let mut name = name.to_owned();
        if latency == Latency::Pcm {
            name.push_str(", PCM");
            parameters.push_str(&format!(
                "&nvram_write_ns={PCM_WRITE_NS}&nvram_fence_ns={PCM_FENCE_NS}&nvram_read_ns={PCM_READ_NS}"
            ));
        }
        Self { name, in_paper, parameters: Some(parameters) }
    }

    /// Whether the database is in WAL mode.
    #[must_use]
    pub fn has_wal(&self) -> bool {
        self.in_paper != InPaper::Delete
    }

    /// Whether it is one of Duralite's.
    #[must_use]
    pub fn is_duralite(&self) -> bool {
        self.parameters.is_some()
    }

    /// The name of a database for SQLite.
    #[must_use]
    pub fn uri(&self, database: &Path) -> String {
        match &self.parameters {
            None => format!("file:{}", database.display()),
            Some(parameters) => format!("file:{}?vfs=duralite&{parameters}", database.display()),
        }
    }
}
