//! Checks that a restore makes the database as it was archived, for each state that the archive has.

use std::sync::{Arc, Mutex};

use duralite_archive::{Archive, ArchiveError, Generation, Line, Progress, RestoreOptions, Target};

use super::common::{BEGINNING, Database, Writer, in_memory, lived, restored, time_of, wait};

#[test]
fn every_moment_is_restored() {
    for (page_size, seed) in [(512, 1), (4096, 2), (65_536, 3)] {
        println!("page size {page_size}, seed {seed}");
        let writer = lived(in_memory(), page_size, seed);
        let mut had = 0;
        for (txid, bytes) in &writer.states {
            let by_txid = restored(&writer.archive, Target::Txid(*txid));
            let gone = matches!(&by_txid, Err(ArchiveError::NotThere { .. }));
            if !gone {
                assert!(by_txid.unwrap() == *bytes, "transaction {txid}");
                for time_ms in [time_of(*txid), time_of(*txid) + 999] {
                    assert!(
                        restored(&writer.archive, Target::Time(time_ms)).unwrap() == *bytes,
                        "time of {txid}"
                    );
                }
                had += 1;
            }
        }
        // The first eight objects of level 0 are deleted. Their transactions are in two compacted objects, so
        // six states can no longer be restored.
        assert_eq!(had, writer.states.len() - 6);
        assert!(restored(&writer.archive, Target::Latest).unwrap() == writer.states[&writer.txid]);
        assert!(restored(&writer.archive, Target::Time(i64::MAX)).unwrap() == writer.states[&writer.txid]);
    }
}

#[test]
fn a_directory_is_an_archive_too() {
    let dir = tempfile::tempdir().unwrap();
    let location = format!("file://{}", dir.path().join("archive").display()).parse().unwrap();
    let archive = Archive::open(&location).unwrap();
    assert!(matches!(restored(&archive, Target::Latest), Err(ArchiveError::Empty)));
    assert!(!dir.path().join("archive").exists());
    let writer = lived(archive, 1024, 4);
    let again = Archive::open(&location).unwrap();
    assert!(restored(&again, Target::Latest).unwrap() == writer.states[&writer.txid]);
    // Litestream interprets the modification time of the file as the time of the transactions.
    let key = writer.key(9, 1, 1);
    let file = std::path::Path::new("/").join(key.as_ref());
    let modified =
        file.metadata().unwrap().modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(modified.as_millis() as i64, time_of(1));
    assert_eq!(wait(again.listed()).unwrap()[0].last.unwrap().time_ms, Some(time_of(writer.txid)));
}

#[test]
fn a_replica_without_generations_is_restored() {
    let mut writer = Writer::without_generations(in_memory(), Database::new(512));
    for at in 0..10 {
        writer.commit(&format!("INSERT INTO t (text) VALUES ('{at}')"));
    }
    for (txid, bytes) in &writer.states {
        assert!(restored(&writer.archive, Target::Txid(*txid)).unwrap() == *bytes);
    }
    let listed = &wait(writer.archive.listed()).unwrap()[0];
    assert_eq!((listed.generation, listed.states), (None, 10));
}

/// Writes three generations: the second continues the first, and the third does not continue the second.
fn generations() -> Writer {
    let mut writer = Writer::new(in_memory(), Database::new(512));
    let (first, second) = (Generation::FIRST, Generation::FIRST.next());
    let insert = "INSERT INTO t (text) VALUES (hex(randomblob(100)))";
    (0..3).for_each(|_| writer.commit(insert));
    writer.begin(second, Some(first), Line::Continues);
    (0..3).for_each(|_| writer.commit(insert));
    writer
}

#[test]
fn a_generation_follows_on_its_parent_before_and_after_its_own_snapshot() {
    let writer = generations();
    for with_snapshot in [false, true] {
        if with_snapshot {
            writer.compact(9, 1, 4);
        }
        for (txid, bytes) in &writer.states {
            assert!(restored(&writer.archive, Target::Txid(*txid)).unwrap() == *bytes, "{txid}");
            assert!(restored(&writer.archive, Target::Time(time_of(*txid))).unwrap() == *bytes, "{txid}");
        }
        assert!(restored(&writer.archive, Target::Latest).unwrap() == writer.states[&7]);
        assert!(wait(writer.archive.verify(4, None)).unwrap().is_sound());
    }
}

