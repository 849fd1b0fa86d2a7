//! The plan of a run.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Error, Result, bail};
use duralite_testkit::{Acknowledge, Arguments, Engine, engine_named};

use crate::Role;

/// The plan of a run. Its text consists of `name=value` pairs with spaces between them, and [`Plan::parse`]
/// reads it. The seed decides everything except how the system schedules the processes.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The engine that keeps the log.
    pub engine: Engine,
    /// The number of processes to kill. In each *strike* the run kills one or several processes. If the last
    /// strike hits several, the run kills a few more than this number.
    pub kills: u32,
    /// The seed of all random decisions.
    pub seed: u64,
    /// The number of processes with the role [`Role::Writer`].
    pub writers: u32,
    /// The number of processes with the role [`Role::Concurrent`]. If there are any, processes of other roles
    /// also open some of their connections with `concurrent=on`.
    pub concurrent: u32,
    /// The number of processes with the role [`Role::Checkpointer`].
    pub checkpointers: u32,
    /// The number of processes with the role [`Role::Opener`].
    pub openers: u32,
    /// The number of processes with the role [`Role::Reader`].
    pub readers: u32,
    /// The number of processes with the role [`Role::Forker`].
    pub forkers: u32,
    /// The number of processes with the role [`Role::Onlooker`].
    pub onlookers: u32,
    /// The number of users, 1 or 2, as whom the processes run alternately. All users are in one group. A run
    /// with two users needs root.
    pub users: u32,
    /// Whether the database has a second name (a hard link). If so, the run sometimes removes the first name
    /// for a moment.
    pub names: bool,
    /// Whether the run sometimes stops several processes together for a while.
    pub pauses: bool,
    /// Whether the logs are in the database's directory.
    pub beside: bool,
    /// The value of `PRAGMA wal_autocheckpoint` of all connections.
    pub autocheckpoint: Option<u32>,
    /// The longest time between two strikes (see `kills`), in milliseconds.
    pub longest_ms: u64,
    /// The number of seconds after which the run ends, even if fewer processes were killed; 0 for never.
    pub seconds: u64,
    /// The largest number of bytes that the logs may take; 0 for no limit.
    pub log_bytes: u64,
    /// More URI parameters.
    pub settings: String,
    /// SQLite's journal mode, in small letters.
    pub journal: String,
    /// The database's page size in bytes.
    pub page_bytes: u32,
    /// The directory in which the run makes the database's directory; `None` for the temporary directory.
    pub directory: Option<PathBuf>,
    /// The directory in which the run makes the logs' directory. By default `/dev/shm` for engines in memory,
    /// otherwise the same as `directory`.
    pub log_directory: Option<PathBuf>,
    /// Whether a worker acknowledges a transaction before or after its `COMMIT`.
    pub acknowledge: Acknowledge,
    /// The largest number of kills between two full checks of the database.
    pub full_check_every: u32,
    /// Whether the log directory may keep shared memory (`*-shm`) of deleted logs.
    pub allow_segments: bool,
    /// The time for which a worker repeats a statement before `SQLITE_BUSY` counts as starvation.
    pub busy_timeout: Duration,
    /// The longest time for which a process may make no progress.
    pub hang: Duration,
}

/// The settings of `nvwal` from which the seed chooses one.
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
/// Settings under which `ppl` often merges pages, because the log of a page is full or space is short.
const PPL: [&str; 7] = [
    "",
    "overflow_bytes=0",
    "overflow_bytes=0&log_limit=33554432",
    "usual_bytes=1048576",
    "sector_bytes=8192&overflow_bytes=1024&background_checkpoint=1",
    "overflow_bytes=0&background_checkpoint=60",
    "cache_bytes=0&log_limit=33554432",
];
/// The settings of `scratchpad` from which the seed chooses. With some of them the region is full now and
/// then. With others the database's pages are in memory.
const SCRATCHPAD: [&str; 5] = [
    "",
    "home_sync=wt",
    "home_sync=wb&background_checkpoint=60",
    "scratchpad_bytes=8388608&background_checkpoint=on",
    "cache_bytes=0&home_sync=adaptive",
];
/// For each engine, the settings from which the seed chooses. An engine without an entry runs with its
/// defaults.
const CHOICES: [(&str, &[&str]); 4] =
    [("nvwal", &NVWAL), ("waldio", &WALDIO), ("ppl", &PPL), ("scratchpad", &SCRATCHPAD)];
