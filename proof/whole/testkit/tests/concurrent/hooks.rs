//! Tests what SQLite does after a commit: it calls the WAL hook, and makes automatic checkpoints.
#![allow(unsafe_code)] // calls SQLite's C interface

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;

use duralite_testkit::{Fixture, integrity, one, run, stock};
use rusqlite::{Connection, ffi};

use super::{MODES, OK, codes, open, rows, with_rows};

/// The frame counts that SQLite has passed to a connection's WAL hook. The hook makes a checkpoint if the
/// count is at least `checkpoints_from`.
struct Hook {
    told: Vec<c_int>,
    checkpoints_from: c_int,
}

unsafe extern "C" fn hook(
    hook: *mut c_void,
    db: *mut ffi::sqlite3,
    name: *const c_char,
    frames: c_int,
) -> c_int {
    // SAFETY: `with_hook` has passed the hook, and SQLite calls it only within its calls on that connection.
    unsafe {
        let hook = &mut *hook.cast::<Hook>();
        hook.told.push(frames);
        if frames >= hook.checkpoints_from { ffi::sqlite3_wal_checkpoint(db, name) } else { OK }
    }
}

/// Returns the frame counts that SQLite passes to the WAL hook while `work` runs.
fn with_hook(conn: &Connection, checkpoints_from: c_int, work: impl FnOnce()) -> Vec<c_int> {
    let mut state = Hook { told: Vec::new(), checkpoints_from };
    // SAFETY: the connection is open, and `state` outlives the hook.
    unsafe { ffi::sqlite3_wal_hook(conn.handle(), Some(hook), (&raw mut state).cast()) };
    work();
    // SAFETY: as above.
    unsafe { ffi::sqlite3_wal_hook(conn.handle(), None, std::ptr::null_mut()) };
    state.told
}

fn checkpoint_automatically(conn: &Connection, frames: c_int) {
    // SAFETY: the connection is open.
    assert_eq!(unsafe { ffi::sqlite3_wal_autocheckpoint(conn.handle(), frames) }, OK);
}

/// Makes a database in WAL mode with the rows of [`rows`], on stock SQLite.
fn on_stock(path: &Path) -> Connection {
    let conn = stock(path);
    run(&conn, "PRAGMA journal_mode=WAL").unwrap();
    rows(&conn);
    conn
}

fn update(conn: &Connection, count: usize) {
    for round in 0..count {
        let sql = match round % 3 {
            0 => "UPDATE t SET v=v+1 WHERE k=1",
            1 => "BEGIN; UPDATE t SET v=v+1 WHERE k=1; UPDATE t SET v=v+1 WHERE k=90; COMMIT",
            _ => "BEGIN IMMEDIATE; UPDATE t SET v=v+1 WHERE k=50; COMMIT",
        };
        assert_eq!(codes(conn, sql), OK);
    }
}

/// Runs some transactions. Returns the number of frames in the log after each.
fn lengths(conn: &Connection, frames: &dyn Fn() -> u64) -> Vec<u64> {
    (0..60)
        .map(|_| {
            update(conn, 1);
            frames()
        })
        .collect()
}

fn log_frames(conn: &Connection) -> u64 {
    let status: String = one(conn, "PRAGMA duralite");
    status.lines().find_map(|line| line.strip_prefix("log_frames\t")).unwrap().parse().unwrap()
}

