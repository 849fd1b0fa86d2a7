//! Tests real SQLite on a database file that the engine `scratchpad` has mapped into memory.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test
#![allow(unsafe_code)] // file controls

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use duralite_medium::{MediumError, Nvm};
use duralite_testkit::{
    Actor, Engine, Fixture, TinyDirectory, code, connect, integrity, one, run, skip, stock,
};
use duralite_wal::LogPlacement;
use duralite_wal::engine::media::MediaSet;
use duralite_wal::log::offline;
use duralite_wal::placement::{self, FileStep, Hook, hook};
use rusqlite::{Connection, ffi};

const NAME: &str = "m.db";

fn fixture() -> Fixture {
    Fixture::on(Engine::SCRATCHPAD)
}

/// A hook that collects the memory to which database files are mapped.
#[derive(Default)]
struct Watch(Mutex<Vec<Arc<dyn Nvm>>>);

impl Hook for Watch {
    fn step(&self, _: FileStep, _: &Path) -> std::io::Result<()> {
        Ok(())
    }

    fn home(&self, _: &Path, nvm: Arc<dyn Nvm>) -> Result<Arc<dyn Nvm>, MediumError> {
        self.0.lock().unwrap().push(Arc::clone(&nvm));
        Ok(nvm)
    }
}

/// Returns the number of locks that this process has on a file, according to the kernel's list. The function
/// must not open the file, because closing it again would release the locks.
///
/// The kernel lists the locks of all processes, a part at a time. If other locks come and go between the
/// parts, the list may miss a lock or have it twice. Most readings are right, so this returns the median.
fn locks(path: &Path) -> usize {
    let mut readings = [(); 15].map(|()| locks_in_one_reading(path));
    readings.sort_unstable();
    readings[readings.len() / 2]
}

fn locks_in_one_reading(path: &Path) -> usize {
    let (pid, inode) = (std::process::id().to_string(), fs::metadata(path).unwrap().ino());
    let ends = format!(":{inode}");
    let all = fs::read_to_string("/proc/locks").unwrap();
    all.lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.contains(&"POSIX") && words.contains(&&*pid))
        .filter(|words| words.iter().any(|word| word.ends_with(&ends)))
        .count()
}

/// Returns the number of descriptors that this process has open on a file.
fn descriptors(path: &Path) -> usize {
    let all = fs::read_dir("/proc/self/fd").unwrap();
    all.filter(|entry| fs::read_link(entry.as_ref().unwrap().path()).is_ok_and(|to| to == path)).count()
}

fn fill(conn: &Connection, rows: usize) {
    conn.execute_batch(&format!(
        "CREATE TABLE IF NOT EXISTS t(a INTEGER PRIMARY KEY, b);
         WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
         INSERT INTO t(b) SELECT randomblob(1000) FROM n"
    ))
    .unwrap();
}

/// Returns the database's size according to SQLite.
fn bytes_of(conn: &Connection) -> u64 {
    let bytes = one::<i64>(conn, "PRAGMA page_count") * one::<i64>(conn, "PRAGMA page_size");
    u64::try_from(bytes).unwrap()
}

fn checkpoint(conn: &Connection) {
    assert_eq!(one::<i64>(conn, "PRAGMA wal_checkpoint(TRUNCATE)"), 0);
}

#[test]
fn pages_are_read_and_written_in_memory_that_all_connections_share() {
    let fixture = fixture();
    let watch = Arc::new(Watch::default());
    let _hooked = hook(fixture.path(NAME).parent().unwrap(), watch.clone());
    let conn = fixture.open(NAME);
    fill(&conn, 50);
    let other = fixture.open(NAME);
    run(&other, "PRAGMA mmap_size=1048576").unwrap();
    let homes = watch.0.lock().unwrap().clone();
    assert_eq!(homes.len(), 1);
    let before = homes[0].counters();
    checkpoint(&conn);
    let stored = homes[0].counters() - before;
    assert!(stored.stored_bytes > 50_000 && stored.fences > 0, "{stored:?}");
    assert_eq!(one::<i64>(&other, "SELECT sum(length(b)) FROM t"), 50_000);
    assert!(homes[0].counters().read_bytes - before.read_bytes > 50_000);
    drop(other);
    conn.close().unwrap();
    fixture.assert_plain(NAME);
    integrity(&stock(&fixture.path(NAME)));
}

