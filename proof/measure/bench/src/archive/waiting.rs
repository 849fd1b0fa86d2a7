//! Measures commits with `replicated=on`. They return only when the archive has them.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::programs::{Programs, Server};
use super::run::{self, Job, Run, middle};
use super::scale::{load_before, of_others, rounds};
use super::side::Side;
use crate::nvwal::Effort;
use crate::report::{Table, number};
use crate::workload::median;

/// A run lasts this many times as long as `--seconds` says.
const WAITING: u32 = 4;
/// For each measurement, the number of connections that wait for the archive, and the milliseconds that the
/// proxy adds to each request.
const CROWDS: [(usize, u64); 4] = [(16, 0), (256, 0), (16, 20), (256, 20)];

/// Measures commits that wait for the archive. Compares their times with those of the two kinds of requests
/// for which a commit waits: the upload (PUT), and the request that asks whether somebody has claimed a later
/// generation.
///
/// # Errors
/// An error of SQLite or of starting a program, or a program that does not do its work.
pub fn replicated(dir: &Path, effort: Effort) -> Result<Vec<Table>> {
    let Some(programs) = Programs::find()? else { return Ok(Vec::new()) };
    let load = load_before()?;
    let dir = tempfile::tempdir_in(dir)?;
    let server = Server::start(&programs, dir.path())?;
    let mut waiting = Vec::new();
    for (connections, added) in CROWDS {
        waiting.push(commits_that_wait(&programs, &server, dir.path(), effort, connections, added)?);
    }
    Ok(vec![table(&waiting, effort, load)])
}

fn mean(figures: &[f64]) -> f64 {
    figures.iter().sum::<f64>() / figures.len() as f64
}

/// The results of connections that commit with `replicated=on`.
struct Waiting {
    connections: usize,
    added: u64,
    /// The commits per second of the same number of connections, if they wait only for the disk.
    alone: Vec<f64>,
    runs: Vec<Run>,
}

fn commits_that_wait(
    programs: &Programs,
    server: &Server,
    dir: &Path,
    effort: Effort,
    connections: usize,
    added: u64,
) -> Result<Waiting> {
    let job = Job { connections, rate: None, time: effort.time * WAITING, settings: "&replicated=on" };
    let (mut alone, mut runs) = (Vec::new(), Vec::new());
    for round in 0..rounds(effort) {
        alone.push(run::alone(dir, Side::Duralite, &Job { settings: "", ..job })?);
        let prefix = format!("waiting-{connections}-{added}-{round}");
        let added = Duration::from_millis(added);
        let run = run::replicated((programs, server, dir), Side::Duralite, &prefix, added, &job);
        runs.push(run.with_context(|| prefix.clone())?);
    }
    Ok(Waiting { connections, added, alone, runs })
}

fn table(waiting: &[Waiting], effort: Effort, load: f64) -> Table {
    let columns = [
        "connections",
        "added ms",
        "commits/s",
        "commit p50 ms",
        "p99 ms",
        "PUT ms",
        "look ms",
        "connections / (PUT + look)",
        "of that",
        "wanted",
        "commits/s without replicated",
        "of connections / (PUT + look + their commits)",
        "bytes uploaded / commit",
        "uploads / 1,000 commits",
    ];
    let mut table = Table::new("archive_replicated", "Archive: commits with replicated=on", &columns);
    for Waiting { connections, added, alone, runs } in waiting {
        let put = |run: &Run| mean(&run.traffic.put_ms);
        let look = |run: &Run| mean(&run.traffic.look_ms);
        let alone = median(alone);
        let bound = |run: &Run| *connections as f64 / (put(run) + look(run)) * 1e3;
        table.row([
            connections.to_string(),
            added.to_string(),
            number(middle(runs, |run| run.per_second)),
            number(middle(runs, |run| run.p50_ms)),
            number(middle(runs, |run| run.p99_ms)),
            number(middle(runs, put)),
            number(middle(runs, look)),
            number(middle(runs, bound)),
            format!("{:.2}x", middle(runs, |run| run.per_second / bound(run))),
            if *added > 0 { "at least 0.8x" } else { "-" }.to_owned(),
            number(alone),
            format!("{:.2}x", middle(runs, |run| run.per_second * (1.0 / bound(run) + 1.0 / alone))),
            number(middle(runs, |run| run.traffic.uploaded as f64 / run.commits)),
            number(middle(runs, |run| run.per_thousand(run.traffic.uploads as f64))),
        ]);
    }
    table.note = format!(
        "One 100-byte row per transaction on `waldio`; a commit returns when it is in the archive. PUT and look are the \
         means of the sidecar's own requests in the same run, as the proxy sees them, with what it adds. One column adds the time that the connections need for a commit each without the archive, since the sidecar waits for \
         all of them. Litestream has no commit that waits. {} s for each run, medians of {} rounds. {}",
        number((effort.time * WAITING).as_secs_f64()),
        rounds(effort),
        of_others(load)
    );
    table
}
