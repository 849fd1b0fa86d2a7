//! The measurements of NVWAL (Kim et al., ASPLOS 2016): its tables 1 and 2, figures 5 to 9, the frames in a
//! block (section 3.3), the persistency models (section 4.4), and the comparison with stock SQLite on this
//! machine.

mod ordering;
mod trace;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::report::{Table, number};
use crate::workload::{Operation, Run, Session, Target, median};

pub use ordering::{figure5, persistency};
pub use trace::figure8;

/// The extent of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// The number of rounds whose median is taken.
    pub rounds: usize,
    /// The number of transactions per run. The paper has 1,000.
    pub transactions: u32,
    /// The time that each run of many writers lasts.
    pub time: Duration,
    /// Whether a measurement of many writers starts processes instead of threads.
    pub processes: bool,
}

type Parameters = Vec<(&'static str, String)>;

fn parameters(pairs: &[(&'static str, &str)]) -> Parameters {
    pairs.iter().map(|&(name, value)| (name, value.to_owned())).collect()
}

/// Runs transactions on a fresh database, which is deleted afterwards. For updates and deletes, the table
/// is first filled with the rows that they change.
pub(crate) fn fresh_run(
    dir: &Path,
    target: &Target,
    operation: Operation,
    transactions: u32,
    per_transaction: u32,
    exclusive: bool,
) -> Result<Run> {
    let mut session = Session::open(dir, target, exclusive, false)?;
    if operation != Operation::Insert {
        session.fill(transactions * per_transaction)?;
        if !matches!(target, Target::Memory) {
            session.conn()?.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        }
    }
    session.run(operation, transactions, per_transaction)
}

/// Runs transactions on stock WAL with a recycled log, whose blocks are already allocated.
fn warm_run(dir: &Path, operation: Operation, transactions: u32) -> Result<Run> {
    let mut session = Session::open(dir, &Target::Stock, true, false)?;
    session.fill(transactions)?;
    // Let the log grow beyond what the run writes. SQLite then recycles it.
    session.grow_log(transactions + transactions / 2)?;
    session.conn()?.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()))?;
    session.run(operation, transactions, 1)
}

/// Measures one connection that commits each row in a transaction of its own. This is the main table of the
/// report.
pub fn headline(dir: &Path, effort: Effort) -> Result<Table> {
    let mut table = Table::new(
        "headline",
        "Autocommit of one 100-byte row, one connection, synchronous=FULL (commits/s)",
        &[
            "operation",
            "stock WAL, cold log",
            "stock WAL, warm log",
            ":memory:",
            "nvwal, exclusive",
            "nvwal, normal locking",
            "nvwal, flushes left out",
            "nvwal / cold",
            "nvwal / :memory:",
        ],
    );
    let nvwal = Target::Nvwal(Vec::new());
    let free = Target::Nvwal(parameters(&[("persistency", "strict")]));
    let fast = effort.transactions * 20;
    for operation in Operation::ALL {
        let mut figures: [Vec<f64>; 6] = Default::default();
        for _ in 0..effort.rounds {
            let n = effort.transactions;
            let runs = [
                fresh_run(dir, &Target::Stock, operation, n, 1, true)?,
                warm_run(dir, operation, n)?,
                fresh_run(dir, &Target::Memory, operation, fast, 1, true)?,
                fresh_run(dir, &nvwal, operation, fast, 1, true)?,
                fresh_run(dir, &nvwal, operation, fast, 1, false)?,
                fresh_run(dir, &free, operation, fast, 1, true)?,
            ];
            for (list, run) in figures.iter_mut().zip(runs) {
                list.push(run.per_second());
            }
        }
        let [cold, warm, memory, exclusive, normal, free] = figures.map(median);
        table.row([
            operation.name().to_owned(),
            number(cold),
            number(warm),
            number(memory),
            number(exclusive),
            number(normal),
            number(free),
            format!("{:.1}x", exclusive / cold),
            format!("{:.2}x", exclusive / memory),
        ]);
    }
    table.note = format!(
        "Medians of {} rounds; {} transactions per run on disk, {fast} otherwise; automatic checkpoints off. \
         Exclusive locking, except in one column. Cold: the log file grows; warm: it is recycled in place \
         after a checkpoint. Emulated NVRAM without added latency: a commit survives a process crash, not a \
         power loss. Flushes left out: the same under `persistency=strict`, where the emulation inspects \
         each store instead of flushing. That costs little, but something, so this column is no upper bound. \
         It shows that SQLite's own work in WAL mode already takes most of the time that 0.5x `:memory:` \
         would allow: a checksum over each page, the wal-index, and page copies, none of which `:memory:` \
         needs. Wanted: 30x cold and 0.5x `:memory:`.",
        effort.rounds, effort.transactions
    );
    Ok(table)
}

/// Measures inserts over a long time, with SQLite's automatic checkpoints on, as in an ordinary application.
pub fn sustained(dir: &Path, effort: Effort) -> Result<Table> {
    let mut table = Table::new(
        "sustained",
        "The same inserts with automatic checkpoints every 1,000 pages (commits/s)",
        &["stock WAL", "nvwal", "ratio"],
    );
    let (mut stock, mut nvwal) = (Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        let mut session = Session::open(dir, &Target::Stock, true, true)?;
        stock.push(session.run(Operation::Insert, effort.transactions * 3, 1)?.per_second());
        drop(session);
        let mut session = Session::open(dir, &Target::Nvwal(Vec::new()), true, true)?;
        nvwal.push(session.run(Operation::Insert, effort.transactions * 20, 1)?.per_second());
    }
    let (stock, nvwal) = (median(stock), median(nvwal));
    table.row([number(stock), number(nvwal), format!("{:.1}x", nvwal / stock)]);
    table.note = format!(
        "Medians of {} rounds. Checkpoints write the database file and sync it. No added latency.",
        effort.rounds
    );
    Ok(table)
}

/// The amounts per transaction that one run wrote to NVRAM.
struct PerTransaction {
    bytes: f64,
    lines: f64,
    fences: f64,
    read_bytes: f64,
}

fn count(dir: &Path, params: &Parameters, operation: Operation, n: u32, per: u32) -> Result<PerTransaction> {
    let target = Target::Nvwal(params.clone());
    let mut session = Session::open(dir, &target, true, false)?;
    if operation != Operation::Insert {
        session.fill(n * per)?;
        session.conn()?.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    }
    let names = ["stored_bytes", "flushed_lines", "fences", "read_bytes"];
    let read =
        |session: &Session| -> Result<Vec<f64>> { names.iter().map(|name| session.counter(name)).collect() };
    let before = read(&session)?;
    session.run(operation, n, per)?;
    let after = read(&session)?;
    let each = |i: usize| (after[i] - before[i]) / f64::from(n);
    Ok(PerTransaction { bytes: each(0), lines: each(1), fences: each(2), read_bytes: each(3) })
}

const PER_TRANSACTION: [u32; 6] = [1, 2, 4, 8, 16, 32];

/// The paper's table 2. Each row has an operation, and its values without and with differential logging.
const PAPER_TABLE_2: [(Operation, [f64; 6], [f64; 6]); 3] = [
    (
        Operation::Insert,
        [4431.8, 4874.2, 5767.1, 7536.6, 11141.1, 18350.0],
        [726.8, 863.0, 1139.7, 1684.0, 2776.0, 4984.0],
    ),
    (
        Operation::Delete,
        [4890.6, 5685.2, 7274.4, 10452.9, 16842.7, 22282.2],
        [1555.2, 2236.8, 3576.9, 5863.0, 9412.6, 11452.9],
    ),
    (
        Operation::Update,
        [4096.0, 4210.6, 4440.0, 4882.4, 5832.7, 7733.2],
        [647.7, 830.3, 1186.5, 1857.9, 3191.5, 5529.6],
    ),
];

/// Measures table 2: the bytes written to NVRAM per transaction.
///
/// # Errors
/// An error of SQLite.
pub fn table2(dir: &Path, effort: Effort) -> Result<Table> {
    let columns: Vec<String> = PER_TRANSACTION.iter().map(|n| format!("{n} per transaction")).collect();
    let columns: Vec<&str> = std::iter::once("").chain(columns.iter().map(String::as_str)).collect();
    let mut table = Table::new("table2", "NVWAL table 2: bytes put into NVRAM per transaction", &columns);
    for (operation, paper_whole, paper_diff) in PAPER_TABLE_2 {
        for (label, diff, paper) in [("whole pages", "off", paper_whole), ("differences", "on", paper_diff)] {
            let name = operation.name();
            let mut ours = Vec::new();
            for per in PER_TRANSACTION {
                ours.push(
                    count(dir, &parameters(&[("diff", diff)]), operation, effort.transactions, per)?.bytes,
                );
            }
            table.row(std::iter::once(format!("{name}, {label}")).chain(ours.into_iter().map(number)));
            table
                .row(std::iter::once(format!("{name}, {label}: paper")).chain(paper.into_iter().map(number)));
        }
    }
    table.note = format!(
        "{} transactions of 100-byte rows, 4 KiB pages; every stored byte is counted: headers, first whole \
         pages, terminators, block management. A record here has several ranges and a 16-byte header; the \
         paper's has one range and 32 bytes. A page's first image is stored without its zeros.",
        effort.transactions
    );
    Ok(table)
}

/// The paper's table 1: the number of cache lines flushed per transaction of inserts.
const PAPER_TABLE_1: [f64; 6] = [139.49, 153.32, 181.224, 236.52, 349.168, 574.464];

/// Returns the number of lines that the paper's system flushes for a transaction that writes `bytes` bytes.
/// These are the lines that the bytes fill, and one for the commit mark. For whole pages, and lines of 32
/// bytes, the result is the paper's table 1.
fn lines_of_the_paper(bytes: f64, line_bytes: f64) -> f64 {
    bytes / line_bytes + 1.0
}

/// Measures table 1: the cache lines flushed and the fences per transaction.
///
/// # Errors
/// An error of SQLite.
pub fn table1(dir: &Path, effort: Effort) -> Result<Table> {
    let mut table = Table::new(
        "table1",
        "NVWAL table 1: cache lines flushed per transaction of inserts",
        &[
            "inserts per transaction",
            "lines of 64 bytes",
            "fences",
            "bytes read",
            "whole pages: lines of 64 bytes",
            "paper: lines of 32 bytes",
            "paper, recomputed: lines of 64 bytes",
            "paper, differences, recomputed: lines of 32 bytes",
            "paper, differences, recomputed: lines of 64 bytes",
        ],
    );
    let (_, paper_whole, paper_diff) = PAPER_TABLE_2[0];
    for (i, per) in PER_TRANSACTION.into_iter().enumerate() {
        let counted = count(dir, &Vec::new(), Operation::Insert, effort.transactions, per)?;
        let whole = count(dir, &parameters(&[("diff", "off")]), Operation::Insert, effort.transactions, per)?;
        table.row([
            per.to_string(),
            number(counted.lines),
            format!("{:.3}", counted.fences),
            number(counted.read_bytes),
            number(whole.lines),
            number(PAPER_TABLE_1[i]),
            number(lines_of_the_paper(paper_whole[i], 64.0)),
            number(lines_of_the_paper(paper_diff[i], 32.0)),
            number(lines_of_the_paper(paper_diff[i], 64.0)),
        ]);
    }
    table.note = "sync=lazy. A commit takes two fences; the fraction above two comes from commits that take \
                  a new block. The paper's table is for whole pages and lines of 32 bytes: it is the bytes of \
                  its table 2 without differences, divided by 32, and one line for the commit mark (4431.8 / \
                  32 + 1 = 139.49, and so in each row). The last three columns are computed from its table 2 \
                  in the same way: what it would flush with lines of 64 bytes, and with differences (726.8 / \
                  32 + 1 and 726.8 / 64 + 1). They suppose that its frames fill their lines; a frame that \
                  begins inside a line takes up to one line more. Bytes read are those that a transaction \
                  reads from the log, for which a latency of reads would be added. Wanted: at most 12 lines \
                  and 2 fences for one insert."
        .to_owned();
    Ok(table)
}

/// Returns the number of records per block of a log, and the number of transactions per block.
fn blocks_filled(dir: &Path, params: &Parameters, operation: Operation, n: u32) -> Result<[f64; 2]> {
    let mut session = Session::open(dir, &Target::Nvwal(params.clone()), true, false)?;
    if operation != Operation::Insert {
        session.fill(n)?;
        session.conn()?.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    }
    let block_bytes = session.counter("block_bytes")?;
    let read = |session: &Session| -> Result<[f64; 2]> {
        Ok([session.counter("records")?, session.counter("log_bytes")? / block_bytes])
    };
    let before = read(&session)?;
    session.run(operation, n, 1)?;
    let after = read(&session)?;
    let blocks = after[1] - before[1];
    Ok([(after[0] - before[0]) / blocks, f64::from(n) / blocks])
}

/// Measures section 3.3: how many frames a block of the user-level heap holds, and therefore how many commits
/// allocate no block.
///
/// # Errors
/// An error of SQLite.
pub fn blocks(dir: &Path, effort: Effort) -> Result<Table> {
    let mut table = Table::new(
        "nvwal_blocks",
        "NVWAL section 3.3: frames per block of the user-level heap",
        &[
            "operation",
            "block",
            "differences: frames",
            "differences: transactions",
            "whole pages: frames",
            "whole pages: transactions",
            "paper: frames",
            "paper, whole pages: frames",
        ],
    );
    for operation in Operation::ALL {
        for kib in [8, 12, 64] {
            let mut cells = vec![operation.name().to_owned(), format!("{kib} KiB")];
            for diff in ["on", "off"] {
                let mut params = parameters(&[("diff", diff), ("heap", "user")]);
                params.push(("block_bytes", (kib * 1024).to_string()));
                cells.extend(blocks_filled(dir, &params, operation, effort.transactions)?.map(number));
            }
            let paper = if kib == 8 { ["4.9", "2"] } else { [""; 2] };
            table.row(cells.into_iter().chain(paper.map(str::to_owned)));
        }
    }
    table.note = format!(
        "{} transactions of one 100-byte row, without checkpoints: records stored, divided by the blocks that \
         the log took meanwhile. A record is the paper's frame. The paper has 4.9 frames per block of 8 KiB on \
         average, and does not say for which workload. Two whole pages fit into 8 KiB there, and do not here, \
         because their headers are in the block too; so figure 7 has blocks of 12 KiB. 64 KiB is the default.",
        effort.transactions
    );
    Ok(table)
}

/// Measures figures 5 and 6: the cost of lazy and of eager ordering, at 500 ns per line.
///
/// # Errors
/// An error of SQLite.
pub fn figures_5_and_6(dir: &Path, effort: Effort) -> Result<Table> {
    let mut table = Table::new(
        "figure5_6",
        "NVWAL figures 5 and 6: cost of ordering at 500 ns per line (us per transaction)",
        &[
            "inserts per transaction",
            "lazy: flush and fence",
            "eager: flush and fence",
            "eager / lazy",
            "transaction, lazy",
            "lazy: share of the transaction",
            "paper: lazy",
            "paper: share",
        ],
    );
    let paper = [("19.3", "4.6%"), ("", ""), ("", ""), ("", ""), ("", ""), ("46.5", "0.8%")];
    for (per, (paper_cost, paper_share)) in PER_TRANSACTION.into_iter().zip(paper) {
        let mut medians = Vec::new();
        for sync in ["lazy", "eager"] {
            let slow = parameters(&[("sync", sync), ("nvram_write_ns", "500")]);
            // Under strict persistency, flushes and fences do nothing, so this run measures the remaining
            // work.
            let bare = parameters(&[("sync", sync), ("persistency", "strict")]);
            let (mut with, mut without) = (Vec::new(), Vec::new());
            for _ in 0..effort.rounds {
                let n = effort.transactions;
                let run = |p: &Parameters| {
                    fresh_run(dir, &Target::Nvwal(p.clone()), Operation::Insert, n, per, true)
                };
                with.push(run(&slow)?.micros());
                without.push(run(&bare)?.micros());
            }
            medians.push((median(with), median(without)));
        }
        let (lazy, eager) = (medians[0].0 - medians[0].1, medians[1].0 - medians[1].1);
        table.row([
            per.to_string(),
            number(lazy),
            number(eager),
            format!("{:.2}", eager / lazy),
            number(medians[0].0),
            format!("{:.1}%", 100.0 * lazy / medians[0].0),
            paper_cost.to_owned(),
            paper_share.to_owned(),
        ]);
    }
    table.note = format!(
        "Medians of {} rounds. Ordering is the time of a run at 500 ns per line, minus the time of a run in \
         which flushes and fences do nothing. Its share is larger than in the paper, because the rest of a \
         transaction takes microseconds here, and took 424 us on the paper's board. Its cost is smaller, \
         because fewer lines are flushed (the paper's are of whole pages, see table 1), and no flush needs \
         a system call. Latencies: nvram_write_ns=500, and 0 for fences, of which the paper says that their \
         cost is negligible, and for reads, for which it names none. The next table has the parts, also \
         for whole pages.",
        effort.rounds
    );
    Ok(table)
}

/// The six variants of figure 7.
const VARIANTS: [(&str, [(&str, &str); 3]); 6] = [
    ("LS", [("sync", "lazy"), ("diff", "off"), ("heap", "system")]),
    ("LS+Diff", [("sync", "lazy"), ("diff", "on"), ("heap", "system")]),
    ("CS+Diff", [("sync", "async"), ("diff", "on"), ("heap", "system")]),
    ("UH+LS", [("sync", "lazy"), ("diff", "off"), ("heap", "user")]),
    ("UH+LS+Diff", [("sync", "lazy"), ("diff", "on"), ("heap", "user")]),
    ("UH+CS+Diff", [("sync", "async"), ("diff", "on"), ("heap", "user")]),
];

/// The latency in nanoseconds of the persist barrier that the paper's board emulates.
const BARRIER_NS: u32 = 1000;

/// Returns the parameters of one of the six variants. `write_ns` is the latency of writing a line.
fn variant_parameters(settings: &[(&'static str, &str)], write_ns: u32) -> Parameters {
    let mut params = parameters(settings);
    params.push(("nvram_write_ns", write_ns.to_string()));
    params.push(("nvram_fence_ns", BARRIER_NS.to_string()));
    params.push(("block_bytes", "12288".to_owned()));
    params
}

/// Returns the transactions per second of `nvwal` with these parameters, as the median of several rounds.
fn median_rate(dir: &Path, params: &Parameters, operation: Operation, effort: Effort) -> Result<f64> {
    let target = Target::Nvwal(params.clone());
    let rounds = (0..effort.rounds)
        .map(|_| Ok(fresh_run(dir, &target, operation, effort.transactions, 1, true)?.per_second()));
    Ok(median(rounds.collect::<Result<Vec<_>>>()?))
}

/// Measures figure 7: the throughput of the six variants at several write latencies.
///
/// # Errors
/// An error of SQLite.
pub fn figure7(dir: &Path, effort: Effort) -> Result<Table> {
    const LATENCIES: [u32; 6] = [400, 700, 1000, 1300, 1600, 1900];
    let columns: Vec<String> = LATENCIES.iter().map(|ns| format!("{ns} ns")).collect();
    let mut headings = vec!["operation", "variant"];
    headings.extend(columns.iter().map(String::as_str));
    let mut table =
        Table::new("figure7", "NVWAL figure 7: transactions/s over NVRAM write latency", &headings);
    for operation in Operation::ALL {
        for (variant, settings) in VARIANTS {
            let mut cells = vec![operation.name().to_owned(), variant.to_owned()];
            for latency in LATENCIES {
                let params = variant_parameters(&settings, latency);
                cells.push(number(median_rate(dir, &params, operation, effort)?));
            }
            table.row(cells);
        }
    }
    table.note = format!(
        "Medians of {} runs of {} transactions, 12 KiB blocks (which hold two whole pages with their \
         headers, as the paper's 8 KiB hold two pages), 1 us per persist barrier, checkpoints not included, \
         as in the paper. `CS` is the paper's asynchronous commit: only the commit mark is flushed. Without \
         `UH` each frame takes its block by one fallocate call. The paper, inserts: UH+LS+Diff 2,621 at 437 \
         ns and 2,517 at 1,942 ns, a loss of 4%, and up to 37% over LS at 1,942 ns. Here the rest of the \
         transaction takes microseconds instead of 400, so most of the time is latency: the curves fall more \
         steeply, and the variants lie further apart, in the same order. Latencies: nvram_write_ns as at the \
         head of the column, one line after another; nvram_fence_ns={BARRIER_NS}; nvram_read_ns=0, since the \
         paper's board can slow reads, but the paper names no latency of a read. The next table has a \
         memory that works on several lines at once.",
        effort.rounds, effort.transactions
    );
    Ok(table)
}

/// Measures figure 7 for another memory, which writes several lines at once.
///
/// # Errors
/// An error of SQLite.
pub fn queue(dir: &Path, effort: Effort) -> Result<Table> {
    const LATENCIES: [u32; 3] = [400, 1000, 1900];
    const DEPTHS: [u32; 4] = [0, 4, 16, 64];
    let columns: Vec<String> = LATENCIES.iter().map(|ns| format!("{ns} ns")).collect();
    let mut headings = vec!["variant", "lines at once"];
    headings.extend(columns.iter().map(String::as_str));
    let mut table = Table::new(
        "nvwal_queue",
        "NVWAL figure 7 with a write-pending queue: inserts/s over NVRAM write latency",
        &headings,
    );
    for (variant, settings) in VARIANTS {
        for depth in DEPTHS {
            let at_once = if depth == 0 { "no queue".to_owned() } else { depth.to_string() };
            let mut cells = vec![variant.to_owned(), at_once];
            for latency in LATENCIES {
                let mut params = variant_parameters(&settings, latency);
                params.push(("nvram_queue", depth.to_string()));
                let rate = median_rate(dir, &params, Operation::Insert, effort)?;
                cells.push(number(rate));
            }
            table.row(cells);
        }
    }
    table.note = format!(
        "As figure 7, whose columns at these latencies are the rows without a queue. With `nvram_queue=N` the \
         memory works on N lines at once, each for the latency at the head of the column: a line waits only if the \
         queue is full, and a fence waits until the queue is empty. So a queue helps those variants most that flush \
         many lines. The paper's memory worked on several lines at once: 139 lines of 500 ns take 70 us one after \
         another, and took 19.3 us. Latencies: nvram_fence_ns={BARRIER_NS}, \
         nvram_read_ns=0."
    );
    Ok(table)
}

/// Measures figure 9: the NVRAM write latency at which `nvwal` is as slow as a write-ahead log on this disk.
///
/// # Errors
/// An error of SQLite.
pub fn figure9(dir: &Path, effort: Effort) -> Result<Table> {
    const MICROS: [u32; 12] = [2, 3, 4, 6, 9, 14, 28, 47, 93, 183, 230, 363];
    const ON_DISK: [&str; 3] = ["stock WAL, cold log", "stock WAL, warm log", "waldio, layout=embedded"];
    let mut table = Table::new(
        "figure9",
        "NVWAL figure 9: inserts/s over NVRAM write latency, beside stock WAL on this disk",
        &["latency (us per line)", "UH+LS+Diff", "LS", ON_DISK[0], ON_DISK[1], ON_DISK[2]],
    );
    let n = effort.transactions.min(500);
    let embedded = Target::Duralite(parameters(&[("journal", "waldio"), ("layout", "embedded")]));
    let mut on_disk: [Vec<f64>; 3] = Default::default();
    for _ in 0..effort.rounds {
        let runs = [
            fresh_run(dir, &Target::Stock, Operation::Insert, n, 1, true)?,
            warm_run(dir, Operation::Insert, n)?,
            fresh_run(dir, &embedded, Operation::Insert, n, 1, false)?,
        ];
        for (list, run) in on_disk.iter_mut().zip(runs) {
            list.push(run.per_second());
        }
    }
    let on_disk = on_disk.map(median);
    let mut crossings = [[None; 3]; 2];
    for micros in MICROS {
        let mut speeds = [0.0; 2];
        for (i, variant) in [4, 0].into_iter().enumerate() {
            let mut params = parameters(&VARIANTS[variant].1);
            params.push(("nvram_write_ns", (micros * 1000).to_string()));
            let mut figures = Vec::new();
            // At high latencies the runs vary little, so fewer transactions and rounds suffice.
            let (rounds, n) = if micros > 20 { (1, n / 5) } else { (effort.rounds, n) };
            for _ in 0..rounds {
                let target = Target::Nvwal(params.clone());
                figures.push(fresh_run(dir, &target, Operation::Insert, n.max(20), 1, true)?.per_second());
            }
            speeds[i] = median(figures);
            for (crossing, rate) in crossings[i].iter_mut().zip(on_disk) {
                if speeds[i] < rate && crossing.is_none() {
                    *crossing = Some(micros);
                }
            }
        }
        let cells = speeds.into_iter().chain(on_disk).map(number);
        table.row(std::iter::once(micros.to_string()).chain(cells));
    }
    let below =
        |crossing: Option<u32>| crossing.map_or("not within 363 us".to_owned(), |us| format!("by {us} us"));
    let crossed: Vec<String> = ON_DISK
        .iter()
        .enumerate()
        .map(|(i, name)| format!("{name}: {} and {}", below(crossings[0][i]), below(crossings[1][i])))
        .collect();
    table.note = format!(
        "UH+LS+Diff and LS fall below {}. The paper: 230 us and 47 us, against 541 inserts/s of its \
         optimised WAL on a phone's eMMC; this disk is several times faster, so the curves meet earlier. The paper's \
         optimised WAL allocates pages of the log before it needs them, and keeps frames aligned to pages. A warm log \
         of stock SQLite has all its blocks, but its frames are not aligned; `waldio` with layout=embedded \
         has both (normal locking, the others exclusive locking). A cold log \
         grows with each commit: the paper's stock WAL. Latencies: nvram_write_ns as in the first column; fences and \
         reads add nothing, since the paper slows only flushes here. No checkpoints; the paper adds their share.",
        crossed.join("; ")
    );
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_lines_are_those_of_its_whole_pages_and_the_commit_mark() {
        let (operation, whole, _) = PAPER_TABLE_2[0];
        assert_eq!(operation, Operation::Insert);
        for (bytes, lines) in whole.into_iter().zip(PAPER_TABLE_1) {
            assert!((lines_of_the_paper(bytes, 32.0) - lines).abs() < 0.05, "{bytes} bytes, {lines} lines");
        }
    }
}
