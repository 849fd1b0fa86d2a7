//! Measures many writers. For each workload, it compares each value of the setting `concurrent` with stock
//! SQLite, which allows one writer at a time.
//!
//! Each run uses a fresh database, and the benchmark checks the result. In each round, all modes of a row run
//! once, one after the other.

mod client;
mod drive;
mod mode;
#[cfg(test)]
mod tests;
#[cfg(feature = "turso")]
mod turso;
mod works;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::nvwal::Effort;
use crate::report::{Table, number};
use crate::workload::median;
use drive::{Job, Outcome};
use mode::{Mode, STOCK};
use works::{Place, Work};

pub use drive::{WORKER, writer};

/// A measurement has at most this many rounds.
const ROUNDS: usize = 3;
/// The numbers of writers for a series with many points. The next constant has the numbers for a short
/// series.
const EVERY: [usize; 6] = [1, 2, 4, 8, 16, 32];
const SOME: [usize; 3] = [1, 8, 32];
/// The columns after those that describe the case.
const FIGURES: [&str; 9] = [
    "mode",
    "commits/s",
    "of stock",
    "of off",
    "p50 ms",
    "p99 ms",
    "SQLITE_BUSY / commit",
    "517 / commit",
    "CPU s / 1,000 commits",
];

/// A case. It has the label of its row, and the work of its writers.
struct Case {
    what: String,
    work: Work,
    hold_ms: u64,
    writers: usize,
}

/// Returns one case for each combination of a number of writers and a time for which transactions are held
/// open.
fn cases(what: &str, work: Work, holds: &[u64], writers: &[usize]) -> Vec<Case> {
    let each = |&hold_ms: &u64| {
        writers.iter().map(move |&writers| Case { what: what.to_owned(), work, hold_ms, writers })
    };
    holds.iter().flat_map(each).collect()
}

/// The runs of one mode, and the runs with which they are compared: stock SQLite, and the same engine with
/// one writer at a time. All are from the same rounds.
struct Figures<'a> {
    own: &'a [Outcome],
    stock: &'a [Outcome],
    off: Option<&'a [Outcome]>,
}

impl Figures<'_> {
    fn cells(&self) -> [String; 8] {
        let middle = |figure: fn(&Outcome) -> f64| median(self.own.iter().map(figure).collect::<Vec<_>>());
        let of = |reference: &[Outcome]| {
            let each = self.own.iter().zip(reference).map(|(own, its)| own.per_second / its.per_second);
            format!("{:.2}x", median(each.collect::<Vec<_>>()))
        };
        [
            number(middle(|run| run.per_second)),
            of(self.stock),
            self.off.map_or_else(|| "-".to_owned(), of),
            format!("{:.3}", middle(|run| run.p50_ms)),
            format!("{:.3}", middle(|run| run.p99_ms)),
            format!("{:.3}", middle(|run| run.busy)),
            format!("{:.3}", middle(|run| run.overtaken)),
            format!("{:.3}", middle(|run| run.cpu)),
        ]
    }
}

/// A table to measure.
struct Measurement {
    name: &'static str,
    title: &'static str,
    /// The heading of [`Case::what`].
    what: &'static str,
    note: &'static str,
    /// Whether to use the modes in which transactions begin with a plain BEGIN, which takes no lock. One of
    /// these modes is on stock SQLite.
    begins_plain: bool,
    cases: Vec<Case>,
}

