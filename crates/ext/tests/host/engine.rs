//! The library in the `sqlite3` shell with a log in emulated NVRAM.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::shell::{Host, library};

const FILL: &str = "pragma journal_mode=wal; create table t(a); insert into t values(1),(2),(3);";
/// A command with which the shell kills itself, before it closes the database.
const DIE: &str = ".shell kill -9 $PPID";
const VERSIONS: std::ops::Range<usize> = 18..20;

#[test]
fn inv01_guard_is_on_while_open_and_lifted_by_the_last_close() {
    let Some(host) = Host::new() else { return };
    let said = host.open(
        &host.uri("g.db"),
        &[FILL, ".shell sqlite3 g.db 'select * from t'", "select sum(a) from t;", "pragma duralite;"],
    );
    assert!(said.err.contains("file is not a database"), "{}", said.err);
    assert!(said.out.contains("\n6\n") && said.out.contains("state\tactive"), "{}", said.out);
    assert!(said.out.contains("guarantee\tprocess-crash"), "{}", said.out);
    assert_eq!(host.header("g.db")[VERSIONS], [2, 2]);
    assert_eq!(host.header("g.db")[72..92], [0; 20]);
    assert!(host.logs().is_empty());
    assert!(!host.path("g.db-wal").exists());
    assert_eq!(host.stock("g.db", "select sum(a) from t; pragma integrity_check;").out, "6\nok");
}

#[test]
fn inv07_a_killed_process_loses_no_commit() {
    let Some(host) = Host::new() else { return };
    host.open(&host.uri("k.db"), &[FILL, "begin; insert into t values(100);", DIE]);
    assert_eq!(host.header("k.db")[VERSIONS], [2, 0xD7]);
    assert_eq!(host.logs().len(), 1);
    for _ in 0..3 {
        let said = host.open(&host.uri("k.db"), &["insert into t values(10); select count(*) from t;", DIE]);
        assert!(said.ok || said.err.is_empty(), "{}", said.err);
    }
    let said = host.open(&host.uri("k.db"), &["select count(*), sum(a) from t; pragma integrity_check;"]);
    assert_eq!(said.out, "6|36\nok", "{}", said.err);
    assert!(host.logs().is_empty());
}

#[test]
fn auto_finds_the_log_of_a_guarded_database() {
    let Some(host) = Host::new() else { return };
    host.open(&host.uri("a.db"), &[FILL, DIE]);
    let uri = format!("file:a.db?vfs=duralite&nvram_dir={}", host.log_dir().display());
    let said = host.open(&uri, &["select sum(a) from t; pragma duralite;"]);
    assert!(said.out.starts_with("6\n") && said.out.contains("state\tactive"), "{} {}", said.out, said.err);
    assert!(host.logs().is_empty());
}

#[test]
fn inv03_a_missing_log_is_an_error() {
    let Some(host) = Host::new() else { return };
    host.open(&host.uri("m.db"), &[FILL, DIE]);
    let log = host.logs().remove(0);
    let aside = host.path("aside");
    std::fs::rename(&log, &aside).unwrap();
    let said = host.open(&host.uri("m.db"), &["select * from t;"]);
    assert!(said.err.contains("are in log"), "{}", said.err);
    std::fs::rename(&aside, &log).unwrap();
    assert_eq!(host.open(&host.uri("m.db"), &["select sum(a) from t;"]).out, "6");
}

#[test]
fn inv03_a_copy_cannot_use_the_log_of_its_original() {
    let Some(host) = Host::new() else { return };
    host.open(&host.uri("o.db"), &[FILL, DIE]);
    std::fs::copy(host.path("o.db"), host.path("copy.db")).unwrap();
    let said = host.open(&host.uri("copy.db"), &["select * from t;"]);
    assert!(said.err.contains("belongs to another file"), "{}", said.err);
    assert_eq!(host.open(&host.uri("o.db"), &["select sum(a) from t;"]).out, "6");
}

#[test]
fn journal_off_and_immutable_are_refused_on_a_guarded_database() {
    let Some(host) = Host::new() else { return };
    host.open(&host.uri("r.db"), &[FILL, DIE]);
    let said = host.open("file:r.db?vfs=duralite&journal=off", &["select * from t;"]);
    assert!(said.err.contains("the settings say journal=off"), "{}", said.err);
    let said = host.open(&format!("{}&immutable=1", host.uri("r.db")), &["select * from t;"]);
    assert!(said.err.contains("immutable and nolock would ignore"), "{}", said.err);
    assert_eq!(host.open(&format!("{}&mode=ro", host.uri("r.db")), &["select sum(a) from t;"]).out, "6");
}

#[test]
fn a_damaged_guard_is_mended_by_the_log() {
    let Some(host) = Host::new() else { return };
    host.open(&host.uri("d.db"), &[FILL, DIE]);
    let mut bytes = std::fs::read(host.path("d.db")).unwrap();
    bytes[75] ^= 1;
    std::fs::write(host.path("d.db"), &bytes).unwrap();
    let said = host.open(&host.uri("d.db"), &["select sum(a) from t;"]);
    assert_eq!(said.out, "6", "{}", said.err);
}

