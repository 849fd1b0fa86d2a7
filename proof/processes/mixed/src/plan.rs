//! The plan of a round.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Context as _, Error, Result, bail};
use duralite_testkit::{Acknowledge, Arguments, Engine};

/// The plan of a round. Its text has `name=value` pairs, separated by spaces, and [`Plan::parse`] reads it.
/// The seed decides everything except the kernel's scheduling of the processes.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The engine of Duralite's logs; `None` in the control, where all processes use stock SQLite.
    pub engine: Option<Engine>,
    /// The seed of all random decisions.
    pub seed: u64,
    /// The length of a round in milliseconds.
    pub millis: u64,
    /// The number of processes that use Duralite.
    pub ours: u32,
    /// The number of processes that use stock SQLite.
    pub stock: u32,
    /// The number of threads in each process.
    pub threads: u32,
    /// Whether every second thread of a Duralite process uses stock SQLite.
    pub both: bool,
    /// Whether the round kills processes.
    pub kills: bool,
    /// Whether the round stops processes for a while and then lets them continue.
    pub stops: bool,
    /// Whether connections change the journal mode at any time.
    pub modes: bool,
    /// The longest time between two kills or stops, in milliseconds.
    pub longest_ms: u64,
    /// One of this many connections has `locking_mode=EXCLUSIVE`; 0 for none.
    pub exclusive: u32,
    /// Whether some connections are read-only.
    pub onlookers: bool,
    /// Whether some connections attach the second database and commit in both.
    pub second: bool,
    /// Whether threads vacuum the databases.
    pub vacuum: bool,
    /// The length of a time slice in milliseconds. In some slices one of the two sides mostly stays away from
    /// the databases.
    pub slice_ms: u64,
    /// Additional URI parameters of Duralite.
    pub settings: String,
    /// The page size of the databases, in bytes.
    pub page_bytes: u32,
    /// The directory in which the round makes the directory of the databases; `None` for the directory of
    /// temporary files.
    pub directory: Option<PathBuf>,
    /// When a writer records a transaction as acknowledged: before or after its `COMMIT`.
    pub acknowledge: Acknowledge,
}

/// The value that stands for the engine in a plan of the control.
const CONTROL: &str = "stock";
/// The settings of `nvwal` from which the seed chooses.
const NVWAL: [&str; 4] = ["", "", "sync=eager", "cache_bytes=0"];
const WALDIO: [&str; 4] = ["", "", "layout=embedded", "background_checkpoint=60"];
const PPL: [&str; 4] = ["", "usual_bytes=1", "overflow_bytes=0", "background_checkpoint=1"];
const SCRATCHPAD: [&str; 3] = ["", "", "home_sync=wt"];
/// For each engine, the settings from which the seed chooses.
const CHOICES: [(&str, &[&str]); 4] =
    [("nvwal", &NVWAL), ("waldio", &WALDIO), ("ppl", &PPL), ("scratchpad", &SCRATCHPAD)];

impl Plan {
    /// Returns a plan in which the seed chooses the processes and their behaviour.
    #[must_use]
    pub fn varied(engine: Option<Engine>, seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let name = engine.map_or(CONTROL, Engine::name);
        let choices =
            CHOICES.iter().find(|(of, _)| *of == name).map_or([""].as_slice(), |(_, choices)| choices);
        let mut plan = Self {
            engine,
            seed,
            millis: 1500,
            ours: rng.u32(1..=2),
            stock: rng.u32(1..=2),
            threads: rng.u32(1..=3),
            both: engine.is_some() && rng.u32(..4) == 0,
            // Rounds with only kills find other losses than rounds with only stops. So the seed decides about
            // the two independently.
            kills: rng.u32(..3) > 0,
            stops: rng.u32(..3) == 0,
            modes: rng.u32(..8) > 0,
            longest_ms: [40, 100, 250][rng.usize(..3)],
            exclusive: [0, 2, 6][rng.usize(..3)],
            onlookers: rng.u32(..3) > 0,
            second: rng.bool(),
            vacuum: rng.bool(),
            slice_ms: rng.u64(10..120),
            settings: choices[rng.usize(..choices.len())].to_owned(),
            page_bytes: [4096, 4096, 1024][rng.usize(..3)],
            directory: None,
            acknowledge: Acknowledge::AfterCommit,
        };
        if engine.is_none() {
            (plan.ours, plan.stock) = (0, plan.ours + plan.stock);
        }
        plan
    }

