//! Measures what a long snapshot scan costs the threads that write at the same time. For comparison, the same scan
//! reads a store in which no thread writes. Both scans take processor time, but only the first one makes the store keep
//! old versions.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use duralite_bench::report::{Table, number};
use duralite_bench::workload::{median, percentile};
use duralite_store::{Error, Options, Store, Table as Rows, Transaction};
use rustix::time::{ClockId, clock_gettime};

use super::plan::{Plan, times};
use super::schemes::Dirs;

/// The shortest duration of a turn. In a turn, one arm of the comparison is measured once. The turn must be long enough
/// for the scan to read all rows.
const SHORTEST: Duration = Duration::from_secs(2);
/// The longest duration of a turn without a scan. Such a turn may be shorter than the other turns, because only the
/// turns with a scan are compared with each other.
const LONGEST_WITHOUT: Duration = Duration::from_secs(60);
const ROW_BYTES: usize = 100;
/// The balance with which each row begins.
const BALANCE: u64 = 1000;

/// The store that is scanned while threads write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scanned {
    Nothing,
    /// Another store of the same size, in which no thread writes.
    Idle,
    /// The store in which the threads write.
    Same,
}

const ARMS: [(&str, Scanned); 3] = [
    ("no scan", Scanned::Nothing),
    ("a scan of an idle store", Scanned::Idle),
    ("a scan of the same store", Scanned::Same),
];

/// The result of one turn.
#[derive(Default)]
struct Turn {
    commits_per_second: f64,
    /// The processor time of a transaction, in microseconds. This time does not depend on what else the machine does.
    cpu_us: f64,
    /// The 99th percentile of the times of transactions, in milliseconds.
    slow_ms: f64,
    rows_per_second: f64,
    /// The memory that old versions took at the end of the scan, in bytes.
    version_bytes: u64,
}

struct Loaded {
    store: Store,
    rows: Rows,
    count: u64,
}

fn row(balance: u64) -> Vec<u8> {
    let mut row = vec![7; ROW_BYTES];
    row[..8].copy_from_slice(&balance.to_le_bytes());
    row
}

fn balance(row: &[u8]) -> u64 {
    row.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn load(dir: &Path, name: &str, count: u64) -> Result<Loaded> {
    let options = Options::default().snapshot_bytes(4 << 30).log_bytes(128 << 20);
    let store = Store::open(dir.join(name), options)?;
    let rows = store.table("rows")?;
    for first in (0..count).step_by(1000) {
        store.run(|tx: &mut Transaction| -> Result<(), Error> {
            (first..count.min(first + 1000)).try_for_each(|n| tx.put(&rows, &n.to_be_bytes(), &row(BALANCE)))
        })?;
    }
    Ok(Loaded { store, rows, count })
}

/// Moves an amount from one random row to another.
fn transfer(loaded: &Loaded, random: &mut fastrand::Rng) -> Result<(), Error> {
    let (a, b) = (random.u64(0..loaded.count), random.u64(0..loaded.count));
    if a == b {
        return Ok(());
    }
    loaded.store.run(|tx: &mut Transaction| -> Result<(), Error> {
        let keys = [a.min(b).to_be_bytes(), a.max(b).to_be_bytes()];
        let mut balances = [0; 2];
        for (key, balance_of) in keys.iter().zip(&mut balances) {
            *balance_of = tx.get_for_update(&loaded.rows, key)?.map_or(0, |row| balance(&row));
        }
        let amount = balances[0].min(1);
        tx.put(&loaded.rows, &keys[0], &row(balances[0] - amount))?;
        tx.put(&loaded.rows, &keys[1], &row(balances[1] + amount))
    })
}

/// Lets threads write until `is_over` is set. Returns how long each transaction took in microseconds, and the processor
/// time of all threads in nanoseconds.
fn write(loaded: &Loaded, threads: u64, is_over: &AtomicBool) -> Result<(Vec<u32>, u64)> {
    let (mut all, cpu_ns) = (Vec::new(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| -> Result<Vec<u32>> {
                    let (mut random, mut took) = (fastrand::Rng::new(), Vec::new());
                    while !is_over.load(Ordering::Relaxed) {
                        let begun = Instant::now();
                        transfer(loaded, &mut random)?;
                        took.push(u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX));
                    }
                    let cpu = clock_gettime(ClockId::ThreadCPUTime);
                    let cpu = Duration::new(cpu.tv_sec.try_into()?, cpu.tv_nsec.try_into()?);
                    cpu_ns.fetch_add(cpu.as_nanos() as u64, Ordering::Relaxed);
                    Ok(took)
                })
            })
            .collect();
        for writer in writers {
            all.extend(writer.join().map_err(|_| anyhow::anyhow!("a writer panicked"))??);
        }
        Ok((all, cpu_ns.load(Ordering::Relaxed)))
    })
}

