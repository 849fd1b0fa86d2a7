//! Tests of `strict=on`. With this setting, Duralite does not leave a database to plain SQLite, but refuses
//! it with a message.

use super::shell::{Host, Said, library};

const TABLE: &str = "create table t(a); insert into t values(1);";
const WAL: &str = "pragma journal_mode=wal;";
const WHY: &str = "select duralite_last_error();";

/// Runs a script on a database under `strict`. The shell continues after errors.
fn strict(host: &Host, name: &str, lines: &[&str]) -> Said {
    let open = format!(".open file:{}?vfs=duralite&strict=on", host.path(name).display());
    host.script(&format!(".load {}\n{open}\n{}\n", library().display(), lines.join("\n")))
}

#[test]
fn a_new_database_has_to_be_set_to_wal_first() {
    let Some(host) = Host::new() else { return };
    let said = strict(&host, "n.db", &[TABLE, WHY, "select count(*) from sqlite_master;", WAL, TABLE]);
    assert!(said.err.contains("attempt to write a readonly database"), "{}", said.err);
    assert!(said.out.contains("n.db: it is not in WAL mode"), "{}", said.out);
    assert!(said.out.ends_with("\n0\nwal"), "{}", said.out);
    assert_eq!(host.stock("n.db", "select * from t; pragma integrity_check;").out, "1\nok");
}

#[test]
fn an_existing_database_can_be_read_and_set_to_wal_but_not_written() {
    let Some(host) = Host::new() else { return };
    let few = "insert into t values(2);";
    let many = "with recursive n(i) as (select 1 union all select i+1 from n where i<3000) insert into t select \
                hex(zeroblob(99)) from n;";
    for (name, first) in [
        ("delete.db", ""),
        ("persist.db", "pragma journal_mode=persist;"),
        ("locking.db", "pragma locking_mode=exclusive;"),
        ("spill.db", "pragma cache_size=2;"),
    ] {
        let own = if name == "locking.db" || name == "spill.db" { first } else { "" };
        host.stock(name, &format!("{first} {TABLE}"));
        let before = std::fs::read(host.path(name)).unwrap();
        let exclusive = |insert| ["begin exclusive;", insert, "commit;", "rollback;"];
        let refused = [
            &[own, few],
            &exclusive(few)[..],
            &exclusive(many)[..],
            &exclusive(few)[..],
            &["vacuum;", "pragma user_version=7;"],
        ]
        .concat();
        let said = strict(&host, name, &[refused.as_slice(), &["select 'sum', sum(a) from t;"]].concat());
        assert!(
            said.err.matches("attempt to write a readonly database").count() >= 6,
            "{name}: {}",
            said.err
        );
        assert!(said.out.ends_with("sum|1"), "{name}: {}", said.out);
        assert!(std::fs::read(host.path(name)).unwrap() == before, "{name} was written");
        let said = strict(&host, name, &[own, WAL, "insert into t values(3); pragma duralite;"]);
        assert!(said.out.contains("state\tactive"), "{name}: {} {}", said.out, said.err);
        assert_eq!(host.stock(name, "select sum(a) from t; pragma integrity_check;").out, "4\nok");
    }
}

/// Duralite does not first accept the writes and then refuse the `COMMIT`.
#[test]
fn a_transaction_is_refused_at_its_first_write() {
    let Some(host) = Host::new() else { return };
    host.stock("f.db", TABLE);
    let said = strict(&host, "f.db", &["begin;", "insert into t values(2);"]);
    assert!(said.err.contains("attempt to write a readonly database"), "{}", said.err);
}

/// SQLite rolls back the transaction that a killed process has left, although the database is not in WAL
/// mode.
#[test]
fn a_hot_journal_is_rolled_back() {
    let Some(host) = Host::new() else { return };
    let fill = "create table t(a, b); with recursive n(i) as (select 1 union all select i+1 from n where i<3000) \
                insert into t select 1, hex(zeroblob(99)) from n;";
    host.stock("h.db", fill);
    let before = std::fs::read(host.path("h.db")).unwrap();
    host.script(".open h.db\npragma cache_size=2; begin; update t set a=2;\n.shell kill -9 $PPID\n");
    assert!(std::fs::metadata(host.path("h.db-journal")).unwrap().len() > 512);
    assert!(std::fs::read(host.path("h.db")).unwrap() != before, "nothing to roll back");
    let lines = ["select 'sum', sum(a) from t; pragma integrity_check;", WAL, "pragma duralite;"];
    let said = strict(&host, "h.db", &lines);
    assert!(said.out.starts_with("sum|3000\nok\nwal"), "{} {}", said.out, said.err);
}

#[test]
fn wal_mode_is_not_left() {
    let Some(host) = Host::new() else { return };
    for mode in ["delete", "TRUNCATE", "persist", "memory", "off"] {
        let leave = format!("pragma journal_mode={mode};");
        let said = strict(&host, "l.db", &[WAL, &leave, "pragma journal_mode;"]);
        let refusal = format!("strict=on refuses journal_mode={}", mode.to_lowercase());
        assert!(said.err.contains(&refusal), "{}", said.err);
        assert_eq!(said.out, "wal\nwal", "{mode}");
    }
}

