//! Tests that after a failure that leaves the log's state in doubt, no process acknowledges another commit (invariant
//! 9).

#![allow(clippy::expect_used, reason = "a failed expectation is a failed test")]

use crate::common;

use std::os::unix::fs::FileExt;

use common::{Model, Rng, directory};
use duralite_wal::engine::home::NoDatabase;
use duralite_wal::engines::nvwal;
use duralite_wal::{DatabaseIdentity, EngineOptions, ErrorKind, Log, LogError};

#[test]
fn inv09_a_damaged_log_acknowledges_nothing_until_it_is_attached_anew() {
    let dir = tempfile::tempdir().expect("directory");
    let database = dir.path().join("app.db");
    std::fs::write(&database, [0; 4096]).expect("database");
    let placement = directory(&nvwal::DESCRIPTOR, dir.path());
    let identity = DatabaseIdentity::of(&database).expect("identity");
    let mut log =
        Log::create(&NoDatabase, &placement, &EngineOptions::default(), &identity, 512).expect("create");
    let mut model = Model::new(512, 20);
    let (offset, data) = model.restart();
    log.write(&NoDatabase, offset, &data).expect("restart");
    let transaction = model.transaction(&mut Rng(9), false);
    transaction.writes.iter().for_each(|(offset, data)| {
        log.write(&NoDatabase, *offset, data).expect("write");
    });
    model.commit(transaction);

    // Another program overwrites everything after the superblock.
    let file = std::fs::OpenOptions::new().write(true).open(log.path()).expect("log");
    let length = file.metadata().expect("metadata").len();
    let junk = vec![0x5A; (length - 4096) as usize];
    file.write_all_at(&junk, 4096).expect("scribble");
    let refused = log.size().expect_err("damage");
    assert_eq!(refused.kind(), ErrorKind::Corrupt);

    let next = model.transaction(&mut Rng(10), false);
    let error = log.write(&NoDatabase, next.writes[0].0, &next.writes[0].1).expect_err("poisoned");
    assert!(matches!(error, LogError::Poisoned(_)), "{error}");
    assert!(matches!(log.check(), Err(LogError::Poisoned(_))));
    let id = log.id();
    drop(log);
    let again = Log::attach(&NoDatabase, &placement, &EngineOptions::default(), &identity, id, &|_| false)
        .map(|_| ());
    assert_eq!(again.expect_err("still damaged").kind(), ErrorKind::Corrupt);
}
