//! Repeats figures 6, 8, 9 and 16 of the paper. They show which files should be in memory, how many bytes the store
//! writes, and what a write costs.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use anyhow::Result;
use duralite_bench::report::{Table, number};
use duralite_bench::workload::median;
use duralite_medium::{FileNvm, MapOptions, Nvm};
use duralite_store::Scheme;

use super::plan::{Contender, Plan, in_turns, times};
use super::schemes::Dirs;
use crate::nv::Setup;
use crate::tatp::Tatp;
use crate::tpcb::TpcB;
use crate::workload::{Workload, run};

/// The delay in nanoseconds that the paper adds to each call of an in-memory file system.
const CALL_NS: u32 = 5000;

/// The placements of the files: the name, whether the log is in memory, and whether the pages are in memory.
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

/// Measures figure 6 of the paper: how much it matters which files are in memory.
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
        "Transactions per second with `nv-disk`, medians of {} rounds of {} s. Whatever is in memory is in a file there, and each call that writes to the file takes {} us longer, as in the paper.",
        plan.rounds,
        plan.time.as_secs_f64(),
        CALL_NS / 1000
    );
    Ok(table)
}

/// The sizes of the data, of the cache and of the log.
struct Proportions {
    title: &'static str,
    cache_bytes: u64,
    log_bytes: u64,
    tpcb: TpcB,
    tatp: Tatp,
}

/// The factor by which the paper's sizes are reduced. The paper has 11 and 15 GB of data, 6 GB of cache, and 3 GB of
/// log.
const PAPER_PART: u64 = 128;

fn proportions(plan: &Plan) -> [Proportions; 2] {
    let of_paper = |gigabytes: u64| (gigabytes << 30) / PAPER_PART;
    [
        Proportions {
            title: "all in the cache",
            cache_bytes: if plan.is_full { 256 << 20 } else { 64 << 20 },
            log_bytes: 32 << 20,
            tpcb: plan.tpcb(),
            tatp: plan.tatp(),
        },
        Proportions {
            title: "the paper's, a 128th",
            cache_bytes: of_paper(6),
            log_bytes: of_paper(3),
            // An account takes 104 bytes. A subscriber takes about 700 bytes, including the rows of the other tables.
            tpcb: TpcB { branches: (of_paper(11) / 104_000) as u32, accounts_of_a_branch: 1000 },
            tatp: Tatp { subscribers: (of_paper(15) / 700) as u32 },
        },
    ]
}

/// Measures figure 8 of the paper: how many bytes the store writes to the log and to the pages.
pub(crate) fn figure8(plan: &Plan) -> Result<Table> {
    let columns = ["workload", "sizes", "of the log", "log MB", "pages MB", "log / pages", "paper"];
    let mut table = Table::new("store_figure8", "NV-Logging figure 8: bytes to log and pages", &columns);
    for sizes in proportions(plan) {
        let workloads: [(&dyn Workload, &str); 2] =
            [(&sizes.tpcb, "2.88x - 5.43x"), (&sizes.tatp, "far more log")];
        for (workload, paper) in workloads {
            let dirs = Dirs::new(plan)?;
            let mut setup = Setup::fresh(dirs.pages.path(), dirs.logs.path(), "traffic", Scheme::NvDisk)?;
            setup.options.cache_bytes = sizes.cache_bytes;
            setup.options.log_bytes = sizes.log_bytes;
            let db = setup.open(workload.schema())?;
            workload.load(&db)?;
            // Opens the store again, because the paper's benchmark begins with an empty cache.
            drop(db);
            let db = setup.open(workload.schema())?;
            let begin = db.store.metrics();
            let begun = Instant::now();
            for part in [0.06, 0.12, 0.25, 0.5, 1.0, 2.0] {
                let upto = (sizes.log_bytes as f64 * part) as u64;
                while db.store.metrics().log_bytes - begin.log_bytes < upto
                    && begun.elapsed() < LONGEST_TRAFFIC
                {
                    run(&db, workload, plan.threads, plan.time / 8)?;
                }
                let now = db.store.metrics();
                let log = (now.log_bytes - begin.log_bytes) as f64 / 1e6;
                let pages = ((now.pages_written - begin.pages_written) * 8192) as f64 / 1e6;
                table.row([
                    workload.name().to_owned(),
                    sizes.title.to_owned(),
                    number((now.log_bytes - begin.log_bytes) as f64 / sizes.log_bytes as f64),
                    number(log),
                    number(pages),
                    times(log, pages),
                    paper.to_owned(),
                ]);
            }
        }
    }
    table.note = format!(
        "`nv-disk`, {} threads, in a store that was loaded, closed and opened again, so that its cache was empty. Each row ends when the given amount of log has been written. Pages are written when they are evicted from the cache, and when half of the log has been consumed. Each write of a page counts once, although the page is written to the double-write area too. The paper measures differently: it has 3 GB of log, and counts the pages that its cache of 6 GB evicts in 20 to 100 seconds. It does not say whether that cache was warm; here the cache is empty at first. As long as frames are free, nothing is evicted, and no page is written home to free log until the log is half full. The first rows show that phase. In the long run, with twice as much data as cache, each change of a row dirties a page of 8 KiB, which no other transaction changes before it is evicted. What a transaction logs is a tenth of that. So the pages outweigh the log, as they must in any store that updates pages in place. Padding at the end of blocks does not count as log.",
        plan.threads
    );
    Ok(table)
}

