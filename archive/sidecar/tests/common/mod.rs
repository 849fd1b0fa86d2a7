//! A database of the testkit, its archive in a directory, and the program that copies the database into the archive.

#[path = "../../../objects/tests/common/s3.rs"]
pub mod s3;

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use duralite_testkit::{Engine, Fixture, one, run, stock};
use duralite_wal::DatabaseIdentity;
use duralite_wal::placement::{Watch, describe};
use duralite_wal::shared::archived::{Archived, Behind};
use rusqlite::Connection;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tempfile::TempDir;

use s3::{CREDENTIALS, Server};

pub const NAME: &str = "app.db";
/// With these settings a commit waits for the archive for up to ten minutes. That is longer than any successful test
/// takes.
pub const FOR_EVER: &str = "replicated=on&replicated_timeout=600000";
/// How long a program may take on a busy machine to do what a test waits for.
const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until `is_so` returns `true`. If that takes too long, fails with the text `what`.
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}: it did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the command `duralite-archive`. It has the credentials for the tests' S3 server, but no settings from this
/// process's environment.
pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duralite-archive"));
    for (name, _) in std::env::vars_os() {
        if ["DURALITE_", "AWS_"].iter().any(|setting| name.to_string_lossy().starts_with(setting)) {
            command.env_remove(name);
        }
    }
    command.envs(CREDENTIALS).stdin(Stdio::null());
    command
}

/// Runs the program to its end.
#[track_caller]
pub fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    output
}

/// Runs a command that has to fail, and returns its output on standard error.
#[track_caller]
pub fn refused(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{command:?} succeeded");
    String::from_utf8(output.stderr).unwrap()
}

/// A place for an archive: a directory or an S3 server.
pub struct Place {
    pub server: Option<Server>,
    /// The address through which the sidecar reaches the server, if that is not the server's own address.
    pub proxy: Option<String>,
    dir: TempDir,
}

/// Returns the URL of the archive on a server.
fn url_at(address: &str) -> String {
    format!("s3://bucket/archive?endpoint=http://{address}&region=us-east-1")
}

/// What `duralite-archive list` says about a generation.
#[derive(Debug, Deserialize)]
pub struct Listed {
    pub line: Option<String>,
    pub counts: bool,
    pub last: Option<Moment>,
    pub snapshots: Vec<serde_json::Value>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Moment {
    pub txid: u64,
}

impl Place {
    pub fn new() -> Self {
        Self { server: None, proxy: None, dir: tempfile::tempdir().unwrap() }
    }

    /// Returns a place on a new S3 server; `None` if nobody has built the server program.
    pub fn s3() -> Option<Self> {
        let place = Self::new();
        let server = Server::start(place.dir.path())?;
        Some(Self { server: Some(server), ..place })
    }

    /// Returns the directory that holds the archive if the place has no server.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("archive")
    }

    pub fn url(&self) -> String {
        match &self.server {
            Some(server) => url_at(server.address()),
            None => format!("file://{}", self.path().display()),
        }
    }

    /// Returns the URL for the sidecar. The sidecar may reach the server through a proxy, while this test reaches it
    /// directly.
    pub fn url_of_sidecar(&self) -> String {
        self.proxy.as_deref().map_or_else(|| self.url(), url_at)
    }

    /// Moves the directory of an archive away. In the same step, an ordinary file takes the directory's name, so that
    /// nobody can write objects there.
    pub fn take_away(&self) {
        let (there, away) = (self.path(), self.path().with_extension("away"));
        std::fs::write(&away, "").unwrap();
        renameat_with(CWD, &there, CWD, &away, RenameFlags::EXCHANGE).unwrap();
    }

    /// Brings the archive back.
    pub fn bring_back(&self) {
        let (there, away) = (self.path(), self.path().with_extension("away"));
        renameat_with(CWD, &there, CWD, &away, RenameFlags::EXCHANGE).unwrap();
        std::fs::remove_file(&away).unwrap();
    }

