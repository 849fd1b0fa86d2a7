//! Attaching a log that other processes use, checkpoint or delete.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use duralite_format::{LogId, guard};
use duralite_medium::{FileSegment, Segment as _};
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::media::{MediaSet, Memory, MemoryKind};
use duralite_wal::engines::{nvwal, waldio};
use duralite_wal::log::offline;
use duralite_wal::placement::{FileStep, Hook, LOG_DELETED, find_deleted, hook, pause_for};
use duralite_wal::{DatabaseIdentity, Descriptor, EngineOptions, ErrorKind, Log, LogError, LogPlacement};

/// The limit of each wait. No test takes this long unless something is wrong.
const PATIENCE: Duration = Duration::from_secs(20);

struct Place {
    dir: tempfile::TempDir,
    placement: LogPlacement,
    identity: DatabaseIdentity,
}

impl Place {
    fn new(engine: &'static Descriptor) -> Self {
        let dir = tempfile::tempdir().expect("directory");
        let database = dir.path().join("app.db");
        std::fs::write(&database, [0; 4096]).expect("database");
        let placement = LogPlacement::at(engine, dir.path(), &MediaSet::default());
        let identity = DatabaseIdentity::of(&database).expect("identity");
        Self { dir, placement, identity }
    }

    fn create(&self) -> Log {
        Log::create(&NoDatabase, &self.placement, &EngineOptions::default(), &self.identity, 4096)
            .expect("create")
    }

    fn attach(&self, id: LogId) -> Result<Log, LogError> {
        Log::attach(
            &NoDatabase,
            &self.placement,
            &EngineOptions::default(),
            &self.identity,
            id,
            &pause_for(PATIENCE),
        )
    }

    /// Attaches a log of `nvwal`, treating its memory as memory of this kind.
    fn attach_in(&self, kind: MemoryKind, id: LogId) -> Result<Log, LogError> {
        let log_memory = Some(Memory { kind, dir: self.placement.dir.clone() });
        let media = MediaSet { log_memory, ..MediaSet::default() };
        let placement = LogPlacement::of(&nvwal::DESCRIPTOR, &media).expect("memory");
        Log::attach(
            &NoDatabase,
            &placement,
            &EngineOptions::default(),
            &self.identity,
            id,
            &pause_for(PATIENCE),
        )
    }

    fn database(&self) -> PathBuf {
        self.dir.path().join("app.db")
    }
}

fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).expect("file")
}

/// Attaches a log that another process has locked exclusively, as a checkpoint does. While the attaching process waits
/// for the lock, the other process does `work` on the log's file. Returns the result of attaching.
fn attach_while(engine: &'static Descriptor, work: impl FnOnce(&Path)) -> Result<(), LogError> {
    let place = Place::new(engine);
    let log = place.create();
    let (path, id, bytes) = (log.path().to_path_buf(), log.id(), log.segment().len());
    let shared = log.segment_path().to_path_buf();
    drop(log);
    let alone = read_write(&path);
    alone.lock().expect("lock");
    let process = FileSegment::join(read_write(&shared).into(), &shared, bytes, None).expect("process");
    assert_eq!(process.process_slot(), 0);
    std::thread::scope(|scope| {
        let newcomer = scope.spawn(|| place.attach(id).map(|_| ()));
        // Wait until the attaching process has a process slot and is waiting for the lock of the log.
        let start = std::time::Instant::now();
        while !process.is_alive(1).expect("processes") {
            assert!(start.elapsed() < Duration::from_secs(20), "nobody came");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(50));
        work(&path);
        drop(alone);
        newcomer.join().expect("newcomer")
    })
}

#[test]
fn inv03_a_log_that_is_deleted_or_put_aside_while_it_is_being_attached_is_not_used() {
    for engine in [&waldio::DESCRIPTOR, &nvwal::DESCRIPTOR] {
        attach_while(engine, |_| ()).expect("a log that stays is attached");
        let deleted = attach_while(engine, |path| std::fs::remove_file(path).expect("remove"));
        let aside =
            attach_while(engine, |path| std::fs::rename(path, path.with_extension("x")).expect("rename"));
        let replaced = attach_while(engine, |path| {
            let copy = path.with_extension("copy");
            std::fs::copy(path, &copy).expect("copy");
            std::fs::rename(&copy, path).expect("rename");
        });
        for refused in [deleted, aside, replaced] {
            let error = refused.expect_err("another log, or none");
            assert_eq!(error.kind(), ErrorKind::Busy, "{engine:?}: {error}");
        }
    }
}

