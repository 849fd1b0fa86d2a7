//! Repeats the measurements of the paper on the single-level store (Xu et al., JCST 2016, figures 5 and 13 to
//! 20), in both journal modes. They show how much faster a log is if its memory needs no flush. They also
//! compare the ways of making the database's pages durable.

use std::path::Path;

use anyhow::Result;

use crate::nvwal::Effort;
use crate::report::{Table, number};
use crate::workload::{Operation, Run, Session, Target, median};

/// The emulated time in nanoseconds to write a line back to memory. The next constant is the time to write a
/// line with a non-temporal store.
const WRITE_NS: u32 = 500;
const STREAM_NS: u32 = 250;
/// The number of rows that the updates or deletes of a run do not touch.
const SPARE: u32 = 10;

/// The journal modes, each with its name in the paper and its name in SQLite.
const MODES: [(&str, &str); 2] = [("rollback logging", "DELETE"), ("write-ahead logging", "WAL")];

/// A configuration: where the log is, and how pages become durable.
#[derive(Clone, Copy)]
struct Config {
    name: &'static str,
    scratchpad: &'static str,
    home_sync: &'static str,
}

/// The paper's baseline. The log needs flushes, like the pages, because it is in the same memory. The engine
/// makes pages durable by writing their cache lines back.
const BASELINE: Config = Config { name: "baseline", scratchpad: "off", home_sync: "wb" };
const ON_CHIP: Config = Config { name: "on-chip log", scratchpad: "emulate", home_sync: "wb" };
const WRITE_THROUGH: Config = Config { name: "write-through", scratchpad: "off", home_sync: "wt" };
/// The paper's rule: for a page that is written less often than the average page, the engine uses
/// non-temporal stores.
const AVERAGE: Config = Config { name: "average", scratchpad: "off", home_sync: "average" };
const ADAPTIVE: Config = Config { name: "adaptive", scratchpad: "off", home_sync: "adaptive" };
const BOTH: Config = Config { name: "both", scratchpad: "emulate", home_sync: "adaptive" };

/// The parameters of the memory.
#[derive(Clone, Copy)]
struct Memory {
    /// Whether the engine logs and stores whole pages, as in the paper.
    whole_pages: bool,
    write_ns: u32,
    stream_ns: u32,
    region_bytes: u64,
}

const MEMORY: Memory =
    Memory { whole_pages: false, write_ns: WRITE_NS, stream_ns: STREAM_NS, region_bytes: 64 << 20 };
const WHOLE: Memory = Memory { whole_pages: true, ..MEMORY };
/// The two ways in which the engine can log and store a page: the whole page, or only the bytes that differ.
const FORMS: [(&str, Memory); 2] = [("whole, as in the paper", WHOLE), ("what differs", MEMORY)];

fn target(config: Config, mode: &'static str, memory: Memory) -> Target {
    let parameters = [
        ("journal", "scratchpad".to_owned()),
        ("nvram", "emulate".to_owned()),
        ("scratchpad", config.scratchpad.to_owned()),
        ("home", "emulate".to_owned()),
        ("home_sync", config.home_sync.to_owned()),
        ("diff", if memory.whole_pages { "off" } else { "on" }.to_owned()),
        ("home_diff", if memory.whole_pages { "off" } else { "on" }.to_owned()),
        ("scratchpad_bytes", memory.region_bytes.to_string()),
        ("nvram_write_ns", memory.write_ns.to_string()),
        ("nvram_stream_ns", memory.stream_ns.to_string()),
    ];
    Target::DuraliteIn(mode, parameters.to_vec())
}

fn run(dir: &Path, target: &Target, operation: Operation, transactions: u32) -> Result<Run> {
    let mut session = Session::open(dir, target, false, true)?;
    if operation != Operation::Insert {
        session.fill(transactions + SPARE)?;
        session.rewind();
    }
    session.run(operation, transactions, 1)
}

/// Returns the transactions per second of each target. They are medians of several rounds, in which the
/// targets take turns.
fn compare(
    dir: &Path,
    effort: Effort,
    targets: &[Target],
    operation: Operation,
    transactions: u32,
) -> Result<Vec<f64>> {
    let mut figures = vec![Vec::new(); targets.len()];
    for _ in 0..effort.rounds {
        for (target, list) in targets.iter().zip(&mut figures) {
            list.push(run(dir, target, operation, transactions)?.per_second());
        }
    }
    Ok(figures.into_iter().map(median).collect())
}

