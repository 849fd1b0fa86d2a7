//! A directory with databases, and another directory for their logs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use duralite_wal::engine::media::SHARED_MEMORY_DIR;
use duralite_wal::engines::scratchpad::is_region_name;
use rusqlite::Connection;
use tempfile::TempDir;

use crate::undo_file::UndoFile;
use crate::{Engine, SideFile, sql};

/// The bytes of a database's header that hold the guard, as a range of offsets.
pub const VERSIONS: std::ops::Range<usize> = 18..20;
/// The content of the bytes at `VERSIONS` while a log holds the newest commits.
pub const GUARD: [u8; 2] = [2, 0xd7];

/// The content of the bytes at `VERSIONS` while a log holds the rollback journal.
pub const ROLLBACK_GUARD: [u8; 2] = [1, 0xd8];

/// The databases and logs of one test. Dropping this value deletes them.
pub struct Fixture {
    dir: TempDir,
    log_dir: TempDir,
    engine: Engine,
}

impl Default for Fixture {
    fn default() -> Self {
        Self::new()
    }
}

impl Fixture {
    /// Makes an empty fixture for the engine under test.
    #[must_use]
    pub fn new() -> Self {
        Self::on(Engine::under_test())
    }

    /// Makes an empty fixture. Databases are in the temporary directory. The logs of an engine that works in
    /// memory are in shared memory, if the machine has it.
    #[must_use]
    pub fn on(engine: Engine) -> Self {
        let temporary = std::env::temp_dir();
        let memory = Path::new(SHARED_MEMORY_DIR);
        let log_dirs = if memory.is_dir() && engine.is_in_memory() { memory } else { &temporary };
        let make = |parent: &Path| tempfile::Builder::new().prefix("duralite-test-").tempdir_in(parent);
        Self { dir: make(&temporary).unwrap(), log_dir: make(log_dirs).unwrap(), engine }
    }

    /// Returns the engine.
    #[must_use]
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Returns the path of a file in the databases' directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the log directory.
    #[must_use]
    pub fn log_dir(&self) -> &Path {
        self.log_dir.path()
    }

    /// Returns the URI of a database on the engine, with its log in the log directory. `settings` are more
    /// parameters.
    #[must_use]
    pub fn uri(&self, name: &str, settings: &str) -> String {
        self.uri_with_log_dir(name, self.log_dir(), settings)
    }

    /// Returns a URI as [`Fixture::uri`] does, with another log directory.
    #[must_use]
    pub fn uri_with_log_dir(&self, name: &str, log_dir: &Path, settings: &str) -> String {
        let and = if settings.is_empty() { "" } else { "&" };
        format!(
            "file:{}?vfs=duralite&{}{and}{settings}",
            self.path(name).display(),
            self.engine.settings(log_dir)
        )
    }

    /// Opens a connection on the engine, in WAL mode.
    #[must_use]
    pub fn open(&self, name: &str) -> Connection {
        self.open_with(name, "")
    }

    /// Opens a connection as [`Fixture::open`] does, with more URI parameters.
    #[must_use]
    pub fn open_with(&self, name: &str, settings: &str) -> Connection {
        let conn = sql::connect(&self.uri(name, settings)).unwrap();
        assert_eq!(sql::one::<String>(&conn, "PRAGMA journal_mode=WAL"), "wal");
        conn
    }

    /// Returns the logs in the log directory. Leaves out the shared memory of logs, the regions of
    /// `scratchpad`, and the files that the test engines keep beside logs.
    #[must_use]
    pub fn logs(&self) -> Vec<PathBuf> {
        let mut logs: Vec<_> = std::fs::read_dir(self.log_dir())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| !is_shared_memory(path) && !is_region_name(path))
            .filter(|path| !SideFile::is_one(path) && !UndoFile::is_one(path))
            .collect();
        logs.sort();
        logs
    }

    /// Returns the only log in the log directory.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        let logs = self.logs();
        assert_eq!(logs.len(), 1, "{logs:?}");
        logs[0].clone()
    }

    /// Returns whether the file on disk has the guard in its header.
    #[must_use]
    pub fn is_guarded(&self, name: &str) -> bool {
        let bytes = std::fs::read(self.path(name)).unwrap();
        bytes.get(VERSIONS) == Some(&GUARD) || bytes.get(VERSIONS) == Some(&ROLLBACK_GUARD)
    }

    /// Returns the content of all files in both directories. A comparison of two snapshots shows whether
    /// anything has changed.
    #[must_use]
    pub fn snapshot(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = snapshot(self.dir.path());
        files.extend(snapshot(self.log_dir()));
        files
    }

    /// Asserts that `name` is an ordinary database that stock SQLite finds sound, without a log or
    /// a `-wal` beside it.
    pub fn assert_plain(&self, name: &str) {
        assert!(!self.is_guarded(name), "the guard is still on");
        assert!(!self.path(&format!("{name}-wal")).exists(), "there is a -wal file");
        sql::integrity(&sql::stock(&self.path(name)));
    }
}

/// Returns the content of every file in a directory, except shared memory, which holds no data.
#[must_use]
pub fn snapshot(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.is_file() && !is_shared_memory(path))
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect()
}

/// Returns whether a file is shared memory, of SQLite or of a log.
fn is_shared_memory(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"-shm")
}

/// Returns the answer of the system's `sqlite3` shell, output and errors together. If there is no such shell,
/// prints a note and returns `None`.
#[must_use]
pub fn stock_shell(path: &Path, sql: &str) -> Option<String> {
    let mut shell = Command::new("sqlite3");
    shell.arg("-batch").arg(path).arg(sql);
    let Ok(output) = shell.output() else {
        eprintln!("skipped: there is no sqlite3 shell on this machine");
        assert!(!crate::require_rigs(), "DURALITE_REQUIRE_RIGS is set, and there is no sqlite3 shell");
        return None;
    };
    let text = [output.stdout, output.stderr].concat();
    Some(String::from_utf8(text).unwrap().trim_end().to_owned())
}
