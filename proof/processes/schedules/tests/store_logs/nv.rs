//! Tests the log in persistent memory: insertion, commit and recycling.

use std::sync::Arc;

use duralite_crashmodel::RecordingNvm;
use duralite_schedules::rounds;

use super::{NAMED, SEED, check, run};
use crate::error::Error;
use crate::format::Lsn;
use crate::log::nv::{Flush, NvLog};
use crate::log::{Log, refuse};

const BYTES: u64 = 512 << 10;

fn create(flush: Flush) -> (Arc<RecordingNvm>, Arc<dyn Log>) {
    let nvm = Arc::new(RecordingNvm::new(0, BYTES * 4));
    let layout = NvLog::layout(BYTES, 1024, SEED, 1);
    (nvm.clone(), Arc::new(NvLog::create(nvm, layout, flush, Arc::default()).unwrap()))
}

fn try_crash(nvm: &RecordingNvm, seed: u64) -> Result<NvLog, Error> {
    NvLog::open(Arc::new(nvm.crash(seed)), NAMED, Flush::OnInsert, Arc::default(), &mut refuse)
}

/// Opens the log that is left after a power failure.
fn crash(nvm: &RecordingNvm, seed: u64) -> NvLog {
    try_crash(nvm, seed).unwrap()
}

fn explore(flush: Flush, with_daemon: bool) {
    let round = move || {
        let (nvm, log) = create(flush);
        let daemon = with_daemon.then(|| {
            let log = Arc::clone(&log);
            shuttle::thread::spawn(move || (0..4).for_each(|_| log.persist_some()))
        });
        let medium = Arc::clone(&nvm);
        let numbers = run(&log, 3, 2, move |lsn: Lsn| crash(&medium, lsn).next() > lsn);
        daemon.into_iter().for_each(|daemon| daemon.join().unwrap());
        check(&numbers, 1, &crash(&nvm, 0));
    };
    shuttle::check_random(round, rounds(300));
}

#[test]
fn inv30_a_commit_on_insert_is_durable_with_all_before_it() {
    explore(Flush::OnInsert, false);
}

#[test]
fn inv30_a_commit_is_durable_whoever_makes_it_so() {
    explore(Flush::OnCommit, false);
    explore(Flush::OnCommit, true);
}

#[test]
fn inv32_what_is_given_up_beside_commits_is_not_missed() {
    let round = || {
        let (nvm, log) = create(Flush::OnCommit);
        let keeper = {
            let log = Arc::clone(&log);
            shuttle::thread::spawn(move || {
                for _ in 0..6 {
                    log.truncate(log.durable()).unwrap();
                    shuttle::thread::yield_now();
                }
            })
        };
        let medium = Arc::clone(&nvm);
        let numbers = run(&log, 3, 2, move |lsn: Lsn| crash(&medium, lsn).next() > lsn);
        keeper.join().unwrap();
        let again = crash(&nvm, 0);
        assert!(again.head() >= log.head());
        check(&numbers, again.head(), &again);
    };
    shuttle::check_random(round, rounds(300));
}

/// A control. The test must notice a fence that does nothing.
#[test]
#[should_panic(expected = "acknowledged too early")]
fn inv32_a_fence_that_does_nothing_is_noticed() {
    let round = || {
        let (nvm, log) = create(Flush::OnCommit);
        nvm.drop_fence(1);
        let medium = Arc::clone(&nvm);
        // If the log has a gap, recovery refuses the log. Here that counts as a loss, like a log that ends
        // too early.
        let has = move |seed, lsn| try_crash(&medium, seed).is_ok_and(|log| log.next() > lsn);
        run(&log, 2, 1, move |lsn: Lsn| (0..8).all(|seed| has(seed, lsn)));
    };
    shuttle::check_random(round, rounds(300).max(50));
}
