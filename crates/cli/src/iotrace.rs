//! `duralite iotrace`: what a command writes to the device, and what for.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::Args;
use duralite_iotrace::{Marker, draw, trace};
use serde_json::json;

use crate::{print_json, print_text};

#[derive(Args)]
pub(crate) struct Options {
    /// A database whose device is traced; it need not exist yet
    #[arg(long, value_name = "DB", required = true)]
    database: Vec<PathBuf>,
    /// Print figures per transaction too, for so many
    #[arg(long, value_name = "N")]
    transactions: Option<u64>,
    /// Draw address over time into this directory: squares (figures 2 and 11 of the paper) and circles
    /// (figure 12)
    #[arg(long, value_name = "DIR")]
    png: Option<PathBuf>,
    /// Print JSON, every request included
    #[arg(long)]
    json: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let mut command = Command::new(&options.command[0]);
    command.args(&options.command[1..]);
    let (trace, status) = trace(&options.database, &mut command)?;
    let volumes = trace.volumes();
    let per = |count: u64| match options.transactions.filter(|n| *n > 0) {
        Some(n) => format!("{:>12.2}", count as f64 / n as f64),
        None => String::new(),
    };
    if options.json {
        let sums: Vec<_> =
            volumes.iter().map(|(class, volume)| json!({ "class": class, "volume": volume })).collect();
        print_json(
            &json!({ "classes": sums, "flushes": trace.flushes, "lost": trace.lost, "writes": trace.writes }),
        )?;
    } else {
        let heading = if options.transactions.is_some() { "   requests/tx     bytes/tx" } else { "" };
        let mut text = format!("{:<20} {:>9} {:>12}{heading}\n", "class", "requests", "bytes");
        let mut line = |name: &str, requests: u64, bytes: u64| {
            let each =
                if per(0).is_empty() { String::new() } else { format!("  {} {}", per(requests), per(bytes)) };
            text.push_str(&format!("{name:<20} {requests:>9} {bytes:>12}{each}\n"));
        };
        for (class, volume) in &volumes {
            line(class.name(), volume.requests, volume.bytes);
        }
        let (requests, bytes) = volumes.values().fold((0, 0), |sum, v| (sum.0 + v.requests, sum.1 + v.bytes));
        line("total", requests, bytes);
        text.push_str(&format!("flushes {} {}\n", trace.flushes, per(trace.flushes).trim()));
        if trace.lost > 0 {
            text.push_str(&format!("{} events were lost: the figures are too small\n", trace.lost));
        }
        print_text(&text)?;
    }
    if let Some(dir) = &options.png {
        std::fs::create_dir_all(dir)?;
        let title = options.command.join(" ").chars().take(85).collect::<String>();
        draw(&trace, &title, Marker::Square, &dir.join("iotrace-address.png"))?;
        draw(&trace, &title, Marker::Circle, &dir.join("iotrace-circles.png"))?;
    }
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
