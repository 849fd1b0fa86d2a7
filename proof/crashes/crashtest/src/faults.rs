//! Makes the n-th call fail, for every n: device errors, lack of space, short writes, failed syncs, failed
//! mappings, and refused memory allocations of SQLite.
//!
//! Each fault must end in an error that SQLite reports, without a panic. A connection that continues to read
//! must see a prefix of the commits. After the connections are closed and opened again, everything that was
//! acknowledged must be there. The same must hold if the power fails instead.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use duralite_format::guard::{JournalKind, VERSIONS};

use crate::event::{Event, FileId, Recording};
use crate::failure::Violation;
use crate::fault::{FaultPlan, FaultTally, Which, panics, recorder_of};
use crate::faults_of_many;
use crate::hooks::heap;
use crate::model::{Contents, Model, sample};
use crate::oracle::{self, Depth};
use crate::recorder::{Fault, Recorder};
use crate::setup::Setup;
use crate::stage::Stage;
use crate::transactions::Reference;
use crate::workers::{self, Verdict};
use crate::workload::{self, Bounds, Script};

/// Makes every call of a workload fail in turn, using every processor.
///
/// # Errors
/// The outer error says why the test could not run. The inner error is a fault that breaks a promise.
pub fn inject(plan: &FaultPlan) -> Verdict<FaultTally> {
    inject_into(plan, |plain| {
        let mut all: Vec<Which> = Vec::new();
        for nth in (0..plain.calls).step_by(plan.every.max(1) as usize) {
            // If a caller repeats the failed call, 2 makes its second attempt fail too, and `u64::MAX` makes
            // every attempt fail.
            let times = [1, 2, u64::MAX][(nth % 3) as usize];
            all.push(Which::Call(Fault { nth, times }));
        }
        let allocations = (0..plain.allocations).step_by(plan.every_allocation.max(1) as usize);
        all.extend(allocations.map(Which::Allocation));
        all
    })
}

/// Tests the syncs of the database's header that follow the removal of the guard. Makes each of them fail, in
/// separate runs. Once such a sync succeeds, the database on the disk names no log.
pub fn inject_where_the_guard_is_lifted(plan: &FaultPlan) -> Verdict<FaultTally> {
    inject_into(plan, |plain| {
        let fail = |nth: &u64| [1, 2, u64::MAX].map(|times| Which::Call(Fault { nth: *nth, times }));
        plain.lifts.iter().flat_map(fail).collect()
    })
}

fn inject_into(plan: &FaultPlan, choose: impl Fn(&Plain) -> Vec<Which>) -> Verdict<FaultTally> {
    let mut sum = FaultTally::default();
    // The test covers the write-ahead log, and one kind of rollback journal, which the seed chooses.
    let setups = if plan.concurrent {
        vec![Setup::for_writers(plan.engine, plan.seed, true)]
    } else {
        Setup::for_each_mode(plan.engine, plan.seed)
    };
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
    let reference = Reference::new(setup, plan.seed, plain.begun + 3)?;
    let all = choose(&plain);
    anyhow::ensure!(!all.is_empty(), "the workload has no such call");
    let next = AtomicU64::new(0);
    workers::on_each(|| {
        let mut tally = FaultTally::default();
        while let Some(which) = all.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            let violation = if setup.concurrent {
                faults_of_many::one(plan, setup, *which, &mut tally)?
            } else {
                one(plan, setup, &reference, *which, &mut tally)?
            };
            if let Some(violation) = violation {
                return Ok(Err(violation));
            }
        }
        Ok(Ok(tally))
    })
}

/// A run without faults.
struct Plain {
    calls: u64,
    /// The number of memory allocations.
    allocations: u64,
    /// The calls that sync a database's header after the guard has been lifted.
    lifts: Vec<u64>,
    /// The number of transactions begun.
    begun: u32,
}

impl Plain {
    fn run(plan: &FaultPlan, setup: &Setup) -> Result<Self> {
        let stage = Stage::new(setup.beside)?;
        let recorder = recorder_of(&stage, setup)?;
        recorder.set_fault(None);
        heap::refuse(None);
        let begun = workload::under_hook(&stage, &recorder, || {
            workload::perform(&stage, setup, plan.seed, plan.length, &recorder)
        })
        .context("the workload without faults")?
        .0;
        let (calls, allocations) = (recorder.calls(), heap::asked());
        let numbers = recorder.calls_of_events();
        let lifts = lifts(&recorder.finish(), &stage.database());
        let lifts = lifts.into_iter().filter_map(|event| numbers.get(event).copied()).collect();
        Ok(Self { calls, allocations, lifts, begun })
    }
}

/// Returns the events that sync the database's header after the guard has been removed from it.
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
    which.begin(&recorder);
    let mut bounds = Bounds::default();
    let ended = workload::under_hook(&stage, &recorder, || {
        let mut script = Script::new(&stage, setup, plan.seed, &recorder)?;
        let ended = script.all_steps(plan.length);
        bounds =
            Bounds { acknowledged: if setup.waits { script.committed() } else { 0 }, begun: script.begun() };
        if ended.is_err() {
            // A connection that stays open and reads after the error must see a prefix of the commits, or
            // get an error.
            script.look_on(reference)?;
        }
        ended
    });
    let what_failed = which.end(&recorder);
    tally.count(what_failed);
    let broken = |what: String, bounds, position, contents: &Contents| {
        let found = which.broken(setup, plan.seed, what_failed, &what);
        Ok(Some(Box::new(Violation { position, bounds, contents: stage.relative(contents), ..found })))
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
    // The application ends and starts again. From here on no call fails.
    if let Err(what) = oracle::check(&stage, setup, reference, bounds, Depth::UseOn) {
        return broken(format!("after it was opened again: {what}"), bounds, 0, &Contents::new());
    }
    match lose_power(plan, setup, reference, which, &stage, &recorder, tally)? {
        Some((what, bounds, at, left)) => broken(what, bounds, at, &left),
        None => Ok(None),
    }
}

/// Simulates a power failure at some time after the fault, and recovers. If the recovered database is wrong,
/// returns a description, the last transaction begun, the last one acknowledged, the position of the power
/// failure, and the state that it left.
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
    let mut random = fastrand::Rng::with_seed(plan.seed ^ which.seed());
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
