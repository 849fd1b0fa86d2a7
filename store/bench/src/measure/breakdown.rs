//! Measures where the time goes, with samples of `perf` (figures 7 and 15 of the paper).

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use duralite_bench::report::Table;
use duralite_store::Scheme;

use super::plan::Plan;
use super::schemes::Dirs;
use crate::nv::Setup;
use crate::workload::{Workload, run};

/// Each entry is a text and a part of the store. A function belongs to the part of the first entry whose text occurs in
/// the function's name.
const PARTS: [(&str, usize); 15] = [
    ("duralite_store::log", LOG),
    ("as duralite_store::log::Log", LOG),
    ("duralite_medium::", LOG),
    ("SlowBlock", LOG),
    ("xxh3", LOG),
    ("format::object", LOG),
    ("duralite_store::locks", LOCKS),
    ("duralite_store::active", LOCKS),
    ("duralite_store::", ROWS),
    ("memcmp", ROWS),
    ("parking_lot", WAITS),
    ("Condvar", WAITS),
    ("futex", WAITS),
    ("syscall", WAITS),
    ("[k]", WAITS),
];
const LOG: usize = 0;
const LOCKS: usize = 1;
const ROWS: usize = 2;
const WAITS: usize = 3;
const REST: usize = 4;

/// Reads the output of `perf report`. Returns the percentage of the samples that each part of the store has.
fn shares(report: &str) -> [f64; 5] {
    let mut shares = [0.0; 5];
    for line in report.lines().filter(|line| !line.starts_with('#')) {
        let Some((share, name)) = line.trim().split_once('%') else { continue };
        let Ok(share) = share.parse::<f64>() else { continue };
        let part = PARTS.iter().find(|(of, _)| name.contains(of)).map_or(REST, |(_, part)| *part);
        shares[part] += share;
    }
    shares
}

/// Samples this process with `perf` for `seconds` seconds.
fn sample(data: &Path, seconds: u64) -> Result<std::process::Child> {
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-F", "499", "-o"]).arg(data).arg("-p").arg(std::process::id().to_string());
    perf.args(["--", "sleep", &seconds.to_string()]).stdout(Stdio::null()).stderr(Stdio::null());
    perf.spawn().context("perf is not installed")
}

fn profile(plan: &Plan, dirs: &Dirs, workload: &dyn Workload, scheme: Scheme) -> Result<[f64; 5]> {
    let name = format!("{}-{}", workload.name(), scheme.as_str());
    let setup = Setup::fresh(dirs.pages.path(), dirs.logs.path(), &name, scheme)?;
    let db = plan.sized(setup).open(workload.schema())?;
    workload.load(&db)?;
    let data = dirs.logs.path().join("perf.data");
    let seconds = if plan.is_full { 10 } else { 2 };
    let mut perf = sample(&data, seconds)?;
    let ran = run(&db, workload, plan.threads, Duration::from_millis(seconds * 1000 + 300));
    let status = perf.wait()?;
    ran?;
    if !status.success() {
        bail!("perf may not sample here");
    }
    let mut report = Command::new("perf");
    report.args(["report", "--no-children", "--stdio", "-g", "none", "-s", "symbol", "-i"]).arg(&data);
    let report = report.stderr(Stdio::null()).output()?;
    Ok(shares(&String::from_utf8_lossy(&report.stdout)))
}

/// Measures figures 7 and 15 of the paper: how much time each part of the store takes.
pub(crate) fn figure15(plan: &Plan) -> Result<Table> {
    let columns = [
        "workload",
        "scheme",
        "log %",
        "locks %",
        "rows and pages %",
        "waits and system %",
        "rest %",
        "paper: log",
    ];
    let title = "NV-Logging figures 7 and 15: where the time goes";
    let mut table = Table::new("store_figure15", title, &columns);
    table.note = format!(
        "Samples of `perf` with {} threads, by function. \"Log\" is the log's code, its medium, and checksums. Waits for the log, for locks and for pages are in the same functions of the system, and cannot be distinguished. \"Rest\" is allocating and copying memory, and the workload itself. The paper's column is for TPC-C: log operations, and contention for the log.",
        plan.threads
    );
    let dirs = Dirs::new(plan)?;
    let schemes = [
        (Scheme::NvDisk, "11.55 + 27.64"),
        (Scheme::FlushOnCommit, "3.2 + 5.14"),
        (Scheme::Distributed, "10.65 + as much"),
    ];
    let workloads: [&dyn Workload; 2] = [&plan.tpcc(), &plan.tpcb()];
    for workload in workloads {
        for (scheme, paper) in schemes {
            let shares = match profile(plan, &dirs, workload, scheme) {
                Ok(shares) => shares,
                Err(error) => {
                    table.note = format!("Not measured: {error:#}.");
                    return Ok(table);
                }
            };
            let mut cells = vec![workload.name().to_owned(), scheme.as_str().to_owned()];
            cells.extend(shares.map(|share| format!("{share:.1}")));
            cells.push(paper.to_owned());
            table.row(cells);
        }
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_told_apart_by_name() {
        let report = "# Overhead  Symbol\n    17.05%  [.] duralite_medium::latency::spin\n     5.0%  [k] futex_wait\n\
                      3.5%  [.] duralite_store::locks::part::Part::grant\n     2%  [.] malloc\n     1%  [.] duralite_store::tree::Tree::get\n";
        assert_eq!(shares(report), [17.05, 3.5, 1.0, 5.0, 2.0]);
    }
}
