use std::sync::{Arc, Barrier};

use duralite_crashmodel::{OverBlock, RecordingBlock, Through};
use duralite_medium::MediumError;
use duralite_medium::block::{Block, Durability};
use rustix::io::Errno;

use crate::error::Error;
use crate::format::{Batch, DISK_DATA_OFFSET, DISK_SLOT_OFFSETS, Object, ObjectKind};
use crate::log::disk::{DiskLog, Grouping};
use crate::log::{Log, Named, refuse};

const SEED: u64 = 7;
const NAMED: Named = Named { seed: SEED, home: 0 };

fn object() -> Vec<u8> {
    Object::build(ObjectKind::System, 0, 0, &[5; 100], &[])
}

fn open(bytes: Vec<u8>) -> (Arc<RecordingBlock>, Result<DiskLog, Error>) {
    let block = Arc::new(RecordingBlock::from_bytes(bytes, 4096));
    let log = DiskLog::open(block.clone(), NAMED, Grouping::Apart, Arc::default(), &mut refuse);
    (block, log)
}

/// Returns the bytes of a log with three batches of one object each.
fn three_batches() -> Vec<u8> {
    let block = Arc::new(RecordingBlock::new(4096));
    let head = DiskLog::layout(&*block, 1 << 20, SEED);
    let log = DiskLog::create(block.clone(), head, 1, Grouping::Apart, Arc::default()).unwrap();
    for _ in 0..3 {
        let lsn = log.append(&mut object()).unwrap();
        log.force(lsn).unwrap();
    }
    block.to_bytes()
}

/// Changes the claims of the batches to what they would be if all batches had been written at the same time.
fn at_once(bytes: &mut [u8]) {
    for place in [0, 4096, 8192] {
        let block = &mut bytes[DISK_DATA_OFFSET as usize + place..][..4096];
        let batch = Batch::claimed(block, place as u64).unwrap();
        Batch { durable: 1, ..batch }.seal(block, SEED);
    }
}

/// Clears the batch at a place, as if the batch had never been written.
fn lose(bytes: &mut [u8], place: usize) {
    bytes[DISK_DATA_OFFSET as usize + place..][..4096].fill(0);
}

#[test]
fn inv33_what_a_recovery_has_cut_off_never_comes_back() {
    let mut bytes = three_batches();
    at_once(&mut bytes);
    lose(&mut bytes, 4096);
    let (block, log) = open(bytes);
    let log = log.unwrap();
    assert_eq!(log.next(), 2);
    let lsn = log.append(&mut object()).unwrap();
    log.force(lsn).unwrap();
    // The third batch of the first log is still on the medium, right after the new batch. Only its epoch shows that it
    // is not part of the log.
    log.truncate(3).unwrap();
    let (_, again) = open(block.to_bytes());
    assert_eq!(again.unwrap().next(), 3);
}

/// The third batch claims that the second one, which is now missing, was durable.
#[test]
fn inv48_a_batch_that_a_later_one_has_seen_durable_is_missed() {
    let mut bytes = three_batches();
    lose(&mut bytes, 4096);
    let error = open(bytes).1.unwrap_err().to_string();
    assert!(error.contains("log object 2,") && error.contains("bytes 16384 to 20480"), "{error}");
    let mut bytes = three_batches();
    lose(&mut bytes, 8192);
    assert_eq!(open(bytes).1.unwrap().next(), 3);
}

/// One of the two slots is damaged. If that is the newer slot, the store uses the older one, which was written before
/// the log wrapped around. The store may then report that the log is damaged, but it must not take the log for shorter
/// than it is.
#[test]
fn inv48_a_damaged_slot_is_no_end_of_the_log() {
    let block = Arc::new(RecordingBlock::new(4096));
    let head = DiskLog::layout(&*block, 1 << 20, SEED);
    let log = DiskLog::create(block.clone(), head, 1, Grouping::Apart, Arc::default()).unwrap();
    let append = || {
        let lsn = log.append(&mut object()).unwrap();
        log.force(lsn).unwrap();
    };
    for _ in 0..2 {
        (0..200).for_each(|_| append());
        log.truncate(log.next() - 1).unwrap();
    }
    let whole = open(block.to_bytes()).1.unwrap().next();
    assert_eq!(whole, 401);
    for slot in DISK_SLOT_OFFSETS {
        let mut bytes = block.to_bytes();
        bytes[slot as usize] ^= 1;
        match open(bytes).1 {
            Ok(log) => assert_eq!(log.next(), whole),
            Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error}"),
        }
    }
}

