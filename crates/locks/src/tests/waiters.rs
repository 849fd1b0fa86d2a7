//! Connections that wait for WRITE: whose turn it is, and what dead and stopped waiters leave behind.

use super::*;

/// Puts the waiter at place 0 back to sleep after it was woken.
fn goes_back_to_sleep(memory: &Memory) {
    memory.state().words[(queue::place(0) + queue::ASLEEP) as usize / 8] = 1;
}

/// Lets `running`, whose turn has just begun, hold WRITE while another connection waits for it. `meanwhile`
/// runs during that wait.
fn wait_during(memory: &Arc<Memory>, running: Holder, meanwhile: impl FnOnce(&Holder) + Send + 'static) {
    let (table, process) = memory.process(1);
    let waiting = table.holder();
    assert!(running.wait_for_write(MS).unwrap());
    running.lock_exclusive(WRITE, 1).unwrap();
    assert_eq!(waiting.lock_exclusive(WRITE, 1), BUSY);
    process.in_wait(move || {
        meanwhile(&running);
        running.release();
    });
    assert!(waiting.wait_for_write(100 * MS).unwrap());
    waiting.lock_exclusive(WRITE, 1).unwrap();
}

#[test]
fn those_who_run_go_on_for_a_turn_and_then_the_oldest_waiter_is_next() {
    let memory = Memory::new(false);
    let clock = Arc::clone(&memory);
    wait_during(&memory, memory.table(0).holder(), move |running| {
        let mut taken = 0;
        running.unlock_exclusive(WRITE, 1);
        while running.lock_exclusive(WRITE, 1).is_ok() {
            taken += 1;
            clock.pass(TURN / 10);
            running.unlock_exclusive(WRITE, 1);
        }
        assert!((5..=10).contains(&taken), "{taken} times in a turn");
    });
}

#[test]
fn who_comes_back_at_once_wakes_nobody_before_his_turn_is_over() {
    let memory = Memory::new(false);
    let clock = Arc::clone(&memory);
    wait_during(&memory, memory.table(0).holder(), move |running| {
        let wakes = || clock.state().wakes;
        assert!(clock.state().sleep <= 2 * TURN, "the oldest sleeps for a turn and a little more");
        let mut before = wakes();
        for again in 0..4 {
            running.unlock_exclusive(WRITE, 1);
            // When the connection gives WRITE back for the first time, it is not yet known to ask for WRITE
            // again at once.
            assert_eq!(wakes() - before, u64::from(again == 0));
            before = wakes();
            running.lock_exclusive(WRITE, 1).unwrap();
        }
        clock.pass(TURN);
        goes_back_to_sleep(&clock);
        running.unlock_exclusive(WRITE, 1);
        assert_eq!(wakes() - before, 1);
    });
}

#[test]
fn who_is_refused_when_his_turn_is_over_wakes_the_oldest() {
    let memory = Memory::new(false);
    let clock = Arc::clone(&memory);
    wait_during(&memory, memory.table(0).holder(), move |running| {
        for _ in 0..2 {
            running.unlock_exclusive(WRITE, 1);
            running.lock_exclusive(WRITE, 1).unwrap();
        }
        goes_back_to_sleep(&clock);
        let before = clock.state().wakes;
        running.unlock_exclusive(WRITE, 1);
        assert_eq!(clock.state().wakes - before, 0, "he comes back at once");
        clock.pass(TURN);
        assert_eq!(running.lock_exclusive(WRITE, 1), BUSY);
        assert_eq!(clock.state().wakes - before, 1);
    });
}

#[test]
fn who_does_something_else_in_between_wakes_the_oldest_each_time() {
    let memory = Memory::new(false);
    let clock = Arc::clone(&memory);
    wait_during(&memory, memory.table(0).holder(), move |running| {
        for _ in 0..4 {
            let before = clock.state().wakes;
            goes_back_to_sleep(&clock);
            running.unlock_exclusive(WRITE, 1);
            assert_eq!(clock.state().wakes - before, 1);
            clock.pass(MS / 10);
            running.lock_exclusive(WRITE, 1).unwrap();
        }
    });
}

#[test]
fn waiters_have_their_turns_in_the_order_in_which_they_came() {
    let memory = Memory::new(false);
    let running = memory.table(0).holder();
    let ((first_table, first_process), (second_table, second_process)) =
        (memory.process(2), memory.process(1));
    let (first, second) = (first_table.holder(), second_table.holder());
    running.lock_exclusive(WRITE, 1).unwrap();
    // The first waiter enters the queue, stops waiting for a while, and keeps its rank.
    assert!(!first.wait_for_write(MS).unwrap());
    second_process.in_wait(move || {
        first_process.in_wait(move || running.unlock_exclusive(WRITE, 1));
        assert!(first.wait_for_write(100 * MS).unwrap());
        first.lock_exclusive(WRITE, 1).unwrap();
    });
    assert!(second.wait_for_write(100 * MS).unwrap());
}

