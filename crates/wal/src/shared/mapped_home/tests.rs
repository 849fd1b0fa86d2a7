use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use duralite_medium::{Counters, LocalSegment};

use super::*;
use crate::engine::home::{HomeKind, Homed, OpenDatabase};

const PAGE: usize = 1024;

struct Fixture {
    file: OpenDatabase,
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Fixture {
    fn new(pages: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("app.db");
        std::fs::write(&path, vec![1; pages * PAGE]).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        Self { file: OpenDatabase::new(file, &path), path, _dir: dir }
    }

    fn home(&self, sync: HomeSync) -> MappedHome {
        MappedHome::new(self.file.map(HomeKind::Emulated).unwrap(), PAGE as u32, sync)
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.path).unwrap()
    }

    fn cut(&self, len: u64) {
        File::options().write(true).open(&self.path).unwrap().set_len(len).unwrap();
    }
}

/// Counts the operations of `work` on the memory.
fn counted(home: &MappedHome, work: impl FnOnce()) -> Counters {
    let before = home.nvm().counters();
    work();
    home.nvm().counters() - before
}

#[test]
fn what_is_written_is_in_the_file_and_the_other_way_round() {
    for sync in [HomeSync::Adaptive, HomeSync::WriteBack, HomeSync::WriteThrough] {
        let fixture = Fixture::new(2);
        let (file, home) = (&fixture.file, fixture.home(sync));
        home.write(file, &[7; PAGE], PAGE as u64).unwrap();
        home.write(file, &[8; 100], 30).unwrap();
        // This write begins two pages beyond the end of the file.
        home.write(file, &[9; PAGE], 4 * PAGE as u64).unwrap();
        home.sync(file).unwrap();
        let mut expected = vec![1; 2 * PAGE];
        expected[30..130].fill(8);
        expected[PAGE..].fill(7);
        expected.resize(4 * PAGE, 0);
        expected.resize(5 * PAGE, 9);
        assert_eq!(fixture.bytes(), expected);
        file.write(&[5; 10], 3).unwrap();
        let mut read = vec![0; 6 * PAGE];
        assert_eq!(home.read(file, &mut read, 0).unwrap(), 5 * PAGE);
        assert_eq!(read[..5 * PAGE], fixture.bytes());
        assert_eq!((read[2], read[3]), (1, 5));
        assert_eq!(home.read(file, &mut read, 5 * PAGE as u64).unwrap(), 0);
        assert_eq!(home.size(file).unwrap(), 5 * PAGE as u64);
        home.drain(file).unwrap();
    }
}

#[test]
fn lines_that_stay_the_same_are_not_stored_and_each_is_flushed_once() {
    let fixture = Fixture::new(2);
    let segment: Arc<dyn Segment> = Arc::new(LocalSegment::new(4096));
    let home = fixture.home(HomeSync::WriteBack).sharing(segment, 0);
    let file = &fixture.file;
    let mut page = vec![1; PAGE];
    let stored = counted(&home, || home.write(file, &page, 0).unwrap());
    assert_eq!((stored.stored_bytes, stored.flushed_lines), (0, 0));
    page[0] = 2;
    page[130..200].fill(2);
    let stored = counted(&home, || home.write(file, &page, 0).unwrap());
    assert_eq!((stored.stored_bytes, stored.flushed_lines), (3 * 64, 0));
    page[0] = 3;
    let synced = counted(&home, || {
        home.write(file, &page, 0).unwrap();
        home.sync(file).unwrap();
    });
    assert_eq!((synced.flushed_lines, synced.fences), (3, 1));
    let again = counted(&home, || home.sync(file).unwrap());
    assert_eq!((again.flushed_lines, again.fences), (0, 0));
    assert_eq!(fixture.bytes()[..PAGE], page);
}

