//! Makes numbered transactions, and checks that the database has every transaction up to some number.
//!
//! Transaction `n` takes its number from a counter in the database, so the numbers follow the order of
//! commits across all processes. Each transaction appends row `n`, deletes the row that has become too old,
//! and changes another row. Now and then a transaction is too large for a page cache, or for the part of a
//! log that is kept in memory.

use anyhow::{Context as _, Result, bail, ensure};
use rusqlite::{Connection, params};

/// The number of newest rows that the table keeps.
pub(crate) const WINDOW: i64 = 3000;
/// A transaction changes a row whose age is at most this. The age is a difference of transaction numbers.
const REACH: i64 = 97;
const BULK_EVERY: i64 = 40;
const BULK_WINDOW: i64 = 400;
const BULK_BYTES: usize = 1000;

/// Returns the number of rows that transaction `n` has in the table `bulk`.
fn bulk_rows(n: i64) -> i64 {
    match n {
        _ if n % 1000 == 0 => 1500,
        _ if n % 200 == 0 => 300,
        _ if n % BULK_EVERY == 0 => 50,
        _ => 0,
    }
}

pub(crate) fn payload(n: i64, salt: i64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(n.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(salt).cast_unsigned())
        .fill(&mut bytes);
    bytes
}

fn row_payload(n: i64, worker: u64) -> Vec<u8> {
    payload(n, worker.cast_signed(), 60 + (n % 90).unsigned_abs() as usize)
}

/// Makes the tables.
pub(crate) fn create(conn: &Connection) -> Result<()> {
    conn.execute_batch(
        "BEGIN IMMEDIATE;
         CREATE TABLE rows(n INTEGER PRIMARY KEY, worker INTEGER NOT NULL, payload BLOB NOT NULL, seen INTEGER);
         CREATE INDEX by_worker ON rows(worker, n);
         CREATE TABLE bulk(n INTEGER, i INTEGER, payload BLOB, PRIMARY KEY(n, i)) WITHOUT ROWID;
         CREATE TABLE counter(only INTEGER PRIMARY KEY, total INTEGER NOT NULL);
         INSERT INTO counter VALUES(0, 0);
         COMMIT;",
    )
    .context("cannot make the tables")
}

/// Returns the number of the last transaction.
pub(crate) fn total(conn: &Connection) -> rusqlite::Result<i64> {
    conn.prepare_cached("SELECT total FROM counter")?.query_row([], |row| row.get(0))
}

/// Returns the process that made transaction `n`.
pub(crate) fn owner(conn: &Connection, n: i64) -> rusqlite::Result<u64> {
    let mut statement = conn.prepare_cached("SELECT worker FROM rows WHERE n = ?1")?;
    statement.query_row([n], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned)
}

/// Makes the changes of transaction `n`. The caller has begun the transaction, and commits it.
pub(crate) fn change(conn: &Connection, n: i64, worker: u64) -> rusqlite::Result<()> {
    conn.prepare_cached("INSERT INTO rows VALUES(?1, ?2, ?3, 0)")?.execute(params![
        n,
        worker.cast_signed(),
        row_payload(n, worker)
    ])?;
    conn.prepare_cached("DELETE FROM rows WHERE n = ?1")?.execute([n - WINDOW])?;
    conn.prepare_cached("UPDATE rows SET seen = ?1 WHERE n = ?2")?.execute([n, touched(n)])?;
    if n % BULK_EVERY == 0 {
        let mut insert = conn.prepare_cached("INSERT INTO bulk VALUES(?1, ?2, ?3)")?;
        for i in 0..bulk_rows(n) {
            insert.execute(params![n, i, payload(n, i, BULK_BYTES)])?;
        }
        conn.prepare_cached("DELETE FROM bulk WHERE n <= ?1")?.execute([n - BULK_WINDOW])?;
    }
    conn.prepare_cached("UPDATE counter SET total = ?1")?.execute([n])?;
    Ok(())
}