/// The seed chooses one of these numbers for engines whose database file only SQLite's checkpoint writes.
/// SQLite then makes a checkpoint at this number of frames in the log.
const CHECKPOINT_FRAMES: [u32; 4] = [3, 8, 100, 1000];
/// The default of `Plan::longest_ms`.
const LONGEST_MS: u64 = 20;
/// SQLite's name for its write-ahead log.
pub(crate) const WAL: &str = "wal";
/// The journal modes in which a rollback journal survives a crash.
const ROLLBACK: [&str; 3] = ["delete", "truncate", "persist"];
const PAGES: [u32; 5] = [4096, 4096, 4096, 1024, 16384];

impl Plan {
    /// Returns a plan without special settings.
    #[must_use]
    pub fn new(engine: Engine, kills: u32, seed: u64) -> Self {
        Self {
            engine,
            kills,
            seed,
            writers: 3,
            concurrent: 0,
            checkpointers: 1,
            openers: 2,
            readers: 1,
            forkers: 0,
            onlookers: 0,
            users: 1,
            names: false,
            pauses: false,
            beside: false,
            autocheckpoint: None,
            longest_ms: LONGEST_MS,
            seconds: 0,
            log_bytes: 0,
            settings: String::new(),
            journal: WAL.to_owned(),
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

    /// Returns a plan in which the seed also chooses the settings and the number of processes of each role.
    #[must_use]
    pub fn varied(engine: Engine, kills: u32, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let own = CHOICES.iter().find(|(name, _)| *name == engine.name());
        let choices = own.map_or([""].as_slice(), |(_, choices)| choices);
        let settings = choices[rng.usize(..choices.len())];
        let mut plan = Self {
            settings: settings.to_owned(),
            page_bytes: PAGES[rng.usize(..PAGES.len())],
            writers: rng.u32(1..=5),
            checkpointers: rng.u32(0..=2),
            openers: rng.u32(1..=3),
            readers: rng.u32(0..=2),
            ..Self::new(engine, kills, seed)
        };
        if engine == Engine::PPL {
            plan.autocheckpoint = Some(CHECKPOINT_FRAMES[rng.usize(..CHECKPOINT_FRAMES.len())]);
        }
        if engine.keeps_rollback_journals() && rng.bool() {
            plan.journal = ROLLBACK[rng.usize(..ROLLBACK.len())].to_owned();
            // The journal of a large transaction does not fit in a small region.
            plan.settings = plan.settings.replace("scratchpad_bytes=8388608", "scratchpad_bytes=67108864");
            // In these modes readers and writers exclude each other, and no queue orders them. So a process
            // may have to wait for longer.
            (plan.busy_timeout, plan.hang) = (plan.busy_timeout * 8, plan.hang * 8);
        }
        plan
    }

    /// Returns a plan in which several processes write concurrently, and one process writes with the WRITE
    /// lock.
    #[must_use]
    pub fn concurrent(engine: Engine, kills: u32, seed: u64) -> Self {
        let usual = Self::new(engine, kills, seed);
        let concurrent = 3 + (seed % 3) as u32;
        Self {
            writers: 1,
            concurrent,
            checkpointers: 1,
            openers: 1,
            journal: usual.journal,
            busy_timeout: usual.busy_timeout,
            hang: usual.hang,
            ..Self::varied(engine, kills, seed)
        }
    }

    /// Parses `name=value` arguments. Reads `engine`, `kills` and `seed` first. The other values are as
    /// [`Plan::varied`] chooses, unless the arguments give them.
    ///
    /// # Errors
    /// An unknown name or value.
    pub fn parse<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let arguments = Arguments::new(arguments).map_err(Error::msg)?;
        let engine = arguments.get("engine").map_or(Ok(Engine::WALDIO), |name| engine_named(name, &[]));
        let engine = engine.map_err(Error::msg)?;
        let of = |name, default| arguments.get(name).unwrap_or(default);
        let (kills, seed) = (of("kills", "1000"), of("seed", "1"));
        let mut plan = Self::varied(
            engine,
            kills.parse().with_context(|| format!("kills={kills}"))?,
            seed.parse().with_context(|| format!("seed={seed}"))?,
        );
        arguments.each(|name, value| plan.set(name, value)).map_err(Error::msg)?;
        Ok(plan)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "engine" | "kills" | "seed" => {}
            "writers" => self.writers = value.parse()?,
            "concurrent" => self.concurrent = value.parse()?,
            "checkpointers" => self.checkpointers = value.parse()?,
            "openers" => self.openers = value.parse()?,
            "readers" => self.readers = value.parse()?,
            "forkers" => self.forkers = value.parse()?,
            "onlookers" => self.onlookers = value.parse()?,
            "users" => self.users = value.parse()?,
            "names" => self.names = value.parse()?,
            "pauses" => self.pauses = value.parse()?,
            "beside" => self.beside = value.parse()?,
            "autocheckpoint" => self.autocheckpoint = Some(value.parse()?),
            "longest_ms" => self.longest_ms = value.parse()?,
            "seconds" => self.seconds = value.parse()?,
            "log_bytes" => self.log_bytes = value.parse()?,
            "settings" => value.clone_into(&mut self.settings),
            "journal" => value.clone_into(&mut self.journal),
            "page_bytes" => self.page_bytes = value.parse()?,
            "directory" => self.directory = Some(value.into()),
            "log_directory" => self.log_directory = Some(value.into()),
            "acknowledge" => self.acknowledge = value.parse().map_err(Error::msg)?,
            "full_check_every" => self.full_check_every = value.parse()?,
            "allow_segments" => self.allow_segments = value.parse()?,
            "busy_ms" => self.busy_timeout = Duration::from_millis(value.parse()?),
            "hang_ms" => self.hang = Duration::from_millis(value.parse()?),
            _ => bail!("unknown name"),
        }
        Ok(())
    }

