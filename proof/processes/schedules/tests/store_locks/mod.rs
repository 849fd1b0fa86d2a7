//! Tests the lock manager of the store under the schedule explorer.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use duralite_schedules::rounds;

use crate::locks::{Key, Locks, Mode, Refused, Target};
use crate::sync::with_sleeps_that_end;

const LIMIT: Duration = Duration::from_secs(1);

fn row(key: u8) -> Target {
    Target::Row(1, Key::from(&[key][..]))
}

fn range(from: u8, to: u8) -> Target {
    Target::Range(1, (Bound::Included([from][..].into()), Bound::Excluded([to][..].into())))
}

/// Runs each transaction on a thread of its own. Returns their results.
fn run(
    locks: &Arc<Locks>,
    transactions: Vec<Vec<(Target, Mode)>>,
    inside: impl Fn(usize, bool) + Send + Sync + 'static,
) -> Vec<Result<(), Refused>> {
    let inside = Arc::new(inside);
    let threads = (0..).zip(transactions).map(|(nth, wants)| {
        let (locks, inside) = (Arc::clone(locks), Arc::clone(&inside));
        shuttle::thread::spawn(move || {
            let mut held = locks.begin(nth as u64 + 1);
            let taken =
                wants.iter().try_for_each(|(target, mode)| locks.take(&mut held, target, *mode, LIMIT));
            if taken.is_ok() {
                inside(nth, true);
                shuttle::thread::yield_now();
                inside(nth, false);
            }
            locks.release(&mut held, 0);
            taken
        })
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Counts the transactions that hold conflicting locks at the same time.
#[derive(Default)]
struct Inside(AtomicU64);

impl Inside {
    fn alone(&self, enters: bool) {
        if enters {
            assert_eq!(self.0.fetch_add(1, Ordering::SeqCst), 0, "two at once");
        } else {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn inv36_no_wake_up_is_lost_and_nobody_is_beside_a_writer() {
    shuttle::check_random(
        || {
            let locks = Arc::new(Locks::new(false));
            let inside = Inside::default();
            let exclusive = || vec![(row(1), Mode::Exclusive)];
            let done = run(&locks, vec![exclusive(), exclusive(), exclusive()], move |_, enters| {
                inside.alone(enters);
            });
            assert!(done.iter().all(Result::is_ok));
            assert!(locks.is_idle());
        },
        rounds(2000),
    );
}

#[test]
fn inv36_a_range_and_a_row_in_it_are_never_held_at_once() {
    shuttle::check_random(
        || {
            let locks = Arc::new(Locks::new(false));
            let inside = Inside::default();
            let wants = vec![
                vec![(range(1, 9), Mode::Shared)],
                vec![(row(3), Mode::Exclusive)],
                vec![(row(9), Mode::Exclusive)],
            ];
            let done = run(&locks, wants, move |nth, enters| {
                // The last transaction locks a row outside the range, so it may run at the same time as the
                // others.
                if nth < 2 {
                    inside.alone(enters);
                }
            });
            assert!(done.iter().all(Result::is_ok));
            assert!(locks.is_idle());
        },
        rounds(500),
    );
}

#[test]
fn a_circle_is_broken_by_one_that_gives_way() {
    let explore = || {
        shuttle::check_random(
            || {
                let locks = Arc::new(Locks::new(false));
                let wants =
                    |first, second| vec![(row(first), Mode::Exclusive), (row(second), Mode::Exclusive)];
                let done = run(&locks, vec![wants(1, 2), wants(2, 3), wants(3, 1)], |_, _| ());
                let gave_way = done.iter().filter(|done| done.is_err()).count();
                assert!(gave_way <= 1, "{done:?}");
                assert!(locks.is_idle());
            },
            rounds(1000),
        );
    };
    with_sleeps_that_end(explore);
}

#[test]
fn what_is_left_to_the_next_transaction_keeps_nobody_waiting() {
    shuttle::check_random(
        || {
            let locks = Arc::new(Locks::new(true));
            let inside = Arc::new(Inside::default());
            let users: Vec<_> = (0..2)
                .map(|nth| {
                    let (locks, inside) = (Arc::clone(&locks), Arc::clone(&inside));
                    shuttle::thread::spawn(move || {
                        for round in 0..2 {
                            let mut held = locks.begin(nth * 2 + round + 1);
                            let target = Target::Table(7);
                            let mode = if nth == 0 { Mode::IntentionExclusive } else { Mode::Exclusive };
                            locks.take(&mut held, &target, mode, LIMIT).unwrap();
                            inside.alone(true);
                            shuttle::thread::yield_now();
                            inside.alone(false);
                            locks.release(&mut held, 0);
                        }
                    })
                })
                .collect();
            users.into_iter().for_each(|user| user.join().unwrap());
        },
        rounds(2000),
    );
}
