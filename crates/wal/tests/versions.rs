//! Tests that this build refuses logs of other format versions with an error that names the version. The build does not
//! change such logs, because they may hold the newest commits of a database.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use duralite_format::LogId;
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engine::media::MediaSet;
use duralite_wal::engines::{nvwal, ppl, scratchpad, waldio};
use duralite_wal::{
    DatabaseIdentity, Descriptor, EngineOptions, ErrorKind, Log, LogError, LogPlacement, engines, placement,
};

const ID: LogId = LogId([9; 16]);

/// Each engine, the version that it reads, and the versions that it refuses: older versions that existed, and the
/// next version.
const FORMATS: [(&Descriptor, u32, &[u32]); 4] = [
    (&waldio::DESCRIPTOR, 4, &[1, 2, 3, 5]),
    (&nvwal::DESCRIPTOR, 5, &[1, 3, 4, 6]),
    (&scratchpad::DESCRIPTOR, 2, &[1, 3]),
    (&ppl::DESCRIPTOR, 1, &[2]),
];

/// Returns a log with the beginning that all versions have in common, and arbitrary bytes after it.
fn log_of_version(engine: &Descriptor, version: u32) -> Vec<u8> {
    let mut bytes = engine.magic.to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(4096_u32.to_le_bytes());
    bytes.extend(ID.0);
    bytes.resize(64 << 10, 0xA5);
    bytes
}

fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(dir).expect("directory").map(|entry| entry.expect("entry").path());
    paths.map(|path| (path.clone(), fs::read(path).expect("a file"))).collect()
}

/// Returns the error for a database that names a log of this version and file name. Checks that no file changes.
fn refusal(engine: &'static Descriptor, version: u32, log: &str) -> LogError {
    let dir = tempfile::tempdir().expect("directory");
    let database = dir.path().join("app.db");
    fs::write(&database, [7; 4096]).expect("database");
    fs::write(dir.path().join(log), log_of_version(engine, version)).expect("log");
    let before = contents(dir.path());
    let placement = LogPlacement::at(engine, dir.path(), &MediaSet::default());
    let db = DatabaseIdentity::of(&database).expect("identity");
    let attached = Log::attach(&NoDatabase, &placement, &EngineOptions::default(), &db, ID, &|_| false);
    let Err(error) = attached else { panic!("{engine:?} {version}: not refused") };
    let walked = placement::walk(&dir.path().join(log), &NoDatabase, &mut |_| ()).expect_err("refused");
    assert_eq!(walked.to_string(), error.to_string());
    assert!(contents(dir.path()) == before, "{engine:?} {version}: something has changed");
    error
}

#[test]
fn every_engine_is_here() {
    for engine in engines::ENGINES {
        assert!(FORMATS.iter().any(|(here, ..)| here.name == engine.name), "no versions of {engine:?}");
    }
}

#[test]
fn inv12_a_log_of_another_version_is_refused_by_name_and_not_a_byte_is_changed() {
    for (engine, reads, others) in FORMATS {
        for version in others {
            let error = refusal(engine, *version, &format!("app.db-duralite-{ID}"));
            assert_eq!(error.kind(), ErrorKind::CantOpen);
            assert!(error.is_other_version());
            let (name, said) = (engine.name, error.to_string());
            for part in [
                format!("format {name}, version {version};"),
                format!("this build reads only version {reads} and has changed nothing"),
                "with the build of Duralite that wrote the log, and close it there".to_owned(),
            ] {
                assert!(said.contains(&part), "{said}");
            }
        }
    }
}

/// If Duralite did not find the log, a user could believe that it is lost, and open the database without it.
#[test]
fn inv12_a_log_of_another_version_is_found_though_the_database_has_another_name() {
    for (engine, _, others) in FORMATS {
        for log in ["before.db-duralite".to_owned(), format!("before.db-duralite-{ID}")] {
            for version in others {
                let error = refusal(engine, *version, &log);
                assert!(error.is_other_version(), "{log}: {error}");
            }
        }
    }
}
