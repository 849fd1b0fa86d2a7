//! One run: writers, which are threads or processes, commit transactions for a given time.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use duralite::Attempts;
use duralite_wal::metrics::Histogram;
use fastrand::Rng;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::client::{self, BUSY_SNAPSHOT, Base, Client, Failure, attempt};
use super::mode::Mode;
use super::works::{self, Effects, Turn, Work};
use crate::concurrent;

/// With this first argument the program runs as a writer process; see [`writer`].
pub const WORKER: &str = "bench-writer";

/// The work of the writers.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) work: Work,
    pub(super) mode: Mode,
    /// The time for which each transaction is held open.
    pub(super) hold: Duration,
    pub(super) writers: usize,
    pub(super) time: Duration,
}

/// The results of one writer.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(super) struct Share {
    commits: u64,
    /// The number of attempts that failed with `SQLITE_BUSY`. The next field counts those that failed with
    /// `SQLITE_BUSY_SNAPSHOT`.
    busy: u64,
    overtaken: u64,
    effects: Effects,
    /// The number of commits before the time was over. Later commits do not count as throughput, because by
    /// then the other writers have stopped.
    in_time: u64,
    /// The processor time in seconds that the writer's process had used when the writer began, and when it
    /// ended.
    cpu: (f64, f64),
    /// The time of each transaction from its first BEGIN to the COMMIT that succeeded. Each number counts
    /// the times in one bucket.
    latencies: Vec<u64>,
}

/// The results of all writers together.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) per_second: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// The number of attempts per commit that failed with `SQLITE_BUSY`. The next field counts those that
    /// failed with `SQLITE_BUSY_SNAPSHOT`.
    pub(super) busy: f64,
    pub(super) overtaken: f64,
    /// The processor seconds per 1,000 commits.
    pub(super) cpu: f64,
}

/// Returns the processor time of this process, in seconds.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Commits transactions until the time is over. If a transaction fails because of other transactions, runs
/// it again, as Duralite's packages for applications do.
fn commit_for(client: &mut dyn Client, job: &Job, writer: usize) -> Result<Share> {
    let workload = job.work.workload();
    let mut random = Rng::with_seed(writer as u64 + 1);
    let mut latencies = Histogram::default();
    let mut share = Share { cpu: (cpu_seconds(), 0.0), ..Share::default() };
    let start = Instant::now();
    while start.elapsed() < job.time {
        let began = Instant::now();
        let mut attempts = Attempts::default();
        let seed = random.fork();
        let effects = loop {
            let result = attempt(client, client::begin(job.mode, &attempts), |client| {
                let (random, number) = (seed.clone(), writer as u64 + share.commits);
                workload.work(&mut Turn { client, random, number, writer: writer as i64, hold: job.hold })
            });
            let code = match result {
                Ok(effects) => break effects,
                Err(Failure::Lost(code)) => code,
                Err(Failure::Broken(error)) => return Err(error),
            };
            *if code == BUSY_SNAPSHOT { &mut share.overtaken } else { &mut share.busy } += 1;
            match attempts.pause_after(Some(code)) {
                Some(pause) => std::thread::sleep(pause),
                // The transaction has waited for the lock, and has not got it. It begins again with its
                // first attempt.
                None => attempts = Attempts::default(),
            }
        };
        latencies.record(began.elapsed());
        share.commits += 1;
        share.in_time += u64::from(start.elapsed() <= job.time);
        share.effects = sum(share.effects, effects);
    }
    share.cpu.1 = cpu_seconds();
    share.latencies = latencies.buckets().map(|(_, count)| count).collect();
    Ok(share)
}

fn sum(one: Effects, other: Effects) -> Effects {
    std::array::from_fn(|place| one[place] + other[place])
}

fn fresh(dir: &Path, mode: Mode) -> Result<Box<dyn Base>> {
    #[cfg(feature = "turso")]
    if mode.is_turso() {
        return super::turso::fresh(dir);
    }
    client::fresh(dir, mode)
}

/// Runs a job on a fresh database in `dir`, and checks what the database contains afterwards.
///
/// # Errors
/// An error of SQLite or of starting a process, or a database that does not hold what was committed.
pub(super) fn run(dir: &Path, job: &Job, processes: bool) -> Result<Outcome> {
    let base = fresh(dir, job.mode)?;
    let workload = job.work.workload();
    let mut main = base.client()?;
    let filled = works::prepare(&*workload, &mut *main, job.writers)?;
    drop(main);
    let shares = if processes { by_processes(&*base, job)? } else { by_threads(&*base, job)? };
    let expected = shares.iter().fold(filled, |all, share| sum(all, share.effects));
    works::check(&*workload, &mut *base.client()?, &expected)?;
    let cpu = if processes {
        shares.iter().map(|share| one_process(std::slice::from_ref(share))).sum()
    } else {
        one_process(&shares)
    };
    Outcome::of(&shares, job.time, cpu)
}

/// Returns the processor time that a process used while its writers ran.
fn one_process(shares: &[Share]) -> f64 {
    let begin = shares.iter().map(|share| share.cpu.0).fold(f64::INFINITY, f64::min);
    shares.iter().map(|share| share.cpu.1).fold(0.0, f64::max) - begin
}

fn by_threads(base: &dyn Base, job: &Job) -> Result<Vec<Share>> {
    let open = |_| base.client();
    concurrent::together(job.writers, open, |writer, mut client| commit_for(&mut *client, job, writer))
}

fn by_processes(base: &dyn Base, job: &Job) -> Result<Vec<Share>> {
    let uri = base.uri().context("other processes cannot open this database")?;
    let text = serde_json::to_string(job)?;
    let arguments: Vec<_> = (0..job.writers)
        .map(|writer| [WORKER.to_owned(), uri.to_owned(), text.clone(), writer.to_string()])
        .collect();
    let lines = concurrent::programs_together(&arguments)?;
    lines.iter().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// Does the work of a writer that is a process.
///
/// # Errors
/// An error of SQLite, or a job that cannot be read.
pub fn writer(uri: &str, job: &str, writer: usize) -> Result<()> {
    let job: Job = serde_json::from_str(job)?;
    let mut client = client::open(uri)?;
    concurrent::wait_for_go()?;
    let share = commit_for(&mut *client, &job, writer)?;
    println!("{}", serde_json::to_string(&share)?);
    Ok(())
}

impl Outcome {
    fn of(shares: &[Share], time: Duration, cpu: f64) -> Result<Self> {
        let mut latencies = Histogram::default();
        for share in shares {
            latencies.add(&Histogram::new(|bucket| share.latencies.get(bucket).copied().unwrap_or(0)));
        }
        let total = |figure: fn(&Share) -> u64| shares.iter().map(figure).sum::<u64>() as f64;
        let commits = total(|share| share.commits);
        let in_time = total(|share| share.in_time);
        ensure!(in_time > 0.0, "nobody has committed in time");
        let ms = |part| latencies.percentile(part).unwrap_or(0) as f64 / 1e6;
        Ok(Self {
            per_second: in_time / time.as_secs_f64(),
            p50_ms: ms(0.5),
            p99_ms: ms(0.99),
            busy: total(|share| share.busy) / commits,
            overtaken: total(|share| share.overtaken) / commits,
            cpu: cpu / commits * 1000.0,
        })
    }
}
