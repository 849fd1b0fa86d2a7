//! Tests VACUUM, page sizes, checkpoints, and journal modes.

use duralite_testkit::{Fixture, integrity, one, run, stock};

use super::{content, fill, is_active};

#[test]
fn vacuum() {
    let fixture = Fixture::new();
    let conn = fixture.open("v.db");
    fill(&conn, 2000);
    run(&conn, "DELETE FROM t WHERE a % 4 <> 0").unwrap();
    let (before, pages) = (content(&conn), one::<i64>(&conn, "PRAGMA page_count"));
    run(&conn, "VACUUM").unwrap();
    assert!(one::<i64>(&conn, "PRAGMA page_count") < pages / 2);
    assert_eq!(content(&conn), before);
    assert!(is_active(&conn));
    let into = fixture.path("into.db");
    run(&conn, &format!("VACUUM INTO '{}'", into.display())).unwrap();
    assert_eq!(content(&stock(&into)), before);
    conn.close().unwrap();
    fixture.assert_plain("v.db");
    assert_eq!(content(&stock(&fixture.path("v.db"))), before);
}

#[test]
fn auto_vacuum() {
    for mode in ["FULL", "INCREMENTAL"] {
        let fixture = Fixture::new();
        let conn = duralite_testkit::connect(&fixture.uri("a.db", "")).unwrap();
        conn.execute_batch(&format!("PRAGMA auto_vacuum={mode}; PRAGMA journal_mode=WAL")).unwrap();
        fill(&conn, 2000);
        let pages = one::<i64>(&conn, "PRAGMA page_count");
        run(&conn, "DELETE FROM t WHERE a > 100").unwrap();
        run(&conn, "PRAGMA incremental_vacuum").unwrap();
        assert!(one::<i64>(&conn, "PRAGMA page_count") < pages / 4, "{mode}");
        integrity(&conn);
        conn.close().unwrap();
        fixture.assert_plain("a.db");
        assert_eq!(content(&stock(&fixture.path("a.db"))).len(), 100);
    }
}

#[test]
fn every_page_size() {
    for shift in 9..=16 {
        let bytes = 1 << shift;
        let fixture = Fixture::new();
        let conn = duralite_testkit::connect(&fixture.uri("p.db", "")).unwrap();
        conn.execute_batch(&format!("PRAGMA page_size={bytes}; PRAGMA journal_mode=WAL")).unwrap();
        fill(&conn, 600);
        conn.execute_batch("UPDATE t SET b = zeroblob(200000) WHERE a = 7; DELETE FROM t WHERE a % 3 = 0")
            .unwrap();
        assert_eq!(one::<i64>(&conn, "PRAGMA page_size"), bytes);
        let before = content(&conn);
        let second = fixture.open("p.db");
        assert_eq!(content(&second), before);
        drop((conn, second));
        fixture.assert_plain("p.db");
        assert_eq!(content(&stock(&fixture.path("p.db"))), before, "pages of {bytes} bytes");
        // VACUUM outside WAL mode changes the page size, and changes it back.
        let conn = fixture.open("p.db");
        let other = if bytes == 4096 { 1024 } else { 4096 };
        conn.execute_batch(&format!(
            "PRAGMA journal_mode=DELETE; PRAGMA page_size={other}; VACUUM; PRAGMA journal_mode=WAL;
             UPDATE t SET b = x'00' WHERE a = 7"
        ))
        .unwrap();
        assert!(is_active(&conn));
        assert_eq!(one::<i64>(&conn, "PRAGMA page_size"), other);
        assert_eq!(content(&conn).len(), before.len());
        conn.close().unwrap();
        fixture.assert_plain("p.db");
    }
}

#[test]
fn every_kind_of_checkpoint() {
    for mode in ["PASSIVE", "FULL", "RESTART", "TRUNCATE"] {
        let fixture = Fixture::new();
        let conn = fixture.open("c.db");
        run(&conn, "PRAGMA wal_autocheckpoint=0").unwrap();
        fill(&conn, 500);
        let reader = fixture.open("c.db");
        reader.execute_batch("BEGIN; SELECT * FROM t").unwrap();
        let seen = content(&reader);
        run(&conn, "UPDATE t SET b = zeroblob(100)").unwrap();
        let checkpoint = format!("PRAGMA wal_checkpoint({mode})");
        let row = |conn| format!("{:?}", run(conn, &checkpoint).unwrap());
        let while_read = row(&conn);
        assert_eq!(while_read.starts_with("[[Integer(1)"), mode != "PASSIVE", "{mode}: {while_read}");
        assert_eq!(content(&reader), seen, "{mode}");
        run(&reader, "COMMIT").unwrap();
        let free = row(&conn);
        assert!(free.starts_with("[[Integer(0)"), "{mode}: {free}");
        assert_eq!(free == "[[Integer(0), Integer(0), Integer(0)]]", mode == "TRUNCATE", "{mode}: {free}");
        assert_eq!(content(&reader), content(&conn));
        run(&conn, "DELETE FROM t WHERE a > 250").unwrap();
        assert_eq!(content(&reader).len(), 250);
        integrity(&reader);
        drop((reader, conn));
        fixture.assert_plain("c.db");
    }
}

