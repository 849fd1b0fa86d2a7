//! Processes in namespaces of their own, like containers, that share a database with processes outside.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests fail as tests do

use crate::place;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use place::{COMMAND, PYTHON, Place};

const PROGRAM: &str = "
import os, sqlite3
conn = sqlite3.connect('c.db', isolation_level=None, timeout=20)
for n in range(200): conn.execute('INSERT INTO t VALUES(?)', (n,))
print(os.getpid(), flush=True)
input()
";

/// A program in a container. The test ends it by closing its standard input.
struct Contained(Child);

impl Drop for Contained {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn contained(place: &Place) -> Command {
    let mut command = place.command("unshare");
    command.args([
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--ipc",
        "--uts",
        COMMAND,
        "run",
        "-q",
        "--",
    ]);
    command.args([PYTHON, "-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn can_unshare() -> bool {
    let can = Command::new("unshare").args(["--pid", "--fork", "--mount-proc", "true"]).output();
    let can = can.is_ok_and(|output| output.status.success());
    let is_required = std::env::var_os("DURALITE_REQUIRE_RIGS").is_some();
    assert!(can || !is_required || !rustix::process::geteuid().is_root(), "root cannot make namespaces here");
    if !can {
        eprintln!("skipped: this user may not make namespaces");
    }
    can
}

/// A pid is valid in its own namespace only, so each container has a process 1. No code may therefore identify a
/// process by its pid.
#[test]
fn containers_share_a_database_and_one_that_is_killed_loses_no_commit() {
    if !can_unshare() {
        return;
    }
    let place = Place::new();
    place.wal_database("c.db");
    let mut programs: Vec<_> = (0..2).map(|_| Contained(contained(&place).spawn().unwrap())).collect();
    for Contained(program) in &mut programs {
        let mut line = String::new();
        BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "1\n", "the first process of its namespace");
    }
    let said = place.duralite(&["info", "c.db"]);
    assert_eq!(said.out.matches("process 1, of another user or another container\n").count(), 2, "{said:?}");
    let count = |place: &Place| place.duralite(&["shell", "c.db", "SELECT count(*) FROM t"]).out;
    assert_eq!(count(&place), "400\n");
    // A container ends when its first process ends.
    drop(programs.pop());
    assert_eq!(count(&place), "400\n");
    let said = place.duralite(&["backup", "c.db", "copy.db"]);
    assert_eq!(said.code, 0, "{said:?}");
    drop(programs.pop());
    assert_eq!(count(&place), "400\n");
    assert_eq!(place.stock("copy.db", "SELECT count(*) FROM t").out, "400\n");
    assert_eq!(
        place.stock("c.db", "SELECT count(*) FROM t").out,
        "400\n",
        "the shell was the last to close it"
    );
}
