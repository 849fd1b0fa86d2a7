//! The program that tests run as a second process, in one of several roles.
#![allow(clippy::unwrap_used, clippy::panic)] // a failure ends the process, and the test sees it

mod family;
mod few_files;
mod follow;
mod halting;
mod sql;
mod stepping;
mod stopping;
mod transfer;
mod write;

use std::path::Path;

use duralite_testkit::{Gate, SessionPlan, run_sessions};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["sql", uri] => sql::serve(uri),
        ["few_files", uri, sql] => few_files::run(uri, sql),
        ["gated", uri, logs, gate] => {
            let _gate = Gate::new(Path::new(gate)).before(Path::new(logs));
            sql::serve(uri);
        }
        ["halting", uri, lock] => halting::serve(uri, lock.parse().unwrap()),
        ["sessions", ref plan @ ..] => run_sessions(&SessionPlan::of_arguments(plan).unwrap()),
        ["stepping", uri] => stepping::serve(uri),
        ["stepping", uri, dir] => stepping::serve_beside(uri, dir),
        ["stopping", uri, log_dir] => stopping::serve(uri, log_dir),
        ["write", uri, acknowledgements, reopen_every] => {
            write::run(uri, acknowledgements, reopen_every.parse().unwrap());
        }
        ["follow", engine, log_dir, database] => follow::run(engine, log_dir, database),
        ["family", uri, inherited, children] => family::run(uri, inherited, children.parse().unwrap()),
        ["transfer", uri, seed, count] => {
            transfer::transfer(uri, seed.parse().unwrap(), count.parse().unwrap())
        }
        ["audit", uri, total, stop] => transfer::audit(uri, total.parse().unwrap(), stop),
        _ => panic!("unknown role: {arguments:?}"),
    }
}