/// Reads all rows of one snapshot, again and again, until `time` is over. Returns how many rows were read, and how many
/// bytes old versions took at the end. Each pass has to find every row, and the same sum.
fn scan(loaded: &Loaded, time: Duration) -> Result<(u64, u64)> {
    let (begun, snapshot, mut count) = (Instant::now(), loaded.store.snapshot(), 0);
    loop {
        let (mut rows, mut sum) = (0, 0);
        for found in snapshot.scan(&loaded.rows, ..) {
            rows += 1;
            sum += balance(&found?.1);
            if rows % 1000 == 0 && begun.elapsed() >= time {
                return Ok((count + rows, loaded.store.metrics().snapshot_bytes));
            }
        }
        ensure!(rows == loaded.count, "a snapshot has {rows} rows of {}", loaded.count);
        ensure!(sum == loaded.count * BALANCE, "the rows of a snapshot have {sum} together");
        count += rows;
    }
}

fn turn(busy: &Loaded, idle: &Loaded, scanned: Scanned, threads: u64, time: Duration) -> Result<Turn> {
    let is_over = AtomicBool::new(false);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let writers = scope.spawn(|| write(busy, threads, &is_over));
        let scanned = match scanned {
            Scanned::Nothing => {
                std::thread::sleep(time.min(LONGEST_WITHOUT));
                Ok((0, 0))
            }
            Scanned::Idle => scan(idle, time),
            Scanned::Same => scan(busy, time),
        };
        is_over.store(true, Ordering::Relaxed);
        let took = writers.join().map_err(|_| anyhow::anyhow!("the writers panicked"))?;
        let ((rows, version_bytes), (mut took, cpu_ns)) = (scanned?, took?);
        let seconds = begun.elapsed().as_secs_f64();
        took.sort_unstable();
        let slow = percentile(&took, 0.99).unwrap_or(0);
        Ok(Turn {
            commits_per_second: took.len() as f64 / seconds,
            cpu_us: cpu_ns as f64 / 1000.0 / took.len().max(1) as f64,
            slow_ms: f64::from(slow) / 1000.0,
            rows_per_second: rows as f64 / seconds,
            version_bytes,
        })
    })
}

/// Measures writers while a snapshot is scanned for a whole turn. With `--milliseconds 600000 --rounds 1`, the turn
/// takes ten minutes.
pub(crate) fn long_scan(plan: &Plan) -> Result<Table> {
    let title = format!("Store: {} threads that write beside a long scan, log on disk", plan.threads);
    let columns = [
        "what",
        "transactions/s",
        "of beside an idle store",
        "processor time in µs",
        "of beside an idle store",
        "99th percentile in ms",
        "rows/s scanned",
        "old versions in MB",
    ];
    let mut table = Table::new("store_long_scan", &title, &columns);
    let dirs = Dirs::new(plan)?;
    let count = if plan.is_full { 1_000_000 } else { 100_000 };
    let (busy, idle) = (load(dirs.pages.path(), "busy", count)?, load(dirs.pages.path(), "idle", count)?);
    let time = plan.time.max(SHORTEST);
    let mut turns: [Vec<Turn>; ARMS.len()] = Default::default();
    for round in 0..plan.rounds {
        for nth in 0..ARMS.len() {
            // Every other round measures the arms in reverse order, so that an arm does not always follow the same
            // other arm.
            let at = if round % 2 == 0 { nth } else { ARMS.len() - 1 - nth };
            turns[at].push(turn(&busy, &idle, ARMS[at].1, plan.threads, time)?);
        }
    }
    ensure!(busy.store.metrics().snapshot_bytes == 0, "old versions are left");
    let middle = |turns: &[Turn], of: fn(&Turn) -> f64| median(turns.iter().map(of).collect::<Vec<_>>());
    let beside_idle = middle(&turns[1], |turn| turn.commits_per_second);
    let cpu_beside_idle = middle(&turns[1], |turn| turn.cpu_us);
    for ((name, _), turns) in ARMS.iter().zip(&turns) {
        let commits = middle(turns, |turn| turn.commits_per_second);
        let cpu = middle(turns, |turn| turn.cpu_us);
        table.row([
            (*name).to_owned(),
            number(commits),
            times(commits, beside_idle),
            number(cpu),
            times(cpu, cpu_beside_idle),
            number(middle(turns, |turn| turn.slow_ms)),
            number(middle(turns, |turn| turn.rows_per_second)),
            number(middle(turns, |turn| turn.version_bytes as f64 / 1e6)),
        ]);
    }
    table.note = format!(
        "Each transaction transfers an amount between two of {count} rows of {ROW_BYTES} bytes, and is durable. Medians of {} rounds of {} s, or of at most {} s without a scan, in turns. \
         A scan reads one snapshot from beginning to end, as often as the time allows. The sum of all rows was the same each time. The idle \
         store has the same rows, in the same process. The goals beside a scan of the same store are 0.90x or more of the transactions, and 1.10x \
         or less of the processor time. Other programs on the machine disturb processor times less.",
        plan.rounds,
        time.as_secs_f64(),
        LONGEST_WITHOUT.as_secs()
    );
    Ok(table)
}
