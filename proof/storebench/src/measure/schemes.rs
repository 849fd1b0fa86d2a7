//! The paper's schemes beside each other: figures 12 to 14.

use anyhow::Result;
use duralite_bench::report::{Table, number};
use duralite_store::Scheme;

use super::{Contender, Plan, Scored, in_turns, times};
use crate::nv::Setup;
use crate::workload::Workload;

/// The schemes of table 3.
pub(crate) const SCHEMES: [Scheme; 5] = [
    Scheme::NvDisk,
    Scheme::NvDiskDecentralized,
    Scheme::FlushOnInsert,
    Scheme::FlushOnCommit,
    Scheme::Distributed,
];
/// What a line of memory takes, in nanoseconds: the paper's section 4.1. A slowdown adds as much for each step.
const LINE_NS: u32 = 60;

/// The figure of a workload, and the paper's factors over `nv-disk` and over `distributed`.
const PAPER: [(&str, &str, &str); 3] = [
    ("TPC-C", "1.62x - 2.72x", "1.14x - 1.27x"),
    ("TPC-B", "1.26x - 1.99x", "1.15x - 1.21x"),
    ("TATP", "1.10x - 1.62x", "1.09x - 1.11x"),
];

/// Stores of all schemes, loaded and closed.
fn prepare(plan: &Plan, workload: &dyn Workload, dirs: &Dirs) -> Result<Vec<Setup>> {
    let make = |scheme: Scheme| {
        let setup = Setup::fresh(dirs.pages.path(), dirs.logs.path(), scheme.as_str(), scheme)?;
        let setup = plan.sized(setup);
        workload.load(&setup.open(workload.schema())?)?;
        Ok(setup)
    };
    SCHEMES.into_iter().map(make).collect()
}

/// Directories of a measurement, which end with it.
pub(crate) struct Dirs {
    pub(crate) pages: tempfile::TempDir,
    pub(crate) logs: tempfile::TempDir,
}

impl Dirs {
    pub(crate) fn new(plan: &Plan) -> Result<Self> {
        Ok(Self { pages: tempfile::tempdir_in(&plan.disk)?, logs: tempfile::tempdir_in(&plan.memory)? })
    }
}

/// One line of the figure.
struct Line {
    slowdown: u32,
    threads: u64,
    is_optimized: bool,
}

fn measure(plan: &Plan, workload: &dyn Workload, setups: &[Setup], line: &Line) -> Result<Vec<Scored>> {
    let open = |setup: &Setup| {
        let mut setup = setup.clone();
        setup.rig.line_ns = LINE_NS * (line.slowdown - 1);
        setup.options.early_lock_release = line.is_optimized;
        setup.options.lock_inheritance = line.is_optimized;
        let name = setup.options.scheme.as_str().to_owned();
        Ok(Contender { name, db: Box::new(setup.open(workload.schema())?) })
    };
    let contenders = setups.iter().map(open).collect::<Result<Vec<_>>>()?;
    in_turns(&contenders, workload, line.threads, plan)
}

/// The lines that are measured: in the short form those that matter most.
fn lines(plan: &Plan) -> Vec<Line> {
    let slowdowns: &[u32] = if plan.is_full { &[1, 2, 4, 8] } else { &[1, 8] };
    let threads: &[u64] = if plan.is_full { &[1, 4, 16, 32] } else { &[16] };
    let mut lines = Vec::new();
    for &slowdown in slowdowns {
        for &threads in threads {
            lines.push(Line { slowdown, threads, is_optimized: true });
        }
    }
    if !plan.is_full {
        lines.push(Line { slowdown: 1, threads: 1, is_optimized: true });
    }
    lines.push(Line { slowdown: 1, threads: plan.threads, is_optimized: false });
    lines
}

/// One workload under every scheme.
pub(crate) fn figure(plan: &Plan, workload: &dyn Workload, name: &'static str, title: &str) -> Result<Table> {
    let mut columns = vec!["slowdown", "threads", "locks"];
    columns.extend(SCHEMES.map(Scheme::as_str));
    columns.extend(["of nv-disk", "paper", "of distributed", "paper"]);
    let mut table = Table::new(name, title, &columns);
    let dirs = Dirs::new(plan)?;
    let setups = prepare(plan, workload, &dirs)?;
    let paper = PAPER.iter().find(|(of, ..)| *of == workload.name());
    for line in lines(plan) {
        let scored = measure(plan, workload, &setups, &line)?;
        let rate = |scheme: Scheme| {
            scored.iter().find(|one| one.name == scheme.as_str()).map_or(0.0, |one| one.per_second)
        };
        let mut cells = vec![
            format!("{}x", line.slowdown),
            line.threads.to_string(),
            if line.is_optimized { "OL" } else { "plain" }.to_owned(),
        ];
        cells.extend(SCHEMES.map(|scheme| number(rate(scheme))));
        let ours = rate(Scheme::FlushOnCommit);
        cells.push(times(ours, rate(Scheme::NvDisk)));
        cells.push(paper.map_or("", |(_, disk, _)| *disk).to_owned());
        cells.push(times(ours, rate(Scheme::Distributed)));
        cells.push(paper.map_or("", |(_, _, distributed)| *distributed).to_owned());
        table.row(cells);
    }
    table.note = format!(
        "Transactions per second, medians of {} rounds of {} s, all schemes in turns. Pages are on disk; the logs of `nv-disk` and `nv-disk-decentralized` are files in memory, those of the others are memory, as in the paper. A slowdown of n adds {LINE_NS} (n - 1) ns for each line of 64 bytes that is written back, or written into such a file. OL: early lock release and lock inheritance. The ratios are those of `flush-on-commit`. The paper's were taken with 16 hardware threads and more; two cores show contention and no scaling.",
        plan.rounds,
        plan.time.as_secs_f64()
    );
    Ok(table)
}

pub(crate) fn tpcb(plan: &Plan) -> Result<Table> {
    figure(plan, &plan.tpcb(), "store_figure13_tpcb", "NV-Logging figure 13 (c, d): TPC-B by scheme")
}

pub(crate) fn tatp(plan: &Plan) -> Result<Table> {
    figure(plan, &plan.tatp(), "store_figure13_tatp", "NV-Logging figure 13 (a, b): TATP by scheme")
}

pub(crate) fn tpcc(plan: &Plan) -> Result<Table> {
    figure(plan, &plan.tpcc(), "store_figure12", "NV-Logging figure 12: TPC-C by scheme")
}
