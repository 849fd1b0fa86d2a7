//! What is tested: an engine and its settings, all of it chosen by a seed.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What keeps the commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// Duralite on memory.
    Nvwal,
    /// Duralite on blocks.
    Waldio,
    /// SQLite's own write-ahead log with `synchronous=FULL`, as a control.
    Stock,
    /// The same with `synchronous=OFF`: has to be caught.
    StockOff,
}

impl Engine {
    /// Duralite's own.
    pub const OWN: [Self; 2] = [Self::Nvwal, Self::Waldio];

    /// The name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nvwal => "nvwal",
            Self::Waldio => "waldio",
            Self::Stock => "stock",
            Self::StockOff => "stock-off",
        }
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
        [Self::Nvwal, Self::Waldio, Self::Stock, Self::StockOff]
            .into_iter()
            .find(|engine| engine.as_str() == name)
            .ok_or_else(|| format!("{name} is no engine; there are nvwal, waldio, stock and stock-off"))
    }
}

/// An engine with its settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// The engine.
    pub engine: Engine,
    /// More URI parameters.
    pub settings: String,
    /// Bytes in a page.
    pub page_bytes: u32,
    /// Whether an acknowledged commit is durable.
    pub waits: bool,
    /// Connections that commit at once, in threads of their own; 1 for a run that its seed reproduces.
    pub threads: u32,
}

impl Setup {
    /// The setup that a seed stands for.
    #[must_use]
    pub fn for_seed(engine: Engine, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x5e70);
        let page_bytes = [512, 1024, 4096][random.usize(..3)];
        let mut waits = true;
        let mut threads = 1;
        let mut settings = Vec::new();
        match engine {
            Engine::Nvwal => {
                // A weaker order now and then: what it promises is a prefix.
                let sync =
                    ["lazy", "lazy", "lazy", "eager", "checksum", "checksum", "async"][random.usize(..7)];
                waits = sync != "async";
                settings.push(format!("sync={sync}"));
                settings.push(format!("block_bytes={}", 4096 * random.u32(2..=4)));
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
            }
            Engine::Waldio => {
                let embedded = random.u8(..3) == 0;
                settings.push(format!("layout={}", if embedded { "embedded" } else { "delta" }));
                settings.push(format!("device_block={}", [512, 512, 4096][random.usize(..3)]));
                settings.push(format!("durability={}", ["full", "full", "fua"][random.usize(..3)]));
                settings
                    .push(format!("log_limit={}", [196_608, 262_144, 262_144, 4 << 20][random.usize(..4)]));
                match random.u8(..6) {
                    0 => {
                        settings.push("group_synch=4".into());
                        waits = false;
                    }
                    1 => threads = 3,
                    _ => {}
                }
                if random.u8(..3) == 0 {
                    settings.push("cache_bytes=0".into());
                }
            }
            Engine::Stock | Engine::StockOff => {}
        }
        Self { engine, settings: settings.join("&"), page_bytes, waits, threads }
    }

    /// The URI of a database, with logs in `pool`.
    #[must_use]
    pub fn uri(&self, database: &Path, pool: &Path) -> String {
        let (database, pool) = (database.display(), pool.display());
        match self.engine {
            Engine::Nvwal => format!(
                "file:{database}?vfs=duralite&journal=nvwal&nvram=emulate&nvram_dir={pool}&{}",
                self.settings
            ),
            Engine::Waldio => {
                format!("file:{database}?vfs=duralite&journal=waldio&log_dir={pool}&{}", self.settings)
            }
            Engine::Stock | Engine::StockOff => format!("file:{database}?vfs=duralite-recorded"),
        }
    }

    /// `PRAGMA synchronous` for its connections.
    #[must_use]
    pub fn synchronous(&self) -> &'static str {
        if self.engine == Engine::StockOff { "OFF" } else { "FULL" }
    }
}
