//! Programs of other projects judge the archive: a real S3 server, Litestream, and the tool `ltx` for Litestream's file
//! format.
//!
//! `scripts/judges` builds the programs. If the programs are missing, the tests say so and do nothing, unless
//! DURALITE_REQUIRE_RIGS is set.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use duralite_archive::{Archive, Generation, Target};
use object_store::{Attribute, GetOptions};
use rusqlite::Connection;
use tempfile::TempDir;

use super::common::s3::{CREDENTIALS, Server, judge};
use super::common::{Database, Writer, lived, restored, time_of, wait, work};

/// How long a program may take on a busy machine to start, or to do what the test waits for.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs the test in a separate process that has the credentials in its environment.
fn with_credentials(test: &str, body: impl FnOnce()) {
    if std::env::var("AWS_ACCESS_KEY_ID").as_deref() == Ok(CREDENTIALS[0].1) {
        return body();
    }
    let mut this = Command::new(std::env::current_exe().unwrap());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("AWS_") {
            this.env_remove(name);
        }
    }
    this.args(["--exact", "--nocapture", "--include-ignored", test]).envs(CREDENTIALS);
    assert!(this.status().unwrap().success());
}

/// A program that is killed at the end of the test.
struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    fn start(command: &mut Command, log: PathBuf) -> Self {
        let output = File::create(&log).unwrap();
        let child =
            command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output).spawn().unwrap();
        Self { child, log }
    }

    fn wait_until(&mut self, what: &str, mut is_so: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is_so() {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() && began.elapsed() < PATIENCE, "{what}: {ended:?}\n{}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn said(&self) -> String {
        let mut text = String::new();
        File::open(&self.log).unwrap().read_to_string(&mut text).unwrap();
        text
    }

    /// Asks the program to end, and waits until it has ended.
    fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let began = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(began.elapsed() < PATIENCE, "{}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A place for archives: a real S3 server or a directory.
struct Place {
    /// The directory that holds the objects as files.
    files: PathBuf,
    /// The two parts of a URL, before and after the prefix. The first part is `s3://bucket` or `file://…`.
    url: (String, String),
    server: Option<Server>,
    dir: TempDir,
}

impl Place {
    fn directory() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let files = dir.path().join("files");
        let url = (format!("file://{}", files.display()), String::new());
        Self { files, url, server: None, dir }
    }

    fn s3() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(dir.path())?;
        let endpoint = format!("?endpoint=http://{}&region=us-east-1", server.address());
        let url = ("s3://bucket".to_owned(), endpoint);
        Some(Self { files: server.files.clone(), url, server: Some(server), dir })
    }

    fn is_s3(&self) -> bool {
        self.server.is_some()
    }

    /// Returns the URL of a prefix.
    fn url(&self, prefix: &str) -> String {
        format!("{}/{prefix}{}", self.url.0, self.url.1)
    }

    fn archive(&self, prefix: &str) -> Archive {
        Archive::open(&self.url(prefix).parse().unwrap()).unwrap()
    }

    /// Restores a database with Litestream, and returns its bytes.
    fn by_litestream(&self, litestream: &Path, url: &str, target: &[&str]) -> Vec<u8> {
        let dir = tempfile::tempdir_in(self.dir.path()).unwrap();
        let out = dir.path().join("out.db");
        let done = Command::new(litestream)
            .args(["restore", "-o"])
            .arg(&out)
            .args(target)
            .arg(url)
            .output()
            .unwrap();
        assert!(done.status.success(), "{url} {target:?}: {done:?}");
        std::fs::read(out).unwrap()
    }
}

fn files_below(dir: &Path, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_below(&path, end));
        } else if path.to_string_lossy().ends_with(end) {
            found.push(path);
        }
    }
    found
}