    /// Returns the generations, the newest first.
    #[track_caller]
    pub fn listed(&self) -> Vec<Listed> {
        let output = done(program().args(["list", "--json", &self.url()]));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Returns how each generation is connected with the one before it (its `line`), the oldest generation first.
    #[track_caller]
    pub fn lines(&self) -> Vec<String> {
        let listed = self.listed();
        listed.iter().rev().map(|one| one.line.clone().unwrap_or_else(|| "unbegun".to_owned())).collect()
    }

    /// Returns the newest transaction that can be restored.
    #[track_caller]
    pub fn newest(&self) -> u64 {
        let listed = self.listed();
        listed.iter().find(|one| one.counts && one.last.is_some()).and_then(|one| one.last).unwrap().txid
    }

    /// Restores the archive, and lets SQLite check the restored database.
    #[track_caller]
    pub fn restored(&self, target: &[&str]) -> Restored {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("restored.db");
        done(program().args(["restore", "--check", &self.url()]).arg(&out).args(target));
        Restored { bytes: std::fs::read(&out).unwrap(), out, _dir: dir }
    }

    #[track_caller]
    pub fn at(&self, txid: u64) -> Restored {
        self.restored(&["--txid", &txid.to_string()])
    }

    /// Checks every object.
    #[track_caller]
    pub fn verify(&self) {
        done(program().args(["verify", &self.url()]));
    }
}

/// A database that was restored.
pub struct Restored {
    pub bytes: Vec<u8>,
    out: PathBuf,
    _dir: TempDir,
}

impl Restored {
    pub fn open(&self) -> Connection {
        stock(&self.out)
    }
}

/// Checks that two databases are equal. If they are not, fails and names the pages that differ.
#[track_caller]
pub fn assert_equal(restored: &[u8], database: &[u8], what: &str) {
    let page_bytes = match u16::from_be_bytes([database[16], database[17]]) {
        1 => 65_536,
        bytes => usize::from(bytes),
    };
    let pairs = restored.chunks(page_bytes).zip(database.chunks(page_bytes)).enumerate();
    let differ: Vec<usize> = pairs.filter(|(_, (a, b))| a != b).map(|(index, _)| index + 1).collect();
    let pages = (restored.len() / page_bytes, database.len() / page_bytes);
    assert!(differ.is_empty() && pages.0 == pages.1, "{what}: {pages:?} pages, of which differ {differ:?}");
}

/// A machine with databases of one engine.
pub struct Machine {
    pub fixture: Fixture,
}

impl Machine {
    pub fn new(engine: Engine) -> Self {
        Self { fixture: Fixture::on(engine) }
    }

    pub fn database(&self) -> PathBuf {
        self.fixture.path(NAME)
    }

    /// Returns how much the archive lacks, as the sidecar shows it to `duralite top`. A program must have the database
    /// open.
    #[track_caller]
    pub fn behind(&self) -> Behind {
        self.announced().behind
    }

    /// Returns what the sidecar has announced in the log's shared memory. A program must have the database open.
    #[track_caller]
    pub fn announced(&self) -> Archived {
        let log = &self.fixture.logs()[0];
        let identity = DatabaseIdentity::of(&self.database()).unwrap();
        let watch = Watch::open(log, describe(log).unwrap().id, &identity).unwrap();
        watch.and_then(|watch| watch.look().unwrap()).unwrap().archived
    }

    /// Returns the command that makes this machine's database the primary of an archive.
    pub fn promote(&self, place: &Place) -> Command {
        let mut command = program();
        command.args(["promote", &place.url()]).arg(self.database()).args(self.options());
        command
    }

    /// Returns the bytes of the database file. No process may have the file open.
    pub fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.database()).unwrap()
    }

    /// Opens a connection in WAL mode.
    #[track_caller]
    pub fn open(&self, settings: &str) -> Connection {
        let conn = patient(&self.fixture.uri(NAME, settings));
        assert_eq!(one::<String>(&conn, "PRAGMA journal_mode=WAL"), "wal");
        conn
    }

    /// Opens the database, runs statements, and closes it.
    #[track_caller]
    pub fn session(&self, statements: &[&str]) {
        let conn = self.open("");
        for statement in statements {
            run(&conn, statement).unwrap_or_else(|error| panic!("{statement}: {error}"));
        }
        conn.close().unwrap();
    }

    /// Returns the command-line options that say where the logs are.
    pub fn options(&self) -> Vec<String> {
        let log_dir = self.fixture.log_dir().display();
        let dirs =
            ["--log-dir", "--nvram-dir"].into_iter().flat_map(|name| [name.to_owned(), log_dir.to_string()]);
        let settings = self.fixture.engine().settings(self.fixture.log_dir());
        let settings = settings.split('&').flat_map(|pair| ["--set".to_owned(), pair.to_owned()]);
        dirs.chain(settings).collect()
    }

    pub fn replicate(&self, name: &str, place: &Place) -> Command {
        self.replicate_every("10ms", name, place)
    }

    /// Does the same as [`Machine::replicate`], with a given interval.
    pub fn replicate_every(&self, interval: &str, name: &str, place: &Place) -> Command {
        let mut command = program();
        command
            .arg("replicate")
            .arg(self.fixture.path(name))
            .arg(place.url_of_sidecar())
            .args(self.options());
        command.args(["--interval", interval]);
        command
    }

    /// Starts the sidecar.
    pub fn sidecar(&self, place: &Place) -> Sidecar {
        Sidecar::start(&mut self.replicate(NAME, place))
    }

    /// Archives everything that was committed, and then returns.
    #[track_caller]
    pub fn once(&self, place: &Place) {
        done(self.replicate(NAME, place).arg("--once"));
    }
}