#[test]
fn inv18_locks_of_the_process_stay_whatever_connection_goes_first() {
    let fixture = fixture();
    let path = fixture.path(NAME);
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let mut all: Vec<_> = (0..3).map(|_| Some(fixture.open(NAME))).collect();
        run(all[0].as_ref().unwrap(), "CREATE TABLE IF NOT EXISTS t(a, b)").unwrap();
        for conn in all.iter().flatten() {
            assert_eq!(one::<i64>(conn, "SELECT count(*) FROM t"), 0);
        }
        for (closed, which) in order.into_iter().enumerate() {
            assert!(locks(&path) > 0, "{closed} connections are closed");
            all[which].take().unwrap().close().unwrap();
        }
        fixture.assert_plain(NAME);
        assert_eq!((locks(&path), descriptors(&path)), (0, 0), "nothing is left");
    }
}

/// Duralite no longer needs its mapping of the file, but a connection without Duralite holds a lock on the
/// file. If Duralite closed the mapping's descriptor now, the kernel would release that lock.
#[test]
fn inv18_locks_of_other_connections_stay_when_the_mapping_has_gone() {
    let fixture = fixture();
    let path = fixture.path(NAME);
    let conn = fixture.open(NAME);
    conn.execute_batch("CREATE TABLE t(a, b); PRAGMA journal_mode=MEMORY").unwrap();
    fixture.assert_plain(NAME);
    let reader = stock(&path);
    reader.execute_batch("BEGIN; SELECT count(*) FROM t").unwrap();
    assert_eq!(locks(&path), 1);
    conn.close().unwrap();
    assert_eq!(locks(&path), 1, "the reader still has its lock");
    run(&reader, "COMMIT").unwrap();
    drop(reader);
    assert!(descriptors(&path) > 0);
    let conn = fixture.open(NAME);
    assert_eq!(one::<i64>(&conn, "SELECT count(*) FROM t"), 0);
    conn.close().unwrap();
    assert_eq!(descriptors(&path), 0, "it goes with the next connection that is closed");
}

#[test]
fn inv19_a_file_that_an_outsider_cuts_ends_in_an_error() {
    let fixture = fixture();
    let path = fixture.path(NAME);
    let conn = fixture.open(NAME);
    run(&conn, "PRAGMA cache_size=5").unwrap();
    fill(&conn, 500);
    checkpoint(&conn);
    // Another process must cut the file, because this process would release its locks if it closed the file.
    let cut = Command::new("truncate").args(["-s", "8192"]).arg(&path).status();
    if !cut.is_ok_and(|status| status.success()) {
        return skip("no file is cut", "there is no truncate");
    }
    let failed = run(&conn, "SELECT sum(length(b)) FROM t").unwrap_err();
    assert_eq!(code(&failed) & 0xff, ffi::SQLITE_IOERR, "{failed}");
    let refused = run(&conn, "CREATE TABLE more(a)").unwrap_err();
    assert_eq!(code(&refused) & 0xff, ffi::SQLITE_IOERR, "nothing more is acknowledged: {refused}");
    drop(conn);
    // A new connection reads what is left of the file. As on stock SQLite, this rest is no sound database.
    let conn = connect(&fixture.uri(NAME, "")).unwrap();
    let found = run(&conn, "SELECT sum(length(b)) FROM t");
    assert!(found.is_err());
    drop(conn);
    let other = fixture.open("other.db");
    fill(&other, 5);
    integrity(&other);
}

#[test]
fn a_file_system_that_is_full_says_so_and_nothing_is_lost() {
    let Some(tiny) = TinyDirectory::new(512) else { return };
    let fixture = fixture();
    let database = tiny.path().join(NAME);
    let uri =
        format!("file:{}?vfs=duralite&{}", database.display(), fixture.engine().settings(fixture.log_dir()));
    let conn = connect(&uri).unwrap();
    conn.execute_batch("PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0").unwrap();
    fs::write(tiny.path().join("ballast"), vec![1; 300 << 10]).unwrap();
    fill(&conn, 400);
    let full = run(&conn, "PRAGMA wal_checkpoint(TRUNCATE)").unwrap_err();
    assert_eq!(code(&full) & 0xff, ffi::SQLITE_FULL, "{full}");
    assert_eq!(one::<i64>(&conn, "SELECT sum(length(b)) FROM t"), 400_000);
    run(&conn, "DELETE FROM t WHERE a > 100").unwrap();
    fs::remove_file(tiny.path().join("ballast")).unwrap();
    run(&conn, "VACUUM").unwrap();
    checkpoint(&conn);
    assert_eq!(one::<i64>(&conn, "SELECT sum(length(b)) FROM t"), 100_000);
    integrity(&conn);
    conn.close().unwrap();
    integrity(&stock(&database));
}

