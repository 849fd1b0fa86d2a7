//! The content of the two databases, the changes that a numbered transaction makes, and the conditions that
//! every snapshot must meet.
//!
//! A database has accounts, and no transfer changes their sum. It has a row for each commit of each writer,
//! and the numbers of a writer's rows have no gaps. It also has the newest number of each writer, and a
//! counter of all commits.

use std::collections::HashMap;

use rusqlite::{Connection, Result};

/// The names of the databases in SQL.
pub(crate) const SCHEMAS: [&str; 2] = ["main", "two"];
const ACCOUNTS: i64 = 24;
const BALANCE: i64 = 1000;
/// The row of a commit has at most this many bytes in addition to its numbers.
const FILLER: i64 = 400;

/// Creates the tables and rows of a database.
pub(crate) fn create(conn: &Connection) -> Result<()> {
    conn.execute_batch(&format!(
        "BEGIN;
         CREATE TABLE account(id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, filler BLOB);
         CREATE TABLE done(writer INTEGER, seq INTEGER, filler BLOB, PRIMARY KEY(writer, seq)) WITHOUT ROWID;
         CREATE TABLE newest(writer INTEGER PRIMARY KEY, seq INTEGER NOT NULL);
         CREATE TABLE counter(id INTEGER PRIMARY KEY CHECK(id = 1), n INTEGER NOT NULL);
         INSERT INTO counter VALUES(1, 0);
         WITH RECURSIVE c(id) AS (VALUES(1) UNION ALL SELECT id + 1 FROM c WHERE id < {ACCOUNTS})
         INSERT INTO account SELECT id, {BALANCE}, zeroblob(300) FROM c;
         COMMIT;"
    ))
}

/// The contents of a database, as one snapshot shows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) counter: i64,
    pub(crate) sum: i64,
    /// The newest number of each writer.
    pub(crate) newest: HashMap<i64, i64>,
    /// The number of rows for commits, and the number of writers whose row numbers have gaps; `None` if this
    /// snapshot did not read the rows.
    pub(crate) rows: Option<(i64, i64)>,
}

impl View {
    /// Reads a database within the open transaction. With `all`, reads every commit's row.
    pub(crate) fn of(conn: &Connection, database: usize, all: bool) -> Result<Self> {
        Self::of_schema(conn, SCHEMAS[database], all)
    }

    /// Reads the connection's main database completely.
    pub(crate) fn of_main(conn: &Connection) -> Result<Self> {
        Self::of_schema(conn, SCHEMAS[0], true)
    }

    fn of_schema(conn: &Connection, schema: &str, all: bool) -> Result<Self> {
        let (counter, sum) = conn
            .prepare_cached(&format!(
                "SELECT (SELECT n FROM {schema}.counter), (SELECT sum(balance) FROM {schema}.account)"
            ))?
            .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut newest = conn.prepare_cached(&format!("SELECT writer, seq FROM {schema}.newest"))?;
        let newest = newest.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_>>()?;
        let rows = if all { Some(Self::rows(conn, schema)?) } else { None };
        Ok(Self { counter, sum, newest, rows })
    }

    fn rows(conn: &Connection, schema: &str) -> Result<(i64, i64)> {
        conn.prepare_cached(&format!(
            "SELECT coalesce(sum(c), 0), coalesce(sum(c <> high OR low <> 1), 0)
             FROM (SELECT count(*) c, max(seq) high, min(seq) low FROM {schema}.done GROUP BY writer)"
        ))?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
    }

    /// If this snapshot contradicts itself, returns a description of the contradiction.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let Self { counter, sum, newest, rows } = self;
        if *sum != ACCOUNTS * BALANCE {
            return Some(format!("the accounts sum up to {sum}, not to {}", ACCOUNTS * BALANCE));
        }
        let numbers: i64 = newest.values().sum();
        if numbers != *counter {
            return Some(format!(
                "lost: the counter shows {counter} commits, the writers' numbers {numbers}"
            ));
        }
        match rows {
            Some((count, _)) if count != counter => {
                Some(format!("lost: the counter shows {counter} commits, and there are {count} rows of them"))
            }
            Some((_, holes)) if *holes > 0 => {
                Some(format!("lost: the numbers of {holes} writers have holes"))
            }
            _ => None,
        }
    }
}

/// Returns the number of a writer's newest commit.
pub(crate) fn newest_of(conn: &Connection, database: usize, writer: i64) -> Result<i64> {
    let schema = SCHEMAS[database];
    conn.prepare_cached(&format!("SELECT coalesce(max(seq), 0) FROM {schema}.newest WHERE writer = ?"))?
        .query_row([writer], |row| row.get(0))
}

/// Makes the changes of commit `seq` of a writer, within the open transaction.
pub(crate) fn change(
    conn: &Connection,
    database: usize,
    writer: i64,
    seq: i64,
    rng: &mut fastrand::Rng,
) -> Result<()> {
    let schema = SCHEMAS[database];
    let (from, to, amount) = (rng.i64(1..=ACCOUNTS), rng.i64(1..=ACCOUNTS), rng.i64(1..50));
    let transfer = format!("UPDATE {schema}.account SET balance = balance + ? WHERE id = ?");
    conn.prepare_cached(&transfer)?.execute([-amount, from])?;
    conn.prepare_cached(&transfer)?.execute([amount, to])?;
    conn.prepare_cached(&format!("INSERT INTO {schema}.done VALUES(?, ?, randomblob(?))"))?.execute([
        writer,
        seq,
        rng.i64(0..FILLER),
    ])?;
    conn.prepare_cached(&format!("INSERT OR REPLACE INTO {schema}.newest VALUES(?, ?)"))?
        .execute([writer, seq])?;
    conn.prepare_cached(&format!("UPDATE {schema}.counter SET n = n + 1"))?.execute([])?;
    Ok(())
}

/// Changes every account twice. The sum is correct before the first change and after the second one, but not
/// in between.
pub(crate) fn reshuffle(conn: &Connection, database: usize, amount: i64) -> Result<()> {
    let schema = SCHEMAS[database];
    for statement in [
        format!("UPDATE {schema}.account SET balance = balance + ?, filler = randomblob(300)"),
        format!("UPDATE {schema}.account SET balance = balance - ?, filler = randomblob(300)"),
    ] {
        conn.prepare_cached(&statement)?.execute([amount])?;
    }
    Ok(())
}
