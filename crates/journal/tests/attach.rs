//! Attaching a log that others use, fold or delete.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

use duralite_journal::media::{MediaSet, Memory, MemoryKind};
use duralite_journal::{
    DatabaseIdentity, Descriptor, EngineOptions, ErrorKind, JournalError, Log, LogDirectory, nvwal, offline,
    waldio,
};
use duralite_logfmt::{LogId, guard};
use duralite_medium::{FileSegment, Segment as _};

struct Place {
    dir: tempfile::TempDir,
    pool: LogDirectory,
    identity: DatabaseIdentity,
}

impl Place {
    fn new(engine: &'static Descriptor) -> Self {
        let dir = tempfile::tempdir().expect("directory");
        let database = dir.path().join("app.db");
        std::fs::write(&database, [0; 4096]).expect("database");
        let pool = LogDirectory::at(engine, dir.path(), &MediaSet::default());
        let identity = DatabaseIdentity::of(&database).expect("identity");
        Self { dir, pool, identity }
    }

    fn create(&self) -> Log {
        Log::create(&self.pool, &EngineOptions::default(), &self.identity, 4096).expect("create")
    }

    fn attach(&self, id: LogId) -> Result<Log, JournalError> {
        Log::attach(&self.pool, &EngineOptions::default(), &self.identity, id)
    }

    /// Attaches a log of `nvwal` in memory of this kind.
    fn attach_in(&self, kind: MemoryKind, id: LogId) -> Result<Log, JournalError> {
        let log_memory = Some(Memory { kind, dir: self.pool.dir.clone() });
        let media = MediaSet { log_memory, ..MediaSet::default() };
        let pool = LogDirectory::of(&nvwal::DESCRIPTOR, &media).expect("memory");
        Log::attach(&pool, &EngineOptions::default(), &self.identity, id)
    }

    fn database(&self) -> PathBuf {
        self.dir.path().join("app.db")
    }
}

fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).expect("file")
}

/// Starts to attach while a process has the log to itself, as for folding it, lets that one do its work
/// on the log's file, and returns how the attaching ended.
fn attach_while(engine: &'static Descriptor, work: impl FnOnce(&Path)) -> Result<(), JournalError> {
    let place = Place::new(engine);
    let log = place.create();
    let (path, id, bytes) = (log.path().to_path_buf(), log.id(), log.segment().len());
    let shared = log.segment_path().to_path_buf();
    drop(log);
    let alone = read_write(&path);
    alone.lock().expect("lock");
    let member = FileSegment::join(read_write(&shared).into(), &shared, bytes, None).expect("member");
    assert_eq!(member.member(), 0);
    std::thread::scope(|scope| {
        let newcomer = scope.spawn(|| place.attach(id).map(|_| ()));
        // Until it has become a member, and waits for the lock of the log.
        let start = std::time::Instant::now();
        while !member.is_alive(1).expect("members") {
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
        // Again and again, so that it meets folding at any of its steps.
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
            while let Err(error) = offline::fold(&place.pool, &place.database(), id, false) {
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
    assert!(matches!(other, Err(JournalError::Settings)), "{other:?}");
    drop(same.expect("the same kind"));
    // The reverse, as it looks where there is NVRAM.
    log.segment().store(8, 1);
    let other = place.attach_in(MemoryKind::Emulated, log.id()).map(|_| ());
    assert!(matches!(other, Err(JournalError::Settings)), "{other:?}");
}
