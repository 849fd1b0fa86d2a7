//! Power failures at any step, on simulated media.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use crate::common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use common::crash::{Images, OnRig, Rig};
use common::crowd::{Course, content};
use common::data::{Data, smallest as small};
use common::lists::{self, key};
use common::schemes;
use duralite_histories::check;
use duralite_store::{Rule, Scheme, Store};

/// Returns how many runs the tests make for each scheme. `STORE_CRASHES` sets another number.
fn runs() -> u64 {
    std::env::var("STORE_CRASHES").ok().and_then(|runs| runs.parse().ok()).unwrap_or(6)
}

fn course(data: Data, scheme: Scheme, seed: u64, threads: u64, count: u64, crashes: usize) -> Course {
    Course { data, options: small(scheme), seed, threads, count, crashes }
}

/// Checks at least `STORE_STATES` states on all processors, with seeds from `DURALITE_SEED` on. Does nothing if
/// `STORE_STATES` is not set.
#[test]
fn inv30_crash_states_at_length() {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let Some(wanted) = number("STORE_STATES") else { return };
    let begun = Instant::now();
    let first = number("DURALITE_SEED").unwrap_or(1);
    let (next, states) = (AtomicU64::new(first), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while states.load(Ordering::SeqCst) < wanted {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    let scheme = schemes()[(seed % 6) as usize];
                    let threads = 1 + seed / 6 % 4;
                    // Every third run has ten times as much data as the cache holds. Checking its states takes longer.
                    let data = Data::ALL[usize::from((seed / 6).is_multiple_of(3))];
                    let more = course(data, scheme, seed, threads, 60 / threads, 100).explore();
                    states.fetch_add(more, Ordering::SeqCst);
                }
            });
        }
    });
    let (states, runs) = (states.into_inner(), next.into_inner() - first);
    let seconds = begun.elapsed().as_secs();
    println!(
        "| store | crash states of memory and blocks | {states} states in {runs} runs of all schemes, a third of them at ten times \
         the smallest cache, those of crashes in recovery among them | {seconds} |"
    );
}

/// A control: the test breaks a rule on purpose. If locks are released before the commit is logged, a crash may lose a
/// transaction whose changes another transaction has read. The check must notice that.
#[test]
fn inv39_locks_that_are_released_before_the_commit_is_logged_are_noticed() {
    let is_noticed = |seed| {
        let rig = Rig::new(None);
        let store = Store::open_on(OnRig(Arc::clone(&rig)), small(Scheme::FlushOnInsert)).unwrap();
        store.break_rule(Rule::LockUntilLogged);
        let ran = course(Data::InCache, Scheme::FlushOnInsert, seed, 6, 30, 12).run(&rig, &store);
        drop(store);
        rig.crashes().into_iter().any(|crash| {
            // Some of the images cannot even be opened. They are ignored here, because this test is about the checker.
            let rig = Rig::new(Some(crash.images));
            let opened = Store::open_on(OnRig(rig), small(Scheme::FlushOnInsert));
            opened.is_ok_and(|store| {
                let found = lists::read_all(&store, &store.table("lists").unwrap());
                check(&ran.known(crash.acknowledged), &found).is_err()
            })
        })
    };
    assert!((0..20).any(is_noticed));
}

#[test]
fn inv30_what_was_acknowledged_survives_a_power_failure_at_any_step() {
    for seed in 0..runs() {
        for scheme in schemes() {
            course(Data::InCache, scheme, seed, 1, 60, 12).explore();
        }
    }
}

#[test]
fn inv39_with_many_threads_too() {
    for seed in 0..runs() {
        for scheme in schemes() {
            course(Data::InCache, scheme, 1000 + seed, 4, 30, 12).explore();
        }
    }
}

/// With this much data, the store evicts pages and writes them to the page file all the time.
#[test]
fn inv30_nor_at_ten_times_the_smallest_cache() {
    for seed in 0..runs().div_ceil(4) {
        for scheme in schemes() {
            course(Data::TenTimes, scheme, 2000 + seed, 1, 30, 8).explore();
            course(Data::TenTimes, scheme, 3000 + seed, 4, 15, 8).explore();
        }
    }
}

#[test]
fn inv30_the_death_of_the_process_loses_nothing() {
    for data in Data::ALL {
        for scheme in schemes() {
            let course = course(data, scheme, 7, 3, 40, 0);
            let rig = data.rig(scheme);
            let store = course.open(&rig).unwrap();
            let ran = course.run(&rig, &store);
            let again = course.open(&Rig::new(Some(rig.death()))).unwrap();
            check(&ran.history, &content(&again)).unwrap_or_else(|why| panic!("{data:?}, {scheme:?}: {why}"));
        }
    }
}

/// A control: the test leaves out one flush or fence of the log's memory. Some crash must then lose a row.
#[test]
fn inv32_a_flush_or_fence_left_out_is_noticed() {
    for scheme in [Scheme::FlushOnInsert, Scheme::FlushOnCommit, Scheme::Distributed] {
        for is_fence in [false, true] {
            let noticed = (0..40).filter(|seed| loses_something(scheme, *seed, is_fence)).count();
            assert!(noticed > 0, "{scheme:?}, fences {is_fence}: none of 40 noticed");
        }
    }
}

/// Returns whether an acknowledged row is lost if one flush or fence after the opening of the store has no effect.
fn loses_something(scheme: Scheme, seed: u64, is_fence: bool) -> bool {
    let rig = Rig::new(None);
    let store = Store::open_on(OnRig(Arc::clone(&rig)), small(scheme)).unwrap();
    let table = store.table("t").unwrap();
    if is_fence {
        rig.memory.drop_fence(seed % 8)
    } else {
        rig.memory.drop_flush(seed % 8)
    }
    let mut tx = store.begin();
    tx.put(&table, b"key", b"value").unwrap();
    tx.commit().unwrap();
    let images = Images {
        pages: rig.pages.crash_at_random(seed),
        blocks: vec![],
        memory: rig.memory.crash(seed).to_bytes(),
    };
    let rig = Rig::new(Some(images));
    let Ok(store) = Store::open_on(OnRig(rig), small(scheme)) else { return true };
    let Ok(table) = store.table("t") else { return true };
    let found = store.run(|tx| tx.get(&table, b"key"));
    found.map_or(true, |found| found.is_none())
}

/// A crash tears a page while the store writes it to the page file. Recovery must repair the page.
#[test]
fn inv31_torn_pages_are_put_right() {
    let rig = Rig::new(None);
    let store = Store::open_on(OnRig(Arc::clone(&rig)), small(Scheme::Auto)).unwrap();
    let table = store.table("t").unwrap();
    for n in 0..400_u64 {
        store.run(|tx| tx.put(&table, &key(n), &[n as u8; 300])).unwrap();
    }
    for seed in 0..20 {
        for n in 0..50_u64 {
            store.run(|tx| tx.put(&table, &key(n * 8), &[(n + seed) as u8; 300])).unwrap();
        }
        rig.crash(8, 60, seed);
        store.checkpoint().unwrap();
        for crash in rig.crashes() {
            let again = Store::open_on(OnRig(Rig::new(Some(crash.images))), small(Scheme::Auto)).unwrap();
            again.verify().unwrap();
            let table = again.table("t").unwrap();
            for n in 0..50_u64 {
                let row = again.run(|tx| tx.get(&table, &key(n * 8))).unwrap();
                assert_eq!(row, Some(vec![(n + seed) as u8; 300]), "seed {seed}, step {}", crash.step);
            }
        }
    }
}
