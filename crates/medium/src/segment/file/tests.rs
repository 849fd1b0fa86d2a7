//! A segment that processes share through a file.

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use super::*;

fn join(dir: &tempfile::TempDir, bytes: u64, fresh: Option<u64>) -> Result<FileSegment, MediumError> {
    FileSegment::join(file(dir), &dir.path().join("segment"), bytes, fresh)
}

fn file(dir: &tempfile::TempDir) -> OwnFile {
    let path = dir.path().join("segment");
    std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap().into()
}

#[test]
fn processes_see_each_others_words_and_deaths() {
    let dir = tempfile::tempdir().unwrap();
    let one = join(&dir, 4096, Some(4096)).unwrap();
    let two = join(&dir, 4096, None).unwrap();
    assert_eq!((one.process_slot(), two.process_slot()), (0, 1));
    one.store(8, 7);
    assert_eq!(two.compare_exchange(8, 6, 9), Err(7));
    assert_eq!(two.compare_exchange(8, 7, 9), Ok(7));
    assert_eq!(one.fetch_or(8, 2), 9);
    assert_eq!(one.fetch_and(8, 3), 11);
    assert_eq!(one.fetch_add(8, 1), 3);
    assert_eq!(two.load(8), 4);
    two.write(100, b"bytes");
    let mut seen = [0; 5];
    one.read(100, &mut seen);
    assert_eq!(&seen, b"bytes");
    assert!(one.is_alive(0).unwrap() && one.is_alive(1).unwrap() && !one.is_alive(2).unwrap());
    drop(two);
    assert!(!one.is_alive(1).unwrap());
    let three = join(&dir, 4096, None).unwrap();
    assert_eq!(three.process_slot(), 1);
    assert_eq!(three.load(8), 4);
}

#[test]
fn a_fresh_segment_is_zero_and_a_short_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(join(&dir, 4096, None).is_err());
    join(&dir, 4096, Some(4096)).unwrap().store(0, 1);
    assert_eq!(join(&dir, 4096, Some(0)).unwrap().load(0), 1);
    assert_eq!(join(&dir, 4096, Some(8)).unwrap().load(0), 0);
}

/// A time that is longer than any test may take. A sleep of this length ends only if a thread wakes the
/// sleeper. So a test fails if no thread does.
const FOR_EVER: Duration = Duration::from_secs(1 << 30);

/// Runs work that has to end. Calls `meanwhile` repeatedly until the work has ended.
fn must_end(work: impl FnOnce() + Send + 'static, meanwhile: impl Fn()) {
    let (tell, told) = std::sync::mpsc::channel();
    // Do not join the thread, because work that never ends must not keep the test from failing.
    std::thread::spawn(move || {
        work();
        tell.send(()).unwrap();
    });
    let ends = (0..60_000).any(|_| {
        meanwhile();
        told.recv_timeout(Duration::from_millis(1)).is_ok()
    });
    assert!(ends, "it sleeps on");
}

#[test]
fn a_sleeper_is_woken_and_does_not_sleep_on_another_value() {
    let dir = tempfile::tempdir().unwrap();
    let segment = Arc::new(join(&dir, 4096, Some(4096)).unwrap());
    segment.store(16, 1 << 32 | 5);
    let sleeper = Arc::clone(&segment);
    must_end(move || sleeper.wait(16, 4, FOR_EVER), || ());
    // The value does not change, so only a wake-up ends the sleep.
    let sleeper = Arc::clone(&segment);
    must_end(move || sleeper.wait(16, 5, FOR_EVER), || segment.wake(16, 1));
}