#[test]
fn the_log_is_as_long_as_with_stock_after_sqlite3_wal_autocheckpoint() {
    for frames in [0, 10, 1000] {
        let fixture = Fixture::new();
        let theirs = on_stock(&fixture.path("theirs.db"));
        run(&theirs, "PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        checkpoint_automatically(&theirs, frames);
        let wal = fixture.path("theirs.db-wal");
        let most = |lengths: Vec<u64>| lengths.into_iter().max().unwrap();
        let expected =
            most(lengths(&theirs, &|| (std::fs::metadata(&wal).unwrap().len() - 32) / (24 + 4096)));
        for mode in ["off", "on", "upgrade"] {
            let (_fixture, [a]) = with_rows(mode);
            run(&a, "PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
            checkpoint_automatically(&a, frames);
            assert_eq!(most(lengths(&a, &|| log_frames(&a))), expected, "{mode}, {frames}");
            integrity(&a);
        }
    }
}

#[test]
fn the_hook_is_told_what_it_is_with_stock() {
    for checkpoints_from in [20, c_int::MAX] {
        let fixture = Fixture::new();
        let theirs = on_stock(&fixture.path("theirs.db"));
        run(&theirs, "PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        let expected = with_hook(&theirs, checkpoints_from, || update(&theirs, 60));
        for mode in MODES {
            let (_fixture, [a, b]) = with_rows(mode);
            run(&a, "PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
            let told = with_hook(&a, checkpoints_from, || update(&a, 60));
            assert_eq!(told, expected, "{mode}, {checkpoints_from}");
            // Frames that other connections have committed count too.
            run(&a, "PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
            let told = with_hook(&a, c_int::MAX, || {
                update(&b, 7);
                update(&a, 2);
            });
            assert_eq!(told, [10, 12], "{mode}");
            integrity(&a);
        }
    }
}

#[test]
fn data_version_does_not_move_with_automatic_checkpoints() {
    for mode in MODES {
        let (_fixture, [a]) = with_rows(mode);
        run(&a, "PRAGMA wal_autocheckpoint=10").unwrap();
        let version = one::<i64>(&a, "PRAGMA data_version");
        update(&a, 40);
        assert_eq!(one::<i64>(&a, "PRAGMA data_version"), version, "{mode}");
    }
}

/// Because of automatic checkpoints, the log and the private WAL of each connection start over again and
/// again. So several connections use the same frame numbers for different frames.
#[test]
fn frames_by_numbers_that_others_have_used_are_read_as_they_are_written() {
    for mode in MODES {
        let fixture = Fixture::new();
        let conns = [(); 3].map(|()| open(&fixture, mode));
        rows(&conns[0]);
        for conn in &conns {
            run(conn, "PRAGMA cache_size=5").unwrap();
        }
        let mut expected = 0;
        for round in 0..240_u32 {
            let conn = &conns[(round * 7 % 11 % 3) as usize];
            let (from, to) = (round * 13 % 90, round * 13 % 90 + round % 10);
            // This transaction writes more pages than the cache holds, each of them several times.
            let update = format!("UPDATE t SET v=v+1 WHERE k BETWEEN {from} AND {to}");
            assert_eq!(
                codes(conn, &format!("BEGIN; {update}; {update}; UPDATE t SET pad=pad; {update}")),
                OK
            );
            expected += 3 * i64::from(to - from + 1);
            assert_eq!(one::<i64>(conn, "SELECT sum(v) FROM t"), expected);
            let end = if round % 5 == 0 { "ROLLBACK" } else { "COMMIT" };
            assert_eq!(codes(conn, end), OK);
            if end == "ROLLBACK" {
                expected -= 3 * i64::from(to - from + 1);
            }
            assert_eq!(one::<i64>(conn, "SELECT sum(v) FROM t"), expected);
            if round % 40 == 17 {
                run(&conns[1], "PRAGMA wal_checkpoint(RESTART)").unwrap();
            }
        }
        conns.iter().for_each(integrity);
    }
}

/// A build of SQLite that can itself wait for locks (`SQLITE_ENABLE_SETLK_TIMEOUT`) asks the VFS for that
/// with a file control. If the VFS agreed, SQLite would take WRITE before it reads anything. So Duralite must
/// not agree.
#[test]
fn sqlite_is_not_told_that_it_can_wait_for_locks_itself() {
    for mode in MODES {
        let (_fixture, [a]) = with_rows(mode);
        assert_eq!(one::<i64>(&a, "SELECT count(*) FROM t"), 100);
        let mut timeout: c_int = 0;
        // SAFETY: the connection is open, and the control takes a number.
        let code = unsafe {
            ffi::sqlite3_file_control(
                a.handle(),
                c"main".as_ptr(),
                ffi::SQLITE_FCNTL_LOCK_TIMEOUT,
                (&raw mut timeout).cast(),
            )
        };
        assert_eq!(code, ffi::SQLITE_NOTFOUND);
    }
}
