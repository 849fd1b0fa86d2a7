//! One run. Many connections commit, one row per transaction, at a given rate or as fast as they can. In some runs a
//! program replicates the database at the same time.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fastrand::Rng;
use rusqlite::{Connection, ErrorCode};

use super::programs::{PATIENCE, Programs, Server};
use super::proxy::{Proxy, Traffic};
use super::reached::Watch;
use super::side::{Database, Side};
use crate::concurrent::{self, INSERT};
use crate::workload::{median, percentile};

/// The number of different texts that each connection prepares for its rows. If all rows were the same, they would be
/// easier to compress than ordinary text.
const TEXTS: usize = 256;
/// After the run, the benchmark checks at this interval whether everything can be restored.
const LOOK: Duration = Duration::from_millis(200);

/// The work of the connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct Job<'a> {
    pub(super) connections: usize,
    /// The number of commits per second of all connections together. `None` means that the connections commit as fast
    /// as they can.
    pub(super) rate: Option<f64>,
    pub(super) time: Duration,
    /// Duralite's settings for these connections.
    pub(super) settings: &'a str,
}

/// A commit: its row, and the times at which it began and returned, in seconds since the beginning of the run.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Commit {
    row: i64,
    began: f64,
    returned: f64,
}

/// The results of a run.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) commits: f64,
    pub(super) per_second: f64,
    /// The number of times that a commit got SQLITE_BUSY after the busy timeout.
    pub(super) busy: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// The processor time that the replicating program used until everything could be restored.
    pub(super) cpu_seconds: f64,
    pub(super) traffic: Traffic,
    pub(super) lags: Lags,
}

impl Run {
    /// Converts a count of the whole run to a count for each thousand commits.
    pub(super) fn per_thousand(&self, count: f64) -> f64 {
        count / self.commits * 1000.0
    }
}

/// Returns the median of one value of several runs.
pub(super) fn middle(runs: &[Run], figure: impl Fn(&Run) -> f64) -> f64 {
    median(runs.iter().map(figure).collect::<Vec<_>>())
}

/// Lets connections commit on a fresh database that no program replicates. Returns commits per second.
pub(super) fn alone(dir: &Path, side: Side, job: &Job<'_>) -> Result<f64> {
    let database = Database::new(side, dir)?;
    let conn = database.prepared()?;
    let (commits, _) = crowd(&database.uri(job.settings), job, Instant::now())?;
    conn.close().map_err(|(_, error)| error)?;
    Ok(rate(&commits, job))
}

/// Lets connections commit on a fresh database. A program replicates the database into a prefix of the server's bucket,
/// through a proxy that delays each request.
pub(super) fn replicated(
    (programs, server, dir): (&Programs, &Server, &Path),
    side: Side,
    prefix: &str,
    added: Duration,
    job: &Job<'_>,
) -> Result<Run> {
    let database = Database::new(side, dir)?;
    let conn = database.prepared()?;
    let proxy = Proxy::start(server.address, added)?;
    let mut replicating = database.replicate(programs, server, prefix, proxy.address, &conn)?;
    let (before, since) = (replicating.program.usage()?, Instant::now());
    proxy.take();
    let mut watch = Watch::start(&replicating.transactions, since)?;
    let (commits, busy) = crowd(&database.uri(job.settings), job, since)?;
    let last = commits.last().map_or(0, |commit| commit.row);
    let over = Instant::now();
    let reached = loop {
        let reached = watch.reached()?;
        if reached.last().is_some_and(|(_, row)| *row >= last) || over.elapsed() > PATIENCE {
            break reached;
        }
        std::thread::sleep(LOOK);
    };
    let ended = since.elapsed().as_secs_f64();
    let (traffic, cpu) = (proxy.take(), replicating.program.usage()?.cpu_seconds - before.cpu_seconds);
    conn.close().map_err(|(_, error)| error)?;
    replicating.program.end()?;
    let mut times: Vec<f64> = commits.iter().map(|commit| (commit.returned - commit.began) * 1e3).collect();
    times.sort_by(f64::total_cmp);
    let of = |part| percentile(&times, part).unwrap_or(f64::NAN);
    Ok(Run {
        commits: commits.len() as f64,
        busy: busy as f64,
        per_second: rate(&commits, job),
        p50_ms: of(0.5),
        p99_ms: of(0.99),
        cpu_seconds: cpu,
        traffic,
        lags: Lags::of(&commits, &reached, ended),
    })
}

/// Returns the rate, in commits per second, of the commits that returned within the job's time.
fn rate(commits: &[Commit], job: &Job<'_>) -> f64 {
    let began = commits.iter().map(|commit| commit.began).fold(f64::INFINITY, f64::min);
    let time = job.time.as_secs_f64();
    commits.iter().filter(|commit| commit.returned <= began + time).count() as f64 / time
}

