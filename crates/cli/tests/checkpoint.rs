//! `duralite checkpoint` of databases that killed processes left, or that living processes use.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests fail as tests do

use std::path::Path;
use std::process::Command;

use duralite_testkit::{Actor, Engine, Fixture, one, stock};

/// Runs the command. Returns whether it succeeds, and its output.
fn checkpoint(arguments: &[&str], path: &Path) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duralite"));
    command.arg("checkpoint").args(arguments).arg(path);
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

fn writer(fixture: &Fixture) -> Actor {
    let mut actor = Actor::sql(&fixture.uri("c.db", ""));
    assert_eq!(actor.run("PRAGMA journal_mode=WAL"), "wal");
    assert_eq!(actor.run("CREATE TABLE t(a)"), "");
    assert_eq!(actor.run("INSERT INTO t VALUES(1), (2), (3)"), "");
    actor
}

fn assert_home(fixture: &Fixture) {
    fixture.assert_plain("c.db");
    assert_eq!(one::<i64>(&stock(&fixture.path("c.db")), "SELECT sum(a) FROM t"), 6);
    assert!(fixture.logs().is_empty());
}

#[test]
fn inv01_a_log_is_not_discarded_while_somebody_uses_the_database() {
    let fixture = Fixture::new();
    let mut actor = writer(&fixture);
    // The log is in a directory where the command does not look.
    let (done, said) = checkpoint(&["--discard-log"], &fixture.path("c.db"));
    assert!(!done && said.contains("has the database open"), "{said}");
    assert!(fixture.is_guarded("c.db"));
    assert_eq!(actor.run("SELECT sum(a) FROM t"), "6");
    actor.finish();
    assert_home(&fixture);
}

#[test]
fn a_log_is_put_home_by_its_own_name() {
    let fixture = Fixture::new();
    writer(&fixture).kill();
    let (done, said) = checkpoint(&[], &fixture.log());
    assert!(done, "{said}");
    assert_home(&fixture);
}

/// The power failed while a reader was connected. The database had a guard, and its log was not yet durable.
#[test]
fn inv01_a_database_without_commits_needs_no_log_to_be_plain_again() {
    let left = |log: &Path, len: Option<u64>| match len {
        Some(len) => std::fs::File::options().write(true).open(log).unwrap().set_len(len).unwrap(),
        None => std::fs::remove_file(log).unwrap(),
    };
    for len in [None, Some(0), Some(100), Some(4096)] {
        let fixture = Fixture::new();
        writer(&fixture).finish();
        let mut reader = Actor::sql(&fixture.uri("c.db", ""));
        assert_eq!(reader.run("SELECT sum(a) FROM t"), "6");
        reader.kill();
        left(&fixture.log(), len);
        let path = fixture.path("c.db");
        let logs = fixture.log_dir().display().to_string();
        let info = Command::new(env!("CARGO_BIN_EXE_duralite"))
            .args(["info", "--log-dir", &logs])
            .arg(&path)
            .output();
        let said = String::from_utf8(info.unwrap().stdout).unwrap();
        assert!(len.is_some() || said.contains("a log that has no commits"), "{said}");
        let (done, said) = checkpoint(&["--log-dir", &logs], &path);
        assert!(done, "{said}");
        fixture.assert_plain("c.db");
        assert_eq!(one::<i64>(&stock(&path), "SELECT sum(a) FROM t"), 6);
    }
}

#[test]
fn inv03_a_torn_first_page_is_mended_from_the_log() {
    let fixture = Fixture::new();
    writer(&fixture).kill();
    let mut bytes = std::fs::read(fixture.path("c.db")).unwrap();
    bytes[..512].fill(0x5a);
    std::fs::write(fixture.path("c.db"), &bytes).unwrap();
    let (done, said) = checkpoint(&["--log-dir", fixture.log_dir().to_str().unwrap()], &fixture.path("c.db"));
    assert!(done, "{said}");
    assert_home(&fixture);
}