/// Starts stock SQLite on a WAL database. The process keeps the database open until the test kills it.
fn stock_holder(host: &Host, name: &str, sql: &str) -> Child {
    let ready = host.path("ready");
    let child = Command::new("sqlite3")
        .arg(host.path(name))
        .arg(sql)
        .arg(format!(".shell touch {}; sleep 30", ready.display()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !ready.exists() {
        assert!(Instant::now() < deadline, "the stock shell did not start");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

#[test]
fn inv02_refused_while_a_program_without_the_library_is_connected() {
    let Some(host) = Host::new() else { return };
    let mut holder = stock_holder(&host, "s.db", FILL);
    let said = host.open(&host.uri("s.db"), &["select * from t;"]);
    assert!(said.err.contains("database is locked"), "{}", said.err);
    assert!(said.err.contains("(sqlite3); close it there"), "{}", said.err);
    assert_eq!(host.header("s.db")[VERSIONS], [2, 2]);
    assert!(host.logs().is_empty());
    holder.kill().unwrap();
    holder.wait().unwrap();
    // Duralite opens the database with all commits that stock SQLite has left in its own WAL.
    assert!(host.path("s.db-wal").exists());
    let said = host.open(&host.uri("s.db"), &["select sum(a) from t; pragma duralite;"]);
    assert!(said.out.starts_with("6\n") && said.out.contains("state\tactive"), "{} {}", said.out, said.err);
    assert!(!host.path("s.db-wal").exists());
}

#[test]
fn leaving_wal_mode_lifts_the_guard() {
    let Some(host) = Host::new() else { return };
    let said = host.open(
        &host.uri("l.db"),
        &[
            FILL,
            "pragma journal_mode=delete; insert into t values(4);",
            ".shell sqlite3 l.db 'select sum(a) from t'",
            "pragma journal_mode=wal; insert into t values(5); select sum(a) from t; pragma duralite_sync;",
        ],
    );
    assert_eq!(said.out.lines().filter(|line| line.contains("10")).count(), 1, "{}", said.out);
    assert!(
        said.out.contains("delete\n") && said.out.ends_with("wal\n15\nlazy"),
        "{} {}",
        said.out,
        said.err
    );
    assert_eq!(host.stock("l.db", "select sum(a) from t;").out, "15");
}

#[test]
fn the_guard_is_never_seen_through_the_vfs() {
    let Some(host) = Host::new() else { return };
    let said = host.open(
        &host.uri("v.db"),
        &[
            "pragma mmap_size=1000000;",
            FILL,
            "pragma wal_checkpoint;",
            "vacuum;",
            "pragma wal_checkpoint;",
            ".backup copy.db",
            ".shell xxd -s 18 -l 2 -p v.db",
        ],
    );
    assert!(said.out.contains("02d7"), "{} {}", said.out, said.err);
    assert_eq!(host.header("copy.db")[72..92], [0; 20]);
    assert_eq!(host.stock("copy.db", "select sum(a) from t;").out, "6");
}

#[test]
fn connections_of_a_process_share_the_log_and_its_settings() {
    let Some(host) = Host::new() else { return };
    let uri = host.uri("c.db");
    let attach = format!("attach '{uri}' as other;");
    let said = host.open(
        &uri,
        &[
            FILL,
            &attach,
            "insert into other.t values(4); select sum(a) from main.t; pragma other.duralite_sync;",
        ],
    );
    assert!(said.out.ends_with("10\nlazy"), "{} {}", said.out, said.err);
    let conflict = format!("attach '{uri}&sync=eager' as third; select * from third.t;");
    let said = host.open(&uri, &["select * from t;", &conflict]);
    assert!(said.err.contains("sync=eager conflicts with sync=lazy"), "{}", said.err);
    // After an error the shell ends without closing the database. The next open finds all commits.
    assert_eq!(host.open(&uri, &["select sum(a) from t;"]).out, "10");
    assert!(host.logs().is_empty());
}

#[test]
fn processes_that_start_together_agree_on_one_log() {
    let Some(host) = Host::new() else { return };
    host.stock("many.db", "pragma journal_mode=wal; create table t(a);");
    let writers: Vec<Child> = (0..6)
        .map(|_| {
            let mut shell = host.command();
            shell.arg(":memory:").arg(format!(".load {}", library().display()));
            shell.arg(format!(".open {}", host.uri("many.db"))).arg(".timeout 20000");
            for _ in 0..20 {
                shell.arg("insert into t values(1);");
            }
            shell.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for writer in writers {
        let output = writer.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(host.logs().is_empty());
    assert_eq!(host.stock("many.db", "select count(*) from t; pragma integrity_check;").out, "120\nok");
}

#[test]
fn rollback_mode_leaves_the_engine_idle() {
    let Some(host) = Host::new() else { return };
    let said =
        host.open(&host.uri("i.db"), &["create table t(a); insert into t values(1); pragma duralite;"]);
    assert!(said.out.contains("idle: journal_mode is not wal"), "{} {}", said.out, said.err);
    assert!(host.logs().is_empty());
}

/// With `synchronous=OFF` SQLite syncs nothing. But the VFS must sync the database nevertheless before its
/// log starts again from the beginning.
#[test]
fn inv06_the_database_is_synced_before_the_log_starts_over() {
    let Some(host) = Host::new() else { return };
    const BEGIN: &str =
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF; CREATE TABLE t(a); INSERT INTO t VALUES(0);";
    const RESTARTS: usize = 7;
    let restart = "PRAGMA wal_checkpoint(RESTART); INSERT INTO t VALUES(1);";
    let Some(without) = host.syncs(&host.uri("a.db"), BEGIN) else { return };
    let with = host.syncs(&host.uri("b.db"), &format!("{BEGIN}{}", restart.repeat(RESTARTS)));
    assert!(with >= Some(without + RESTARTS), "{with:?} syncs with {RESTARTS} restarts, {without} without");
}
