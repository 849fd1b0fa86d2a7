//! Opens a database with 0, 1, 2, … free file descriptors, and prints the result of each attempt.

use duralite_testkit::{code, connect, run as run_sql};
use rustix::process::{Resource, getrlimit, setrlimit};

/// More descriptors than a process needs to open a database.
const MOST: u64 = 60;

fn run_with(left: u64, uri: &str, sql: &str) -> String {
    let lowest = std::fs::File::open("/dev/null").unwrap();
    let used = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&lowest)).unwrap();
    drop(lowest);
    let before = getrlimit(Resource::Nofile);
    let limit = rustix::process::Rlimit { current: Some(used + left), ..before };
    setrlimit(Resource::Nofile, limit).unwrap();
    let refusals = duralite::last_error();
    let done = connect(uri).and_then(|conn| run_sql(&conn, sql));
    setrlimit(Resource::Nofile, before).unwrap();
    match done {
        Ok(_) => "ok".to_owned(),
        Err(error) => {
            let why = duralite::last_error().filter(|_| duralite::last_error() != refusals);
            format!("{} {}", code(&error) & 0xff, why.unwrap_or_default())
        }
    }
}

/// Prints a line for each number of free descriptors, from 0 on. The last line is `ok`.
pub fn run(uri: &str, sql: &str) {
    for left in 0..MOST {
        let line = run_with(left, uri, sql);
        println!("{}", line.replace('\n', " "));
        if line == "ok" {
            return;
        }
    }
    panic!("{MOST} descriptors are not enough");
}
