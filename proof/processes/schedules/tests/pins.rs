//! Tests the pins of followers under explored schedules. Writers start the log over while followers pin it.
//! Writers and followers may die.

#![allow(clippy::expect_used, reason = "a failed expectation is a failed test")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use duralite_medium::PROCESS_SLOTS;
use duralite_schedules::{Death, Memory, Sleep, rounds};
use duralite_wal::shared::pins::{PINS_BYTES, Pins, Recycling};

/// The true state of the log, for comparison with the pins: the positions before its first transaction and
/// after its last one.
#[derive(Default)]
struct Log {
    oldest: AtomicU64,
    end: AtomicU64,
    restarts: AtomicU64,
    refused: AtomicU64,
}

impl Log {
    fn oldest(&self) -> u64 {
        self.oldest.load(Ordering::SeqCst)
    }

    fn end(&self) -> u64 {
        self.end.load(Ordering::SeqCst)
    }
}

/// Does what a holder of the WRITE lock does: commits, and then starts the log over if that is allowed.
fn write(pins: &Pins, log: &Log) {
    log.end.fetch_add(1, Ordering::SeqCst);
    let recycling = Recycling { oldest: log.oldest(), end: log.end(), is_full: false };
    if pins.may_recycle(&recycling).expect("asked") {
        // SQLite syncs the database between these two calls of `may_recycle`. So other processes can run
        // here.
        shuttle::thread::yield_now();
        assert!(pins.may_recycle(&recycling).expect("asked"), "decided, and refused");
        log.oldest.store(recycling.end, Ordering::SeqCst);
        log.restarts.fetch_add(1, Ordering::SeqCst);
    } else {
        log.refused.fetch_add(1, Ordering::SeqCst);
    }
}

/// Waits for as many steps as the writer needs to check every process slot.
fn let_the_writer_look() {
    (0..PROCESS_SLOTS).for_each(|_| shuttle::thread::yield_now());
}

/// Pins the beginning of the log, checks that the log still has the pinned part, reads to the end, and moves
/// the pin there.
fn follow(pins: &Pins, log: &Log) {
    let mut position = log.oldest();
    if !pins.pin(position) {
        position = log.end();
        if !pins.pin(position) {
            return;
        }
    }
    if position < log.oldest() {
        // The log started over before this follower set its pin.
        pins.unpin();
        return;
    }
    for _ in 0..3 {
        let_the_writer_look();
        assert!(log.oldest() <= position, "what was pinned at {position} is gone");
        position = log.end();
        assert!(pins.pin(position), "a pin that holds moves forward");
    }
    pins.unpin();
}

fn unless_it_dies(work: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(work))
        && !panic.is::<Death>()
    {
        std::panic::resume_unwind(panic);
    }
}

/// Lets a writer die at an operation, and lets another writer take its place. One of two followers may die
/// too.
fn a_log_starts_over_while_it_is_pinned(writer_dies: Option<u64>, follower_dies: Option<u64>) -> Arc<Log> {
    let memory = Memory::new(PINS_BYTES, Sleep::MayEnd);
    let log = Arc::new(Log::default());
    log.end.store(1, Ordering::SeqCst);
    let followers: Vec<_> = [(1, None), (2, follower_dies)]
        .map(|(index, dies)| {
            let (memory, log) = (Arc::clone(&memory), Arc::clone(&log));
            shuttle::thread::spawn(move || {
                let pins = Pins::new(memory.join(index, dies), 0);
                unless_it_dies(|| {
                    pins.unpin();
                    follow(&pins, &log);
                });
            })
        })
        .into_iter()
        .collect();
    let (of_writer, of_log) = (Arc::clone(&memory), Arc::clone(&log));
    let writer = shuttle::thread::spawn(move || {
        let pins = Pins::new(of_writer.join(0, writer_dies), 0);
        unless_it_dies(|| (0..3).for_each(|_| write(&pins, &of_log)));
        let pins = Pins::new(of_writer.join(3, None), 0);
        (0..2).for_each(|_| write(&pins, &of_log));
    });
    followers.into_iter().for_each(|follower| follower.join().expect("a follower"));
    writer.join().expect("the writers");
    // The living followers have released their pins, and the pins of dead followers do not count.
    let before = log.oldest();
    write(&Pins::new(memory.join(4, None), 0), &log);
    assert!(log.oldest() > before, "nobody is in the way");
    log
}

#[test]
fn inv16_nothing_that_is_pinned_is_recycled_in_random_schedules() {
    let (restarts, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let counts = (Arc::clone(&restarts), Arc::clone(&refused));
    shuttle::check_random(
        move || {
            let log = a_log_starts_over_while_it_is_pinned(None, None);
            counts.0.fetch_add(log.restarts.load(Ordering::SeqCst), Ordering::SeqCst);
            counts.1.fetch_add(log.refused.load(Ordering::SeqCst), Ordering::SeqCst);
        },
        rounds(10000),
    );
    let (restarts, refused) = (restarts.load(Ordering::SeqCst), refused.load(Ordering::SeqCst));
    assert!(restarts > 0 && refused > 0, "{restarts} restarts, {refused} refused: nothing was raced");
}

#[test]
fn inv16_nothing_that_is_pinned_is_recycled_in_schedules_with_few_switches() {
    shuttle::check_pct(|| drop(a_log_starts_over_while_it_is_pinned(None, None)), rounds(10000), 3);
}

#[test]
fn inv16_nothing_that_is_pinned_is_recycled_when_processes_die_at_any_operation() {
    std::panic::set_hook(Box::new(|_| {}));
    let at = AtomicU64::new(0);
    // Every schedule kills the processes at different operations.
    shuttle::check_random(
        move || {
            let at = at.fetch_add(1, Ordering::SeqCst);
            drop(a_log_starts_over_while_it_is_pinned(Some(at % 700), Some(at / 3 % 9)));
        },
        rounds(10000),
    );
}

/// A control: the follower ignores what `pin` returns. In some schedule the log then starts over although it
/// is pinned.
#[test]
#[should_panic(expected = "is gone")]
fn control_a_pin_that_is_only_stored_does_not_hold() {
    shuttle::check_random(
        || {
            let memory = Memory::new(PINS_BYTES, Sleep::MayEnd);
            let log = Arc::new(Log::default());
            log.end.store(1, Ordering::SeqCst);
            let (of_writer, of_log) = (Arc::clone(&memory), Arc::clone(&log));
            let writer = shuttle::thread::spawn(move || {
                let pins = Pins::new(of_writer.join(0, None), 0);
                (0..3).for_each(|_| write(&pins, &of_log));
            });
            let pins = Pins::new(memory.join(1, None), 0);
            let position = log.oldest();
            let _ = pins.pin(position);
            if position >= log.oldest() {
                (0..4).for_each(|_| let_the_writer_look());
                assert!(log.oldest() <= position, "what was pinned at {position} is gone");
            }
            pins.unpin();
            writer.join().expect("the writer");
        },
        rounds(10000),
    );
}
