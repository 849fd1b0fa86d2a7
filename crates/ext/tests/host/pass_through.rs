//! The library in the `sqlite3` shell, with databases that no engine serves. For these, the VFS passes
//! SQLite's calls on to the base VFS.

use std::process::Command;

use super::shell::{Host, library};

const WORK: &str = "create table t(a, b); with recursive n(i) as (select 1 union all select i+1 from n where \
                    i<500) insert into t select i, hex(zeroblob(i)) from n; create index i on t(b); delete from \
                    t where a%7=0; select count(*), sum(a) from t; pragma integrity_check;";

#[test]
fn registers_beside_the_default_vfs() {
    let Some(host) = Host::new() else { return };
    let said = host.run(&[".vfslist"]);
    assert!(said.out.contains("\"duralite\""), "{}", said.out);
    let current = said.out.lines().find(|line| line.contains("CURRENT")).unwrap();
    assert!(!current.contains("duralite"));
}

#[test]
fn becomes_the_default_by_entry_point_or_variable() {
    let Some(host) = Host::new() else { return };
    let by_entry = format!(".load {} sqlite3_duralitedefault_init", library().display());
    let name = [".open plain.db", "create table if not exists t(a);", ".vfsname main"];
    let said = host.run(&[&[by_entry.as_str()], &name[..]].concat());
    assert_eq!(said.out, "duralite/unix", "{}", said.err);
    let said = host.run_with(&[("DURALITE_MAKE_DEFAULT", "1")], &name);
    assert_eq!(said.out, "duralite/unix", "{}", said.err);
    let said = host.run(&name);
    assert_eq!(said.out, "unix");
}

#[test]
fn loading_twice_changes_nothing() {
    let Some(host) = Host::new() else { return };
    let again = format!(".load {}", library().display());
    let said = host.run(&[
        &again,
        &again,
        ".open file:twice.db?vfs=duralite",
        "create table t(a); insert into t values(1); select a from t;",
        ".vfsname main",
        ".vfslist",
    ]);
    assert!(said.out.starts_with("1\nduralite/unix\n"), "{} {}", said.out, said.err);
    assert_eq!(said.out.matches("\"duralite\"").count(), 1);
}

#[test]
fn files_are_those_of_stock_sqlite() {
    let Some(host) = Host::new() else { return };
    for mode in ["delete", "truncate", "persist", "memory", "wal"] {
        let sql = format!("pragma journal_mode={mode}; pragma mmap_size=1000000; {WORK}");
        let (ours, theirs) = (format!("ours-{mode}.db"), format!("theirs-{mode}.db"));
        let stock = host.stock(&theirs, &sql);
        let said =
            host.open(&format!("file:{}?vfs=duralite&journal=off", host.path(&ours).display()), &[&sql]);
        assert!(stock.ok && said.ok, "{}", said.err);
        assert_eq!(said.out, stock.out);
        let read = |name: &str| std::fs::read(host.path(name)).unwrap();
        assert!(read(&ours) == read(&theirs), "{mode}: the database files differ");
        assert!(!host.path(&format!("{ours}-wal")).exists());
    }
}

#[test]
fn wrong_settings_fail_the_open_and_leave_nothing() {
    let Some(host) = Host::new() else { return };
    for (settings, hint) in [
        ("journal=fast", "journal=fast is not valid"),
        ("journal=scratchpad", "scratchpad=emulate"),
        ("journal=ppl", "nvram=emulate"),
        ("journal=nvwal", "nvram=emulate"),
        ("nvram=/does/not/exist", "not a directory"),
        ("sync=never", "lazy, eager, checksum or async"),
        ("nvram_latency=5", "unknown URI parameter nvram_latency"),
        ("durabilty=normal&nvrm=emulate", "durabilty; did you mean durability?"),
    ] {
        let said = host.open(&format!("file:bad.db?vfs=duralite&{settings}"), &["create table t(a);"]);
        assert!(said.err.contains(hint), "{settings}: {}", said.err);
        assert!(said.err.contains("unable to open database"), "{settings}: {}", said.err);
        assert!(!host.path("bad.db").exists());
    }
    let said = host
        .run_with(&[("DURALITE_SYNCH", "lazy")], &[".open file:bad.db?vfs=duralite", "create table t(a);"]);
    assert!(said.err.contains("unknown environment variable DURALITE_SYNCH"), "{}", said.err);
    assert!(!host.path("bad.db").exists());
}

#[test]
fn foreign_uri_parameters_are_left_alone() {
    let Some(host) = Host::new() else { return };
    let said =
        host.open("file:ok.db?vfs=duralite&psow=0&cache=private&color=blue", &["pragma user_version;"]);
    assert_eq!(said.out, "0", "{}", said.err);
}

#[test]
fn pragmas_tell_settings() {
    let Some(host) = Host::new() else { return };
    let said = host.open(
        "file:p.db?vfs=duralite&journal=off&sync=eager",
        &[
            "pragma duralite;",
            "pragma duralite_sync;",
            "pragma main.duralite_sync=checksum;",
            "pragma Duralite_JOURNAL;",
        ],
    );
    assert!(said.out.contains("engine\toff\nstate\toff: journal=off"), "{}", said.out);
    assert!(said.out.ends_with("\neager\nchecksum\noff"), "{}", said.out);
    for (pragma, hint) in [
        ("pragma duralite_jornal;", "jornal is not a setting"),
        ("pragma duralite_heap=system;", "fixed once the database is open"),
        ("pragma duralite_sync=never;", "lazy, eager"),
        ("pragma duralite=on;", "takes no value"),
    ] {
        let said = host.open("file:p.db?vfs=duralite&journal=off", &[pragma]);
        assert!(said.err.contains(hint), "{pragma}: {}", said.err);
    }
}

#[test]
fn temporary_files_attach_and_vacuum_go_through() {
    let Some(host) = Host::new() else { return };
    let said = host.open(
        "file:a.db?vfs=duralite&journal=off",
        &[
            "attach 'file:b.db?vfs=duralite&journal=off' as b; create table main.t(a); create table b.u(a);",
            "begin; insert into t values(1); insert into u values(2); commit;",
            "pragma temp_store=file; create temp table v as select * from t; vacuum; vacuum into 'c.db';",
            "select * from t, u, v;",
        ],
    );
    assert_eq!(said.out, "1|2|1", "{}", said.err);
    assert_eq!(host.stock("c.db", "select a from t;").out, "1");
}

/// `duralite::register` calls functions of the SQLite that the program is linked to. The loadable library
/// must not need those functions to be exported, because the program that loads it may not export them.
#[test]
fn the_loadable_library_asks_for_no_function_of_sqlite() {
    let listed = Command::new("nm").args(["-D", "--undefined-only"]).arg(library()).output().unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let symbols = String::from_utf8(listed.stdout).unwrap();
    assert!(symbols.contains("malloc"), "{symbols}");
    assert!(!symbols.contains("sqlite3_"), "{symbols}");
}