#[test]
fn inv33_a_batch_that_was_durable_when_the_epoch_began_is_missed() {
    let (block, log) = open(three_batches());
    assert_eq!(log.unwrap().next(), 4);
    let mut bytes = block.to_bytes();
    lose(&mut bytes, 8192);
    assert!(matches!(open(bytes).1, Err(Error::Corrupt { .. })));
}

/// A batch that does not fit before the end of the circular area goes to the area's beginning. How much space is lost
/// depends on the size of the batch.
#[test]
fn inv38_what_a_log_says_is_free_can_be_appended_wherever_it_ends() {
    for blocks in [700, 769, 800, 900, 1023] {
        let block = Arc::new(RecordingBlock::new(4096));
        let head = DiskLog::layout(&*block, 4 << 20, SEED);
        let log = DiskLog::create(block.clone(), head, 1, Grouping::Grouped, Arc::default()).unwrap();
        let object = || Object::build(ObjectKind::System, 0, 0, &[5; 3900], &[]);
        for _ in 0..blocks {
            let lsn = log.append(&mut object()).unwrap();
            log.force(lsn).unwrap();
        }
        log.truncate(blocks - 511).unwrap();
        let mut last = 0;
        while log.space().free_bytes > 2 * 4096 {
            last = log.append(&mut object()).unwrap();
        }
        log.force(last).unwrap_or_else(|error| panic!("after {blocks} blocks: {error}"));
    }
}

