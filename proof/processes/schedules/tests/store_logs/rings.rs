//! Tests per-thread logs in persistent memory. A thread that commits also flushes the logs of the other
//! threads.

use std::sync::Arc;

use duralite_crashmodel::RecordingNvm;
use duralite_schedules::rounds;

use super::{NAMED, SEED, check, run};
use crate::format::Lsn;
use crate::log::rings::RingsLog;
use crate::log::{Log, refuse};

const BYTES: u64 = 64 << 10;
const LARGEST: u64 = 1024;

fn create() -> (Arc<RecordingNvm>, Arc<dyn Log>) {
    let nvm = Arc::new(RecordingNvm::new(0, BYTES * 4));
    let layout = RingsLog::layout(BYTES, LARGEST, SEED, 1);
    (nvm.clone(), Arc::new(RingsLog::create(nvm, layout, LARGEST, Arc::default()).unwrap()))
}

/// Opens the logs that are left after a power failure.
fn crash(nvm: &RecordingNvm, seed: u64) -> RingsLog {
    RingsLog::open(Arc::new(nvm.crash(seed)), NAMED, LARGEST, Arc::default(), &mut refuse).unwrap()
}

fn explore(gives_up: bool) {
    let round = move || {
        let (nvm, log) = create();
        let keeper = gives_up.then(|| {
            let log = Arc::clone(&log);
            shuttle::thread::spawn(move || {
                for _ in 0..6 {
                    log.persist_some();
                    log.truncate(log.durable()).unwrap();
                    shuttle::thread::yield_now();
                }
            })
        });
        let medium = Arc::clone(&nvm);
        let numbers = run(&log, 3, 2, move |lsn: Lsn| crash(&medium, lsn).next() > lsn);
        keeper.into_iter().for_each(|keeper| keeper.join().unwrap());
        let again = crash(&nvm, 0);
        assert!(again.head() >= log.head());
        check(&numbers, again.head(), &again);
    };
    shuttle::check_random(round, rounds(300));
}

#[test]
fn inv30_a_commit_is_durable_in_all_logs() {
    explore(false);
}

#[test]
fn inv30_what_is_given_up_beside_commits_is_not_missed() {
    explore(true);
}
