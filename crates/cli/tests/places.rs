//! What the commands print when they cannot write a file or directory: first the path and the operating system's error,
//! then what the user can do.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests fail as tests do

use crate::place;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use place::{COMMAND, PYTHON, Place};

/// A small mounted file system.
struct Small(PathBuf);

impl Drop for Small {
    fn drop(&mut self) {
        run("umount", &["-l", self.0.to_str().unwrap()]);
    }
}

fn run(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

impl Small {
    /// Mounts a small file system. Returns `None` if this user may not mount.
    fn mount(at: &Path) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let can = run("mount", &["-t", "tmpfs", "-o", "size=8m", "tmpfs", at.to_str().unwrap()]);
        let is_required = std::env::var_os("DURALITE_REQUIRE_RIGS").is_some();
        assert!(can || !is_required || !rustix::process::geteuid().is_root(), "root cannot mount here");
        if !can {
            eprintln!("skipped: this user may not mount");
        }
        can.then(|| Self(at.to_path_buf()))
    }

    fn remount(&self, how: &str) {
        assert!(run("mount", &["-o", &format!("remount,{how}"), self.0.to_str().unwrap()]));
    }

    /// Makes a database whose log holds rows, because the process that wrote them was killed.
    fn left_by_a_crash(&self, place: &Place, name: &str) {
        let program = "
import os, sqlite3, sys
conn = sqlite3.connect(sys.argv[1], isolation_level=None)
conn.execute('PRAGMA journal_mode=WAL')
conn.execute('PRAGMA wal_autocheckpoint=0')
conn.execute('CREATE TABLE t(a)')
for n in range(100): conn.execute('INSERT INTO t VALUES(randomblob(3000))')
os.kill(os.getpid(), 9)
";
        let path = self.0.join(name);
        let said = place.run(COMMAND, &["run", "-q", "--", PYTHON, "-c", program, path.to_str().unwrap()]);
        assert_eq!(said.code, -9, "{said:?}");
    }
}

#[test]
fn a_read_only_file_system_is_named_with_the_path() {
    let place = Place::new();
    let Some(small) = Small::mount(&place.path("small")) else { return };
    for mode in ["delete", "wal"] {
        let said = place
            .stock(&format!("small/{mode}.db"), &format!("PRAGMA journal_mode={mode}; CREATE TABLE t(a)"));
        assert_eq!(said.code, 0, "{said:?}");
    }
    small.left_by_a_crash(&place, "crashed.db");
    small.remount("ro");
    for (command, database) in [
        (vec!["enable", "small/delete.db"], "small/delete.db"),
        (vec!["enable", "small/wal.db"], "small/wal.db"),
        (vec!["disable", "small/wal.db"], "small/wal.db"),
        (vec!["enable", "--create", "small/new.db"], "small"),
    ] {
        let said = place.duralite(&command);
        let expected = format!("duralite: {database}: Read-only file system (os error 30); ");
        assert!(said.code == 1 && said.err.starts_with(&expected), "{command:?}: {said:?}");
        assert!(said.err.contains("mount the file system for writing first"), "{said:?}");
    }
    let said = place.duralite(&["checkpoint", "small/crashed.db"]);
    assert!(
        said.code == 1 && said.err.contains("small/crashed.db: Read-only file system (os error 30)"),
        "{said:?}"
    );
    assert!(said.err.contains("mounted for writing"), "{said:?}");
    small.remount("rw");
    assert_eq!(place.duralite(&["checkpoint", "small/crashed.db"]).code, 0);
    assert_eq!(place.stock("small/crashed.db", "SELECT count(*) FROM t").out, "100\n");
}

#[test]
fn a_checkpoint_without_space_says_so_and_can_be_repeated() {
    let place = Place::new();
    let Some(small) = Small::mount(&place.path("small")) else { return };
    small.left_by_a_crash(&place, "full.db");
    let fill = place.path("small/fill");
    // This write fills the file system until it has no free page.
    assert!(fs::write(&fill, vec![1; 16 << 20]).is_err());
    let said = place.duralite(&["checkpoint", "small/full.db"]);
    let expected = "small/full.db: No space left on device (os error 28); nothing is lost: the log is as it was. Free space";
    assert!(said.code == 1 && said.err.contains(expected), "{said:?}");
    fs::remove_file(&fill).unwrap();
    assert_eq!(place.duralite(&["checkpoint", "small/full.db"]).code, 0);
    assert_eq!(
        place.stock("small/full.db", "PRAGMA integrity_check; SELECT count(*) FROM t").out,
        "ok\n100\n"
    );
}