#[test]
fn a_log_that_adopting_would_empty_stays_its_own_databases() {
    let fixture = Fixture::on(Engine::PPL);
    writer(&fixture).kill();
    let (original, copy) = (fixture.path("c.db"), fixture.path("copy.db"));
    std::fs::copy(&original, &copy).unwrap();
    let log = fixture.log();
    let (done, said) = checkpoint(&["--adopt", "--log-dir", fixture.log_dir().to_str().unwrap()], &copy);
    assert!(!done && said.contains("holds pages of its own database"), "{said}");
    std::fs::copy(&log, fixture.path("copy.db-duralite")).unwrap();
    let (done, said) = checkpoint(&[], &copy);
    assert!(done, "{said}");
    fixture.assert_plain("copy.db");
    assert_eq!(one::<i64>(&stock(&copy), "SELECT sum(a) FROM t"), 6);
    drop(fixture.open("c.db"));
    assert_home(&fixture);
}

/// No process was killed. The log exists because of `on_close=keep`: the last process that closed the database kept the
/// log.
#[test]
fn a_kept_database_of_ppl_is_told_verified_and_put_home() {
    let fixture = Fixture::on(Engine::PPL);
    let conn = fixture.open_with("c.db", "on_close=keep");
    conn.execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES(1), (2), (3)").unwrap();
    conn.close().unwrap();
    assert!(fixture.is_guarded("c.db"));
    tools_serve(&fixture);
}

/// `info` describes the log that a killed process has left, `verify` checks the log together with the database file,
/// and `checkpoint` writes the log's pages to the database file.
#[test]
fn a_killed_database_of_ppl_is_told_verified_and_put_home() {
    let fixture = Fixture::on(Engine::PPL);
    writer(&fixture).kill();
    tools_serve(&fixture);
}

/// Runs `info`, `verify` and `checkpoint`, and checks what each of them prints.
fn tools_serve(fixture: &Fixture) {
    let run = |arguments: &[&str]| {
        let mut tool = Command::new(env!("CARGO_BIN_EXE_duralite"));
        tool.args(arguments).arg("--log-dir").arg(fixture.log_dir()).arg(fixture.path("c.db"));
        let output = tool.output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.success(), "{arguments:?}: {said}");
        said
    };
    // Two pages have changed: the page of the schema and the page of the table.
    let told = run(&["info", "--json"]);
    let facts: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(facts["engine"], "ppl", "{told}");
    assert_eq!((&facts["logged_pages"], &facts["sectors"]), (&2.into(), &2.into()), "{told}");
    assert_eq!(
        (&facts["pool_pieces"], &facts["slots_used"], &facts["slots"]),
        (&0.into(), &0.into(), &128.into())
    );
    let most = |name: &str| facts[name].as_u64().unwrap();
    assert_eq!(most("sectors_limit"), most("pool_pieces_limit"), "as many pieces as sectors of 4096 bytes");
    assert!(most("sectors_limit") > 1000, "{told}");
    let told = run(&["info"]);
    for line in ["logged_pages      2", "sectors           2", "slots_used        0"] {
        assert!(told.contains(line), "{told}");
    }
    assert!(run(&["verify"]).contains("would recover"));
    let said = run(&["checkpoint"]);
    assert!(said.starts_with("2 pages written; "), "{said}");
    assert_home(fixture);
}

fn kept(fixture: &Fixture) -> Vec<std::path::PathBuf> {
    let names = [fixture.path(""), fixture.log_dir().to_path_buf()];
    let entries = names.iter().flat_map(|dir| std::fs::read_dir(dir).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.to_string_lossy().contains(".before-discard-")).collect()
}

