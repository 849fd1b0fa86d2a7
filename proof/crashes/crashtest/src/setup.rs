//! An engine, and the settings with which to test it. A seed chooses them.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use duralite_wal::engine::media::Medium;
use duralite_wal::engines::{nvwal, ppl, scratchpad, waldio};
use duralite_wal::{Descriptor, engines};
use serde::{Deserialize, Serialize};

use crate::sql;

/// An engine to test, or stock SQLite as a control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Engine {
    /// One of Duralite's engines.
    Own(&'static Descriptor),
    /// SQLite's own write-ahead log with `synchronous=FULL`, as a control.
    Stock,
    /// SQLite's own write-ahead log with `synchronous=OFF`. The tests must detect the commits that it loses.
    StockOff,
}

impl Engine {
    /// The engine for tests of behaviour that only `nvwal` has.
    pub const NVWAL: Self = Self::Own(&nvwal::DESCRIPTOR);
    /// The engine for tests of behaviour that only `waldio` has.
    pub const WALDIO: Self = Self::Own(&waldio::DESCRIPTOR);
    /// The engine for tests of behaviour that only `ppl` has.
    pub const PPL: Self = Self::Own(&ppl::DESCRIPTOR);

    /// The engine for tests of behaviour that only `scratchpad` has.
    pub const SCRATCHPAD: Self = Self::Own(&scratchpad::DESCRIPTOR);

    /// Returns all engines of Duralite.
    #[must_use]
    pub fn own() -> Vec<Self> {
        engines::ENGINES.iter().copied().map(Self::Own).collect()
    }

    fn all() -> Vec<Self> {
        [Self::own(), vec![Self::Stock, Self::StockOff]].concat()
    }

    /// Returns the engine's name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Own(engine) => engine.name,
            Self::Stock => "stock",
            Self::StockOff => "stock-off",
        }
    }

    /// Returns whether the engine maps the database file as memory.
    #[must_use]
    pub fn maps_home(self) -> bool {
        matches!(self, Self::Own(engine) if engine.needs.contains(&Medium::HomeMemory))
    }

    /// Returns whether to test the engine with rollback journals. This is useful if the engine keeps
    /// rollback journals in its log, and for stock SQLite as a control.
    #[must_use]
    pub fn keeps_rollback_journals(self) -> bool {
        matches!(self, Self::Stock) || matches!(self, Self::Own(engine) if engine.rollback_journals)
    }

    fn may_keep_its_log(self) -> bool {
        matches!(self, Self::Own(engine) if engine.settings.iter().any(|setting| setting.name == "on_close"))
    }

    /// Returns whether the engine's log is in mapped memory.
    #[must_use]
    pub fn is_in_memory(self) -> bool {
        let in_memory = |medium: &Medium| matches!(medium, Medium::LogMemory | Medium::Scratchpad);
        matches!(self, Self::Own(engine) if engine.needs.first().is_some_and(in_memory))
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Engine {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::all().into_iter().find(|engine| engine.as_str() == name);
        let known = known.or_else(|| engines::by_name(name).map(Self::Own));
        known.ok_or_else(|| {
            let own: Vec<&str> = Self::own().into_iter().map(Self::as_str).collect();
            format!("{name} is no engine; there are {}, stock and stock-off", own.join(", "))
        })
    }
}

impl TryFrom<String> for Engine {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

impl From<Engine> for String {
    fn from(engine: Engine) -> Self {
        engine.as_str().to_owned()
    }
}

/// An engine with its settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// The engine.
    pub engine: Engine,
    /// More URI parameters.
    pub settings: String,
    /// The number of bytes in a page.
    pub page_bytes: u32,
    /// Whether an acknowledged commit is durable.
    pub waits: bool,
    /// The number of connections that commit at the same time, each in its own thread. With 1 the seed
    /// reproduces the run.
    pub threads: u32,
    /// The number of frames in the log at which SQLite makes an automatic checkpoint; 0 for never.
    #[serde(default)]
    pub checkpoint_frames: u32,
    /// SQLite's journal mode, in small letters.
    #[serde(default = "wal")]
    pub journal_mode: String,
    /// Whether the log is in the database's own directory.
    #[serde(default)]
    pub beside: bool,
    /// Whether connections write concurrently (`concurrent=on`), in transactions that overlap.
    #[serde(default)]
    pub concurrent: bool,
}

