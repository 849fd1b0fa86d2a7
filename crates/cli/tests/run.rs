//! `duralite run`: unchanged programs on Duralite, compared with stock SQLite.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests fail as tests do

use crate::place;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use place::{COMMAND, PYTHON, Place};

const SERVED: &str = "engine waldio, guarantee ";

#[test]
fn the_shell_answers_as_without() {
    let place = Place::new();
    for sql in [
        "CREATE TABLE t(a PRIMARY KEY, b); INSERT INTO t VALUES(1, 'x'), (2, 'y'); SELECT * FROM t",
        "BEGIN; INSERT INTO t VALUES(3, 'z'); ROLLBACK; SELECT count(*), sum(a) FROM t; PRAGMA integrity_check",
        "INSERT INTO t VALUES(1, 'twice')",
        "ATTACH 'other' AS o; CREATE TABLE IF NOT EXISTS o.u AS SELECT * FROM t; SELECT count(*) FROM u",
        "SELECT * FROM missing",
        "VACUUM; UPDATE t SET b='w' WHERE a=2; SELECT group_concat(b) FROM t",
    ] {
        for (database, mode) in [("plain", "DELETE"), ("wal", "WAL")] {
            let begin = format!("PRAGMA journal_mode={mode}");
            let stock = place.run("sqlite3", &["-batch", "-cmd", &begin, &format!("{database}.stock"), sql]);
            let ours = format!("{database}.ours");
            let ours = place.duralite(&["run", "-q", "--", "sqlite3", "-batch", "-cmd", &begin, &ours, sql]);
            assert_eq!((ours.out, ours.err, ours.code), (stock.out, stock.err, stock.code), "{mode}: {sql}");
        }
    }
    for name in ["plain", "wal"] {
        let dump = |kind: &str| place.stock(&format!("{name}.{kind}"), ".dump").out;
        assert_eq!(dump("ours"), dump("stock"));
        assert!(dump("ours").contains("INSERT INTO t VALUES(2,'w')"));
    }
}

#[test]
fn what_was_served_is_said_and_what_was_not() {
    let place = Place::new();
    place.wal_database("w.db");
    let said =
        place.duralite(&["run", "--", "sqlite3", "w.db", "INSERT INTO t VALUES(1); INSERT INTO t VALUES(2)"]);
    let line = format!("duralite: {}: {SERVED}", place.path("w.db").display());
    assert!(said.err.starts_with(&line) && said.err.ends_with(", commits 2\n"), "{said:?}");
    let said = place.duralite(&["run", "--", "sqlite3", "d.db", "CREATE TABLE t(a)"]);
    assert!(said.err.contains("/d.db: plain SQLite: journal_mode is not wal\n"), "{said:?}");
    assert!(said.err.contains("duralite enable DB"), "{said:?}");
    assert_eq!(place.stock("d.db", "PRAGMA journal_mode").out, "delete\n", "nobody asked for WAL mode");
    let said = place.duralite(&["run", "--wal", "--", "sqlite3", "d.db", "INSERT INTO t VALUES(1)"]);
    assert!(said.err.contains(SERVED) && said.err.contains(", commits 1\n"), "{said:?}");
    assert_eq!(place.stock("d.db", "PRAGMA journal_mode").out, "wal\n");
    let said = place.duralite(&["run", "--", "sqlite3", ":memory:", "SELECT 1"]);
    assert!(said.err.contains("opened no database file"), "{said:?}");
    let said = place.duralite(&["run", "--", "sqlite3", "missing/w.db", "SELECT 1"]);
    let why = "this program could open no database: SQLite's error 14";
    assert!(said.err.contains(why) && !said.err.contains("opened no database file"), "{said:?}");
    let said =
        place.duralite(&["run", "--journal", "off", "--", "sqlite3", "w.db", "INSERT INTO t VALUES(3)"]);
    assert!(said.err.contains("/w.db: plain SQLite: journal=off\n"), "{said:?}");
    let said = place.duralite(&["run", "--", "sqlite3", "file:w.db?vfs=unix", "INSERT INTO t VALUES(4)"]);
    assert!(said.err.contains("/w.db: plain SQLite: opened through the VFS unix\n"), "{said:?}");
    let said = place.duralite(&["run", "--quiet", "--", "sqlite3", "w.db", "SELECT count(*) FROM t"]);
    assert_eq!((said.out.as_str(), said.err.as_str()), ("4\n", ""));
}

