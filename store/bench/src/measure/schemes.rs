//! Compares the paper's schemes, as in figures 12 to 14.

use anyhow::Result;
use duralite_bench::report::{Table, number};
use duralite_store::Scheme;

use super::plan::{Contender, Plan, Scored, in_turns, times};
use crate::nv::Setup;
use crate::workload::Workload;

/// The schemes of the paper's table 3.
pub(crate) const SCHEMES: [Scheme; 5] = [
    Scheme::NvDisk,
    Scheme::NvDiskDecentralized,
    Scheme::FlushOnInsert,
    Scheme::FlushOnCommit,
    Scheme::Distributed,
];
/// The time that writing a cache line to memory takes, in nanoseconds (section 4.1 of the paper). For a slowdown of N,
/// the benchmark adds this time N - 1 times.
const LINE_NS: u32 = 60;

/// For each scheme, makes a store, loads it, and closes it.
fn prepare(plan: &Plan, workload: &dyn Workload, dirs: &Dirs) -> Result<Vec<Setup>> {
    let make = |scheme: Scheme| {
        let setup = Setup::fresh(dirs.pages.path(), dirs.logs.path(), scheme.as_str(), scheme)?;
        let setup = plan.sized(setup);
        workload.load(&setup.open(workload.schema())?)?;
        Ok(setup)
    };
    SCHEMES.into_iter().map(make).collect()
}

/// The directories of a measurement. They are deleted when this is dropped.
pub(crate) struct Dirs {
    pub(crate) pages: tempfile::TempDir,
    pub(crate) logs: tempfile::TempDir,
}

impl Dirs {
    pub(crate) fn new(plan: &Plan) -> Result<Self> {
        Ok(Self { pages: tempfile::tempdir_in(&plan.disk)?, logs: tempfile::tempdir_in(&plan.memory)? })
    }
}

/// One row of a figure's table.
struct Line {
    /// The delay that is added for each cache line, in nanoseconds.
    line_ns: u32,
    threads: u64,
    /// Whether early lock release and lock inheritance are on. The paper calls the two together OL.
    is_optimized: bool,
}

fn measure(plan: &Plan, workload: &dyn Workload, setups: &[Setup], line: &Line) -> Result<Vec<Scored>> {
    let open = |setup: &Setup| {
        let mut setup = setup.clone();
        setup.rig.line_ns = line.line_ns;
        setup.options.early_lock_release = line.is_optimized;
        setup.options.lock_inheritance = line.is_optimized;
        let name = setup.options.scheme.as_str().to_owned();
        Ok(Contender { name, db: Box::new(setup.open(workload.schema())?) })
    };
    let contenders = setups.iter().map(open).collect::<Result<Vec<_>>>()?;
    in_turns(&contenders, workload, line.threads, plan)
}

/// Returns the lines of figures 12 and 13. Without `--full`, returns only the most important ones.
fn slowdowns(plan: &Plan) -> Vec<Line> {
    let slowdowns: &[u32] = if plan.is_full { &[1, 2, 4, 8] } else { &[1, 8] };
    let threads: &[u64] = if plan.is_full { &[1, 4, 16, 32] } else { &[plan.threads] };
    let mut lines = Vec::new();
    for slowdown in slowdowns {
        for &threads in threads {
            lines.push(Line { line_ns: LINE_NS * (slowdown - 1), threads, is_optimized: true });
        }
    }
    if !plan.is_full {
        lines.push(Line { line_ns: 0, threads: 1, is_optimized: true });
    }
    lines.push(Line { line_ns: 0, threads: plan.threads, is_optimized: false });
    lines
}

/// Returns the lines of figure 14, in which memory is up to 500 ns slower.
fn latencies(plan: &Plan) -> Vec<Line> {
    let latencies: &[u32] = if plan.is_full { &[0, 100, 300, 500] } else { &[500] };
    latencies.iter().map(|&line_ns| Line { line_ns, threads: plan.threads, is_optimized: true }).collect()
}