impl Measurement {
    fn take(self, dir: &Path, effort: Effort) -> Result<Table> {
        let own = tempfile::tempdir_in(dir)?;
        let modes = mode::all(self.begins_plain, effort.processes);
        let mut columns = vec![self.what, "held open ms", "writers"];
        columns.extend(FIGURES);
        let mut table = Table::new(self.name, self.title, &columns);
        let rounds = effort.rounds.min(ROUNDS);
        for case in &self.cases {
            let runs = measure(own.path(), case, &modes, rounds, effort)?;
            let of = |wanted: Mode| {
                modes.iter().position(|mode| *mode == wanted).map(|place| runs[place].as_slice())
            };
            let stock = of(STOCK).context("stock SQLite was not measured")?;
            for (mode, own) in modes.iter().zip(&runs) {
                let off = of(mode.switched_off()).filter(|_| mode.concurrency().is_some());
                let first =
                    [case.what.clone(), case.hold_ms.to_string(), case.writers.to_string(), mode.name()];
                table.row(first.into_iter().chain(Figures { own, stock, off }.cells()));
            }
        }
        let writers = if effort.processes { "processes" } else { "threads" };
        table.note = format!(
            "{}{} Writers are {writers} with a connection each, `synchronous=FULL`, busy timeout 20 s. {} s for each run, on \
             a fresh database whose sums, counts and structure are checked afterwards; medians of {rounds} rounds, the modes \
             by turns; ratios are between runs of the same round. `upgrade` and `on` begin with BEGIN. A transaction that \
             loses to another is run again as the packages do it (a short random pause; BEGIN IMMEDIATE after five \
             conflicts), and its latency goes from its first BEGIN to the COMMIT that succeeded.",
            self.note,
            if mode::is_branch() {
                " SQLite is its branch begin-concurrent in all rows but Turso's."
            } else {
                ""
            },
            number(effort.time.as_secs_f64()),
        );
        Ok(table)
    }
}

/// Runs a case: for each mode, one run in each round. Each round begins with a different mode.
fn measure(
    dir: &Path,
    case: &Case,
    modes: &[Mode],
    rounds: usize,
    effort: Effort,
) -> Result<Vec<Vec<Outcome>>> {
    let mut runs: Vec<Vec<Outcome>> = modes.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for turn in 0..modes.len() {
            let place = (round + turn) % modes.len();
            let (mode, hold) = (modes[place], Duration::from_millis(case.hold_ms));
            let job = Job { work: case.work, mode, hold, writers: case.writers, time: effort.time };
            let failed = || format!("{} with {} writers, {}", case.what, case.writers, mode.name());
            runs[place].push(drive::run(dir, &job, effort.processes).with_context(failed)?);
        }
    }
    Ok(runs)
}

/// Measures writers that each update their own rows.
///
/// # Errors
/// An error of SQLite, or a database that does not hold what was committed. The other measurements have the
/// same errors.
pub fn rows(dir: &Path, effort: Effort) -> Result<Table> {
    let work = Work::Own { reads: 0, updates: 1 };
    Measurement {
        name: "writers_rows",
        title: "Many writers: each updates rows of its own",
        what: "what",
        note: "One update per transaction, of a random row of 2,000; no two writers share a leaf. Wanted: at least 7x stock \
               with 8 writers and 5 ms.",
        begins_plain: false,
        cases: cases("update", work, &[0, 1, 5], &EVERY),
    }
    .take(dir, effort)
}

/// Measures inserts of random keys, and inserts at the right edge of a table.
///
/// # Errors
/// The errors of [`rows`].
pub fn inserts(dir: &Path, effort: Effort) -> Result<Table> {
    let edge = |autoincrement| Work::Append { autoincrement };
    let keys = |rows| Work::Keys { rows };
    let mut all = cases("random keys", keys(20_000), &[0, 1], &EVERY);
    all.extend(cases("random keys, a larger table", keys(50_000), &[0, 1], &SOME));
    all.extend(cases("right edge, rowid", edge(false), &[0, 1], &SOME));
    all.extend(cases("right edge, AUTOINCREMENT", edge(true), &[0, 1], &SOME));
    Measurement {
        name: "writers_inserts",
        title: "Many writers: inserts of random keys, and at the right edge",
        what: "keys",
        note: "One row of 100 bytes per transaction; random keys go into a table of 20,000 rows, and of 50,000. Wanted: \
               random keys at 1 ms at least 6x stock; the right edge at least 1.0x.",
        begins_plain: false,
        cases: all,
    }
    .take(dir, effort)
}