/// Deletes a log when a process opens the log's segment for the second time, which it does just before it maps the
/// segment.
struct Deletes {
    log: PathBuf,
    opened: AtomicU32,
}

impl Hook for Deletes {
    fn step(&self, step: FileStep, path: &Path) -> io::Result<()> {
        if step == FileStep::OpenShared && self.opened.fetch_add(1, Ordering::Relaxed) == 1 {
            std::fs::remove_file(path)?;
            std::fs::remove_file(&self.log)?;
        }
        Ok(())
    }
}

#[test]
fn inv03_shared_memory_that_goes_with_its_log_is_not_made_anew() {
    for engine in [&waldio::DESCRIPTOR, &nvwal::DESCRIPTOR] {
        let place = Place::new(engine);
        let log = place.create();
        let (id, path) = (log.id(), log.path().to_path_buf());
        drop(log);
        let deletes = Arc::new(Deletes { log: path, opened: AtomicU32::new(0) });
        let _hooked = hook(place.dir.path(), deletes);
        let error = place.attach(id).map(|_| ()).expect_err("a log that is gone");
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        let names = std::fs::read_dir(place.dir.path()).expect("directory");
        let names: Vec<_> = names.map(|entry| entry.expect("entry").file_name()).collect();
        assert_eq!(names, ["app.db"]);
    }
}