#[test]
fn automatic_checkpoints_recycle_the_log() {
    let fixture = Fixture::new();
    let conn = fixture.open("l.db");
    run(&conn, "PRAGMA wal_autocheckpoint=50").unwrap();
    fill(&conn, 100);
    for n in 0..2000 {
        conn.execute("UPDATE t SET b = randomblob(100) WHERE a = ?1", [n % 100 + 1]).unwrap();
    }
    let log = std::fs::metadata(fixture.log()).unwrap().len();
    assert!(log <= 4 << 20, "the log has grown to {log} bytes");
    integrity(&conn);
}

#[test]
fn journal_size_limit() {
    let fixture = Fixture::new();
    let conn = fixture.open("j.db");
    assert_eq!(one::<i64>(&conn, "PRAGMA journal_size_limit=10000"), 10_000);
    run(&conn, "PRAGMA wal_autocheckpoint=0").unwrap();
    fill(&conn, 3000);
    for _ in 0..3 {
        run(&conn, "PRAGMA wal_checkpoint(RESTART)").unwrap();
        run(&conn, "UPDATE t SET b = randomblob(50) WHERE a % 100 = 1").unwrap();
    }
    integrity(&conn);
    let before = content(&conn);
    drop(conn);
    fixture.assert_plain("j.db");
    assert_eq!(content(&stock(&fixture.path("j.db"))), before);
}

#[test]
fn mapped_reads_never_show_the_guard() {
    let fixture = Fixture::new();
    let conn = fixture.open("m.db");
    run(&conn, "PRAGMA mmap_size=268435456").unwrap();
    fill(&conn, 2000);
    let before = content(&conn);
    run(&conn, "PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    // The log is empty, so the reader's pages come from the mapped database file.
    let reader = fixture.open("m.db");
    run(&reader, "PRAGMA mmap_size=268435456").unwrap();
    assert_eq!(content(&reader), before);
    run(&conn, "UPDATE t SET b = x'01' WHERE a = 1000").unwrap();
    run(&conn, "PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    assert_eq!(content(&reader), content(&conn));
    run(&conn, "PRAGMA user_version=77").unwrap();
    assert_eq!(one::<i64>(&reader, "PRAGMA user_version"), 77);
    integrity(&reader);
    drop((conn, reader));
    fixture.assert_plain("m.db");
}

#[test]
fn journal_modes_come_and_go() {
    let fixture = Fixture::new();
    let conn = fixture.open("j.db");
    fill(&conn, 300);
    let before = content(&conn);
    for mode in ["delete", "truncate", "persist", "memory"] {
        assert_eq!(one::<String>(&conn, &format!("PRAGMA journal_mode={mode}")), mode);
        let kept = fixture.engine().keeps_rollback_journals() && mode != "memory";
        assert_eq!(
            (is_active(&conn), fixture.is_guarded("j.db"), fixture.logs().len()),
            (kept, kept, kept.into())
        );
        run(&conn, "UPDATE t SET b = b").unwrap();
        let plain = (!kept).then(|| stock(&fixture.path("j.db")));
        assert_eq!(content(plain.as_ref().unwrap_or(&conn)), before);
        assert_eq!(one::<String>(&conn, "PRAGMA journal_mode=wal"), "wal");
        run(&conn, "UPDATE t SET b = b").unwrap();
        assert!(is_active(&conn) && fixture.is_guarded("j.db"));
        assert_eq!(content(&conn), before);
    }
    // The mode cannot change while another connection is open.
    let other = fixture.open("j.db");
    assert_eq!(content(&other), before);
    assert!(run(&conn, "PRAGMA journal_mode=delete").is_err());
    assert!(is_active(&conn) && fixture.is_guarded("j.db"));
    drop((conn, other));
    fixture.assert_plain("j.db");
}

#[test]
fn without_powersafe_overwrite() {
    let fixture = Fixture::new();
    let conn = fixture.open_with("s.db", "psow=0");
    fill(&conn, 500);
    for _ in 0..20 {
        run(&conn, "UPDATE t SET b = randomblob(100) WHERE a % 10 = 1").unwrap();
    }
    let before = content(&conn);
    drop(conn);
    fixture.assert_plain("s.db");
    assert_eq!(content(&stock(&fixture.path("s.db"))), before);
}