/// Makes changes that the caller will not commit, so nobody may ever see them.
pub(crate) fn junk(conn: &Connection, rows: i64) -> rusqlite::Result<()> {
    let mut insert = conn.prepare_cached("INSERT INTO rows VALUES(?1, 0, ?2, -1)")?;
    for i in 1..=rows {
        insert.execute(params![-i, payload(-i, 0, BULK_BYTES)])?;
    }
    conn.prepare_cached("UPDATE rows SET payload = x'00' WHERE n % 13 = ?1")?.execute([rows % 13])?;
    conn.prepare_cached("UPDATE counter SET total = total + 1000000")?.execute([])?;
    Ok(())
}

fn touched(n: i64) -> i64 {
    n - 1 - n % REACH
}

fn first_kept(total: i64) -> i64 {
    (total - WINDOW + 1).max(1)
}

/// Checks the rows from `low` on, inside a transaction that sees `total` transactions. `owner` returns the
/// process to which a transaction was acknowledged.
pub(crate) fn verify_rows(
    conn: &Connection,
    low: i64,
    total: i64,
    owner: impl Fn(i64) -> Option<u64>,
) -> Result<()> {
    let low = low.max(first_kept(total));
    let mut seen = vec![0; usize::try_from((total - low + 1).max(0))?];
    for n in low..=total {
        if let Some(place) = usize::try_from(touched(n) - low).ok().and_then(|at| seen.get_mut(at)) {
            *place = n;
        }
    }
    let mut statement =
        conn.prepare_cached("SELECT n, worker, payload, seen FROM rows WHERE n >= ?1 ORDER BY n")?;
    let mut rows = statement.query([low])?;
    let mut expected = low;
    while let Some(row) = rows.next()? {
        let (n, worker) = (row.get::<_, i64>(0)?, row.get::<_, i64>(1)?.cast_unsigned());
        ensure!(n == expected, "row {expected} of {total} is missing: the next is {n}");
        if let Some(owner) = owner(n).filter(|owner| *owner != worker) {
            bail!(
                "transaction {n} of process {owner} was acknowledged, and process {worker} made another {n}"
            );
        }
        ensure!(
            row.get_ref(2)?.as_blob()? == row_payload(n, worker),
            "row {n} of {total} has a wrong payload"
        );
        let (by, wanted) = (row.get::<_, i64>(3)?, seen.get(usize::try_from(n - low)?).copied());
        ensure!(Some(by) == wanted, "row {n} of {total} was last changed by {by}, not by {wanted:?}");
        expected += 1;
    }
    ensure!(expected == total + 1, "row {expected} of {total} is missing, and all after it");
    Ok(())
}

/// Checks all rows, inside a transaction that sees `total` transactions.
pub(crate) fn verify_all(conn: &Connection, total: i64, owner: impl Fn(i64) -> Option<u64>) -> Result<()> {
    verify_rows(conn, 0, total, owner)?;
    let count = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, i64>(0));
    let (rows, kept) = (count("SELECT count(*) FROM rows")?, total - first_kept(total) + 1);
    ensure!(rows == kept, "{rows} rows of {total}, not {kept}: something deleted or rolled back is there");
    let newest = total / BULK_EVERY * BULK_EVERY;
    let first = (newest - BULK_WINDOW).max(0) / BULK_EVERY + 1;
    let mut statement = conn.prepare_cached("SELECT n, i, payload FROM bulk ORDER BY n, i")?;
    let mut rows = statement.query([])?;
    for n in (first..=newest / BULK_EVERY).map(|times| times * BULK_EVERY) {
        for i in 0..bulk_rows(n) {
            let row = rows.next()?.with_context(|| format!("bulk row {n}, {i} of {total} is missing"))?;
            let found = (row.get::<_, i64>(0)?, row.get::<_, i64>(1)?);
            ensure!(found == (n, i), "bulk row {n}, {i} of {total} is missing: the next is {found:?}");
            let right = row.get_ref(2)?.as_blob()? == payload(n, i, BULK_BYTES);
            ensure!(right, "bulk row {n}, {i} of {total} has a wrong payload");
        }
    }
    ensure!(rows.next()?.is_none(), "there are more bulk rows than {total} transactions leave");
    let answer: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    ensure!(answer == "ok", "integrity_check: {}", answer.replace('\n', "; "));
    Ok(())
}
