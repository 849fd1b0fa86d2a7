//! A database, and an archive of it that the test itself writes.

pub mod s3;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use duralite_archive::{
    Archive, ArchiveError, Base, Claim, Created, Generation, Key, Line, Object, Replica, RestoreOptions,
    SNAPSHOTS, Start, Target,
};
use duralite_ltx::{Encoder, Header, database_checksum};
use object_store::PutPayload;
use object_store::memory::InMemory;
use rusqlite::Connection;
use tempfile::TempDir;

/// The time of the first transaction, in milliseconds since 1970. Each further transaction comes a second after the
/// previous one.
pub const BEGINNING: i64 = 1_700_000_000_000;

/// Waits for a future, on the runtime that the whole process shares.
pub fn wait<T>(future: impl Future<Output = T>) -> T {
    static RUNTIME: std::sync::OnceLock<tokio::runtime::Runtime> = std::sync::OnceLock::new();
    RUNTIME.get_or_init(|| tokio::runtime::Runtime::new().unwrap()).block_on(future)
}

pub fn time_of(txid: u64) -> i64 {
    BEGINNING + 1000 * txid.cast_signed()
}

/// Returns an archive in memory.
pub fn in_memory() -> Archive {
    Archive::on(Arc::new(InMemory::new()), "some/prefix".into())
}

/// A database whose journal mode does not use a WAL, so its file is complete after each transaction.
pub struct Database {
    pub dir: TempDir,
    pub sql: Connection,
    last: Vec<u8>,
}

impl Database {
    pub fn new(page_size: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let sql = Connection::open(dir.path().join("source.db")).unwrap();
        let begin = format!(
            "PRAGMA page_size = {page_size}; PRAGMA auto_vacuum = FULL; PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF;
             CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT); CREATE INDEX i ON t (text);"
        );
        sql.execute_batch(&begin).unwrap();
        Self { dir, sql, last: Vec::new() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.dir.path().join("source.db")).unwrap()
    }

    fn page_size(bytes: &[u8]) -> u32 {
        match u32::from(u16::from_be_bytes([bytes[16], bytes[17]])) {
            1 => 65_536,
            size => size,
        }
    }
}

/// Writes an archive of a database, as a primary would.
pub struct Writer {
    pub archive: Archive,
    pub replica: Replica,
    pub generation: Option<Generation>,
    pub database: Database,
    pub txid: u64,
    /// The bytes of the database after the last transaction of each object, by the number of that transaction.
    pub states: BTreeMap<u64, Vec<u8>>,
}

impl Writer {
    /// Makes a writer of an archive without generations, as Litestream makes archives.
    pub fn without_generations(archive: Archive, database: Database) -> Self {
        let replica = archive.as_replica();
        Self { archive, replica, generation: None, database, txid: 0, states: BTreeMap::new() }
    }

    /// Makes a writer of an archive that already has a first generation with a snapshot.
    pub fn new(archive: Archive, database: Database) -> Self {
        let replica = archive.replica(Generation::FIRST);
        let mut writer = Self { replica, ..Self::without_generations(archive, database) };
        writer.txid = 1;
        writer.begin(Generation::FIRST, None, Line::First);
        writer.snapshot();
        writer
    }

    /// Begins a generation whose first state is the present state of the database.
    pub fn begin(&mut self, generation: Generation, parent: Option<Generation>, line: Line) {
        let bytes = self.database.bytes();
        let page_size = Database::page_size(&bytes);
        let pages = bytes.len() as u32 / page_size;
        let checksum = format!("{:016x}", database_checksum(&bytes[..], page_size, pages).unwrap());
        let time_ms = time_of(self.txid);
        let token = "0".repeat(32);
        let claim = Claim { generation, token: token.clone(), node: "test".to_owned(), time_ms };
        let base = Base { txid: self.txid, pages, page_size, checksum };
        let start = Start { generation, token, parent, line, first_txid: self.txid + 1, base, time_ms };
        self.put_record(Key::Claim(generation), &claim);
        self.put_record(Key::Start(generation), &start);
        self.generation = Some(generation);
        self.replica = self.archive.replica(generation);
        self.states.insert(self.txid, bytes.clone());
        self.database.last = bytes;
    }

    pub fn put_record(&self, key: Key, record: &impl serde::Serialize) {
        let json = serde_json::to_vec(record).unwrap();
        assert_eq!(
            wait(self.archive.create(&self.archive.key(key), json.into(), None)).unwrap(),
            Created::Now
        );
    }

    /// Runs a transaction, and archives it in an object of its own.
    pub fn commit(&mut self, sql: &str) {
        self.change(sql);
        self.upload(self.txid);
    }

    /// Runs a transaction, and does not archive it yet.
    pub fn change(&mut self, sql: &str) {
        self.database.sql.execute_batch(sql).unwrap();
        self.txid += 1;
    }

    /// Archives the transactions from `min` to the newest as one object.
    pub fn upload(&mut self, min: u64) {
        let (before, now) = (std::mem::take(&mut self.database.last), self.database.bytes());
        let content = self.encode(min, &[&before, &now]);
        self.states.insert(self.txid, now.clone());
        self.database.last = now;
        self.put(Object { level: 0, min, max: self.txid, bytes: content.len() as u64 }, content);
    }

