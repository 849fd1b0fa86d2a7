//! Tests that a connection waits for the WRITE lock in Duralite's queue, and never in the sleep of SQLite's
//! busy handler.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a failed helper is a failed test
#![allow(unsafe_code)] // replaces a function of the base VFS

use std::ffi::c_int;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use duralite_testkit::Fixture;
use rusqlite::ffi;

/// The shortest sleep of SQLite's busy handler in microseconds. A reader that tries again sleeps for a
/// shorter time, so its sleeps do not count.
const BUSY_MICROSECONDS: c_int = 1000;
const THREADS: usize = 4;
const COMMITS: usize = 3000;

static SLEEPS: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn counting(_: *mut ffi::sqlite3_vfs, microseconds: c_int) -> c_int {
    if microseconds >= BUSY_MICROSECONDS {
        SLEEPS.fetch_add(1, Ordering::Relaxed);
    }
    std::thread::sleep(Duration::from_micros(microseconds.unsigned_abs().into()));
    microseconds
}

/// A connection may find its snapshot outdated when it gets WRITE, and SQLite then refuses to write. Even
/// then, no connection may sleep in SQLite's busy handler.
#[test]
fn a_snapshot_that_is_old_by_the_time_of_write_waits_in_the_queue() {
    // SAFETY: this call comes before anything else uses SQLite. This process has only this test.
    unsafe {
        assert_eq!(ffi::sqlite3_initialize(), ffi::SQLITE_OK);
        (*ffi::sqlite3_vfs_find(c"unix".as_ptr())).xSleep = Some(counting);
    }
    let fixture = Fixture::new();
    let first = fixture.open("a.db");
    first.execute_batch("CREATE TABLE t(x)").unwrap();
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let conn = fixture.open("a.db");
                conn.busy_timeout(Duration::from_secs(60)).unwrap();
                let mut insert = conn.prepare("INSERT INTO t VALUES(1)").unwrap();
                start.wait();
                for _ in 0..COMMITS {
                    insert.execute([]).unwrap();
                }
            });
        }
    });
    assert_eq!(SLEEPS.load(Ordering::Relaxed), 0);
}