#[test]
fn others_follow_when_the_file_is_cut_and_grows_again() {
    let fixture = fixture();
    let conn = fixture.open(NAME);
    fill(&conn, 300);
    checkpoint(&conn);
    let size = || fs::metadata(fixture.path(NAME)).unwrap().len();
    let mut other = Actor::sql(&fixture.uri(NAME, ""));
    assert_eq!(other.run("SELECT sum(length(b)) FROM t"), "300000");
    let largest = size();
    for round in 1..=5 {
        conn.execute_batch("DELETE FROM t WHERE a > 10; VACUUM").unwrap();
        checkpoint(&conn);
        assert!(size() < largest / 4);
        assert_eq!(size(), bytes_of(&conn), "the file has the size of the database");
        assert_eq!(other.run("SELECT sum(length(b)) FROM t"), "10000");
        // The other process makes the file long again with these statements.
        let sql = "INSERT INTO t(b) SELECT randomblob(1000) FROM t a, t b, t c WHERE c.a <= 3";
        assert_eq!(other.run(sql), "");
        assert!(other.run("PRAGMA wal_checkpoint(TRUNCATE)").starts_with('0'), "round {round}");
        assert_eq!(one::<i64>(&conn, "SELECT sum(length(b)) FROM t"), 310_000);
        integrity(&conn);
    }
    other.kill();
    conn.close().unwrap();
    integrity(&stock(&fixture.path(NAME)));
}

/// A copy of the database takes the log over. The log must keep all of its frames, so that the original
/// database can use it afterwards.
#[test]
fn a_copy_takes_a_log_over_and_leaves_it_as_it_was() {
    let fixture = fixture();
    let mut actor = Actor::sql(&fixture.uri(NAME, ""));
    assert_eq!(actor.run("PRAGMA journal_mode=WAL"), "wal");
    assert_eq!(actor.run("CREATE TABLE t(a, b)"), "");
    assert!(actor.run("PRAGMA wal_checkpoint(TRUNCATE)").starts_with('0'));
    assert_eq!(actor.run("INSERT INTO t VALUES(6, zeroblob(20000))"), "");
    actor.kill();
    let (log, copy) = (fixture.log(), fixture.path("copy.db"));
    fs::copy(fixture.path(NAME), &copy).unwrap();
    let engine = fixture.engine().descriptor();
    let logs = LogPlacement::at(engine, fixture.log_dir(), &MediaSet::default());
    let id = placement::describe(&log).unwrap().id;
    let done = offline::checkpoint(&logs, &copy, id, true).unwrap();
    assert_eq!(one::<i64>(&stock(&copy), "SELECT sum(a) FROM t"), 6);
    fs::rename(done.kept.unwrap(), &log).unwrap();
    let conn = fixture.open(NAME);
    assert_eq!(one::<i64>(&conn, "SELECT sum(a) FROM t"), 6);
    integrity(&conn);
}

/// SQLite passes the chunk size to the VFS below Duralite's. Duralite grows the file without that VFS, so the
/// chunk size must have no effect.
#[test]
fn chunks_do_not_make_the_file_longer_than_the_database() {
    let fixture = fixture();
    let conn = fixture.open(NAME);
    let mut chunk: i32 = 1 << 20;
    // SAFETY: the connection is open. The control gets the name of its database, and a pointer to an int,
    // which it expects.
    let set = unsafe {
        ffi::sqlite3_file_control(
            conn.handle(),
            c"main".as_ptr(),
            ffi::SQLITE_FCNTL_CHUNK_SIZE,
            (&raw mut chunk).cast(),
        )
    };
    assert_eq!(set, ffi::SQLITE_OK);
    fill(&conn, 100);
    checkpoint(&conn);
    assert_eq!(fs::metadata(fixture.path(NAME)).unwrap().len(), bytes_of(&conn));
}

