//! Tests in which processes write blocks one after the other, and an observer reads them.

use std::sync::Arc;

use duralite_medium::{LocalSegment, Segment};

use super::{Counter, METRICS_BYTES, ProcessMetrics, Recorder, fill, read_all};
use crate::engine::{Fill, Led};
use crate::metrics::BLOCK_BYTES;

/// Where the blocks begin in the segments of these tests.
const BASE: u64 = 64;

fn segment() -> Arc<LocalSegment> {
    Arc::new(LocalSegment::new(BASE + METRICS_BYTES))
}

/// Returns a process that has just got the slot.
fn process(segment: &Arc<LocalSegment>, beginning: u64) -> Recorder {
    Recorder::join(segment.clone(), BASE, beginning);
    Recorder::new(segment.clone(), BASE)
}

fn read(segment: &LocalSegment, beginning: u64) -> ProcessMetrics {
    let mut all = read_all(segment, BASE, beginning).unwrap();
    assert_eq!(all.len(), 1);
    all.remove(0)
}

const HALF_FULL: Fill = Fill { used_bytes: 1 << 20, limit_bytes: 2 << 20 };

#[test]
fn what_is_counted_is_read() {
    let segment = segment();
    let own = process(&segment, 1);
    assert_eq!(fill(&[read(&segment, 1)], segment.clock_ns()), None, "no commit yet");
    for _ in 0..3 {
        own.committed(segment.clock_ns(), HALF_FULL);
    }
    own.count(Counter::Refusals, 2);
    own.led(Led { groups: 4, transactions: 9 });
    own.led(Led { groups: 4, transactions: 9 });
    own.led(Led { groups: 5, transactions: 12 });
    own.count(Counter::SnapshotsMoved, 7);
    own.count(Counter::RoomFailures, 3);
    let seen = read(&segment, 1);
    assert_eq!((seen.commits, seen.latencies.count()), (3, 3));
    assert_eq!(Counter::ALL.map(|counter| seen.counted(counter)), [2, 0, 5, 12, 0, 0, 0, 0, 0, 0, 7, 0, 3]);
    assert_eq!((seen.slot, seen.pid, seen.is_alive), (0, u64::from(std::process::id()), true));
    assert!(seen.latency_ns <= seen.latencies.percentile(1.0).unwrap() * 3);
    assert_eq!(fill(&[seen], segment.clock_ns()), Some(HALF_FULL));
}

#[test]
fn the_next_process_of_a_slot_goes_on_and_the_next_beginning_does_not() {
    let segment = segment();
    process(&segment, 1).committed(0, HALF_FULL);
    let next = process(&segment, 1);
    let seen = read(&segment, 1);
    assert_eq!((seen.latencies.count(), seen.commits), (1, 0), "of the slot, and of the process");
    next.committed(0, HALF_FULL);
    let seen = read(&segment, 1);
    assert_eq!((seen.latencies.count(), seen.commits), (2, 1));
    assert!(read_all(&*segment, BASE, 2).unwrap().is_empty(), "nobody has come since the memory began anew");
    process(&segment, 2);
    let seen = read(&segment, 2);
    assert_eq!((seen.latencies.count(), seen.commits, seen.latency_ns), (0, 0, 0));
}

#[test]
fn of_several_the_newest_knows_how_full_the_log_is() {
    let at = |time_ns: u64, used_bytes: u64| {
        let segment = segment();
        process(&segment, 1).committed(0, Fill { used_bytes, ..HALF_FULL });
        let mut seen = read(&segment, 1);
        seen.set_filled(used_bytes, time_ns);
        seen
    };
    let (now, second) = (1 << 40, 1 << 30);
    let three = [at(now - 2 * second, 1 << 20), at(now - second, 3 << 20), at(now - 3 * second, 2 << 20)];
    assert_eq!(fill(&three, now).unwrap().used_bytes, 3 << 20);
    // The time wraps after 52 days. The second commit is the newer one.
    let wrapped = 1 << 52;
    let two = [at(wrapped - second, 1 << 20), at(wrapped + second, 2 << 20)];
    assert_eq!(fill(&two, wrapped + 2 * second).unwrap().used_bytes, 2 << 20);
}

/// Values that other processes have invented are only numbers to an observer, and do no harm.
#[test]
fn nothing_that_is_in_a_block_does_harm() {
    let segment = segment();
    drop(process(&segment, 1));
    (8..BLOCK_BYTES).step_by(8).for_each(|word| segment.store(BASE + word, u64::MAX));
    let seen = read(&segment, 1);
    assert!(seen.latencies.percentile(0.5).is_some());
    assert!(fill(&[seen], segment.clock_ns()).is_some());
    process(&segment, 1).committed(u64::MAX, HALF_FULL);
}