#[test]
fn what_cannot_be_served_is_not_opened() {
    let Some(host) = Host::new() else { return };
    host.stock("rollback.db", TABLE);
    host.stock("wal.db", &format!("{WAL} {TABLE}"));
    for (name, settings, why) in [
        ("new.db", "journal=off", "journal=off"),
        ("rollback.db", "journal=off", "journal=off"),
        ("rollback.db", "mode=ro", "read-only and not in WAL mode"),
        ("rollback.db", "nolock=1", "use no write-ahead log"),
        ("wal.db", "immutable=1", "use no write-ahead log"),
    ] {
        let uri = |strict: &str| {
            format!("file:{}?vfs=duralite&{settings}&strict={strict}", host.path(name).display())
        };
        let said = host.open(&uri("on"), &["select * from t;"]);
        assert!(
            said.err.contains("strict=on refuses") && said.err.contains(why),
            "{name} {settings}: {}",
            said.err
        );
        assert!(said.err.contains("unable to open database"), "{name} {settings}: {}", said.err);
        assert_eq!(host.path(name).exists(), name != "new.db");
        if name != "new.db" {
            assert_eq!(host.open(&uri("off"), &["select * from t;"]).out, "1", "{name} {settings}");
        }
    }
}

/// An ordinary `-wal` lies beside a database whose first page does not say WAL mode.
#[test]
fn a_wal_that_stock_sqlite_would_serve_is_not_opened() {
    let Some(host) = Host::new() else { return };
    host.stock("w.db", TABLE);
    std::fs::write(host.path("w.db-wal"), [1; 64]).unwrap();
    let said = strict(&host, "w.db", &["select * from t;"]);
    assert!(said.err.contains("unable to open database file"), "{} {}", said.out, said.err);
    assert!(said.err.contains("strict=on refuses"), "{}", said.err);
}

#[test]
fn a_database_opened_before_the_load_is_caught() {
    let Some(host) = Host::new() else { return };
    host.stock("app.db", TABLE);
    let load = format!(".load {}", library().display());
    let shell = |environment: &[(&str, &str)], name: &str| {
        host.shell_with(environment, &["-cmd", &load, name, "select a from t;"])
    };
    let refusal = "app.db is open through the VFS unix, not through Duralite";
    for default in ["0", "1"] {
        // Without `strict` there is only a warning.
        let said = shell(&[("DURALITE_MAKE_DEFAULT", default)], "app.db");
        assert!(said.out == "1" && said.err.contains("stays plain SQLite on the VFS unix"), "{}", said.err);
        let said = shell(&[("DURALITE_MAKE_DEFAULT", default), ("DURALITE_STRICT", "1")], "app.db");
        assert!(said.err.contains(refusal), "{default}: {}", said.err);
        let off = shell(&[("DURALITE_MAKE_DEFAULT", default), ("DURALITE_STRICT", "off")], "app.db");
        assert_eq!(off.out, "1", "{}", off.err);
    }
    let said = shell(&[("DURALITE_STRICT", "1")], "file:app.db?strict=off");
    assert_eq!(said.out, "1", "{}", said.err);

    // The library is loaded from a file of commands, like `.sqliterc`. With `-bail` the shell stops at the
    // error.
    std::fs::write(host.path("sqliterc"), format!("{load}\n")).unwrap();
    let arguments = ["-init", "sqliterc", "-bail", "app.db", "select a from t;"];
    let said = host.shell_with(&[("DURALITE_STRICT", "1")], &arguments);
    assert!(said.err.contains(refusal), "{}", said.err);
    let arguments = ["-bail", "-cmd", &load, "app.db", "select a from t;"];
    let said = host.shell_with(&[("DURALITE_STRICT", "1")], &arguments);
    assert!(said.err.contains(refusal) && said.out.is_empty() && !said.ok, "{} {}", said.out, said.err);
}

#[test]
fn a_database_opened_after_the_load_without_the_vfs_is_caught() {
    let Some(host) = Host::new() else { return };
    host.stock("app.db", TABLE);
    let environment = [("DURALITE_STRICT", "1")];
    let said = host.run_with(&environment, &[".open app.db", "select a from t;"]);
    assert!(said.err.contains("app.db is open through the VFS unix"), "{} {}", said.out, said.err);
    for name in [":memory:", "file:app.db?strict=off", "file:/mem?vfs=memdb", ""] {
        let said = host.run_with(&environment, &[&format!(".open {name}"), "select 1;"]);
        assert_eq!(said.out, "1", "{name}: {}", said.err);
    }
    let said = host.run_with(&environment, &[".open file:app.db?vfs=duralite", WAL, "select a from t;"]);
    assert_eq!(said.out, "wal\n1", "{}", said.err);
}

/// Stock SQLite has left a `-wal`. The VFS checkpoints it through stock SQLite, on a connection of its own.
/// `DURALITE_STRICT` does not refuse that connection.
#[test]
fn what_stock_sqlite_left_is_taken_over() {
    let Some(host) = Host::new() else { return };
    host.script(&format!(".open s.db\n{WAL}\n{TABLE}\n.shell kill -9 $PPID\n"));
    assert!(host.path("s.db-wal").exists());
    let environment = [("DURALITE_STRICT", "1"), ("DURALITE_MAKE_DEFAULT", "1")];
    let said = host.run_with(&environment, &[".open s.db", "select sum(a) from t; pragma duralite;"]);
    assert!(said.out.contains("state\tactive"), "{} {}", said.out, said.err);
}

#[test]
fn a_copy_that_is_meant_to_be_plain_says_so() {
    let Some(host) = Host::new() else { return };
    let environment = [("DURALITE_STRICT", "1"), ("DURALITE_MAKE_DEFAULT", "1")];
    let lines = [".open a.db", WAL, TABLE, "vacuum into 'file:copy.db?strict=off';", ".backup backup.db"];
    let said = host.run_with(&environment, &lines);
    assert!(said.ok && said.err.is_empty(), "{}", said.err);
    for copy in ["copy.db", "backup.db"] {
        assert_eq!(host.stock(copy, "select * from t; pragma integrity_check;").out, "1\nok");
    }
    let said = host.run_with(&environment, &[".open a.db", "vacuum into 'other.db';"]);
    assert!(said.err.contains("other.db: it is not in WAL mode"), "{}", said.err);
}
