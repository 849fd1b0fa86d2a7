//! The logs of the store under the schedule explorer: they are the modules themselves, with other mutexes and atomics.
//!
//! Every thread's commit is durable when it returns, whoever made it so; numbers are given once; what is given up is used
//! again by nobody too early.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../../../crates/store/src/counter.rs"]
mod counter;
#[allow(dead_code)]
#[path = "../../../../crates/store/src/error.rs"]
mod error;
#[allow(dead_code, unused_imports)]
#[path = "../../../../crates/store/src/log/mod.rs"]
mod log;
#[allow(dead_code)]
#[path = "../../../../crates/store/src/poison.rs"]
mod poison;
#[allow(dead_code)]
#[path = "../store_locks/sync.rs"]
mod sync;

mod disk;
mod nv;
mod rings;

use std::collections::BTreeSet;
use std::sync::Arc;
// `error` derives with it.
use thiserror as _;

use duralite_logfmt::store::{Lsn, Object, ObjectKind};
use rustc_hash as _; // of another test

use log::Log;

const SEED: u64 = 7;

/// An object that says who appended it.
fn object(thread: u64, nth: u64) -> Vec<u8> {
    Object::build(ObjectKind::System, thread << 32 | nth, 0, &[7; 50], &[])
}

/// Threads append and commit; each is told of a commit only when `is_durable` says so. The numbers that each thread got.
fn run(
    log: &Arc<dyn Log>,
    threads: u64,
    commits: u64,
    is_durable: impl Fn(Lsn) -> bool + Send + Sync + 'static,
) -> Vec<Vec<Lsn>> {
    let is_durable = Arc::new(is_durable);
    let threads: Vec<_> = (0..threads)
        .map(|thread| {
            let (log, is_durable) = (Arc::clone(log), Arc::clone(&is_durable));
            shuttle::thread::spawn(move || {
                let commit = |nth| {
                    let first = log.append(&mut object(thread, nth * 2)).unwrap();
                    let last = log.append(&mut object(thread, nth * 2 + 1)).unwrap();
                    log.force(last).unwrap();
                    assert!(log.durable() > last);
                    assert!(is_durable(last), "object {last} of thread {thread} was acknowledged too early");
                    [first, last]
                };
                (0..commits).flat_map(commit).collect::<Vec<Lsn>>()
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Every number was given once, in the order of each thread, and what is recovered is all of it, as it was appended.
fn check(numbers: &[Vec<Lsn>], from: Lsn, log: &dyn Log) {
    let all: BTreeSet<Lsn> = numbers.iter().flatten().copied().collect();
    assert_eq!(all.len(), numbers.iter().map(Vec::len).sum::<usize>());
    assert!(numbers.iter().all(|own| own.is_sorted()));
    let mut seen = BTreeSet::new();
    log.scan(from, log.next(), &mut |lsn, bytes| {
        let tx = Object::decode(bytes, log.seed()).unwrap().header.tx;
        assert_eq!(numbers[(tx >> 32) as usize][(tx & 0xFFFF) as usize], lsn);
        seen.insert(lsn);
        Ok(())
    })
    .unwrap();
    assert_eq!(seen, all.range(from..).copied().collect());
}
