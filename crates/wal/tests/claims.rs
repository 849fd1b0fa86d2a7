//! Tests which logs a database may use, if the database, the log or both were copied (invariant 3).

#![allow(clippy::expect_used, reason = "a failed expectation is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{Model, Rng, wait, write_all};
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

/// A database whose first page is torn, and the logs that were made for it, in the order in which they were made.
struct Torn {
    dir: tempfile::TempDir,
    identity: DatabaseIdentity,
}

impl Torn {
    /// Makes a database and two directories for its logs.
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("directory");
        for name in ["data", "first", "second"] {
            fs::create_dir(dir.path().join(name)).expect("directory");
        }
        let database = dir.path().join("data/app.db");
        fs::write(&database, [0x5a; 4096]).expect("database");
        let identity = DatabaseIdentity::of(&database).expect("identity");
        Self { dir, identity }
    }

    fn placement(&self, engine: &'static Descriptor, name: &str) -> LogPlacement {
        LogPlacement::at(engine, &self.dir.path().join(name), &MediaSet::default())
    }

    /// Makes a log in a directory, commits a transaction to it, and leaves it. With `retire`, the log first ends like the
    /// log of a database that is being closed.
    fn leave(&self, engine: &'static Descriptor, name: &str, retire: bool) -> PathBuf {
        // The files of two logs get different birth times only if the clock of the file system moves on between them.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let placement = self.placement(engine, name);
        let options = EngineOptions::default();
        let mut log = Log::create(&NoDatabase, &placement, &options, &self.identity, 512).expect("create");
        let mut model = Model::new(512, 4);
        let (offset, data) = model.restart();
        log.write(&NoDatabase, offset, &data).expect("header");
        let transaction = model.transaction(&mut Rng(3), false);
        let sealed = write_all(&transaction.writes, |at, data| log.write(&NoDatabase, at, data));
        wait(sealed.expect("write"), log.durability_waiter()).expect("durable");
        if retire {
            log.retire().expect("retire");
        }
        log.path().to_path_buf()
    }

    /// Returns the log that the torn database would get, if the directories are searched in this order.
    fn made_for(&self, names: [&str; 2]) -> Result<Option<PathBuf>, LogError> {
        let dirs: Vec<_> =
            names.iter().flat_map(|name| ENGINES.map(|engine| self.placement(engine, name))).collect();
        placement::made_for(&dirs, &self.identity).map(|found| found.map(|log| log.path))
    }
}

const ORDERS: [[&str; 2]; 2] = [["first", "second"], ["second", "first"]];

#[test]
fn inv03_a_torn_database_has_the_newer_log_and_not_one_that_a_crash_has_left() {
    for engine in ENGINES {
        let torn = Torn::new();
        torn.leave(engine, "first", true);
        let newer = torn.leave(engine, "second", false);
        for names in ORDERS {
            let found = torn.made_for(names).expect("find");
            assert_eq!(found.as_ref(), Some(&newer), "{engine:?}, {names:?}");
        }
    }
}

/// Nothing that a log holds says which of two logs is the newer one, so none is taken.
#[test]
fn inv03_a_torn_database_takes_none_of_two_logs_that_hold_commits() {
    for engine in ENGINES {
        let torn = Torn::new();
        let logs = [torn.leave(engine, "first", false), torn.leave(engine, "second", false)];
        for names in ORDERS {
            let refused = torn.made_for(names).expect_err("two logs").to_string();
            assert!(logs.iter().all(|log| refused.contains(&*log.to_string_lossy())), "{refused}");
        }
    }
}

/// The newer log has nothing that the database lacks. So the older one, which somebody has discarded, is out of date.
#[test]
fn inv03_a_torn_database_does_not_take_an_older_log_beside_a_newer_one_without_commits() {
    for engine in ENGINES {
        let torn = Torn::new();
        let logs = [torn.leave(engine, "first", false), torn.leave(engine, "second", true)];
        for names in ORDERS {
            let refused = torn.made_for(names).expect_err("two logs").to_string();
            assert!(logs.iter().all(|log| refused.contains(&*log.to_string_lossy())), "{refused}");
        }
    }
}

/// The newer log is damaged or of another version, so this build cannot know for which file it was made.
#[test]
fn inv03_a_torn_database_takes_no_log_beside_one_that_is_illegible() {
    for engine in ENGINES {
        let torn = Torn::new();
        let older = torn.leave(engine, "first", false);
        let newer = torn.leave(engine, "second", false);
        let mut bytes = fs::read(&newer).expect("read");
        // A byte of the version, and one of the path.
        for at in [8, 70] {
            bytes[at] ^= 0x40;
            fs::write(&newer, &bytes).expect("write");
            for names in ORDERS {
                let refused = torn.made_for(names).expect_err("two logs").to_string();
                assert!(
                    [&older, &newer].iter().all(|log| refused.contains(&*log.to_string_lossy())),
                    "{refused}"
                );
            }
            bytes[at] ^= 0x40;
        }
        // What a power loss leaves of a log without commits does not count. A log in memory is not recognized then.
        if *engine.name != *waldio::DESCRIPTOR.name {
            continue;
        }
        bytes[512..].fill(0);
        fs::write(&newer, &bytes).expect("write");
        assert_eq!(torn.made_for(ORDERS[0]).expect("find"), Some(older));
    }
}

#[test]
fn inv03_a_torn_database_finds_its_only_log_under_two_names_of_its_directory() {
    for engine in ENGINES {
        let torn = Torn::new();
        let log = torn.leave(engine, "first", false);
        std::os::unix::fs::symlink(torn.dir.path().join("first"), torn.dir.path().join("alias"))
            .expect("link");
        assert_eq!(torn.made_for(["first", "alias"]).expect("find"), Some(log));
    }
}
