//! Collects the changes that SQLite makes to pages.

use std::path::{Path, PathBuf};

use duralite_testkit::Rng;
use rusqlite::{Connection, ToSql, params_from_iter};

/// A page before and after a transaction. If the transaction allocated the page, `old` is all zeros.
pub struct Change {
    pub old: Vec<u8>,
    pub new: Vec<u8>,
    /// The offset of the b-tree header.
    pub header: usize,
}

/// A database whose pages the test compares after each transaction.
pub struct Pages {
    db: Connection,
    path: PathBuf,
    before: Vec<u8>,
    page_bytes: usize,
    pub rng: Rng,
    _dir: tempfile::TempDir,
}

impl Pages {
    /// Makes the database. Sets `pragmas` before the first table exists. SQLite leaves the last `reserved`
    /// bytes of each page unused.
    pub fn new(page_bytes: usize, reserved: u8, pragmas: &str, seed: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pages.db");
        if reserved > 0 {
            reserve(&path, page_bytes, reserved);
        }
        let db = Connection::open(&path).unwrap();
        let start = format!(
            "PRAGMA page_size={page_bytes}; PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF; {pragmas}"
        );
        db.execute_batch(&start).unwrap();
        Self { db, path, before: Vec::new(), page_bytes, rng: Rng::new(seed), _dir: dir }
    }

    /// Runs a statement, and returns the page changes that it made.
    pub fn run(&mut self, sql: &str, values: &[&dyn ToSql]) -> Vec<Change> {
        self.db.prepare_cached(sql).unwrap().execute(params_from_iter(values)).unwrap();
        self.changes()
    }

    /// Runs statements without values in one transaction.
    pub fn batch(&mut self, sql: &str) -> Vec<Change> {
        self.db.execute_batch(&format!("BEGIN; {sql}; COMMIT")).unwrap();
        self.changes()
    }

    fn changes(&mut self) -> Vec<Change> {
        let after = std::fs::read(&self.path).unwrap();
        self.before.resize(after.len(), 0);
        let pages = self.before.chunks(self.page_bytes).zip(after.chunks(self.page_bytes)).enumerate();
        let changed = pages.filter(|(_, (old, new))| old != new).map(|(i, (old, new))| Change {
            old: old.to_vec(),
            new: new.to_vec(),
            header: if i == 0 { 100 } else { 0 },
        });
        let found = changed.collect();
        self.before = after;
        found
    }

    /// Returns a text of random letters.
    pub fn text(&mut self, bytes: u64) -> String {
        let length = bytes / 2 + self.rng.below(bytes + 1);
        (0..length).map(|_| char::from(b'a' + self.rng.below(26) as u8)).collect()
    }
}

/// Makes a database without tables, whose pages have reserved bytes.
fn reserve(path: &Path, page_bytes: usize, reserved: u8) {
    let db = Connection::open(path).unwrap();
    db.execute_batch(&format!("PRAGMA page_size={page_bytes}; PRAGMA user_version=1")).unwrap();
    drop(db);
    let mut bytes = std::fs::read(path).unwrap();
    let content = u16::try_from(page_bytes - usize::from(reserved)).unwrap();
    bytes[20] = reserved;
    bytes[105..107].copy_from_slice(&content.to_be_bytes());
    std::fs::write(path, bytes).unwrap();
}