/// Returns a time in the format that Litestream reads.
fn rfc3339(time_ms: i64) -> String {
    let script = "import sys, datetime as d; print(d.datetime.fromtimestamp(int(sys.argv[1]) / 1000, d.UTC).isoformat())";
    let done = Command::new("python3").args(["-c", script, &time_ms.to_string()]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// Checks that Litestream restores each state from an archive that this crate has written.
fn litestream_restores_ours(place: &Place, litestream: &Path, page_size: u32, seed: u64) {
    println!("page size {page_size}, seed {seed}");
    let prefix = format!("ours-{page_size}");
    let archive = place.archive(&prefix);
    let writer = lived(archive.clone(), page_size, seed);
    if let Some(ltx) = judge("ltx") {
        let files = files_below(&place.files.join(prefix.trim_matches('/')), ".ltx");
        assert!(files.len() > 30, "{files:?}");
        let done = Command::new(ltx).arg("verify").args(files).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    let url = place.url(&format!("{prefix}/g{}", Generation::FIRST));
    let listed = wait(archive.listed()).unwrap();
    assert_eq!(listed[0].last.unwrap().txid, writer.txid);
    assert!(place.by_litestream(litestream, &url, &[]) == writer.states[&writer.txid]);
    // The first eight objects of level 0 are deleted, and compacted objects replace them. A compacted object leads only
    // to the state after its last transaction, so some of the first states cannot be restored. The loop begins after
    // those states.
    for (txid, bytes) in writer.states.iter().skip(9).step_by(5) {
        assert!(restored(&archive, Target::Txid(*txid)).unwrap() == *bytes, "{txid}");
        assert!(
            place.by_litestream(litestream, &url, &["-txid", &format!("{txid:016x}")]) == *bytes,
            "{txid}"
        );
        let time_ms = time_of(*txid);
        if place.is_s3() {
            // On S3, Litestream accepts no time before the upload. So the test only checks the attribute from which
            // Litestream would read the time.
            let objects = wait(archive.objects(&writer.replica)).unwrap();
            let object = objects.iter().find(|object| object.max == *txid).unwrap();
            let key = writer.replica.key(object);
            let attributes = wait(archive.store().get_opts(&key, GetOptions::default())).unwrap().attributes;
            let stated =
                attributes.get(&Attribute::Metadata("litestream-timestamp".into())).unwrap().to_string();
            assert_eq!(stated, format!("{}.000Z", &rfc3339(time_ms)[..19]), "{key}");
            continue;
        }
        // Litestream restores the state before the given time, and Duralite the state at or before it.
        let time = rfc3339(time_ms + 1);
        assert!(place.by_litestream(litestream, &url, &["-timestamp", &time]) == *bytes, "{txid} {time}");
    }
}

/// Checks that this crate restores what Litestream has archived.
fn ours_restores_litestreams(place: &Place, litestream: &Path, seed: u64) {
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let database = Database::new(4096);
    let path = database.dir.path().join("source.db");
    database.sql.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).unwrap();
    let url = place.url("theirs");
    let mut command = Command::new(litestream);
    command.arg("replicate").arg(&path).arg(&url);
    let mut replicate = Running::start(&mut command, place.dir.path().join("litestream.log"));
    let first = "0000000000000001-0000000000000001.ltx";
    replicate.wait_until("Litestream does not begin", || !files_below(&place.files, first).is_empty());
    for at in 0..300 {
        match at {
            100 => database.sql.execute_batch("DELETE FROM t WHERE id % 3 > 0; VACUUM").unwrap(),
            200 => database.sql.execute_batch("DELETE FROM t; VACUUM").unwrap(),
            _ => database.sql.execute_batch(&work(&mut random)).unwrap(),
        }
        // Litestream checks the database once a second. The test waits for Litestream here, so that the archive gets
        // several states.
        if at % 60 == 0 {
            let had = files_below(&place.files, ".ltx").len();
            replicate
                .wait_until("Litestream does not go on", || files_below(&place.files, ".ltx").len() > had);
        }
    }
    replicate.end();
    let archive = place.archive("theirs");
    let ours = restored(&archive, Target::Latest).unwrap();
    assert!(ours == place.by_litestream(litestream, &url, &[]), "the end");
    let out = database.dir.path().join("restored.db");
    std::fs::write(&out, &ours).unwrap();
    let content = |sql: &Connection| {
        let query = "SELECT count(*), coalesce(sum(length(text)), 0), max(id), group_concat(text) FROM t";
        sql.query_row(query, [], |row| {
            Ok((
                row.get::<_, i64>(0)?,
                row.get::<_, i64>(1)?,
                row.get::<_, Option<i64>>(2)?,
                row.get::<_, Option<String>>(3)?,
            ))
        })
        .unwrap()
    };
    let sql = Connection::open(&out).unwrap();
    assert!(content(&sql) == content(&database.sql), "the source has something else");
    assert_eq!(sql.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0)).unwrap(), "ok");
    let verified = wait(archive.verify(8, None)).unwrap();
    assert!(verified.is_sound(), "{verified:?}");
    let states: Vec<u64> = (1..=verified.intact[0].last.unwrap()).collect();
    let mut compared = 0;
    for txid in states.iter().rev().step_by(states.len().div_ceil(6)) {
        let Ok(ours) = restored(&archive, Target::Txid(*txid)) else { continue };
        let theirs = place.by_litestream(litestream, &url, &["-txid", &format!("{txid:016x}")]);
        assert!(ours == theirs, "{txid}");
        compared += 1;
    }
    assert!(compared >= 3, "{compared} of {states:?}");
}

