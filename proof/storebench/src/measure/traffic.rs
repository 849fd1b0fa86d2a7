//! Where the files are, what is written, and what a write costs: figures 6, 8, 9 and 16.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::time::Instant;

use anyhow::Result;
use duralite_bench::report::{Table, number};
use duralite_medium::{FileNvm, MapOptions, Nvm};
use duralite_store::Scheme;

use super::plan::{Contender, Plan, in_turns, times};
use super::schemes::Dirs;
use crate::nv::Setup;
use crate::workload::{Workload, median, run};

/// What the paper adds to each call of a file system in memory, in nanoseconds.
const CALL_NS: u32 = 5000;

/// Whether the log is in memory, and whether the pages are.
const PLACES: [(&str, bool, bool); 4] = [
    ("all on disk", false, false),
    ("pages in memory, log on disk", false, true),
    ("pages on disk, log in memory", true, false),
    ("all in memory", true, true),
];

fn place(plan: &Plan, dirs: &Dirs, at: usize) -> Result<Setup> {
    let (_, log_in_memory, pages_in_memory) = PLACES[at];
    let (disk, memory) = (dirs.pages.path(), dirs.logs.path());
    let pages = if pages_in_memory { memory } else { disk };
    let log = if log_in_memory { memory } else { disk };
    let mut setup = plan.sized(Setup::fresh(pages, log, &format!("place{at}"), Scheme::NvDisk)?);
    setup.rig.call_ns = if log_in_memory { CALL_NS } else { 0 };
    setup.rig.pages_call_ns = if pages_in_memory { CALL_NS } else { 0 };
    Ok(setup)
}

/// Figure 6: which files are in memory.
pub(crate) fn figure6(plan: &Plan) -> Result<Table> {
    let mut columns = vec!["threads"];
    columns.extend(PLACES.map(|(title, ..)| title));
    columns.extend(["log in memory alone, of all in memory", "paper"]);
    let mut table = Table::new("store_figure6", "NV-Logging figure 6: TPC-C by place of the files", &columns);
    let dirs = Dirs::new(plan)?;
    let workload = plan.tpcc();
    let mut contenders = Vec::new();
    for (at, (title, ..)) in PLACES.iter().enumerate() {
        let db = Box::new(place(plan, &dirs, at)?.open(workload.schema())?);
        workload.load(&*db)?;
        contenders.push(Contender { name: (*title).to_owned(), db });
    }
    let threads: &[u64] = if plan.is_full { &[1, 2, 4, 8, 16, 32] } else { &[1, plan.threads] };
    for &threads in threads {
        let scored = in_turns(&contenders, &workload, threads, plan)?;
        let mut cells = vec![threads.to_string()];
        cells.extend(scored.iter().map(|one| number(one.per_second)));
        cells.push(times(scored[2].per_second, scored[3].per_second));
        cells.push("0.74x (HDD), 0.83x (SSD)".to_owned());
        table.row(cells);
    }
    table.note = format!(
        "Transactions per second with `nv-disk`, medians of {} rounds of {} s. What is in memory is in a file there, and each call that writes it takes {} us longer, as in the paper.",
        plan.rounds,
        plan.time.as_secs_f64(),
        CALL_NS / 1000
    );
    Ok(table)
}

/// Figure 8: what goes to the log and what to the pages.
pub(crate) fn figure8(plan: &Plan) -> Result<Table> {
    let columns = ["workload", "second", "log MB", "pages MB", "log / pages", "paper"];
    let mut table = Table::new("store_figure8", "NV-Logging figure 8: bytes to log and pages", &columns);
    let workloads: [(&dyn Workload, &str); 2] =
        [(&plan.tpcb(), "2.88x - 5.43x"), (&plan.tatp(), "far more log")];
    let steps = if plan.is_full { 5 } else { 2 };
    let step = plan.time * if plan.is_full { 4 } else { 2 };
    for (workload, paper) in workloads {
        let dirs = Dirs::new(plan)?;
        let setup = Setup::fresh(dirs.pages.path(), dirs.logs.path(), "traffic", Scheme::NvDisk)?;
        let mut setup = plan.sized(setup);
        // Checkpoints that are as frequent, for the time that it takes, as the paper's.
        setup.options.log_bytes = 32 << 20;
        let db = setup.open(workload.schema())?;
        workload.load(&db)?;
        db.store.checkpoint()?;
        let begin = db.store.metrics();
        for number_of in 1..=steps {
            run(&db, workload, plan.threads, step)?;
            let now = db.store.metrics();
            let log = (now.log_bytes - begin.log_bytes) as f64 / 1e6;
            let pages = ((now.pages_written - begin.pages_written) * 8192) as f64 / 1e6;
            table.row([
                workload.name().to_owned(),
                format!("{:.1}", step.as_secs_f64() * f64::from(number_of)),
                number(log),
                number(pages),
                times(log, pages),
                paper.to_owned(),
            ]);
        }
    }
    table.note = format!(
        "`nv-disk`, {} threads, a log of 32 MiB. Pages are written when the log has to be given up, and when they leave the cache.",
        plan.threads
    );
    Ok(table)
}

/// How long one call takes, in nanoseconds: the median of so many.
fn each(count: usize, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        call()?;
        times.push(begun.elapsed().as_nanos() as f64);
    }
    Ok(median(&times))
}

