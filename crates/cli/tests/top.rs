//! `duralite top` while processes commit, read, are killed, and close the database.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests fail as tests do

use crate::exposition;
use crate::place;

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use duralite_testkit::{Actor, Engine, Fixture};
use exposition::Exposition;
use place::{COMMAND, PYTHON, Place};
use serde_json::{Value, json};

/// Returns the command `duralite top` for the database of the fixture.
fn top(fixture: &Fixture, arguments: &[&str]) -> Command {
    let mut command = Command::new(COMMAND);
    command.arg("top").args(arguments).arg("--log-dir").arg(fixture.log_dir()).arg(fixture.path("t.db"));
    command.stdin(Stdio::null());
    command
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Runs `duralite top` once, and returns its JSON object.
fn look(fixture: &Fixture) -> Value {
    serde_json::from_str(&text(&top(fixture, &["--json", "--once"]).output().unwrap())).unwrap()
}

fn page(fixture: &Fixture) -> Exposition {
    let page = text(&top(fixture, &["--prometheus"]).output().unwrap());
    Exposition::read(&page, fixture.path("t.db").to_str().unwrap())
}

/// Returns a process that has the database open.
fn process(fixture: &Fixture) -> Actor {
    let mut process = Actor::sql(&fixture.uri("t.db", ""));
    assert_eq!(process.run("PRAGMA journal_mode=WAL"), "wal");
    assert_eq!(process.run("PRAGMA wal_autocheckpoint=0"), "0");
    process
}

/// Returns a process that has created the table in a commit of its own.
fn owner(fixture: &Fixture) -> Actor {
    let mut owner = process(fixture);
    assert_eq!(owner.run("CREATE TABLE t(a)"), "");
    owner
}

fn insert(process: &mut Actor, times: u32) {
    for _ in 0..times {
        assert_eq!(process.run("INSERT INTO t VALUES(1)"), "");
    }
}

#[test]
fn the_commits_of_all_processes_are_counted_exactly_on_every_engine() {
    for engine in Engine::all() {
        let fixture = Fixture::on(engine);
        let mut one = owner(&fixture);
        let mut other = process(&fixture);
        insert(&mut one, 20);
        insert(&mut other, 7);
        // A transaction that is rolled back does not count.
        assert_eq!(other.run("BEGIN"), "");
        insert(&mut other, 1);
        assert_eq!(other.run("ROLLBACK"), "");
        let seen = look(&fixture);
        assert_eq!((&seen["state"], &seen["engine"]), (&json!("in use"), &json!(engine.name())), "{seen:#}");
        assert_eq!(seen["commits"], 28, "{seen:#}");
        let mut pids: Vec<_> = seen["processes"].as_array().unwrap().iter().map(own_commits).collect();
        pids.sort_unstable();
        let mut expected = [(one.pid().into(), 21), (other.pid().into(), 7)];
        expected.sort_unstable();
        assert_eq!(pids, expected, "{seen:#}");
        let latency = &seen["commit_latency_ns"];
        let order = ["p50", "p90", "p99", "p999", "max"].map(|name| latency[name].as_u64().unwrap());
        assert!(order.is_sorted() && latency["mean"].as_u64().unwrap() <= order[4], "{seen:#}");
        assert!(
            seen["log_bytes"].as_u64().unwrap() > 0 && seen["log_frames"].as_u64().unwrap() >= 28,
            "{seen:#}"
        );
        assert_eq!(page(&fixture).value("duralite_commit_latency_seconds_count"), 28.0);
        one.finish();
        other.finish();
        assert_eq!(look(&fixture)["state"], "plain SQLite");
        fixture.assert_plain("t.db");
    }
}

fn own_commits(process: &Value) -> (u64, u64) {
    (process["pid"].as_u64().unwrap(), process["commits"].as_u64().unwrap())
}

#[test]
fn sums_do_not_fall_when_processes_are_killed_and_others_take_their_places() {
    let fixture = Fixture::new();
    let mut owner = owner(&fixture);
    let mut commits = 1;
    for round in 1..=4 {
        let mut victim = process(&fixture);
        insert(&mut victim, round);
        commits += round;
        assert_eq!(look(&fixture)["processes"].as_array().unwrap().len(), 2);
        victim.tell("BEGIN IMMEDIATE; INSERT INTO t VALUES(2)");
        victim.kill();
        let seen = look(&fixture);
        assert_eq!(seen["commits"], commits, "{seen:#}");
        assert_eq!(seen["processes"].as_array().unwrap().len(), 1, "{seen:#}");
        assert_eq!(own_commits(&seen["processes"][0]), (owner.pid().into(), 1), "{seen:#}");
    }
    insert(&mut owner, 3);
    assert_eq!(look(&fixture)["commits"], commits + 3);
    owner.kill();
    let seen = look(&fixture);
    assert_eq!(seen["state"], "not in use", "{seen:#}");
    let mut heir = process(&fixture);
    insert(&mut heir, 2);
    assert_eq!(look(&fixture)["commits"], 2, "the memory has begun anew");
}

#[test]
fn locks_readers_checkpoints_and_refusals_are_told() {
    let fixture = Fixture::on(Engine::WALDIO);
    let (mut reader, mut writer) = (owner(&fixture), process(&fixture));
    insert(&mut writer, 5);
    let seen = look(&fixture);
    assert_eq!((&seen["readers"], &seen["oldest_reader_ms"]), (&json!(0), &Value::Null), "{seen:#}");
    assert_eq!((&seen["groups"], &seen["group_size"]), (&json!(6), &json!(1.0)), "{seen:#}");
    assert_eq!(reader.run("BEGIN"), "");
    assert_eq!(reader.run("SELECT count(*) FROM t"), "5");
    assert_eq!(writer.run("BEGIN IMMEDIATE"), "");
    assert_eq!(reader.run("PRAGMA busy_timeout=0"), "0");
    assert!(reader.run("INSERT INTO t VALUES(1)").contains("locked"));
    let seen = look(&fixture);
    let locks = |process: &Actor| {
        let processes = seen["processes"].as_array().unwrap();
        let found = processes.iter().find(|found| found["pid"] == process.pid()).unwrap();
        (found["locks"].clone(), found["reads_ms"].is_u64())
    };
    let (held, reads) = locks(&writer);
    assert!(held.as_array().unwrap().contains(&json!("WRITE")) && reads, "{seen:#}");
    let (held, reads) = locks(&reader);
    let marks = held.as_array().unwrap();
    assert!(marks.len() == 1 && marks[0].as_str().unwrap().starts_with("READ") && reads, "{seen:#}");
    assert_eq!((&seen["readers"], &seen["lock_busy"]), (&json!(2), &json!(1)), "{seen:#}");
    assert_eq!((writer.run("COMMIT"), reader.run("COMMIT")), (String::new(), String::new()));
    assert_eq!(seen["checkpoints"], 0, "{seen:#}");
    let written = seen["home_writes"].as_u64().unwrap();
    assert!(writer.run("PRAGMA wal_checkpoint").starts_with("0|"));
    // The checkpoint writes two pages and sets the file's size.
    let seen = look(&fixture);
    assert_eq!((&seen["checkpoints"], &seen["home_writes"]), (&json!(1), &json!(written + 3)), "{seen:#}");
    assert_eq!(seen["log_frames"], seen["log_frames_home"], "{seen:#}");
    let page = page(&fixture);
    assert_eq!(page.value("duralite_checkpoints_total"), 1.0);
    assert_eq!((page.value("duralite_processes"), page.value("duralite_readers")), (2.0, 0.0));
    assert_eq!(page.value("duralite_lock_busy_total"), 1.0);
    assert_eq!(page.value("duralite_log_frames"), page.value("duralite_log_frames_home"));
}

#[test]
fn writes_that_find_no_room_are_told() {
    let fixture = Fixture::on(Engine::WALDIO);
    let [mut writer, mut reader] = [(); 2].map(|()| Actor::sql(&fixture.uri("t.db", "log_limit=1048576")));
    assert_eq!(writer.run("PRAGMA journal_mode=WAL"), "wal");
    assert_eq!(writer.run("CREATE TABLE t(a)"), "");
    assert_eq!((reader.run("BEGIN"), reader.run("SELECT count(*) FROM t")), (String::new(), "0".to_owned()));
    let mut insert = || writer.run("INSERT INTO t VALUES(randomblob(60000))");
    let refused = (0..100).map(|_| insert()).find(|said| !said.is_empty()).unwrap();
    assert!(refused.contains("full"), "{refused}");
    let (seen, page) = (look(&fixture), page(&fixture));
    assert_eq!((&seen["room_full"], page.value("duralite_room_full_total")), (&json!(1), 1.0), "{seen:#}");
    let busy = seen["room_busy"].as_u64().unwrap();
    assert_eq!(page.value("duralite_room_busy_total"), busy as f64);
    let once = text(&top(&fixture, &["--once"]).output().unwrap());
    let line =
        format!("no room           {busy} transactions waited for the log to start over, 1 writes failed");
    assert!(once.lines().any(|found| found == line), "{once}");
}

#[test]
fn what_becomes_of_concurrent_transactions_is_told() {
    let fixture = Fixture::on(Engine::WALDIO);
    let mut owner = owner(&fixture);
    let concurrent = |sql: &str| {
        let mut process = Actor::sql(&fixture.uri("t.db", "concurrent=on"));
        assert_eq!((process.run("BEGIN"), process.run(sql)), (String::new(), String::new()));
        process
    };
    insert(&mut owner, 1);
    assert_eq!(owner.run("CREATE TABLE u(a)"), "");
    assert_eq!(owner.run("INSERT INTO u VALUES(1)"), "");
    let mut merged = concurrent("UPDATE t SET a = 2");
    let mut overtaken = concurrent("UPDATE u SET a = 2");
    assert_eq!(owner.run("UPDATE u SET a = 3"), "");
    assert_eq!(merged.run("COMMIT"), "");
    assert!(overtaken.run("COMMIT").contains("locked"));
    let seen = look(&fixture);
    assert_eq!((&seen["commits_merged"], &seen["conflicts_page"]), (&json!(1), &json!(1)), "{seen:#}");
    assert_eq!((&seen["conflicts_schema"], &seen["snapshots_moved"]), (&json!(0), &json!(0)), "{seen:#}");
    let page = page(&fixture);
    assert_eq!(page.value("duralite_commits_merged_total"), 1.0);
    let once = text(&top(&fixture, &["--once"]).output().unwrap());
    let line = "concurrent        1 commits merged, 1 conflicts, 0 upgrades waited, 0 snapshots moved";
    assert!(once.lines().any(|found| found == line), "{once}");
}

/// A running `duralite top`. Dropping this value ends it.
struct Watcher(Child, BufReader<std::process::ChildStdout>);

impl Watcher {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self(child, lines)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.1.read_line(&mut line).unwrap() > 0, "it has ended");
        line
    }

    /// Reads objects until one meets the condition, and returns that object.
    fn until(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        loop {
            let object = serde_json::from_str(&self.line()).unwrap();
            if is_it(&object) {
                return object;
            }
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_watcher_goes_on_while_the_database_is_closed_opened_and_replaced() {
    let fixture = Fixture::on(Engine::WALDIO);
    let mut first = owner(&fixture);
    let mut watcher = Watcher::start(top(&fixture, &["--json", "--interval", "0.02"]));
    watcher.until(|seen| seen["commits"] == 1);
    insert(&mut first, 3);
    // The commits may be spread over several objects of the output, so the test adds their counts up.
    let mut recent = 0;
    while recent < 3 {
        let seen = watcher.until(|seen| seen["recent"]["commits"].as_u64() > Some(0));
        assert!(seen["recent"]["commits_per_second"].as_f64().unwrap() > 0.0, "{seen:#}");
        recent += seen["recent"]["commits"].as_u64().unwrap();
    }
    assert_eq!(recent, 3);
    first.finish();
    watcher.until(|seen| seen["state"] == "plain SQLite");
    fixture.assert_plain("t.db");
    let mut second = process(&fixture);
    insert(&mut second, 2);
    let seen = watcher.until(|seen| seen["commits"] == 2);
    assert_eq!(own_commits(&seen["processes"][0]), (second.pid().into(), 2));
    second.kill();
    watcher.until(|seen| seen["state"] == "not in use");
    let mut third = process(&fixture);
    insert(&mut third, 1);
    watcher.until(|seen| seen["commits"] == 1);
    third.finish();
    watcher.until(|seen| seen["state"] == "plain SQLite");
    std::fs::remove_file(fixture.path("t.db")).unwrap();
    let seen = watcher.until(|seen| seen["state"] == "not readable");
    assert!(seen["reason"].as_str().unwrap().contains("No such file"), "{seen:#}");
    let mut last = owner(&fixture);
    insert(&mut last, 4);
    watcher.until(|seen| seen["commits"] == 5);
}

#[test]
fn what_has_no_duralite_is_told_so() {
    let place = Place::new();
    place.wal_database("wal.db");
    assert_eq!(place.stock("plain.db", "CREATE TABLE t(a)").code, 0);
    std::fs::write(place.path("empty.db"), "").unwrap();
    std::fs::write(place.path("text"), "no database, but long enough to be read as one. ".repeat(40))
        .unwrap();
    let said = |name: &str| place.duralite(&["top", "--once", name]);
    for (name, why) in [
        ("wal.db", "plain SQLite: no program uses it through Duralite now"),
        ("plain.db", "plain SQLite: it is not in WAL mode"),
        ("empty.db", "plain SQLite: it is an empty file"),
    ] {
        let said = said(name);
        assert!(said.code == 0 && said.out.contains(why), "{said:?}");
        let page = place.duralite(&["top", "--prometheus", name]);
        assert_eq!(Exposition::read(&page.out, name).value("duralite_up"), 0.0);
    }
    for (name, why) in [("text", "text is not a SQLite database"), ("missing.db", "No such file")] {
        let said = said(name);
        assert!(said.code == 1 && said.err.contains(why) && said.out.is_empty(), "{said:?}");
    }
    for wrong in [["--interval", "0"], ["--listen", "80"]] {
        assert_eq!(place.duralite(&[&["top", "wal.db"], &wrong[..]].concat()).code, 2, "{wrong:?}");
    }
}

#[test]
fn a_log_that_is_gone_or_of_another_version_is_told_so() {
    let fixture = Fixture::new();
    let mut owner = owner(&fixture);
    insert(&mut owner, 1);
    let elsewhere = top(&fixture, &[]).arg("--log-dir").arg("/").output().unwrap();
    assert_eq!(elsewhere.status.code(), Some(2), "named twice");
    let shared = format!("{}-shm", fixture.log().display());
    let shared = std::fs::OpenOptions::new().write(true).open(shared);
    let shared = shared.unwrap_or_else(|_| panic!("the shared memory of {}", fixture.log().display()));
    std::os::unix::fs::FileExt::write_all_at(&shared, b"DURASEG8", 0).unwrap();
    let said = top(&fixture, &[]).output().unwrap();
    let why = String::from_utf8(said.stderr).unwrap();
    assert!(!said.status.success() && why.contains("another version of Duralite uses it"), "{why}");
    owner.kill();
    std::fs::remove_file(fixture.log()).unwrap();
    let seen = look(&fixture);
    assert_eq!(seen["state"], "log missing", "{seen:#}");
}

#[test]
fn who_may_not_read_the_log_is_told_so() {
    let fixture = Fixture::new();
    let _owner = owner(&fixture);
    let set_mode = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    set_mode(&fixture.log(), 0);
    let mut command = top(&fixture, &[]);
    if rustix::process::geteuid().is_root() {
        // The command runs as another user, who may not reach the program where it was built.
        let copy = fixture.path("duralite");
        std::fs::copy(COMMAND, &copy).unwrap();
        set_mode(copy.parent().unwrap(), 0o755);
        set_mode(fixture.log_dir(), 0o755);
        set_mode(&fixture.path("t.db"), 0o644);
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        command = Command::new(copy);
        command.args(arguments).uid(65534).gid(65534).current_dir("/");
    }
    let said = loop {
        match command.output() {
            // The copy was just written. If another test forked a child during the copying, that child has the copy
            // open for writing until it executes its own program. Until then Linux does not execute the copy.
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            said => break said.unwrap(),
        }
    };
    let why = String::from_utf8(said.stderr).unwrap();
    assert_eq!(why, format!("duralite: this user may not read {}\n", fixture.log().display()));
    assert_eq!(said.status.code(), Some(1));
}

fn get(address: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: */*\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

#[test]
fn each_request_is_answered_by_a_look_of_its_own() {
    let fixture = Fixture::on(Engine::WALDIO);
    let mut owner = owner(&fixture);
    let mut server = Watcher::start(top(&fixture, &["--listen", "127.0.0.1:0"]));
    let url = server.line();
    let address = url.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics")).unwrap();
    let commits = || {
        let (status, page) = get(address, "/metrics");
        assert_eq!(status, "HTTP/1.1 200 OK");
        Exposition::read(&page, fixture.path("t.db").to_str().unwrap()).samples
    };
    assert_eq!(commits()["duralite_commit_latency_seconds_count"], 1.0);
    insert(&mut owner, 3);
    assert_eq!(commits()["duralite_commit_latency_seconds_count"], 4.0);
    assert_eq!(get(address, "/else").0, "HTTP/1.1 404 Not Found");
    // A client that hangs up or sends garbage does not disturb other clients.
    drop(TcpStream::connect(address).unwrap());
    TcpStream::connect(address).unwrap().write_all(b"\xff\xfe\r\n\r\n").unwrap();
    owner.finish();
    assert_eq!(commits()["duralite_up"], 0.0);
}

#[test]
fn who_asks_ever_so_slowly_is_hung_up_on() {
    let fixture = Fixture::on(Engine::WALDIO);
    let _owner = owner(&fixture);
    let mut server = Watcher::start(top(&fixture, &["--listen", "127.0.0.1:0"]));
    let url = server.line();
    let address = url.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics")).unwrap();
    let mut slow = TcpStream::connect(address).unwrap();
    let asks = std::thread::spawn(move || {
        // The client sends one byte at a time and never ends the line. It would go on for a minute if the server did
        // not hang up.
        (0..600)
            .take_while(|_| {
                std::thread::sleep(std::time::Duration::from_millis(100));
                slow.write_all(b"x").is_ok()
            })
            .count()
    });
    assert_eq!(get(address, "/metrics").0, "HTTP/1.1 200 OK");
    assert!(asks.join().unwrap() < 600, "it was listened to all the time");
}

/// Python provides the terminal. The view changes by itself, and q ends it.
#[test]
fn a_terminal_shows_the_view_until_q_is_pressed() {
    let place = Place::new();
    place.wal_database("t.db");
    let program = "
import fcntl, os, pty, select, struct, sys, termios
pid, terminal = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 80, 0, 0))
    os.environ['TERM'] = 'xterm'
    os.execv(sys.argv[1], [sys.argv[1], 'top', 't.db', '--interval', '0.05'])
seen = b''
while b'waiting' not in seen and len(seen) < 100000:
    assert select.select([terminal], [], [], 60)[0], seen
    seen += os.read(terminal, 65536)
os.write(terminal, b'q')
try:
    while select.select([terminal], [], [], 60)[0] and os.read(terminal, 65536): pass
except OSError:
    pass
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";
    let said = place.run(PYTHON, &["-c", program, COMMAND]);
    assert_eq!((said.out.as_str(), said.code), ("0\n", 0), "{said:?}");
}
