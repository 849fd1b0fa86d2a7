use std::sync::Arc;

use duralite_crashmodel::RecordingNvm;

use crate::error::Error;
use crate::format::{HEAD_OFFSET, Lsn, OBJECT_ALIGNMENT, Object, ObjectKind, RINGS_OFFSET};
use crate::log::rings::RingsLog;
use crate::log::{Log, Named, refuse};

const SEED: u64 = 7;
const NAMED: Named = Named { seed: SEED, home: 0 };
const BYTES: u64 = 1 << 20;

fn object() -> Vec<u8> {
    Object::build(ObjectKind::System, 0, 0, &[5; 100], &[])
}

fn create() -> (Arc<RecordingNvm>, RingsLog) {
    let nvm = Arc::new(RecordingNvm::new(0, BYTES * 2));
    let layout = RingsLog::layout(BYTES, 4096, SEED, 1);
    (nvm.clone(), RingsLog::create(nvm, layout, 4096, Arc::default()).unwrap())
}

fn open(bytes: Vec<u8>) -> (Arc<RecordingNvm>, Result<RingsLog, Error>) {
    let nvm = Arc::new(RecordingNvm::from_bytes(bytes, BYTES * 2));
    (nvm.clone(), RingsLog::open(nvm, NAMED, 4096, Arc::default(), &mut refuse))
}

/// Appends an object in a new thread.
fn append_only(log: &RingsLog) -> Lsn {
    let append = || log.append(&mut object()).unwrap();
    std::thread::scope(|scope| scope.spawn(append).join().unwrap())
}

/// Appends an object like `append_only`, and makes it durable.
fn append(log: &RingsLog) -> Lsn {
    let lsn = append_only(log);
    log.force(lsn).unwrap();
    lsn
}

/// Returns the offset of the object with a number.
fn find(bytes: &[u8], lsn: Lsn) -> usize {
    let is_there = |at: &usize| bytes[at + 8..at + 16] == lsn.to_le_bytes() && bytes[*at..at + 8] != [0; 8];
    (RINGS_OFFSET as usize..bytes.len()).step_by(OBJECT_ALIGNMENT as usize).find(is_there).unwrap()
}

/// Clears an object, as if it had never become durable.
fn lose(bytes: &mut [u8], lsn: Lsn) {
    let at = find(bytes, lsn);
    bytes[at..at + 64].fill(0);
}

/// Returns the bytes of a log with `objects` objects. The last two are from different threads, which wrote them at the
/// same time. Of these two, only the second one has become durable.
fn with_a_gap(objects: u64) -> Vec<u8> {
    loop {
        let (nvm, log) = create();
        for _ in 2..objects {
            append(&log);
        }
        append_only(&log);
        append_only(&log);
        let mut bytes = nvm.to_bytes();
        // Objects of one thread lie close together. So if the last two objects are far apart, they are from different
        // threads.
        if find(&bytes, objects).abs_diff(find(&bytes, objects - 1)) > 4096 {
            lose(&mut bytes, objects - 1);
            return bytes;
        }
    }
}

#[test]
fn inv30_what_a_recovery_has_cut_off_never_comes_back() {
    let (nvm, log) = open(with_a_gap(2));
    let log = log.unwrap();
    assert_eq!(log.next(), 1);
    append(&log);
    log.truncate(2).unwrap();
    // The second object of the first log is still in memory. Only its epoch shows that it is not part of the log.
    let (_, again) = open(nvm.to_bytes());
    assert_eq!(again.unwrap().next(), 2);
}

#[test]
fn inv30_nor_after_several_recoveries_that_were_stopped() {
    let mut bytes = with_a_gap(3);
    for next in 2..40 {
        let (nvm, log) = open(bytes);
        let log = log.unwrap();
        assert_eq!(log.next(), next);
        append(&log);
        bytes = nvm.to_bytes();
    }
}

#[test]
fn inv30_an_object_that_was_durable_when_the_epoch_began_is_missed() {
    let (nvm, log) = create();
    append(&log);
    append(&log);
    let (opened, _) = open(nvm.to_bytes());
    let mut bytes = opened.to_bytes();
    lose(&mut bytes, 2);
    assert!(matches!(open(bytes).1, Err(Error::Corrupt { .. })));
}

/// The last object claims that the one before it was durable. That one is now missing.
#[test]
fn inv48_an_object_that_a_later_one_has_seen_durable_is_missed() {
    let (nvm, log) = create();
    for lsn in 1..=3 {
        assert_eq!(append(&log), lsn);
    }
    let mut bytes = nvm.to_bytes();
    lose(&mut bytes, 2);
    assert!(matches!(open(bytes).1, Err(Error::Corrupt { .. })));
    let mut bytes = nvm.to_bytes();
    lose(&mut bytes, 3);
    assert_eq!(open(bytes).1.unwrap().next(), 3);
}

#[test]
fn words_that_are_out_of_all_reckoning_are_damage() {
    let (nvm, log) = create();
    append(&log);
    for at in [HEAD_OFFSET, log_word()] {
        let mut bytes = nvm.to_bytes();
        bytes[at as usize..at as usize + 8].fill(0xFF);
        assert!(matches!(open(bytes).1, Err(Error::Corrupt { .. })));
    }
}

/// Objects begin at multiples of [`OBJECT_ALIGNMENT`], so the words that hold their places must be multiples too.
#[test]
fn a_rings_word_between_the_places_of_objects_is_damage() {
    let (nvm, log) = create();
    append(&log);
    for by in [1, 6, 8] {
        let mut bytes = nvm.to_bytes();
        bytes[log_word() as usize] ^= by;
        assert!(matches!(open(bytes).1, Err(Error::Corrupt { .. })), "{by}");
    }
}

/// Returns the offset of the word of the first ring.
fn log_word() -> u64 {
    RingsLog::layout(BYTES, 4096, SEED, 1).word_at(0)
}
