//! Runs many connections that commit at once. On stock SQLite all but one starve.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use rusqlite::ErrorCode;

use crate::modes::{self, Mode};
use crate::scene::Scene;
use crate::screen::{grouped, say, table};

const CONNECTIONS: usize = 16;
const TIME: Duration = Duration::from_secs(2);
const BUSY_TIMEOUT: Duration = Duration::from_secs(20);
const INSERT: &str = "INSERT INTO characters(code, name) VALUES('U+0041', 'LATIN CAPITAL LETTER A')";

/// The commits of one connection.
#[derive(Default)]
struct Share {
    commits: u64,
    seconds: f64,
    worst: Duration,
    busy: u64,
}

/// Lets many connections commit at once, on stock SQLite and on Duralite. Prints how many commits each
/// connection made.
///
/// # Errors
/// An error of SQLite, or an interrupt.
pub(crate) fn run(scene: &Scene) -> Result<()> {
    say(&format!(
        "\n{CONNECTIONS} writers at once, {} s each (busy timeout {} s) ...",
        TIME.as_secs(),
        BUSY_TIMEOUT.as_secs()
    ))?;
    let (mut rows, mut stock) = (Vec::new(), None);
    for mode in ["warm", "waldio"] {
        let mode = modes::find(mode)?;
        let shares = measure(scene, mode)?;
        let commits: u64 = shares.iter().map(|share| share.commits).sum();
        let rate: f64 = shares.iter().map(|share| share.commits as f64 / share.seconds).sum();
        let slowest = shares.iter().map(|share| share.commits).min().unwrap_or(0) as f64;
        let worst = shares.iter().map(|share| share.worst).max().unwrap_or_default();
        let label = if mode.settings.is_none() { "stock SQLite, WAL" } else { mode.label };
        rows.push(vec![
            label.to_owned(),
            grouped(rate.round()),
            format!("{:.1}x", rate / *stock.get_or_insert(rate)),
            format!("{:.2}", slowest * CONNECTIONS as f64 / commits.max(1) as f64),
            grouped((worst.as_secs_f64() * 1e3).round()),
            shares.iter().map(|share| share.busy).sum::<u64>().to_string(),
        ]);
    }
    say(&table(&["", "commits/s", "of stock", "slowest / mean", "worst commit, ms", "SQLITE_BUSY"], &rows))
}

fn measure(scene: &Scene, mode: &Mode) -> Result<Vec<Share>> {
    let database = scene.database(&format!("crowd-{}", mode.key));
    // This connection stays open until all others are closed. Otherwise a close could delete the log during
    // the test.
    let kept = mode.open(&database, scene.pool(), true)?;
    let barrier = Barrier::new(CONNECTIONS);
    let work = || -> Result<Share> {
        let opened = mode.open(&database, scene.pool(), true);
        barrier.wait();
        let conn = opened?;
        // Sets the timeout by SQL, because the binding's call would use functions that a system's older
        // SQLite lacks.
        conn.execute_batch(&format!("PRAGMA busy_timeout={}", BUSY_TIMEOUT.as_millis()))?;
        let mut insert = conn.prepare(INSERT)?;
        let (mut share, start) = (Share::default(), Instant::now());
        while start.elapsed() < TIME && !scene.processes.is_interrupted() {
            let begun = Instant::now();
            match insert.execute([]) {
                Ok(_) => share.commits += 1,
                Err(rusqlite::Error::SqliteFailure(error, _)) if error.code == ErrorCode::DatabaseBusy => {
                    share.busy += 1;
                }
                Err(error) => return Err(error.into()),
            }
            share.worst = share.worst.max(begun.elapsed());
        }
        // When `TIME` is over, a connection may still wait for a lock. So each connection measures how long
        // it really ran, and its rate uses that time.
        share.seconds = start.elapsed().as_secs_f64();
        Ok(share)
    };
    let shares = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a writer panicked"))))
            .collect()
    });
    drop(kept);
    scene.processes.check()?;
    shares
}
