//! Runs random transactions on several connections, one after another. Each answer must be that of stock
//! SQLite.

use duralite_testkit::{Fixture, Outcome, Rng, dump, for_seeds, integrity, one, run, stock};
use rusqlite::Connection;

use super::{MODES, open};

const SCHEMA: &str = "CREATE TABLE t(a INTEGER PRIMARY KEY, b BLOB, c UNIQUE);
    CREATE TABLE log(id INTEGER PRIMARY KEY AUTOINCREMENT, what);
    CREATE INDEX i ON t(b);
    CREATE TRIGGER changed AFTER UPDATE OF b ON t BEGIN INSERT INTO log(what) VALUES(new.a); END";

fn statement(rng: &mut Rng) -> String {
    let (a, size) = (rng.below(200), rng.below(3000));
    match rng.below(14) {
        0..=2 => format!("INSERT INTO t VALUES({a}, zeroblob({size}), -{a} % 50)"),
        3 => format!("INSERT OR REPLACE INTO t VALUES({a}, zeroblob({size}), {a} % 50)"),
        4..=6 => format!("UPDATE t SET b = zeroblob({size}) WHERE a BETWEEN {a} AND {a} + 3"),
        7 => format!("UPDATE OR IGNORE t SET c = c + 1 WHERE a > {a}"),
        8 => format!("DELETE FROM t WHERE a BETWEEN {a} AND {a} + 5"),
        9 => format!("SELECT count(*), sum(length(b)) FROM t WHERE b > zeroblob({size})"),
        10 => format!("SELECT a, c, length(b) FROM t WHERE a > {a} LIMIT 5"),
        11 => "SELECT max(id), count(*) FROM log".into(),
        12 => format!("DELETE FROM log WHERE id < {a}"),
        _ => "SELECT count(*) FROM t AS x JOIN t AS y ON x.a = y.c".into(),
    }
}

/// Returns the statements of one transaction, including the statement that ends it.
fn transaction(rng: &mut Rng) -> Vec<String> {
    let mut all = vec![["BEGIN", "BEGIN IMMEDIATE", "SAVEPOINT outermost"][rng.below(3) as usize].to_owned()];
    for _ in 0..rng.below(8) {
        match rng.below(6) {
            0 => all.push("SAVEPOINT s".into()),
            1 => all.push("ROLLBACK TO s".into()),
            2 => all.push("RELEASE s".into()),
            _ => {}
        }
        all.push(statement(rng));
    }
    all.push(if rng.below(4) == 0 { "ROLLBACK" } else { "COMMIT" }.into());
    all
}

fn program(rng: &mut Rng) -> Vec<(usize, String)> {
    let mut program = Vec::new();
    for _ in 0..60 {
        let connection = rng.below(3) as usize;
        let statements = match rng.below(8) {
            0 => vec!["PRAGMA wal_checkpoint(PASSIVE)".to_owned()],
            1 => vec!["PRAGMA integrity_check".to_owned()],
            2..=4 => vec![statement(rng)],
            _ => transaction(rng),
        };
        program.extend(statements.into_iter().map(|sql| (connection, sql)));
    }
    program
}

fn outcome(conn: &Connection, sql: &str) -> Option<Outcome> {
    let outcome = Outcome::of(run(conn, sql));
    // A log of Duralite may have more or fewer frames than a WAL of SQLite, so the test does not compare
    // these answers.
    (!sql.contains("checkpoint")).then_some(outcome)
}

#[test]
fn one_after_another_transactions_answer_as_with_stock_sqlite() {
    for_seeds(6, |seed| {
        let mut rng = Rng::new(seed);
        let program = program(&mut rng);
        let fixture = Fixture::new();
        let theirs = [(); 3].map(|()| {
            let conn = stock(&fixture.path("theirs.db"));
            run(&conn, "PRAGMA journal_mode=WAL").unwrap();
            conn
        });
        let mixed = ["off", MODES[seed as usize % 2], "on"];
        let ours = mixed.map(|mode| open(&fixture, mode));
        for conns in [&ours, &theirs] {
            conns[0].execute_batch(SCHEMA).unwrap();
            conns.iter().for_each(|conn| conn.execute_batch("PRAGMA cache_size=10").unwrap());
        }
        for (number, (connection, sql)) in program.iter().enumerate() {
            let [ours, theirs] = [&ours, &theirs].map(|conns| outcome(&conns[*connection], sql));
            assert_eq!(ours, theirs, "seed {seed}, statement {number} on {}: {sql}", mixed[*connection]);
        }
        for conn in &ours {
            assert_eq!(dump(conn), dump(&theirs[0]));
            integrity(conn);
        }
        let last_id: Option<i64> = one(&ours[1], "SELECT max(id) FROM log");
        assert_eq!(last_id, one::<Option<i64>>(&theirs[1], "SELECT max(id) FROM log"));
        drop(ours);
        fixture.assert_plain("c.db");
    });
}
