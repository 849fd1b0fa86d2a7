//! Runs a plan (`duralite-killtest engine=waldio kills=5000 seed=1 ...`) or a soak of many plans
//! (`duralite-killtest soak MINUTES SEED TABLE [DIRECTORY]`). Its worker processes run this program, too.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use duralite_killtest::{Plan, Soak, Worker, has_two_users, run, soak, soak_table, worker_main};

/// The time between two lines of progress.
const LINES: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "worker") {
        return worker_main(&arguments[1..]);
    }
    if arguments.first().is_some_and(|first| first == "soak") {
        return match soak_for(&arguments[1..]) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        };
    }
    match attack(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn this_program() -> Result<Worker> {
    let program = std::env::current_exe().context("cannot find this program")?;
    Ok(Worker { program, arguments: vec!["worker".into()] })
}

/// Runs a soak. Returns true if all plans succeeded.
fn soak_for(arguments: &[String]) -> Result<bool> {
    let (minutes, seed, table, directory) = match arguments {
        [minutes, seed, table] => (minutes, seed, table, None),
        [minutes, seed, table, directory] => (minutes, seed, table, Some(directory.into())),
        _ => bail!("soak MINUTES SEED TABLE [DIRECTORY]"),
    };
    if !has_two_users() {
        println!("one user only: two need root");
    }
    let time = Duration::from_secs_f64(60.0 * minutes.parse::<f64>().context("MINUTES")?);
    let what = Soak { time, seed: seed.parse().context("SEED")?, directory };
    let outcomes = soak(&what, &this_program()?, &mut |outcome| match &outcome.result {
        Ok(report) => println!("ok {} seed {}: {report}", outcome.engine.name(), outcome.seed),
        Err(error) => println!("FAILED {} seed {}: {error:#}", outcome.engine.name(), outcome.seed),
    });
    let text = soak_table(&outcomes)?;
    std::fs::write(table, &text).with_context(|| format!("cannot write {table}"))?;
    let passed = outcomes.iter().filter(|outcome| outcome.result.is_ok()).count();
    println!("{text}\n{passed} passed, {} failed", outcomes.len() - passed);
    Ok(passed == outcomes.len())
}

fn attack(arguments: &[String]) -> Result<()> {
    let plan = Plan::parse(arguments.iter().map(String::as_str))?;
    println!("{plan}");
    let worker = this_program()?;
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