/// Lets connections commit until the time is over. Returns all commits in the order of their rows, and the number of
/// times that a commit got SQLITE_BUSY.
fn crowd(uri: &str, job: &Job<'_>, since: Instant) -> Result<(Vec<Commit>, u64)> {
    let open = |_| concurrent::open(uri);
    let commits =
        concurrent::together(job.connections, open, |nth, conn| commit_for(&conn, job, nth, since))?;
    let busy = commits.iter().map(|(_, busy)| busy).sum();
    let mut commits: Vec<Commit> = commits.into_iter().flat_map(|(commits, _)| commits).collect();
    ensure!(!commits.is_empty(), "nobody has committed");
    commits.sort_by_key(|commit| commit.row);
    Ok((commits, busy))
}

fn commit_for(conn: &Connection, job: &Job<'_>, nth: usize, since: Instant) -> Result<(Vec<Commit>, u64)> {
    let mut random = Rng::with_seed(nth as u64 + 1);
    let texts: Vec<String> = (0..TEXTS).map(|_| text(&mut random)).collect();
    let mut insert = conn.prepare(INSERT)?;
    let (mut commits, mut busy) = (Vec::new(), 0);
    let start = Instant::now();
    // The connections commit in turn, so that the commits are evenly spaced.
    let turn = job.rate.map(|rate| Duration::from_secs_f64(job.connections as f64 / rate));
    let mut due = turn.map(|turn| start + turn.mul_f64(nth as f64 / job.connections as f64));
    while start.elapsed() < job.time {
        if let (Some(due), Some(turn)) = (&mut due, turn) {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            *due += turn;
        }
        let began = since.elapsed().as_secs_f64();
        match insert.execute([&texts[commits.len() % TEXTS]]) {
            Ok(_) => {}
            Err(rusqlite::Error::SqliteFailure(error, _)) if error.code == ErrorCode::DatabaseBusy => {
                busy += 1;
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        commits.push(Commit {
            row: conn.last_insert_rowid(),
            began,
            returned: since.elapsed().as_secs_f64(),
        });
    }
    Ok((commits, busy))
}

/// Returns a hundred digits.
fn text(random: &mut Rng) -> String {
    std::iter::repeat_with(|| char::from_digit(random.u32(..16), 16).unwrap_or('0')).take(100).collect()
}

/// The lags of commits in milliseconds. A lag is the time from the return of a commit until the commit could be
/// restored. If a commit could not be restored before the run ended, its lag ends with the run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Lags {
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// The median for the commits that returned in the first third of the run. The next field is the median for the
    /// last third.
    pub(super) first_ms: f64,
    pub(super) last_ms: f64,
    /// The number of commits that could not be restored at the end.
    pub(super) unreached: usize,
    /// The medians of the lags, one for each second of the run.
    pub(super) seconds: Vec<f64>,
}

impl Lags {
    fn of(commits: &[Commit], reached: &[(f64, i64)], ended: f64) -> Self {
        let mut unreached = 0;
        let each = commits.iter().map(|commit| {
            let nth = reached.partition_point(|(_, row)| *row < commit.row);
            let at = reached.get(nth).map_or_else(
                || {
                    unreached += 1;
                    ended
                },
                |(at, _)| *at,
            );
            (commit.returned, ((at - commit.returned) * 1e3).max(0.0))
        });
        let mut each: Vec<(f64, f64)> = each.collect();
        each.sort_by(|a, b| a.0.total_cmp(&b.0));
        let of = |part: &[(f64, f64)]| median(part.iter().map(|(_, lag)| *lag).collect::<Vec<_>>());
        let (first, last) = (&each[..each.len().div_ceil(3)], &each[each.len() * 2 / 3..]);
        let seconds = each.chunk_by(|a, b| a.0.floor() == b.0.floor()).map(of).collect();
        let (first_ms, last_ms) = (of(first), of(last));
        let mut lags: Vec<f64> = each.iter().map(|(_, lag)| *lag).collect();
        lags.sort_by(f64::total_cmp);
        let at = |part| percentile(&lags, part).unwrap_or(f64::NAN);
        Self { p50_ms: at(0.5), p99_ms: at(0.99), first_ms, last_ms, unreached, seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_ends_with_the_first_object_that_has_the_row() {
        let commit = |row: i64| Commit { row, began: 0.0, returned: row as f64 };
        let commits: Vec<Commit> = (1..=6).map(commit).collect();
        let lags = Lags::of(&commits, &[(0.0, 0), (2.5, 2), (4.5, 5)], 10.0);
        // The lags in seconds are 1.5, 0.5, 1.5, 0.5, 0 and 4. The fifth row could be restored before its commit
        // returned. No object has the sixth row, so its lag ends with the run.
        assert_eq!((lags.p50_ms, lags.p99_ms, lags.unreached), (500.0, 4000.0, 1));
        assert_eq!((lags.first_ms, lags.last_ms), (1000.0, 2000.0));
        assert_eq!(lags.seconds, [1500.0, 500.0, 1500.0, 500.0, 0.0, 4000.0]);
    }
}
