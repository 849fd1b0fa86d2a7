//! Tests group commit under explored schedules. The processes seal their transactions under the WRITE lock,
//! and wait for one leader to write them. Any of the processes may die at any operation.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::world::{Rules, World};
use duralite_format::waldio::Layout;
use duralite_schedules::{Death, Sleep, rounds};

/// Lets three processes commit twice each. If `dies_at` is given, one of the processes dies at this
/// operation.
fn processes_commit(layout: Layout, sleep: Sleep, dies_at: Option<u64>) {
    let (world, first) = World::new(&Rules { sleep, ..Rules::of(layout) });
    let mut first = Some(first);
    let threads: Vec<_> = (0..3u8)
        .map(|index| {
            let world = Arc::clone(&world);
            let first = if index == 0 { first.take() } else { None };
            shuttle::thread::spawn(move || {
                let result = catch_unwind(AssertUnwindSafe(|| {
                    let mut process = first.unwrap_or_else(|| {
                        let dies_at = dies_at.filter(|_| index == 1);
                        world.process(world.memory.join(index.into(), dies_at), false)
                    });
                    for round in 0..2 {
                        process.commit(&world, 1 + index * 2 + round);
                    }
                }));
                match result {
                    Err(panic) if !panic.is::<Death>() => std::panic::resume_unwind(panic),
                    result => result.is_ok(),
                }
            })
        })
        .collect();
    let lived: Vec<bool> = threads.into_iter().map(|thread| thread.join().expect("a process")).collect();
    assert!(lived[0] && lived[2]);
    let durable = world.check_order(1);
    let living = durable.iter().filter(|number| ![3, 4].contains(*number)).count();
    assert_eq!(living, 4, "durable {durable:?}");
    assert!(world.flushes() <= 14);
}

#[test]
fn inv04_what_is_acknowledged_is_durable_in_every_explored_schedule() {
    shuttle::check_random(|| processes_commit(Layout::Delta, Sleep::MayEnd, None), rounds(3000));
    shuttle::check_pct(|| processes_commit(Layout::Delta, Sleep::MayEnd, None), rounds(3000), 3);
    shuttle::check_random(|| processes_commit(Layout::Embedded, Sleep::MayEnd, None), rounds(1000));
}

#[test]
fn inv04_whoever_waits_for_durability_is_woken_in_every_explored_schedule() {
    shuttle::check_random(|| processes_commit(Layout::Delta, Sleep::UntilWoken, None), rounds(3000));
    shuttle::check_pct(|| processes_commit(Layout::Delta, Sleep::UntilWoken, None), rounds(3000), 3);
    shuttle::check_random(|| processes_commit(Layout::Embedded, Sleep::UntilWoken, None), rounds(1000));
}

#[test]
#[should_panic(expected = "deadlock")]
fn control_wake_ups_that_are_lost_are_noticed() {
    shuttle::check_random(|| processes_commit(Layout::Delta, Sleep::ForEver, None), 3000);
}

#[test]
fn inv04_a_process_that_dies_at_any_operation_holds_nobody_up_and_loses_nothing() {
    std::panic::set_hook(Box::new(|_| {}));
    let at = AtomicU64::new(0);
    let next = move || at.fetch_add(1, Ordering::SeqCst) % 250;
    shuttle::check_random(move || processes_commit(Layout::Delta, Sleep::MayEnd, Some(next())), rounds(2500));
}
