use std::ops::Bound;
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::locks::*;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(30);

fn row(key: &str) -> Target {
    Target::Row(1, Key::from(key.as_bytes()))
}

fn range(from: &str, to: &str) -> Target {
    Target::Range(1, (Bound::Included(from.as_bytes().into()), Bound::Excluded(to.as_bytes().into())))
}

#[test]
fn shared_locks_go_together_and_exclusive_ones_wait() {
    let locks = Locks::new(false);
    let (mut a, mut b) = (Held::new(1), Held::new(2));
    locks.take(&mut a, &row("k"), Mode::Shared, SHORT).unwrap();
    locks.take(&mut b, &row("k"), Mode::Shared, SHORT).unwrap();
    assert_eq!(locks.take(&mut b, &row("k"), Mode::Exclusive, SHORT), Err(Refused::Timeout));
    locks.release(&mut a, 0);
    locks.take(&mut b, &row("k"), Mode::Exclusive, SHORT).unwrap();
    assert_eq!(locks.take(&mut a, &row("k"), Mode::Shared, SHORT), Err(Refused::Timeout));
    locks.release(&mut b, 0);
    assert!(locks.is_idle());
}

#[test]
fn inv36_a_range_keeps_new_rows_out_and_rows_keep_ranges_out() {
    let locks = Locks::new(false);
    let (mut reader, mut writer) = (Held::new(1), Held::new(2));
    locks.take(&mut reader, &range("b", "d"), Mode::Shared, SHORT).unwrap();
    for (key, is_free) in [("a", true), ("b", false), ("c", false), ("d", true)] {
        let taken = locks.take(&mut writer, &row(key), Mode::Exclusive, SHORT);
        assert_eq!(taken.is_ok(), is_free, "{key}");
        locks.take(&mut writer, &row(key), Mode::Shared, SHORT).unwrap();
    }
    assert_eq!(locks.take(&mut reader, &range("d", "e"), Mode::Shared, SHORT), Err(Refused::Timeout));
    // The row "x" does not exist, but its key can be locked nevertheless.
    locks.take(&mut writer, &row("x"), Mode::Exclusive, SHORT).unwrap();
    assert_eq!(locks.take(&mut reader, &range("w", "z"), Mode::Shared, SHORT), Err(Refused::Timeout));
    // A transaction that reads a range may also change a row in it, if no other transaction reads the row.
    locks.take(&mut reader, &row("bb"), Mode::Exclusive, SHORT).unwrap();
    locks.release(&mut reader, 0);
    locks.release(&mut writer, 0);
    assert!(locks.is_idle());
}

#[test]
fn tables_are_locked_by_intentions() {
    let locks = Locks::new(false);
    let (mut a, mut b) = (Held::new(1), Held::new(2));
    locks.take(&mut a, &Target::Table(1), Mode::IntentionExclusive, SHORT).unwrap();
    locks.take(&mut b, &Target::Table(1), Mode::IntentionShared, SHORT).unwrap();
    assert_eq!(locks.take(&mut b, &Target::Table(1), Mode::Shared, SHORT), Err(Refused::Timeout));
    locks.take(&mut a, &Target::Table(1), Mode::Shared, SHORT).unwrap();
    assert_eq!(locks.take(&mut b, &Target::Table(1), Mode::IntentionExclusive, SHORT), Err(Refused::Timeout));
    locks.release(&mut a, 0);
    locks.release(&mut b, 0);
    assert!(locks.is_idle());
}

/// Lets each of `count` owners lock a row, and then the row of the next owner. Returns which of the owners had to give
/// way.
fn circle(count: u64) -> Vec<bool> {
    let locks = Locks::new(false);
    let barrier = Barrier::new(count as usize);
    let gave_way = |id: u64| {
        let mut held = Held::new(id + 1);
        locks.take(&mut held, &row(&id.to_string()), Mode::Exclusive, LONG).unwrap();
        barrier.wait();
        let next = ((id + 1) % count).to_string();
        let taken = locks.take(&mut held, &row(&next), Mode::Exclusive, LONG);
        locks.release(&mut held, 0);
        assert_ne!(taken, Err(Refused::Timeout));
        taken.is_err()
    };
    let gave_way = &gave_way;
    let all = thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|id| scope.spawn(move || gave_way(id))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(locks.is_idle());
    all
}

#[test]
fn of_those_that_wait_in_a_circle_the_youngest_gives_way() {
    for count in 2..6 {
        let all = circle(count);
        let expected: Vec<bool> = (0..count).map(|id| id == count - 1).collect();
        assert_eq!(all, expected);
    }
}

#[test]
fn two_that_both_want_more_than_shared_do_not_wait_for_ever() {
    let locks = Locks::new(false);
    let barrier = Barrier::new(2);
    let upgrade = |id| {
        let mut held = Held::new(id);
        locks.take(&mut held, &row("k"), Mode::Shared, LONG).unwrap();
        barrier.wait();
        let taken = locks.take(&mut held, &row("k"), Mode::Exclusive, LONG);
        locks.release(&mut held, 0);
        taken
    };
    let (first, second) = thread::scope(|scope| {
        let second = scope.spawn(|| upgrade(2));
        (upgrade(1), second.join().unwrap())
    });
    assert_eq!((first, second), (Ok(()), Err(Refused::Deadlock)));
    assert!(locks.is_idle());
}

