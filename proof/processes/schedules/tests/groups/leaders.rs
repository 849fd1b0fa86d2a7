//! Tests the leaders of group commit under explored schedules. New processes reuse process slots, a stopped
//! process continues with a compare-and-exchange that is out of date, and leaders are replaced while they
//! write.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::world::{Process, Rules, World};
use duralite_format::waldio::Layout;
use duralite_schedules::{Death, rounds};

/// Runs the work of a process. Returns whether the process is still alive at the end.
fn lives(run: impl FnOnce()) -> bool {
    match catch_unwind(AssertUnwindSafe(run)) {
        Err(panic) if !panic.is::<Death>() => std::panic::resume_unwind(panic),
        result => result.is_ok(),
    }
}

/// Lets three processes commit, and, if `restarts` is set, start the log over. The process in slot 1 dies at
/// an operation. Other processes then use its slot, and the first of these dies too.
fn slots_are_used_again(rules: &Rules, dies_at: &[u64], restarts: bool) -> Arc<World> {
    let (world, first) = World::new(rules);
    let run = move |process: &mut Process, world: &World, number: u8| {
        process.commit(world, number);
        if restarts && number % 2 == 1 {
            process.restart(world);
        }
        process.commit(world, number + 1);
    };
    let mut first = Some(first);
    let threads: Vec<_> = (0..3usize)
        .map(|index| {
            let world = Arc::clone(&world);
            let first = if index == 0 { first.take() } else { None };
            let dies_at: Vec<Option<u64>> = dies_at.iter().copied().map(Some).chain([None]).collect();
            shuttle::thread::spawn(move || {
                if let Some(mut first) = first {
                    assert!(lives(|| run(&mut first, &world, 1)));
                } else if index == 2 {
                    let mut process = world.process(world.memory.join(2, None), false);
                    assert!(lives(|| run(&mut process, &world, 21)));
                } else {
                    for (life, dies_at) in (0u8..).zip(dies_at) {
                        let process_slot = world.memory.join(1, dies_at);
                        let lived = lives(|| {
                            let mut process = world.process(process_slot, false);
                            run(&mut process, &world, 31 + 2 * life);
                        });
                        assert!(lived || dies_at.is_some());
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("a process"));
    let durable = world.check_order(dies_at.len());
    let last = 31 + 2 * dies_at.len() as u8;
    let acknowledged = [1, 2, 21, 22, last, last + 1];
    assert!(acknowledged.iter().all(|number| durable.contains(number)), "{durable:?}");
    world
}

/// Returns a closure that each schedule calls once. The calls return 0, 1, 2 and so on, and begin at 0 again
/// before they reach `limit`.
fn counter(limit: u64) -> impl Fn() -> u64 + Clone {
    let at = Arc::new(AtomicU64::new(0));
    move || at.fetch_add(1, Ordering::SeqCst) % limit
}

fn hush() {
    std::panic::set_hook(Box::new(|info| {
        if !info.payload().is::<Death>() {
            eprintln!("{info}");
        }
    }));
}

#[test]
fn inv11_no_living_leader_is_evicted_where_process_slots_are_used_again() {
    hush();
    let next = counter(170);
    let check = move || {
        let at = next();
        let world = slots_are_used_again(&Rules::of(Layout::Delta), &[at, at / 3], false);
        assert_eq!(world.block.at_once.load(Ordering::SeqCst), 1, "two leaders");
    };
    shuttle::check_random(check.clone(), rounds(1000));
    shuttle::check_pct(check, rounds(1000), 4);
}

/// Starts a new process that commits once.
fn committing(
    world: &Arc<World>,
    index: usize,
    patience: Duration,
    number: u8,
) -> shuttle::thread::JoinHandle<bool> {
    let world = Arc::clone(world);
    shuttle::thread::spawn(move || {
        let process_slot = world.memory.join(index, None);
        lives(|| world.process_with(process_slot, false, patience).commit(&world, number))
    })
}

fn let_others_run() {
    (0..200).for_each(|_| shuttle::thread::yield_now());
}

/// Tests that a compare-and-exchange fails if it comes too late. A process finds that the leader is dead, and
/// is stopped before it frees the leader lock. Before it continues, another process takes the dead leader's
/// slot, and becomes the leader.
fn a_late_exchange_finds_another_leader() {
    let (world, mut first) = World::new(&Rules::of(Layout::Delta));
    first.commit(&world, 1);
    world.block.dies.store(2, Ordering::SeqCst);
    let dead = committing(&world, 1, Duration::MAX, 11);
    assert!(!dead.join().expect("it died"));
    world.memory.stop_at_death(2);
    let late = committing(&world, 2, Duration::MAX, 21);
    while !world.memory.is_stopped() {
        shuttle::thread::yield_now();
    }
    world.block.stops.store(2, Ordering::SeqCst);
    let follower = committing(&world, 1, Duration::MAX, 31);
    world.until_stopped(1);
    world.memory.go_on();
    let_others_run();
    world.block.stops.store(0, Ordering::SeqCst);
    assert!(late.join().expect("late") && follower.join().expect("follower"));
    assert_eq!(world.block.at_once.load(Ordering::SeqCst), 1, "two leaders");
}

#[test]
fn inv11_a_late_exchange_does_not_evict_the_leader_in_a_slot_that_is_used_again() {
    hush();
    shuttle::check_random(a_late_exchange_finds_another_leader, rounds(200));
}

/// Stops a leader until another process has replaced it. The stopped leader then continues and ends while its
/// successor is writing.
fn a_replaced_leader_ends() {
    let (world, mut first) = World::new(&Rules::of(Layout::Delta));
    first.commit(&world, 1);
    world.block.stops.store(2, Ordering::SeqCst);
    let replaced = committing(&world, 1, Duration::MAX, 11);
    world.until_stopped(1);
    world.block.stops_too.store(3, Ordering::SeqCst);
    let successor = committing(&world, 2, Duration::from_millis(1), 21);
    world.until_stopped(2);
    world.block.stops.store(0, Ordering::SeqCst);
    assert!(replaced.join().expect("replaced"));
    world.block.at_once.store(0, Ordering::SeqCst);
    let third = committing(&world, 3, Duration::MAX, 31);
    let_others_run();
    assert_eq!(world.block.at_once.load(Ordering::SeqCst), 0, "a leader beside the second");
    world.block.stops_too.store(0, Ordering::SeqCst);
    assert!(successor.join().expect("successor") && third.join().expect("third"));
}

#[test]
fn inv11_a_leader_that_was_replaced_frees_nothing() {
    hush();
    shuttle::check_random(a_replaced_leader_ends, rounds(200));
}

#[test]
fn inv11_a_replaced_leaders_late_write_hits_nothing() {
    hush();
    for layout in [Layout::Delta, Layout::Embedded] {
        let rules = Rules { patience: Duration::ZERO, ..Rules::of(layout) };
        let check = move || drop(slots_are_used_again(&rules, &[], true));
        shuttle::check_random(check.clone(), rounds(1000));
        // With a patience of zero, two processes can take the lead from each other for ever while the third
        // one does not run (a livelock). A priority-based scheduler may never run the third one. So Shuttle
        // abandons a schedule after this many steps.
        let mut config = shuttle::Config::new();
        config.max_steps = shuttle::MaxSteps::ContinueAfter(100_000);
        let scheduler = shuttle::scheduler::PctScheduler::new(3, rounds(500));
        shuttle::Runner::new(scheduler, config).run(check);
    }
}

#[test]
fn inv11_leaders_are_replaced_and_die_at_any_operation() {
    hush();
    let rules = Rules { patience: Duration::ZERO, ..Rules::of(Layout::Delta) };
    let next = counter(300);
    let check = move || {
        let at = next();
        drop(slots_are_used_again(&rules, &[at, at / 2], true));
    };
    shuttle::check_random(check, rounds(1000));
}

/// Stops a process while it writes a group. The process continues after the others have finished.
fn a_leader_is_stopped(layout: Layout) {
    let rules = Rules { patience: Duration::from_millis(1), ..Rules::of(layout) };
    let (world, mut first) = World::new(&rules);
    first.commit(&world, 1);
    world.block.stops.store(2, Ordering::SeqCst);
    let stopped = {
        let world = Arc::clone(&world);
        shuttle::thread::spawn(move || {
            let mut process = world.process(world.memory.join(1, None), false);
            process.commit(&world, 11);
            process.commit(&world, 12);
            assert!(process.newest() > 0);
        })
    };
    world.until_stopped(1);
    assert_eq!(first.newest(), 11, "what is sealed is read while its leader is stopped");
    first.commit(&world, 2);
    assert!(world.is_durable(11));
    first.commit(&world, 3);
    assert_eq!(first.newest(), 3);
    assert!(!first.restart(&world), "the stopped one may still write");
    assert!(!first.restart_unasked(&world), "the stopped one may still write");
    first.commit(&world, 4);
    world.block.stops.store(0, Ordering::SeqCst);
    stopped.join().expect("it goes on");
    assert_eq!(first.newest(), 12);
    assert!(first.restart(&world));
    first.commit(&world, 5);
    assert_eq!(world.check_order(0), [1, 11, 2, 3, 4, 12, 5]);
}

/// Stops a process at an operation of its commit. The process continues when the others have finished, or
/// when they wait for the WRITE lock that it holds. Returns whether the process reached that operation.
fn a_process_is_stopped(layout: Layout, at: u64) -> bool {
    let rules = Rules { patience: Duration::from_millis(1), ..Rules::of(layout) };
    let (world, mut first) = World::new(&rules);
    first.commit(&world, 1);
    let ended = Arc::new(shuttle::sync::atomic::AtomicBool::new(false));
    let stopped = {
        let (world, ended) = (Arc::clone(&world), Arc::clone(&ended));
        shuttle::thread::spawn(move || {
            let process_slot = world.memory.join(1, None);
            let mut process = world.process(Arc::clone(&process_slot), false);
            world.memory.stop_at(&process_slot, at);
            process.commit(&world, 11);
            ended.store(true, Ordering::SeqCst);
            process.commit(&world, 12);
        })
    };
    while !world.memory.is_stopped() && !ended.load(Ordering::SeqCst) {
        shuttle::thread::yield_now();
    }
    let mut expected = vec![1, 11, 12];
    for number in 2..9 {
        let alone = world.memory.is_stopped();
        if !first.commit_unless_locked(&world, number) {
            break;
        }
        expected.push(number);
        assert!(first.newest() == number || !alone);
        if number % 3 == 0 {
            first.restart(&world);
        }
    }
    let got_there = world.memory.is_stopped();
    world.memory.go_on();
    stopped.join().expect("it goes on");
    first.restart(&world);
    first.commit(&world, 9);
    expected.push(9);
    let durable = world.check_order(0);
    assert!(expected.iter().all(|number| durable.contains(number)), "{durable:?}");
    got_there
}

#[test]
fn inv11_a_process_that_is_stopped_at_any_operation_does_no_harm_when_it_goes_on() {
    for layout in [Layout::Delta, Layout::Embedded] {
        let next = counter(400);
        let last = Arc::new(AtomicU64::new(0));
        let reached = Arc::clone(&last);
        let check = move || {
            let at = next() * 97 % 400;
            if a_process_is_stopped(layout, at) {
                reached.fetch_max(at, Ordering::SeqCst);
            }
        };
        // While a process is stopped in the middle of claiming a lock, processes that want the same lock
        // wait.
        let mut config = shuttle::Config::new();
        config.max_steps = shuttle::MaxSteps::FailAfter(10_000_000);
        shuttle::Runner::new(shuttle::scheduler::RandomScheduler::new(rounds(800)), config).run(check);
        let last = last.load(Ordering::SeqCst);
        assert!((60..390).contains(&last), "the last operation is {last}");
    }
}

#[test]
fn inv11_a_leader_that_is_stopped_holds_up_nobody_but_a_new_generation() {
    for layout in [Layout::Delta, Layout::Embedded] {
        shuttle::check_random(move || a_leader_is_stopped(layout), rounds(500));
    }
}
