//! Tests the errors for paths that do not exist, and for files that cannot be opened at the moment.

use duralite_testkit::{Actor, Engine, Fixture, code, connect, run};
use rusqlite::ffi;

use super::{abandoned, read_elsewhere};

/// Returns the reason why a URI cannot be opened or read.
fn refusal(uri: &str) -> String {
    let error = connect(uri).and_then(|conn| run(&conn, "SELECT * FROM t")).unwrap_err();
    assert_eq!(code(&error) & 0xff, ffi::SQLITE_CANTOPEN, "{error}");
    duralite::last_error().unwrap()
}

#[test]
fn a_path_that_is_not_there_is_named_and_no_medium_advised() {
    let fixture = Fixture::new();
    let nowhere = fixture.path("nowhere");
    let there = fixture.path("new.db");
    let (path, dir) = (there.display(), nowhere.display());
    for uri in [
        format!("file:{dir}/new.db?vfs=duralite&strict=on"),
        format!("file:{dir}/new.db?vfs=duralite&journal=waldio"),
        format!("file:{dir}/new.db?vfs=duralite&journal=scratchpad&scratchpad=emulate"),
        format!("file:{path}?vfs=duralite&log_dir={dir}"),
        format!("file:{path}?vfs=duralite&nvram={dir}"),
        format!("file:{path}?vfs=duralite&journal=nvwal&nvram=emulate&nvram_dir={dir}"),
        format!("file:{path}?vfs=duralite&journal=scratchpad&scratchpad={dir}&home=emulate"),
    ] {
        let why = refusal(&uri);
        assert!(why.contains("nowhere") && why.contains("No such file or directory"), "{uri}: {why}");
        assert!(!why.contains("emulate") && !why.contains("no NVRAM"), "{uri}: {why}");
        assert!(!there.exists());
    }
}

/// A process without free file descriptors must get an error that says so, and no other error. If it
/// cannot open a file, it must not conclude that the file is missing, and must neither replace nor
/// discard the file.
#[test]
fn inv03_who_is_out_of_file_descriptors_is_told_so() {
    for engine in Engine::all() {
        let fixture = Fixture::on(engine);
        abandoned(&fixture, "f.db");
        for sql in ["SELECT sum(a) FROM t", "INSERT INTO t VALUES(0)"] {
            let mut starved = Actor::start(&["few_files", &fixture.uri("f.db", ""), sql]);
            let mut told = 0;
            loop {
                let line = starved.line();
                if line == "ok" {
                    break;
                }
                let (code, why) =
                    line.split_once(' ').unwrap_or_else(|| panic!("{engine:?}: it died: {line}"));
                assert_eq!(code, ffi::SQLITE_CANTOPEN.to_string(), "{engine:?}: {line}");
                assert!(
                    why.is_empty() || why.contains("out of file descriptors (EMFILE)"),
                    "{engine:?}: {line}"
                );
                told += usize::from(!why.is_empty());
            }
            assert!(told > 0, "{engine:?}: nothing was refused");
            starved.finish();
        }
        assert_eq!(read_elsewhere(&fixture.uri("f.db", "")), "6", "{engine:?}");
    }
}