/// A figure of the paper whose measurement is repeated here.
struct Figure {
    name: &'static str,
    title: &'static str,
    /// The factors by which the paper's scheme is faster than `nv-disk` and than `distributed`.
    paper: [&'static str; 2],
    lines: fn(&Plan) -> Vec<Line>,
}

/// Measures one workload under every scheme, and makes the figure's table.
fn draw(plan: &Plan, workload: &dyn Workload, figure: &Figure) -> Result<Table> {
    let mut columns = vec!["added per line", "threads", "locks"];
    columns.extend(SCHEMES.map(Scheme::as_str));
    columns.extend(["of nv-disk", "paper", "of distributed", "paper"]);
    let mut table = Table::new(figure.name, figure.title, &columns);
    let dirs = Dirs::new(plan)?;
    let setups = prepare(plan, workload, &dirs)?;
    for line in (figure.lines)(plan) {
        let scored = measure(plan, workload, &setups, &line)?;
        let rate = |scheme: Scheme| {
            scored.iter().find(|one| one.name == scheme.as_str()).map_or(0.0, |one| one.per_second)
        };
        let mut cells = vec![
            format!("{} ns", line.line_ns),
            line.threads.to_string(),
            if line.is_optimized { "OL" } else { "plain" }.to_owned(),
        ];
        cells.extend(SCHEMES.map(|scheme| number(rate(scheme))));
        let ours = rate(Scheme::FlushOnCommit);
        for (other, paper) in [Scheme::NvDisk, Scheme::Distributed].into_iter().zip(figure.paper) {
            cells.push(times(ours, rate(other)));
            cells.push(paper.to_owned());
        }
        table.row(cells);
    }
    table.note = format!(
        "Transactions per second, medians of {} rounds of {} s, all schemes in turns. Pages are on disk; the logs of `nv-disk` and `nv-disk-decentralized` are files in memory, and the logs of the other schemes are in memory itself, as in the paper. The added delay applies to each line of 64 bytes that is written back, or that is written to such a file. The paper's slowdowns of 1 to 8 correspond to 0 to {} ns in addition to {LINE_NS} ns. OL means early lock release and lock inheritance. The ratios are those of `flush-on-commit`. The paper had 16 hardware threads; with few cores one sees contention, but no scaling.",
        plan.rounds,
        plan.time.as_secs_f64(),
        LINE_NS * 7
    );
    Ok(table)
}

pub(crate) fn figure12(plan: &Plan) -> Result<Table> {
    let (name, title) = ("store_figure12", "NV-Logging figure 12: TPC-C by scheme");
    let paper = ["1.62x - 2.72x", "1.14x - 1.27x"];
    draw(plan, &plan.tpcc(), &Figure { name, title, paper, lines: slowdowns })
}

pub(crate) fn figure13_tatp(plan: &Plan) -> Result<Table> {
    let (name, title) = ("store_figure13_tatp", "NV-Logging figure 13 (a, b): TATP by scheme");
    let paper = ["1.10x - 1.62x", "1.09x - 1.11x"];
    draw(plan, &plan.tatp(), &Figure { name, title, paper, lines: slowdowns })
}

pub(crate) fn figure13_tpcb(plan: &Plan) -> Result<Table> {
    let (name, title) = ("store_figure13_tpcb", "NV-Logging figure 13 (c, d): TPC-B by scheme");
    let paper = ["1.26x - 1.99x", "1.15x - 1.21x"];
    draw(plan, &plan.tpcb(), &Figure { name, title, paper, lines: slowdowns })
}

pub(crate) fn figure14_tatp(plan: &Plan) -> Result<Table> {
    let (name, title) = ("store_figure14_tatp", "NV-Logging figure 14 (a, b): TATP, slow memory");
    draw(plan, &plan.tatp(), &Figure { name, title, paper: ["1.21x - 3.17x", ""], lines: latencies })
}

pub(crate) fn figure14_tpcb(plan: &Plan) -> Result<Table> {
    let (name, title) = ("store_figure14_tpcb", "NV-Logging figure 14 (c, d): TPC-B, slow memory");
    let paper = ["3.86x - 7.95x", "1.12x - 1.20x"];
    draw(plan, &plan.tpcb(), &Figure { name, title, paper, lines: latencies })
}
