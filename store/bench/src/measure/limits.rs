//! Measures the performance that the project promises: the time to put an object into the log, the transactions per
//! second of a single thread, the transactions per second of many threads that change the same row, the time of
//! recovery, and the use of memory.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use duralite_bench::report::{Table, number};
use duralite_bench::workload::median;
use duralite_medium::block::{Block, BlockOptions, Durability as Written, FileBlock};
use duralite_store::{Durability, Options, Scheme, Store};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::plan::{Contender, Plan, in_turns, times};
use super::schemes::{Dirs, SCHEMES};
use crate::kv::{Db, Outcome, Schema, Session, run};
use crate::nv::{NvDb, Setup};
use crate::row::{key, row};
use crate::tpcb::TpcB;
use crate::workload::{Thread, Workload};

/// A workload that changes one row in each transaction. Either all threads share that row, or each has its own.
struct OneRow {
    is_shared: bool,
}

impl Workload for OneRow {
    fn name(&self) -> &'static str {
        "one row"
    }

    fn schema(&self) -> Schema {
        &["rows"]
    }

    fn load(&self, db: &dyn Db) -> Result<()> {
        run(&mut *db.session()?, true, &mut |tx| tx.put(0, &key(&[0]), &row(100, &[0])))?;
        Ok(())
    }

    fn step(&self, session: &mut dyn Session, thread: &mut Thread) -> Result<(usize, Outcome, u32)> {
        let at = key(&[if self.is_shared { 0 } else { thread.number as u32 + 1 }]);
        thread.serial += 1;
        let serial = thread.serial as i64;
        let (outcome, retries) = run(session, true, &mut |tx| {
            tx.get_for_update(0, &at)?;
            tx.put(0, &at, &row(100, &[serial]))
        })?;
        Ok((0, outcome, retries))
    }

    fn check(&self, _session: &mut dyn Session) -> Result<()> {
        Ok(())
    }
}

/// Measures threads that all change the same row.
pub(crate) fn hot_row(plan: &Plan) -> Result<Table> {
    let title = format!("Store: {} threads on one row, log on disk", plan.threads);
    let columns = ["what", "transactions/s", "without waiting / it", "wanted"];
    let mut table = Table::new("store_hot_row", &title, &columns);
    let dirs = Dirs::new(plan)?;
    let workload = OneRow { is_shared: true };
    let kinds = [
        ("without waiting for durability", Durability::Eventual, true, ""),
        ("early lock release", Durability::Immediate, true, "<= 2x"),
        ("locks to the end", Durability::Immediate, false, ""),
    ];
    let mut contenders = Vec::new();
    for (at, (title, durability, is_early, _)) in kinds.into_iter().enumerate() {
        let mut setup =
            Setup::fresh(dirs.pages.path(), dirs.pages.path(), &format!("hot{at}"), Scheme::Auto)?;
        setup.options.durability = durability;
        setup.options.early_lock_release = is_early;
        let db = setup.open(workload.schema())?;
        workload.load(&db)?;
        contenders.push(Contender { name: title.to_owned(), db: Box::new(db) });
    }
    let scored = in_turns(&contenders, &workload, plan.threads, plan)?;
    for (one, (.., wanted)) in scored.iter().zip(kinds) {
        let of = times(scored[0].per_second, one.per_second);
        table.row([one.name.clone(), number(one.per_second), of, wanted.to_owned()]);
    }
    table.note = format!("Medians of {} rounds of {} s, in turns.", plan.rounds, plan.time.as_secs_f64());
    Ok(table)
}