/// Opens a database. Tries again if that fails, because another process may be just setting or removing the guard.
#[track_caller]
pub fn patient(uri: &str) -> Connection {
    let began = Instant::now();
    loop {
        match duralite_testkit::connect(uri) {
            Ok(conn) => {
                conn.busy_timeout(PATIENCE).unwrap();
                if run(&conn, "SELECT count(*) FROM sqlite_schema").is_ok() {
                    return conn;
                }
            }
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the pages of the database as a connection sees them.
pub fn pages(conn: &Connection) -> Vec<u8> {
    let rows = run(conn, "SELECT data FROM sqlite_dbpage ORDER BY pgno").unwrap();
    let of_row = |row: Vec<rusqlite::types::Value>| match row.into_iter().next() {
        Some(rusqlite::types::Value::Blob(bytes)) => bytes,
        other => panic!("{other:?}"),
    };
    rows.into_iter().flat_map(of_row).collect()
}

/// Returns one value from the table `duralite`, which shows the status.
pub fn status(conn: &Connection, name: &str) -> String {
    let query = format!("SELECT value FROM duralite WHERE name = '{name}'");
    run(conn, &query).unwrap().first().map_or_else(String::new, |row| match &row[0] {
        rusqlite::types::Value::Text(text) => text.clone(),
        rusqlite::types::Value::Integer(number) => number.to_string(),
        other => format!("{other:?}"),
    })
}

/// A running `duralite-archive`. Dropping this value kills the program.
pub struct Sidecar {
    child: Child,
    log: tempfile::NamedTempFile,
}

impl Sidecar {
    pub fn start(command: &mut Command) -> Self {
        let log = tempfile::NamedTempFile::new().unwrap();
        let output = File::options().append(true).open(log.path()).unwrap();
        let child = command.stdout(output.try_clone().unwrap()).stderr(output).spawn().unwrap();
        Self { child, log }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns what the program has said.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap()
    }

    /// Waits until `is_so` returns `true`. Fails if the program ends before that.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut is_so: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is_so() {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() && began.elapsed() < PATIENCE, "{what}: {ended:?}\n{}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the archive has everything that was committed.
    #[track_caller]
    pub fn until_archived(&mut self, conn: &Connection) {
        self.until("the archive lags", || {
            status(conn, "archive") == "sidecar runs" && status(conn, "archive_lag_transactions") == "0"
        });
    }

    /// Waits until no log guards the database, so that it is an ordinary file.
    #[track_caller]
    pub fn until_plain(&mut self, machine: &Machine) {
        self.until("the guard is on", || {
            !machine.fixture.is_guarded(NAME) && machine.fixture.logs().is_empty()
        });
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks the program to end, and checks that it ends without an error.
    #[track_caller]
    pub fn end(mut self) {
        self.signal(Signal::TERM);
        until("it does not end", || self.child.try_wait().unwrap().is_some());
        let ended = self.child.wait().unwrap();
        assert!(ended.success(), "{ended}\n{}", self.said());
    }

    /// Closes the last connection once everything is archived. When the database is an ordinary file again, asks the
    /// sidecar to end.
    #[track_caller]
    pub fn end_after(mut self, conn: Connection, machine: &Machine) {
        self.until_archived(&conn);
        conn.close().unwrap();
        self.until_plain(machine);
        self.end();
    }

    /// Waits until the program has ended by itself with an error. Returns its output.
    #[track_caller]
    pub fn failed(mut self) -> String {
        until("it does not end", || self.child.try_wait().unwrap().is_some());
        assert_eq!(self.child.wait().unwrap().code(), Some(1), "{}", self.said());
        self.said()
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the sidecar said:\n{}", self.said());
        }
    }
}
