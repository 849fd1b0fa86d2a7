//! The explorer. It lets the real code recover the crash states of every window of a recording.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use duralite_crashmodel::window;
use duralite_format::guard::{self, DatabaseHeader};

use crate::event::{Event, FileKind, Recording};
use crate::failure::Violation;
use crate::many_transactions::TABLES;
use crate::model::{Contents, Model, sample, states_of};
use crate::oracle::{self, Depth};
use crate::recorder::Recorder;
use crate::setup::{Engine, Setup};
use crate::stage::Stage;
use crate::transactions::Reference;
use crate::workers::{self, Verdict};
use crate::workload::{self, Bounds, Length, Run};

/// A window with at most this many lines, sectors, sizes and names in doubt is explored exhaustively.
const EXHAUSTIVE_LINES: usize = 12;
/// Like [`EXHAUSTIVE_LINES`], but for connections that write concurrently. The limit is small: in the same
/// time, a few states of many windows show more bugs than all states of a few windows. (The pieces in doubt
/// are of the same kinds as with one writer.)
const EXHAUSTIVE_LINES_OF_MANY: usize = 4;
/// If connections write concurrently, the explorer explores only one out of this many windows.
const SPREAD: u8 = 3;
/// The explorer does more with some states than recover them once. It recovers one out of `TWICE_EVERY`
/// states twice. It commits another transaction on one out of `USE_ON_EVERY` states. For one out of
/// `CRASH_AGAIN_EVERY` states it also simulates crashes during the recovery.
const TWICE_EVERY: u64 = 4;
const USE_ON_EVERY: u64 = 24;
const CRASH_AGAIN_EVERY: u64 = 128;
/// For one out of this many states, the explorer first kills every process. Other processes then recover what
/// the dead processes left, and commit. Only after that does the power fail.
const DIE_EVERY: u64 = 192;

/// The extent of an exploration.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The engine.
    pub engine: Engine,
    /// The first run's seed. The next runs use the next seeds.
    pub seed: u64,
    /// The exploration stops after it has recovered this many states.
    pub states: u64,
    /// The length of a run.
    pub length: Length,
    /// The number of states to build from a window that is too large to be explored exhaustively.
    pub window_states: usize,
    /// Whether connections write concurrently.
    pub concurrent: bool,
}

/// The extent of what was explored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number of runs recorded.
    pub runs: u64,
    /// The number of windows between two barriers.
    pub windows: u64,
    /// The number of windows that were explored exhaustively: every state of the window was recovered.
    pub exhaustive: u64,
    /// The number of states recovered.
    pub states: u64,
    /// The number of states that a crash during recovery left.
    pub during_recovery: u64,
    /// The number of states that a power failure left after every process had died. Before the power failure,
    /// other processes recovered the database and committed.
    pub after_death: u64,
    /// The number of states that were recovered twice.
    pub twice: u64,
    /// The number of states on which the test committed another transaction after recovery.
    pub used_on: u64,
    /// The number of transactions that passed validation and committed although other transactions had
    /// committed since they began.
    pub merged: u64,
    /// The number of transactions that were overtaken, and ran again.
    pub overtaken: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.runs += other.runs;
        self.windows += other.windows;
        self.exhaustive += other.exhaustive;
        self.states += other.states;
        self.during_recovery += other.during_recovery;
        self.after_death += other.after_death;
        self.twice += other.twice;
        self.used_on += other.used_on;
        self.merged += other.merged;
        self.overtaken += other.overtaken;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { runs, windows, exhaustive, states, during_recovery, after_death, twice, used_on, .. } =
            self;
        write!(
            f,
            "{states} states of {windows} windows ({exhaustive} exhaustively) in {runs} runs; \
             {during_recovery} of a crash during recovery, {after_death} after the death of processes, \
             {twice} recovered twice, {used_on} used on"
        )?;
        match self {
            Self { merged: 0, overtaken: 0, .. } => Ok(()),
            Self { merged, overtaken, .. } => {
                write!(f, "; {merged} transactions committed on top of others, {overtaken} overtaken")
            }
        }
    }
}

