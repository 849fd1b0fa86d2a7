//! Explores crashes through real SQLite, and runs controls that must fail. The tests explore only as many
//! states as an ordinary test run has time for. With `CRASHTEST_LONG=1`, as in `make test-long`, they explore
//! four times as many states. `make proof` explores at length.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use std::fmt::Display;
use std::path::Path;
use std::time::Instant;

use duralite_crashtest::{
    Engine, FaultPlan, FileSystemKind, Length, LyingPlan, Mutants, Mutation, Plan, PowerPlan, Verdict,
    Violation, cut, explore, explore_crowd, inject, inject_where_the_guard_is_lifted, lie, missing_rig,
    register, replay,
};

/// The directory that keeps failing states.
const KEEP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../out/crashtest");

fn seed() -> u64 {
    std::env::var("DURALITE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// Asserts that no violation was found.
fn hold<T: Display>(what: &str, body: impl FnOnce() -> Verdict<T>) -> T {
    register().unwrap();
    let started = Instant::now();
    match body().unwrap() {
        Ok(tally) => {
            println!("{what}: {tally} ({:.0} s)", started.elapsed().as_secs_f64());
            tally
        }
        Err(violation) => {
            let kept = violation.keep(Path::new(KEEP)).unwrap();
            panic!("{violation}; again: duralite crashtest --replay {}", kept.display());
        }
    }
}

/// Asserts that a violation was found, and returns it.
fn find<T: Display>(body: impl FnOnce() -> Verdict<T>) -> Box<Violation> {
    register().unwrap();
    match body().unwrap() {
        Ok(tally) => panic!("the control was not noticed: {tally}"),
        Err(violation) => violation,
    }
}

/// Asserts that the kept state alone reproduces the violation.
fn assert_replays(violation: &Violation) {
    let dir = tempfile::tempdir().unwrap();
    let kept = violation.keep(dir.path()).unwrap();
    assert_eq!(replay(&kept).unwrap().unwrap_err(), violation.what);
}

fn is_long() -> bool {
    std::env::var_os("CRASHTEST_LONG").is_some()
}

/// Returns `states` in a long run, and a quarter of that number in a short one.
fn share_of(states: u64) -> u64 {
    if is_long() { states } else { states / 4 }
}

fn memory(engine: Engine, states: u64) -> Plan {
    let (seed, length) = (seed(), Length { steps: 40 });
    Plan { engine, seed, states, length, window_states: 64, concurrent: false }
}

/// Like [`memory`], but with connections that write concurrently.
fn memory_of_many(engine: Engine, states: u64) -> Plan {
    let length = Length { steps: 24 };
    Plan { length, window_states: 8, concurrent: true, ..memory(engine, states) }
}

fn power(engine: Engine, file_system: FileSystemKind, images: u64) -> PowerPlan {
    let (mount_options, length) = (String::new(), Length { steps: 40 });
    PowerPlan { engine, file_system, mount_options, seed: seed(), images, length, concurrent: false }
}

/// Returns whether power cuts can be tested. If not, says so, and fails on machines where they should be
/// possible.
fn has_rig(file_system: FileSystemKind) -> bool {
    let Some(why) = missing_rig(file_system) else { return true };
    duralite_testkit::skip(&format!("no power cuts on {}", file_system.name()), &why);
    false
}

#[test]
fn inv07_states_that_a_crash_leaves_recover_on_nvwal() {
    hold("nvwal", || explore(&memory(Engine::NVWAL, share_of(12_000))));
}

#[test]
fn inv07_states_that_a_crash_leaves_recover_on_waldio() {
    hold("waldio", || explore(&memory(Engine::WALDIO, share_of(20_000))));
}

/// Transactions of several connections overlap, and are validated when they commit. After a crash, recovery
/// must find the transactions up to some point in the order in which they were published.
#[test]
fn inv59_states_that_a_crash_leaves_of_concurrent_writers_recover() {
    for engine in Engine::own() {
        let tally = hold(&format!("concurrent writers on {engine}"), || {
            explore(&memory_of_many(engine, share_of(8_000)))
        });
        // If these counts are too small, the run did not have the states that this test is for.
        assert!(tally.merged > 9 && tally.overtaken > 0, "{engine}: {tally}");
    }
}

/// Threads write concurrently, so that several validated transactions wait for one flush. Each thread stays
/// in its area, and each area must contain what was acknowledged.
#[test]
fn inv59_states_that_a_crash_leaves_of_concurrent_threads_recover() {
    for engine in Engine::own() {
        let plan = memory_of_many(engine, share_of(3_000));
        hold(&format!("concurrent threads on {engine}"), || explore_crowd(&plan));
    }
}

#[test]
fn inv59_images_of_power_cuts_under_concurrent_writers_recover() {
    if has_rig(FileSystemKind::Ext4) {
        for engine in Engine::own() {
            let plan = PowerPlan { concurrent: true, ..power(engine, FileSystemKind::Ext4, share_of(400)) };
            hold(&format!("concurrent writers on {engine} on ext4"), || cut(&plan));
        }
    }
}

/// A process dies after it has raised the guard, and before it has synced the guard. The next process finds
/// the guard, and commits.
#[test]
fn inv01_a_guard_that_was_found_is_durable_before_the_first_commit() {
    let mut plan = memory(Engine::WALDIO, share_of(10_000));
    (plan.seed, plan.window_states) = (12002, 64);
    hold("states after a death that the guard's sync would have followed", || explore(&plan));
}

#[test]
fn inv07_states_that_a_crash_leaves_recover_on_ppl() {
    hold("ppl", || explore(&memory(Engine::PPL, share_of(12_000))));
}

#[test]
fn inv07_states_that_a_crash_leaves_recover_on_scratchpad() {
    hold("scratchpad", || explore(&memory(Engine::SCRATCHPAD, share_of(12_000))));
}

#[test]
fn inv07_images_of_power_cuts_recover() {
    for (file_system, images) in
        [(FileSystemKind::Ext4, 1_000), (FileSystemKind::Xfs, 100), (FileSystemKind::Btrfs, 100)]
    {
        for engine in Engine::own() {
            if has_rig(file_system) {
                let what = format!("{engine} on {}", file_system.name());
                hold(&what, || cut(&power(engine, file_system, share_of(images))));
            }
        }
    }
}

#[test]
fn inv09_a_fault_at_any_call_is_told_and_loses_nothing() {
    for engine in Engine::own() {
        for offset in 0..if is_long() { 2 } else { 1 } {
            let plan = faults(engine, seed() + offset, Length { steps: 12 });
            hold(&format!("faults on {engine}"), || inject(&plan));
        }
    }
}

fn faults(engine: Engine, seed: u64, length: Length) -> FaultPlan {
    let concurrent = false;
    FaultPlan { engine, seed, length, every: 1, every_allocation: 16, crashes: 3, concurrent }
}

/// A call fails while transactions overlap. One connection gets the error. The other connections go on, or
/// get an error too. All connections work again once the fault is gone.
#[test]
fn inv09_a_fault_under_concurrent_writers_is_told_and_loses_nothing() {
    for engine in Engine::own() {
        let (every, every_allocation) = if is_long() { (1, 16) } else { (5, 80) };
        let plan = faults(engine, seed(), Length { steps: 12 });
        let plan = FaultPlan { every, every_allocation, concurrent: true, ..plan };
        hold(&format!("faults under concurrent writers on {engine}"), || inject(&plan));
    }
}

/// The guard is removed from the header, but the sync of the header fails. SQLite continues with a rollback
/// journal. Then the power fails while that journal is hot.
#[test]
fn inv09_a_guard_whose_lifting_is_in_doubt_does_not_meet_a_hot_journal() {
    let length = Length { steps: 40 };
    for engine in Engine::own() {
        let plan = FaultPlan { every_allocation: u64::MAX, crashes: 48, ..faults(engine, 2, length) };
        hold(&format!("a header in doubt on {engine}"), || inject_where_the_guard_is_lifted(&plan));
    }
}

/// The log's medium loses the data of one flush but reports this flush as done.
#[test]
fn inv08_what_a_dropped_flush_leaves_is_refused_and_saved_or_opens_as_of_a_transaction() {
    register().unwrap();
    for engine in Engine::own() {
        let plan = LyingPlan { engine, seed: seed(), images: 400, length: Length { steps: 40 } };
        match lie(&plan).unwrap() {
            Ok(tally) => {
                println!("a dropped flush on {engine}: {tally}");
                // If one of these counts is zero, the images did not cover the cases that this test is for.
                assert!(tally.refused > 0 && tally.ends_earlier > 0, "{engine}: {tally}");
                assert!(tally.later > 0, "{engine}: {tally}");
            }
            Err(violation) => {
                let kept = violation.keep(Path::new(KEEP)).unwrap();
                panic!("{violation}; kept in {}", kept.display());
            }
        }
    }
}

/// Checks the rig itself, which must find nothing wrong with stock SQLite.
#[test]
fn control_stock_sqlite_survives() {
    hold("stock", || explore(&memory(Engine::Stock, 5_000)));
    if has_rig(FileSystemKind::Ext4) {
        hold("stock on ext4", || cut(&power(Engine::Stock, FileSystemKind::Ext4, 200)));
    }
}

#[test]
fn control_without_syncs_sqlite_loses_commits() {
    let violation = find(|| explore(&memory(Engine::StockOff, 50_000)));
    assert!(violation.what.contains("was acknowledged"), "{violation}");
    assert_replays(&violation);
    if has_rig(FileSystemKind::Ext4) {
        assert_replays(&find(|| cut(&power(Engine::StockOff, FileSystemKind::Ext4, 2_000))));
    }
}

#[test]
fn control_without_barriers_ext4_loses_commits() {
    if has_rig(FileSystemKind::Ext4) {
        let plan = power(Engine::WALDIO, FileSystemKind::Ext4, 2_000);
        find(|| cut(&PowerPlan { mount_options: "nobarrier".into(), ..plan }));
    }
}

#[test]
fn control_changed_orders_and_missing_calls_are_noticed() {
    register().unwrap();
    for (engine, calls) in [
        (
            Engine::NVWAL,
            [("fence", "seal_staged:"), ("flush", "flush_all:"), ("sync", "sync_file:")].as_slice(),
        ),
        (Engine::WALDIO, [("sync", "write_group:"), ("sync", "sync_file:")].as_slice()),
        (
            Engine::PPL,
            [
                ("fence", "seal:"),
                ("flush", "seal:"),
                ("flush", "store_image:"),
                ("fence", "publish:"),
                ("sync", "write_batch:"),
            ]
            .as_slice(),
        ),
        (
            Engine::SCRATCHPAD,
            [
                ("fence", "seal_staged:"),
                ("flush", "seal_staged:"),
                ("flush", "< flush:"),
                ("flush", "reach:"),
                ("fence", "put_in_force:"),
            ]
            .as_slice(),
        ),
    ] {
        let mutants = Mutants::record(engine, seed()..seed() + 2, Length { steps: 24 }).unwrap();
        let all = mutants.all();
        let order = |mutation: &&Mutation| matches!(mutation, Mutation::EarlyMark | Mutation::HomeFirst);
        for mutation in all.iter().filter(order) {
            assert!(mutants.try_out(mutation, 24).unwrap().caught.is_some(), "{engine}: {mutation}");
        }
        for (kind, place) in calls {
            let is_it = |mutation: &&Mutation| {
                let told = mutation.to_string();
                told.starts_with(&format!("no {kind} at")) && told.contains(place)
            };
            let matching: Vec<_> = all.iter().filter(is_it).collect();
            assert!(!matching.is_empty(), "{engine}: no {kind} at {place} among {all:?}");
            let noticed =
                matching.iter().any(|mutation| mutants.try_out(mutation, 24).unwrap().caught.is_some());
            assert!(noticed, "{engine}: no {kind} at {place} is not noticed");
        }
    }
}