#[test]
fn inv03_a_log_is_not_used_by_whoever_waited_until_it_was_folded() {
    for engine in [&waldio::DESCRIPTOR, &nvwal::DESCRIPTOR] {
        let place = Place::new(engine);
        let log = place.create();
        let id = log.id();
        let mut page = [0; 4096];
        page[..18].copy_from_slice(b"SQLite format 3\0\x10\0");
        guard::mask(0, &mut page, id);
        std::fs::write(place.database(), page).expect("database");
        drop(log);
        // Attach the log many times, so that attaching coincides with each step of the checkpoint.
        std::thread::scope(|scope| {
            let newcomer = scope.spawn(|| {
                loop {
                    match place.attach(id) {
                        Err(error) if error.kind() == ErrorKind::NotFound => return,
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error}"),
                        Ok(log) => assert!(log.path().exists(), "{engine:?}: attached after it was deleted"),
                    }
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
            while let Err(error) = offline::checkpoint(&place.placement, &place.database(), id, false) {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
            }
            newcomer.join().expect("newcomer");
        });
    }
}

#[test]
fn a_log_is_not_nvram_for_one_process_and_emulated_memory_for_another() {
    let place = Place::new(&nvwal::DESCRIPTOR);
    let log = place.create();
    let same = place.attach_in(MemoryKind::Emulated, log.id());
    let other = place.attach_in(MemoryKind::Dax, log.id()).map(|_| ());
    assert!(matches!(other, Err(LogError::Settings)), "{other:?}");
    drop(same.expect("the same kind"));
    // Store the word that says that the log is used in NVRAM. A process that would use it as emulated memory has to be
    // refused.
    log.segment().store(8, 1);
    let other = place.attach_in(MemoryKind::Emulated, log.id()).map(|_| ());
    assert!(matches!(other, Err(LogError::Settings)), "{other:?}");
}

/// The original is no longer where it was when the log was made. So only the segment shows that it is on another
/// device.
#[test]
fn inv03_a_snapshot_does_not_share_the_log_that_its_original_uses() {
    for engine in [&waldio::DESCRIPTOR, &nvwal::DESCRIPTOR] {
        let place = Place::new(engine);
        let log = place.create();
        std::fs::rename(place.database(), place.dir.path().join("moved.db")).expect("rename");
        let attach = |device| {
            let db = DatabaseIdentity { device, ..place.identity.clone() };
            let options = EngineOptions::default();
            Log::attach(&NoDatabase, &place.placement, &options, &db, log.id(), &pause_for(PATIENCE))
                .map(|_| ())
        };
        let refused = attach(place.identity.device + 1);
        assert!(matches!(refused, Err(LogError::Foreign { .. })), "{engine:?}: {refused:?}");
        attach(place.identity.device).expect("the original");
    }
}

/// Attaches a log with a `pause` that permits this many pauses. Returns the result, and how often the call paused.
fn attach_impatiently(place: &Place, id: LogId, pauses: u32) -> (Result<(), LogError>, u32) {
    let count = Cell::new(0);
    let pause = |tries| {
        count.set(count.get() + 1);
        tries < pauses
    };
    let attached =
        Log::attach(&NoDatabase, &place.placement, &EngineOptions::default(), &place.identity, id, &pause);
    (attached.map(|_| ()), count.get())
}

#[test]
fn a_process_that_is_stopped_while_it_attaches_a_log_is_waited_for_as_long_as_there_is_patience() {
    for engine in [&waldio::DESCRIPTOR, &nvwal::DESCRIPTOR] {
        let place = Place::new(engine);
        let log = place.create();
        let (id, shared) = (log.id(), log.segment_path().to_path_buf());
        drop(log);
        let stopped = read_write(&shared);
        stopped.lock().expect("lock");
        let (refused, pauses) = attach_impatiently(&place, id, 3);
        assert_eq!(refused.expect_err("somebody attaches it").kind(), ErrorKind::Busy, "{engine:?}");
        assert_eq!(pauses, 4);
        drop(stopped);
        attach_impatiently(&place, id, 0).0.expect("nobody is in the way any more");
    }
}

#[test]
fn a_process_that_is_stopped_while_it_folds_a_log_is_waited_for_as_long_as_there_is_patience() {
    let place = Place::new(&waldio::DESCRIPTOR);
    let log = place.create();
    let (id, path) = (log.id(), log.path().to_path_buf());
    let (shared, bytes) = (log.segment_path().to_path_buf(), log.segment().len());
    drop(log);
    let alone = read_write(&path);
    alone.lock().expect("lock");
    let _process = FileSegment::join(read_write(&shared).into(), &shared, bytes, None).expect("process");
    let (refused, pauses) = attach_impatiently(&place, id, 3);
    assert_eq!(refused.expect_err("somebody checkpoints it").kind(), ErrorKind::Busy);
    assert_eq!(pauses, 4);
}

#[test]
fn a_log_whose_shared_memory_has_been_deleted_is_refused_when_patience_ends() {
    for engine in [&waldio::DESCRIPTOR, &nvwal::DESCRIPTOR] {
        let place = Place::new(engine);
        let log = place.create();
        std::fs::remove_file(log.segment_path()).expect("remove");
        let (refused, pauses) = attach_impatiently(&place, log.id(), 0);
        assert_eq!(refused.expect_err("not shared").kind(), ErrorKind::Busy, "{engine:?}");
        assert_eq!(pauses, 1);
    }
}

#[test]
fn the_shared_memory_of_a_log_that_somebody_has_deleted_goes_with_it() {
    for engine in [&waldio::DESCRIPTOR, &nvwal::DESCRIPTOR] {
        let place = Place::new(engine);
        let mut log = place.create();
        std::fs::remove_file(log.path()).expect("remove");
        log.unlink().expect("unlink");
        assert!(!log.segment_path().exists(), "{engine:?}");
    }
}

/// Returns whether writers have been told of the deletion. Each writer checks this word before it acknowledges a
/// commit.
fn is_told(log: &Log) -> bool {
    log.segment().load(LOG_DELETED) != 0
}

#[test]
fn inv09_writers_whose_shared_memory_was_deleted_too_are_told_before_their_log_is_copied() {
    for engine in [&waldio::DESCRIPTOR, &nvwal::DESCRIPTOR] {
        for is_made_here in [true, false] {
            let places = [Place::new(engine), Place::new(engine)];
            let [log, other_log] = places.each_ref().map(|place| {
                let log = place.create();
                if is_made_here {
                    return log;
                }
                // Attach the log by its name, because the kernel then lists the open file under that name.
                let id = log.id();
                drop(log);
                place.attach(id).expect("attach")
            });
            for (place, log) in places.iter().zip([&log, &other_log]) {
                let names = std::fs::read_dir(place.dir.path()).expect("directory");
                let paths = names.map(|entry| entry.expect("entry").path());
                paths.filter(|path| path.to_string_lossy().ends_with("-shm")).for_each(|path| {
                    std::fs::remove_file(path).expect("remove the shared memory");
                });
                std::fs::remove_file(log.path()).expect("remove the log");
            }
            let deleted = find_deleted(log.id()).expect("look").expect("this process has it open");
            let [Place { dir, identity, .. }, _] = &places;
            assert!(!is_told(&log));
            deleted.copy(&dir.path().join("saved"), identity, None).expect("copy");
            assert!(is_told(&log), "{engine:?}, made here: {is_made_here}");
            assert!(!is_told(&other_log), "{engine:?}: the writers of another log were told");
        }
    }
}