/// Explores runs on every processor until `plan.states` states have been recovered.
///
/// # Errors
/// The outer error says why the test could not run. The inner error is a state that the oracle rejects.
pub fn explore(plan: &Plan) -> Verdict<Tally> {
    explore_counting(plan, &AtomicU64::new(0))
}

/// Explores as [`explore`] does. When a run has been explored, adds the number of its states to `states`.
///
/// # Errors
/// The errors of [`explore`].
pub fn explore_counting(plan: &Plan, states: &AtomicU64) -> Verdict<Tally> {
    let next = AtomicU64::new(plan.seed);
    let each = Plan { states: plan.states.div_ceil(workers::count()), ..*plan };
    workers::on_each(|| explore_runs(&each, &next, states))
}

fn explore_runs(plan: &Plan, next: &AtomicU64, states: &AtomicU64) -> Verdict<Tally> {
    let mut tally = Tally::default();
    while tally.states < plan.states {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        let setup = Setup::for_writers(plan.engine, seed, plan.concurrent);
        let stage = Stage::new(setup.beside)?;
        let run = workload::record(&stage, &setup, seed, plan.length, false)
            .with_context(|| format!("the workload of seed {seed} with {}", setup.settings))?;
        tally.runs += 1;
        tally.merged += u64::from(run.overlaps.merged);
        tally.overtaken += u64::from(run.overlaps.overtaken);
        let explorer = Explorer::new(stage, setup, seed, &run)?;
        let (exhaustive_lines, near) = if plan.concurrent {
            (EXHAUSTIVE_LINES_OF_MANY, Some(spread(&run.recording, seed)))
        } else {
            (EXHAUSTIVE_LINES, None)
        };
        let (states_left, window_states) = (plan.states - tally.states, plan.window_states);
        let limits = Limits { states: states_left, window_states, exhaustive_lines, near };
        let before = tally.states;
        match explorer.run(&run.recording, &limits, &mut tally)? {
            None => states.fetch_add(tally.states - before, Ordering::Relaxed),
            Some(violation) => return Ok(Err(violation)),
        };
    }
    Ok(Ok(tally))
}

/// Chooses some of the barriers after the creation of the tables, spread over the rest of the run.
fn spread(recording: &Recording, seed: u64) -> BTreeSet<usize> {
    let mut random = fastrand::Rng::with_seed(seed);
    let has_tables = |event: &Event| matches!(event, Event::Begin { number } if *number > TABLES);
    let from = recording.events.iter().position(has_tables).unwrap_or(0);
    let behind = recording.events.iter().enumerate().skip(from);
    let barriers = behind.filter(|(_, event)| Model::is_barrier(event)).map(|(position, _)| position);
    barriers.filter(|_| random.u8(..SPREAD) == 0).collect()
}

/// The limits of an exploration.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The largest number of states in total.
    pub states: u64,
    /// The largest number of states of a window that is not explored exhaustively.
    pub window_states: usize,
    /// A window with at most this many lines or other pieces in doubt is explored exhaustively.
    pub exhaustive_lines: usize,
    /// If set, only windows that end at these events are explored.
    pub near: Option<BTreeSet<usize>>,
}

/// Explores one run. Sets up the crash states in the directories in which the workload ran.
pub struct Explorer {
    stage: Stage,
    setup: Setup,
    seed: u64,
    reference: Reference,
}

impl Explorer {
    /// Makes an explorer of a run.
    ///
    /// # Errors
    /// An error of SQLite.
    pub fn new(stage: Stage, setup: Setup, seed: u64, run: &Run) -> Result<Self> {
        // After recovery, the oracle commits transactions that the run has not begun. The reference needs
        // these too.
        let reference = Reference::new(&setup, seed, run.begun + 3)?;
        Ok(Self { stage, setup, seed, reference })
    }