#[test]
fn what_the_old_primary_writes_after_it_was_replaced_is_not_restored() {
    let mut old = Writer::new(in_memory(), Database::new(512));
    let insert = "INSERT INTO t (text) VALUES (hex(randomblob(100)))";
    (0..3).for_each(|_| old.commit(insert));
    // The new primary begins with its own state, and its numbers begin after the old primary's last
    // transaction.
    let mut new = Writer::without_generations(old.archive.clone(), Database::new(512));
    new.txid = 5;
    new.database.sql.execute_batch(insert).unwrap();
    new.begin(Generation::FIRST.next(), Some(Generation::FIRST), Line::Other);
    (0..3).for_each(|_| old.commit(insert));
    old.snapshot();
    // As long as the new primary has no snapshot, its objects are not enough to make a database.
    assert!(restored(&old.archive, Target::Latest).unwrap() == old.states[&4]);
    new.snapshot();
    (0..2).for_each(|_| new.commit(insert));
    assert!(restored(&old.archive, Target::Latest).unwrap() == new.states[&7]);
    for (txid, writer) in [(3, &old), (4, &old), (5, &new), (6, &new)] {
        assert!(restored(&old.archive, Target::Txid(txid)).unwrap() == writer.states[&txid]);
    }
    // Only a snapshot of the old primary has transaction 8, and a restore does not use that snapshot.
    let beyond = restored(&old.archive, Target::Txid(8)).unwrap_err();
    assert!(matches!(beyond, ArchiveError::NotThere { txid: 8, before: Some(7), after: None }), "{beyond}");
    let listed = wait(old.archive.listed()).unwrap();
    assert_eq!(listed.iter().map(|listed| listed.until).collect::<Vec<_>>(), [None, Some(5)]);
    assert_eq!(listed[1].last.unwrap().txid, 4);
}

#[test]
fn a_claim_without_a_start_changes_nothing() {
    let writer = generations();
    let third = Generation::FIRST.next().next();
    let claim = wait(writer.archive.claim_of(Generation::FIRST)).unwrap().unwrap();
    writer.put_record(
        duralite_archive::Key::Claim(third),
        &duralite_archive::Claim { generation: third, ..claim },
    );
    assert!(restored(&writer.archive, Target::Latest).unwrap() == writer.states[&7]);
    let listed = wait(writer.archive.listed()).unwrap();
    assert_eq!(listed.iter().map(|listed| listed.counts).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!(listed[0].generation, Some(third));
}

#[test]
fn what_is_not_in_the_archive_is_said() {
    let archive = in_memory();
    assert!(matches!(restored(&archive, Target::Latest), Err(ArchiveError::Empty)));
    let mut writer = Writer::new(archive, Database::new(512));
    for _ in 0..2 {
        let min = writer.txid + 1;
        (0..3).for_each(|_| writer.change("INSERT INTO t (text) VALUES (1)"));
        writer.upload(min);
    }
    let text = |target| restored(&writer.archive, target).unwrap_err().to_string();
    assert_eq!(
        text(Target::Txid(6)),
        "the archive has no state after transaction 6; the next ones are those after transactions 4 and 7"
    );
    assert_eq!(
        text(Target::Txid(8)),
        "the archive has no state after transaction 8; the last state that can be had is that after transaction 7"
    );
    assert_eq!(
        text(Target::Time(BEGINNING)),
        "the archive begins later; the first state that can be had is that after transaction 1"
    );
}

#[test]
fn an_existing_file_stays_as_it_is() {
    let writer = Writer::new(in_memory(), Database::new(512));
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.db");
    for name in ["out.db", "out.db-wal", "out.db-journal", "out.db-shm"] {
        let path = dir.path().join(name);
        std::fs::write(&path, "mine").unwrap();
        let refused = wait(writer.archive.restore(Target::Latest, &out, &RestoreOptions::default()));
        assert!(matches!(refused, Err(ArchiveError::Exists { .. })), "{name}");
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        std::fs::remove_file(path).unwrap();
    }
    // The restore also does not replace a file that appears while it runs.
    let restored = wait(writer.archive.restore(Target::Latest, &out, &RestoreOptions::default())).unwrap();
    std::fs::write(&out, "mine").unwrap();
    assert!(matches!(restored.place(), Err(ArchiveError::Exists { .. })));
    assert_eq!(std::fs::read(&out).unwrap(), b"mine");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn progress_ends_with_everything() {
    let writer = lived(in_memory(), 512, 5);
    let last = Arc::new(Mutex::new(Progress::default()));
    let seen = Arc::clone(&last);
    let report = move |progress: Progress| {
        let mut last = seen.lock().unwrap();
        assert!(progress.bytes >= last.bytes && progress.objects >= last.objects);
        *last = progress;
    };
    let dir = tempfile::tempdir().unwrap();
    let options = RestoreOptions { parallel: 3, report: Some(Arc::new(report)) };
    let restored =
        wait(writer.archive.restore(Target::Latest, &dir.path().join("out.db"), &options)).unwrap();
    let last = last.lock().unwrap();
    assert_eq!((last.bytes, last.objects), (last.of_bytes, last.of_objects));
    assert_eq!((restored.fetched, restored.txid), (last.bytes, writer.txid));
    assert_eq!(restored.time_ms, time_of(writer.txid));
}
