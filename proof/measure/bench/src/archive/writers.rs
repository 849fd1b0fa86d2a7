//! Measures how much a replicating program slows 16 writers down, how far it lags, and what it uploads.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::programs::{self, Programs, Server};
use super::run::{self, Job, Run, middle};
use super::scale::{load_before, of_others, rounds};
use super::side::Side;
use crate::nvwal::Effort;
use crate::report::{Table, number};
use crate::workload::median;

/// The number of connections in every run with writers.
const WRITERS: usize = 16;
/// The commits per second of the runs at a fixed pace, which measure the lag.
const PACE: f64 = 1000.0;
/// A run at full rate lasts this many times as long as `--seconds` says, so that it shows whether the lag grows. The
/// next constant is the factor for runs at a fixed pace. Runs without a replicating program use the first factor too.
/// Commits take longer in a larger database, so only runs of the same length can be compared.
const FULL: u32 = 30;
const PACED: u32 = 10;

/// The runs of one side.
#[derive(Default)]
struct Runs {
    alone: Vec<f64>,
    full: Vec<Run>,
    paced: Vec<Run>,
}

/// Measures how much a replicating program slows 16 writers down, how far it lags, and what it uploads.
///
/// # Errors
/// An error of SQLite or of starting a program, or a program that does not do its work.
pub fn writers(dir: &Path, effort: Effort) -> Result<Vec<Table>> {
    let Some(programs) = Programs::find()? else { return Ok(Vec::new()) };
    let load = load_before()?;
    let dir = tempfile::tempdir_in(dir)?;
    let server = Server::start(&programs, dir.path())?;
    let sides = Side::all(&programs);
    let mut runs: Vec<Runs> = sides.iter().map(|_| Runs::default()).collect();
    for round in 0..rounds(effort) {
        for turn in 0..sides.len() {
            // The side that begins changes from round to round.
            let place = (round + turn) % sides.len();
            let (side, runs) = (sides[place], &mut runs[place]);
            let job =
                |rate, times| Job { connections: WRITERS, rate, time: effort.time * times, settings: "" };
            let beside = |name: &str, job: &Job<'_>| {
                let prefix = format!("{name}-{place}-{round}");
                let run =
                    run::replicated((&programs, &server, dir.path()), side, &prefix, Duration::ZERO, job);
                run.with_context(|| format!("{}: {name}", side.name()))
            };
            runs.alone.push(run::alone(dir.path(), side, &job(None, FULL))?);
            runs.full.push(beside("full", &job(None, FULL))?);
            runs.paced.push(beside("paced", &job(Some(PACE), PACED))?);
        }
    }
    let by_side: Vec<(Side, Runs)> = sides.iter().copied().zip(runs).collect();
    let note = format!(
        "One 100-byte row per transaction, at the right edge of a table, from {WRITERS} threads; `synchronous=FULL`; \
         `waldio` and `duralite replicate` with its default interval of 500 ms, stock SQLite in WAL mode and {} \
         with its defaults; an S3 server (versitygw) on loopback with its files on the same disk. Medians of {} \
         rounds, in turns. {}",
        programs.litestream_version,
        rounds(effort),
        of_others(load)
    );
    let mut tables = vec![costs(&by_side, effort, &note), lags(&by_side, effort, &note)];
    // This picture compares the two sides.
    if by_side.len() > 1 {
        tables.push(seconds(&by_side, &note));
    }
    tables.push(uploads(&by_side, &note));
    Ok(tables)
}

fn costs(sides: &[(Side, Runs)], effort: Effort, note: &str) -> Table {
    let columns = [
        "beside the writers",
        "commits/s",
        "without it",
        "of that",
        "wanted",
        "CPU s of it / 1,000 commits",
        "SQLITE_BUSY",
    ];
    let mut table = Table::new("archive_writers", "Archive: what it costs 16 writers", &columns);
    for (side, runs) in sides {
        let (with, without) = (middle(&runs.full, |run| run.per_second), median(&runs.alone));
        let each = runs.full.iter().zip(&runs.alone).map(|(run, alone)| run.per_second / alone);
        table.row([
            side.name().to_owned(),
            number(with),
            number(without),
            format!("{:.2}x", median(each.collect::<Vec<_>>())),
            if *side == Side::Duralite { "at least 0.9x" } else { "-" }.to_owned(),
            format!("{:.3}", middle(&runs.full, |run| run.per_thousand(run.cpu_seconds))),
            number(middle(&runs.full, |run| run.busy)),
        ]);
    }
    table.note = format!(
        "{} s with it, and as long without it. Its CPU time is all that it used until everything could be restored, with that of \
         processes that it started. The server's is not in it, and takes its share of the processors too. SQLITE_BUSY: how often \
         a commit failed after the busy timeout of 20 s, and was tried again. {note}",
        number((effort.time * FULL).as_secs_f64()),
    );
    table
}