/// Returns how many durable overwrites of a preallocated file the disk can make per second.
fn raw(dir: &Path, plan: &Plan) -> Result<f64> {
    let path = dir.join("raw");
    let file = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
    let block = FileBlock::open(file, &path, &BlockOptions::default())?;
    let blocks = vec![7; 4096];
    block.preallocate(16 << 20)?;
    let (begun, mut count) = (Instant::now(), 0_u64);
    while begun.elapsed() < plan.time {
        block.write_durably((count % 4096) * 4096, &blocks, Written::Full)?;
        count += 1;
    }
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// Measures one thread, and compares it with the disk's own rate.
pub(crate) fn one_thread(plan: &Plan) -> Result<Table> {
    let title = "Store: one thread, every commit durable on this disk";
    let columns = ["what", "per second", "of raw", "wanted"];
    let mut table = Table::new("store_one_thread", title, &columns);
    let dirs = Dirs::new(plan)?;
    let (row_of, tpcb) = (OneRow { is_shared: false }, plan.tpcb());
    let workloads: [&dyn Workload; 2] = [&row_of, &tpcb];
    let mut rates = vec![Vec::new(); 3];
    let mut contenders = Vec::new();
    for (at, workload) in workloads.into_iter().enumerate() {
        let name = format!("one{at}");
        let setup = Setup::fresh(dirs.pages.path(), dirs.pages.path(), &name, Scheme::Auto)?;
        let db = setup.open(workload.schema())?;
        workload.load(&db)?;
        contenders.push([Contender { name, db: Box::new(db) }]);
    }
    let once = Plan { rounds: 1, ..plan.clone() };
    for _ in 0..plan.rounds {
        rates[0].push(raw(dirs.pages.path(), plan)?);
        for (at, workload) in workloads.into_iter().enumerate() {
            rates[at + 1].push(in_turns(&contenders[at], workload, 1, &once)?[0].per_second);
        }
    }
    let names = ["raw durable overwrite", "one row per transaction", "TPC-B"];
    let raw = median(&rates[0]);
    for ((name, rates), wanted) in names.into_iter().zip(&rates).zip(["", ">= 0.9x", ""]) {
        let rate = median(rates);
        table.row([name.to_owned(), number(rate), times(rate, raw), wanted.to_owned()]);
    }
    table.note = format!(
        "Medians of {} rounds of {} s, in turns. The raw loop overwrites blocks of 4096 bytes in a preallocated file, and makes each one durable.",
        plan.rounds,
        plan.time.as_secs_f64()
    );
    Ok(table)
}

/// Returns the median times of a read for update, and of a put of the same row, in nanoseconds.
fn insertion(db: &NvDb, threads: u64, plan: &Plan) -> Result<(f64, f64)> {
    let table = db.store.table("rows")?;
    let (store, table) = (&db.store, &table);
    let end = Instant::now() + plan.time;
    let worker = move |number: u64| -> Result<[Vec<f64>; 2]> {
        let at = key(&[number as u32 + 1, 0]);
        let (value, mut times) = (row(100, &[7]), [Vec::new(), Vec::new()]);
        while Instant::now() < end {
            store.run(|tx| {
                tx.put(table, &at, &value)?;
                for _ in 0..50 {
                    let begun = Instant::now();
                    tx.get_for_update(table, &at)?;
                    let read = Instant::now();
                    tx.put(table, &at, &value)?;
                    times[0].push((read - begun).as_nanos() as f64);
                    times[1].push(read.elapsed().as_nanos() as f64);
                }
                Ok::<_, duralite_store::Error>(())
            })?;
        }
        Ok(times)
    };
    let mut all = [Vec::new(), Vec::new()];
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|number| scope.spawn(move || worker(number))).collect();
        for handle in handles {
            let times = handle.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            all.iter_mut().zip(times).for_each(|(all, one)| all.extend(one));
        }
        Ok::<_, anyhow::Error>(())
    })?;
    Ok((median(&all[0]), median(&all[1])))
}