#[test]
fn a_waiter_that_is_stopped_does_not_stop_the_others() {
    let memory = Memory::new(false);
    let (running, queueing) = (memory.table(0).holder(), memory.table(2).holder());
    let (table, process) = memory.process(1);
    let stopped = table.holder();
    running.lock_exclusive(WRITE, 1).unwrap();
    let clock = Arc::clone(&memory);
    process.in_wait(move || {
        running.unlock_exclusive(WRITE, 1);
        let mut taken = 0;
        for _ in 0..1000 {
            clock.pass(MS);
            if running.lock_exclusive(WRITE, 1).is_ok() {
                running.unlock_exclusive(WRITE, 1);
                taken += 1;
            }
        }
        assert!(taken > 900, "taken {taken} times in a second");
        assert!(queueing.wait_for_write(100 * MS).unwrap());
        queueing.release();
    });
    assert!(stopped.wait_for_write(10_000 * MS).unwrap(), "it goes on");
}

#[test]
fn a_waiter_that_dies_does_not_stop_the_others() {
    let memory = Memory::new(false);
    let (running, queueing) = (memory.table(0).holder(), memory.table(2).holder());
    let (table, process) = memory.process(1);
    running.lock_exclusive(WRITE, 1).unwrap();
    let dying = Arc::clone(&process);
    process.in_wait(move || *dying.left.lock().unwrap() = Some(0));
    let died = catch_unwind(AssertUnwindSafe(|| table.holder().wait_for_write(100 * MS))).is_err();
    assert!(died);
    running.unlock_exclusive(WRITE, 1);
    for _ in 0..10 {
        running.lock_exclusive(WRITE, 1).unwrap();
        assert!(!queueing.wait_for_write(MS).unwrap());
        running.unlock_exclusive(WRITE, 1);
    }
    assert!(queueing.wait_for_write(100 * MS).unwrap());
}

/// Lets connections queue one after another, each during the sleep of the previous one.
fn queue_up(table: &Arc<Table>, process: &Arc<ProcessSlot>, count: usize, last: Hook) {
    let Some(rest) = count.checked_sub(1) else { return last() };
    let (inner_table, inner_process) = (Arc::clone(table), Arc::clone(process));
    process.in_wait(move || queue_up(&inner_table, &inner_process, rest, last));
    assert!(!table.holder().wait_for_write(5 * MS).unwrap());
}

#[test]
fn who_finds_no_place_in_the_queue_sleeps_all_the_same() {
    let memory = Memory::new(false);
    let running = memory.table(0).holder();
    running.lock_exclusive(WRITE, 1).unwrap();
    let (table, process) = memory.process(1);
    let (without_place, clock) = (table.holder(), Arc::clone(&memory));
    let last = move || {
        let before = clock.state().waits;
        assert!(!without_place.wait_for_write(20 * MS).unwrap());
        let waits = clock.state().waits - before;
        assert!((1..100).contains(&waits), "{waits} sleeps in 20 ms");
    };
    queue_up(&table, &process, WAITERS, Box::new(last));
}

#[test]
fn places_of_dead_waiters_are_found_when_there_is_no_other() {
    let memory = Memory::new(false);
    let running = memory.table(0).holder();
    running.lock_exclusive(WRITE, 1).unwrap();
    let (table, process) = memory.process(1);
    let dying = Arc::clone(&process);
    let last: Hook = Box::new(move || *dying.left.lock().unwrap() = Some(0));
    assert!(catch_unwind(AssertUnwindSafe(|| queue_up(&table, &process, WAITERS, last))).is_err());
    assert!(memory.state().queued == WAITERS);
    // The next waiter finds a place, and gets its turn.
    let (table, process) = memory.process(2);
    let (waiting, clock) = (table.holder(), Arc::clone(&memory));
    memory.pass(1000 * MS);
    process.in_wait(move || {
        assert!((1..10).contains(&clock.state().queued));
        running.unlock_exclusive(WRITE, 1);
    });
    assert!(waiting.wait_for_write(100 * MS).unwrap());
}

#[test]
fn however_many_are_refused_a_lock_the_kernel_is_asked_now_and_then_only() {
    let memory = Memory::new(false);
    let reader = memory.table(0).holder();
    let others: Vec<_> = (1..16).map(|process| memory.table(process).holder()).collect();
    reader.lock_shared(READ).unwrap();
    for _ in 0..10 {
        memory.pass(SUSPICION / 10);
        for other in &others {
            assert_eq!(other.lock_exclusive(READ, 1), BUSY);
        }
    }
    assert!((1..=2).contains(&memory.state().asked));
    memory.kill(0);
    memory.pass(SUSPICION);
    others[0].lock_exclusive(READ, 1).unwrap();
}