    /// Parses `name=value` arguments. If a value is missing, uses the one that [`Plan::varied`] chooses for
    /// `engine` and `seed`.
    ///
    /// # Errors
    /// An unknown name, or a wrong value.
    pub fn parse<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let arguments = Arguments::new(arguments).map_err(Error::msg)?;
        let engine = engine_named(arguments.get("engine").unwrap_or("nvwal"))?;
        let seed = arguments.get("seed").unwrap_or("1");
        let mut plan = Self::varied(engine, seed.parse().with_context(|| format!("seed={seed}"))?);
        arguments.each(|name, value| plan.set(name, value)).map_err(Error::msg)?;
        Ok(plan)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            "engine" | "seed" => {}
            "millis" => self.millis = value.parse()?,
            "ours" => self.ours = value.parse()?,
            "stock" => self.stock = value.parse()?,
            "threads" => self.threads = value.parse()?,
            "both" => self.both = value.parse()?,
            "kills" => self.kills = value.parse()?,
            "stops" => self.stops = value.parse()?,
            "modes" => self.modes = value.parse()?,
            "longest_ms" => self.longest_ms = value.parse()?,
            "exclusive" => self.exclusive = value.parse()?,
            "onlookers" => self.onlookers = value.parse()?,
            "second" => self.second = value.parse()?,
            "vacuum" => self.vacuum = value.parse()?,
            "slice_ms" => self.slice_ms = value.parse()?,
            "settings" => value.clone_into(&mut self.settings),
            "page_bytes" => self.page_bytes = value.parse()?,
            "directory" => self.directory = Some(value.into()),
            "acknowledge" => self.acknowledge = value.parse().map_err(Error::msg)?,
            _ => bail!("unknown name"),
        }
        Ok(())
    }

    /// Returns the name of the engine, or of the control.
    #[must_use]
    pub fn engine_name(&self) -> &'static str {
        self.engine.map_or(CONTROL, Engine::name)
    }

    /// Returns the plan as arguments of a process.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("engine={}", self.engine_name()),
            format!("seed={}", self.seed),
            format!("millis={}", self.millis),
            format!("ours={}", self.ours),
            format!("stock={}", self.stock),
            format!("threads={}", self.threads),
            format!("both={}", self.both),
            format!("kills={}", self.kills),
            format!("stops={}", self.stops),
            format!("modes={}", self.modes),
            format!("longest_ms={}", self.longest_ms),
            format!("exclusive={}", self.exclusive),
            format!("onlookers={}", self.onlookers),
            format!("second={}", self.second),
            format!("vacuum={}", self.vacuum),
            format!("slice_ms={}", self.slice_ms),
            format!("settings={}", self.settings),
            format!("page_bytes={}", self.page_bytes),
            format!("acknowledge={}", self.acknowledge),
        ];
        arguments.extend(self.directory.iter().map(|path| format!("directory={}", path.display())));
        arguments
    }
}

fn engine_named(name: &str) -> Result<Option<Engine>> {
    if name == CONTROL {
        return Ok(None);
    }
    duralite_testkit::engine_named(name, &[CONTROL]).map(Some).map_err(Error::msg)
}

impl fmt::Display for Plan {
    /// Writes the plan as arguments for a shell.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted: Vec<String> = self
            .arguments()
            .into_iter()
            .map(|argument| if argument.contains(['&', ' ']) { format!("'{argument}'") } else { argument })
            .collect();
        f.write_str(&quoted.join(" "))
    }
}
