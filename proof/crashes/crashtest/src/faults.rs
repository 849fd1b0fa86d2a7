//! Makes the n-th call fail, for every n: device errors, lack of space, short writes, failed syncs, failed
//! mappings, and refused memory allocations of SQLite.
//!
//! Each fault must end in an error that SQLite reports, without a panic. A connection that continues to read
//! must see a prefix of the commits. After the connections are closed and opened again, everything that was
//! acknowledged must be there. The same must hold if the power fails instead.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::AddAssign;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use duralite_format::guard::{JournalKind, VERSIONS};

use crate::event::{Event, FileId, FileKind, Recording};
use crate::failure::Violation;
use crate::hooks::heap;
use crate::model::{Contents, Model, sample};
use crate::oracle::{self, Depth};
use crate::recorder::{Call, Fault, Recorder};
use crate::setup::{Engine, Setup};
use crate::sql;
use crate::stage::Stage;
use crate::transactions::Reference;
use crate::workers::{self, Verdict};
use crate::workload::{self, Bounds, Length, Script};

/// How much to test.
#[derive(Clone, Copy, Debug)]
pub struct FaultPlan {
    /// The engine.
    pub engine: Engine,
    /// The workload's seed.
    pub seed: u64,
    /// Its steps.
    pub length: Length,
    /// One of this many calls fails, each in a run of its own.
    pub every: u64,
    /// One of this many memory allocations fails, each in a run of its own.
    pub every_allocation: u64,
    /// Crash states that are checked after each fault.
    pub crashes: usize,
}

/// What has been tested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultTally {
    /// The number of faults, by the kind of call that failed.
    pub faults: BTreeMap<String, u64>,
    /// Faults that SQLite reported to the application.
    pub told: u64,
    /// Faults without an error: a second try succeeded, or nothing depended on the call.
    pub absorbed: u64,
    /// Crash states after faults that were recovered.
    pub crashes: u64,
}

impl FaultTally {
    /// Number of faults.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.faults.values().sum()
    }
}

impl AddAssign for FaultTally {
    fn add_assign(&mut self, other: Self) {
        for (what, count) in other.faults {
            *self.faults.entry(what).or_default() += count;
        }
        self.told += other.told;
        self.absorbed += other.absorbed;
        self.crashes += other.crashes;
    }
}

impl fmt::Display for FaultTally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<_> = self.faults.iter().map(|(what, count)| format!("{count} {what}")).collect();
        let Self { told, absorbed, crashes, .. } = self;
        let total = self.total();
        write!(
            f,
            "{total} faults ({}), {told} told, {absorbed} made good; {crashes} crash states behind them",
            kinds.join(", ")
        )
    }
}

/// The call or allocation that is to fail.
#[derive(Clone, Copy, Debug)]
enum Which {
    Call(Fault),
    Allocation(u64),
}

/// Makes every call of a workload fail in turn, on every processor.
///
/// # Errors
/// What could not be run at all. The inner error is a fault that breaks a promise.
pub fn inject(plan: &FaultPlan) -> Verdict<FaultTally> {
    inject_into(plan, |plain| {
        let mut all: Vec<Which> = Vec::new();
        for nth in (0..plain.calls).step_by(plan.every.max(1) as usize) {
            // Code that tries again fails a second time; with the last value it fails however often it tries.
            let times = [1, 2, u64::MAX][(nth % 3) as usize];
            all.push(Which::Call(Fault { nth, times }));
        }
        let allocations = (0..plain.allocations).step_by(plan.every_allocation.max(1) as usize);
        all.extend(allocations.map(Which::Allocation));
        all
    })
}

/// Makes each sync fail that makes the lifted guard durable, after which the database names no log.
///
/// # Errors
/// As [`inject`]. Also fails if the workload has no such sync.
pub fn inject_where_the_guard_is_lifted(plan: &FaultPlan) -> Verdict<FaultTally> {
    inject_into(plan, |plain| {
        let fail = |nth: &u64| [1, 2, u64::MAX].map(|times| Which::Call(Fault { nth: *nth, times }));
        plain.lifts.iter().flat_map(fail).collect()
    })
}

