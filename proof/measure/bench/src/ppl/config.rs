//! The configurations on which workloads run: stock SQLite in its journal modes, and Duralite's engines. All
//! engines use the same NVRAM.

use std::path::Path;
use std::sync::Once;

use duralite_wal::engines;

use super::paper::{PCM_FENCE_NS, PCM_READ_NS, PCM_WRITE_NS};

/// The size limit of a log in NVRAM, the same for every engine.
const LOG_LIMIT: &str = "64m";
/// The sizes of a page's log sector, in bytes. The first is the default, as in the paper.
const SECTORS: [u32; 3] = [4096, 8192, 12_288];
/// The parameter that turns the common pool off. A page is then merged as soon as its sector is full.
const WITHOUT_POOL: &str = "&overflow_bytes=0";

/// The latency of emulated NVRAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Latency {
    /// The latency of the machine's memory.
    None,
    /// The latency of phase-change memory (PCM), from the paper's table 1.
    Pcm,
}

/// Returns a sentence that explains how PCM's latencies are emulated, for the note under a table.
#[must_use]
pub fn pcm_note() -> String {
    format!(
        "`PCM`: the paper's table 1 (408 ns to read 4 bytes, 7.5 us to write them; its board writes up to 32 \
         at once), so a line of 64 bytes takes two accesses: nvram_write_ns={PCM_WRITE_NS}, \
         nvram_read_ns={PCM_READ_NS}. A fence costs nothing more, because the paper names no cost."
    )
}

/// Explains the paper's policy of merging, for the note under a table.
pub const POLICY_NOTE: &str = "`paper's policy`: `overflow_bytes=0` and `wal_autocheckpoint=1`, so that a page is merged at \
                               the commit that has filled its sector, as in the paper. By default a page's log first takes some \
                               of the pool, and pages are merged after a checkpoint, which SQLite makes every 1,000 pages.";

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

/// A configuration in which the benchmark runs a workload: stock SQLite or an engine, with its settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// The name in tables.
    pub name: String,
    /// The row of the paper's tables with which this configuration is compared.
    pub in_paper: InPaper,
    /// The URI parameters of Duralite; `None` for stock SQLite.
    parameters: Option<String>,
    /// Whether SQLite checkpoints after every commit, instead of after 1,000 pages.
    pub checkpoints_each_commit: bool,
}

impl Config {
    /// Returns the configuration of stock SQLite with `journal_mode=DELETE`.
    #[must_use]
    pub fn delete() -> Self {
        Self::stock("DELETE", InPaper::Delete)
    }

    /// Returns the configuration of stock SQLite with `journal_mode=WAL`.
    #[must_use]
    pub fn wal() -> Self {
        Self::stock("WAL", InPaper::Wal)
    }

    fn stock(name: &str, in_paper: InPaper) -> Self {
        Self { name: name.to_owned(), in_paper, parameters: None, checkpoints_each_commit: false }
    }

    /// Returns the configuration `journal=nvwal`.
    #[must_use]
    pub fn nvwal(latency: Latency) -> Self {
        Self::in_nvram("nvwal", InPaper::Absent, "journal=nvwal", latency)
    }

    /// Returns the configuration `journal=ppl` with its default settings; `None` if this build lacks that engine.
    #[must_use]
    pub fn ppl(latency: Latency) -> Option<Self> {
        Self::sectors(latency).into_iter().next()
    }

    /// Returns the configurations of `journal=ppl` with sectors of each size, each with the default `overflow_bytes`
    /// and with 0. `ppl` merges pages after SQLite's automatic checkpoints, of which there is one for about 1,000
    /// pages. Returns none if this build lacks that engine.
    #[must_use]
    pub fn sectors(latency: Latency) -> Vec<Self> {
        let each = |bytes: u32| Self::of_sector(bytes, "", "", latency);
        let without_pool = |bytes: u32| Self::of_sector(bytes, ", overflow_bytes=0", WITHOUT_POOL, latency);
        let all = SECTORS.into_iter().map(each).chain(SECTORS.into_iter().map(without_pool));
        if Self::has_ppl() { all.collect() } else { Vec::new() }
    }

    /// Returns the configurations of `journal=ppl` with the paper's policy, with sectors of each size. That is to merge
    /// a page at the commit that has filled its sector. Returns none if this build lacks that engine.
    #[must_use]
    pub fn of_paper(latency: Latency) -> Vec<Self> {
        let each = |bytes: u32| {
            let own = Self::of_sector(bytes, ", paper's policy", WITHOUT_POOL, latency);
            Self { checkpoints_each_commit: true, ..own }
        };
        if Self::has_ppl() { SECTORS.into_iter().map(each).collect() } else { Vec::new() }
    }

    fn has_ppl() -> bool {
        static ONCE: Once = Once::new();
        let is_built = engines::by_name("ppl").is_some();
        if !is_built {
            ONCE.call_once(|| eprintln!("journal=ppl is left out: there is no such engine"));
        }
        is_built
    }

    fn of_sector(bytes: u32, name: &str, settings: &str, latency: Latency) -> Self {
        let (name, settings) =
            (format!("ppl, {bytes}{name}"), format!("journal=ppl&sector_bytes={bytes}{settings}"));
        Self::in_nvram(&name, InPaper::Ppl, &settings, latency)
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
        Self { name, in_paper, parameters: Some(parameters), checkpoints_each_commit: false }
    }

    /// Returns whether the database is in WAL mode.
    #[must_use]
    pub fn has_wal(&self) -> bool {
        self.in_paper != InPaper::Delete
    }

    /// Returns whether the log of a page may take some of the common pool before the page is merged.
    #[must_use]
    pub fn is_with_pool(&self) -> bool {
        self.parameters.as_ref().is_some_and(|parameters| !parameters.contains(WITHOUT_POOL))
    }

    /// Returns whether the configuration uses Duralite.
    #[must_use]
    pub fn is_duralite(&self) -> bool {
        self.parameters.is_some()
    }

    /// Returns the URI by which SQLite opens the database.
    #[must_use]
    pub fn uri(&self, database: &Path) -> String {
        match &self.parameters {
            None => format!("file:{}", database.display()),
            Some(parameters) => format!("file:{}?vfs=duralite&{parameters}", database.display()),
        }
    }
}
