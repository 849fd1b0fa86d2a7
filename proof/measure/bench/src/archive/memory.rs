//! Makes databases of a given size, and measures what a program needs to replicate them.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fastrand::Rng;
use rusqlite::{Connection, params};

use super::programs::{PATIENCE, Programs, Running, Server};
use super::reached::objects;
use super::side::{Database, Side, is_archived};

/// The number of commits after the first snapshot.
const COMMITS: u32 = 1000;
/// If nothing was uploaded for this time, everything counts as uploaded. Litestream uploads once a second.
const QUIET: Duration = Duration::from_secs(3);
/// The number of rows that one transaction inserts.
const BATCH: u64 = 20_000;
/// The words of which notes consist.
const WORDS: [&str; 16] = [
    "please", "deliver", "to", "the", "back", "door", "between", "nine", "and", "noon", "fragile", "gift",
    "call", "before", "arrival", "thanks",
];

/// Makes a database of about `bytes` bytes in WAL mode, and closes it. Each row is a customer's order. It has
/// the items of the order as JSON, a note, and random bytes that do not compress. The table has an index.
pub(super) fn make(path: &Path, bytes: u64) -> Result<()> {
    let conn = Connection::open(path)?;
    conn.execute_batch(
        "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-200000;
         CREATE TABLE orders(id INTEGER PRIMARY KEY, customer INTEGER NOT NULL, placed_at TEXT NOT NULL,
             status TEXT NOT NULL, lines TEXT NOT NULL, note TEXT NOT NULL, seal BLOB NOT NULL)",
    )?;
    let mut random = Rng::with_seed(bytes);
    let size = || Ok::<_, anyhow::Error>(std::fs::metadata(path)?.len());
    // The index is made after this loop, and brings the database to its full size.
    while size()? < bytes / 100 * 96 {
        conn.execute_batch("BEGIN")?;
        let mut insert =
            conn.prepare_cached("INSERT INTO orders VALUES(NULL, ?1, ?2, ?3, ?4, ?5, randomblob(64))")?;
        for _ in 0..BATCH.min(bytes / 10_000) {
            let placed_at = format!(
                "2026-{:02}-{:02}T{:02}:{:02}:{:02}Z",
                random.u32(1..13),
                random.u32(1..29),
                random.u32(..24),
                random.u32(..60),
                random.u32(..60)
            );
            let status = ["new", "paid", "sent", "returned"][random.usize(..4)];
            insert.execute(params![
                random.u32(..bytes as u32 / 2000),
                placed_at,
                status,
                lines(&mut random),
                note(&mut random)
            ])?;
        }
        drop(insert);
        conn.execute_batch("COMMIT")?;
    }
    conn.execute_batch("CREATE INDEX by_customer ON orders(customer)")?;
    let mode: String = conn.query_row("PRAGMA journal_mode=WAL", [], |row| row.get(0))?;
    ensure!(mode == "wal", "journal mode is {mode}");
    conn.close().map_err(|(_, error)| error.into())
}

/// Returns the lines of an order.
fn lines(random: &mut Rng) -> String {
    let count = random.u32(1..5);
    let each = |_| {
        let (article, quantity, cents) =
            (random.u32(10_000..99_999), random.u32(1..10), random.u32(100..99_999));
        format!("{{\"article\":{article},\"quantity\":{quantity},\"cents\":{cents}}}")
    };
    format!("[{}]", (0..count).map(each).collect::<Vec<_>>().join(","))
}

fn note(random: &mut Rng) -> String {
    let words = random.usize(3..20);
    (0..words).map(|_| WORDS[random.usize(..WORDS.len())]).collect::<Vec<_>>().join(" ")
}

/// Changes randomly chosen rows of the table `orders`, one in each transaction.
pub(super) fn change(conn: &Connection, commits: u32, seed: u64) -> Result<()> {
    let orders: i64 = conn.query_row("SELECT max(id) FROM orders", [], |row| row.get(0))?;
    let mut random = Rng::with_seed(seed);
    let mut update = conn.prepare("UPDATE orders SET status=?1, note=?2 WHERE id=?3")?;
    for nth in 0..commits {
        let changed =
            update.execute(params![format!("state {nth}"), note(&mut random), random.i64(1..=orders)])?;
        ensure!(changed == 1, "an update found {changed} orders");
    }
    Ok(())
}

/// The resources and times that the replication of a database took.
pub(super) struct Took {
    /// The time until the database could first be restored.
    pub(super) snapshot: Duration,
    pub(super) most_mib: f64,
}

/// Starts a program that replicates a database. When the program has made the first snapshot, commits to the
/// database. When the archive has these commits, calls `then` with the connection.
pub(super) fn replicate(
    (programs, server): (&Programs, &Server),
    database: &Database,
    prefix: &str,
    then: impl FnOnce(&Connection) -> Result<()>,
) -> Result<Took> {
    let conn = database.open()?;
    let since = Instant::now();
    let mut replicating = database.replicate(programs, server, prefix, server.address, &conn)?;
    let snapshot = since.elapsed();
    change(&conn, COMMITS, 1)?;
    settle(database.side(), &conn, &mut replicating.program, &replicating.transactions)?;
    let most_mib = replicating.program.usage()?.most_mib;
    then(&conn)?;
    settle(database.side(), &conn, &mut replicating.program, &replicating.transactions)?;
    conn.close().map_err(|(_, error)| error)?;
    replicating.program.end()?;
    Ok(Took { snapshot, most_mib })
}

/// Waits until the archive has all that was committed.
fn settle(side: Side, conn: &Connection, program: &mut Running, transactions: &Path) -> Result<()> {
    if side == Side::Duralite {
        return program.wait_until("the archive lags", || is_archived(conn));
    }
    let (mut since, began) = (Instant::now(), Instant::now());
    let mut had = 0;
    program.wait_until("the archive lags", || {
        let has = objects(transactions)?.len();
        if has != had {
            (had, since) = (has, Instant::now());
        }
        Ok(since.elapsed() > QUIET || began.elapsed() > PATIENCE / 2)
    })
}
