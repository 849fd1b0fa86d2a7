//! Tests the private WAL that Duralite shows to SQLite on a concurrent connection. This WAL usually lasts for
//! several transactions, and starts over now and then.

use duralite_testkit::{Fixture, Rng, dump, integrity, one, run, stock};
use rusqlite::Connection;

use super::{MODES, OK, codes, open, with_rows};

/// A statement, and whether a SELECT is open while it runs.
type Step = (String, bool);

/// Draws a list of statements: many small commits, and some large ones. The large transactions spill pages
/// from the cache, and write some frames twice.
fn program(rng: &mut Rng) -> Vec<Step> {
    let mut step = || {
        let (row, bytes) = (rng.below(60), 50 + 40 * rng.below(30));
        let sql = match rng.below(16) {
            0 => format!("BEGIN; UPDATE t SET b = zeroblob({bytes}); UPDATE t SET b = {row}; COMMIT"),
            1 => format!(
                "BEGIN; UPDATE t SET b = zeroblob({bytes}); SAVEPOINT s; UPDATE t SET b = randomblob({bytes}); \
                 ROLLBACK TO s; UPDATE t SET b = {row} WHERE a < 30; COMMIT"
            ),
            2 => format!("BEGIN; UPDATE t SET b = zeroblob({bytes}); ROLLBACK"),
            3 => format!("BEGIN IMMEDIATE; DELETE FROM t WHERE a > {row}; COMMIT"),
            4 => "PRAGMA wal_checkpoint(PASSIVE)".to_owned(),
            5..=7 => format!("INSERT OR REPLACE INTO t VALUES({row}, zeroblob({bytes}))"),
            8..=10 => format!("SELECT sum(length(b)) FROM t WHERE a > {row}"),
            _ => format!("BEGIN; UPDATE t SET b = zeroblob({bytes}) WHERE a = {row}; COMMIT"),
        };
        (sql, rng.below(6) == 0)
    };
    (0..150).map(|_| step()).collect()
}

/// Runs the program. Returns the codes, what the SELECTs saw, and the committed content.
fn outcome(conn: &Connection, program: &[Step]) -> (Vec<i32>, Vec<Vec<i64>>, String) {
    let mut seen = Vec::new();
    let all = program.iter().map(|(sql, is_open)| {
        // A checkpoint finds the database locked while a SELECT is open.
        let mut statement = conn.prepare("SELECT a FROM t ORDER BY a").unwrap();
        let mut cursor = statement.query([]).unwrap();
        let mut values = Vec::new();
        if *is_open {
            values.extend(cursor.next().unwrap().map(|row| row.get::<_, i64>(0).unwrap()));
        } else {
            drop(cursor);
            return codes(conn, sql);
        }
        let code = codes(conn, sql);
        while let Ok(Some(row)) = cursor.next() {
            values.push(row.get(0).unwrap());
        }
        seen.push(values);
        code
    });
    let all = all.collect();
    (all, seen, format!("{:?}", dump(conn)))
}

#[test]
fn frames_of_earlier_transactions_are_read_as_they_are_committed() {
    for (seed, cache, checkpoint) in [(1, 5, 1000), (2, 5, 20), (3, 2000, 0), (4, 10, 1)] {
        let program = program(&mut Rng::new(seed));
        let begin = format!(
            "PRAGMA cache_size={cache}; PRAGMA wal_autocheckpoint={checkpoint}; CREATE TABLE t(a INTEGER PRIMARY KEY, b)"
        );
        let fixture = Fixture::new();
        let theirs = stock(&fixture.path("theirs.db"));
        run(&theirs, "PRAGMA journal_mode=WAL").unwrap();
        assert_eq!(codes(&theirs, &begin), OK);
        let expected = outcome(&theirs, &program);
        for mode in MODES {
            let fixture = Fixture::new();
            let (ours, other) = (open(&fixture, mode), open(&fixture, mode));
            assert_eq!(codes(&ours, &begin), OK);
            assert_eq!(outcome(&ours, &program), expected, "seed {seed}, {mode}");
            assert_eq!(format!("{:?}", dump(&other)), expected.2, "seed {seed}, {mode}");
            integrity(&ours);
            integrity(&other);
            drop((ours, other));
            fixture.assert_plain("c.db");
        }
    }
}

#[test]
fn the_last_frame_is_not_written_home_at_the_close() {
    for mode in MODES {
        let (fixture, [a, b]) = with_rows(mode);
        assert_eq!(codes(&a, "UPDATE t SET v=1 WHERE k=5"), OK);
        assert_eq!(codes(&b, "UPDATE t SET v=2 WHERE k=5"), OK);
        // `a` closes last. The newest frame that `a` knows has an older version of the page than the log has.
        drop(b);
        a.close().unwrap();
        let plain = stock(&fixture.path("c.db"));
        assert_eq!(one::<i64>(&plain, "SELECT v FROM t WHERE k=5"), 2, "{mode}");
        integrity(&plain);
    }
}
