//! Measures many readers, without writers and while others write.

use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::Result;
use rusqlite::Connection;

use super::line::Line;
use super::scale::{self, WALDIO};
use crate::concurrent;
use crate::nvwal::Effort;
use crate::workload::median;

const READERS: usize = 100;
const WRITERS: usize = 16;
/// The number of rows in the table.
const ROWS: i64 = 10_000;

/// One transaction of a thread.
type Step<'a> = Box<dyn FnMut() -> Result<()> + 'a>;

fn reader(conn: &Connection, seed: u64) -> Result<Step<'_>> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut select = conn.prepare("SELECT v FROM t WHERE id=?1")?;
    Ok(Box::new(move || {
        select.query_row([random.i64(1..=ROWS)], |row| row.get::<_, String>(0))?;
        Ok(())
    }))
}

fn writer(conn: &Connection) -> Result<Step<'_>> {
    let payload = concurrent::payload();
    let mut insert = conn.prepare(concurrent::INSERT)?;
    Ok(Box::new(move || {
        insert.execute([&payload])?;
        Ok(())
    }))
}

/// Repeats a step until the time is over. Returns the number of repetitions.
fn repeat(mut step: Step<'_>, time: Duration) -> Result<u64> {
    let start = Instant::now();
    let mut count = 0;
    while start.elapsed() < time {
        step()?;
        count += 1;
    }
    Ok(count)
}

/// Lets the readers and `writers` writers run at the same time. Returns the total reads per second, and the
/// total commits per second.
fn together(uri: &str, writers: usize, time: Duration) -> Result<(f64, f64)> {
    let barrier = Barrier::new(READERS + writers);
    let one = |index: usize| -> Result<u64> {
        let conn = concurrent::open(uri);
        barrier.wait();
        let conn = conn?;
        let step = if index < READERS { reader(&conn, index as u64)? } else { writer(&conn)? };
        repeat(step, time)
    };
    let counts = std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (0..READERS + writers).map(|index| scope.spawn(move || one(index))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked"))))
            .collect::<Result<Vec<u64>>>()
    })?;
    let per_second = |counts: &[u64]| counts.iter().sum::<u64>() as f64 / time.as_secs_f64();
    let (reads, commits) = counts.split_at(READERS);
    Ok((per_second(reads), per_second(commits)))
}

/// The medians of a crowd: reads per second without writers, reads per second beside writers, and the commits
/// per second of those writers.
struct Crowd {
    alone: f64,
    beside: f64,
    commits: f64,
}

fn crowd(dir: &Path, parameters: Option<&str>, effort: Effort) -> Result<Crowd> {
    let time = scale::crowd_time(effort);
    let own = tempfile::tempdir_in(dir)?;
    let uri = concurrent::fresh(own.path(), parameters);
    let keep = scale::prepare(&uri)?;
    keep.execute_batch("DELETE FROM t; BEGIN")?;
    for id in 1..=ROWS {
        keep.execute("INSERT INTO t(id, v) VALUES(?1, ?2)", (id, concurrent::payload()))?;
    }
    keep.execute_batch("COMMIT")?;
    let (mut alone, mut beside, mut commits) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..scale::crowd_rounds(effort) {
        alone.push(together(&uri, 0, time)?.0);
        let (reads, writes) = together(&uri, WRITERS, time)?;
        beside.push(reads);
        commits.push(writes);
    }
    drop(keep);
    Ok(Crowd { alone: median(alone), beside: median(beside), commits: median(commits) })
}

/// Measures a hundred reading threads, alone and while sixteen threads write, on `waldio` and on stock
/// SQLite. Commits slow the readers down on both, because after a commit SQLite discards the pages that a
/// reader has cached.
///
/// # Errors
/// An error of SQLite.
pub(super) fn measure(dir: &Path, effort: Effort) -> Result<Vec<Line>> {
    let waldio = crowd(dir, Some(WALDIO), effort)?;
    let stock = crowd(dir, None, effort)?;
    let mut lines = Vec::new();
    for (engine, crowd, wanted) in [("waldio", &waldio, "at least 0.8x"), ("stock WAL", &stock, "-")] {
        let what = format!("{engine}, {READERS} reading threads beside {WRITERS} writing ones (reads/s)");
        lines.push(Line::beside(&what, crowd.beside, "the readers alone", crowd.alone, wanted)?);
    }
    let what = format!("waldio, the {WRITERS} writing threads beside them (commits/s)");
    lines.push(Line::beside(&what, waldio.commits, "stock WAL, the same", stock.commits, "-")?);
    Ok(lines)
}
