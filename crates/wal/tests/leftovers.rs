//! Tests of logs that crashes have left, in a directory with the logs of many other databases.
#![allow(clippy::expect_used, reason = "a failed expectation is a failed test")]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use duralite_wal::engine::home::OpenDatabase;
use duralite_wal::engine::media::MediaSet;
use duralite_wal::engines::waldio;
use duralite_wal::placement::{FileStep, Hook, hook};
use duralite_wal::{DatabaseIdentity, EngineOptions, Log, LogPlacement};

#[derive(Default)]
struct Opened(AtomicUsize);

impl Hook for Opened {
    fn step(&self, step: FileStep, _log: &Path) -> io::Result<()> {
        self.0.fetch_add(usize::from(step == FileStep::Open), Ordering::Relaxed);
        Ok(())
    }
}

/// Makes the log of a database, and leaves it behind, like a process that dies right afterwards.
fn leave(dir: &Path, name: &str) -> PathBuf {
    let database = dir.join("data").join(name);
    if !database.exists() {
        std::fs::write(&database, [0; 4096]).expect("database");
    }
    let identity = DatabaseIdentity::of(&database).expect("identity");
    let placement = LogPlacement::at(&waldio::DESCRIPTOR, &dir.join("logs"), &MediaSet::default());
    let options = EngineOptions::default();
    let file = std::fs::File::options().read(true).write(true).open(&database).expect("open");
    let file = OpenDatabase::new(file, &database);
    let log = Log::create(&file, &placement, &options, &identity, 4096).expect("create");
    log.path().to_path_buf()
}

#[test]
fn a_database_finds_its_own_leftovers_and_opens_few_of_the_logs_of_others() {
    let dir = tempfile::tempdir().expect("directory");
    for name in ["data", "logs"] {
        std::fs::create_dir(dir.path().join(name)).expect("directory");
    }
    let others: Vec<_> = (0..60).map(|number| leave(dir.path(), &format!("other{number}.db"))).collect();
    let left = leave(dir.path(), "app.db");
    // Leave only the log's shared memory: the power loss took the log's name, but not the name of the memory.
    let lost = leave(dir.path(), "app.db");
    assert!(!left.exists() && lost.exists());
    std::fs::remove_file(&lost).expect("remove");
    let memory = PathBuf::from(format!("{}-shm", lost.display()));
    assert!(memory.exists());
    let opened = Arc::new(Opened::default());
    let hooked = hook(&dir.path().join("logs"), opened.clone());
    let last = leave(dir.path(), "app.db");
    drop(hooked);
    assert!(last.exists() && !memory.exists());
    let opened = opened.0.load(Ordering::Relaxed);
    assert!(opened < 20, "{opened} logs were opened");
    assert!(others.iter().all(|log| log.exists()));
}