    /// Explores a recording; returns the first violation.
    ///
    /// # Errors
    /// An error that says why the test could not run.
    pub fn run(
        &self,
        recording: &Recording,
        limits: &Limits,
        tally: &mut Tally,
    ) -> Result<Option<Box<Violation>>> {
        let mut model = Model::new(recording, &self.stage.home());
        let mut bounds = Bounds::default();
        let mut changed = false;
        let end = tally.states.saturating_add(limits.states);
        let wanted = |position: usize| limits.near.as_ref().is_none_or(|near| near.contains(&position));
        for (position, event) in recording.events.iter().enumerate() {
            if Model::is_barrier(event) && changed && wanted(position) {
                if let Some(violation) = self.window(&model, bounds, position, limits, tally)? {
                    return Ok(Some(violation));
                }
                // A sync of the database makes changes of the guard durable. The guard appears before the
                // first commit, and goes away when the log is no longer needed. So kill every process at each
                // of these syncs.
                if self.is_of_database(recording, event)
                    && let Some(violation) = self.die(&model, bounds, position, tally)?
                {
                    return Ok(Some(violation));
                }
                if tally.states >= end {
                    return Ok(None);
                }
                changed = false;
            }
            model.apply(event);
            bounds.apply(event);
            changed |= !matches!(event, Event::Flush { .. } | Event::Begin { .. });
        }
        self.window(&model, bounds, recording.events.len(), limits, tally)
    }

    fn is_of_database(&self, recording: &Recording, event: &Event) -> bool {
        let Event::Sync { file, .. } = event else { return false };
        recording.files.get(file.0 as usize).is_some_and(|file| file.path == self.stage.database())
    }

    /// Recovers the states that a crash may leave at this point.
    fn window(
        &self,
        model: &Model,
        bounds: Bounds,
        position: usize,
        limits: &Limits,
        tally: &mut Tally,
    ) -> Result<Option<Box<Violation>>> {
        let choices = model.choices();
        let limits =
            window::Bounds { states: limits.window_states, exhaustive_pieces: limits.exhaustive_lines };
        let (vectors, exhaustive) = window::pick(&states_of(&choices), limits, self.seed ^ position as u64);
        tally.windows += 1;
        tally.exhaustive += u64::from(exhaustive);
        for chosen in vectors {
            let contents = model.crash(&choices, &chosen);
            let nth = tally.states;
            tally.states += 1;
            let depth = match nth {
                nth if nth.is_multiple_of(USE_ON_EVERY) => Depth::UseOn,
                nth if nth.is_multiple_of(TWICE_EVERY) => Depth::Recover,
                _ => Depth::Once,
            };
            tally.twice += u64::from(depth != Depth::Once);
            tally.used_on += u64::from(depth == Depth::UseOn);
            if let Some(violation) = self.state(&contents, bounds, position, depth)? {
                return Ok(Some(violation));
            }
            if nth.is_multiple_of(DIE_EVERY)
                && let Some(violation) = self.die(model, bounds, position, tally)?
            {
                return Ok(Some(violation));
            }
            if nth.is_multiple_of(CRASH_AGAIN_EVERY)
                && let Some(violation) = self.crash_again(&contents, bounds, position, tally)?
            {
                return Ok(Some(violation));
            }
        }
        Ok(None)
    }

    fn state(
        &self,
        contents: &Contents,
        bounds: Bounds,
        position: usize,
        depth: Depth,
    ) -> Result<Option<Box<Violation>>> {
        self.stage.set(contents)?;
        match oracle::check(&self.stage, &self.setup, &self.reference, bounds, depth) {
            Ok(_) => Ok(None),
            Err(what) => Ok(Some(self.violation(what, bounds, position, contents))),
        }
    }

    fn violation(
        &self,
        what: String,
        bounds: Bounds,
        position: usize,
        contents: &Contents,
    ) -> Box<Violation> {
        let contents = self.stage.relative(contents);
        let (setup, seed) = (self.setup.clone(), self.seed);
        Box::new(Violation { what, setup, seed, position, bounds, contents, disk: None })
    }