/// Figure 9: the interface of files and that of memory.
pub(crate) fn figure9(plan: &Plan) -> Result<Table> {
    let columns = [
        "bytes",
        "memcpy ns",
        "store, flush, fence ns",
        "write to a file in memory ns",
        "file / memcpy",
        "paper",
    ];
    let mut table =
        Table::new("store_figure9", "NV-Logging figure 9: a write by file and by memory", &columns);
    let dir = tempfile::tempdir_in(&plan.memory)?;
    let open = |name: &str| {
        let path = dir.path().join(name);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        file.set_len(1 << 20)?;
        Ok::<_, anyhow::Error>((file, path))
    };
    let (mapped, path) = open("memory")?;
    let nvm = FileNvm::map(mapped, &path, &MapOptions { capacity: 1 << 20, ..MapOptions::default() })?;
    let (file, _) = open("file")?;
    let (from, mut to) = (vec![7_u8; 1 << 20], vec![0_u8; 1 << 20]);
    for bytes in [64_usize, 256, 1024, 4096, 16 << 10, 64 << 10, 256 << 10, 512 << 10] {
        let count = if bytes > 16 << 10 { 200 } else { 2000 };
        let copy = each(count, || {
            to[..bytes].copy_from_slice(std::hint::black_box(&from[..bytes]));
            std::hint::black_box(&mut to);
            Ok(())
        })?;
        let memory = each(count, || {
            nvm.store(0, &from[..bytes]);
            nvm.flush(0, bytes as u64);
            nvm.fence();
            Ok(())
        })?;
        let file = each(count, || {
            file.write_all_at(&from[..bytes], 0)?;
            Ok(file.sync_data()?)
        })?;
        let paper = if bytes < 64 << 10 { "49x - 154x" } else { "5x - 9.5x" };
        table.row([
            bytes.to_string(),
            number(copy),
            number(memory),
            number(file),
            times(file, copy),
            paper.to_owned(),
        ]);
    }
    table.note = "Medians; reading the clock, about 25 ns, is in each. A file is written and synced. The paper also has synchronous mappings, which nothing here uses.".to_owned();
    Ok(table)
}

/// Prices of a GB, in dollars (section 6.6): memory, flash, disk.
const PRICES: (f64, f64, f64) = (5.5, 0.7, 0.05);

/// Figure 16: what a transaction per second costs.
pub(crate) fn figure16(plan: &Plan) -> Result<Table> {
    let ratios = [1.0, 4.0, 16.0, 24.0, 64.0, 256.0];
    let mut columns = vec!["what".to_owned(), "transactions/s".to_owned()];
    columns.extend(ratios.map(|ratio| format!("NVRAM {ratio}x of disk")));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let title = "NV-Logging figure 16: TPC-C per second and dollar, of all in NVRAM";
    let mut table = Table::new("store_figure16", title, &columns);
    let dirs = Dirs::new(plan)?;
    let workload = plan.tpcc();
    let (mut contenders, mut data) = (Vec::new(), 0.0_f64);
    let schemes = [
        ("all in NVRAM", Scheme::NvDisk, true),
        ("nv-disk, log in NVRAM", Scheme::NvDisk, false),
        ("flush-on-commit", Scheme::FlushOnCommit, false),
        ("distributed", Scheme::Distributed, false),
    ];
    for (at, (title, scheme, all_in_memory)) in schemes.into_iter().enumerate() {
        let pages = if all_in_memory { dirs.logs.path() } else { dirs.pages.path() };
        let setup = Setup::fresh(pages, dirs.logs.path(), &format!("cost{at}"), scheme)?;
        let db = plan.sized(setup).open(workload.schema())?;
        workload.load(&db)?;
        data = data.max(db.store.metrics().pages as f64 * 8192.0);
        contenders.push(Contender { name: title.to_owned(), db: Box::new(db) });
    }
    let scored = in_turns(&contenders, &workload, plan.threads, plan)?;
    // As large as the paper's: 9 GB of data, 6 GB of cache, 3 GB of files for the log or 80 MB of it in memory.
    let cost = |at: usize, ratio: f64| {
        let (memory, flash, disk) = PRICES;
        let nvram = disk * ratio;
        6.0 * memory
            + match at {
                0 => (9.0 + 3.0) * nvram,
                1 => 9.0 * flash + 3.0 * nvram,
                2 => 9.0 * flash + 0.08 * nvram,
                _ => 9.0 * flash + 16.0 * 0.192 * nvram,
            }
    };
    for (at, one) in scored.iter().enumerate() {
        let mut cells = vec![one.name.clone(), number(one.per_second)];
        cells.extend(
            ratios
                .map(|ratio| times(one.per_second / cost(at, ratio), scored[0].per_second / cost(0, ratio))),
        );
        table.row(cells);
    }
    table.note = format!(
        "Prices of the paper ({}, {} and {} dollars per GB of memory, flash and disk), for sizes of the paper; the rates are this run's, with {} MB of data. The paper: 2.61x - 6.72x of all in NVRAM, and 1.21x of distributed.",
        PRICES.0,
        PRICES.1,
        PRICES.2,
        number(data / 1e6)
    );
    Ok(table)
}