#[test]
fn whoever_takes_a_lock_that_was_released_early_depends_on_that_commit() {
    let locks = Locks::new(false);
    let (mut a, mut b) = (Held::new(1), Held::new(2));
    locks.take(&mut a, &row("k"), Mode::Exclusive, SHORT).unwrap();
    locks.release(&mut a, 77);
    locks.take(&mut b, &row("k"), Mode::Shared, SHORT).unwrap();
    assert_eq!(b.depends_on(), 77);
    locks.release(&mut b, 99);
    // The second transaction changed nothing, so a transaction that takes the lock later does not depend on its commit.
    let mut c = Held::new(3);
    locks.take(&mut c, &range("a", "z"), Mode::Shared, SHORT).unwrap();
    assert_eq!(c.depends_on(), 77);
    locks.release(&mut c, 0);
}

#[test]
fn those_who_wait_are_let_through_in_order() {
    let locks = Locks::new(false);
    let mut first = Held::new(1);
    locks.take(&mut first, &row("k"), Mode::Shared, SHORT).unwrap();
    let order = std::sync::Mutex::new(Vec::new());
    thread::scope(|scope| {
        for (nth, (id, mode)) in [(2, Mode::Exclusive), (3, Mode::Shared)].into_iter().enumerate() {
            let (locks, order) = (&locks, &order);
            scope.spawn(move || {
                let mut held = Held::new(id);
                locks.take(&mut held, &row("k"), mode, LONG).unwrap();
                order.lock().unwrap().push(id);
                locks.release(&mut held, 0);
            });
            // Starts the next owner only when this one waits. So the queue order is known, and the reader must not
            // overtake the writer.
            while locks.waited.load(Ordering::Relaxed) <= nth as u64 {
                thread::yield_now();
            }
        }
        locks.release(&mut first, 0);
    });
    assert_eq!(order.into_inner().unwrap(), [2, 3]);
    assert!(locks.is_idle());
}

/// Lets the first owner get its lock, and the second owner wait for a lock. The third owner's request conflicts only
/// with the second owner's request, and has to wait too.
fn waits_behind([has, second, third]: [(Target, Mode); 3]) {
    let locks = Locks::new(false);
    let (mut first_held, mut third_held) = (Held::new(1), Held::new(3));
    locks.take(&mut first_held, &has.0, has.1, SHORT).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut held = Held::new(2);
            assert_eq!(locks.take(&mut held, &second.0, second.1, LONG), Ok(()));
            locks.release(&mut held, 0);
        });
        while locks.waited.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        let taken = locks.take(&mut third_held, &third.0, third.1, SHORT);
        // Releases the locks before the assertion. If the assertion failed first, the second owner would keep waiting.
        locks.release(&mut third_held, 0);
        locks.release(&mut first_held, 0);
        assert_eq!(taken, Err(Refused::Timeout), "{third:?} overtakes {second:?}");
    });
    assert!(locks.is_idle());
}

/// Returns a key whose locks are in the same part as those of the key `k`.
fn near_k() -> String {
    (0..).map(|n| format!("k{n}")).find(|key| part_of(1, key.as_bytes()) == part_of(1, b"k")).unwrap()
}

#[test]
fn whoever_waits_for_a_range_or_for_a_row_in_it_is_not_overtaken() {
    let (change, scan) = ((row("k"), Mode::Exclusive), (range("a", "z"), Mode::Shared));
    waits_behind([change.clone(), scan.clone(), (row(&near_k()), Mode::Exclusive)]);
    waits_behind([(row("k"), Mode::Shared), change, scan]);
}

/// Lets one owner hold the locks `has`, while other owners wait for the locks `other`. Then the first owner takes the
/// lock `wants`. No owner has to give way.
fn goes_first(has: &[Target], other: &[(Target, Mode)], wants: &Target) {
    let locks = Locks::new(false);
    let mut one = Held::new(1);
    for target in has {
        let mode = if matches!(target, Target::Range(..)) { Mode::Shared } else { Mode::Exclusive };
        locks.take(&mut one, target, mode, SHORT).unwrap();
    }
    thread::scope(|scope| {
        for (nth, (target, mode)) in other.iter().enumerate() {
            let locks = &locks;
            scope.spawn(move || {
                let mut held = Held::new(nth as u64 + 2);
                assert_eq!(locks.take(&mut held, target, *mode, LONG), Ok(()), "{target:?}");
                locks.release(&mut held, 0);
            });
            while locks.waited.load(Ordering::Relaxed) <= nth as u64 {
                thread::yield_now();
            }
        }
        assert_eq!(locks.take(&mut one, wants, Mode::Exclusive, LONG), Ok(()), "{wants:?}");
        locks.release(&mut one, 0);
    });
    assert_eq!(locks.deadlocks.load(Ordering::Relaxed), 0);
    assert!(locks.is_idle());
}

