//! Draws random statements that a seed reproduces.

use duralite_testkit::Rng;

pub const TABLES: u64 = 4;

/// Returns a statement that creates a table if it does not exist. The other statements mostly use the tables
/// that this function creates.
pub fn create(table: u64) -> String {
    let rest = if table == 3 { ", PRIMARY KEY(a)) WITHOUT ROWID" } else { ")" };
    let kind = if table == 3 { "" } else { " PRIMARY KEY" };
    format!("CREATE TABLE IF NOT EXISTS t{table}(a INTEGER{kind}, b, c{rest}")
}

pub struct Writer {
    rng: Rng,
    /// The connection that the writer chose last. The writer usually chooses it again.
    last: usize,
}

impl Writer {
    pub fn new(rng: Rng) -> Self {
        Self { rng, last: 0 }
    }

    pub fn choose(&mut self, connections: usize) -> usize {
        if self.rng.chance(4) {
            self.last = self.rng.below(connections as u64) as usize;
        }
        self.last
    }

    /// Returns the next statement, or `None` to close the connection and open another.
    pub fn next(&mut self, in_transaction: bool) -> Option<String> {
        Some(match self.rng.below(100) {
            0..28 => self.insert(),
            28..40 => self.update(),
            40..50 => self.delete(),
            50..62 => self.select(),
            62..68 => self.schema(),
            68..84 => self.transaction(in_transaction),
            84..90 => self.checkpoint(),
            90..97 => self.pragma(),
            97 => "VACUUM".to_owned(),
            98 => self.mode(),
            _ => return None,
        })
    }

    fn table(&mut self) -> u64 {
        self.rng.below(TABLES)
    }

    fn number(&mut self) -> u64 {
        self.rng.below(300)
    }

    /// Returns a value of any type, now and then a large one.
    fn value(&mut self) -> String {
        match self.rng.below(9) {
            0 => "NULL".to_owned(),
            1 => format!("{}", self.rng.draw()),
            2 => format!("-{}.{}", self.number(), self.number()),
            3 => format!("'text {}'", self.rng.draw()),
            4 => format!("zeroblob({})", self.rng.below(5000)),
            5 if self.rng.chance(6) => format!("zeroblob({})", self.rng.below(150_000)),
            _ => {
                let word = format!("{:016x}", self.rng.draw());
                format!("x'{}'", word.repeat(1 + self.rng.below(30) as usize))
            }
        }
    }

    fn insert(&mut self) -> String {
        let (table, a, b, c) = (self.table(), self.number(), self.value(), self.value());
        let verb = self.rng.pick(&[
            "INSERT",
            "INSERT OR REPLACE",
            "INSERT OR IGNORE",
            "REPLACE",
            "INSERT OR ROLLBACK",
        ]);
        if self.rng.chance(6) {
            let rows = 1 + self.rng.below(400);
            return format!(
                "WITH RECURSIVE n(i) AS (SELECT {a} UNION ALL SELECT i + 1 FROM n WHERE i < {a} + {rows})
                 {verb} INTO t{table}(a, b, c) SELECT i, {b}, 'row ' || i FROM n"
            );
        }
        format!("{verb} INTO t{table}(a, b, c) VALUES({a}, {b}, {c})")
    }

    fn update(&mut self) -> String {
        let (table, a, value) = (self.table(), self.number(), self.value());
        match self.rng.below(3) {
            0 => format!("UPDATE t{table} SET b = {value} WHERE a = {a}"),
            1 => format!("UPDATE OR IGNORE t{table} SET c = {value}, a = a + 1 WHERE a % 7 = {}", a % 7),
            _ => format!("UPDATE t{table} SET c = {value} WHERE a BETWEEN {a} AND {}", a + 50),
        }
    }

    fn delete(&mut self) -> String {
        let (table, a) = (self.table(), self.number());
        match self.rng.below(4) {
            0 if self.rng.chance(3) => format!("DELETE FROM t{table}"),
            1 => format!("DELETE FROM t{table} WHERE a % 3 = {}", a % 3),
            _ => format!("DELETE FROM t{table} WHERE a BETWEEN {a} AND {}", a + 20),
        }
    }