/// Python loads its module `_sqlite3` only when the program imports it, with `RTLD_LOCAL`. The module is linked to
/// SQLite.
#[test]
fn pythons_module_is_served_with_all_its_connections_and_children() {
    let place = Place::new();
    place.wal_database("p.db");
    let program = "
import os, sqlite3
one, two = sqlite3.connect('p.db'), sqlite3.connect('p.db')
for conn in one, two:
    conn.execute('INSERT INTO t VALUES(1)')
    conn.commit()
if os.fork() == 0:
    child = sqlite3.connect('p.db')
    child.execute('INSERT INTO t VALUES(2)')
    child.commit()
    raise SystemExit(0)
os.wait()
print(one.execute('SELECT count(*) FROM t').fetchone()[0])
";
    let said = place.duralite(&["run", "--", PYTHON, "-c", program]);
    assert_eq!((said.out.as_str(), said.code), ("3\n", 0), "{said:?}");
    let mut commits: Vec<_> = said.err.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
    commits.sort_unstable();
    assert_eq!(commits, ["1", "2"], "the child's and the parent's: {said:?}");
}

#[test]
fn a_served_program_reads_its_status_and_log_in_rows() {
    let place = Place::new();
    place.wal_database("t.db");
    let program = "
import json, sqlite3
conn = sqlite3.connect('t.db', isolation_level=None)
conn.execute('INSERT INTO t VALUES(1)')
print(conn.execute(\"SELECT value FROM duralite WHERE name = 'engine'\").fetchone()[0])
print(conn.execute('SELECT count(*), sum(durable) FROM duralite_log').fetchone())
print(json.loads(conn.execute('SELECT duralite_json()').fetchone()[0])['commits'])
";
    let said = place.duralite(&["run", "-q", "--", PYTHON, "-c", program]);
    assert_eq!((said.out.as_str(), said.code), ("waldio\n(1, 1)\n1\n", 0), "{said:?}");
}

#[test]
fn a_killed_program_loses_no_commit() {
    let place = Place::new();
    place.wal_database("k.db");
    let program = "
import os, signal, sqlite3
conn = sqlite3.connect('k.db', isolation_level=None)
for i in range(10): conn.execute('INSERT INTO t VALUES(?)', (i,))
os.kill(os.getpid(), signal.SIGKILL)
";
    let said = place.duralite(&["run", "--", PYTHON, "-c", program]);
    assert_eq!((said.code, said.err.as_str()), (-9, ""));
    assert!(place.stock("k.db", "SELECT count(*) FROM t").err.contains("file is not a database"));
    let said = place.duralite(&[
        "run",
        "-q",
        "--",
        "sqlite3",
        "k.db",
        "SELECT count(*) FROM t; PRAGMA integrity_check",
    ]);
    assert_eq!(said.out, "10\nok\n", "{said:?}");
    assert_eq!(
        place.stock("k.db", "SELECT count(*) FROM t").out,
        "10\n",
        "the last close left one plain file"
    );
}

/// The program ends without closing the database, as the shell does after an error. Stock SQLite would leave a `-wal`
/// file.
#[test]
fn a_program_that_closes_nothing_is_told_so() {
    let place = Place::new();
    place.wal_database("n.db");
    let said =
        place.duralite(&["run", "--", "sqlite3", "n.db", "INSERT INTO t VALUES(1); SELECT * FROM missing"]);
    assert!(said.code == 1 && said.err.contains("commits 1; not closed: "), "{said:?}");
    let said = place.duralite(&["checkpoint", "n.db"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(place.stock("n.db", "SELECT * FROM t").out, "1\n");
}

#[test]
fn two_programs_share_a_database() {
    let place = Place::new();
    place.wal_database("s.db");
    let program = "
import sqlite3
conn = sqlite3.connect('s.db', isolation_level=None, timeout=60)
for i in range(50): conn.execute('INSERT INTO t VALUES(?)', (i,))
";
    let start = || {
        let mut command = place.command(COMMAND);
        command.args(["run", "--", PYTHON, "-c", program]).stderr(Stdio::piped()).spawn().unwrap()
    };
    for child in [start(), start()] {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && said.contains(SERVED) && said.ends_with("commits 50\n"), "{said}");
    }
    assert_eq!(
        place.stock("s.db", "SELECT count(*), sum(a) FROM t; PRAGMA integrity_check").out,
        "100|2450\nok\n"
    );
}

#[test]
fn threads_that_make_a_database_at_once_all_have_it_in_wal_mode() {
    let place = Place::new();
    let program = "
import sqlite3, threading
together = threading.Barrier(8)
def work():
    together.wait()
    conn = sqlite3.connect('new.db', isolation_level=None, timeout=60)
    conn.execute('CREATE TABLE IF NOT EXISTS t(a)')
    conn.execute('INSERT INTO t VALUES(1)')
    conn.close()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
";
    let said = place.duralite(&["run", "--wal", "--", PYTHON, "-c", program]);
    assert!(said.code == 0 && said.err.contains(SERVED), "{said:?}");
    assert_eq!(place.stock("new.db", "PRAGMA journal_mode; SELECT count(*) FROM t").out, "wal\n8\n");
}

#[test]
fn a_program_ends_as_it_would_without() {
    let place = Place::new();
    for (script, code) in [("exit 7", 7), ("kill -15 $$", -15), ("kill -9 $$", -9)] {
        assert_eq!(place.duralite(&["run", "--", "sh", "-c", script]).code, code, "{script}");
    }
    assert_eq!(place.duralite(&["run", "--", "sqlite3", "x.db", "SELECT * FROM missing"]).code, 1);
    let said = place.duralite(&["run", "--", "no-such-program"]);
    assert_eq!((said.code, said.err.as_str()), (127, "duralite: no-such-program: no such program\n"));
    assert_eq!(place.duralite(&["run"]).code, 2);
}

#[test]
fn a_wrong_setting_starts_nothing() {
    let place = Place::new();
    for (arguments, said) in [
        (["--set", "durabilty=full"], "did you mean durability?"),
        (["--set", "durability"], "--set takes NAME=VALUE"),
        (["--journal", "nosuch"], "journal=nosuch is not valid"),
    ] {
        let refused = place.duralite(&[&["run"], &arguments[..], &["--", "touch", "started"]].concat());
        assert!(refused.code == 2 && refused.err.contains(said), "{refused:?}");
    }
    assert!(!place.path("started").exists());
    // Duralite refuses a wrong setting in the environment when the program opens a database.
    let mut command = place.command(COMMAND);
    command.env("DURALITE_DURABILTY", "full").args(["run", "--", "sqlite3", "x.db", "CREATE TABLE t(a)"]);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && said.contains("x.db: not opened: unknown environment variable"),
        "{said}"
    );
}

#[test]
fn a_program_that_cannot_be_reached_is_not_started() {
    let place = Place::new();
    let program = place.compile("static", "int main(void) { return 0; }", &["-static"]);
    let said = place.duralite(&["run", "--", program.to_str().unwrap()]);
    assert!(said.code == 126 && said.err.contains("is statically linked"), "{said:?}");
    std::fs::write(place.path("script"), format!("#!/usr/bin/env {}\n", program.display())).unwrap();
    std::fs::set_permissions(place.path("script"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let said = place.duralite(&["run", "--", "./script"]);
    assert!(said.code == 126 && said.err.contains("is statically linked"), "{said:?}");
    let program = place.compile("setuid", "int main(void) { return 0; }", &[]);
    assert_eq!(place.duralite(&["run", "-q", "--", "./setuid"]).code, 0);
    // If the test runs as root, it gives the program to another user. Otherwise it uses `passwd`, which belongs to
    // root.
    if std::os::unix::fs::chown(&program, Some(65534), None).is_ok() {
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).unwrap();
        let said = place.duralite(&["run", "--", "./setuid"]);
        assert!(said.code == 126 && said.err.contains("another user's rights"), "{said:?}");
    } else {
        let said = place.duralite(&["run", "--", "passwd", "--help"]);
        assert!(said.code == 126 && said.err.contains("another user's rights"), "{said:?}");
    }
}

#[test]
fn a_library_that_is_missing_or_broken_is_said() {
    let place = Place::new();
    // Copy with `cp` and not with `fs::copy`. During `fs::copy` this process has the new file open for writing, and a
    // child that another test starts at that time inherits the descriptor. Linux does not execute a file while any
    // process has it open for writing.
    assert_eq!(place.run("cp", &[COMMAND, "duralite"]).code, 0);
    let said = place.run("./duralite", &["run", "--", "sqlite3", "x.db", "SELECT 1"]);
    assert!(said.code == 126 && said.err.contains("libduralite.so is at none of"), "{said:?}");
    let preload = Path::new(COMMAND).with_file_name("libduralite_preload.so");
    std::fs::copy(preload, place.path("libduralite_preload.so")).unwrap();
    std::fs::write(place.path("libduralite.so"), "no library").unwrap();
    let said = place.run("./duralite", &["run", "--", "sqlite3", "x.db", "CREATE TABLE t(a)"]);
    assert!(said.code != 0 && said.err.contains("no database is opened: "), "{said:?}");
    assert!(said.err.contains("no such vfs: duralite (the reason is on standard error)"), "{said:?}");
    assert!(!place.path("x.db").exists());
}

/// A program that loads a module as PHP loads its extensions: the module looks for symbols in its own libraries first
/// (`RTLD_DEEPBIND`).
const MODULE: &str = r#"
#include <sqlite3.h>
int run(void) {
    sqlite3 *db;
    int code = sqlite3_open("m.db", &db);
    code = code ? code : sqlite3_exec(db, "INSERT INTO t VALUES(1)", 0, 0, 0);
    return code | sqlite3_close(db);
}
"#;
const LOADER: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
int main(void) {
    void *module = dlopen("./module.so", RTLD_NOW | RTLD_GLOBAL | RTLD_DEEPBIND);
    return module ? ((int (*)(void)) dlsym(module, "run"))() : 99;
}
"#;

#[test]
fn a_module_that_finds_its_own_libraries_first_is_served() {
    let place = Place::new();
    place.wal_database("m.db");
    place.compile("module.so", MODULE, &["-shared", "-fPIC", "-lsqlite3"]);
    place.compile("loader", LOADER, &["-ldl"]);
    assert_eq!(place.run("./loader", &[]).code, 0, "stock SQLite");
    let said = place.duralite(&["run", "--", "./loader"]);
    assert!(said.code == 0 && said.err.contains(SERVED) && said.err.ends_with("commits 1\n"), "{said:?}");
}

/// A C program that also configures SQLite and shuts it down, and that opens databases in several ways.
const ODD: &str = r#"
#include <sqlite3.h>
#include <stdio.h>
static int run(sqlite3 *db, const char *sql) { return sqlite3_exec(db, sql, 0, 0, 0); }
int main(void) {
    sqlite3 *db;
    static const unsigned short name[] = {'c', '.', 'd', 'b', 0};
    /* Before the first open, where it still can. */
    if (sqlite3_config(SQLITE_CONFIG_SERIALIZED) != SQLITE_OK) return 10;
    if (sqlite3_open("c.db", &db) || run(db, "INSERT INTO t VALUES(1)") || sqlite3_close(db)) return 11;
    if (sqlite3_shutdown() || sqlite3_config(SQLITE_CONFIG_MULTITHREAD)) return 12;
    if (sqlite3_open16(name, &db) || run(db, "INSERT INTO t VALUES(2)") || sqlite3_close(db)) return 13;
    if (sqlite3_open_v2("c.db", &db, SQLITE_OPEN_READWRITE, 0) || run(db, "INSERT INTO t VALUES(3)") || sqlite3_close(db)) return 14;
    if (sqlite3_open_v2("nowhere/c.db", &db, SQLITE_OPEN_READWRITE, 0) != SQLITE_CANTOPEN) return 15;
    puts(sqlite3_errmsg(db));
    return sqlite3_close(db);
}
"#;

#[test]
fn a_program_configures_shuts_down_and_opens_again() {
    let place = Place::new();
    place.wal_database("c.db");
    place.compile("odd", ODD, &["-lsqlite3"]);
    let stock = place.run("./odd", &[]);
    let said = place.duralite(&["run", "--", "./odd"]);
    assert_eq!((said.code, &said.out), (0, &stock.out), "{said:?}");
    assert!(said.err.contains("c.db: ") && said.err.contains(", commits 3\n"), "{said:?}");
}

/// A program that finds SQLite's functions in SQLite's own library with `dlsym`, so that the preloaded library cannot
/// intercept its calls.
const PAST: &str = r#"
#include <dlfcn.h>
int main(void) {
    void *library = dlopen("libsqlite3.so.0", RTLD_NOW | RTLD_LOCAL), *db;
    int (*open)(const char *, void **) = (int (*)(const char *, void **)) dlsym(library, "sqlite3_open");
    return open("c.db", &db);
}
"#;

#[test]
fn a_program_that_goes_past_the_linker_is_told_that_nothing_was_reached() {
    let place = Place::new();
    place.compile("past", PAST, &["-ldl"]);
    let said = place.duralite(&["run", "--", "./past"]);
    assert!(said.code == 0 && said.err.contains("through a SQLite that can be reached"), "{said:?}");
}

#[test]
fn a_database_in_memory_files_is_served_with_the_guarantee_of_memory() {
    let place = Place::within(Path::new("/dev/shm"));
    place.wal_database("m.db");
    let said = place.duralite(&["run", "--", "sqlite3", "m.db", "INSERT INTO t VALUES(1)"]);
    assert!(said.err.contains("engine waldio, guarantee process-crash, commits 1"), "{said:?}");
    let nvwal = [
        "run",
        "--journal",
        "nvwal",
        "--nvram",
        "emulate",
        "--",
        "sqlite3",
        "m.db",
        "INSERT INTO t VALUES(2)",
    ];
    let said = place.duralite(&nvwal);
    assert!(said.err.contains("engine nvwal, guarantee process-crash, commits 1"), "{said:?}");
    assert_eq!(place.stock("m.db", "SELECT sum(a) FROM t").out, "3\n");
}

#[test]
fn a_library_that_is_named_and_not_there_is_an_error() {
    let place = Place::new();
    let mut command = place.command(COMMAND);
    let output = command.args(["run", "--", "true"]).env("DURALITE_LIBRARY", "/nope").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(126), "{said}");
    assert!(said.contains("DURALITE_LIBRARY names /nope, and there is no such file"), "{said}");
}
