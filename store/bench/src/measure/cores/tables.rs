//! Makes the tables of measured and modelled results.

use duralite_bench::report::{Table, number};
use duralite_bench::workload::median;
use duralite_store::Scheme;

use super::inputs::Added;
use super::pieces::Parts;
use super::sheet::{COMMITS, CORES, Row, Sheet};
use crate::measure::plan::times;
use crate::measure::schemes::SCHEMES;
use crate::model::schemes::{Outcome, is_file};

fn added(added: Added) -> String {
    match added.call_ns {
        0 => format!("{} ns", added.line_ns),
        call => format!("{} us a call", call / 1000),
    }
}

/// Formats a time in picoseconds as nanoseconds.
fn shown(time: u64) -> String {
    number(time as f64 / 1000.0)
}

fn all(sheets: &[Sheet]) -> impl Iterator<Item = (&Sheet, &Row)> {
    sheets.iter().flat_map(|sheet| sheet.rows.iter().map(move |row| (sheet, row)))
}

fn name(sheet: &Sheet, row: &Row) -> [String; 3] {
    [sheet.workload.to_owned(), added(row.added), row.scheme.as_str().to_owned()]
}

pub(super) fn inputs(sheets: &[Sheet], parts: &Parts) -> Table {
    let columns = [
        "workload",
        "added",
        "scheme",
        "processor ns per transaction",
        "and in the background",
        "objects",
        "bytes of an object",
        "uses of pages",
        "page latched by a change, ns",
        "central buffer, ns per object",
        "write or flush: once, ns",
        "per object, ns",
    ];
    let title = "The schemes on more cores: what goes into the model";
    let mut table = Table::new("store_cores_inputs", title, &columns);
    for (sheet, row) in all(sheets) {
        let costs = &row.model.costs;
        let blocks = costs.object_bytes * (costs.write_byte + costs.added_byte);
        let is_file = is_file(row.scheme);
        let mut cells = name(sheet, row).to_vec();
        cells.extend([
            number(row.alone.cpu),
            number(row.alone.background),
            number(row.alone.objects),
            number(costs.object_bytes),
            number(row.alone.pages),
            number(row.pieces.change),
            if costs.central > 0 { shown(costs.central) } else { String::new() },
            if is_file { shown(costs.write + costs.added_call) } else { shown(costs.force) },
            if is_file { number(blocks) } else { shown(costs.force_object) },
        ]);
        table.row(cells);
    }
    let contention: Vec<String> = sheets
        .iter()
        .map(|sheet| {
            let it = sheet.contention;
            format!(
                "{}: {:.2} times as long beside another store; in the same store {:.2} of the time is added, besides the modelled cache lines, which cost {:.2} of what the model charges",
                sheet.workload, it.beside, it.sharing, it.lines
            )
        })
        .collect();
    table.note = format!(
        "Measured in this run. Processor times are those of a single thread, and of the store's background threads. The times of the log's parts are from transactions of one thread, whose changes and commits were timed one by one. The added delay applies to each line of 64 bytes, or to each call of a file (5 us in the paper). The machine, in ns: a mutex {:.0}; waking a thread {:.0} of processor time, and {:.0} more until an idle core runs it; an atomic increment {:.1} alone, and {:.1} while another core increments too; moving a cache line from one core to another {:.0}. With two threads, {}.",
        parts.mutex,
        parts.switch,
        parts.idle_wake,
        parts.alone,
        parts.contended,
        parts.transfer,
        contention.join("; ")
    );
    table
}

pub(super) fn checked(sheets: &[Sheet]) -> Table {
    let columns = [
        "workload",
        "added",
        "scheme",
        "threads",
        "measured",
        "modelled",
        "error",
        "processor ns: measured",
        "modelled",
        "error",
        "group: measured",
        "modelled",
        "lock waits: measured",
        "modelled",
        "cores that others used",
    ];
    let title = "The schemes on more cores: the model beside this machine's 2 cores";
    let mut table = Table::new("store_cores_check", title, &columns);
    let (mut errors, mut of_cpu, mut foreign) = (Vec::new(), Vec::new(), Vec::new());
    for (sheet, row) in all(sheets) {
        for (threads, cost, outcome) in &row.checked {
            let is_file = is_file(row.scheme);
            let error = outcome.per_second / cost.per_second - 1.0;
            let cpu = cost.cpu + cost.background;
            let cpu_error = outcome.cpu_ns / cpu - 1.0;
            errors.push(error.abs());
            of_cpu.push(cpu_error.abs());
            foreign.push(cost.foreign);
            let mut cells = name(sheet, row).to_vec();
            cells.extend([
                threads.to_string(),
                number(cost.per_second),
                number(outcome.per_second),
                percent(error),
                number(cpu),
                number(outcome.cpu_ns),
                percent(cpu_error),
                if is_file { number(sheet.changing / cost.writes) } else { String::new() },
                if is_file { number(outcome.group) } else { String::new() },
                number(cost.lock_waits),
                number(outcome.lock_waits),
                format!("{:.2}", cost.foreign),
            ]);
            table.row(cells);
        }
    }
    errors.sort_by(f64::total_cmp);
    let within = |limit: f64| errors.iter().filter(|error| **error <= limit).count();
    table.note = format!(
        "Transactions per second. {} of {} rows are within 15%, {} within 20%; the median error is {:.0}%, the largest {:.0}%. The measured rates are medians, and the measured processor times are minima. Other processes used {:.2} cores on average; in rows where they did, only processor times can be compared. In {} of {} rows, the modelled processor time is within 20% of the measured one.",
        within(0.15),
        errors.len(),
        within(0.20),
        median(&errors) * 100.0,
        errors.last().unwrap_or(&0.0) * 100.0,
        foreign.iter().sum::<f64>() / foreign.len().max(1) as f64,
        of_cpu.iter().filter(|error| **error <= 0.20).count(),
        of_cpu.len()
    );
    table
}