const KEEP: &str = "on_close=keep";
const SMALLEST: &str = "log_limit=1";

/// The journal modes in which a rollback journal survives a crash.
pub const ROLLBACK_MODES: [&str; 3] = ["delete", "truncate", "persist"];

fn wal() -> String {
    sql::WAL.to_owned()
}

impl Setup {
    /// Returns the setup that a seed chooses.
    #[must_use]
    pub fn for_seed(engine: Engine, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x5e70);
        let page_bytes = [512, 1024, 4096][random.usize(..3)];
        let mut setup = Self {
            engine,
            settings: String::new(),
            page_bytes,
            waits: true,
            threads: 1,
            checkpoint_frames: 0,
            journal_mode: wal(),
            beside: seed % 3 == 1,
            concurrent: false,
        };
        let own = CHOICES.iter().find(|(name, _)| *name == engine.as_str());
        let mut settings = own.map(|(_, choose)| choose(&mut setup, &mut random)).unwrap_or_default();
        if engine.may_keep_its_log() && seed % 4 == 3 {
            settings.push(KEEP.to_owned());
        }
        if engine.maps_home() {
            setup.checkpoint_frames = [0, 3, 10][random.usize(..3)];
            settings.push(format!("home_sync={}", ["adaptive", "wb", "wt"][random.usize(..3)]));
        }
        if engine.keeps_rollback_journals() && random.bool() {
            setup.journal_mode = ROLLBACK_MODES[random.usize(..3)].to_owned();
        }
        Self { settings: settings.join("&"), ..setup }
    }

    /// Returns the setup that a seed chooses. Without `concurrent`, it has one writer at a time. With
    /// `concurrent`, it has concurrent writers in the write-ahead log. One thread runs all their connections,
    /// so that the seed reproduces their order.
    #[must_use]
    pub fn for_writers(engine: Engine, seed: u64, concurrent: bool) -> Self {
        let setup = Self::for_seed(engine, seed);
        if !concurrent {
            return setup;
        }
        // The smallest log of `ppl` has no room for the transaction that makes the tables.
        let settings: Vec<&str> = setup.settings.split('&').filter(|setting| *setting != SMALLEST).collect();
        let settings = settings.join("&");
        Self { threads: 1, journal_mode: wal(), concurrent, settings, ..setup }
    }

    /// Returns the setups that a seed chooses: one with the write-ahead log, and, if the engine keeps
    /// rollback journals, one for each journal mode.
    #[must_use]
    pub fn for_each_mode(engine: Engine, seed: u64) -> Vec<Self> {
        let setup = Self::for_seed(engine, seed);
        let rollback: &[&str] = if engine.keeps_rollback_journals() { &ROLLBACK_MODES } else { &[] };
        let modes = [sql::WAL].iter().chain(rollback);
        modes.map(|mode| Self { journal_mode: (*mode).to_owned(), ..setup.clone() }).collect()
    }

    /// Returns whether the last close leaves the guard and the log in place.
    #[must_use]
    pub fn keeps_its_log(&self) -> bool {
        self.settings.split('&').any(|setting| setting == KEEP)
    }

    /// Returns whether the setup commits to a write-ahead log.
    #[must_use]
    pub fn is_wal(&self) -> bool {
        self.journal_mode == sql::WAL
    }

    /// Returns the URI of a database, with logs in `log_dir`.
    #[must_use]
    pub fn uri(&self, database: &Path, log_dir: &Path) -> String {
        let (database, log_dir) = (database.display(), log_dir.display());
        let Engine::Own(engine) = self.engine else {
            return format!("file:{database}?vfs=duralite-recorded");
        };
        let media = engine.needs.iter().map(|medium| match medium {
            Medium::LogMemory => format!("nvram=emulate&nvram_dir={log_dir}&"),
            Medium::HomeMemory => "home=emulate&".to_owned(),
            // The parameter `scratchpad` in `self.settings` says which memory holds the region.
            Medium::Scratchpad => format!("nvram=emulate&nvram_dir={log_dir}&"),
            Medium::LogBlocks => format!("log_dir={log_dir}&"),
        });
        let media: String = media.collect();
        let concurrent = if self.concurrent { "concurrent=on&" } else { "" };
        format!("file:{database}?vfs=duralite&journal={}&{media}{concurrent}{}", engine.name, self.settings)
    }

    /// Returns the value of `PRAGMA synchronous` for the setup's connections.
    #[must_use]
    pub fn synchronous(&self) -> &'static str {
        match self.engine {
            Engine::StockOff => "OFF",
            // At FULL, SQLite does not sync the directory after it has deleted a journal file. At least the
            // first transaction of a database uses such a file.
            _ if !self.is_wal() => "EXTRA",
            _ => "FULL",
        }
    }
}

