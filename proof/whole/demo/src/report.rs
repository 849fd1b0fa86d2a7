//! Makes the final table, the sentences about it, and the chart.

use std::path::Path;

use anyhow::{Result, bail};

use crate::scene::{Scene, shown};
use crate::screen::{grouped, say, table};
use crate::timed::{LONGEST, Run};

/// Prints the table of the runs, and sentences about the ratios between them.
///
/// # Errors
/// An error if no process reads standard output any more.
pub(crate) fn print(runs: &[Run]) -> Result<()> {
    let heading = ["", "commits", "commits/s", "bytes logged", "lines flushed", "fences", "system calls"];
    let decimal = |figure: Option<f64>| figure.map_or("-".to_owned(), |figure| format!("{figure:.1}"));
    let row = |run: &Run| {
        let logged = run.logged_bytes.map_or("-".to_owned(), grouped);
        let first = [run.mode.label.to_owned(), grouped(run.rows as f64), grouped(run.rate), logged];
        first.into_iter().chain([run.lines, run.fences, run.system_calls].map(decimal)).collect()
    };
    say("\nFigures from `bytes logged` on are per commit.\n")?;
    say(&table(&heading, &runs.iter().map(row).collect::<Vec<Vec<String>>>()))?;
    let rates: Vec<f64> = runs.iter().map(|run| run.rate).collect();
    say(&sentences(&rates)?)
}

fn sentences(rates: &[f64]) -> Result<String> {
    let &[cold, warm, disk, shared, exclusive, pages, region, rollback, undo] = rates else {
        bail!("there are sentences for nine runs, not for {}", rates.len());
    };
    Ok(format!(
        "
  On the disk, with one connection: {:.1} times the commits/s of stock SQLite with a growing log,
  {:.1} times with a recycled one: as fast as the disk's own durable write; and it survives a power loss.
  In NVRAM: {:.0} times the commits/s, {:.0} times with
  locking_mode=EXCLUSIVE; with a recycled log: {:.0} and {:.0} times.
  With a log for each page, which spares the flash: {:.0} and {:.0} times.
  With the database in persistent memory too: {:.0} and {:.0} times; and with a program that never
  asks for WAL {:.0} times the commits/s of its rollback journal on the disk.
  A run ends after {:.1} s; the cold one never checkpoints, the others as SQLite does by itself.
  System calls: commits only, no checkpoints.
  Emulated NVRAM survives a process crash, not a power loss; stock SQLite's commits here survive both.",
        disk / cold,
        disk / warm,
        shared / cold,
        exclusive / cold,
        shared / warm,
        exclusive / warm,
        pages / cold,
        pages / warm,
        region / cold,
        region / warm,
        undo / rollback,
        LONGEST.as_secs_f64()
    ))
}

/// Draws a bar for each run: commits per second, and bytes logged per commit, both on a logarithmic
/// scale.
///
/// # Errors
/// An error if the file cannot be written.
pub(crate) fn draw(scene: &Scene, runs: &[Run], path: &Path) -> Result<()> {
    let row = |run: &Run| {
        let logged = run.logged_bytes.map_or("-".to_owned(), |bytes| format!("{bytes:.1}"));
        // Some labels contain commas, but none contains a quotation mark.
        format!("\"{}\",{:.1},{logged}\n", run.mode.label, run.rate)
    };
    let heading = ",commits per second (more is better),bytes logged per commit (less is better)\n";
    let figures = scene.databases().join("figures.csv");
    std::fs::write(&figures, runs.iter().map(row).fold(heading.to_owned(), |text, row| text + &row))?;
    let title = format!(
        "{} durable inserts, SQLite {}, synchronous=FULL; NVRAM emulated (no power-loss guarantee)",
        grouped(scene.rows.len() as f64),
        rusqlite::version()
    );
    duralite_chart::draw_table(&figures, path, &title, true)?;
    say(&format!("  Chart: {}", shown(path)))
}
