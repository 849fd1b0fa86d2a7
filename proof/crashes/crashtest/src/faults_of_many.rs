//! Makes calls fail while connections write concurrently.
//!
//! SQLite reports the error to the connection whose statement failed. The other transactions go on, or get an
//! error too. Once the fault is gone, each connection commits one more transaction. The database must then
//! contain the transactions whose `COMMIT` succeeded, in the order of their commits. The same must hold after
//! a close, and after a power loss. Transactions whose `COMMIT` has failed may or may not be among them.

use std::collections::BTreeSet;

use anyhow::Result;
use rusqlite::config::DbConfig;

use crate::event::Event;
use crate::failure::Violation;
use crate::fault::{FaultPlan, FaultTally, Which, panics, recorder_of};
use crate::many_transactions::FIRST_AFTER;
use crate::many_writers::{Committed, ManyWriters};
use crate::model::{Contents, Model, sample};
use crate::oracle;
use crate::recorder::Recorder;
use crate::setup::Setup;
use crate::sql;
use crate::stage::Stage;
use crate::transactions::{self, Reference};
use crate::workload;

/// The number of the transaction that the test commits at the end.
const LAST: u32 = FIRST_AFTER * 2;

/// Runs the workload with a fault. Returns a violation if a promise was broken.
///
/// # Errors
/// An error that says why the test could not run.
pub fn one(
    plan: &FaultPlan,
    setup: &Setup,
    which: Which,
    tally: &mut FaultTally,
) -> Result<Option<Box<Violation>>> {
    let stage = Stage::new(setup.beside)?;
    let recorder = recorder_of(&stage, setup)?;
    let panics = panics::count();
    which.begin(&recorder);
    let (mut history, mut what_failed) = (Vec::new(), None);
    let (ended, worked) = workload::under_hook(&stage, &recorder, || {
        let mut writers = match ManyWriters::new(&stage, setup, plan.seed, &recorder) {
            Ok(writers) => writers,
            Err(error) => {
                what_failed = which.end(&recorder);
                return (Err(error), Ok(()));
            }
        };
        let ended = writers.all_steps(plan.length.steps);
        if ended.is_err() {
            writers.finish_round();
        }
        what_failed = which.end(&recorder);
        let worked = if ended.is_err() { writers.work_again().and_then(|_| writers.close()) } else { Ok(()) };
        history = writers.history().to_vec();
        (ended, worked)
    });
    tally.count(what_failed);
    let broken = |what: String, position, contents: &Contents| {
        let found = which.broken(setup, plan.seed, what_failed, &what);
        Ok(Some(Box::new(Violation { position, contents: stage.relative(contents), ..found })))
    };
    let told = match &ended {
        Ok(()) => "nothing".to_owned(),
        Err(error) => format!("{error:#}"),
    };
    match ended {
        Ok(()) => tally.absorbed += 1,
        Err(error) if error.downcast_ref::<rusqlite::Error>().is_some() => tally.told += 1,
        Err(_) => return broken(told, 0, &Contents::new()),
    }
    if let Err(error) = worked {
        return broken(format!("told: {told}; then {error:#}"), 0, &Contents::new());
    }
    if panics::count() > panics {
        return broken("something panicked".into(), 0, &Contents::new());
    }
    let possible = Possible::after(setup, plan.seed, &history)?;
    // The application ends and starts again. From here on no call fails.
    let is_durable = |commit: &&Committed| commit.is_certain && setup.waits;
    let certain = history.iter().filter(is_durable).map(|commit| commit.number).collect();
    let all = history.iter().map(|commit| commit.number).collect();
    if let Err(what) = possible.use_on(&stage, setup, plan.seed, &certain, &all) {
        return broken(format!("told: {told}; opened again: {what}"), 0, &Contents::new());
    }
    match lose_power(plan, setup, which, (&stage, &recorder), &possible, tally)? {
        Some((what, at, left)) => broken(format!("told: {told}; {what}"), at, &left),
        None => Ok(None),
    }
}