/// Measures figure 11 of the paper: how long it takes to put an object into the log.
pub(crate) fn figure11(plan: &Plan) -> Result<Table> {
    let title = "NV-Logging figure 11: insertion into the log, microseconds";
    let mut columns = vec!["threads"];
    columns.extend(SCHEMES.map(Scheme::as_str));
    columns.extend(["wanted of flush-on-commit", "paper: central, NV-Logging"]);
    let mut table = Table::new("store_figure11", title, &columns);
    let dirs = Dirs::new(plan)?;
    let mut stores = Vec::new();
    for scheme in SCHEMES {
        let setup = Setup::fresh(dirs.pages.path(), dirs.logs.path(), scheme.as_str(), scheme)?;
        let db = setup.open(&["rows"])?;
        // Each thread's row is in a page of its own, so the threads share only the log.
        for thread in 1..=32_u32 {
            let rows = |tx: &mut duralite_store::Transaction| {
                (0..100)
                    .try_for_each(|n| tx.put(&db.store.table("rows")?, &key(&[thread, n]), &row(100, &[0])))
            };
            db.store.run(rows)?;
        }
        stores.push(db);
    }
    for threads in [1, 2, 4, 8, 16, 32] {
        let mut cells = vec![threads.to_string()];
        for db in &stores {
            let (read, put) = insertion(db, threads, plan)?;
            cells.push(format!("{:.2}", (put - read).max(0.0) / 1000.0));
        }
        cells.extend(["1, flat".to_owned(), "up to 74.3, up to 2.5".to_owned()]);
        table.row(cells);
    }
    table.note = "How much longer a put of 100 bytes takes than a read for update of the same row in the same transaction, as the difference of the medians. The put builds the object, puts it into the log, and changes the page. With more threads than cores, the median leaves out operations whose thread lost the processor.".to_owned();
    Ok(table)
}

/// The environment variable that holds a child process's task. Its name does not begin with `DURALITE`, because
/// variables with that prefix are settings.
pub(crate) const CHILD: &str = "STOREBENCH_CHILD";

/// The task of a child process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// See [`fill`].
    Fill { dir: PathBuf, mib: u64 },
    /// See [`memory_of`].
    Memory { dir: PathBuf, cache_mib: u64 },
}

/// Does the task of a child process and reports the result. Then waits until the parent kills it.
pub(crate) fn child(task: &Task) -> Result<()> {
    let said = match task {
        Task::Fill { dir, mib } => serde_json::to_string(&fill(dir, *mib)?)?,
        Task::Memory { dir, cache_mib } => serde_json::to_string(&memory_of(dir, *cache_mib)?)?,
    };
    println!("{said}");
    std::io::stdout().flush()?;
    loop {
        std::thread::park();
    }
}

/// Runs a task in a child process. Returns what the process reports.
fn run_child<T: DeserializeOwned>(task: &Task) -> Result<T> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.env(CHILD, serde_json::to_string(task)?).stdout(Stdio::piped()).spawn()?;
    let mut said = String::new();
    let read = child.stdout.take().map(|out| BufReader::new(out).read_line(&mut said));
    child.kill()?;
    child.wait()?;
    read.transpose()?;
    if said.is_empty() {
        bail!("a child process failed");
    }
    serde_json::from_str(&said).context("a child's answer")
}

const FILLED: TpcB = TpcB { branches: 100, accounts_of_a_branch: 1000 };

/// Returns options for a store that makes no checkpoint until its log has grown by `mib` MiB.
fn filled(mib: u64) -> Options {
    Options::default().log_bytes((mib * 5 / 2).max(64) << 20)
}

/// Makes a checkpoint, and then writes at least `mib` MiB of log. Returns the exact number of bytes.
fn fill(dir: &Path, mib: u64) -> Result<u64> {
    let options = filled(mib).durability(Durability::Eventual);
    let db = NvDb::new(Store::open(dir, options)?, FILLED.schema())?;
    FILLED.load(&db)?;
    db.store.checkpoint()?;
    let begin = db.store.metrics().log_bytes;
    while (db.store.metrics().log_bytes - begin) >> 20 < mib {
        crate::workload::run(&db, &FILLED, 4, std::time::Duration::from_millis(50))?;
    }
    std::thread::sleep(std::time::Duration::from_millis(100));
    let bytes = db.store.metrics().log_bytes - begin;
    // Ends without closing the store, as a kill would, so that the log is not emptied.
    std::mem::forget(db);
    Ok(bytes)
}

