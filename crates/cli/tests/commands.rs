//! `duralite shell`, `enable`, `disable`, `doctor` and `generate`.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests fail as tests do

use crate::place;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use place::{COMMAND, PYTHON, Place};
use serde_json::Value;

/// While a program has the database open through Duralite, plain SQLite refuses it, but the shell opens it.
#[test]
fn the_shell_opens_a_live_database() {
    let place = Place::new();
    place.wal_database("l.db");
    let program = "
import sqlite3
conn = sqlite3.connect('l.db', isolation_level=None)
conn.execute('INSERT INTO t VALUES(5)')
print('open', flush=True)
input()
";
    let mut command = place.command(COMMAND);
    command.args(["run", "-q", "--", PYTHON, "-c", program]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut owner = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(owner.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "open\n");
    assert!(place.stock("l.db", "SELECT * FROM t").err.contains("file is not a database"));
    let said = place.duralite(&["shell", "l.db", "SELECT a FROM t", "-header"]);
    assert_eq!((said.out.as_str(), said.err.as_str()), ("a\n5\n", ""));
    let said =
        place.fed(&["shell", "l.db"], "INSERT INTO t VALUES(6);\nSELECT sum(a) FROM t;\nSELECT nothing;\n");
    let stock = place.run("sqlite3", &[":memory:", "SELECT nothing"]);
    assert_eq!((said.out.as_str(), said.code), ("11\n", stock.code), "{said:?}");
    owner.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(owner.wait().unwrap().success());
    assert_eq!(place.stock("l.db", "SELECT sum(a) FROM t").out, "11\n");
}

#[test]
fn a_database_is_enabled_and_disabled() {
    let place = Place::new();
    let said = place.duralite(&["enable", "e.db"]);
    assert!(said.code == 1 && said.err.contains("e.db does not exist; --create creates it"), "{said:?}");
    assert!(!place.path("e.db").exists());
    assert_eq!(place.stock("e.db", "CREATE TABLE t(a); INSERT INTO t VALUES(1)").code, 0);
    let said = place.duralite(&["enable", "e.db"]);
    assert!(said.code == 0 && said.out.starts_with("e.db is in WAL mode; engine waldio ("), "{said:?}");
    assert!(said.out.contains("), guarantee "), "{said:?}");
    assert_eq!(place.stock("e.db", "PRAGMA journal_mode; SELECT * FROM t").out, "wal\n1\n");
    let said = place.duralite(&["enable", "--journal", "nvwal", "--nvram", "emulate", "e.db"]);
    assert!(
        said.out.contains("engine nvwal (") && said.out.contains("guarantee process-crash: "),
        "{said:?}"
    );
    let said = place.duralite(&["enable", "--journal", "off", "e.db"]);
    assert!(said.out.contains("plain SQLite: off: journal=off"), "{said:?}");
    let said = place.duralite(&["disable", "e.db"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(place.stock("e.db", "PRAGMA journal_mode; SELECT * FROM t").out, "delete\n1\n");
    assert_eq!(place.duralite(&["disable", "missing.db"]).code, 1);
    assert_eq!(place.duralite(&["enable", "--create", "new.db"]).code, 0);
    assert_eq!(place.stock("new.db", "PRAGMA journal_mode").out, "wal\n");
}

#[test]
fn an_archive_is_remembered_beside_the_database_and_forgotten() {
    let place = Place::new();
    let said = place.duralite(&["enable", "--create", "--archive", "file:///srv/archive", "a.db"]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.contains("its archive is file:///srv/archive"), "{}", said.out);
    let file = place.path("a.db-archive");
    let before = std::fs::read_to_string(&file).unwrap();
    assert!(before.contains(" archive 1 file:///srv/archive 0 "), "{before}");
    // Enabling the same archive again does not change the token with which the database writes to the archive.
    assert_eq!(place.duralite(&["enable", "--archive", "file:///srv/archive", "a.db"]).code, 0);
    let token = |text: &str| text.split(' ').nth(5).map(str::to_owned);
    assert_eq!(token(&std::fs::read_to_string(&file).unwrap()), token(&before));
    assert_ne!(place.duralite(&["enable", "--archive", "two words", "a.db"]).code, 0);
    let said = place.duralite(&["disable", "a.db"]);
    assert!(said.out.contains("its archive file:///srv/archive stays as it is"), "{}{}", said.out, said.err);
    assert!(!file.exists());
}

#[test]
fn what_is_no_database_or_is_in_use_is_not_enabled() {
    let place = Place::new();
    let text = "no database, but long enough to be read as one. ".repeat(40);
    std::fs::write(place.path("text"), &text).unwrap();
    let said = place.duralite(&["enable", "text"]);
    assert!(said.code == 1 && said.err.contains("file is not a database"), "{said:?}");
    assert_eq!(std::fs::read_to_string(place.path("text")).unwrap(), text);
    let program = "
import sqlite3, subprocess, sys
conn = sqlite3.connect('busy.db', isolation_level=None)
conn.execute('CREATE TABLE t(a)')
conn.execute('BEGIN IMMEDIATE')
sys.exit(subprocess.run([sys.argv[1], 'enable', 'busy.db']).returncode)
";
    let said = place.run(PYTHON, &["-c", program, COMMAND]);
    assert!(said.code == 1 && said.err.contains("database is locked"), "{said:?}");
    assert_eq!(place.stock("busy.db", "PRAGMA journal_mode").out, "delete\n");
}

#[test]
fn the_doctor_says_what_there_is_and_leaves_nothing() {
    let place = Place::new();
    let said = place.duralite(&["doctor", "--json"]);
    assert_eq!(said.code, 0, "{said:?}");
    let facts: Value = serde_json::from_str(&said.out).unwrap();
    assert!(facts["file_system"]["name"].is_string(), "{facts:#}");
    assert!(facts["durable_write_us"]["overwrite_4096_buffered_fdatasync"].is_u64(), "{facts:#}");
    assert!(facts["durable_write_us"]["append_4096_fdatasync"].is_u64(), "{facts:#}");
    assert!(facts["memory"]["dax"].is_boolean(), "{facts:#}");
    let shells = facts["programs"].as_object().unwrap();
    let (_, shell) = shells.iter().find(|(path, _)| path.ends_with("/sqlite3")).unwrap();
    assert_eq!((&shell["loads_extensions"], &shell["duralite_run_reaches_it"]), (&true.into(), &true.into()));
    assert!(
        facts["advice"]["serves"].as_str().unwrap().starts_with("engine waldio (doctor.db-duralite"),
        "{facts:#}"
    );
    assert_eq!(std::fs::read_dir(place.path("")).unwrap().count(), 0);
    let said = place.duralite(&["doctor", "."]);
    let advice = said.out.find("\nadvice\n").expect("a section of advice");
    assert!(said.out.find("\n  append_4096_fdatasync ").is_some_and(|at| at < advice), "{said:?}");
    assert!(said.out[advice..].contains("\n  why "), "{said:?}");
    std::fs::write(place.path("a.db"), "").unwrap();
    let said = place.duralite(&["doctor", "a.db"]);
    assert!(said.code == 1 && said.err.contains("a.db is a file: name the directory"), "{said:?}");
    let said = place.duralite(&["doctor", "missing"]);
    assert!(said.code == 1 && said.err.contains("missing: No such file"), "{said:?}");
}

#[test]
fn every_command_has_an_example_in_its_help() {
    let place = Place::new();
    let help = place.duralite(&["--help"]).out;
    assert!(help.contains("\n  generate "), "{help}");
    for command in [
        "run",
        "shell",
        "enable",
        "disable",
        "doctor",
        "info",
        "top",
        "verify",
        "backup",
        "checkpoint",
        "reclaim",
        "generate",
        "store",
    ] {
        let help = place.duralite(&[command, "--help"]).out;
        assert!(help.contains(&format!(":\n  duralite {command} ")), "{command}: {help}");
    }
    // The list leaves out `store bench`, which is part of another program, with its own help.
    for command in ["info", "verify", "dump", "load", "backup", "salvage", "restore"] {
        let help = place.duralite(&["store", command, "--help"]).out;
        assert!(help.contains(&format!(":\n  duralite store {command} ")), "store {command}: {help}");
    }
}

/// SQLite's own text only says that it cannot open the file.
#[test]
fn the_shell_says_why_duralite_refuses_a_database() {
    let place = Place::new();
    place.wal_database("r.db");
    let said = place.duralite(&["shell", "--journal", "nvwal", "r.db", "SELECT 1 FROM t"]);
    assert!(said.code != 0 && said.err.contains("journal=nvwal needs NVRAM"), "{said:?}");
    // SQLite tries again until its busy timeout ends, and Duralite refuses each attempt.
    let program = "
import sqlite3, subprocess, sys
conn = sqlite3.connect('r.db', isolation_level=None)
conn.execute('SELECT * FROM t').fetchall()
sys.exit(subprocess.run([sys.argv[1], 'shell', 'r.db', '-cmd', '.timeout 300', 'SELECT 1 FROM t']).returncode)
";
    let said = place.run(PYTHON, &["-c", program, COMMAND]);
    // The command prints the reason once, although Duralite refuses about 40 attempts. The reason may have two forms,
    // depending on whether the kernel reports the other program's lock at the moment of an attempt.
    let times = said.err.matches("close it there, or open it with").count()
        + said.err.matches("close that one, or open it with").count();
    assert_eq!(times, 1, "{said:?}");
}

#[test]
fn every_command_has_a_man_page_and_completions() {
    let place = Place::new();
    assert_eq!(place.duralite(&["generate", "man", "man"]).code, 0);
    for command in [
        "",
        "-run",
        "-shell",
        "-enable",
        "-disable",
        "-doctor",
        "-top",
        "-info",
        "-verify",
        "-checkpoint",
        "-backup",
        "-store",
    ] {
        let page = std::fs::read_to_string(place.path(&format!("man/duralite{command}.1"))).unwrap();
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{command}: {page}");
    }
    assert_eq!(place.duralite(&["generate", "completions", "completions"]).code, 0);
    let bash = std::fs::read_to_string(place.path("completions/duralite.bash")).unwrap();
    assert!(bash.contains("doctor") && bash.contains("--nvram"), "{bash}");
}