    /// Recovers a state and records what the recovery does. Then explores the states that a crash during this
    /// recovery could leave.
    fn crash_again(
        &self,
        contents: &Contents,
        bounds: Bounds,
        position: usize,
        tally: &mut Tally,
    ) -> Result<Option<Box<Violation>>> {
        self.stage.set(contents)?;
        let recorder = Arc::new(Recorder::default());
        for (path, content) in contents {
            if let Some(content) = content {
                recorder.begin_with(path, FileKind::of(content), content.clone());
            }
        }
        // With `Depth::Close` the recording also includes the checkpoint that the last connection makes when
        // it closes.
        let recovered = workload::under_hook(&self.stage, &recorder, || {
            oracle::check(&self.stage, &self.setup, &self.reference, bounds, Depth::Close)
        });
        if recovered.is_err() {
            return Ok(None);
        }
        let recording = recorder.finish();
        let before = tally.states;
        let violation = self.sampled(&recording, bounds, position, tally)?;
        tally.during_recovery += tally.states - before;
        Ok(violation)
    }

    /// Kills every process at this point. Then other processes recover the database and commit, and only
    /// after that does the power fail. If the database has no guard at this point, a second try uses stock
    /// SQLite for these other processes.
    fn die(
        &self,
        model: &Model,
        bounds: Bounds,
        position: usize,
        tally: &mut Tally,
    ) -> Result<Option<Box<Violation>>> {
        let (contents, _) = model.survive();
        let header = contents.iter().find(|(path, _)| *path == self.stage.database());
        let header = header.and_then(|(_, content)| content.as_deref()).unwrap_or_default();
        let is_plain = matches!(guard::inspect(header), DatabaseHeader::Plain { .. });
        let stock = Setup { engine: Engine::Stock, ..self.setup.clone() };
        for others in [&self.setup].into_iter().chain(is_plain.then_some(&stock)) {
            if let Some(violation) = self.die_before(others, model, bounds, position, tally)? {
                return Ok(Some(violation));
            }
        }
        Ok(None)
    }

    fn die_before(
        &self,
        others: &Setup,
        model: &Model,
        bounds: Bounds,
        position: usize,
        tally: &mut Tally,
    ) -> Result<Option<Box<Violation>>> {
        let (contents, residue) = model.survive();
        self.stage.set(&contents)?;
        let recorder = Arc::new(Recorder::continuing(residue));
        let went_on = workload::under_hook(&self.stage, &recorder, || {
            let note = |event| recorder.note(event);
            oracle::go_on(&self.stage, others, &self.reference, bounds, &note)
        });
        if let Err(what) = went_on {
            let what = format!("after the death of every process: {what}");
            return Ok(Some(self.violation(what, bounds, position, &contents)));
        }
        let before = tally.states;
        let violation = self.sampled(&recorder.finish(), bounds, position, tally)?;
        tally.after_death += tally.states - before;
        Ok(violation)
    }

    /// Recovers some crash states from each window of a short recording.
    fn sampled(
        &self,
        recording: &Recording,
        mut bounds: Bounds,
        position: usize,
        tally: &mut Tally,
    ) -> Result<Option<Box<Violation>>> {
        let mut model = Model::new(recording, &self.stage.home());
        let mut random = fastrand::Rng::with_seed(self.seed ^ tally.states);
        let end = [None];
        for event in recording.events.iter().map(Some).chain(end) {
            if event.is_none_or(Model::is_barrier) {
                let choices = model.choices();
                let nothing = vec![0; choices.len()];
                for chosen in [nothing, sample(&choices, &mut random)] {
                    let left = model.crash(&choices, &chosen);
                    tally.states += 1;
                    if let Some(violation) = self.state(&left, bounds, position, Depth::Once)? {
                        return Ok(Some(violation));
                    }
                }
            }
            if let Some(event) = event {
                model.apply(event);
                bounds.apply(event);
            }
        }
        Ok(None)
    }
}
