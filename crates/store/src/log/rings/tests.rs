use duralite_crashmodel::RecordingNvm;
use duralite_logfmt::store::ObjectKind;

use super::*;

const SEED: u64 = 7;
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
    (nvm.clone(), RingsLog::open(nvm, SEED, 4096, Arc::default()))
}

/// Appends by a thread of its own, and makes it durable; in which ring it came.
fn append(log: &RingsLog) -> usize {
    let ring = || {
        let lsn = log.append(object()).unwrap();
        (0..log.rings.len()).for_each(|at| log.persist(at));
        let has = |ring: &Mutex<Ring>| ring.lock().objects.iter().any(|object| object.lsn == lsn);
        log.rings.iter().position(has).unwrap()
    };
    std::thread::scope(|scope| scope.spawn(ring).join().unwrap())
}

/// As if the newest object of a ring had not become durable.
fn lose(log: &RingsLog, ring: usize, bytes: &mut [u8]) {
    let at = log.layout.offset(ring as u64, log.rings[ring].lock().objects.back().unwrap().place) as usize;
    bytes[at..at + 64].fill(0);
}

#[test]
fn inv30_what_a_recovery_has_cut_off_never_comes_back() {
    let (nvm, log) = create();
    let lost = append(&log);
    let cut = append(&log);
    assert_ne!(lost, cut);
    let mut bytes = nvm.to_bytes();
    lose(&log, lost, &mut bytes);
    let (nvm, log) = open(bytes);
    let log = log.unwrap();
    assert_eq!(log.next(), 1);
    append(&log);
    log.truncate(2).unwrap();
    // The second object of before is what would come first from here on.
    let (_, again) = open(nvm.to_bytes());
    assert_eq!(again.unwrap().next(), 2);
}

#[test]
fn inv30_nor_after_several_recoveries_that_were_stopped() {
    let (nvm, log) = create();
    append(&log);
    let lost = append(&log);
    let cut = append(&log);
    assert_ne!(lost, cut);
    let mut bytes = nvm.to_bytes();
    lose(&log, lost, &mut bytes);
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
    let last = append(&log);
    let (opened, _) = open(nvm.to_bytes());
    let mut bytes = opened.to_bytes();
    lose(&log, last, &mut bytes);
    assert!(matches!(open(bytes).1, Err(Error::Corrupt { .. })));
}
