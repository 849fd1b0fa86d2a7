//! What a run is to do.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use duralite_testkit::Engine;

use crate::Role;

/// When a worker acknowledges a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledge {
    /// When `COMMIT` has returned.
    AfterCommit,
    /// Before `COMMIT`, which is wrong: to prove that a loss is found.
    BeforeCommit,
}

/// What a run is to do. Its text, `name=value` with spaces between, can be parsed again by
/// [`Plan::parse`]; the seed decides all but the moments at which the system lets processes run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where the log goes.
    pub engine: Engine,
    /// Processes to kill; a few more when the last strike hits several.
    pub kills: u32,
    /// Of all random decisions.
    pub seed: u64,
    /// Processes of each role.
    pub writers: u32,
    /// See [`Role::Checkpointer`].
    pub checkpointers: u32,
    /// See [`Role::Opener`].
    pub openers: u32,
    /// See [`Role::Reader`].
    pub readers: u32,
    /// More URI parameters.
    pub settings: String,
    /// Of the database.
    pub page_bytes: u32,
    /// Where the directory of the database is made; the temporary directory if empty.
    pub directory: Option<PathBuf>,
    /// Where the directory of the logs is made; `/dev/shm` for `nvwal`, otherwise as `directory`.
    pub log_directory: Option<PathBuf>,
    /// When a transaction is acknowledged.
    pub acknowledge: Acknowledge,
    /// Everything is checked after so many kills, at the latest.
    pub full_check_every: u32,
    /// Whether shared memory of logs that are gone (`*.shm`) may be left in the pool.
    pub allow_segments: bool,
    /// How long a worker tries before `SQLITE_BUSY` is called starvation.
    pub busy_timeout: Duration,
    /// How long a process may go without progress.
    pub hang: Duration,
}

/// Settings that a seed chooses from.
const NVWAL: [&str; 7] =
    ["", "", "sync=eager", "sync=checksum", "heap=system&diff=off", "cache_bytes=0", "sync=async"];
const WALDIO: [&str; 10] = [
    "",
    "",
    "background_checkpoint=60",
    "background_checkpoint=1&layout=embedded",
    "layout=embedded",
    "group_synch=16&group_interval_ms=2",
    "group_synch=64&group_interval_ms=5&background_checkpoint=100&layout=embedded",
    "durability=fua",
    "durability=normal&background_checkpoint=on",
    "access=buffered&read_durable=on",
];
const PAGES: [u32; 5] = [4096, 4096, 4096, 1024, 16384];

impl Plan {
    /// A plan without special settings.
    #[must_use]
    pub fn new(engine: Engine, kills: u32, seed: u64) -> Self {
        Self {
            engine,
            kills,
            seed,
            writers: 3,
            checkpointers: 1,
            openers: 2,
            readers: 1,
            settings: String::new(),
            page_bytes: 4096,
            directory: None,
            log_directory: None,
            acknowledge: Acknowledge::AfterCommit,
            full_check_every: 50,
            allow_segments: false,
            busy_timeout: Duration::from_secs(8),
            hang: Duration::from_secs(20),
        }
    }

    /// A plan whose settings and numbers of processes the seed chooses too.
    #[must_use]
    pub fn varied(engine: Engine, kills: u32, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let settings = match engine {
            Engine::Nvwal => NVWAL[rng.usize(..NVWAL.len())],
            Engine::Waldio => WALDIO[rng.usize(..WALDIO.len())],
        };
        Self {
            settings: settings.to_owned(),
            page_bytes: PAGES[rng.usize(..PAGES.len())],
            writers: rng.u32(1..=5),
            checkpointers: rng.u32(0..=2),
            openers: rng.u32(1..=3),
            readers: rng.u32(0..=2),
            ..Self::new(engine, kills, seed)
        }
    }

    /// Reads `name=value` arguments. `engine`, `kills` and `seed` come first; `settings` and others
    /// are then as [`Plan::varied`] chooses, unless they are given.
    ///
    /// # Errors
    /// An unknown name or value.
    pub fn parse<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let pairs = arguments
            .into_iter()
            .map(|argument| argument.split_once('=').with_context(|| format!("{argument} is not name=value")))
            .collect::<Result<Vec<_>>>()?;
        let find = |name: &str| pairs.iter().find(|(given, _)| *given == name).map(|(_, value)| *value);
        let engine = match find("engine") {
            Some("nvwal") => Engine::Nvwal,
            Some("waldio") | None => Engine::Waldio,
            Some(other) => bail!("engine={other}: choose nvwal or waldio"),
        };
        let (kills, seed) = (find("kills").unwrap_or("1000"), find("seed").unwrap_or("1"));
        let mut plan = Self::varied(
            engine,
            kills.parse().with_context(|| format!("kills={kills}"))?,
            seed.parse().with_context(|| format!("seed={seed}"))?,
        );
        for (name, value) in pairs {
            plan.set(name, value).with_context(|| format!("{name}={value}"))?;
        }
        Ok(plan)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "engine" | "kills" | "seed" => {}
            "writers" => self.writers = value.parse()?,
            "checkpointers" => self.checkpointers = value.parse()?,
            "openers" => self.openers = value.parse()?,
            "readers" => self.readers = value.parse()?,
            "settings" => value.clone_into(&mut self.settings),
            "page_bytes" => self.page_bytes = value.parse()?,
            "directory" => self.directory = Some(value.into()),
            "log_directory" => self.log_directory = Some(value.into()),
            "acknowledge" => {
                self.acknowledge = match value {
                    "after" => Acknowledge::AfterCommit,
                    "before" => Acknowledge::BeforeCommit,
                    _ => bail!("choose after or before"),
                }
            }
            "full_check_every" => self.full_check_every = value.parse()?,
            "allow_segments" => self.allow_segments = value.parse()?,
            "busy_ms" => self.busy_timeout = Duration::from_millis(value.parse()?),
            "hang_ms" => self.hang = Duration::from_millis(value.parse()?),
            _ => bail!("unknown name"),
        }
        Ok(())
    }

    /// The roles of all processes.
    #[must_use]
    pub fn roles(&self) -> Vec<Role> {
        let counts = [
            (Role::Writer, self.writers),
            (Role::Checkpointer, self.checkpointers),
            (Role::Opener, self.openers),
            (Role::Reader, self.readers),
        ];
        counts.into_iter().flat_map(|(role, count)| (0..count).map(move |_| role)).collect()
    }

    /// Whether acknowledged commits may be lost when all processes die, as settings ask for it.
    #[must_use]
    pub fn is_weak(&self) -> bool {
        self.settings
            .split('&')
            .any(|setting| setting.starts_with("group_synch=") && setting != "group_synch=0")
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let acknowledge = match self.acknowledge {
            Acknowledge::AfterCommit => "after",
            Acknowledge::BeforeCommit => "before",
        };
        write!(
            f,
            "engine={} kills={} seed={} writers={} checkpointers={} openers={} readers={} 'settings={}' \
             page_bytes={} acknowledge={acknowledge} full_check_every={} allow_segments={} busy_ms={} hang_ms={}",
            self.engine.name(),
            self.kills,
            self.seed,
            self.writers,
            self.checkpointers,
            self.openers,
            self.readers,
            self.settings,
            self.page_bytes,
            self.full_check_every,
            self.allow_segments,
            self.busy_timeout.as_millis(),
            self.hang.as_millis(),
        )?;
        for (name, path) in [("directory", &self.directory), ("log_directory", &self.log_directory)] {
            if let Some(path) = path {
                write!(f, " '{name}={}'", path.display())?;
            }
        }
        Ok(())
    }
}
