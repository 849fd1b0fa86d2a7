//! A program that makes Duralite the default of its SQLite. The test is a program of its own, since the
//! default holds for the whole process.
#![allow(clippy::unwrap_used)] // a failed helper is a failed test

use rusqlite::Connection;

#[test]
fn plain_names_go_through_duralite_and_are_strict() {
    let wrong = duralite::register_default(&[("journal", "no")]).unwrap_err().to_string();
    assert!(wrong.contains("journal=no is not valid"), "{wrong}");
    let unknown = duralite::register_default(&[("durabilty", "normal")]).unwrap_err().to_string();
    assert!(unknown.contains("did you mean durability?"), "{unknown}");

    duralite::register_default(&[("layout", "embedded")]).unwrap();
    duralite::register_default(&[("layout", "embedded")]).unwrap();
    let others = duralite::register_default(&[]).unwrap_err().to_string();
    assert!(others.contains("other settings"), "{others}");

    let dir = tempfile::tempdir().unwrap();
    let conn = Connection::open(dir.path().join("app.db")).unwrap();
    assert!(conn.execute_batch("CREATE TABLE t(x)").is_err());
    assert!(duralite::last_error().unwrap().contains("strict=on refuses to write"));
    conn.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(x)").unwrap();
    let setting =
        |name: &str| conn.query_row(&format!("PRAGMA duralite_{name}"), [], |row| row.get::<_, String>(0));
    assert_eq!(setting("layout").unwrap(), "embedded");
    assert_eq!(setting("strict").unwrap(), "on");

    let uri = duralite::uri(dir.path().join("other.db"), &[("layout", "delta"), ("strict", "off")]);
    let other = Connection::open(uri).unwrap();
    other.execute_batch("CREATE TABLE t(x); PRAGMA journal_mode=WAL; INSERT INTO t VALUES(1)").unwrap();
    let layout = other.query_row("PRAGMA duralite_layout", [], |row| row.get::<_, String>(0));
    assert_eq!(layout.unwrap(), "delta", "the URI comes first");

    Connection::open_in_memory().unwrap().execute_batch("CREATE TABLE t(x)").unwrap();
}