fn inject_into(plan: &FaultPlan, choose: impl Fn(&Plain) -> Vec<Which>) -> Verdict<FaultTally> {
    let mut sum = FaultTally::default();
    // The write-ahead log, and one of the rollback journals.
    let setups = Setup::for_each_mode(plan.engine, plan.seed);
    let rollback = 1 + (plan.seed % 3) as usize;
    for setup in
        setups.into_iter().enumerate().filter(|(nth, _)| [0, rollback].contains(nth)).map(|(_, setup)| setup)
    {
        match inject_with(plan, &Setup { threads: 1, ..setup }, &choose)? {
            Ok(tally) => sum += tally,
            Err(violation) => return Ok(Err(violation)),
        }
    }
    Ok(Ok(sum))
}

fn inject_with(
    plan: &FaultPlan,
    setup: &Setup,
    choose: &impl Fn(&Plain) -> Vec<Which>,
) -> Verdict<FaultTally> {
    let plain = Plain::run(plan, setup)?;
    let reference = Reference::new(plan.seed, plain.begun + 3)?;
    let all = choose(&plain);
    anyhow::ensure!(!all.is_empty(), "the workload has no such call");
    let next = AtomicU64::new(0);
    workers::on_each(|| {
        let mut tally = FaultTally::default();
        while let Some(which) = all.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            if let Some(violation) = one(plan, setup, &reference, *which, &mut tally)? {
                return Ok(Err(violation));
            }
        }
        Ok(Ok(tally))
    })
}

/// A run without faults.
struct Plain {
    calls: u64,
    /// Memory allocations.
    allocations: u64,
    /// The calls that sync a database's header after the guard has been lifted.
    lifts: Vec<u64>,
    /// Transactions.
    begun: u32,
}

impl Plain {
    fn run(plan: &FaultPlan, setup: &Setup) -> Result<Self> {
        let stage = Stage::new(setup.beside)?;
        let recorder = recorder_of(&stage, setup)?;
        recorder.set_fault(None);
        heap::refuse(None);
        let begun = workload::under_hook(&stage, &recorder, || {
            Script::new(&stage, setup, plan.seed, &recorder)?.run(plan.length)
        })
        .context("the workload without faults")?;
        let (calls, allocations) = (recorder.calls(), heap::asked());
        let numbers = recorder.calls_of_events();
        let lifts = lifts(&recorder.finish(), &stage.database());
        let lifts = lifts.into_iter().filter_map(|event| numbers.get(event).copied()).collect();
        Ok(Self { calls, allocations, lifts, begun })
    }
}

/// The events that make the lifting of the database's guard durable.
fn lifts(recording: &Recording, database: &Path) -> Vec<usize> {
    let is_database = |file: &FileId| recording.files[file.0 as usize].path == database;
    let (mut guarded, mut lifted) = (false, false);
    let mut found = Vec::new();
    for (nth, event) in recording.events.iter().enumerate() {
        match event {
            Event::Write { file, at: 0, bytes } if is_database(file) && bytes.len() >= VERSIONS.end => {
                let guards = JournalKind::of_guard(&bytes[VERSIONS]) == Some(JournalKind::Wal);
                lifted = (lifted || guarded) && !guards;
                guarded = guards;
            }
            Event::Sync { file, .. } if is_database(file) && std::mem::take(&mut lifted) => found.push(nth),
            _ => {}
        }
    }
    found
}

/// A recorder for a stage whose database is already in WAL mode: how SQLite handles a failing device with its
/// own rollback journal is not tested here.
pub(crate) fn recorder_of(stage: &Stage, setup: &Setup) -> Result<Arc<Recorder>> {
    let plain = Setup { engine: Engine::Stock, ..setup.clone() };
    let conn = stage.connect(&plain)?;
    sql::use_mode(&conn, sql::WAL)?;
    conn.close().map_err(|(_, error)| error)?;
    let recorder = Arc::new(Recorder::default());
    recorder.begin_with(&stage.database(), FileKind::Sectors, std::fs::read(stage.database())?);
    Ok(recorder)
}