/// Measures transactions that keep a processor busy.
///
/// # Errors
/// The errors of [`rows`].
pub fn work(dir: &Path, effort: Effort) -> Result<Table> {
    let own = |reads, updates| Work::Own { reads, updates };
    let mut all = cases("200 updates", own(0, 200), &[0], &[1, 2]);
    all.extend(cases("2,000 reads, 20 updates", own(2000, 20), &[0], &[1, 2]));
    Measurement {
        name: "writers_work",
        title: "Many writers: transactions that keep a processor busy",
        what: "transaction",
        note: "Random rows of the writer's own 2,000. Wanted: at least 1.6x stock with 2 writers.",
        begins_plain: false,
        cases: all,
    }
    .take(dir, effort)
}

/// Measures how fast a single connection is in each mode.
///
/// # Errors
/// The errors of [`rows`].
pub fn alone(dir: &Path, effort: Effort) -> Result<Table> {
    let own = |reads, updates| Work::Own { reads, updates };
    let mut all = cases("1 update", own(0, 1), &[0], &[1]);
    all.extend(cases("200 reads, 1 update", own(200, 1), &[0], &[1]));
    all.extend(cases("1 insert", Work::Append { autoincrement: false }, &[0], &[1]));
    Measurement {
        name: "writers_alone",
        title: "Many writers: what the setting costs one connection",
        what: "transaction",
        note: "The only writer. Wanted: at least 0.9x off.",
        begins_plain: false,
        cases: all,
    }
    .take(dir, effort)
}

/// Measures a queue and a web application.
///
/// # Errors
/// The errors of [`rows`].
pub fn programs(dir: &Path, effort: Effort) -> Result<Table> {
    let mut all = cases("queue", Work::Queue, &[0, 1], &SOME);
    all.extend(cases("web application", Work::Web, &[0, 1], &SOME));
    Measurement {
        name: "writers_programs",
        title: "Many writers: a queue and a web application",
        what: "program",
        note: "Queue: each writer puts a task in and takes the first one, by turns. Web application: of ten transactions, six \
               read and update one of 10,000 sessions, three also insert an event, with an index, and one counts in one of \
               16 rows.",
        begins_plain: false,
        cases: all,
    }
    .take(dir, effort)
}

/// Measures orders as in TPC-C.
///
/// # Errors
/// The errors of [`rows`].
pub fn orders(dir: &Path, effort: Effort) -> Result<Table> {
    let mut all = Vec::new();
    for spread in [false, true] {
        let rows = if spread { "a leaf each" } else { "dense" };
        for warehouses in [1, 2, 4, 8] {
            let work = Work::Orders { warehouses, spread };
            all.extend(cases(&format!("{warehouses}, {rows}"), work, &[0, 1], &[8]));
        }
    }
    all.extend(cases("8, a leaf each", Work::Orders { warehouses: 8, spread: true }, &[1], &[1, 32]));
    Measurement {
        name: "writers_orders",
        title: "Many writers: orders as in TPC-C",
        what: "warehouses and their rows",
        note: "A smaller schema: of 23 transactions, eleven are new orders of 5 to 15 lines, eleven payments, one a stock \
               level; each writer has a home warehouse with 10 districts, 1,000 customers and 1,000 items. Dense: the rows of \
               warehouses and districts lie together, about 35 in a page. A leaf each: they are as long as a page.",
        begins_plain: false,
        cases: all,
    }
    .take(dir, effort)
}

/// Measures transactions that first read and then write.
///
/// # Errors
/// The errors of [`rows`].
pub fn turns(dir: &Path, effort: Effort) -> Result<Table> {
    let places = [
        ("a leaf for each row", Place::OwnLeaf),
        ("all rows on one leaf", Place::SharedLeaf),
        ("a table that grows", Place::Growing),
    ];
    let each = |(what, place)| cases(what, Work::Turns(place), &[0, 1], &[16]);
    Measurement {
        name: "writers_turns",
        title: "Many writers: SELECT, then UPDATE",
        what: "rows",
        note: "Each writer reads a row of its own and updates it, or, where the table grows, reads its last row and inserts \
               the next one; in between the transaction is held open. Wanted: with `upgrade` and a leaf for each row, no error.",
        begins_plain: true,
        cases: places.into_iter().flat_map(each).collect(),
    }
    .take(dir, effort)
}
