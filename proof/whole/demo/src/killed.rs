//! Kills a process in the middle of its work, and checks that every row that it acknowledged is there.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;

use crate::check::expect_rows;
use crate::child::{self, FOUND};
use crate::modes::Mode;
use crate::processes::Processes;
use crate::rows::Row;
use crate::scene::{Scene, shown};
use crate::screen::{Progress, grouped, say};
use crate::stock;

/// The number of rows that a process inserts if it lives to the end.
const ROWS: usize = 4000;
/// The longest delay between an acknowledgement and the kill.
const LONGEST_DELAY_MICROSECONDS: u64 = 3000;

/// The acknowledgement after which the demonstration kills a process, and the delay between the two.
struct Kill {
    at: usize,
    delay: Duration,
}

/// Kills a process that inserts. Lets a second process continue, and kills that process too. At the end,
/// checkpoints the log into the database.
///
/// # Errors
/// An error if an acknowledged row is missing, if another check fails, or after an interrupt.
pub(crate) fn run(scene: &Scene, mode: &Mode) -> Result<()> {
    let rows = &scene.rows[..scene.rows.len().min(ROWS)];
    let path = scene.database(&format!("killed-{}", mode.key));
    let kill = chance(scene.seed, mode.key, rows.len());
    let (key, seed, at) = (mode.key, scene.seed, grouped(kill.at as f64));
    say(&format!("\n{key}, killed in the middle (seed {seed}): SIGKILL shortly after acknowledgement {at}"))?;
    let acknowledged = first_process(scene, mode, &path, rows, &kill)?;
    say(&format!("  killed; its last acknowledged row is {}", grouped(acknowledged as f64)))?;
    show_refusal(scene, &path)?;
    second_process(scene, mode, &path, rows, acknowledged)?;
    show_checkpoint(scene, &path)?;
    show_plain(scene, &path)?;
    expect_rows(&path, rows).with_context(|| shown(&path))
}

/// Draws the moment of a kill. It depends only on the seed and the mode.
fn chance(seed: u64, key: &str, rows: usize) -> Kill {
    // FNV-1a hashes the seed together with the mode. Without a hash, neighbouring seeds would give similar
    // first numbers.
    let hash = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let salt = key.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
    let mut dice = fastrand::Rng::with_seed(seed ^ salt);
    let at = dice.usize(rows / 5..rows * 4 / 5);
    Kill { at, delay: Duration::from_micros(dice.u64(..LONGEST_DELAY_MICROSECONDS)) }
}

fn first_process(scene: &Scene, mode: &Mode, path: &Path, rows: &[Row], kill: &Kill) -> Result<usize> {
    let (child, lines) = start(scene, mode, path, rows.len(), false)?;
    let progress = Progress::new("inserting until killed", rows.len(), 0);
    follow(&scene.processes, child, lines, progress, 0, kill)
}

/// Reopens the database in a second process, which reports what it found and inserts the rest. Kills that
/// process with the database open.
fn second_process(scene: &Scene, mode: &Mode, path: &Path, rows: &[Row], acknowledged: usize) -> Result<()> {
    let (child, mut lines) = start(scene, mode, path, rows.len(), true)?;
    let mut found = String::new();
    lines.read_line(&mut found)?;
    let Some((count, integrity)) = found.trim().strip_prefix(FOUND).and_then(|found| found.split_once(' '))
    else {
        scene.processes.ended(child)?;
        bail!("the database could not be reopened after the kill");
    };
    let count: usize = count.parse()?;
    say(&format!("  reopened: {} rows, integrity_check {integrity}", grouped(count as f64)))?;
    if count < acknowledged {
        bail!("{acknowledged} rows were acknowledged, and {count} are there after the kill");
    }
    let shown = grouped(acknowledged as f64);
    say(&format!("  every one of the {shown} acknowledged rows is there and equals that of the input"))?;
    let progress = Progress::new("inserting the rest", rows.len(), count);
    let last = Kill { at: rows.len(), delay: Duration::ZERO };
    let reached = follow(&scene.processes, child, lines, progress, count, &last)?;
    if reached != rows.len() {
        bail!("the second process acknowledged {reached} rows of {}", rows.len());
    }
    let kept =
        if mode.journal_mode == "WAL" { "its newest commits are in the log only" } else { "the guard is on" };
    say(&format!("  killed again, without closing the database: {kept}"))
}

