//! Table 6: the cost of reads while the newest changes are in a log.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Result, ensure};
use rusqlite::Connection;

use super::config::{Config, InPaper, Latency};
use super::paper;
use super::prepared::Prepared;
use super::replay::{Database, run, run_reads};
use crate::nvwal::Effort;
use crate::report::{Table, number};
use crate::workload::{median, status};

/// The name in `PRAGMA duralite` of the number of pages that the engine has rolled forward. The next constant
/// is the name of the time in nanoseconds that this took.
const ROLLED_PAGES: &str = "pages_rolled";
const ROLL_NS: &str = "roll_forward_ns";

/// The result of all reads of a workload on a new connection.
struct Reads {
    pages: f64,
    ms: f64,
    /// The number of pages rolled forward, and the milliseconds that this took.
    rolled: Option<(f64, f64)>,
}

/// Returns the number of pages that a connection has read because its cache did not hold them.
#[allow(unsafe_code, reason = "rusqlite has no call for the counters of a connection")]
fn pages_read(conn: &Connection) -> Result<f64> {
    let (mut current, mut highest) = (0, 0);
    // SAFETY: the connection stays open while it is borrowed, and nothing else uses it during the call. The
    // call writes both results before it returns.
    let code = unsafe {
        rusqlite::ffi::sqlite3_db_status(
            conn.handle(),
            rusqlite::ffi::SQLITE_DBSTATUS_CACHE_MISS,
            &raw mut current,
            &raw mut highest,
            0,
        )
    };
    ensure!(code == rusqlite::ffi::SQLITE_OK, "SQLite does not count pages: {code}");
    Ok(f64::from(current))
}

fn counters(conn: &Connection, config: &Config) -> Result<HashMap<String, String>> {
    if config.is_duralite() { status(conn) } else { Ok(HashMap::new()) }
}

/// Runs all reads of a workload on a new connection, whose cache is empty. Another connection keeps the
/// database open.
fn read_once(database: &Database, prepared: &Prepared, config: &Config) -> Result<Reads> {
    let conn = database.open()?;
    let (before, pages) = (counters(&conn, config)?, pages_read(&conn)?);
    let elapsed = run_reads(&conn, &prepared.workload)?;
    let (after, pages) = (counters(&conn, config)?, pages_read(&conn)? - pages);
    let grown = |name: &str| {
        let value = |of: &HashMap<String, String>| of.get(name).and_then(|text| text.parse::<f64>().ok());
        Some(value(&after)? - value(&before)?)
    };
    let rolled = grown(ROLLED_PAGES).zip(grown(ROLL_NS).map(|ns| ns / 1e6));
    Ok(Reads { pages, ms: elapsed.as_secs_f64() * 1e3, rolled })
}

/// The columns that all configurations have. Engines that roll pages forward have further columns.
const COLUMNS: [&str; 5] = ["workload", "mode", "pages read", "paper: pages read", "ms"];
const ROLLING_COLUMNS: [&str; 6] =
    ["pages rolled forward", "ms for that", "share", "paper: rolled forward", "paper: ms", "paper: share"];

/// Measures table 6: all reads of a workload, immediately after the whole workload.
///
/// # Errors
/// An error of SQLite.
pub fn table6(dir: &Path, effort: Effort) -> Result<Table> {
    let mut configs = vec![Config::wal()];
    for latency in [Latency::None, Latency::Pcm] {
        configs.push(Config::nvwal(latency));
        configs.extend(Config::ppl(latency));
    }
    let rolling = configs.iter().any(|config| config.in_paper == InPaper::Ppl);
    let mut columns = COLUMNS.to_vec();
    columns.extend(ROLLING_COLUMNS.iter().filter(|_| rolling));
    let title = "SQLite/PPL table 6: all reads again, right after the workload";
    let mut table = Table::new("ppl_table6", title, &columns);
    for prepared in Prepared::all(dir)? {
        let Some(paper) = prepared.workload.paper.reads else { continue };
        for config in &configs {
            let database = Database::new(dir, &prepared.template, config)?;
            let writer = database.open()?;
            run(&writer, &prepared.workload)?;
            let rounds: Vec<Reads> =
                (0..effort.rounds).map(|_| read_once(&database, &prepared, config)).collect::<Result<_>>()?;
            let middle =
                |figure: &dyn Fn(&Reads) -> f64| median(rounds.iter().map(figure).collect::<Vec<_>>());
            let pages = format!("{:.0}", middle(&|reads| reads.pages));
            let ms = middle(&|reads| reads.ms);
            let mut cells =
                vec![prepared.name(), config.name.clone(), pages, paper.pages.to_string(), number(ms)];
            if rolling {
                cells.extend(rolled_cells(&rounds, ms, (config.in_paper == InPaper::Ppl).then_some(&paper)));
            }
            table.row(cells);
        }
    }
    table.note = note(effort, rolling);
    Ok(table)
}

fn rolled_cells(rounds: &[Reads], ms: f64, paper: Option<&paper::Reads>) -> [String; 6] {
    let none = || "-".to_owned();
    let share = |part: f64, whole: f64| format!("{:.1}%", 100.0 * part / whole);
    let rolled: Option<Vec<(f64, f64)>> = rounds.iter().map(|reads| reads.rolled).collect();
    let rolled = rolled.map(|all| {
        let (pages, times): (Vec<f64>, Vec<f64>) = all.into_iter().unzip();
        (median(pages), median(times))
    });
    [
        rolled.map_or_else(none, |(pages, _)| format!("{pages:.0}")),
        rolled.map_or_else(none, |(_, time)| number(time)),
        rolled.map_or_else(none, |(_, time)| share(time, ms)),
        paper.map_or_else(none, |paper| paper.rolled.to_string()),
        paper.map_or_else(none, |paper| number(paper.elapsed_ms)),
        paper.map_or_else(none, |paper| share(paper.roll_ms, paper.elapsed_ms)),
    ]
}

fn note(effort: Effort, rolling: bool) -> String {
    let rolling = if rolling {
        "An engine rolls a page forward if it applies the page's log when it reads the page. The paper's \
         pages come from flash, these from the operating system's cache, and no read is slowed, so rolling \
         forward could take a larger share of the time here."
    } else {
        ""
    };
    format!(
        "Medians of {} rounds, each on a new connection, so that SQLite's cache is empty. The connection \
         that ran the workload stays open, so that nothing is checkpointed. AndroBench reads nothing. The \
         workloads were not made to match the paper's counts of pages, but come near them, because each page \
         is read only once, and stays in SQLite's cache after that.{rolling}",
        effort.rounds
    )
}