#[test]
fn a_log_that_no_setting_names_is_found_and_not_discarded() {
    let fixture = Fixture::on(Engine::WALDIO);
    writer(&fixture).kill();
    let (done, said) = checkpoint(&["--discard-log", "--yes"], &fixture.path("c.db"));
    let log = fixture.log().display().to_string();
    assert!(!done && said.contains("the log is not lost") && said.contains(&log), "{said}");
    assert!(fixture.is_guarded("c.db") && kept(&fixture).is_empty());
    let (done, said) = checkpoint(&["--log-dir", fixture.log_dir().to_str().unwrap()], &fixture.path("c.db"));
    assert!(done, "{said}");
    assert_home(&fixture);
}

#[test]
fn what_a_lost_log_takes_along_is_said_and_agreed_to_first() {
    let fixture = Fixture::on(Engine::WALDIO);
    writer(&fixture).kill();
    std::fs::remove_file(fixture.log()).unwrap();
    let path = fixture.path("c.db");
    let before = std::fs::read(&path).unwrap();
    let (done, said) = checkpoint(&["--discard-log"], &path);
    assert!(!done && said.contains("Every commit since then is lost") && said.contains("--yes"), "{said}");
    assert!(said.contains("How many, until when, and of which tables is unknown"), "{said}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert!(kept(&fixture).is_empty());
    let (done, said) = checkpoint(&["--discard-log", "--yes"], &path);
    let kept = kept(&fixture);
    assert!(done && said.contains(&kept[0].display().to_string()), "{said}");
    assert_eq!(std::fs::read(&kept[0]).unwrap(), before);
    fixture.assert_plain("c.db");
}

/// Damages a transaction in the middle of a log. Returns what `checkpoint --discard-log` tells the user before it gives
/// up the log.
fn given_up(engine: Engine) -> String {
    let fixture = Fixture::on(engine);
    let mut actor = writer(&fixture);
    assert_eq!(actor.run("PRAGMA wal_checkpoint(TRUNCATE)"), "0|0|0");
    for _ in 0..5 {
        assert_eq!(actor.run("INSERT INTO t VALUES(4)"), "");
    }
    actor.kill();
    let (path, log) = (fixture.path("c.db"), fixture.log());
    let logs = fixture.log_dir().to_str().unwrap().to_owned();
    let (done, said) = checkpoint(&["--discard-log", "--yes", "--log-dir", &logs], &path);
    assert!(!done && said.contains("the log is not lost"), "{said}");
    // The test must not damage the newest transaction. Recovery would assume that a crash has torn it, and would drop
    // it without calling the log damaged.
    let walked = Command::new(env!("CARGO_BIN_EXE_duralite"))
        .args(["verify", "--json", "--frames", "--log-dir", &logs])
        .arg(&path)
        .output()
        .unwrap();
    let facts: serde_json::Value = serde_json::from_slice(&walked.stdout).unwrap();
    let transactions = facts["transactions"].as_array().unwrap();
    let at = transactions[transactions.len() - 3]["frames"][0]["offset"].as_u64().unwrap() as usize;
    let is_region = |path: &std::path::PathBuf| path.to_string_lossy().contains("duralite-region-");
    let files = std::fs::read_dir(fixture.log_dir()).unwrap().map(|entry| entry.unwrap().path());
    let medium = files.into_iter().find(is_region).unwrap_or_else(|| log.clone());
    let mut bytes = std::fs::read(&medium).unwrap();
    bytes[at + 16..at + 20].iter_mut().for_each(|byte| *byte ^= 0x5a);
    std::fs::write(&medium, &bytes).unwrap();
    let of_log = std::fs::read(&log).unwrap();
    let (done, said) = checkpoint(&["--discard-log", "--log-dir", &logs], &path);
    assert!(!done && said.contains("nothing was changed"), "{engine:?}: {said}");
    let (done, said) = checkpoint(&["--discard-log", "--yes", "--log-dir", &logs], &path);
    assert!(done, "{engine:?}: {said}");
    let kept = kept(&fixture);
    assert_eq!(kept.len(), 2, "{said}");
    assert!(kept.iter().all(|path| said.contains(&path.display().to_string())), "{said}");
    assert!(kept.iter().any(|path| std::fs::read(path).unwrap() == of_log));
    said
}

#[test]
fn a_damaged_log_is_given_up_with_what_is_lost_and_kept() {
    for engine in Engine::all() {
        let said = given_up(engine);
        // The log of `ppl` counts all transactions since it was made, and keeps a chain of records for each page.
        let counts = if engine == Engine::PPL {
            [
                " 4 transactions are whole before the damage (log damaged",
                "an unknown number are missing in the damage, ",
                " changed ",
            ]
        } else {
            [
                " 2 transactions are whole before the damage (log damaged",
                " 1 are missing in the damage, and 2 are whole after it",
                " changed t and 0 pages",
            ]
        };
        for part in counts.into_iter().chain(["`duralite salvage ", " UTC"]) {
            assert!(said.contains(part), "{engine:?}, {part}: {said}");
        }
    }
}

#[test]
fn of_a_log_that_cannot_be_read_at_all_nothing_is_claimed() {
    let fixture = Fixture::on(Engine::WALDIO);
    writer(&fixture).kill();
    let (path, log) = (fixture.path("c.db"), fixture.log());
    std::fs::write(&log, vec![0x5a; 8192]).unwrap();
    let logs = fixture.log_dir().to_str().unwrap();
    let (done, said) = checkpoint(&["--discard-log", "--yes", "--log-dir", logs], &path);
    assert!(done && said.contains("is unknown: nothing of the log can be read"), "{said}");
    fixture.assert_plain("c.db");
}

/// The version of Duralite that wrote the log can read all of it, so the log is neither lost nor damaged.
#[test]
fn a_log_of_another_version_is_refused_and_not_discarded() {
    let fixture = Fixture::new();
    writer(&fixture).kill();
    let (path, log) = (fixture.path("c.db"), fixture.log());
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[8] -= 1;
    std::fs::write(&log, &bytes).unwrap();
    let (before, logs) = (fixture.snapshot(), fixture.log_dir().to_str().unwrap().to_owned());
    for arguments in [["--discard-log", "--yes"].as_slice(), &[]] {
        let (done, said) = checkpoint(&[arguments, &["--log-dir", &logs]].concat(), &path);
        assert!(!done && said.contains("this build reads only version"), "{said}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_duralite"));
    let info = command.args(["info", "--log-dir", &logs]).arg(&path).output().unwrap();
    let said = String::from_utf8(info.stdout).unwrap();
    assert!(said.contains("this build reads only version") && !said.contains("damage"), "{said}");
    assert!(fixture.snapshot() == before);
}

/// `cksumvfs` keeps its checksums in the reserved bytes of each page, and `checkpoint` does not compute these
/// checksums.
#[test]
fn pages_with_room_for_checksums_are_put_home_on_demand_only() {
    let fixture = Fixture::new();
    let shell = ["-batch", "-cmd", ".filectrl reserve_bytes 8"];
    let made =
        Command::new("sqlite3").args(shell).arg(fixture.path("c.db")).arg("CREATE TABLE u(a)").output();
    assert!(made.unwrap().status.success());
    assert_eq!(std::fs::read(fixture.path("c.db")).unwrap()[20], 8);
    writer(&fixture).kill();
    let dir = fixture.log().parent().unwrap().to_str().unwrap().to_owned();
    let named = ["--log-dir", dir.as_str()];
    for (place, target) in [(&named[..], fixture.path("c.db")), (&[], fixture.log())] {
        let (done, said) = checkpoint(place, &target);
        assert!(!done && said.contains("keeps 8 bytes at the end of each page, as cksumvfs does"), "{said}");
    }
    assert!(fixture.is_guarded("c.db"));
    let (done, said) = checkpoint(&[named[0], named[1], "--yes"], &fixture.path("c.db"));
    assert!(done, "{said}");
    assert_home(&fixture);
}