/// Simulates a power failure at some time after the fault, and recovers. If the recovered database is wrong,
/// returns a description, the position of the power failure, and the state that the power failure left.
fn lose_power(
    plan: &FaultPlan,
    setup: &Setup,
    which: Which,
    (stage, recorder): (&Stage, &Recorder),
    possible: &Possible,
    tally: &mut FaultTally,
) -> Result<Option<(String, usize, Contents)>> {
    let first = recorder.events_at_fault();
    let recording = recorder.finish();
    let mut random = fastrand::Rng::with_seed(plan.seed ^ which.seed());
    for _ in 0..plan.crashes {
        let at = random.usize(first..=recording.events.len());
        let mut model = Model::new(&recording, &stage.home());
        let (mut acknowledged, mut begun) = (BTreeSet::new(), BTreeSet::new());
        for event in &recording.events[..at] {
            model.apply(event);
            match event {
                Event::Begin { number } => _ = begun.insert(*number),
                Event::Acknowledged { number } => _ = acknowledged.insert(*number),
                _ => {}
            }
        }
        let choices = model.choices();
        let left = model.crash(&choices, &sample(&choices, &mut random));
        stage.set(&left)?;
        tally.crashes += 1;
        let recovers = Setup { concurrent: random.bool(), ..setup.clone() };
        if let Err(what) = possible.find(stage, &recovers, &acknowledged, &begun) {
            return Ok(Some((format!("after a crash at event {at}: {what}"), at, left)));
        }
    }
    Ok(None)
}

/// All histories that may have happened, given the commits whose outcome is in doubt.
struct Possible(Vec<History>);

/// The numbers of transactions in the order of their commits, and what the database holds after each of them.
struct History {
    numbers: Vec<u32>,
    reference: Reference,
}

impl Possible {
    fn after(setup: &Setup, seed: u64, history: &[Committed]) -> Result<Self> {
        let doubtful = history.iter().filter(|commit| !commit.is_certain).count();
        anyhow::ensure!(doubtful < 8, "{doubtful} commits are in doubt");
        let histories = (0..1_u32 << doubtful).filter_map(|chosen| {
            let mut left = chosen;
            let happened = |commit: &&Committed| {
                let is_chosen = left & 1 == 1;
                if !commit.is_certain {
                    left >>= 1;
                }
                commit.is_certain || is_chosen
            };
            let numbers: Vec<u32> = history.iter().filter(happened).map(|commit| commit.number).collect();
            let texts = numbers.iter().map(|number| transactions::text(setup, seed, *number));
            // A history that lacks a table which a later transaction has used cannot have happened.
            let reference = Reference::of(texts.collect()).ok()?;
            Some(History { numbers, reference })
        });
        Ok(Self(histories.collect()))
    }

    /// Recovers the database from the crash state in the stage's directories. The database must contain all
    /// transactions in `must`, and may contain only those in `may`. Returns the transactions that the
    /// database contains.
    fn find(
        &self,
        stage: &Stage,
        setup: &Setup,
        must: &BTreeSet<u32>,
        may: &BTreeSet<u32>,
    ) -> Result<Vec<u32>, String> {
        let conn = stage.connect(setup).map_err(|error| format!("cannot be opened: {error}"))?;
        let _ = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        let digest = transactions::digest(&conn).map_err(|error| format!("cannot be read: {error}"))?;
        let found = self.0.iter().filter_map(|History { numbers, reference }| {
            Some(numbers[..reference.number_of(digest)? as usize].to_vec())
        });
        let found: Vec<_> = found.collect();
        let is_allowed = |there: &&Vec<u32>| {
            must.iter().all(|number| there.contains(number))
                && there.iter().all(|number| may.contains(number))
        };
        let Some(there) = found.iter().find(is_allowed) else {
            return Err(format!("{must:?} were acknowledged, {may:?} begun, and there are {found:?}"));
        };
        oracle::assert_sound(&conn)?;
        oracle::close(conn)?;
        Ok(there.clone())
    }

    /// Checks the state as `find` does. Then commits one more transaction, closes the database, and lets
    /// stock SQLite read the file.
    fn use_on(
        &self,
        stage: &Stage,
        setup: &Setup,
        seed: u64,
        must: &BTreeSet<u32>,
        may: &BTreeSet<u32>,
    ) -> Result<(), String> {
        let mut numbers = self.find(stage, setup, must, may)?;
        numbers.push(LAST);
        let texts: Vec<_> = numbers.iter().map(|number| transactions::text(setup, seed, *number)).collect();
        let conn = stage.connect(setup).map_err(|error| format!("cannot be opened again: {error}"))?;
        let text = transactions::text(setup, seed, LAST);
        sql::commit_beside(&conn, &text).map_err(|error| format!("cannot be written to: {error}"))?;
        oracle::close_for_good(conn, stage, setup)?;
        let reference = Reference::of(texts).map_err(|error| error.to_string())?;
        oracle::assert_plain(stage, reference.after(numbers.len() as u32))
    }
}
