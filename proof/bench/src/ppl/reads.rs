//! Table 6: what reads cost when the newest changes are in a log.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Result, ensure};
use rusqlite::Connection;

use super::config::{Config, InPaper, Latency};
use super::prepared::Prepared;
use super::replay::{Database, run, run_reads};
use crate::nvwal::Effort;
use crate::report::{Table, number};
use crate::workload::{median, status};

/// What an engine that rolls pages forward tells of it.
const ROLLED_PAGES: &str = "pages_rolled";
const ROLL_NS: &str = "roll_forward_ns";

/// How all reads of a workload went on a new connection.
struct Reads {
    pages: f64,
    ms: f64,
    /// Pages rolled forward, and milliseconds for that.
    rolled: Option<(f64, f64)>,
}

/// Pages that a connection has read past its cache.
#[allow(unsafe_code, reason = "rusqlite has no call for the counters of a connection")]
fn pages_read(conn: &Connection) -> Result<f64> {
    let (mut current, mut highest) = (0, 0);
    // SAFETY: the connection is open as long as it is borrowed, nothing else uses it meanwhile, and both
    // results are written before this returns.
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

/// All reads on a connection with an empty cache, while another one keeps the database open.
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

/// Table 6: all reads, immediately after the whole workload.
///
/// # Errors
/// SQLite's.
pub fn table6(dir: &Path, effort: Effort) -> Result<Table> {
    let mut table = Table::new(
        "ppl_table6",
        "SQLite/PPL table 6: all reads again, right after the workload",
        &[
            "workload",
            "mode",
            "pages read",
            "ms",
            "pages rolled forward",
            "ms for that",
            "share",
            "paper: pages",
            "paper: ms",
            "paper: rolled",
            "paper: share",
        ],
    );
    let mut configs = vec![Config::wal()];
    for latency in [Latency::None, Latency::Pcm] {
        configs.push(Config::nvwal(latency));
        configs.extend(Config::ppl(latency));
    }
    for prepared in Prepared::all(dir)? {
        if prepared.workload.paper.reads.is_none() {
            continue;
        }
        for config in &configs {
            let database = Database::new(dir, &prepared.template, config)?;
            let writer = database.open()?;
            run(&writer, &prepared.workload)?;
            let rounds: Vec<Reads> =
                (0..effort.rounds).map(|_| read_once(&database, &prepared, config)).collect::<Result<_>>()?;
            table.row(row(&prepared, config, &rounds));
        }
    }
    table.note = format!(
        "Medians of {} rounds, each on a new connection, so that nothing is in SQLite's cache; the one that ran the \
         workload stays open, so that nothing is checkpointed. Rolling forward is what an engine counts that \
         applies logs of pages as it reads them; the others have none. AndroBench reads nothing. The paper's traces \
         ask for fewer pages (their reads find most in the cache), from flash; here every read goes \
         to the operating system's cache or to the log.",
        effort.rounds
    );
    Ok(table)
}

fn row(prepared: &Prepared, config: &Config, rounds: &[Reads]) -> Vec<String> {
    let middle = |figure: &dyn Fn(&Reads) -> f64| median(rounds.iter().map(figure).collect());
    let none = || "-".to_owned();
    let ms = middle(&|reads| reads.ms);
    let rolled: Option<Vec<(f64, f64)>> = rounds.iter().map(|reads| reads.rolled).collect();
    let rolled = rolled.map(|all| {
        let (pages, times): (Vec<f64>, Vec<f64>) = all.into_iter().unzip();
        (median(pages), median(times))
    });
    let paper = prepared.workload.paper.reads.filter(|_| config.in_paper == InPaper::Ppl);
    vec![
        prepared.name(),
        config.name.clone(),
        format!("{:.0}", middle(&|reads| reads.pages)),
        number(ms),
        rolled.map_or_else(none, |(pages, _)| format!("{pages:.0}")),
        rolled.map_or_else(none, |(_, time)| number(time)),
        rolled.map_or_else(none, |(_, time)| format!("{:.1}%", 100.0 * time / ms)),
        paper.map_or_else(none, |paper| paper.pages.to_string()),
        paper.map_or_else(none, |paper| number(paper.elapsed_ms)),
        paper.map_or_else(none, |paper| paper.rolled.to_string()),
        paper.map_or_else(none, |paper| format!("{:.1}%", 100.0 * paper.roll_ms / paper.elapsed_ms)),
    ]
}
