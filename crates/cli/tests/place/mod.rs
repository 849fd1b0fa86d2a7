//! An empty directory, and programs that run in it, with and without `duralite`.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// Debian's Python. It loads `_sqlite3` as a module that is linked to the system's SQLite.
pub const PYTHON: &str = "/usr/bin/python3";
pub const COMMAND: &str = env!("CARGO_BIN_EXE_duralite");

/// The output of a program, and its exit code. The code is negative if a signal ended the program.
#[derive(Debug)]
pub struct Said {
    pub out: String,
    pub err: String,
    pub code: i32,
}

impl Said {
    fn of(output: Output) -> Self {
        let status = output.status;
        Self {
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
            code: status.code().unwrap_or_else(|| -status.signal().unwrap()),
        }
    }
}

pub struct Place(TempDir);

impl Place {
    pub fn new() -> Self {
        Self::within(&std::env::temp_dir())
    }

    pub fn within(parent: &Path) -> Self {
        for library in ["libduralite.so", "libduralite_preload.so"] {
            let path = Path::new(COMMAND).with_file_name(library);
            assert!(path.is_file(), "{library} is not built; run `make build`");
        }
        Self(tempfile::Builder::new().prefix("duralite-cli-").tempdir_in(parent).unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns a command that runs a program in this directory, in an environment without Duralite's settings.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DURALITE_") {
                command.env_remove(name);
            }
        }
        command.current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    pub fn run(&self, program: impl AsRef<OsStr>, arguments: &[&str]) -> Said {
        Said::of(self.command(program).args(arguments).output().unwrap())
    }

    /// Runs `duralite` with these arguments.
    pub fn duralite(&self, arguments: &[&str]) -> Said {
        self.run(COMMAND, arguments)
    }

    /// Runs `duralite` with this standard input.
    pub fn fed(&self, arguments: &[&str], input: &str) -> Said {
        let mut command = self.command(COMMAND);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        Said::of(child.wait_with_output().unwrap())
    }

    /// Runs SQL in the system's own shell, which must be installed.
    pub fn stock(&self, database: &str, sql: &str) -> Said {
        self.run("sqlite3", &["-batch", database, sql])
    }

    /// Makes a database in WAL mode with an empty table, with stock SQLite.
    pub fn wal_database(&self, name: &str) {
        let said = self.stock(name, "PRAGMA journal_mode=WAL; CREATE TABLE t(a)");
        assert_eq!((said.out.as_str(), said.code), ("wal\n", 0), "{said:?}");
    }

    /// Compiles a C program with these arguments for the compiler.
    pub fn compile(&self, name: &str, source: &str, arguments: &[&str]) -> PathBuf {
        let (path, file) = (self.path(name), self.path(&format!("{name}.c")));
        std::fs::write(&file, source).unwrap();
        let said =
            self.run("cc", &[&["-o", path.to_str().unwrap(), file.to_str().unwrap()], arguments].concat());
        assert_eq!(said.code, 0, "{said:?}");
        path
    }
}
