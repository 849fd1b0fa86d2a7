//! The SQLite libraries on this machine, and the programs that use SQLite.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::launch::{self, Orders, Settings};
use crate::program;

/// Directories with libraries. Each may have a subdirectory for the architecture.
const LIBRARY_DIRS: [&str; 4] = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib"];

/// Programs that use SQLite, each with two lists of arguments. Each list asks the program a question, which it answers
/// by printing `1` for yes or `0` for no. The first question is whether the program can load extensions. The second is
/// whether its SQLite has the function `duralite_last_error`. If it has, Duralite serves the databases that the program
/// opens.
const PROGRAMS: [(&str, &[&str], &[&str]); 3] = [
    (
        "sqlite3",
        &[
            "-batch",
            "-init",
            "/dev/null",
            ":memory:",
            "SELECT 1 - sqlite_compileoption_used('OMIT_LOAD_EXTENSION')",
        ],
        &[
            "-batch",
            "-init",
            "/dev/null",
            "",
            "SELECT count(*) FROM pragma_function_list WHERE name='duralite_last_error'",
        ],
    ),
    (
        "python3",
        &["-c", "import sqlite3; print(int(hasattr(sqlite3.Connection, 'enable_load_extension')))"],
        &[
            "-c",
            "import sqlite3; print(sqlite3.connect('').execute(\"SELECT count(*) FROM pragma_function_list WHERE name='duralite_last_error'\").fetchone()[0])",
        ],
    ),
    (
        "php",
        &["-r", "print((int) method_exists('SQLite3', 'loadExtension'));"],
        &[
            "-r",
            "print((new PDO('sqlite:'))->query(\"SELECT count(*) FROM pragma_function_list WHERE name='duralite_last_error'\")->fetchColumn());",
        ],
    ),
];

/// Returns the shared libraries of SQLite, without duplicates.
pub(super) fn libraries() -> BTreeSet<String> {
    let below = |dir: &&str| {
        let architectures = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
        let own = Path::new(dir).to_path_buf();
        architectures
            .filter(|path| path.to_string_lossy().ends_with("-linux-gnu"))
            .chain([own])
            .collect::<Vec<_>>()
    };
    let files =
        LIBRARY_DIRS.iter().flat_map(below).flat_map(|dir| fs::read_dir(dir).into_iter().flatten().flatten());
    let libraries = files.filter(|file| file.file_name().to_string_lossy().starts_with("libsqlite3.so"));
    libraries.filter_map(|file| Some(file.path().canonicalize().ok()?.display().to_string())).collect()
}

/// Returns which of the `PROGRAMS` are installed. Says for each whether it can load extensions, and whether Duralite
/// serves its databases if `duralite run` starts it.
pub(super) fn programs() -> Value {
    let found = PROGRAMS.iter().filter_map(|(name, loads, served)| {
        let path = program::find(OsStr::new(name)).ok()?;
        let answer = |command: &mut Command| {
            let output = command.output().ok()?;
            Some(String::from_utf8_lossy(&output.stdout).trim() == "1")
        };
        let run = launch::command(
            OsStr::new(name),
            &Settings::default(),
            Orders { wal: false, quiet: true, reasons: false },
        );
        let facts = json!({
            "loads_extensions": answer(Command::new(&path).args(*loads)),
            "duralite_run_reaches_it": run.ok().and_then(|mut command| answer(command.args(*served))),
        });
        Some((path.display().to_string(), facts))
    });
    Value::Object(found.collect())
}