fn one(
    plan: &FaultPlan,
    setup: &Setup,
    reference: &Reference,
    which: Which,
    tally: &mut FaultTally,
) -> Result<Option<Box<Violation>>> {
    let stage = Stage::new(setup.beside)?;
    let recorder = recorder_of(&stage, setup)?;
    let panics = panics::count();
    match which {
        Which::Call(fault) => recorder.set_fault(Some(fault)),
        Which::Allocation(nth) => heap::refuse(Some(nth)),
    }
    let mut bounds = Bounds::default();
    let ended = workload::under_hook(&stage, &recorder, || {
        let mut script = Script::new(&stage, setup, plan.seed, &recorder)?;
        let ended = script.all_steps(plan.length);
        bounds =
            Bounds { acknowledged: if setup.waits { script.committed() } else { 0 }, begun: script.begun() };
        if ended.is_err() {
            // A connection that reads on without being opened again sees a prefix, or gets an error.
            script.look_on(reference)?;
        }
        ended
    });
    let what_failed = match which {
        Which::Call(_) => recorder.injected().map(|(call, _)| name_of(call)),
        Which::Allocation(_) => Some("requests of memory"),
    };
    heap::refuse(None);
    recorder.set_fault(None);
    *tally.faults.entry(what_failed.unwrap_or("calls that did not come").to_owned()).or_default() += 1;
    let broken = |what: String, bounds, position, contents: &Contents| {
        let what = format!("{which:?} ({}): {what}", what_failed.unwrap_or("nothing"));
        let (setup, seed) = (setup.clone(), plan.seed);
        let contents = stage.relative(contents);
        Ok(Some(Box::new(Violation { what, setup, seed, position, bounds, contents, disk: None })))
    };
    match ended {
        Ok(()) => tally.absorbed += 1,
        Err(error) => match error.downcast_ref::<rusqlite::Error>() {
            Some(_) => tally.told += 1,
            None => return broken(format!("{error:#}"), bounds, 0, &Contents::new()),
        },
    }
    if panics::count() > panics {
        return broken("something panicked".into(), bounds, 0, &Contents::new());
    }
    // The application ends and starts again, and now nothing fails.
    if let Err(what) = oracle::check(&stage, setup, reference, bounds, Depth::UseOn) {
        return broken(format!("after it was opened again: {what}"), bounds, 0, &Contents::new());
    }
    match lose_power(plan, setup, reference, which, &stage, &recorder, tally)? {
        Some((what, bounds, at, left)) => broken(what, bounds, at, &left),
        None => Ok(None),
    }
}

/// Makes the power fail instead, some time after the fault. Returns what is wrong, the bounds and the
/// position of the power failure, and the state that it left.
fn lose_power(
    plan: &FaultPlan,
    setup: &Setup,
    reference: &Reference,
    which: Which,
    stage: &Stage,
    recorder: &Recorder,
    tally: &mut FaultTally,
) -> Result<Option<(String, Bounds, usize, Contents)>> {
    let first = recorder.events_at_fault();
    let recording = recorder.finish();
    let nth = match which {
        Which::Call(fault) => fault.nth,
        Which::Allocation(nth) => nth << 32,
    };
    let mut random = fastrand::Rng::with_seed(plan.seed ^ nth);
    for _ in 0..plan.crashes {
        let at = random.usize(first..=recording.events.len());
        let mut model = Model::new(&recording, &stage.home());
        let mut bounds = Bounds::default();
        for event in &recording.events[..at] {
            model.apply(event);
            bounds.apply(event);
        }
        let choices = model.choices();
        let left = model.crash(&choices, &sample(&choices, &mut random));
        stage.set(&left)?;
        tally.crashes += 1;
        if let Err(what) = oracle::check(stage, setup, reference, bounds, Depth::Recover) {
            return Ok(Some((format!("after a crash at event {at}: {what}"), bounds, at, left)));
        }
    }
    Ok(None)
}

fn name_of(call: Call) -> &'static str {
    match call {
        Call::Read => "reads",
        Call::Write => "writes",
        Call::Sync => "syncs",
        Call::Allocate => "allocations of space",
        Call::Name => "openings and deletions",
        Call::Map => "mappings",
    }
}

/// Counts panics anywhere in the process, also those that are caught before they reach C.
mod panics {
    use std::sync::Once;
    use std::sync::atomic::{AtomicU64, Ordering};

    static PANICS: AtomicU64 = AtomicU64::new(0);
    static HOOK: Once = Once::new();

    pub fn count() -> u64 {
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                PANICS.fetch_add(1, Ordering::Relaxed);
                before(info);
            }));
        });
        PANICS.load(Ordering::Relaxed)
    }
}
