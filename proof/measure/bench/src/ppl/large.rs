//! Measures two transactions that are larger than a log usually is: VACUUM, and an UPDATE of all rows.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rusqlite::Connection;

use crate::concurrent::fresh;
use crate::nvwal::Effort;
use crate::report::{Table, number};
use crate::workload::{median, status};

/// The size of the rows of the database in MB. Each row has about a quarter of a page.
const MB: u64 = 100;
const ROW_BYTES: u64 = 1000;
const ROWS: u64 = MB * 1_000_000 / ROW_BYTES;
/// To fill the database, each transaction inserts this many rows.
const BATCH: u64 = 10_000;
const ROUNDS: usize = 3;
const MIB: f64 = (1 << 20) as f64;

/// Stock SQLite for comparison, and the engines in memory with their default settings.
const CONFIGS: [(&str, Option<&str>); 3] = [
    ("WAL", None),
    ("nvwal", Some("journal=nvwal&nvram=emulate")),
    ("ppl", Some("journal=ppl&nvram=emulate")),
];
const STEPS: [(&str, &str); 2] =
    [("UPDATE of all rows", "UPDATE t SET b = randomblob(length(b))"), ("VACUUM", "VACUUM")];

/// The times and the memory that a statement took.
#[derive(Clone, Copy, Default)]
struct Took {
    statement_ms: f64,
    checkpoint_ms: f64,
    /// The log's memory after the statement, and after the checkpoint.
    log: [f64; 2],
}

/// Returns the memory that the log uses; 0 for stock SQLite.
fn log_bytes(conn: &Connection, parameters: Option<&str>) -> Result<f64> {
    if parameters.is_none() {
        return Ok(0.0);
    }
    let log = status(conn)?.remove("log").context("PRAGMA duralite shows no log")?;
    Ok(std::fs::metadata(log)?.blocks() as f64 * 512.0)
}

fn run(dir: &Path, parameters: Option<&str>) -> Result<[Took; 2]> {
    crate::register()?;
    let conn = Connection::open(fresh(dir, parameters))?;
    conn.execute_batch(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE pad AS SELECT randomblob(9000);
         CREATE TABLE t(a INTEGER PRIMARY KEY, b BLOB);",
    )?;
    for from in (0..ROWS).step_by(BATCH as usize) {
        conn.execute_batch(&format!(
            "WITH RECURSIVE n(i) AS (SELECT {from} + 1 UNION ALL SELECT i + 1 FROM n WHERE i < {from} + {BATCH})
             INSERT INTO t SELECT i, randomblob({ROW_BYTES}) FROM n"
        ))?;
    }
    let checkpoint = || conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
    ensure!(checkpoint()? == 0, "a checkpoint that nobody is in the way of");
    // Measure the checkpoint apart from the statement.
    conn.query_row("PRAGMA wal_autocheckpoint=0", [], |_| Ok(()))?;
    let mut took = [Took::default(); 2];
    for ((_, sql), took) in STEPS.iter().zip(&mut took) {
        // In the file, the dropped table lies before the rows, so VACUUM moves each row.
        conn.execute_batch("DROP TABLE IF EXISTS pad")?;
        let start = Instant::now();
        conn.execute_batch(sql)?;
        took.statement_ms = start.elapsed().as_secs_f64() * 1e3;
        took.log[0] = log_bytes(&conn, parameters)?;
        let start = Instant::now();
        ensure!(checkpoint()? == 0, "a checkpoint that nobody is in the way of");
        took.checkpoint_ms = start.elapsed().as_secs_f64() * 1e3;
        took.log[1] = log_bytes(&conn, parameters)?;
    }
    conn.close().map_err(|(_, error)| error)?;
    Ok(took)
}

/// Measures VACUUM and an UPDATE of all rows, compared with stock SQLite.
///
/// # Errors
/// An error of SQLite.
pub fn large(dir: &Path, effort: Effort) -> Result<Table> {
    let mut table = Table::new(
        "ppl_large",
        &format!("Transactions of a whole database of {MB} MB"),
        &[
            "what",
            "mode",
            "ms",
            "checkpoint, ms",
            "both / WAL's",
            "log after it, MiB",
            "after the checkpoint, MiB",
        ],
    );
    let own = tempfile::tempdir_in(dir)?;
    let rounds = effort.rounds.min(ROUNDS);
    let mut taken: [Vec<[Took; 2]>; CONFIGS.len()] = Default::default();
    for _ in 0..rounds {
        for ((_, parameters), taken) in CONFIGS.iter().zip(&mut taken) {
            taken.push(run(own.path(), *parameters)?);
        }
    }
    for (step, (what, _)) in STEPS.iter().enumerate() {
        let mut both_of_wal = None;
        for ((mode, parameters), taken) in CONFIGS.iter().zip(&taken) {
            let middle = |of: fn(&Took) -> f64| {
                let figures: Vec<f64> = taken.iter().map(|took| of(&took[step])).collect();
                median(figures)
            };
            let both = middle(|took| took.statement_ms + took.checkpoint_ms);
            let log = |of: fn(&Took) -> f64| match parameters {
                Some(_) => number(middle(of) / MIB),
                None => "-".to_owned(),
            };
            table.row([
                (*what).to_owned(),
                (*mode).to_owned(),
                number(middle(|took| took.statement_ms)),
                number(middle(|took| took.checkpoint_ms)),
                format!("{:.2}x", both / *both_of_wal.get_or_insert(both)),
                log(|took| took.log[0]),
                log(|took| took.log[1]),
            ]);
        }
    }
    table.note = format!(
        "A table of {ROWS} rows of {ROW_BYTES} bytes, in pages of 4 KiB; all of it is in the database file when the \
         statement begins. `synchronous=FULL`, default settings, `wal_autocheckpoint=0`, so that statement and \
         `wal_checkpoint(TRUNCATE)` are measured apart. Medians of {rounds} rounds, by turns. The log is what its \
         file takes of the memory."
    );
    Ok(table)
}