/// Starts the inserting process. Returns the process and the lines that it prints.
fn start(
    scene: &Scene,
    mode: &Mode,
    path: &Path,
    rows: usize,
    resume: bool,
) -> Result<(Child, BufReader<ChildStdout>)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(child::NAME).arg(mode.key).arg(path).arg(scene.pool()).arg(rows.to_string());
    if resume {
        command.arg("--resume");
    }
    let mut child = scene.processes.start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
    let out = child.stdout.take().context("a process without its output")?;
    Ok((child, BufReader::new(out)))
}

/// Reads acknowledgements until the output ends, and kills the process after the acknowledgement that `kill`
/// names. Returns the last acknowledgement.
fn follow(
    processes: &Processes,
    mut child: Child,
    lines: BufReader<ChildStdout>,
    progress: Progress,
    first: usize,
    kill: &Kill,
) -> Result<usize> {
    let (mut acknowledged, mut is_killed) = (first, false);
    let mut end = |acknowledged: usize| -> Result<()> {
        if acknowledged >= kill.at && !is_killed {
            is_killed = true;
            std::thread::sleep(kill.delay);
            child.kill()?;
        }
        Ok(())
    };
    // The database may already have all rows. The process then acknowledges nothing, so this call kills it.
    end(acknowledged)?;
    for line in lines.lines() {
        acknowledged = line?.parse().context("not an acknowledgement")?;
        progress.update(acknowledged);
        end(acknowledged)?;
    }
    let status = processes.ended(child)?.status;
    progress.finish(acknowledged)?;
    if status.signal() != Some(Signal::KILL.as_raw()) {
        bail!("the inserting process ended with {status} instead of being killed");
    }
    Ok(acknowledged)
}

/// Checks that plain SQLite refuses the database while the newest commits are in the log.
fn show_refusal(scene: &Scene, path: &Path) -> Result<()> {
    let answer = sqlite3(scene, path, "SELECT count(*) FROM characters")?;
    if answer.status.success() {
        bail!("plain sqlite3 opened a database that has commits in a log: {}", text(&answer.stdout));
    }
    let said = text(&answer.stderr);
    let last = said.lines().last().unwrap_or_default();
    say(&format!("  $ sqlite3 {}   (plain, nothing loaded): {last}", shown(path)))
}

fn show_checkpoint(scene: &Scene, path: &Path) -> Result<()> {
    let mut command = Command::new(stock::built("duralite")?);
    command.arg("checkpoint").arg(shown(path)).arg("--nvram-dir").arg(scene.pool());
    say(&format!("  $ duralite checkpoint {} --nvram-dir {}", shown(path), scene.pool().display()))?;
    let answer = scene.processes.output(&mut command)?;
    if !answer.status.success() {
        bail!("duralite checkpoint: {}", text(&answer.stderr));
    }
    say(&format!("    {}", text(&answer.stdout)))
}

fn show_plain(scene: &Scene, path: &Path) -> Result<()> {
    let sql = "SELECT count(*) || ' rows, integrity_check ' FROM characters; PRAGMA integrity_check";
    let answer = sqlite3(scene, path, sql)?;
    if !answer.status.success() {
        bail!("plain sqlite3 after the checkpoint: {}", text(&answer.stderr));
    }
    let said = text(&answer.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    say(&format!("  $ sqlite3 {}   (plain, nothing loaded): {said}", shown(path)))
}

fn sqlite3(scene: &Scene, path: &Path, sql: &str) -> Result<Output> {
    scene.processes.output(Command::new("sqlite3").arg(path).arg(sql))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a failed helper is a failed test
mod tests {
    use super::*;

    /// Follows a child that runs this script, and kills it at row 3. Returns the result.
    fn followed(script: &str) -> Result<usize> {
        let processes = Processes::new().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = processes.start(&mut command).unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let kill = Kill { at: 3, delay: Duration::ZERO };
        follow(&processes, child, lines, Progress::new("of a test", 3, 0), 0, &kill)
    }

    #[test]
    fn the_last_acknowledgement_is_told() {
        assert_eq!(followed("echo 1; echo 2; echo 3; read wait").unwrap(), 3);
    }

    #[test]
    fn a_child_that_fails_is_told() {
        let error = followed("echo 1; exit 7").unwrap_err().to_string();
        assert_eq!(error, "the inserting process ended with exit status: 7 instead of being killed");
    }

    #[test]
    fn a_seed_repeats_a_kill() {
        let at = |seed, key| chance(seed, key, ROWS).at;
        assert_eq!(at(1, "nvwal"), at(1, "nvwal"));
        assert!(at(1, "nvwal") != at(2, "nvwal") && at(1, "nvwal") != at(1, "waldio"));
        assert!((0..1000).all(|seed| (800..3200).contains(&at(seed, "ppl"))));
    }
}