#[test]
fn the_regions_of_an_index_are_shared_and_zeros_at_first() {
    let dir = tempfile::tempdir().unwrap();
    let one = join(&dir, 4096, Some(4096)).unwrap();
    assert!(one.index_region(1, false).unwrap().is_none());
    let region = one.index_region(1, true).unwrap().unwrap().cast::<u64>();
    // SAFETY: the address is inside the region, which exists as long as the segment.
    unsafe { region.write_volatile(7) };
    let two = join(&dir, 4096, None).unwrap();
    let seen = two.index_region(1, false).unwrap().unwrap().cast::<u64>();
    // SAFETY: the address is inside the region, as above.
    assert_eq!(unsafe { seen.read_volatile() }, 7);
    assert_eq!(one.index_region(1, false).unwrap().unwrap().cast(), region);
    drop((one, two));
    let three = join(&dir, 4096, Some(4096)).unwrap();
    let cleared = three.index_region(1, true).unwrap().unwrap().cast::<u64>();
    // SAFETY: the address is inside the region, as above.
    assert_eq!(unsafe { cleared.read_volatile() }, 0);
}

#[test]
fn a_segment_made_anew_keeps_the_space_of_the_first_region() {
    let dir = tempfile::tempdir().unwrap();
    let one = join(&dir, 4096, Some(4096)).unwrap();
    let first = one.index_region(0, true).unwrap().unwrap().cast::<u64>();
    // SAFETY: the address is inside the region, which exists as long as the segment.
    unsafe { first.write_volatile(7) };
    one.index_region(1, true).unwrap().unwrap();
    let space = || std::fs::metadata(dir.path().join("segment")).unwrap().blocks() * 512;
    let before = space();
    drop(one);
    let two = join(&dir, 4096, Some(4096)).unwrap();
    assert!(before - space() <= crate::REGION_BYTES, "{before} and then {}", space());
    let cleared = two.index_region(0, true).unwrap().unwrap().cast::<u64>();
    // SAFETY: the address is inside the region, as above.
    assert_eq!(unsafe { cleared.read_volatile() }, 0);
}

fn look(dir: &tempfile::TempDir, bytes: u64) -> FileSegment {
    let path = dir.path().join("segment");
    let file = std::fs::File::open(&path).unwrap();
    FileSegment::join_read_only(file.into(), &path, bytes).unwrap()
}

#[test]
fn who_may_only_read_sees_the_words_and_changes_none() {
    let dir = tempfile::tempdir().unwrap();
    let process = join(&dir, 4096, Some(4096)).unwrap();
    let reader = look(&dir, 4096);
    process.store(8, 7);
    assert_eq!(reader.load(8), 7);
    reader.store(8, 1);
    assert_eq!(reader.compare_exchange(8, 7, 1), Err(7));
    assert_eq!((reader.fetch_or(8, 8), reader.fetch_and(8, 0), reader.fetch_add(8, 1)), (7, 7, 7));
    reader.write(8, &[1; 8]);
    reader.wake(8, 1);
    reader.wait(8, 1, FOR_EVER);
    assert_eq!(process.load(8), 7);
    assert!(reader.is_alive(0).unwrap() && !reader.is_alive(1).unwrap());
    assert!(reader.index_region(0, true).unwrap().is_none(), "it makes no regions");
    let made = process.index_region(0, true).unwrap().unwrap().cast::<u64>();
    let seen = reader.index_region(0, false).unwrap().unwrap().cast::<u64>();
    // SAFETY: the addresses are inside the regions, which exist as long as the segments.
    unsafe {
        made.write_volatile(9);
        assert_eq!(seen.read_volatile(), 9);
    }
    assert!(reader.share_use(Use::Any).unwrap());
    assert!(process.share_use(Use::Any).unwrap() && !process.take_use(Use::Any).unwrap());
    drop(reader);
    assert!(process.take_use(Use::Any).unwrap());
}

