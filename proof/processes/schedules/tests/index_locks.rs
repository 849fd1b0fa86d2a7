//! Tests the lock table of the wal-index under explored schedules, with processes that die at any operation.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use duralite_locks::{CHECKPOINT, Holder, LAYOUT_BYTES, LockError, Table, WRITE};
use duralite_schedules::{Death, Memory, Sleep, rounds};

const READ: usize = 4;
/// The length of a turn: so short that the turn ends after a few readings of the clock.
const TURN: Duration = Duration::from_micros(10);

/// Counts the processes in each critical section. So the tests check the mutual exclusion itself,
/// independently of the locks.
#[derive(Default)]
struct Inside {
    writers: AtomicU32,
    readers: AtomicU32,
    entered: AtomicU32,
}

fn take_write(holder: &Holder, sleep: Sleep) {
    loop {
        match holder.lock_exclusive(WRITE, 1) {
            Ok(()) => return,
            Err(LockError::Busy) => {
                holder.wait_for_write(sleep.limit()).expect("wait");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn write(holder: &Holder, inside: &Inside, sleep: Sleep) {
    take_write(holder, sleep);
    assert_eq!(inside.writers.fetch_add(1, Ordering::SeqCst), 0, "two writers");
    shuttle::thread::yield_now();
    inside.entered.fetch_add(1, Ordering::SeqCst);
    inside.writers.fetch_sub(1, Ordering::SeqCst);
    holder.unlock_exclusive(WRITE, 1);
}

/// Takes several locks exclusively at once, while other processes read under one of these locks.
fn exclude_readers(holder: &Holder, inside: &Inside) {
    if holder.lock_exclusive(READ - 1, 3).is_ok() {
        assert_eq!(inside.readers.load(Ordering::SeqCst), 0, "a reader beside an exclusive lock");
        shuttle::thread::yield_now();
        assert_eq!(inside.readers.load(Ordering::SeqCst), 0, "a reader beside an exclusive lock");
        holder.unlock_exclusive(READ - 1, 3);
    }
}

fn read(holder: &Holder, inside: &Inside) {
    if holder.lock_shared(READ).is_ok() {
        inside.readers.fetch_add(1, Ordering::SeqCst);
        shuttle::thread::yield_now();
        inside.readers.fetch_sub(1, Ordering::SeqCst);
        holder.unlock_shared(READ);
    }
}

fn processes_exclude_each_other(sleep: Sleep) {
    let memory = Memory::new(LAYOUT_BYTES, sleep);
    let inside = Arc::new(Inside::default());
    let threads: Vec<_> = (0..3)
        .map(|index| {
            let (memory, inside) = (Arc::clone(&memory), Arc::clone(&inside));
            shuttle::thread::spawn(move || {
                let holder = Table::with_turn(memory.join(index, None), 0, TURN).holder();
                for round in 0..2 {
                    write(&holder, &inside, sleep);
                    if (index + round) % 2 == 0 {
                        exclude_readers(&holder, &inside);
                    } else {
                        read(&holder, &inside);
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("a process"));
    assert_eq!(inside.entered.load(Ordering::SeqCst), 6);
}

#[test]
fn inv11_processes_exclude_each_other_in_random_schedules() {
    shuttle::check_random(|| processes_exclude_each_other(Sleep::MayEnd), rounds(10000));
}

#[test]
fn inv11_processes_exclude_each_other_in_schedules_with_few_switches() {
    shuttle::check_pct(|| processes_exclude_each_other(Sleep::MayEnd), rounds(10000), 3);
}

#[test]
fn inv11_whoever_waits_for_write_is_woken_in_every_explored_schedule() {
    shuttle::check_random(|| processes_exclude_each_other(Sleep::UntilWoken), rounds(10000));
    shuttle::check_pct(|| processes_exclude_each_other(Sleep::UntilWoken), rounds(10000), 3);
}

#[test]
#[should_panic(expected = "deadlock")]
fn control_wake_ups_that_are_lost_are_noticed() {
    shuttle::check_random(|| processes_exclude_each_other(Sleep::ForEver), 10000);
}

/// Lets one of three processes die at a given operation. After that the others must be able to get every
/// lock.
fn a_process_dies(at: u64) {
    let memory = Memory::new(LAYOUT_BYTES, Sleep::MayEnd);
    let entered = Arc::new(AtomicU32::new(0));
    let writers = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = (0..3)
        .map(|index| {
            let (memory, entered, writers) =
                (Arc::clone(&memory), Arc::clone(&entered), Arc::clone(&writers));
            shuttle::thread::spawn(move || {
                let process_slot = memory.join(index, (index == 1).then_some(at));
                let result = catch_unwind(AssertUnwindSafe(|| {
                    let holder = Table::with_turn(process_slot, 0, TURN).holder();
                    for _ in 0..2 {
                        take_write(&holder, Sleep::MayEnd);
                        if index != 1 {
                            // The dead process may have been in the critical section, but it does nothing
                            // there any more.
                            assert_eq!(writers.fetch_add(1, Ordering::SeqCst), 0, "two writers");
                            shuttle::thread::yield_now();
                            writers.fetch_sub(1, Ordering::SeqCst);
                            entered.fetch_add(1, Ordering::SeqCst);
                        }
                        let _ = holder.lock_shared(READ);
                        holder.unlock_exclusive(WRITE, 1);
                        holder.unlock_shared(READ);
                    }
                }));
                if let Err(panic) = result
                    && !panic.is::<Death>()
                {
                    std::panic::resume_unwind(panic);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("a process"));
    assert_eq!(entered.load(Ordering::SeqCst), 4);
    let survivor = Table::join(memory.join(5, None), 0).holder();
    for first in 0..8 {
        while survivor.lock_exclusive(first, 1) == Err(LockError::Busy) {}
    }
}

#[test]
fn inv11_a_process_that_dies_at_any_operation_leaves_no_lock_behind() {
    std::panic::set_hook(Box::new(|_| {}));
    let at = AtomicU64::new(0);
    // Every schedule kills the process at a different operation.
    shuttle::check_random(move || a_process_dies(at.fetch_add(1, Ordering::SeqCst) % 270), rounds(8000));
}

/// Lets some processes start the log over, and others checkpoint. The two must never happen at the same time.
fn nobody_starts_over_beside_a_checkpoint() {
    let memory = Memory::new(LAYOUT_BYTES, Sleep::MayEnd);
    let inside = Arc::new(AtomicU32::new(0));
    let threads: Vec<_> = (0..3)
        .map(|index| {
            let (memory, inside) = (Arc::clone(&memory), Arc::clone(&inside));
            shuttle::thread::spawn(move || {
                let holder = Table::with_turn(memory.join(index, None), 0, TURN).holder();
                for round in 0..3 {
                    let (first, count) = if (index + round) % 2 == 0 { (CHECKPOINT, 1) } else { (READ, 4) };
                    if holder.lock_exclusive(first, count).is_ok() {
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "a log that starts over");
                        shuttle::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        holder.unlock_exclusive(first, count);
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("a process"));
}

#[test]
fn inv45_nobody_starts_the_log_over_beside_a_checkpoint() {
    shuttle::check_random(nobody_starts_over_beside_a_checkpoint, rounds(10000));
    shuttle::check_pct(nobody_starts_over_beside_a_checkpoint, rounds(10000), 3);
}