#[test]
fn whoever_has_read_a_range_changes_a_row_in_it_before_others_do() {
    goes_first(&[range("a", "z")], &[(row("k"), Mode::Exclusive)], &row("k"));
    goes_first(&[range("a", "z")], &[(row("k"), Mode::Exclusive), (row("k"), Mode::Shared)], &row("k"));
}

#[test]
fn whoever_has_changed_a_row_changes_another_before_others_read_both() {
    goes_first(&[row("k")], &[(range("a", "z"), Mode::Shared)], &row(&near_k()));
}

#[test]
fn ranges_of_a_scan_grow_together() {
    let locks = Locks::new(false);
    let mut scan = Held::new(1);
    for (from, to) in [("a", "b"), ("b", "c"), ("c", "f")] {
        locks.take(&mut scan, &range(from, to), Mode::Shared, SHORT).unwrap();
    }
    assert_eq!(scan.count(), PARTS);
    let mut writer = Held::new(2);
    for key in ["a", "b", "c", "ee"] {
        assert_eq!(
            locks.take(&mut writer, &row(key), Mode::Exclusive, Duration::ZERO),
            Err(Refused::Timeout)
        );
    }
    locks.take(&mut writer, &row("f"), Mode::Exclusive, SHORT).unwrap();
    locks.release(&mut scan, 0);
    locks.take(&mut writer, &row("ee"), Mode::Exclusive, SHORT).unwrap();
    locks.release(&mut writer, 0);
    assert!(locks.is_idle());
}

#[test]
fn what_is_left_to_the_next_transaction_is_taken_away_by_others() {
    let locks = Locks::new(true);
    let table = Target::Table(1);
    let mut first = locks.begin(1);
    locks.take(&mut first, &table, Mode::IntentionExclusive, SHORT).unwrap();
    locks.release(&mut first, 0);
    let mut second = locks.begin(2);
    locks.take(&mut second, &table, Mode::IntentionShared, SHORT).unwrap();
    assert_eq!(locks.inherited(), 1);
    // The inherited lock is in use, so the other transaction has to wait.
    let mut other = Held::new(3);
    assert_eq!(locks.take(&mut other, &table, Mode::Exclusive, SHORT), Err(Refused::Timeout));
    locks.release(&mut second, 0);
    locks.take(&mut other, &table, Mode::Exclusive, SHORT).unwrap();
    let mut third = locks.begin(4);
    assert_eq!(locks.take(&mut third, &table, Mode::IntentionShared, SHORT), Err(Refused::Timeout));
    locks.release(&mut other, 0);
    locks.take(&mut third, &table, Mode::IntentionShared, SHORT).unwrap();
    locks.release(&mut third, 0);
    assert!(locks.is_idle());
}

#[test]
fn whoever_waits_for_an_inherited_lock_is_woken_when_its_user_ends() {
    for _ in 0..200 {
        let locks = Locks::new(true);
        let table = Target::Table(1);
        let mut first = locks.begin(1);
        locks.take(&mut first, &table, Mode::IntentionExclusive, SHORT).unwrap();
        locks.release(&mut first, 0);
        let mut user = locks.begin(2);
        locks.take(&mut user, &table, Mode::IntentionExclusive, SHORT).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut other = Held::new(3);
                locks.take(&mut other, &table, Mode::Shared, LONG).unwrap();
                locks.release(&mut other, 0);
            });
            thread::yield_now();
            locks.release(&mut user, 0);
        });
    }
}

/// A transaction makes a table, and undoes this step. Another transaction that waits for the table then gets its lock,
/// although the first transaction has not ended. The first transaction keeps its other locks.
#[test]
fn inv51_the_lock_on_a_table_that_was_not_made_is_released_alone() {
    let locks = Locks::new(false);
    let mut maker = Held::new(1);
    let kept = [Target::Table(2), row("k"), Target::Table(3)];
    locks.take(&mut maker, &kept[0], Mode::Exclusive, SHORT).unwrap();
    locks.take(&mut maker, &Target::Table(9), Mode::Exclusive, SHORT).unwrap();
    for target in &kept[1..] {
        locks.take(&mut maker, target, Mode::Exclusive, SHORT).unwrap();
    }
    let mut other = Held::new(2);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| locks.take(&mut other, &Target::Table(9), Mode::Shared, LONG));
        while locks.waited.load(Ordering::Relaxed) == 0 {
            thread::yield_now();
        }
        locks.release_table(&mut maker, 9);
        assert_eq!(waiting.join().unwrap(), Ok(()));
    });
    for target in &kept {
        assert_eq!(locks.take(&mut other, target, Mode::Shared, Duration::ZERO), Err(Refused::Timeout));
    }
    // The maker no longer holds a lock on table 9. Another table may have that number by now, so the maker has to wait.
    assert_eq!(
        locks.take(&mut maker, &Target::Table(9), Mode::Exclusive, Duration::ZERO),
        Err(Refused::Timeout)
    );
    locks.release(&mut maker, 0);
    locks.take(&mut other, &kept[0], Mode::Exclusive, SHORT).unwrap();
    locks.release(&mut other, 0);
    assert!(locks.is_idle());
}
