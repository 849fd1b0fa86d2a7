//! Runs rounds: `duralite-mixed rounds=300 engine=waldio seed=1 ...`. Without an engine, the program runs
//! rounds for all engines and for the control. If the first argument is `worker`, the program is one of the
//! processes of a round.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use duralite_mixed::{Engine, Plan, Report, Worker, run, worker_main};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "worker") {
        return worker_main(&arguments[1..]);
    }
    match attack(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs rounds. Returns whether all of them succeeded.
fn attack(arguments: &[String]) -> Result<bool> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let worker = Worker { program, arguments: vec!["worker".into()] };
    let value = |name: &str| arguments.iter().find_map(|argument| argument.strip_prefix(&format!("{name}=")));
    let number = |name: &str, usual: u64| -> Result<u64> {
        value(name).map_or(Ok(usual), |text| text.parse().with_context(|| format!("{name}={text}")))
    };
    let (rounds, seed, table) = (number("rounds", 1)?, number("seed", 1)?, value("table"));
    let verbose = value("verbose").is_some();
    let rest: Vec<&str> = arguments
        .iter()
        .map(String::as_str)
        .filter(|argument| {
            !["rounds=", "seed=", "engine=", "table=", "verbose="].iter().any(|own| argument.starts_with(own))
        })
        .collect();
    let all = || Engine::all().iter().map(|engine| engine.name()).chain(["stock"]).collect();
    let engines: Vec<&str> = value("engine").map_or_else(all, |names| names.split(',').collect());
    let mut rows = String::new();
    let mut clean = true;
    for engine in engines {
        let start = Instant::now();
        let (mut total, mut failed) = (Report::default(), 0);
        for seed in seed..seed + rounds {
            let (seed, engine) = (format!("seed={seed}"), format!("engine={engine}"));
            let plan = Plan::parse([engine.as_str(), seed.as_str()].into_iter().chain(rest.iter().copied()))?;
            match run(&plan, &worker) {
                Ok(report) => {
                    if verbose {
                        println!("{engine} {seed}: {report}");
                    }
                    total.add(&report);
                }
                Err(error) => {
                    failed += 1;
                    println!("FAILED {engine} {seed}: {error:#}");
                }
            }
        }
        clean &= failed == 0;
        println!("{engine}: {rounds} rounds, {failed} failed; {total}");
        if verbose {
            for (name, count) in &total.events {
                println!("    {count:7} {name}");
            }
        }
        let verdict = if failed == 0 { "held".to_owned() } else { format!("{failed} rounds BROKEN") };
        let what = if engine == "stock" { "stock SQLite alone" } else { "stock SQLite beside it" };
        rows += &format!(
            "| {engine} | {what} | {rounds} rounds {verdict}: {total} | {} |\n",
            start.elapsed().as_secs()
        );
    }
    if let Some(table) = table {
        std::fs::write(table, rows).with_context(|| format!("cannot write {table}"))?;
    }
    Ok(clean)
}