/// Measures how long this crate and Litestream take to restore the same archive. `MEASURE_MB` sets the size of the
/// database.
#[test]
#[ignore = "takes minutes; prints how long restores take"]
fn measured_restores() {
    let Some(litestream) = judge("litestream") else { return };
    let place = Place::directory();
    let mb: u64 = std::env::var("MEASURE_MB").map_or(300, |mb| mb.parse().unwrap());
    let mut writer = Writer::new(place.archive("measured"), Database::new(4096));
    let insert = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 40000)
         INSERT INTO t (text) SELECT hex(randomblob(60)) || ' some text that repeats itself ' || i FROM n";
    writer.database.sql.execute_batch("DROP INDEX i").unwrap();
    let pages =
        |sql: &Connection| sql.query_row("PRAGMA page_count", [], |row| row.get::<_, u32>(0)).unwrap();
    while u64::from(pages(&writer.database.sql)) * 4096 < mb << 20 {
        writer.change(insert);
    }
    writer.upload(2);
    writer.snapshot();
    for _ in 0..3 {
        writer.commit("UPDATE t SET text = 'x' || text WHERE id % 10000 = abs(random() % 10000)");
    }
    let url = place.url(&format!("measured/g{}", Generation::FIRST));
    let archive = place.archive("measured");
    let bytes = wait(archive.plan(Target::Latest)).unwrap().bytes();
    let expected = &writer.states[&writer.txid];
    for round in 1..=3 {
        let began = Instant::now();
        let done = restored(&archive, Target::Latest).unwrap();
        let ours = began.elapsed();
        assert!(done == *expected);
        let began = Instant::now();
        let done = place.by_litestream(&litestream, &url, &[]);
        let theirs = began.elapsed();
        assert!(done == *expected);
        println!("round {round}: {} bytes from {bytes}: ours {ours:?}, Litestream {theirs:?}", done.len());
    }
}

#[test]
fn litestream_restores_what_we_archive_in_a_directory() {
    let Some(litestream) = judge("litestream") else { return };
    let place = Place::directory();
    for (page_size, seed) in [(512, 11), (4096, 12), (65_536, 13)] {
        litestream_restores_ours(&place, &litestream, page_size, seed);
    }
}

#[test]
fn litestream_restores_what_we_archive_in_s3() {
    let Some(litestream) = judge("litestream") else { return };
    with_credentials("judges::litestream_restores_what_we_archive_in_s3", || {
        let Some(place) = Place::s3() else { return };
        litestream_restores_ours(&place, &litestream, 4096, 14);
    });
}

#[test]
fn we_restore_what_litestream_archives_in_a_directory() {
    let Some(litestream) = judge("litestream") else { return };
    ours_restores_litestreams(&Place::directory(), &litestream, 21);
}

#[test]
fn we_restore_what_litestream_archives_in_s3() {
    let Some(litestream) = judge("litestream") else { return };
    with_credentials("judges::we_restore_what_litestream_archives_in_s3", || {
        let Some(place) = Place::s3() else { return };
        ours_restores_litestreams(&place, &litestream, 22);
    });
}
