//! Group commit's words and ring under a weak memory model. The tests run the real code on a simulated memory
//! in which loads may return old values, as they may on a processor that reorders loads.

use std::sync::Arc;
use std::time::Duration;

use duralite_medium::block::{Block, BlockCounters, Durability};
use duralite_medium::{Guarantee, PROCESS_SLOTS};
use duralite_schedules::weak::{Loads, WeakMemory, WeakProcess};

use super::*;
use crate::shared::group::{LEADER, RING, RING_BYTES, writing};

const DATA_OFFSET: u64 = 3 * AREA_BYTES;
const OLD: [u8; 16] = [1; 16];
const NEW: [u8; 16] = [2; 16];
/// The byte position of the old bytes, and a later byte position at the same offset in the ring.
const AT: u64 = DATA_OFFSET;
const AGAIN: u64 = AT + RING_BYTES;

/// A device that always has the old bytes.
#[derive(Debug)]
struct OldBlock;

impl Block for OldBlock {
    fn block_bytes(&self) -> u32 {
        512
    }

    fn len(&self) -> u64 {
        1 << 30
    }

    fn preallocate(&self, _len: u64) -> Result<(), MediumError> {
        Ok(())
    }

    fn refresh_len(&self) -> Result<(), MediumError> {
        Ok(())
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        assert_eq!(at, DATA_OFFSET);
        buf.copy_from_slice(&OLD[..buf.len()]);
        Ok(())
    }

    fn write(&self, _at: u64, _blocks: &[u8]) -> Result<(), MediumError> {
        Ok(())
    }

    fn write_durably(&self, at: u64, blocks: &[u8], _durability: Durability) -> Result<(), MediumError> {
        let expected = if at == DATA_OFFSET { OLD } else { NEW };
        assert_eq!((blocks.len(), &blocks[..16]), (512, &expected[..]), "at {at}");
        Ok(())
    }

    fn flush(&self) -> Result<(), MediumError> {
        Ok(())
    }

    fn counters(&self) -> BlockCounters {
        BlockCounters::default()
    }

    fn guarantee(&self) -> Guarantee {
        Guarantee::PowerLoss
    }

    fn describe(&self) -> String {
        String::new()
    }
}

/// Groups without a header, like those of embedded frames.
struct Bare;

impl Framing for Bare {
    fn header_bytes(&self) -> u64 {
        0
    }

    fn placeholder(&self, _generation: u64, _time_ms: u64) -> Vec<u8> {
        Vec::new()
    }

    fn complete(
        &self,
        _group: &mut [u8],
        _generation: u64,
        _offset: u64,
        _ordered: bool,
    ) -> Result<u64, LogError> {
        Ok(1)
    }

    fn begin(&self, _block: &dyn Block, _: &Generation, _later: bool) -> Result<(), MediumError> {
        Ok(())
    }
}

fn join(process: Arc<WeakProcess>, first: bool) -> Group {
    let geometry = Geometry {
        block_bytes: 512,
        data_offset: DATA_OFFSET,
        limit_bytes: 1 << 30,
        path: "/model.db".into(),
    };
    let options = GroupOptions { durability: Durability::Full, leader_patience: Duration::ZERO, settings: 0 };
    let recovered = first.then_some(Recovered { generation: 1, end: DATA_OFFSET });
    Group::join(process, 0, Arc::new(OldBlock), geometry, Arc::new(Bare), options, recovered).unwrap()
}

/// Returns the groups of two processes that share a log. The old bytes are the last group of the log, whether or not
/// it is durable.
fn pair() -> [Group; 2] {
    let place = RING + AT % RING_BYTES;
    let ranges = [0..LENGTH + 8, writing(0)..writing(PROCESS_SLOTS), place..place + 512];
    let memory = WeakMemory::new(&ranges, Loads::Old);
    let groups = [join(memory.join(0), true), join(memory.join(1), false)];
    groups[0].segment.write(place, &OLD);
    groups[0].set(DIRECT_END, 0);
    groups
}

/// Sets the words as if so much had been committed that the next transaction overwrites the old bytes in the ring.
fn go_round(group: &Group) {
    let closed = Mark { position: AGAIN, group: 2, closed: true };
    group.set(FRONTIER, AGAIN);
    group.set(DURABLE, Mark { closed: false, ..closed }.pack());
    group.set(TAIL, closed.pack());
}

fn append(group: &Group) {
    let (placing, _) = group.append(Content::Anywhere(&NEW), 0).unwrap();
    assert_eq!(placing.at, AGAIN);
}

fn check(bound: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = bound;
    builder.check(model);
}

#[test]
fn inv11_a_reader_never_takes_bytes_from_the_ring_that_are_written_over_meanwhile() {
    check(Some(3), || {
        let [writer, reader] = pair();
        go_round(&writer);
        let writing = loom::thread::spawn(move || append(&writer));
        let mut read = [0; 16];
        reader.read(1, AT, &mut read).unwrap();
        assert_eq!(read, OLD);
        writing.join().unwrap();
    });
}

#[test]
fn inv11_what_is_sealed_is_whole_in_the_ring() {
    check(Some(3), || {
        let [writer, reader] = pair();
        go_round(&writer);
        let writing = loom::thread::spawn(move || append(&writer));
        if reader.sealed() > AGAIN {
            let mut read = [0; 16];
            reader.read(1, AGAIN, &mut read).unwrap();
            assert_eq!(read, NEW);
        }
        writing.join().unwrap();
    });
}

#[test]
fn inv11_a_leader_that_is_replaced_writes_no_bytes_but_its_groups() {
    check(None, || {
        let [replaced, other] = pair();
        let sealed = Mark { position: AT + 16, group: 1, closed: false };
        other.set(FRONTIER, sealed.position);
        other.set(TAIL, sealed.pack());
        let replacing = loom::thread::spawn(move || {
            let word = other.get(LEADER);
            if let Some(leader) = other.acquire(word, 0) {
                other.flush(&leader).unwrap();
                if other.durable().position == AT + 16 {
                    go_round(&other);
                    append(&other);
                }
            }
        });
        if let Some(leader) = replaced.try_lead() {
            replaced.flush(&leader).unwrap();
        }
        replacing.join().unwrap();
    });
}
