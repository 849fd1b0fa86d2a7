//! Makes numbered transactions. From the content of the database, a test can tell whether exactly the
//! transactions 1 to `n` are there, and what `n` is.

use rusqlite::{Connection, Result, params};

use crate::sql;

/// If a transaction's number is a multiple of this, the transaction is too large for the writer's cache.
const LARGE_EVERY: i64 = 50;
const LARGE_ROWS: i64 = 60;

/// Transaction `n` inserts row `n`, and updates a counter and an older row.
pub struct Ledger(());

impl Ledger {
    /// Makes the tables if they do not exist.
    ///
    /// # Errors
    /// An error of SQLite.
    pub fn prepare(conn: &Connection) -> Result<Self> {
        conn.execute_batch(
            "BEGIN IMMEDIATE;
             CREATE TABLE IF NOT EXISTS rows(n INTEGER PRIMARY KEY, payload BLOB NOT NULL, seen INTEGER);
             CREATE TABLE IF NOT EXISTS bulk(n INTEGER, i INTEGER, payload BLOB, PRIMARY KEY(n, i)) WITHOUT ROWID;
             CREATE TABLE IF NOT EXISTS counter(only INTEGER PRIMARY KEY, total INTEGER NOT NULL);
             INSERT OR IGNORE INTO counter VALUES(0, 0);
             COMMIT;",
        )?;
        Ok(Self(()))
    }

    /// Commits transaction `n`.
    ///
    /// # Errors
    /// An error of SQLite.
    pub fn append(&self, conn: &Connection, n: i64) -> Result<()> {
        conn.execute_batch("BEGIN IMMEDIATE")?;
        conn.prepare_cached("INSERT INTO rows VALUES(?1, ?2, 0)")?.execute(params![n, payload(n)])?;
        conn.prepare_cached("UPDATE rows SET seen = ?1 WHERE n = ?2")?.execute(params![n, n / 2])?;
        if n % LARGE_EVERY == 0 {
            let mut insert = conn.prepare_cached("INSERT INTO bulk VALUES(?1, ?2, ?3)")?;
            for i in 0..LARGE_ROWS {
                insert.execute(params![n, i, payload(n + i).repeat(9)])?;
            }
            conn.prepare_cached("DELETE FROM bulk WHERE n < ?1")?.execute([n - 2 * LARGE_EVERY])?;
        }
        conn.prepare_cached("UPDATE counter SET total = ?1")?.execute([n])?;
        conn.execute_batch("COMMIT")
    }

    /// Asserts that the content is exactly what the transactions 1 to `n` leave. Returns `n`.
    #[must_use]
    #[track_caller]
    pub fn verify(&self, conn: &Connection) -> i64 {
        conn.execute_batch("BEGIN").unwrap();
        let total = sql::one::<i64>(conn, "SELECT total FROM counter");
        let mut statement = conn.prepare("SELECT n, payload, seen FROM rows ORDER BY n").unwrap();
        let mut rows = statement.query([]).unwrap();
        let mut expected = 0;
        while let Some(row) = rows.next().unwrap() {
            expected += 1;
            let (n, bytes, seen): (i64, Vec<u8>, i64) =
                (row.get(0).unwrap(), row.get(1).unwrap(), row.get(2).unwrap());
            assert_eq!(n, expected, "a row is missing");
            assert!(bytes == payload(n), "row {n} has a wrong payload");
            let touched = [2 * n + 1, 2 * n].into_iter().find(|by| *by <= total && *by != n).unwrap_or(0);
            assert_eq!(seen, touched, "row {n} of {total}");
        }
        assert_eq!(expected, total, "the counter does not match the rows");
        let bulk = sql::one::<i64>(conn, "SELECT count(*) FROM bulk");
        assert_eq!(bulk, (total / LARGE_EVERY).min(3) * LARGE_ROWS, "a large transaction is torn at {total}");
        conn.execute_batch("COMMIT").unwrap();
        total
    }
}

fn payload(n: i64) -> Vec<u8> {
    let length = usize::try_from(60 + n % 90).unwrap();
    n.wrapping_mul(0x5851_f42d_4c95_7f2d).to_le_bytes().into_iter().cycle().take(length).collect()
}