/// Chooses an engine's settings by a seed. It may also change two values of the setup: whether commits wait,
/// and how many threads commit.
type Choose = fn(&mut Setup, &mut fastrand::Rng) -> Vec<String>;

/// The choices by engine. An engine without an entry has its default settings.
const CHOICES: [(&str, Choose); 4] = [
    ("nvwal", choose_nvwal),
    ("waldio", choose_waldio),
    ("ppl", choose_ppl),
    ("scratchpad", choose_scratchpad),
];

fn choose_nvwal(setup: &mut Setup, random: &mut fastrand::Rng) -> Vec<String> {
    // With `async`, a run promises only that a prefix of the commits survives.
    let sync = ["lazy", "lazy", "lazy", "eager", "checksum", "checksum", "async"][random.usize(..7)];
    setup.waits = sync != "async";
    let mut settings = vec![format!("sync={sync}"), format!("block_bytes={}", 4096 * random.u32(2..=4))];
    if random.u8(..4) == 0 {
        settings.push("diff=0".into());
    }
    if random.u8(..6) == 0 {
        settings.push("heap=system".into());
    }
    if random.u8(..4) == 0 {
        settings.push("log_limit=524288".into());
    }
    if random.u8(..3) == 0 {
        settings.push("cache_bytes=0".into());
    }
    settings
}

fn choose_waldio(setup: &mut Setup, random: &mut fastrand::Rng) -> Vec<String> {
    let embedded = random.u8(..3) == 0;
    let mut settings = vec![
        format!("layout={}", if embedded { "embedded" } else { "delta" }),
        format!("device_block={}", [512, 512, 4096][random.usize(..3)]),
        format!("durability={}", ["full", "full", "fua"][random.usize(..3)]),
        format!("log_limit={}", [196_608, 262_144, 262_144, 4 << 20][random.usize(..4)]),
    ];
    match random.u8(..6) {
        0 => {
            settings.push("group_synch=4".into());
            setup.waits = false;
        }
        1 => setup.threads = 3,
        _ => {}
    }
    if random.u8(..3) == 0 {
        settings.push("cache_bytes=0".into());
    }
    settings
}

/// Chooses small limits and frequent checkpoints, because `ppl` merges a page only at a checkpoint, when the
/// page's log is full, or when space is short.
fn choose_ppl(setup: &mut Setup, random: &mut fastrand::Rng) -> Vec<String> {
    setup.checkpoint_frames = [0, 3, 3, 10][random.usize(..4)];
    let mut settings = vec![
        format!("sector_bytes={}", 4096 * [1, 1, 2, 3][random.usize(..4)]),
        format!("overflow_bytes={}", [0, 0, 1024, 12288][random.usize(..4)]),
        // The value 1 stands for the smallest size that `ppl` allows, which is four chunks. `log_limit`
        // limits the log. Beyond `usual_bytes` the log may still grow.
        ["log_limit=1", "usual_bytes=1", "log_limit=4194304"][random.usize(..3)].to_owned(),
    ];
    if random.u8(..3) == 0 {
        settings.push("cache_bytes=0".into());
    }
    settings
}

/// Chooses a region in which a store is durable at once, or a region that needs flushes.
fn choose_scratchpad(_: &mut Setup, random: &mut fastrand::Rng) -> Vec<String> {
    let mut settings = vec![
        format!("scratchpad={}", ["emulate", "emulate", "off"][random.usize(..3)]),
        format!("scratchpad_bytes={}", [131_072, 524_288, 4 << 20][random.usize(..3)]),
    ];
    if random.u8(..4) == 0 {
        settings.push("log_limit=65536".into());
    }
    if random.u8(..3) == 0 {
        settings.push("cache_bytes=0".into());
    }
    if random.u8(..6) == 0 {
        settings.push("diff=0".into());
    }
    settings
}