    /// Writes an object of another level that has the changes of the transactions from `min` to `max`.
    pub fn compact(&self, level: u8, min: u64, max: u64) {
        // For a snapshot, compare with an empty database, so that the object has all pages.
        let line: Vec<&[u8]> = match min {
            1 => vec![&[], &self.states[&max]],
            _ => self.states.range(min - 1..=max).map(|(_, state)| state.as_slice()).collect(),
        };
        let writer = Self { txid: max, ..self.other() };
        let content = writer.encode(min, &line);
        writer.put(Object { level, min, max, bytes: content.len() as u64 }, content);
    }

    pub fn snapshot(&self) {
        self.compact(SNAPSHOTS, 1, self.txid);
    }

    pub fn key(&self, level: u8, min: u64, max: u64) -> object_store::path::Path {
        self.replica.key(&Object { level, min, max, bytes: 0 })
    }

    pub fn delete(&self, level: u8, min: u64, max: u64) {
        wait(self.archive.delete(&self.key(level, min, max))).unwrap();
    }

    pub fn replace(&self, key: &object_store::path::Path, content: impl Into<PutPayload>) {
        wait(self.archive.delete(key)).unwrap();
        wait(self.archive.create(key, content.into(), None)).unwrap();
    }

    fn other(&self) -> Self {
        Self {
            archive: self.archive.clone(),
            replica: self.replica.clone(),
            generation: self.generation,
            database: Database {
                dir: tempfile::tempdir().unwrap(),
                sql: Connection::open_in_memory().unwrap(),
                last: Vec::new(),
            },
            txid: self.txid,
            states: BTreeMap::new(),
        }
    }

    fn put(&self, object: Object, content: Vec<u8>) {
        let key = self.replica.key(&object);
        let created = wait(self.archive.create(&key, content.into(), Some(time_of(object.max)))).unwrap();
        assert_eq!(created, Created::Now, "{key}");
    }

    /// Encodes one object with all transactions between the first and the last of the states in `line`. The object has
    /// each page that differs between two neighbouring states, even if the page is the same in the first and the last
    /// state. The reason is that a restore may apply the object to a state in between.
    fn encode(&self, min: u64, line: &[&[u8]]) -> Vec<u8> {
        let now = line[line.len() - 1];
        let page_size = Database::page_size(now);
        let size = page_size as usize;
        let header = Header {
            page_size,
            commit: (now.len() / size) as u32,
            min_txid: min,
            max_txid: self.txid,
            timestamp_ms: time_of(self.txid),
            pre_checksum: None,
            wal_offset: self.txid,
            wal_size: 1,
            wal_salt: [1, 2],
            node_id: self.generation.map_or(0, Generation::number),
        };
        let mut encoder = Encoder::new(Vec::new(), header).unwrap();
        for (number, page) in (1..).zip(now.chunks(size)) {
            let differs = |pair: &[&[u8]]| {
                let [before, after] = [0, 1].map(|at| pair[at].chunks(size).nth(number as usize - 1));
                before != after
            };
            if line.windows(2).any(differs) {
                encoder.page(number, page).unwrap();
            }
        }
        encoder.finish().unwrap().0
    }
}

/// Restores the archive, and returns the bytes of the restored database.
pub fn restored(archive: &Archive, target: Target) -> Result<Vec<u8>, ArchiveError> {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.db");
    let restored = wait(archive.restore(target, &out, &RestoreOptions::default()));
    if restored.is_err() {
        assert_eq!(files(dir.path()), Vec::<PathBuf>::new(), "a restore that failed left something");
    }
    restored?.place()?;
    assert_eq!(files(dir.path()), std::slice::from_ref(&out));
    Ok(std::fs::read(out).unwrap())
}

fn files(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Returns a random transaction that grows, changes or shrinks the database.
pub fn work(random: &mut fastrand::Rng) -> String {
    match random.u32(..20) {
        0 => format!("DELETE FROM t WHERE id % {} = 0", random.u32(2..5)),
        1 => "VACUUM".to_owned(),
        2..8 => format!(
            "UPDATE t SET text = hex(randomblob({})) WHERE id % 7 = {}",
            random.u32(1..900),
            random.u32(..7)
        ),
        _ => format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {})
             INSERT INTO t (text) SELECT hex(randomblob({})) FROM n",
            random.u32(1..60),
            random.u32(1..400)
        ),
    }
}

/// Writes an archive with 40 objects of one to three transactions each, with compacted objects, and with snapshots.
pub fn lived(archive: Archive, page_size: u32, seed: u64) -> Writer {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut writer = Writer::new(archive, Database::new(page_size));
    let mut ends = vec![1];
    for _ in 0..40 {
        let min = writer.txid + 1;
        for _ in 0..random.u32(1..4) {
            writer.change(&work(&mut random));
        }
        writer.upload(min);
        ends.push(writer.txid);
    }
    // Merge every four objects of level 0 into one object of level 1, and every three objects of level 1 into one
    // object of level 2.
    for (level, step) in [(1, 4), (2, 12)] {
        for at in (0..ends.len() - step).step_by(step) {
            writer.compact(level, ends[at] + 1, ends[at + step]);
        }
    }
    for at in [15, 30] {
        writer.compact(9, 1, ends[at]);
    }
    // Delete the first eight objects of level 0, as pruning does some time after compaction.
    for at in 0..8 {
        writer.delete(0, ends[at] + 1, ends[at + 1]);
    }
    writer
}