/// Measures how long recovery takes, by the size of the log.
pub(crate) fn recovery(plan: &Plan) -> Result<Table> {
    let columns = ["MiB of log", "objects repeated", "seconds", "MiB/s", "wanted"];
    let mut table =
        Table::new("store_recovery", "Store: recovery after kill -9, by size of the log", &columns);
    let sizes: &[u64] = if plan.is_full { &[64, 128, 256, 512, 1024] } else { &[64, 256, 1024] };
    for &mib in sizes {
        let dir = tempfile::tempdir_in(&plan.disk)?;
        let bytes = run_child::<u64>(&Task::Fill { dir: dir.path().to_owned(), mib })? as f64;
        let begun = Instant::now();
        let store = Store::open(dir.path(), filled(mib))?;
        let seconds = begun.elapsed().as_secs_f64();
        let objects = store.metrics().recovered_objects;
        let db = NvDb::new(store, FILLED.schema())?;
        FILLED.check(&mut *db.session()?)?;
        table.row([
            number(bytes / f64::from(1 << 20)),
            objects.to_string(),
            format!("{seconds:.2}"),
            number(bytes / f64::from(1 << 20) / seconds),
            if mib == 1024 { "<= 5 s" } else { "" }.to_owned(),
        ]);
    }
    table.note = "TPC-B runs without waiting for durability, with its log on this disk, until its process is killed. Then opening the store is measured: analysis, redo, undo, and a checkpoint. The files are in the system's cache, because only the process died. After each recovery the sums of TPC-B were right.".to_owned();
    Ok(table)
}

/// Returns the memory of this process in bytes. `field` is a field of `/proc/self/status`: `VmRSS` for the present
/// memory, or `VmHWM` for the largest so far.
pub(crate) fn resident(field: &str) -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find(|line| line.starts_with(field)).context("no such field")?;
    let kib = line.split_whitespace().nth(1).context("no number")?;
    Ok(kib.parse::<f64>()? * 1024.0)
}

/// Fills a database to ten times the size of the cache, and then changes random rows. Returns how many bytes of memory
/// that took, and the size of all pages in bytes.
fn memory_of(dir: &Path, cache_mib: u64) -> Result<(f64, u64)> {
    let before = resident("VmRSS")?;
    let options = Options::default().cache_bytes(cache_mib << 20).log_bytes(64 << 20);
    let db = NvDb::new(Store::open(dir, options)?, &["rows"])?;
    let rows = cache_mib * 10 * 1024;
    let mut loader = crate::kv::Loader::new(&db)?;
    for id in 0..rows as u32 {
        loader.put(0, key(&[id]), row(1000, &[i64::from(id)]))?;
    }
    loader.finish()?;
    let begun = Instant::now();
    let mut rng = fastrand::Rng::with_seed(3);
    let mut session = db.session()?;
    while begun.elapsed().as_secs_f64() < 2.0 {
        let id = rng.u32(0..rows as u32);
        run(&mut *session, true, &mut |tx| tx.put(0, &key(&[id]), &row(1000, &[1])))?;
    }
    let pages = db.store.metrics().pages * 8192;
    Ok((resident("VmHWM")? - before, pages))
}

/// Measures how much memory a store takes if its database is ten times as large as its cache.
pub(crate) fn memory(plan: &Plan) -> Result<Table> {
    let columns = ["cache MiB", "database MiB", "resident MiB at most", "of the cache", "wanted"];
    let mut table =
        Table::new("store_memory", "Store: memory, with a database of ten times the cache", &columns);
    let sizes: &[u64] = if plan.is_full { &[32, 64, 256] } else { &[32, 64] };
    for &cache in sizes {
        let dir = tempfile::tempdir_in(&plan.disk)?;
        let (most, pages): (f64, u64) =
            run_child(&Task::Memory { dir: dir.path().to_owned(), cache_mib: cache })?;
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        table.row([
            cache.to_string(),
            number(mib(pages as f64)),
            number(mib(most)),
            times(mib(most), cache as f64),
            "<= 1.2x".to_owned(),
        ]);
    }
    table.note = "Rows of 1000 bytes are put in transactions of a thousand rows, and then changed at random. The log is on the disk. Resident memory is how much more the process has than before it opened the store.".to_owned();
    Ok(table)
}
