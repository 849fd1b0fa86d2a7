//! Counts a workload's statements and pages as the paper's table 3 does, to show how close the workload is to
//! the paper's trace.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::app::Purpose;
use super::config::Config;
use super::generate::Workload;
use super::replay::{Database, Template, run};

/// The number of bytes in the header of SQLite's WAL file. The next constant is the number of bytes in a
/// frame, which consists of a header and a page. The frame's header begins with the page number.
const WAL_HEADER: usize = 32;
const WAL_FRAME: usize = 24 + 4096;

/// A row of table 3.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Census {
    /// The number of transactions.
    pub transactions: usize,
    /// The number of transactions between `BEGIN` and `COMMIT`.
    pub batches: usize,
    /// The mean number of statements in a transaction between `BEGIN` and `COMMIT`.
    pub statements_per_batch: f64,
    /// The share of joins among all statements, in percent.
    pub joins: f64,
    /// The share of updates among all statements, in percent.
    pub updates: f64,
    /// The number of transactions that write.
    pub writing: usize,
    /// The number of pages per transaction that SQLite writes to its log.
    pub pages_per_transaction: f64,
    /// The number of different pages that the workload writes to the log. If SQLite makes its only
    /// checkpoint at the end, the checkpoint writes this many pages.
    pub different_pages: usize,
    /// The size of the database at the end, in megabytes of 1,048,576 bytes.
    pub megabytes: f64,
}

impl Census {
    /// Counts the statements, and runs the workload once on stock SQLite to count pages. The files of that
    /// run are in `dir`.
    ///
    /// # Errors
    /// An error of SQLite or of the file system.
    pub fn of(dir: &Path, workload: &Workload) -> Result<Self> {
        let transactions = workload.transactions.len();
        let batches = || workload.transactions.iter().filter(|transaction| transaction.batch);
        let in_batches: usize = batches().map(|transaction| transaction.statements.len()).sum();
        let percent = |purpose: Purpose| {
            let count = workload.statements().filter(|statement| statement.purpose == purpose).count();
            count as f64 * 100.0 / workload.statement_count() as f64
        };
        let writes =
            |statements: &[super::generate::Statement]| statements.iter().any(|s| !s.purpose.reads());
        let (pages, bytes) = pages_and_size(dir, workload)?;
        let different: HashSet<u32> = pages.iter().copied().collect();
        Ok(Self {
            transactions,
            batches: batches().count(),
            statements_per_batch: in_batches as f64 / batches().count().max(1) as f64,
            joins: percent(Purpose::Join),
            updates: percent(Purpose::Update),
            writing: workload
                .transactions
                .iter()
                .filter(|transaction| writes(&transaction.statements))
                .count(),
            pages_per_transaction: pages.len() as f64 / transactions.max(1) as f64,
            different_pages: different.len(),
            megabytes: bytes as f64 / f64::from(1 << 20),
        })
    }
}

/// Returns the numbers of the pages in a log that is checkpointed only at the end, and the size of the
/// database in bytes after that checkpoint.
fn pages_and_size(dir: &Path, workload: &Workload) -> Result<(Vec<u32>, u64)> {
    let template = Template::new(dir, workload)?;
    let database = Database::new(dir, &template, &Config::wal())?;
    let conn = database.open()?;
    conn.execute_batch("PRAGMA synchronous=OFF")?;
    conn.query_row("PRAGMA wal_autocheckpoint=0", [], |_| Ok(()))?;
    run(&conn, workload)?;
    let mut log = database.path().as_os_str().to_owned();
    log.push("-wal");
    let log = fs::read(Path::new(&log)).context("there is no log")?;
    drop(conn);
    let frames = log.get(WAL_HEADER..).unwrap_or_default().chunks_exact(WAL_FRAME);
    let pages = frames.filter_map(|frame| Some(u32::from_be_bytes(*frame.first_chunk()?))).collect();
    Ok((pages, fs::metadata(database.path())?.len()))
}