    fn select(&mut self) -> String {
        let (table, a) = (self.table(), self.number());
        match self.rng.below(6) {
            0 => format!("SELECT * FROM t{table} ORDER BY a"),
            1 => format!("SELECT count(*), sum(a), total(length(b)), max(c) FROM t{table}"),
            2 => format!("SELECT a, b FROM t{table} WHERE a > {a} ORDER BY a LIMIT 20"),
            3 => format!(
                "SELECT x.a, y.c FROM t{table} x JOIN t{} y USING(a) ORDER BY 1, 2 LIMIT 100",
                self.table()
            ),
            4 => format!("SELECT c, count(*) FROM t{table} GROUP BY c ORDER BY c"),
            _ => "SELECT type, name, rootpage, sql FROM sqlite_schema".to_owned(),
        }
    }

    fn schema(&mut self) -> String {
        let table = self.table();
        match self.rng.below(8) {
            0..4 => create(table),
            4 => format!("CREATE INDEX IF NOT EXISTS i{table} ON t{table}(c, b)"),
            5 => format!("DROP INDEX IF EXISTS i{table}"),
            6 if self.rng.chance(4) => format!("DROP TABLE IF EXISTS t{table}"),
            6 => format!("REINDEX i{table}"),
            _ => format!("CREATE TABLE t{table}(a INTEGER PRIMARY KEY, b, c)"),
        }
    }

    /// Returns a transaction statement, mostly one that can succeed.
    fn transaction(&mut self, within: bool) -> String {
        let within = within != self.rng.chance(30);
        let savepoint = self.rng.below(2);
        match (within, self.rng.below(12)) {
            (false, 0..10) => {
                self.rng.pick(&["BEGIN", "BEGIN", "BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"]).to_owned()
            }
            (false, _) | (true, 0..3) => format!("SAVEPOINT s{savepoint}"),
            (true, 3..7) => "COMMIT".to_owned(),
            (true, 7) => "ROLLBACK".to_owned(),
            (true, 8..11) => format!("ROLLBACK TO s{savepoint}"),
            (true, _) => format!("RELEASE s{savepoint}"),
        }
    }

    fn checkpoint(&mut self) -> String {
        let mode = self.rng.pick(&["PASSIVE", "PASSIVE", "FULL", "RESTART", "TRUNCATE"]);
        format!("PRAGMA wal_checkpoint({mode})")
    }

    fn pragma(&mut self) -> String {
        let number = self.number();
        match self.rng.below(14) {
            0 => format!("PRAGMA synchronous={}", self.rng.pick(&["OFF", "NORMAL", "FULL", "EXTRA"])),
            1 => format!("PRAGMA cache_size={}", 1 + number / 10),
            2 => format!("PRAGMA journal_size_limit={}", number * 200),
            3 => format!("PRAGMA wal_autocheckpoint={}", number / 3),
            4 => format!("PRAGMA mmap_size={}", self.rng.pick(&["0", "100000", "268435456"])),
            5 => format!("PRAGMA incremental_vacuum({number})"),
            6 => format!("PRAGMA user_version={number}"),
            7 => "PRAGMA page_count".to_owned(),
            8 => "PRAGMA freelist_count".to_owned(),
            9 => "PRAGMA data_version".to_owned(),
            10 => "PRAGMA integrity_check".to_owned(),
            11 => "PRAGMA schema_version".to_owned(),
            12 => format!("PRAGMA secure_delete={}", number % 2),
            _ => "PRAGMA journal_mode".to_owned(),
        }
    }

    fn mode(&mut self) -> String {
        let modes = [
            "journal_mode=DELETE",
            "journal_mode=WAL",
            "journal_mode=WAL",
            "locking_mode=EXCLUSIVE",
            "locking_mode=NORMAL",
        ];
        format!("PRAGMA {}", self.rng.pick(&modes))
    }
}