    /// Returns the roles of all processes.
    #[must_use]
    pub fn roles(&self) -> Vec<Role> {
        let counts = [
            (Role::Writer, self.writers),
            (Role::Concurrent, self.concurrent),
            (Role::Checkpointer, self.checkpointers),
            (Role::Opener, self.openers),
            (Role::Reader, self.readers),
            (Role::Forker, self.forkers),
            (Role::Onlooker, self.onlookers),
        ];
        counts.into_iter().flat_map(|(role, count)| (0..count).map(move |_| role)).collect()
    }

    /// Returns whether the settings allow acknowledged commits to be lost when all processes die.
    #[must_use]
    pub fn is_weak(&self) -> bool {
        self.settings
            .split('&')
            .any(|setting| setting.starts_with("group_synch=") && setting != "group_synch=0")
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "engine={} kills={} seed={} writers={} checkpointers={} openers={} readers={} 'settings={}' \
             page_bytes={} acknowledge={} full_check_every={} allow_segments={} busy_ms={} hang_ms={}",
            self.engine.name(),
            self.kills,
            self.seed,
            self.writers,
            self.checkpointers,
            self.openers,
            self.readers,
            self.settings,
            self.page_bytes,
            self.acknowledge,
            self.full_check_every,
            self.allow_segments,
            self.busy_timeout.as_millis(),
            self.hang.as_millis(),
        )?;
        let usual = Self::new(self.engine, self.kills, self.seed);
        for (name, value, usual) in [
            ("concurrent", u64::from(self.concurrent), u64::from(usual.concurrent)),
            ("forkers", u64::from(self.forkers), u64::from(usual.forkers)),
            ("onlookers", u64::from(self.onlookers), u64::from(usual.onlookers)),
            ("users", u64::from(self.users), u64::from(usual.users)),
            ("longest_ms", self.longest_ms, usual.longest_ms),
            ("seconds", self.seconds, usual.seconds),
            ("log_bytes", self.log_bytes, usual.log_bytes),
        ] {
            if value != usual {
                write!(f, " {name}={value}")?;
            }
        }
        if self.journal != WAL {
            write!(f, " journal={}", self.journal)?;
        }
        for (name, value) in [("names", self.names), ("pauses", self.pauses), ("beside", self.beside)] {
            if value {
                write!(f, " {name}=true")?;
            }
        }
        if let Some(pages) = self.autocheckpoint {
            write!(f, " autocheckpoint={pages}")?;
        }
        for (name, path) in [("directory", &self.directory), ("log_directory", &self.log_directory)] {
            if let Some(path) = path {
                write!(f, " '{name}={}'", path.display())?;
            }
        }
        Ok(())
    }
}
