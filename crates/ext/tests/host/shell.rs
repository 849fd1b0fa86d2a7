//! Runs the system's `sqlite3` shell with the library loaded.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The temporary directory in which the shell runs. It contains a log directory.
pub struct Host {
    dir: tempfile::TempDir,
}

/// What the shell printed.
pub struct Said {
    pub out: String,
    pub err: String,
    pub ok: bool,
}

impl Host {
    /// Makes the directories. Returns `None`, and prints a message, if the machine has no `sqlite3` shell.
    pub fn new() -> Option<Self> {
        if Command::new("sqlite3").arg("--version").output().is_err() {
            assert!(std::env::var_os("DURALITE_REQUIRE_RIGS").is_none(), "no sqlite3 shell on this machine");
            eprintln!("no sqlite3 shell on this machine: skipped");
            return None;
        }
        let host = Self { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir(host.log_dir()).unwrap();
        Some(host)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn log_dir(&self) -> PathBuf {
        self.path("pool")
    }

    /// Returns the logs in the log directory.
    pub fn logs(&self) -> Vec<PathBuf> {
        let paths = std::fs::read_dir(self.log_dir()).unwrap().map(|entry| entry.unwrap().path());
        paths.filter(|path| !path.to_string_lossy().ends_with("-shm")).collect()
    }

    /// Returns a URI that opens the database with `nvwal`, in emulated NVRAM, with the log in the log
    /// directory.
    pub fn uri(&self, name: &str) -> String {
        format!(
            "file:{}?vfs=duralite&journal=nvwal&nvram=emulate&nvram_dir={}",
            self.path(name).display(),
            self.log_dir().display()
        )
    }

    /// Returns a command that runs the shell without the variables `DURALITE_*` of the test's own
    /// environment.
    pub fn command(&self) -> Command {
        let mut command = Command::new("sqlite3");
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DURALITE_")) {
            command.env_remove(name);
        }
        command.current_dir(self.dir.path()).env("DURALITE_LOG", "stderr").arg("-batch");
        command
    }

    /// Runs stock SQLite on a database.
    pub fn stock(&self, name: &str, sql: &str) -> Said {
        said(self.command().arg(self.path(name)).arg(sql).output().unwrap())
    }

    /// Loads the library and runs the commands.
    pub fn run(&self, commands: &[&str]) -> Said {
        self.run_with(&[], commands)
    }

    /// Does the same as [`Host::run`], with environment variables.
    pub fn run_with(&self, environment: &[(&str, &str)], commands: &[&str]) -> Said {
        let mut shell = self.command();
        shell.envs(environment.iter().copied());
        shell.arg(":memory:").arg(format!(".load {}", library().display()));
        said(shell.args(commands).output().unwrap())
    }

    /// Runs the shell with environment variables, without loading the library.
    pub fn shell_with(&self, environment: &[(&str, &str)], arguments: &[&str]) -> Said {
        let mut shell = self.command();
        said(shell.envs(environment.iter().copied()).args(arguments).output().unwrap())
    }

    /// Runs lines as if a person typed them: the shell continues after an error.
    pub fn script(&self, lines: &str) -> Said {
        let mut shell = self.command();
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        said(child.wait_with_output().unwrap())
    }

    /// Returns how often the shell syncs a file while it opens the URI and runs the SQL. Returns `None` if
    /// the machine has no strace.
    pub fn syncs(&self, uri: &str, sql: &str) -> Option<usize> {
        let trace = self.path("trace");
        let shell = self.command();
        let mut traced = Command::new("strace");
        traced.args(["-f", "-e", "trace=fsync,fdatasync", "-o"]).arg(&trace).arg(shell.get_program());
        traced.args(shell.get_args()).current_dir(self.dir.path());
        for (name, value) in shell.get_envs() {
            match value {
                Some(value) => traced.env(name, value),
                None => traced.env_remove(name),
            };
        }
        traced
            .arg(":memory:")
            .arg(format!(".load {}", library().display()))
            .arg(format!(".open {uri}"))
            .arg(sql);
        let Ok(output) = traced.output() else {
            assert!(std::env::var_os("DURALITE_REQUIRE_RIGS").is_none(), "no strace on this machine");
            eprintln!("no strace on this machine: skipped");
            return None;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let calls = std::fs::read_to_string(trace).unwrap();
        Some(calls.lines().filter(|line| line.contains("sync(")).count())
    }

    /// Opens a URI and runs SQL and shell commands.
    pub fn open(&self, uri: &str, commands: &[&str]) -> Said {
        let open = format!(".open {uri}");
        let commands: Vec<&str> = std::iter::once(open.as_str()).chain(commands.iter().copied()).collect();
        self.run(&commands)
    }

    /// Returns the first bytes of a file on disk.
    pub fn header(&self, name: &str) -> Vec<u8> {
        let bytes = std::fs::read(self.path(name)).unwrap();
        bytes[..100].to_vec()
    }
}

fn said(output: Output) -> Said {
    Said {
        out: String::from_utf8(output.stdout).unwrap().trim_end().to_owned(),
        err: String::from_utf8(output.stderr).unwrap(),
        ok: output.status.success(),
    }
}

/// Returns the library that was built together with this test.
pub fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let candidates = [deps.join("libduralite.so"), deps.join("../libduralite.so")];
    candidates
        .iter()
        .filter(|path| path.exists())
        .max_by_key(|path| modified(path))
        .unwrap_or_else(|| panic!("libduralite.so is not built; run `cargo build -p duralite`"))
        .clone()
}

fn modified(path: &Path) -> std::time::SystemTime {
    std::fs::metadata(path).unwrap().modified().unwrap()
}