#[test]
fn processes_find_the_marks_of_who_may_only_read() {
    let dir = tempfile::tempdir().unwrap();
    let process = join(&dir, 4096, Some(4096)).unwrap();
    let (one, two) = (look(&dir, 4096), look(&dir, 4096));
    assert!(!process.has_outside_readers(0, 8).unwrap());
    assert!(one.hold_mark(4).unwrap() && two.hold_mark(4).unwrap());
    assert!(process.has_outside_readers(0, 8).unwrap() && process.has_outside_readers(4, 1).unwrap());
    assert!(!process.has_outside_readers(5, 3).unwrap() && !process.has_outside_readers(3, 1).unwrap());
    assert!(!FileSegment::has_live_readers(&file(&dir)).unwrap());
    one.set_live(true).unwrap();
    assert!(FileSegment::has_live_readers(&file(&dir)).unwrap());
    one.release_mark(4);
    assert!(process.has_outside_readers(4, 1).unwrap());
    assert!(!FileSegment::has_live_readers(&file(&dir)).unwrap());
    drop(two);
    assert!(!process.has_outside_readers(0, 8).unwrap());
}

#[test]
fn somebody_may_only_read_what_the_mode_says() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    drop(join(&dir, 4096, Some(4096)).unwrap());
    for (mode, readable) in [(0o600, false), (0o660, false), (0o666, false), (0o644, true), (0o640, true)] {
        file(&dir).set_permissions(PermissionsExt::from_mode(mode)).unwrap();
        assert_eq!(join(&dir, 4096, None).unwrap().is_readable(), readable, "{mode:o}");
    }
}

#[test]
fn one_alone_or_many_use_it() {
    let dir = tempfile::tempdir().unwrap();
    let one = join(&dir, 4096, Some(4096)).unwrap();
    let two = join(&dir, 4096, None).unwrap();
    assert!(one.share_use(Use::Any).unwrap() && one.take_use(Use::Any).unwrap());
    assert!(!two.share_use(Use::Any).unwrap());
    assert!(one.share_use(Use::Any).unwrap() && two.share_use(Use::Any).unwrap());
    assert!(!one.take_use(Use::Any).unwrap() && !two.take_use(Use::Any).unwrap());
    assert!(one.share_use(Use::Wal).unwrap() && one.take_use(Use::Wal).unwrap());
    assert!(!two.share_use(Use::Wal).unwrap());
    one.end_use(Use::Wal);
    assert!(two.take_use(Use::Wal).unwrap() && !one.take_use(Use::Any).unwrap());
    drop(two);
    assert!(one.take_use(Use::Any).unwrap());
}

#[test]
fn who_leaves_is_gone_although_a_process_that_is_being_started_has_the_descriptor() {
    let dir = tempfile::tempdir().unwrap();
    let one = join(&dir, 4096, Some(4096)).unwrap();
    let two = join(&dir, 4096, None).unwrap();
    assert!(one.share_use(Use::Any).unwrap() && two.share_use(Use::Any).unwrap());
    // This copy of the descriptor stands for the one that a new process has until it executes its program.
    let inherited = two.file().try_clone().unwrap();
    drop(two);
    assert!(!one.has_other_processes().unwrap() && one.take_use(Use::Any).unwrap());
    drop(inherited);
}

/// If a program is reading `/proc/PID/stat` when that process dies, the kernel keeps the process's mappings
/// for a moment.
#[test]
fn who_has_died_is_gone_although_the_mappings_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let one = join(&dir, 4096, Some(4096)).unwrap();
    let two = join(&dir, 4096, None).unwrap();
    // Simulate the death of the process: its descriptor is closed, but its mappings still exist.
    // SAFETY: the segment still owns the descriptor's number. From here on, another file has this number.
    let mut number = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(two.file().as_raw_fd()) });
    rustix::io::dup2(File::open("/dev/null").unwrap(), &mut number).unwrap();
    assert!(!one.is_alive(1).unwrap());
    assert_eq!(join(&dir, 4096, None).unwrap().process_slot(), 1);
}

#[test]
#[should_panic(expected = "outside the segment")]
fn positions_outside_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _ = join(&dir, 4096, Some(4096)).unwrap().load(4096);
}
