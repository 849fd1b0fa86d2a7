//! Tests which logs a database may use, if the database, the log or both were copied (invariant 3).

#![allow(clippy::expect_used, reason = "a failed expectation is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};

use duralite_format::guard;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::media::MediaSet;
use duralite_wal::engines::{nvwal, waldio};
use duralite_wal::log::offline;
use duralite_wal::placement::{self, Claim, FoundLog};
use duralite_wal::{DatabaseIdentity, Descriptor, EngineOptions, Log, LogError, LogPlacement};

const ENGINES: [&Descriptor; 2] = [&waldio::DESCRIPTOR, &nvwal::DESCRIPTOR];

/// A guarded database that a crash has left, with its log.
struct Fixture {
    dir: tempfile::TempDir,
    log: FoundLog,
}

impl Fixture {
    /// Makes a fixture with the log in the directory `logs` and the database in `data`.
    fn new(engine: &'static Descriptor, logs: &str) -> Self {
        let dir = tempfile::tempdir().expect("directory");
        for name in ["data", "data/logs", "logs", "copy", "copy/logs"] {
            fs::create_dir(dir.path().join(name)).expect("directory");
        }
        let database = dir.path().join("data/app.db");
        fs::write(&database, [0; 4096]).expect("database");
        let placement = LogPlacement::at(engine, &dir.path().join(logs), &MediaSet::default());
        let identity = DatabaseIdentity::of(&database).expect("identity");
        let log =
            Log::create(&NoDatabase, &placement, &EngineOptions::default(), &identity, 4096).expect("create");
        let log = FoundLog { placement, path: log.path().to_path_buf(), id: log.id() };
        let mut page = [0; 4096];
        page[..18].copy_from_slice(b"SQLite format 3\0\x10\0");
        guard::mask(0, &mut page, log.id);
        fs::write(&database, page).expect("database");
        Self { dir, log }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn copy(&self, from: &str, to: &str) {
        fs::copy(self.path(from), self.path(to)).expect("copy");
    }

    /// Returns what the database with this name may do with the log.
    fn claim(&self, database: &str) -> Claim {
        placement::claim(&self.log, &DatabaseIdentity::of(&self.path(database)).expect("identity"))
            .expect("claim")
    }

    /// Returns what a database may do with a copy of the log in another directory.
    fn claim_copy(&self, database: &str, dir: &Path) -> Claim {
        fs::copy(&self.log.path, dir.join(self.log.path.file_name().expect("name"))).expect("copy");
        self.claim_at(database, dir)
    }

    /// Returns what a database may do with the log in this directory.
    fn claim_at(&self, database: &str, dir: &Path) -> Claim {
        let path = dir.join(self.log.path.file_name().expect("name"));
        let placement = LogPlacement::at(self.log.placement.engine, dir, &MediaSet::default());
        let log = FoundLog { placement, path, id: self.log.id };
        placement::claim(&log, &DatabaseIdentity::of(&self.path(database)).expect("identity")).expect("claim")
    }
}

#[test]
fn inv03_a_copy_of_the_database_alone_does_not_take_the_log_wherever_the_original_is() {
    for engine in ENGINES {
        let fixture = Fixture::new(engine, "logs");
        fixture.copy("data/app.db", "copy/app.db");
        assert_eq!(fixture.claim("data/app.db"), Claim::Own);
        assert_eq!(fixture.claim("copy/app.db"), Claim::Foreign, "the original is there");
        // The original is out of sight: it was renamed, or is not mounted at the moment.
        fs::rename(fixture.path("data"), fixture.path("renamed")).expect("rename");
        assert_eq!(fixture.claim("copy/app.db"), Claim::Foreign, "the original is out of sight");
        assert_eq!(fixture.claim("renamed/app.db"), Claim::Own);
        // Another file is at the original's path, as in another container or below a mount point.
        fs::create_dir(fixture.path("data")).expect("directory");
        fixture.copy("copy/app.db", "data/app.db");
        assert_eq!(fixture.claim("data/app.db"), Claim::Foreign, "under the original's name");
    }
}

#[test]
fn inv03_a_copy_of_database_and_log_is_a_pair_wherever_the_original_is() {
    for engine in ENGINES {
        let fixture = Fixture::new(engine, "logs");
        fixture.copy("data/app.db", "copy/app.db");
        assert_eq!(fixture.claim_copy("copy/app.db", &fixture.path("copy")), Claim::Copy);
        fs::remove_dir_all(fixture.path("data")).expect("remove");
        assert_eq!(fixture.claim_copy("copy/app.db", &fixture.path("copy")), Claim::Copy);
    }
}

/// A log that was moved to another file system is no longer in the file in which it was made. In this respect it looks
/// like a copy.
#[test]
fn inv03_a_copy_of_the_database_alone_does_not_take_a_log_that_was_moved() {
    for engine in ENGINES {
        let fixture = Fixture::new(engine, "logs");
        fs::copy(&fixture.log.path, fixture.path("logs/moved")).expect("copy");
        fs::rename(fixture.path("logs/moved"), &fixture.log.path).expect("rename");
        fixture.copy("data/app.db", "copy/app.db");
        assert_eq!(fixture.claim("data/app.db"), Claim::Own);
        assert_eq!(fixture.claim("copy/app.db"), Claim::Foreign, "the original needs the log");
        // Somebody may have moved the database with its log.
        fs::remove_file(fixture.path("data/app.db")).expect("remove");
        assert_eq!(fixture.claim("copy/app.db"), Claim::Copy);
        // Another file is at the original's path. This is so in another container, or if the original is not mounted.
        fs::write(fixture.path("data/app.db"), "").expect("another file");
        assert_eq!(fixture.claim("copy/app.db"), Claim::Foreign, "the original may be in another container");
        fs::remove_dir_all(fixture.path("data")).expect("remove");
        assert_eq!(fixture.claim("copy/app.db"), Claim::Foreign, "the original may be out of sight");
    }
}

#[test]
fn inv03_a_copied_directory_has_its_log_below_it_too() {
    for engine in ENGINES {
        let fixture = Fixture::new(engine, "data/logs");
        fixture.copy("data/app.db", "copy/app.db");
        fixture.copy("data/app.db", "app.db");
        assert_eq!(fixture.claim_copy("copy/app.db", &fixture.path("copy/logs")), Claim::Copy);
        // The original's log is in the directory `logs` below the original. None of these copies of the log is in such
        // a directory below the copied database.
        assert_eq!(fixture.claim_copy("copy/app.db", &fixture.path("logs")), Claim::Foreign);
        assert_eq!(fixture.claim_copy("app.db", &fixture.path("copy")), Claim::Foreign);
        fs::remove_dir_all(fixture.path("data")).expect("remove");
        assert_eq!(fixture.claim_at("copy/app.db", &fixture.path("copy/logs")), Claim::Copy);
    }
}

/// In a snapshot or a clone of the file system, the database has the same inode number and birth time, on another
/// device.
#[test]
fn inv03_a_snapshot_of_the_database_does_not_take_the_log_of_its_original() {
    for engine in ENGINES {
        let fixture = Fixture::new(engine, "logs");
        let original = DatabaseIdentity::of(&fixture.path("data/app.db")).expect("identity");
        let (path, device) = (fixture.path("copy/app.db"), original.device + 1);
        let snapshot = DatabaseIdentity { path, device, ..original.clone() };
        let claim = |db| placement::claim(&fixture.log, db).expect("claim");
        assert_eq!((claim(&original), claim(&snapshot)), (Claim::Own, Claim::Foreign));
        let options = EngineOptions::default();
        let FoundLog { placement, id, .. } = &fixture.log;
        let attached = Log::attach(&NoDatabase, placement, &options, &snapshot, *id, &|_| false).map(|_| ());
        assert!(matches!(attached, Err(LogError::Foreign { .. })), "{engine:?}: {attached:?}");
    }
}

#[test]
fn inv03_a_database_that_is_replaced_beside_its_log_has_it() {
    for engine in ENGINES {
        let fixture = Fixture::new(engine, "data");
        fixture.copy("data/app.db", "copy/app.db");
        fs::rename(fixture.path("copy/app.db"), fixture.path("data/app.db")).expect("rename");
        assert_eq!(fixture.claim("data/app.db"), Claim::Copy);
    }
}

#[test]
fn inv03_a_log_that_a_copy_has_adopted_keeps_what_it_holds() {
    for engine in ENGINES {
        let fixture = Fixture::new(engine, "logs");
        fixture.copy("data/app.db", "copy/app.db");
        let checkpointed =
            offline::checkpoint(&fixture.log.placement, &fixture.path("copy/app.db"), fixture.log.id, true)
                .expect("checkpoint");
        let kept = checkpointed.kept.expect("it is put aside");
        // The log is put aside but not retired, because its own database still names it. So if a crash interrupts the
        // checkpoint before the log is put aside, that database loses nothing.
        assert!(!placement::walk(&kept, &NoDatabase, &mut |_| ()).expect("walk").retired, "{engine:?}");
    }
}
