//! Workloads, and the threads that run them for a while.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, LazyLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow};
use duralite_wal::metrics::Histogram;
use rustix::time::{ClockId, clock_gettime};

use crate::kv::{Db, Outcome, Schema, Session};

/// The random generator and the counters of one thread.
pub(crate) struct Thread {
    pub(crate) number: u64,
    pub(crate) rng: fastrand::Rng,
    /// A counter from which the thread makes keys and values of rows. It begins with the result of `unique`, and grows
    /// by one with each use.
    pub(crate) serial: u64,
    /// The number of committed transactions of each kind.
    pub(crate) commits: [u64; 8],
}

/// A workload: its tables, their initial rows, a mix of transactions, and conditions that must hold after each
/// transaction.
pub(crate) trait Workload: Sync {
    fn name(&self) -> &'static str;
    fn schema(&self) -> Schema;
    /// Inserts the initial rows.
    fn load(&self, db: &dyn Db) -> Result<()>;
    /// Runs one transaction of the mix. Returns its kind, how it ended, and how often it gave way.
    fn step(&self, session: &mut dyn Session, thread: &mut Thread) -> Result<(usize, Outcome, u32)>;
    /// Checks that the rows meet the workload's conditions.
    fn check(&self, session: &mut dyn Session) -> Result<()>;
}

/// The result of a run of several threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    pub(crate) seconds: f64,
    pub(crate) commits: u64,
    pub(crate) commits_by_kind: [u64; 8],
    pub(crate) rolled_back: u64,
    pub(crate) retries: u64,
    /// The processor time of these threads, in nanoseconds.
    pub(crate) cpu_ns: f64,
    /// The latencies of committed transactions. If a transaction gave way, its latency includes all attempts.
    pub(crate) latencies: Histogram,
}

impl Run {
    pub(crate) fn per_second(&self) -> f64 {
        self.commits as f64 / self.seconds
    }
}

/// Runs the workload for `time`, with `threads` threads.
pub(crate) fn run(db: &dyn Db, workload: &dyn Workload, threads: u64, time: Duration) -> Result<Run> {
    let (begin, stop) = (Barrier::new(threads as usize + 1), AtomicBool::new(false));
    let worker = |number| {
        let session = db.session();
        begin.wait();
        worker(&mut *session?, workload, number, &stop)
    };
    let worker = &worker;
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|number| scope.spawn(move || worker(number))).collect();
        begin.wait();
        let begun = Instant::now();
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let mut sum = Run { seconds: begun.elapsed().as_secs_f64(), ..Run::default() };
        for handle in handles {
            let run: Run = handle.join().map_err(|_| anyhow!("a thread panicked"))??;
            sum.commits += run.commits;
            sum.rolled_back += run.rolled_back;
            sum.retries += run.retries;
            sum.cpu_ns += run.cpu_ns;
            sum.latencies.add(&run.latencies);
            sum.commits_by_kind.iter_mut().zip(run.commits_by_kind).for_each(|(all, one)| *all += one);
        }
        Ok(sum)
    })
}

fn worker(session: &mut dyn Session, workload: &dyn Workload, number: u64, stop: &AtomicBool) -> Result<Run> {
    let rng = fastrand::Rng::new();
    let mut thread = Thread { number, rng, serial: unique(), commits: [0; 8] };
    let mut run = Run::default();
    let begun = cpu_ns();
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let (kind, outcome, retries) = workload.step(session, &mut thread)?;
        run.retries += u64::from(retries);
        match outcome {
            Outcome::Committed => {
                thread.commits[kind] += 1;
                run.commits += 1;
                run.latencies.record(begun.elapsed());
            }
            Outcome::RolledBack => run.rolled_back += 1,
        }
    }
    run.cpu_ns = cpu_ns() - begun;
    run.commits_by_kind = thread.commits;
    Ok(run)
}

/// Returns the processor time that this thread has used, in nanoseconds.
fn cpu_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Returns a start number for a thread. The thread makes its keys from this number and the following ones. Each call
/// returns a larger number than the calls before. The number contains the time, so it differs from the numbers of other
/// processes, unless they began a multiple of 2^30 ms (12 days) earlier.
pub(crate) fn unique() -> u64 {
    static RUNS: LazyLock<AtomicU64> = LazyLock::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        AtomicU64::new(since.as_millis() as u64 & 0x3fff_ffff)
    });
    RUNS.fetch_add(1, Ordering::Relaxed) << 32
}
