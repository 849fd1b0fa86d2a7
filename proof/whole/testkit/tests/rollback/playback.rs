//! Rolls a database back without SQLite and with SQLite. Both must leave the same database, whether the
//! journal is whole or cut off.

use std::fs;
use std::path::Path;
use std::sync::Mutex;

use duralite_format::LogId;
use duralite_format::guard::{self, HEADER_BYTES, JournalKind};
use duralite_testkit::{Rng, for_seeds, one, run, stock};
use duralite_wal::LogError;
use duralite_wal::engine::home::OpenDatabase;
use duralite_wal::engine::rollback::{RollbackJournal, play_back};

const ID: LogId = LogId([7; 16]);

/// A journal in memory.
struct Bytes(Mutex<Option<Vec<u8>>>);

impl RollbackJournal for Bytes {
    fn size(&self) -> Result<Option<u64>, LogError> {
        Ok(self.0.lock().unwrap().as_ref().map(|bytes| bytes.len() as u64))
    }

    fn create(&self) -> Result<(), LogError> {
        unreachable!("nobody makes one")
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        let bytes = self.0.lock().unwrap();
        let bytes = bytes.as_ref().unwrap().get(offset as usize..).unwrap_or_default();
        let count = buf.len().min(bytes.len());
        buf[..count].copy_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn write(&self, _: &[u8], _: u64) -> Result<(), LogError> {
        unreachable!("nobody writes")
    }

    fn truncate(&self, _: u64) -> Result<(), LogError> {
        unreachable!("nobody cuts it")
    }

    fn sync(&self) -> Result<(), LogError> {
        Ok(())
    }

    fn delete(&self) -> Result<(), LogError> {
        *self.0.lock().unwrap() = None;
        Ok(())
    }
}

/// Returns a database and its journal in the middle of a transaction of stock SQLite, after SQLite has
/// spilled pages.
fn hot(dir: &Path, rng: &mut Rng) -> (Vec<u8>, Vec<u8>) {
    let path = dir.join("hot.db");
    let conn = stock(&path);
    let page_bytes = 512_u64 << rng.below(8);
    let synchronous = rng.pick(&["OFF", "NORMAL", "FULL"]);
    for sql in [
        format!("PRAGMA page_size={page_bytes}"),
        format!("PRAGMA synchronous={synchronous}"),
        format!("PRAGMA cache_size={}", 1 + rng.below(12)),
        "CREATE TABLE t(a INTEGER PRIMARY KEY, b)".to_owned(),
        "BEGIN".to_owned(),
    ] {
        run(&conn, &sql).unwrap();
    }
    for _ in 0..30 {
        run(&conn, &format!("INSERT INTO t(b) VALUES(randomblob({}))", rng.below(9000))).unwrap();
    }
    run(&conn, "COMMIT").unwrap();
    run(&conn, "BEGIN").unwrap();
    for _ in 0..12 {
        let (row, bytes) = (rng.below(40), rng.below(9000));
        let sql = match rng.below(4) {
            0 => format!("DELETE FROM t WHERE a > {row}"),
            1 => format!("INSERT INTO t(b) VALUES(randomblob({bytes}))"),
            _ => format!("UPDATE t SET b = randomblob({bytes}) WHERE a % 40 = {row}"),
        };
        run(&conn, &sql).unwrap();
    }
    (fs::read(&path).unwrap(), fs::read(dir.join("hot.db-journal")).unwrap())
}

/// Lets SQLite roll the database back. Returns the result.
fn by_sqlite(dir: &Path, database: &[u8], journal: &[u8]) -> Vec<u8> {
    let path = dir.join("theirs.db");
    fs::write(&path, database).unwrap();
    fs::write(dir.join("theirs.db-journal"), journal).unwrap();
    let conn = stock(&path);
    let _ = run(&conn, "SELECT count(*) FROM sqlite_schema");
    drop(conn);
    drop(fs::remove_file(dir.join("theirs.db-journal")));
    fs::read(&path).unwrap()
}

/// Lets Duralite roll the guarded database back without SQLite. Returns the result without the guard.
fn by_us(dir: &Path, database: &[u8], journal: &[u8]) -> Vec<u8> {
    let path = dir.join("ours.db");
    let mut guarded = database.to_vec();
    guard::mask_as(JournalKind::Rollback, 0, &mut guarded, ID);
    fs::write(&path, &guarded).unwrap();
    let file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let bytes = Bytes(Mutex::new(Some(journal.to_vec())));
    play_back(&bytes, &OpenDatabase::new(file, &path), ID).unwrap();
    assert_eq!(bytes.size().unwrap(), None);
    let mut found = fs::read(&path).unwrap();
    let header: &mut [u8; HEADER_BYTES] = (&mut found[..HEADER_BYTES]).try_into().unwrap();
    guard::lift(header);
    found
}

#[test]
fn inv21_playing_back_a_journal_in_part_is_what_sqlite_does() {
    for_seeds(24, |seed| {
        let mut rng = Rng::new(seed);
        let dir = tempfile::tempdir().unwrap();
        let (database, whole) = hot(dir.path(), &mut rng);
        for part in 0..12 {
            let mut journal = whole.clone();
            match part {
                0 => {}
                1..7 => journal.truncate(rng.below(whole.len() as u64 + 1) as usize),
                // Change a byte of the numbers in the first header, or a byte anywhere. Of the number of pages, change
                // only the lowest byte: with any other byte, both databases become terabytes long.
                7..10 => {
                    let at = 8 + rng.below(20) as usize;
                    journal[if (16..20).contains(&at) { 19 } else { at }] = rng.below(256) as u8;
                }
                _ => {
                    let at = rng.below(journal.len() as u64) as usize;
                    journal[if (16..20).contains(&at) { 19 } else { at }] ^= 1 << rng.below(8);
                }
            }
            let (ours, theirs) =
                (by_us(dir.path(), &database, &journal), by_sqlite(dir.path(), &database, &journal));
            assert!(ours == theirs, "part {part}: {} and {} bytes", ours.len(), theirs.len());
        }
    });
}

#[test]
fn inv23_a_journal_counts_as_long_as_its_super_journal_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let (database, mut journal) = hot(dir.path(), &mut Rng::new(1));
    let name = dir.path().join("hot.db-mj0A1B2C912");
    let bytes = name.as_os_str().as_encoded_bytes();
    let sum = bytes.iter().fold(0_u32, |sum, byte| sum.wrapping_add_signed(i32::from(*byte as i8)));
    journal.extend_from_slice(&0x4000_0001_u32.to_be_bytes());
    journal.extend_from_slice(bytes);
    journal.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    journal.extend_from_slice(&sum.to_be_bytes());
    journal.extend_from_slice(&[0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7]);
    assert!(by_us(dir.path(), &database, &journal) == database, "it is committed");
    assert!(by_sqlite(dir.path(), &database, &journal) == database, "it is committed");
    fs::write(&name, "another journal\0").unwrap();
    let ours = by_us(dir.path(), &database, &journal);
    assert!(ours != database, "it was not rolled back");
    assert!(ours == by_sqlite(dir.path(), &database, &journal));
    let path = dir.path().join("rolled-back.db");
    fs::write(&path, ours).unwrap();
    assert_eq!(one::<String>(&stock(&path), "PRAGMA integrity_check"), "ok");
}