fn percent(share: f64) -> String {
    format!("{:+.0}%", share * 100.0)
}

/// Returns the two busiest stations of the model (such as the cores, or a mutex), and how busy they are.
fn busiest(outcome: &Outcome) -> String {
    let busiest: Vec<String> =
        outcome.busy.iter().take(2).map(|(name, share)| format!("{name} {:.0}%", share * 100.0)).collect();
    busiest.join(", ")
}

pub(super) fn modelled(sheets: &[Sheet]) -> Table {
    let mut columns: Vec<String> = ["workload", "added", "scheme"].map(str::to_owned).into();
    columns
        .extend(CORES.map(|cores| if cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") }));
    columns.extend(["busiest with 16 cores", "cores that clean then"].map(str::to_owned));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let title = "The schemes modelled for 1 to 32 cores: transactions per second";
    let mut table = Table::new("store_cores", title, &columns);
    for (sheet, row) in all(sheets) {
        let mut cells = name(sheet, row).to_vec();
        cells.extend(row.modelled.iter().map(|outcome| number(outcome.per_second)));
        cells.push(busiest(&row.modelled[4]));
        cells.push(format!("{:.2}", row.modelled[4].cleaning));
        table.row(cells);
    }
    table.note = format!(
        "Simulated with the costs above, not measured. There are 16 threads, or as many as cores if there are more. They commit recorded transactions (with their rows, their pages, and how long each operation took): {COMMITS} of them with a fixed seed. {ASSUMED} {}",
        bottlenecks(sheets)
    );
    table
}

/// The assumptions of the model, as a note below the table.
const ASSUMED: &str = "Assumptions: Each further core behaves like the two of this machine when both work. A time slice of 3 ms may end at any point. A thread that loses its core while it holds a mutex keeps the mutex, and others wait. A thread that wants a mutex spins for 1.5 us if no other thread is ready, and then sleeps. The cache line of the next object number (3 uses per object) goes from core to core, and each move takes as long as between two cores, but no more than was measured. The remaining cost of sharing a store was measured with two threads. With n cores, the model charges (n - 1) / n of twice that cost, because that is how often a core finds a line elsewhere within one socket. Only threads that change a page latch it, and ranges of rows are not locked. The disk with the pages keeps up. Cleaning is divided among as many threads as necessary, although the store has only one. So rows in which more than one core cleans are too optimistic, unless pages then take more changes before they are written. The delay that is added to a line keeps the core busy, as in the paper. Beyond 2 cores, nothing here can be checked.";

/// Returns a sentence that names the busiest station for each scheme and each workload, on the largest number of cores.
fn bottlenecks(sheets: &[Sheet]) -> String {
    let of = |scheme: Scheme| {
        let rows = all(sheets).filter(|(_, row)| row.scheme == scheme && row.added.call_ns == 0);
        let rows = rows.filter(|(_, row)| matches!(row.added.line_ns, 0 | 420));
        let of_row = |(sheet, row): (&Sheet, &Row)| {
            let (station, share) = row.modelled.last().and_then(|outcome| outcome.busy.first())?;
            let added = added(row.added);
            Some(format!("{station} {:.0}% ({}, {added})", share * 100.0, sheet.workload))
        };
        format!("`{}` {}", scheme.as_str(), rows.filter_map(of_row).collect::<Vec<_>>().join(", "))
    };
    format!("Busiest with {} cores: {}.", CORES[CORES.len() - 1], SCHEMES.map(of).join("; "))
}

/// The factors by which the paper's scheme is faster than `nv-disk` and than `distributed`.
const PAPER: [(&str, [&str; 2]); 3] = [
    ("TPC-C", ["1.62x - 2.72x", "1.14x - 1.27x"]),
    ("TPC-B", ["1.26x - 1.99x", "1.15x - 1.21x"]),
    ("TATP", ["1.10x - 1.62x", "1.09x - 1.11x"]),
];

pub(super) fn ratios(sheets: &[Sheet]) -> Table {
    let mut columns: Vec<String> = ["workload", "added", "of"].map(str::to_owned).into();
    columns
        .extend(CORES.map(|cores| if cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") }));
    columns.push("paper, 16 hardware threads".to_owned());
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let title = "flush-on-commit modelled for 1 to 32 cores, of nv-disk and of distributed";
    let mut table = Table::new("store_cores_ratios", title, &columns);
    for (sheet, row) in all(sheets) {
        let Some(at) = [Scheme::NvDisk, Scheme::Distributed].iter().position(|scheme| *scheme == row.scheme)
        else {
            continue;
        };
        let is_same =
            |ours: &&Row| ours.scheme == Scheme::FlushOnCommit && ours.added.line_ns == row.added.line_ns;
        let Some(ours) = sheet.rows.iter().find(is_same) else { continue };
        let paper = PAPER.iter().find(|(workload, _)| *workload == sheet.workload);
        let mut cells = name(sheet, row).to_vec();
        cells.extend(
            ours.modelled.iter().zip(&row.modelled).map(|(ours, its)| times(ours.per_second, its.per_second)),
        );
        cells.push(paper.map_or("", |(_, paper)| paper[at]).to_owned());
        table.row(cells);
    }
    table
}