/// With little memory, one force writes several batches. All appended objects must be in the log afterwards.
#[test]
fn a_log_with_little_memory_writes_smaller_batches() {
    for grouping in [Grouping::Central, Grouping::Grouped, Grouping::Apart] {
        let block = Arc::new(RecordingBlock::new(4096));
        let head = DiskLog::layout(&*block, 8 << 20, SEED);
        let log = DiskLog::create(block.clone(), head, 1, grouping, Arc::default()).unwrap();
        let roomy = log.memory_bytes();
        let log = log.with_memory(256 << 10);
        assert!(log.memory_bytes() <= roomy / 2, "{grouping:?}: {} of {roomy}", log.memory_bytes());
        let object = || Object::build(ObjectKind::System, 0, 0, &[5; 3900], &[]);
        for _ in 0..30 {
            log.append(&mut object()).unwrap();
        }
        log.force(30).unwrap();
        assert_eq!(log.durable(), 31);
        let mut seen = 0;
        log.scan(1, 31, &mut |lsn, _| {
            seen = lsn;
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, 30);
        assert_eq!(open(block.to_bytes()).1.unwrap().next(), 31);
    }
}

/// Blocks on which the first two batches are written at the same time. The first write fails, but the kernel reports
/// this failure to the thread that makes the second write.
#[derive(Debug)]
struct TwoAtOnce {
    below: RecordingBlock,
    /// The barrier at which the two threads meet three times: when the first write has begun, when both writes have
    /// begun, and when both may end.
    meeting: Barrier,
}

impl OverBlock for TwoAtOnce {
    fn below(&self) -> &dyn Block {
        &self.below
    }

    fn write_durably(&self, at: u64, blocks: &[u8], durability: Durability) -> Result<(), MediumError> {
        match at.checked_sub(DISK_DATA_OFFSET) {
            Some(0) => {
                self.meeting.wait();
                self.meeting.wait();
                self.meeting.wait();
                Ok(())
            }
            Some(4096) => {
                self.meeting.wait();
                self.meeting.wait();
                Err(MediumError::from_errno("fdatasync", Errno::IO))
            }
            _ => self.below.write_durably(at, blocks, durability),
        }
    }
}

#[test]
fn inv37_a_failed_flush_counts_for_all_writes_that_were_being_made() {
    let block = Arc::new(Through(TwoAtOnce { below: RecordingBlock::new(4096), meeting: Barrier::new(2) }));
    let head = DiskLog::layout(&*block, 1 << 20, SEED);
    let log = DiskLog::create(block.clone(), head, 1, Grouping::Apart, Arc::default()).unwrap();
    let first = log.append(&mut object()).unwrap();
    std::thread::scope(|scope| {
        let forced = scope.spawn(|| log.force(first));
        block.0.meeting.wait();
        let second = log.append(&mut object()).unwrap();
        log.force(second).unwrap_err();
        let forced = forced.join().unwrap();
        assert!(matches!(forced, Err(Error::Poisoned { .. })), "{forced:?}");
    });
    assert_eq!(log.durable(), 1);
}

/// Appends objects, each in a batch of its own.
fn append(log: &DiskLog, count: u64) {
    for _ in 0..count {
        let lsn = log.append(&mut object()).unwrap();
        log.force(lsn).unwrap();
    }
}

/// A log is copied to devices with other block sizes, and back, and continues on each of them. `RecordingBlock` panics
/// if a write does not consist of whole blocks.
#[test]
fn inv33_a_log_goes_on_on_devices_with_other_blocks() {
    let block = Arc::new(RecordingBlock::new(512));
    let head = DiskLog::layout(&*block, 1 << 20, SEED);
    let log = DiskLog::create(block.clone(), head, 1, Grouping::Grouped, Arc::default()).unwrap();
    append(&log, 3);
    let mut bytes = block.to_bytes();
    let mut next = 4;
    for (turn, block_bytes) in [4096, 4096, 512, 4096, 1024, 512].into_iter().cycle().take(24).enumerate() {
        let block = Arc::new(RecordingBlock::from_bytes(bytes, block_bytes));
        let log = DiskLog::open(block.clone(), NAMED, Grouping::Grouped, Arc::default(), &mut refuse);
        let log = log.unwrap_or_else(|error| panic!("blocks of {block_bytes} in turn {turn}: {error}"));
        assert_eq!(log.next(), next, "blocks of {block_bytes} in turn {turn}");
        let mut seen = 0;
        let mut count = |_, _: &[u8]| {
            seen += 1;
            Ok(())
        };
        log.scan(log.head(), next, &mut count).unwrap();
        assert_eq!(seen, next - log.head());
        // Some rounds append nothing. Some rounds do not truncate the log, and others truncate all of it.
        append(&log, turn as u64 % 4);
        next += turn as u64 % 4;
        if turn % 3 == 1 {
            log.truncate(next - turn as u64 % 2).unwrap();
        }
        bytes = block.to_bytes();
    }
}

/// The new batches share no block with batches that are already durable. So a power failure during a write cannot
/// damage durable batches.
#[test]
fn inv33_the_first_batch_in_larger_blocks_touches_no_durable_one() {
    let block = Arc::new(RecordingBlock::new(512));
    let head = DiskLog::layout(&*block, 1 << 20, SEED);
    let log = DiskLog::create(block.clone(), head, 1, Grouping::Grouped, Arc::default()).unwrap();
    append(&log, 3);
    let before = block.to_bytes();
    let block = Arc::new(RecordingBlock::from_bytes(before.clone(), 4096));
    let log = DiskLog::open(block.clone(), NAMED, Grouping::Grouped, Arc::default(), &mut refuse).unwrap();
    append(&log, 1);
    let at = DISK_DATA_OFFSET as usize;
    assert!(block.to_bytes()[at..][..4096] == before[at..][..4096]);
    let batch = Batch::claimed(&block.to_bytes()[at + 4096..], 4096).unwrap();
    assert_eq!((batch.first_lsn, batch.objects), (4, 1));
}
