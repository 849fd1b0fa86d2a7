//! Runs a plan: `duralite-killtest engine=waldio kills=5000 seed=1 ...`, or, started by itself, one
//! of its processes.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use duralite_killtest::{Plan, Worker, run, worker_main};

/// Between two lines about how far it is.
const LINES: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "worker") {
        return worker_main(&arguments[1..]);
    }
    match attack(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn attack(arguments: &[String]) -> Result<()> {
    let plan = Plan::parse(arguments.iter().map(String::as_str))?;
    println!("{plan}");
    let program = std::env::current_exe().context("cannot find this program")?;
    let worker = Worker { program, arguments: vec!["worker".into()] };
    let mut last = Instant::now();
    let report = run(&plan, &worker, &mut |report| {
        if last.elapsed() > LINES {
            println!("{report}");
            last = Instant::now();
        }
    })?;
    println!("{report}");
    Ok(())
}
