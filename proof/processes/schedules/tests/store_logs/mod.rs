//! Tests the logs of the store under the schedule explorer.
//!
//! When a commit returns, it is durable, no matter which thread has made it durable. The log assigns each
//! sequence number only once. No thread reuses discarded log space too early.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

mod disk;
mod nv;
mod rings;

use std::collections::BTreeSet;
use std::sync::Arc;

use duralite_store::format::{Lsn, Object, ObjectKind};

use crate::log::{Log, Named};

const SEED: u64 = 7;
const NAMED: Named = Named { seed: SEED, home: 0 };

/// Returns an object for the log. It contains the number of the thread that appends it.
fn object(thread: u64, nth: u64) -> Vec<u8> {
    Object::build(ObjectKind::System, thread << 32 | nth, 0, &[7; 50], &[])
}

/// Lets threads append and commit. Checks with `is_durable` that each commit is durable when it returns.
/// Returns the sequence numbers that each thread got.
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

/// Checks three things: the log assigned every number once, the numbers of each thread ascend, and the log
/// returns all objects as they were appended.
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