fn lags(sides: &[(Side, Runs)], effort: Effort, note: &str) -> Table {
    let columns = [
        "program",
        "rate",
        "commits/s",
        "lag p50 ms",
        "p99 ms",
        "first third, p50 ms",
        "last third, p50 ms",
        "never restorable",
        "wanted",
    ];
    let mut table = Table::new("archive_lag", "Archive: lag behind 16 writers", &columns);
    for (side, runs) in sides {
        for (rate, runs) in [("1,000/s", &runs.paced), ("full", &runs.full)] {
            let of = |figure: fn(&run::Lags) -> f64| number(middle(runs, |run| figure(&run.lags)));
            table.row([
                side.name().to_owned(),
                rate.to_owned(),
                number(middle(runs, |run| run.per_second)),
                of(|lags| lags.p50_ms),
                of(|lags| lags.p99_ms),
                of(|lags| lags.first_ms),
                of(|lags| lags.last_ms),
                of(|lags| lags.unreached as f64),
                match (side, rate) {
                    (Side::Litestream, _) => "-",
                    (_, "full") => "does not grow",
                    _ => "below 1 s",
                }
                .to_owned(),
            ]);
        }
    }
    table.note = format!(
        "The lag of a commit: from its return until an object that has its row, and all objects before that one, are in the \
         server's directory, which is looked through each 10 ms. The objects are decoded afterwards, so what is measured is \
         what can be restored. Commits that are in no object {} s after the last one count with the time until then. {} s at \
         1,000/s, {} s at full rate. {note}",
        programs::PATIENCE.as_secs(),
        number((effort.time * PACED).as_secs_f64()),
        number((effort.time * FULL).as_secs_f64()),
    );
    table
}

/// Makes the table that shows how the lag develops at full rate.
fn seconds(sides: &[(Side, Runs)], note: &str) -> Table {
    let columns: Vec<&str> =
        std::iter::once("second").chain(sides.iter().map(|(side, _)| side.name())).collect();
    let mut table =
        Table::new("archive_lag_seconds", "Archive: lag at full rate, second by second (p50 ms)", &columns);
    let of = |runs: &Runs, second: usize| {
        let each = runs.full.iter().filter_map(|run| run.lags.seconds.get(second).copied());
        median(each.collect::<Vec<_>>())
    };
    let longest = sides.iter().flat_map(|(_, runs)| &runs.full).map(|run| run.lags.seconds.len()).max();
    for second in 0..longest.unwrap_or(0) {
        let cells: Vec<f64> = sides.iter().map(|(_, runs)| of(runs, second)).collect();
        // In the last second, one of the sides may have no commits.
        if cells.iter().all(|cell| cell.is_finite()) {
            table.row(std::iter::once((second + 1).to_string()).chain(cells.into_iter().map(number)));
        }
    }
    table.note = format!("The medians of the commits that returned in that second. {note}");
    table
}

fn uploads(sides: &[(Side, Runs)], note: &str) -> Table {
    let columns = [
        "program",
        "rate",
        "commits/s",
        "bytes uploaded / commit",
        "uploads / 1,000 commits",
        "other requests / 1,000",
    ];
    let mut table = Table::new("archive_uploads", "Archive: what is uploaded", &columns);
    let mut rows: Vec<(String, String, &[Run])> = Vec::new();
    for (side, runs) in sides {
        rows.push((side.name().to_owned(), "1,000/s".to_owned(), &runs.paced));
        rows.push((side.name().to_owned(), "full".to_owned(), &runs.full));
    }
    for (who, rate, runs) in rows {
        table.row([
            who,
            rate,
            number(middle(runs, |run| run.per_second)),
            number(middle(runs, |run| run.traffic.uploaded as f64 / run.commits)),
            number(middle(runs, |run| run.per_thousand(run.traffic.uploads as f64))),
            number(middle(runs, |run| run.per_thousand(run.traffic.others as f64))),
        ]);
    }
    table.note = format!(
        "As the server's proxy counts: PUT and POST requests and their bodies, with compaction, without the first snapshot; \
         other requests are looks, lists, reads of what is compacted, and deletes. {note}"
    );
    table
}