/// The longest time that filling the log may take.
const LONGEST_TRAFFIC: Duration = Duration::from_secs(40);

/// Returns the median time of `count` calls, in nanoseconds.
fn each(count: usize, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        call()?;
        times.push(begun.elapsed().as_nanos() as f64);
    }
    Ok(median(&times))
}

/// Measures figure 9 of the paper: the file interface compared with the memory interface.
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
    table.note = "Medians. Each includes reading the clock, about 25 ns. A write to a file includes a sync. The paper also has synchronous mappings, which nothing here uses.".to_owned();
    Ok(table)
}

/// The price of a GB on each medium, in dollars.
struct Prices {
    title: &'static str,
    memory: f64,
    flash: f64,
    disk: f64,
}

/// The prices in the paper (section 6.6), and rounded prices of 2026, when memory had become expensive.
const PRICES: [Prices; 2] = [
    Prices { title: "paper", memory: 5.5, flash: 0.7, disk: 0.05 },
    Prices { title: "2026", memory: 10.0, flash: 0.15, disk: 0.02 },
];

/// Measures figure 16 of the paper: the price of hardware for a rate of one transaction per second.
pub(crate) fn figure16(plan: &Plan) -> Result<Table> {
    let ratios = [1.0, 4.0, 16.0, 24.0, 64.0, 256.0];
    let mut columns = vec!["prices".to_owned(), "what".to_owned(), "transactions/s".to_owned()];
    columns.push("per dollar, NVRAM 24x of disk".to_owned());
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
    // The sizes in the paper: 9 GB of data, 6 GB of cache, and 3 GB of log files. A log in memory has 80 MB instead,
    // and with `distributed` there are 16 logs of 192 MB.
    let cost = |prices: &Prices, at: usize, ratio: f64| {
        let nvram = prices.disk * ratio;
        6.0 * prices.memory
            + match at {
                0 => (9.0 + 3.0) * nvram,
                1 => 9.0 * prices.flash + 3.0 * nvram,
                2 => 9.0 * prices.flash + 0.08 * nvram,
                _ => 9.0 * prices.flash + 16.0 * 0.192 * nvram,
            }
    };
    for prices in &PRICES {
        for (at, one) in scored.iter().enumerate() {
            let mut cells = vec![prices.title.to_owned(), one.name.clone(), number(one.per_second)];
            cells.push(number(one.per_second / cost(prices, at, 24.0)));
            cells.extend(ratios.map(|ratio| {
                let of_all = scored[0].per_second / cost(prices, 0, ratio);
                times(one.per_second / cost(prices, at, ratio), of_all)
            }));
            table.row(cells);
        }
    }
    let stated: Vec<String> = PRICES
        .iter()
        .map(|one| format!("{}: {}, {} and {}", one.title, one.memory, one.flash, one.disk))
        .collect();
    table.note = format!(
        "Dollars per GB of memory, flash and disk, {}; for the sizes in the paper. The rates are from this run, with {} MB of data. In the paper, the scheme achieves 2.61x - 6.72x of all in NVRAM, and 1.21x of distributed.",
        stated.join("; "),
        number(data / 1e6)
    );
    Ok(table)
}
