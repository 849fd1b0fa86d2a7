//! The configurations on which workloads run: stock SQLite in its journal modes, and Duralite's engines. All
//! engines use the same NVRAM.

use std::path::Path;
use std::sync::Once;

use duralite_wal::engines;

use super::paper::{PCM_FENCE_NS, PCM_READ_NS, PCM_WRITE_NS};

/// The limit of a log in NVRAM, for every engine.
const LOG_LIMIT: &str = "64m";
/// Sizes of a page's log sector in bytes. The first is the default, as in the paper.
const SECTORS: [u32; 3] = [4096, 8192, 12_288];

/// The latency of emulated NVRAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Latency {
    /// The latency of the machine's memory.
    None,
    /// The latency of PCM, from the paper's table 1.
    Pcm,
}

/// The sentence in a table's note that explains how PCM's latencies are emulated.
#[must_use]
pub fn pcm_note() -> String {
    format!(
        "`PCM`: the paper's table 1 (408 ns to read 4 bytes, 7.5 us to write them; its board writes up to 32 \
         at once), so a line of 64 bytes takes two accesses: nvram_write_ns={PCM_WRITE_NS}, \
         nvram_read_ns={PCM_READ_NS}. A fence costs nothing more, because the paper names no cost."
    )
}

/// The row of the paper's tables with which a configuration is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InPaper {
    /// SQLite with a rollback journal that is deleted.
    Delete,
    /// SQLite with a write-ahead log.
    Wal,
    /// SQLite/PPL.
    Ppl,
    /// The paper has no such row.
    Absent,
}

/// A configuration: how a database is kept.
#[derive(Debug, Clone)]
pub struct Config {
    /// The name in tables.
    pub name: String,
    /// The row of the paper's tables to compare it with.
    pub in_paper: InPaper,
    /// URI parameters of Duralite; `None` for stock SQLite.
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

    /// `journal=ppl` with its default settings; `None` if this build has no such engine.
    #[must_use]
    pub fn ppl(latency: Latency) -> Option<Self> {
        Self::sectors(latency).into_iter().next()
    }

    /// `journal=ppl` with sectors of each size: with the default `overflow_bytes`, and with the paper's policy, by which a
    /// page is merged as soon as its sector is full. Empty if this build has no such engine.
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
        let by_policy = |bytes: u32| {
            let settings = format!("journal=ppl&sector_bytes={bytes}&overflow_bytes=0");
            Self::in_nvram(&format!("ppl, {bytes}, overflow_bytes=0"), InPaper::Ppl, &settings, latency)
        };
        SECTORS.into_iter().map(each).chain(SECTORS.into_iter().map(by_policy)).collect()
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

    /// Whether the configuration uses Duralite.
    #[must_use]
    pub fn is_duralite(&self) -> bool {
        self.parameters.is_some()
    }

    /// The URI by which SQLite opens the database.
    #[must_use]
    pub fn uri(&self, database: &Path) -> String {
        match &self.parameters {
            None => format!("file:{}", database.display()),
            Some(parameters) => format!("file:{}?vfs=duralite&{parameters}", database.display()),
        }
    }
}
