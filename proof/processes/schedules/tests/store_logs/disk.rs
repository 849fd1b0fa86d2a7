//! Tests group commit on block devices: leaders, waiters, and the circular log.

use std::sync::Arc;

use duralite_crashmodel::RecordingBlock;
use duralite_schedules::rounds;

use super::{NAMED, SEED, check, run};
use crate::format::Lsn;
use crate::log::disk::{DiskLog, Grouping};
use crate::log::{Log, refuse};

fn create(grouping: Grouping) -> (Arc<RecordingBlock>, Arc<dyn Log>) {
    let block = Arc::new(RecordingBlock::new(4096));
    let head = DiskLog::layout(&*block, 1 << 20, SEED);
    let log = DiskLog::create(block.clone(), head, 1, grouping, Arc::default()).unwrap();
    (block, Arc::new(log))
}

fn crash(block: &RecordingBlock, seed: u64) -> DiskLog {
    let block = RecordingBlock::from_bytes(block.crash_at_random(seed), 4096);
    DiskLog::open(Arc::new(block), NAMED, Grouping::Grouped, Arc::default(), &mut refuse).unwrap()
}

fn explore(grouping: Grouping, gives_up: bool) {
    let round = move || {
        let (block, log) = create(grouping);
        let keeper = gives_up.then(|| {
            let log = Arc::clone(&log);
            shuttle::thread::spawn(move || {
                for _ in 0..4 {
                    log.truncate(log.durable()).unwrap();
                    shuttle::thread::yield_now();
                }
            })
        });
        let medium = Arc::clone(&block);
        let numbers = run(&log, 3, 2, move |lsn: Lsn| crash(&medium, lsn).next() > lsn);
        keeper.into_iter().for_each(|keeper| keeper.join().unwrap());
        let again = crash(&block, 0);
        assert!(again.head() >= log.head());
        check(&numbers, again.head(), &again);
    };
    shuttle::check_random(round, rounds(40));
}

#[test]
fn inv33_no_wake_up_of_a_group_is_lost() {
    for grouping in [Grouping::Central, Grouping::Grouped, Grouping::Apart] {
        explore(grouping, false);
    }
}

#[test]
fn inv33_what_is_given_up_beside_commits_is_not_missed() {
    for grouping in [Grouping::Central, Grouping::Grouped, Grouping::Apart] {
        explore(grouping, true);
    }
}
