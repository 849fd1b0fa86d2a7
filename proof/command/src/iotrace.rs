//! `duralite iotrace`: traces what a command writes to the device, and says to which file or journal each write
//! belongs.

use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, Result};
use clap::Args;
use duralite_iotrace::{Class, JournalBy, Marker, Summary, Trace, Tracer, Volume, draw};
use serde_json::{Value, json};

use duralite_cli::output::{print_json, print_text};

/// The exit statuses by which a shell says that a command does not exist, or that it cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUN: u8 = 126;
/// If a signal ended a command, the shell's exit status is this number plus the number of the signal.
const BY_SIGNAL: i32 = 128;

#[derive(Args)]
pub(crate) struct Options {
    /// A database whose device is traced, with the logs beside it; it need not exist yet
    #[arg(long, value_name = "DB")]
    database: Vec<PathBuf>,
    /// A log elsewhere, or a directory of logs, on the same device
    #[arg(long, value_name = "PATH")]
    log: Vec<PathBuf>,
    /// The number of transactions that the command runs; print the numbers per transaction too
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    transactions: Option<u64>,
    /// Draw addresses over time into files in this directory: squares (figures 2 and 11 of the paper) and
    /// circles (figure 12)
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Write the kernel's trace lines to this file when the command has ended
    #[arg(long, value_name = "FILE")]
    raw: Option<PathBuf>,
    /// Print JSON, every request included
    #[arg(long)]
    json: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let mut tracer = options.database.iter().fold(Tracer::new(), |tracer, path| tracer.database(path));
    tracer = options.log.iter().fold(tracer, |tracer, path| tracer.log(path));
    if options.raw.is_some() {
        tracer = tracer.keep_raw();
    }
    let mut command = Command::new(&options.command[0]);
    command.args(&options.command[1..]);
    let (trace, status) = match tracer.command(&mut command) {
        Ok(traced) => traced,
        Err(error) => {
            let code = match error.downcast_ref::<std::io::Error>().map(std::io::Error::kind) {
                _ if !error.to_string().starts_with("cannot run ") => return Err(error),
                Some(ErrorKind::NotFound) => NOT_FOUND,
                _ => NOT_RUN,
            };
            eprintln!("duralite: {error:#}");
            return Ok(ExitCode::from(code));
        }
    };
    if let (Some(path), Some(raw)) = (&options.raw, &trace.raw) {
        std::fs::write(path, raw).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(dir) = &options.svg {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let title = options.command.join(" ");
        draw(&trace, &title, Marker::Square, &dir.join("iotrace-address.svg"))?;
        draw(&trace, &title, Marker::Circle, &dir.join("iotrace-circles.svg"))?;
    }
    let summary = trace.summary();
    if options.json {
        print_json(&as_json(&trace, &summary, options.transactions))?;
    } else {
        print_text(&as_table(&trace, &summary, options.transactions))?;
    }
    Ok(exit_code(status))
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| BY_SIGNAL + signal));
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

fn as_json(trace: &Trace, summary: &Summary, transactions: Option<u64>) -> Value {
    let per = |count: u64| transactions.map(|n| count as f64 / n as f64);
    let volume = |volume: Volume| {
        let mut value = json!(volume);
        if transactions.is_some() {
            value["requests_per_transaction"] = json!(per(volume.requests));
            value["bytes_per_transaction"] = json!(per(volume.bytes));
        }
        value
    };
    let classes: serde_json::Map<String, Value> = summary
        .classes
        .iter()
        .filter_map(|(class, sum)| Some((json!(class).as_str()?.to_owned(), volume(*sum))))
        .collect();
    let mut value = json!({
        "device": trace.device,
        "of_bios": trace.of_bios,
        "seconds": trace.seconds,
        "classes": classes,
        "total": volume(summary.total),
        "flushes": summary.flushes,
        "fua": summary.fua,
        "zeroed_bytes": summary.zeroed_bytes,
        "discarded_bytes": summary.discarded_bytes,
        "lost": summary.lost,
        "journal_by": trace.journal_by,
        "journal_by_others": trace.journal_by_others,
        "files": trace.files,
        "writes": trace.writes,
        "flush_seconds": trace.flushes,
    });
    if let Some(n) = transactions {
        value["transactions"] = json!(n);
        value["flushes_per_transaction"] = json!(per(summary.flushes));
        value["fua_per_transaction"] = json!(per(summary.fua));
    }
    value
}

fn as_table(trace: &Trace, summary: &Summary, transactions: Option<u64>) -> String {
    let per = |count: Option<u64>| match (count, transactions) {
        (Some(count), Some(n)) => format!("{:>13.2}", count as f64 / n as f64),
        _ => String::new(),
    };
    let heading = if transactions.is_some() { "  requests/tx     bytes/tx" } else { "" };
    let mut text = format!("{:<20} {:>9} {:>13}{heading}\n", "class", "requests", "bytes");
    let mut line = |name: &str, requests: u64, bytes: Option<u64>| {
        let size = bytes.map_or_else(String::new, |bytes| bytes.to_string());
        let row = format!("{name:<20} {requests:>9} {size:>13}{}{}", per(Some(requests)), per(bytes));
        text.push_str(row.trim_end());
        text.push('\n');
    };
    for class in Class::ALL {
        let sum = summary.of(class);
        line(class.name(), sum.requests, Some(sum.bytes));
    }
    line("total", summary.total.requests, Some(summary.total.bytes));
    line("flushes", summary.flushes, None);
    line("FUA writes", summary.fua, None);
    for (name, bytes) in [("zeroed", summary.zeroed_bytes), ("discarded", summary.discarded_bytes)] {
        if bytes > 0 {
            text.push_str(&format!("{name} without content: {bytes} bytes\n"));
        }
    }
    match trace.journal_by {
        JournalBy::Place => {}
        JournalBy::Task => {
            text.push_str("the journal is told by its thread: debugfs did not say where it is\n")
        }
        JournalBy::Absent => text.push_str("the file system has no journal of its own that is known here\n"),
    }
    if trace.of_bios {
        text.push_str(
            "the device takes no requests: counted is what comes to it before neighbours are merged\n",
        );
    }
    if summary.lost > 0 {
        text.push_str(&format!("{} events were lost: the figures are too small\n", summary.lost));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_gives_its_status_and_a_signal_the_shells() {
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), ExitCode::from(3));
        assert_eq!(exit_code(ExitStatus::from_raw(2)), ExitCode::from(130));
    }
}