#[test]
fn inv20_without_direct_access_a_home_has_to_be_asked_for_before_anything_is_made() {
    let fixture = fixture();
    if duralite_medium::is_dax(fixture.path(NAME).parent().unwrap()) {
        return skip("a home that is refused", "the directory is on a DAX file system");
    }
    let uri = fixture.uri(NAME, "").replace("&home=emulate", "");
    assert!(connect(&uri).is_err());
    let told: String = one(&connect(&fixture.uri("other.db", "")).unwrap(), "SELECT duralite_last_error()");
    assert!(told.contains("home=emulate"), "{told}");
    assert!(!fixture.path(NAME).exists() && fixture.logs().is_empty());
}

#[test]
fn every_way_to_make_pages_durable_serves() {
    for sync in ["adaptive", "wb", "wt"] {
        let fixture = fixture();
        let conn = fixture.open_with(NAME, &format!("home_sync={sync}"));
        run(&conn, "PRAGMA wal_autocheckpoint=20").unwrap();
        for _ in 0..40 {
            fill(&conn, 20);
            run(&conn, "UPDATE t SET b = randomblob(900) WHERE a % 7 = 3").unwrap();
        }
        let sum = one::<i64>(&conn, "SELECT sum(length(b)) FROM t");
        conn.close().unwrap();
        let plain = stock(&fixture.path(NAME));
        integrity(&plain);
        assert_eq!(one::<i64>(&plain, "SELECT sum(length(b)) FROM t"), sum, "{sync}");
    }
}

/// Returns how many bytes of its address space this process has mapped to the file at `path`.
fn addresses(path: &Path) -> u64 {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let of_file = maps.lines().filter(|line| line.ends_with(path.to_str().unwrap()));
    of_file
        .map(|line| {
            let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            u64::from_str_radix(end, 16).unwrap() - u64::from_str_radix(start, 16).unwrap()
        })
        .sum()
}

#[test]
fn many_databases_leave_a_process_its_addresses() {
    const DATABASES: usize = 200;
    let fixture = fixture();
    let all: Vec<_> = (0..DATABASES)
        .map(|n| {
            let name = format!("{n}.db");
            let conn = fixture.open(&name);
            fill(&conn, 3);
            (fixture.path(&name), conn)
        })
        .collect();
    for (path, conn) in &all {
        assert_eq!(one::<i64>(conn, "SELECT count(*) FROM t"), 3);
        let taken = addresses(path);
        assert!(taken > 0 && taken <= 64 << 20, "{taken} bytes for {}", path.display());
    }
    // The address space must still have room for such an ordinary allocation.
    let mut memory = Vec::<u8>::new();
    memory.try_reserve_exact(1 << 30).unwrap();
}

#[test]
fn a_database_outgrows_its_addresses_while_others_read() {
    const STEPS: i64 = 10;
    const ROWS: i64 = 8_000;
    let fixture = fixture();
    let patient = || {
        let conn = fixture.open(NAME);
        // Neither connection gets a busy error when the other starts a transaction or makes a checkpoint.
        conn.busy_timeout(Duration::from_secs(60)).unwrap();
        conn
    };
    let writer = patient();
    fill(&writer, 1);
    checkpoint(&writer);
    let first = addresses(&fixture.path(NAME));
    assert!(first > 0);
    std::thread::scope(|scope| {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let reader = scope.spawn({
            let patient = &patient;
            move || {
                let conn = patient();
                let mut seen = 0;
                while matches!(stopped.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty)) {
                    let rows = one::<i64>(&conn, "SELECT count(*) FROM t");
                    assert!(rows >= seen && rows % ROWS == 1, "{rows} after {seen}");
                    assert_eq!(one::<i64>(&conn, "SELECT length(b) FROM t ORDER BY a DESC LIMIT 1"), 1000);
                    seen = rows;
                }
            }
        });
        for _ in 0..STEPS {
            fill(&writer, ROWS as usize);
            // A reader may prevent the checkpoint from writing everything. The next checkpoint then writes
            // the rest.
            let _busy = one::<i64>(&writer, "PRAGMA wal_checkpoint(PASSIVE)");
        }
        drop(stop);
        reader.join().unwrap();
    });
    checkpoint(&writer);
    let (size, taken) = (bytes_of(&writer), addresses(&fixture.path(NAME)));
    assert!(size > 4 * first, "{size} bytes, and {first} of addresses at first");
    assert!(taken >= size && taken <= 4 * size + first, "{taken} bytes of addresses for {size}");
    assert_eq!(one::<i64>(&writer, "SELECT sum(length(b)) FROM t"), 1000 * (STEPS * ROWS + 1));
    writer.close().unwrap();
    integrity(&stock(&fixture.path(NAME)));
}
