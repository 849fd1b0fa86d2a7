//! Mutation tests. Each test breaks one rule: of recovery, of the cache, or of writing pages to the page file. Then it
//! repeats a run until the run fails. A run is either a random walk through the whole interface, or a series of
//! transactions during checkpoints. The store has ten times as much data as its cache holds, and the cache has the
//! smallest possible size.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::crash::{OnRig, Rig};
use common::data::{self, Data, ROW_BYTES, smallest};
use common::explore::Course;
use common::value;
use duralite_store::{Error, Rule, Scheme, Store};

/// The largest number of runs for one rule.
const RUNS: u64 = 300;

/// Makes one walk through the whole interface with a broken rule.
fn walk(rule: Rule, scheme: Scheme, seed: u64) -> Result<u64, String> {
    let options = smallest(scheme).breaking(rule);
    let course = Course { data: Data::TenTimes, options, seed, steps: 40, crash_every: 6, then_broken: None };
    course.explore()
}

/// Makes one walk in which only recovered stores break the rule, once they are open. So only a crash after that can
/// show it.
fn used_on(rule: Rule, scheme: Scheme, seed: u64) -> Result<u64, String> {
    let options = smallest(scheme);
    let then_broken = Some(rule);
    Course { data: Data::TenTimes, options, seed, steps: 40, crash_every: 3, then_broken }.explore()
}

/// Runs transactions that change many rows, while another thread makes checkpoints all the time. Some rules matter only
/// if a transaction ends during a checkpoint.
fn beside_checkpoints(rule: Rule, scheme: Scheme, seed: u64) -> Result<u64, String> {
    let told = |error: Error| error.to_string();
    let options = smallest(scheme).breaking(rule);
    let rig = Data::TenTimes.rig(scheme);
    let store = Store::open_on(OnRig(Arc::clone(&rig)), options.clone()).map_err(told)?;
    let bulk = Data::TenTimes.bulk(&store).unwrap();
    let mut random = fastrand::Rng::with_seed(seed);
    // With some seeds the transactions roll back, and must leave nothing behind.
    let commits = seed % 4 < 2;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) && store.checkpoint().is_ok() {
                std::thread::yield_now();
            }
        });
        let mut work = || {
            for _ in 0..20 {
                rig.crash_soon(if scheme == Scheme::Auto { 60 } else { 1500 }, &mut random);
                let mut tx = store.begin();
                data::change(&mut tx, &bulk, 20, &mut random)?;
                if commits { tx.commit()? } else { tx.rollback()? }
            }
            Ok(())
        };
        let done = work().map_err(told);
        is_over.store(true, Ordering::SeqCst);
        done
    })?;
    drop((bulk, store));
    let crashes = rig.crashes();
    let looked = crashes.len() as u64;
    for crash in crashes {
        let store = Store::open_on(OnRig(Rig::new(Some(crash.images))), options.clone()).map_err(told)?;
        store.verify().map_err(told)?;
        let bulk = Data::TenTimes.bulk(&store).unwrap();
        data::check(&store, &bulk)?;
        let tx = store.begin();
        for row in tx.scan(&bulk, ..) {
            if !commits && row.map_err(told)?.1 != value(0, ROW_BYTES) {
                return Err("a row is as one that never committed has made it".to_owned());
            }
        }
    }
    Ok(looked)
}

/// A control: this test breaks a rule that does not matter here, and must notice nothing.
#[test]
fn inv40_what_ends_beside_checkpoints_is_as_it_ended() {
    for (seed, scheme) in (0..4).zip([Scheme::Auto, Scheme::FlushOnInsert].into_iter().cycle()) {
        // This rule matters only to snapshots, and there are none here.
        let looked = beside_checkpoints(Rule::LookAtVersions, scheme, seed);
        assert!(looked.as_ref().is_ok_and(|looked| *looked > 10), "{scheme:?}, seed {seed}: {looked:?}");
    }
}

fn noticed(rule: Rule, run: fn(Rule, Scheme, u64) -> Result<u64, String>) {
    let is_noticed = |seed: u64| {
        // With `Auto`, a log object becomes durable when a thread waits for that. With `FlushOnInsert`, it becomes
        // durable when it is put into the log.
        let scheme = if seed.is_multiple_of(2) { Scheme::Auto } else { Scheme::FlushOnInsert };
        match catch_unwind(AssertUnwindSafe(|| run(rule, scheme, seed))) {
            Ok(Ok(_)) => None,
            Ok(Err(why)) => Some((seed, why)),
            Err(panic) => Some((seed, panic.downcast_ref::<String>().cloned().unwrap_or_default())),
        }
    };
    let Some((runs, why)) = (1..=RUNS).find_map(is_noticed) else {
        panic!("{rule:?} is broken, and {RUNS} runs do not notice it")
    };
    let why = why.rsplit("}: ").next().unwrap_or_default();
    let why = why.lines().next().unwrap_or_default();
    println!(
        "\n| store | {rule:?} broken, at ten times the smallest cache | noticed after {runs} runs: {why} | |"
    );
}

/// Runs [`noticed`], but only if `STORE_MUTANTS` is set. It may take dozens of runs until one of them fails because of
/// the broken rule.
fn noticed_at_length(rule: Rule, run: fn(Rule, Scheme, u64) -> Result<u64, String>) {
    if std::env::var_os("STORE_MUTANTS").is_some() {
        noticed(rule, run);
    }
}

macro_rules! rules {
    ($check:ident: $($name:ident $rule:ident $run:ident,)*) => {$(
        #[test]
        fn $name() {
            $check(Rule::$rule, $run);
        }
    )*};
}

rules! {
    noticed:
    inv31_no_double_write DoubleWrite walk,
    inv31_a_double_write_that_is_not_durable FlushDoubleWrite walk,
    inv31_torn_pages_that_stay_torn RestoreTorn walk,
    inv35_pages_that_go_home_before_their_log LogBeforePages walk,
    inv35_pages_that_go_home_before_their_log_after_a_recovery LogBeforePages used_on,
    inv34_pages_that_change_while_they_go_home ChangedMeanwhile walk,
    inv34_changed_pages_that_leave DirtyStays walk,
    inv34_log_of_changes_that_is_given_up ChangesHoldLog beside_checkpoints,
    inv49_log_of_open_transactions_that_is_given_up OpenHoldsLog walk,
    inv40_no_redo Redo walk,
    inv40_redo_of_what_a_page_has RedoOnce walk,
    inv40_no_undo TakeBack walk,
    inv40_undo_of_what_was_undone TakeBackOnce walk,
    inv40_undo_from_the_oldest_on NewestFirst walk,
}

rules! {
    noticed_at_length:
    inv31_pages_that_are_not_durable_at_home FlushHome walk,
    inv40_ends_that_are_not_durable EndsBeforeGivingUp beside_checkpoints,
    inv40_committed_transactions_that_are_not_finished FinishCommitted walk,
}