/// Returns the number of transactions in one run. With the default effort it is the paper's 10,000.
fn transactions(effort: Effort) -> u32 {
    effort.transactions * 10
}

fn how(effort: Effort) -> String {
    format!(
        "Medians of {} rounds of {} transactions of one 100-byte row; region of 64 MiB unless said \
         otherwise. Emulated memory: {WRITE_NS} ns for each line written back, {STREAM_NS} ns for each line \
         of a non-temporal store, and nothing for lines of a region that is durable on store. Fences and \
         reads add nothing (nvram_fence_ns=0, nvram_read_ns=0): the paper delays only writes, and names no \
         latency.",
        effort.rounds,
        transactions(effort)
    )
}

/// Makes one table for each journal mode, with the throughput of the configurations, and the ratio of each to
/// the first.
fn figures(
    dir: &Path,
    effort: Effort,
    names: [&'static str; 2],
    title: &str,
    configs: &[Config],
    note: &str,
) -> Result<Vec<Table>> {
    let mut tables = Vec::new();
    for ((mode_name, mode), name) in MODES.into_iter().zip(names) {
        let mut columns = vec!["operation".to_owned(), "pages".to_owned()];
        columns.extend(configs.iter().map(|config| format!("{} (tx/s)", config.name)));
        columns.extend(configs[1..].iter().map(|config| format!("{} / {}", config.name, configs[0].name)));
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        let mut table = Table::new(name, &format!("Single-level store, {title}, {mode_name}"), &columns);
        for (form, memory) in FORMS {
            let targets: Vec<Target> = configs.iter().map(|config| target(*config, mode, memory)).collect();
            for operation in Operation::ALL {
                let found = compare(dir, effort, &targets, operation, transactions(effort))?;
                let first = found.first().copied().unwrap_or(f64::NAN);
                let ratios = found[1..].iter().map(|figure| format!("{:.2}x", figure / first));
                let cells = found.iter().map(|figure| number(*figure)).chain(ratios);
                table.row([operation.name(), form].map(str::to_owned).into_iter().chain(cells));
            }
        }
        table.note = format!("{} {note}", how(effort));
        tables.push(table);
    }
    Ok(tables)
}

/// Measures figures 13 and 14: a log on the chip, compared with a log in the memory where the pages are.
///
/// # Errors
/// An error of SQLite.
pub fn figures_13_14(dir: &Path, effort: Effort) -> Result<Vec<Table>> {
    figures(
        dir,
        effort,
        ["scratchpad_figure13", "scratchpad_figure14"],
        "figures 13 and 14: the log alone",
        &[BASELINE, ON_CHIP],
        "The paper: 1.92x, 2.00x and 1.93x in rollback logging for insert, delete and update, 1.96x, 2.10x \
         and 2.00x in write-ahead logging. A rollback journal holds whole pages in both forms. If only \
         differences are logged, a transaction of the write-ahead log has few lines, so the baseline loses \
         less time to flushes.",
    )
}

/// Measures figures 17 and 18: the ways to make pages durable. The log is in the same memory as the pages,
/// and becomes durable in the same way.
///
/// # Errors
/// An error of SQLite.
pub fn figures_17_18(dir: &Path, effort: Effort) -> Result<Vec<Table>> {
    figures(
        dir,
        effort,
        ["scratchpad_figure17", "scratchpad_figure18"],
        "figures 17 and 18: the sync alone",
        &[BASELINE, WRITE_THROUGH, AVERAGE, ADAPTIVE],
        "The paper: adaptive is 1.50x, 1.89x and 1.69x of write-back for insert, delete and update in \
         rollback logging, 1.77x, 1.96x and 1.77x in write-ahead logging, and 1.02x to 1.17x of \
         write-through. The log is in the memory of the pages, and becomes durable in the same way. Average \
         is the paper's rule; adaptive chooses the way that it has measured to be cheaper. A non-temporal \
         store of a line costs half as much here as a write-back, so no ratio can exceed 2.",
    )
}

/// Measures figure 5: write-back with and without its flushes, and write-through.
///
/// # Errors
/// An error of SQLite.
pub fn figure5(dir: &Path, effort: Effort) -> Result<Table> {
    let mut table = Table::new(
        "scratchpad_figure5",
        "Single-level store, figure 5: transactions/s by caching mode",
        &["mode", "operation", "write-back, flushes free", "write-back", "write-through"],
    );
    for (mode_name, mode) in MODES {
        let free = Memory { write_ns: 0, stream_ns: 0, ..WHOLE };
        let targets =
            [target(BASELINE, mode, free), target(BASELINE, mode, WHOLE), target(WRITE_THROUGH, mode, WHOLE)];
        for operation in Operation::ALL {
            let found = compare(dir, effort, &targets, operation, transactions(effort))?;
            let cells = found.iter().map(|figure| number(*figure));
            table.row([mode_name, operation.name()].map(str::to_owned).into_iter().chain(cells));
        }
    }
    table.note = format!(
        "{} Pages are logged and stored whole. As in the paper, write-back is faster than write-through only \
         if its flushes cost nothing. The first column has no added latency for either.",
        how(effort)
    );
    Ok(table)
}

/// Measures figures 19 and 20: all four configurations.
///
/// # Errors
/// An error of SQLite.
pub fn figures_19_20(dir: &Path, effort: Effort) -> Result<Vec<Table>> {
    figures(
        dir,
        effort,
        ["scratchpad_figure19", "scratchpad_figure20"],
        "figures 19 and 20: together",
        &[BASELINE, ON_CHIP, ADAPTIVE, BOTH],
        "The paper: both together are 2.15x, 2.26x and 2.14x of the baseline for insert, delete and update in rollback \
         logging, 2.20x, 2.39x and 2.24x in write-ahead logging.",
    )
}

/// Measures figures 15 and 16: the size of the region.
///
/// # Errors
/// An error of SQLite.
pub fn figures_15_16(dir: &Path, effort: Effort) -> Result<Table> {
    const SIZES: [u64; 4] = [16, 32, 64, 128];
    let mut table = Table::new(
        "scratchpad_figure15_16",
        "Single-level store, figures 15 and 16: transactions/s over the size of the region",
        &["mode", "operation", "16 MiB", "32 MiB", "64 MiB", "128 MiB"],
    );
    for (mode_name, mode) in MODES {
        let targets = SIZES.map(|size| target(BOTH, mode, Memory { region_bytes: size << 20, ..MEMORY }));
        for operation in Operation::ALL {
            let found = compare(dir, effort, &targets, operation, transactions(effort))?;
            let cells = found.iter().map(|figure| number(*figure));
            table.row([mode_name.to_owned(), operation.name().to_owned()].into_iter().chain(cells));
        }
    }
    table.note = format!(
        "{} In the paper throughput rises with the size up to 64 MiB. Here SQLite checkpoints after a \
         thousand frames, so only 4 MiB of the region are in use, and the space of a rollback journal is \
         freed with its transaction. So the size does not matter.",
        how(effort)
    );
    Ok(table)
}

/// Measures the throughput at several write latencies. The configurations are the baseline, each of the
/// paper's two techniques alone (the log on the chip, and the adaptive choice), and both together.
pub fn latencies(dir: &Path, effort: Effort) -> Result<Table> {
    const LATENCIES: [u32; 5] = [0, 100, 250, 500, 1000];
    let columns: Vec<String> = LATENCIES.iter().map(|ns| format!("{ns} ns")).collect();
    let mut headings = vec!["mode", "configuration"];
    headings.extend(columns.iter().map(String::as_str));
    let mut table = Table::new(
        "scratchpad_latency",
        "Single-level store: inserts/s over the latency of a line that is written back",
        &headings,
    );
    for (mode_name, mode) in MODES {
        for config in [BASELINE, ON_CHIP, ADAPTIVE, BOTH] {
            let targets = LATENCIES
                .map(|ns| target(config, mode, Memory { write_ns: ns, stream_ns: ns / 2, ..MEMORY }));
            let found = compare(dir, effort, &targets, Operation::Insert, transactions(effort))?;
            let cells = found.iter().map(|figure| number(*figure));
            table.row([mode_name.to_owned(), config.name.to_owned()].into_iter().chain(cells));
        }
    }
    table.note = format!(
        "{} A line of a non-temporal store takes half of the latency at the head of the column.",
        how(effort)
    );
    Ok(table)
}

/// Measures a rollback journal in the region, compared with the journal of stock SQLite on disk.
///
/// # Errors
/// An error of SQLite.
pub fn rollback(dir: &Path, effort: Effort) -> Result<Table> {
    let mut table = Table::new(
        "scratchpad_rollback",
        "Rollback journals: scratchpad against stock SQLite on this disk (transactions/s)",
        &["operation", "mode", "stock", "scratchpad", "ratio"],
    );
    for mode in ["DELETE", "TRUNCATE", "PERSIST"] {
        for operation in Operation::ALL {
            let (mut stock, mut ours) = (Vec::new(), Vec::new());
            for _ in 0..effort.rounds {
                stock.push(
                    run(dir, &Target::Rollback(mode), operation, effort.transactions / 4 + 1)?.per_second(),
                );
                let target = target(BOTH, mode, MEMORY);
                ours.push(run(dir, &target, operation, transactions(effort))?.per_second());
            }
            let (stock, ours) = (median(stock), median(ours));
            let ratio = format!("{:.0}x", ours / stock);
            table.row([operation.name().to_owned(), mode.to_owned(), number(stock), number(ours), ratio]);
        }
    }
    table.note = format!(
        "{} Stock SQLite waits for the disk, `scratchpad` for the emulated latencies of the \
                          home.",
        how(effort)
    );
    Ok(table)
}

/// Measures workloads with hot pages, compared with a uniform workload. The adaptive policy is made for hot
/// pages.
///
/// # Errors
/// An error of SQLite.
pub fn heat(dir: &Path, effort: Effort) -> Result<Table> {
    let on_chip = |home_sync, name| Config { name, scratchpad: "emulate", home_sync };
    let configs = [
        on_chip("wb", "write-back"),
        on_chip("wt", "write-through"),
        on_chip("average", "average"),
        on_chip("adaptive", "adaptive"),
    ];
    let mut table = Table::new(
        "scratchpad_heat",
        "Single-level store: updates/s by policy and by how pages differ in heat, pages stored whole",
        &[
            "mode",
            "lines",
            "updates",
            "write-back",
            "write-through",
            "average",
            "adaptive",
            "adaptive / better of the first two",
        ],
    );
    for (mode_name, mode) in MODES {
        for (lines, stream_ns) in
            [("past the cache: half", WRITE_NS / 2), ("past the cache: twice", 2 * WRITE_NS)]
        {
            for (skew, hot_in_ten) in [("uniform", 0), ("9 of 10 to 1% of the rows", 9)] {
                let mut figures: [Vec<f64>; 4] = Default::default();
                for _ in 0..effort.rounds {
                    for (config, list) in configs.iter().zip(&mut figures) {
                        let target = target(*config, mode, Memory { stream_ns, ..WHOLE });
                        list.push(skewed(dir, &target, transactions(effort), hot_in_ten)?);
                    }
                }
                let [back, through, average, adaptive] = figures.map(median);
                let ratio = format!("{:.2}x", adaptive / back.max(through));
                let cells = [number(back), number(through), number(average), number(adaptive), ratio];
                table.row([mode_name, lines, skew].map(str::to_owned).into_iter().chain(cells));
            }
        }
    }
    table.note = format!(
        "{} The log is in the region, so only the pages cost time. Average is the paper's rule. SQLite's \
         cache collects the changes of a page between two syncs, so the heat of a page saves no flush, and \
         only the cheaper way matters.",
        how(effort)
    );
    Ok(table)
}

/// Returns the throughput of updates of random rows. Of ten updates, `hot_in_ten` go to the first hundredth
/// of the table.
fn skewed(dir: &Path, target: &Target, transactions: u32, hot_in_ten: u64) -> Result<f64> {
    const ROWS: u32 = 10_000;
    let mut session = Session::open(dir, target, false, true)?;
    session.fill(ROWS)?;
    let mut random = fastrand::Rng::with_seed(7);
    let mut statement = session.conn()?.prepare("UPDATE t SET v=?1 WHERE id=?2")?;
    let start = std::time::Instant::now();
    for number in 0..transactions {
        let among = if random.u64(..10) < hot_in_ten { ROWS / 100 } else { ROWS };
        let row = 1 + random.u32(..among);
        statement.execute(rusqlite::params![format!("{number:0>100}"), row])?;
    }
    Ok(f64::from(transactions) / start.elapsed().as_secs_f64())
}