/// Makes `holder` a connection that is known to ask for WRITE again at once.
fn make_known(memory: &Arc<Memory>, holder: &Arc<Holder>) {
    let (table, process) = memory.process(9);
    let other = table.holder();
    holder.lock_exclusive(WRITE, 1).unwrap();
    let returning = Arc::clone(holder);
    process.in_wait(move || {
        returning.unlock_exclusive(WRITE, 1);
        assert_eq!(returning.lock_exclusive(WRITE, 1), BUSY);
    });
    assert!(other.wait_for_write(100 * MS).unwrap());
    other.release();
    memory.pass(2 * TURN);
}

#[test]
fn who_waits_and_comes_back_at_once_sleeps_to_the_end_of_the_turn_unless_its_owner_goes_away() {
    for goes_away in [false, true] {
        let memory = Memory::new(false);
        let (table, process) = memory.process(1);
        let waiting = Arc::new(table.holder());
        make_known(&memory, &waiting);
        let running = memory.table(0).holder();
        assert!(running.wait_for_write(MS).unwrap());
        running.lock_exclusive(WRITE, 1).unwrap();
        let (clock, began) = (Arc::clone(&memory), memory.state().now);
        assert_eq!(waiting.lock_exclusive(WRITE, 1), BUSY);
        process.in_wait(move || {
            let sleep = clock.state().sleep;
            assert!(sleep > TURN / 2 && sleep < TURN, "{sleep:?}");
            if goes_away {
                running.release();
            } else {
                // The waiter is awake when the running connection gives the lock back for the last time in
                // its turn.
                clock.pass(TURN);
                running.unlock_exclusive(WRITE, 1);
            }
        });
        assert!(waiting.wait_for_write(100 * MS).unwrap());
        let waited = Duration::from_nanos(memory.state().now - began);
        assert_eq!(waited < TURN, goes_away, "{waited:?}");
    }
}

#[test]
fn a_turn_is_left_to_whoever_comes_back_and_not_to_whoever_is_gone() {
    let gone = wait::GONE.as_nanos() as u64;
    let see = |seen: &[(bool, u64)], left: Duration| {
        let mut watch = wait::Watch::default();
        seen.iter().map(|(is_taken, now)| watch.see(*is_taken, left, *now)).collect::<Vec<_>>()
    };
    // The running connection takes the lock again.
    assert_eq!(see(&[(true, 0), (false, 1), (true, 2)], TURN), [None, None, Some(false)]);
    // The running connection does not take the lock again.
    assert_eq!(see(&[(false, 1), (false, 2), (false, gone + 2)], TURN), [None, None, Some(true)]);
    // The turn of the running connection is about to end, so the waiter waits for that end.
    let near = wait::EARLY / 2;
    assert_eq!(see(&[(false, 1), (true, 2), (false, gone + 2), (true, gone + 3)], near), [None; 4]);
    // The turn is over.
    assert_eq!(see(&[(true, 0), (false, 1)], Duration::ZERO), [None, Some(true)]);
}

#[test]
fn the_first_sleeps_of_a_busy_handler_are_one() {
    let memory = Memory::new(false);
    let running = memory.table(0).holder();
    running.lock_exclusive(WRITE, 1).unwrap();
    let waiting = memory.table(1).holder();
    let began = memory.state().now;
    let sleep = |milliseconds: u32| {
        let before = memory.state().waits;
        assert!(!waiting.wait_for_write(milliseconds * MS).unwrap());
        let state = memory.state();
        (state.waits - before, Duration::from_nanos(state.now - began).as_millis())
    };
    assert_eq!(sleep(1), (1, 8));
    assert_eq!((sleep(2), sleep(5)), ((0, 8), (0, 8)));
    // The sleeps that SQLite has asked for now add up to the time that the connection has slept.
    assert_eq!(sleep(10), (1, 18));
    assert_eq!(sleep(15).1, 33);
    // The connection gives up, does something else, and begins again.
    assert_eq!(sleep(1).1, 41);
    memory.pass(20 * MS);
    assert_eq!(sleep(1).1, 69);
}

#[test]
fn all_that_a_dead_process_has_left_is_freed_at_once() {
    let memory = Memory::new(false);
    let (dying, process) = memory.process(1);
    let holder = dying.holder();
    let survivor = memory.table(0).holder();
    // When the process dies, it has three places in the queue, and holds WRITE.
    holder.lock_exclusive(WRITE, 1).unwrap();
    assert_eq!(survivor.lock_exclusive(WRITE, 1), BUSY);
    let killer = Arc::clone(&process);
    let last: Hook = Box::new(move || *killer.left.lock().unwrap() = Some(0));
    assert!(catch_unwind(AssertUnwindSafe(|| queue_up(&dying, &process, 3, last))).is_err());
    assert!(memory.state().queued == 3);
    memory.pass(SUSPICION);
    survivor.lock_exclusive(WRITE, 1).unwrap();
    std::mem::forget(holder);
}