#[test]
fn what_goes_past_the_cache_is_not_flushed_again() {
    let fixture = Fixture::new(2);
    let segment: Arc<dyn Segment> = Arc::new(LocalSegment::new(4096));
    let home = fixture.home(HomeSync::WriteThrough).sharing(segment, 0);
    let file = &fixture.file;
    let written = counted(&home, || {
        home.write(file, &[2; PAGE], 0).unwrap();
        home.sync(file).unwrap();
    });
    assert_eq!((written.streamed_lines, written.flushed_lines, written.fences), (16, 16, 1));
    let whole = fixture.home(HomeSync::WriteBack).with_whole_pages(true);
    let written = counted(&whole, || {
        whole.write(file, &[2; PAGE], 0).unwrap();
        whole.checkpointed(file).unwrap();
    });
    assert_eq!((written.stored_bytes, written.flushed_lines), (PAGE as u64, 16));
}

/// Every process sees the cache lines that a dead process stored and did not sync, but these cache lines are not
/// durable.
#[test]
fn inv20_lines_that_another_process_may_have_stored_are_flushed() {
    let fixture = Fixture::new(2);
    let segment: Arc<dyn Segment> = Arc::new(LocalSegment::new(4096));
    let home = || fixture.home(HomeSync::WriteBack).sharing(Arc::clone(&segment), 0);
    let (dead, next) = (home(), home());
    let file = &fixture.file;
    dead.write(file, &[2; PAGE], 0).unwrap();
    // Write the same page again: no line differs.
    let written = counted(&next, || {
        next.write(file, &[2; PAGE], 0).unwrap();
        next.sync(file).unwrap();
    });
    assert_eq!((written.stored_bytes, written.flushed_lines), (0, 16));
    let written = counted(&next, || {
        next.write(file, &[2; PAGE], 0).unwrap();
        next.sync(file).unwrap();
    });
    assert_eq!(written.flushed_lines, 0, "nobody has written since that sync");
}

#[test]
fn inv20_the_file_is_as_long_as_the_database_for_everybody() {
    let fixture = Fixture::new(4);
    let (file, home, other) =
        (&fixture.file, fixture.home(HomeSync::WriteBack), fixture.home(HomeSync::WriteBack));
    home.hint(file, 6 * PAGE as u64).unwrap();
    assert_eq!(fixture.bytes().len(), 6 * PAGE);
    home.truncate(file, 8 * PAGE as u64).unwrap();
    home.truncate(file, 2 * PAGE as u64).unwrap();
    assert_eq!(fixture.bytes(), vec![1; 2 * PAGE]);
    // Another process learns the size when SQLite asks for it, and grows the file from that size.
    assert_eq!(other.size(file).unwrap(), 2 * PAGE as u64);
    other.write(file, &[3; PAGE], 3 * PAGE as u64).unwrap();
    let mut read = [1; 2 * PAGE];
    assert_eq!(home.read(file, &mut read, 2 * PAGE as u64).unwrap(), 2 * PAGE);
    assert_eq!((read[0], read[PAGE], fixture.bytes().len()), (0, 3, 4 * PAGE));
}

#[test]
fn inv19_a_file_that_is_cut_ends_in_an_error_and_a_new_mapping_reads_what_is_left() {
    let fixture = Fixture::new(64);
    let (file, home) = (&fixture.file, fixture.home(HomeSync::WriteBack));
    let mut page = [0; PAGE];
    fixture.cut(8 * PAGE as u64);
    assert_eq!(home.read(file, &mut page, 0).unwrap(), PAGE);
    let cut = home.read(file, &mut page, 40 * PAGE as u64).unwrap_err();
    assert!(cut.to_string().contains("app.db"), "{cut}");
    assert!(home.read(file, &mut page, 0).is_err() && home.write(file, &page, 0).is_err());
    assert!(home.sync(file).is_err() && home.drain(file).is_err());
    let anew = fixture.home(HomeSync::WriteBack);
    assert_eq!(anew.read(file, &mut page, 7 * PAGE as u64).unwrap(), PAGE);
    assert_eq!(anew.read(file, &mut page, 40 * PAGE as u64).unwrap(), 0);
}

