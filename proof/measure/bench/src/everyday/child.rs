//! Runs child processes: this program, started for a single task.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

/// With this first argument the program runs a single task, as a child process. It passes the other
/// arguments on to [`super::work`].
pub const WORKER: &str = "bench-task";

fn start(task: &str, uri: &str, numbers: &[u64], input: Stdio) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(WORKER).arg(task).arg(uri).args(numbers.iter().map(u64::to_string));
    command.stdin(input).stdout(Stdio::piped());
    command.spawn().context("cannot start a process of this program")
}

fn figures(line: &str) -> Result<Vec<f64>> {
    line.split_whitespace()
        .map(|word| word.parse().with_context(|| format!("a worker said {line:?}")))
        .collect()
}

/// Starts a child process that runs a task to its end. Returns the numbers that the child prints.
///
/// # Errors
/// An error if the task fails. The task's process has then printed the reason on standard error.
pub(super) fn ask(task: &str, uri: &str, numbers: &[u64]) -> Result<Vec<f64>> {
    let output = start(task, uri, numbers, Stdio::null())?.wait_with_output()?;
    ensure!(output.status.success(), "the process for {task} failed: {}", output.status);
    figures(&String::from_utf8_lossy(&output.stdout))
}

/// Starts a child process that runs a task. Waits until the child prints a line, kills it with SIGKILL, and
/// returns the numbers in that line.
///
/// # Errors
/// An error if the task fails. The task's process has then printed the reason on standard error.
pub(super) fn kill(task: &str, uri: &str, numbers: &[u64]) -> Result<Vec<f64>> {
    let mut child = start(task, uri, numbers, Stdio::piped())?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("a worker without output")?).read_line(&mut line)?;
    child.kill()?;
    let status = child.wait()?;
    ensure!(line.ends_with('\n'), "the process for {task} failed: {status}");
    figures(&line)
}
