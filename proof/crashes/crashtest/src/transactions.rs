//! Numbered transactions. Seed and number alone decide what the n-th transaction does, so stock SQLite can
//! compute what the database holds after it.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Result};
use xxhash_rust::xxh3::Xxh3;

use crate::many_transactions;
use crate::setup::Setup;

/// Returns the SQL of a transaction of this setup's workload, without BEGIN and COMMIT.
#[must_use]
pub fn text(setup: &Setup, seed: u64, number: u32) -> String {
    if setup.concurrent {
        many_transactions::statements(setup.page_bytes, seed, number).join("; ") + ";"
    } else {
        sql(seed, number)
    }
}

/// Returns the SQL of a transaction for the workload in which connections write one after the other.
#[must_use]
pub fn sql(seed: u64, number: u32) -> String {
    if number == 1 {
        return "CREATE TABLE counter(only INTEGER PRIMARY KEY, total INTEGER NOT NULL);
                CREATE TABLE items(id INTEGER PRIMARY KEY, tag TEXT, by INTEGER, body BLOB);
                CREATE INDEX items_tag ON items(tag);
                INSERT INTO counter VALUES(0, 1);"
            .into();
    }
    let mut random = fastrand::Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(number));
    let mut text = String::new();
    for _ in 0..random.u32(1..=3) {
        match random.u8(..16) {
            0..8 => insert(&mut text, &mut random, number, 1),
            8 | 9 => {
                let (at, tag) = (random.u32(..number * 4), random.u32(..50));
                text += &format!("UPDATE items SET tag = 't{tag}', by = {number} WHERE id % 37 = {at} % 37;");
            }
            10 => text += &format!("DELETE FROM items WHERE id % 11 = {};", random.u32(..11)),
            11 => {
                let body = blob(&mut random, 900);
                let remainder = random.u32(..7);
                text +=
                    &format!("UPDATE items SET body = x'{body}' WHERE id % 7 = {remainder} AND id % 3 = 0;");
            }
            12 => insert(&mut text, &mut random, number, 12),
            13 => {
                // This row is large enough for overflow pages.
                let body = blob(&mut random, 5000);
                text += &format!("INSERT INTO items(tag, by, body) VALUES('large', {number}, x'{body}');");
            }
            14 => {
                let table = random.u32(..3);
                text += &format!(
                    "CREATE TABLE IF NOT EXISTS side{table}(a, b); INSERT INTO side{table} VALUES({number}, 'x');"
                );
            }
            _ => text += &format!("DROP TABLE IF EXISTS side{};", random.u32(..3)),
        }
    }
    // The deletion keeps the database small, so that checking a state takes microseconds.
    text += "DELETE FROM items WHERE id < (SELECT max(id) FROM items) - 60;";
    text += &format!("UPDATE counter SET total = {number};");
    text
}

fn insert(text: &mut String, random: &mut fastrand::Rng, number: u32, rows: u32) {
    for _ in 0..rows {
        let (tag, length) = (random.u32(..50), random.usize(10..120));
        let body = blob(random, length);
        *text += &format!("INSERT INTO items(tag, by, body) VALUES('t{tag}', {number}, x'{body}');");
    }
}

fn blob(random: &mut fastrand::Rng, length: usize) -> String {
    let word = random.u64(..).to_le_bytes();
    word.iter().cycle().take(length).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a hash of everything that a database holds.
///
/// # Errors
/// An error of SQLite.
pub fn digest(conn: &Connection) -> Result<u64> {
    let mut hash = Xxh3::new();
    // All queries run in one transaction, so that they read the same snapshot.
    conn.execute_batch("BEGIN")?;
    let schema = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name";
    let tables = add_rows(conn, schema, &mut hash)?;
    for table in tables {
        hash.update(table.as_bytes());
        add_rows(conn, &format!("SELECT rowid, * FROM {table} ORDER BY rowid"), &mut hash)?;
    }
    conn.execute_batch("COMMIT")?;
    Ok(hash.digest())
}

/// Returns a hash of the rows of these queries.
///
/// # Errors
/// An error of SQLite.
pub fn digest_of(conn: &Connection, queries: &[String]) -> Result<u64> {
    let mut hash = Xxh3::new();
    for query in queries {
        add_rows(conn, query, &mut hash)?;
    }
    Ok(hash.digest())
}

/// Hashes the rows of a query. If the query reads the schema, returns the names of the tables in it.
fn add_rows(conn: &Connection, sql: &str, hash: &mut Xxh3) -> Result<Vec<String>> {
    let mut tables = Vec::new();
    let mut statement = conn.prepare(sql)?;
    let columns = statement.column_count();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        if row.get_ref(0)? == ValueRef::Text(b"table") {
            tables.push(row.get(1)?);
        }
        for column in 0..columns {
            match row.get_ref(column)? {
                ValueRef::Null => hash.update(&[0]),
                ValueRef::Integer(number) => hash.update(&number.to_le_bytes()),
                ValueRef::Real(number) => hash.update(&number.to_le_bytes()),
                ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
                    hash.update(&bytes.len().to_le_bytes());
                    hash.update(bytes);
                }
            }
        }
    }
    Ok(tables)
}

/// The content of the database after each transaction, as stock SQLite computes it.
#[derive(Clone, Debug)]
pub struct Reference {
    /// The SQL of each transaction, from transaction 1 on.
    texts: Vec<String>,
    /// The digest after each transaction, from transaction 0 on.
    digests: Vec<u64>,
}

impl Reference {
    /// Computes the digests after transactions 0 to `last` of this setup's workload.
    ///
    /// # Errors
    /// An error of SQLite.
    pub fn new(setup: &Setup, seed: u64, last: u32) -> Result<Self> {
        Self::of((1..=last).map(|number| text(setup, seed, number)).collect())
    }

    /// Computes the digest after each of these transactions, which run one after the other.
    ///
    /// # Errors
    /// An error of SQLite.
    pub fn of(texts: Vec<String>) -> Result<Self> {
        let conn = Connection::open_in_memory()?;
        let mut digests = vec![digest(&conn)?];
        for text in &texts {
            conn.execute_batch(text)?;
            digests.push(digest(&conn)?);
        }
        Ok(Self { texts, digests })
    }

    /// Returns the SQL of a transaction.
    #[must_use]
    pub fn text(&self, number: u32) -> Option<&str> {
        self.texts.get((number as usize).checked_sub(1)?).map(String::as_str)
    }

    /// Returns the number of the transaction after which a database has this digest.
    #[must_use]
    pub fn number_of(&self, digest: u64) -> Option<u32> {
        self.digests.iter().position(|known| *known == digest).map(|number| number as u32)
    }

    /// Returns the digest after a transaction.
    #[must_use]
    pub fn after(&self, number: u32) -> Option<u64> {
        self.digests.get(number as usize).copied()
    }
}