#[test]
fn inv19_stores_into_what_has_been_cut_end_in_an_error_too() {
    let fixture = Fixture::new(64);
    let (file, home) = (&fixture.file, fixture.home(HomeSync::WriteThrough));
    fixture.cut(0);
    assert!(home.write(file, &[4; PAGE], 40 * PAGE as u64).is_err());
    assert_eq!(fixture.bytes(), [0; 0]);
}

#[test]
fn the_header_is_that_of_the_file() {
    let fixture = Fixture::new(1);
    fixture.file.write(b"SQLite format 3\0", 0).unwrap();
    let home: Arc<dyn Home> = Arc::new(fixture.home(HomeSync::Adaptive));
    let homed = Homed::new(&fixture.file, Some(home));
    let mut page = vec![0; PAGE];
    assert_eq!(homed.read(&mut page, 0).unwrap(), PAGE);
    assert_eq!(page, fixture.bytes());
    page[18..20].fill(0xD7);
    homed.write(&page, 0).unwrap();
    assert_eq!(fixture.bytes(), page);
}

#[test]
fn holes_are_filled_when_the_file_is_mapped() {
    use std::os::unix::fs::MetadataExt;
    let fixture = Fixture::new(1);
    fixture.cut(1 << 20);
    let blocks = || std::fs::metadata(&fixture.path).unwrap().blocks();
    assert!(blocks() < 2048);
    let _home = fixture.home(HomeSync::Adaptive);
    assert!(blocks() >= 2048);
    assert_eq!(fixture.bytes().len(), 1 << 20);
}

#[test]
fn a_file_that_may_only_be_read_is_mapped_for_reading() {
    let fixture = Fixture::new(2);
    let read_only = OpenDatabase::new(File::open(&fixture.path).unwrap(), &fixture.path);
    let home = MappedHome::new(read_only.map(HomeKind::Emulated).unwrap(), PAGE as u32, HomeSync::Adaptive);
    let mut page = [0; PAGE];
    assert_eq!(home.read(&read_only, &mut page, 0).unwrap(), PAGE);
    assert_eq!(page, [1; PAGE]);
    assert!(home.write(&read_only, &page, 2 * PAGE as u64).is_err());
    fixture.file.write(&[1], 0).unwrap();
    let file = File::open(&fixture.path).unwrap();
    file.read_exact_at(&mut page, 0).unwrap();
}

/// A database file that checks whether a thread could store something during a sync of the file.
struct Syncing<'a> {
    file: &'a OpenDatabase,
    home: &'a MappedHome,
    locked: std::cell::Cell<u32>,
}

impl DatabaseFile for Syncing<'_> {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        self.file.read(buf, offset)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<(), LogError> {
        self.file.write(bytes, offset)
    }

    fn sync(&self) -> Result<(), LogError> {
        self.locked.set(self.locked.get() + u32::from(self.home.state.try_lock().is_err()));
        self.file.sync()
    }

    fn size(&self) -> Result<u64, LogError> {
        self.file.size()
    }

    fn truncate(&self, bytes: u64) -> Result<(), LogError> {
        self.file.truncate(bytes)
    }
}

/// A thread may store something after the kernel has begun to sync. It must enter its process's name in the word only
/// after the sync has cleared the word. Otherwise the sync would clear that name too.
#[test]
fn inv20_nothing_is_stored_between_a_sync_and_the_word_that_says_so() {
    let fixture = Fixture::new(2);
    let segment: Arc<dyn Segment> = Arc::new(LocalSegment::new(4096));
    let [home, other] = [0; 2].map(|_| fixture.home(HomeSync::WriteBack).sharing(Arc::clone(&segment), 64));
    other.write(&fixture.file, &[2; PAGE], 0).unwrap();
    home.write(&fixture.file, &[3; PAGE], 0).unwrap();
    let file = Syncing { file: &fixture.file, home: &home, locked: std::cell::Cell::new(0) };
    home.drain(&file).unwrap();
    assert_eq!(file.locked.get(), 1);
    home.write(&fixture.file, &[4; PAGE], 0).unwrap();
    home.sync(&file).unwrap();
    assert!(home.state.try_lock().is_ok());
}
