//! Tests `PRAGMA duralite`.

use std::path::Path;

use duralite_testkit::{Engine, Fixture, Overlay, connect, one, run, stock};

use super::{fill, status_of};

#[test]
fn tells_what_is_in_force_and_what_was_done() {
    let fixture = Fixture::on(Engine::NVWAL);
    let conn = fixture.open("s.db");
    fill(&conn, 10);
    let before = status_of(&conn);
    assert_eq!(before["engine"], "nvwal");
    assert_eq!(before["state"], "active");
    assert_eq!(before["guarantee"], "process-crash");
    assert!(before["medium"].contains(fixture.log_dir().to_str().unwrap()), "{}", before["medium"]);
    assert_eq!(before["log"], fixture.log().display().to_string());
    for _ in 0..10 {
        run(&conn, "UPDATE t SET b = randomblob(100) WHERE a = 3").unwrap();
    }
    let after = status_of(&conn);
    let grown = |name: &str| after[name].parse::<u64>().unwrap() - before[name].parse::<u64>().unwrap();
    assert_eq!(grown("commits"), 10);
    assert_eq!(grown("fences"), 20);
    assert!(grown("frames") >= 10 && grown("flushed_lines") >= 20 && grown("stored_bytes") > 1000);
    assert!(grown("stored_bytes") < 10 * 4096, "whole pages were logged");
}

#[test]
fn nothing_set_means_waldio_and_one_write_and_flush_per_commit() {
    let fixture = Fixture::on(Engine::WALDIO);
    let conn = connect(&format!("file:{}?vfs=duralite", fixture.path("s.db").display())).unwrap();
    assert_eq!(one::<String>(&conn, "PRAGMA journal_mode=WAL"), "wal");
    fill(&conn, 10);
    let before = status_of(&conn);
    assert_eq!(before["engine"], "waldio");
    assert_eq!(before["layout"], "delta");
    assert!(before["log"].starts_with(fixture.path("").to_str().unwrap()), "{}", before["log"]);
    for _ in 0..10 {
        run(&conn, "UPDATE t SET b = randomblob(100) WHERE a = 3").unwrap();
    }
    let after = status_of(&conn);
    let grown = |name: &str| after[name].parse::<u64>().unwrap() - before[name].parse::<u64>().unwrap();
    assert_eq!((grown("commits"), grown("device_writes"), grown("device_flushes")), (10, 10, 10));
    assert_eq!(grown("device_bytes"), 10 * after["block_bytes"].parse::<u64>().unwrap());
}

#[test]
fn tells_why_the_engine_is_idle() {
    let fixture = Fixture::new();
    let state =
        |settings: &str| status_of(&connect(&fixture.uri("s.db", settings)).unwrap())["state"].clone();
    let keeps_journals = fixture.engine().keeps_rollback_journals();
    let idle = if keeps_journals { "idle: nothing written yet" } else { "idle: journal_mode is not wal" };
    assert_eq!(state(""), idle);
    let off = format!("file:{}?vfs=duralite&journal=off", fixture.path("s.db").display());
    assert_eq!(status_of(&connect(&off).unwrap())["state"], "off: journal=off");
    stock(&fixture.path("s.db")).execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(a)").unwrap();
    assert_eq!(state(""), "idle: nothing read yet");
    assert_eq!(state("mode=ro"), "off: opened read-only");
    let plain = format!("file:{}?vfs=duralite", fixture.path("s.db").display());
    let status = status_of(&connect(&plain).unwrap());
    assert_eq!((status["engine"].as_str(), status["state"].as_str()), ("waldio", "idle: nothing read yet"));
}

#[test]
fn settings_are_read_and_changed() {
    let fixture = Fixture::on(Engine::NVWAL);
    let conn = fixture.open_with("s.db", "sync=eager&nvram_write_ns=0&block_bytes=64k");
    fill(&conn, 10);
    assert_eq!(one::<String>(&conn, "PRAGMA duralite_sync"), "eager");
    assert_eq!(one::<String>(&conn, "PRAGMA duralite_block_bytes"), "65536");
    assert_eq!(one::<String>(&conn, "PRAGMA duralite_sync=checksum"), "checksum");
    let fences = || status_of(&conn)["fences"].parse::<u64>().unwrap();
    let before = fences();
    run(&conn, "DELETE FROM t WHERE a = 1").unwrap();
    assert_eq!(fences() - before, 1);
    for (sql, hint) in [
        ("PRAGMA duralite_heap=system", "fixed once the database is open"),
        ("PRAGMA duralite_none", "not a setting"),
        ("PRAGMA duralite_sync=never", "lazy"),
    ] {
        let error = run(&conn, sql).unwrap_err().to_string();
        assert!(error.contains(hint), "{sql}: {error}");
    }
}

/// Returns the guarantee of a database with a `waldio` log in these directories, and the reason why the
/// guarantee is no better.
fn guarantee_in(databases: &Path, logs: &Path) -> (String, Option<String>) {
    let (database, logs) = (databases.join("g.db"), logs.display());
    let conn = connect(&format!("file:{}?vfs=duralite&journal=waldio&log_dir={logs}", database.display()));
    let conn = conn.unwrap();
    assert_eq!(one::<String>(&conn, "PRAGMA journal_mode=WAL"), "wal");
    fill(&conn, 10);
    let mut status = status_of(&conn);
    let guarantee = status.remove("guarantee").unwrap();
    drop(conn);
    std::fs::remove_file(database).unwrap();
    (guarantee, status.remove("guarantee_reason"))
}

/// With `durability=normal` a commit writes, but does not flush. If it writes to the page cache, a crash of
/// the system may lose it. So the shown guarantee must not promise that it survives such a crash.
#[test]
fn normal_durability_through_the_page_cache_does_not_promise_to_survive_a_system_crash() {
    let fixture = Fixture::on(Engine::WALDIO);
    let conn = fixture.open_with("d.db", "durability=normal&access=buffered");
    fill(&conn, 10);
    assert_eq!(status_of(&conn)["guarantee"], "ordered");
}

#[test]
fn a_mount_on_which_a_sync_does_nothing_is_not_taken_for_safe() {
    let fixture = Fixture::on(Engine::WALDIO);
    let disk = fixture.path("");
    assert_eq!(guarantee_in(&disk, &disk), ("power-loss".to_owned(), None));
    let Some(plain) = Overlay::new("") else { return };
    let ordinary = plain.path();
    assert_eq!(guarantee_in(&ordinary, &disk), ("power-loss".to_owned(), None));
    assert_eq!(guarantee_in(&disk, &ordinary), ("power-loss".to_owned(), None));
    // A file in the next overlay may get the device and inode numbers of a file in this one. Duralite must
    // not apply what it knows about the old file to the new one.
    drop(plain);
    let Some(overlay) = Overlay::new("volatile") else { return };
    let volatile = overlay.path();
    for (databases, logs, whose) in [
        (&volatile, &volatile, "the log: overlay is mounted with "),
        (&disk, &volatile, "the log: overlay is mounted with "),
        (&volatile, &disk, "the database: overlay is mounted with "),
    ] {
        let (guarantee, why) = guarantee_in(databases, logs);
        let why = why.unwrap_or_default();
        assert_eq!(guarantee, "process-crash", "{why}");
        assert!(why.starts_with(whose) && why.contains("volatile: a sync does nothing"), "{why}");
    }
}
