//! `duralite top`: shows what the processes that have a database open are doing.
//!
//! The command only observes. It maps the processes' shared memory for reading, takes no lock, and keeps no process
//! waiting.

mod json;
mod listen;
mod prometheus;
mod reading;
mod screen;
mod source;
mod text;
mod units;
mod view;

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use duralite_cli::output::{print_json, print_text};

use duralite_cli::target::Target;
use reading::Reading;
use source::{Source, State};

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Print the status once, as text
    #[arg(long)]
    once: bool,
    /// Seconds between two readings; with --json, print a line at each
    #[arg(long, value_name = "SECONDS", value_parser = interval)]
    interval: Option<Duration>,
    /// Print the status once, in the text format of Prometheus
    #[arg(long, conflicts_with_all = ["json", "interval"])]
    prometheus: bool,
    /// Serve the text for Prometheus by HTTP; with 127.0.0.1:0, take a free port and print its number. On an address that is not of the
    /// loopback interface, everybody who reaches the port can read the metrics
    #[arg(long, value_name = "ADDRESS", value_parser = address, conflicts_with_all = ["json", "interval", "once", "prometheus"])]
    listen: Option<SocketAddr>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().map_err(|error| error.to_string())?;
    if (0.01..=86_400.0).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err("give from 0.01 to 86400 seconds".to_owned())
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse::<SocketAddr>()
        .map_err(|error| format!("{error}; give an address and a port, such as 127.0.0.1:9187"))
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    let Arguments { target, once, interval, prometheus, listen } = arguments;
    let json = target.json;
    let mut source = Source::new(target);
    // An error of the first reading ends the command, because an argument may be wrong. Errors of later readings do
    // not, because the database may be closed and opened again while this command runs.
    let first = source.look()?;
    if let Some(address) = listen {
        return listen::serve(&mut source, address);
    }
    if prometheus {
        print_text(&prometheus::page(source.database(), &first))?;
    } else if json {
        match interval.filter(|_| !once) {
            None => print_json(&json::of(source.database(), &first, None))?,
            Some(interval) => lines(&mut source, first, interval)?,
        }
    } else if once || !std::io::stdout().is_terminal() {
        print_text(&text::of(source.database(), &first))?;
    } else {
        screen::run(&mut source, interval.unwrap_or(Duration::from_secs(1)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a line of JSON at each interval, until the program that reads the output has closed the pipe.
fn lines(source: &mut Source, first: State, interval: Duration) -> Result<()> {
    let mut before: Option<Reading> = None;
    let mut state = first;
    loop {
        print_text(&format!("{}\n", json::of(source.database(), &state, before.as_ref())))?;
        if let State::InUse(reading) = state {
            before = Some(*reading);
        }
        std::thread::sleep(interval);
        state = source.look_on();
    }
}
