//! Checks that a restore of any moment equals the database at that moment, page by page.

use duralite_testkit::{Engine, Rng, for_seeds, one, run};

use crate::common::{Machine, Place, assert_equal, pages};

const SCHEMA: &str = "CREATE TABLE t(id INTEGER PRIMARY KEY, text TEXT, data BLOB)";

/// Returns a random statement that changes the database, and may make it larger or smaller.
fn work(rng: &mut Rng) -> String {
    let id = rng.below(200);
    match rng.below(10) {
        0 => format!("DELETE FROM t WHERE id % 7 = {}", id % 7),
        1 => format!("UPDATE t SET data = randomblob({}) WHERE id % 3 = {}", rng.below(3000), id % 3),
        2 => "CREATE INDEX IF NOT EXISTS i ON t(text)".to_owned(),
        3 => "DROP INDEX IF EXISTS i".to_owned(),
        _ => format!(
            "INSERT OR REPLACE INTO t VALUES({id}, hex(randomblob(20)), randomblob({}))",
            rng.below(9000)
        ),
    }
}

/// Uses a database for some sessions while a sidecar runs, and notes the database's pages at some moments. At
/// the end restores all these moments.
fn live(engine: Engine, seed: u64, pragmas: &[&str], sessions: u64) {
    let what = format!("{engine:?} {pragmas:?}, seed {seed}");
    println!("{what}");
    let mut rng = Rng::new(seed);
    let (machine, place) = (Machine::new(engine), Place::new());
    {
        let conn = crate::common::patient(&machine.fixture.uri(crate::common::NAME, ""));
        for pragma in pragmas {
            run(&conn, pragma).unwrap();
        }
        conn.close().unwrap();
    }
    machine.session(&[SCHEMA]);
    let mut sidecar = machine.sidecar(&place);
    let mut moments = Vec::new();
    for _ in 0..sessions {
        let conn = machine.open("");
        // Wait for the sidecar here. If the log started over before the sidecar had seen it, the archive
        // would have a gap.
        run(&conn, &work(&mut rng)).unwrap();
        sidecar.until_archived(&conn);
        for nth in 1..=60 {
            match rng.below(40) {
                0 => drop(run(&conn, "VACUUM").unwrap()),
                1 => drop(run(&conn, "PRAGMA incremental_vacuum").unwrap()),
                2..5 => {
                    let mode = rng.pick::<str>(&["PASSIVE", "FULL", "RESTART", "TRUNCATE"]);
                    run(&conn, &format!("PRAGMA wal_checkpoint({mode})")).unwrap();
                }
                _ => drop(run(&conn, &work(&mut rng)).unwrap()),
            }
            if nth % 20 == 0 {
                sidecar.until_archived(&conn);
                moments.push((place.newest(), pages(&conn)));
            }
        }
        conn.close().unwrap();
        sidecar.until_plain(&machine);
        moments.push((place.newest(), machine.bytes()));
    }
    sidecar.end();
    for (txid, bytes) in &moments {
        assert_equal(&place.at(*txid).bytes, bytes, &format!("{what}: {txid}"));
    }
    assert_equal(&place.restored(&[]).bytes, &machine.bytes(), &what);
    let lines = place.lines();
    if engine == Engine::PPL {
        // A small log of `ppl` may start over before the sidecar has read it.
        assert!(lines[0] == "first" && lines[1..].iter().all(|line| line == "gap"), "{what}: {lines:?}");
    } else {
        // Every log begins where the previous one ended, so there is one generation.
        assert_eq!(lines, ["first"], "{what}");
        assert_eq!(place.listed()[0].snapshots.len(), 1, "{what}");
    }
    place.verify();
}

#[test]
fn every_moment_is_restored_page_by_page() {
    for engine in Engine::all() {
        for_seeds(1, |seed| live(engine, seed, &[], 3));
    }
}

#[test]
fn every_moment_of_databases_that_shrink_is_restored() {
    for (nth, engine) in Engine::all().into_iter().enumerate() {
        let page_size = [
            "PRAGMA page_size=512",
            "PRAGMA page_size=65536",
            "PRAGMA page_size=1024",
            "PRAGMA page_size=8192",
        ];
        let vacuum = ["PRAGMA auto_vacuum=FULL", "PRAGMA auto_vacuum=INCREMENTAL"];
        live(engine, 100 + nth as u64, &[page_size[nth % 4], vacuum[nth % 2]], 2);
    }
}

/// Each transaction of a log becomes one transaction of the archive, and a restore can end with any of them.
#[test]
fn every_transaction_is_a_moment() {
    for engine in Engine::all() {
        let (machine, place) = (Machine::new(engine), Place::new());
        machine.session(&["CREATE TABLE t(x)"]);
        let mut sidecar = machine.sidecar(&place);
        let conn = machine.open("");
        sidecar.until_archived(&conn);
        let begin = place.newest();
        for number in 1..=20 {
            run(&conn, &format!("INSERT INTO t VALUES({number})")).unwrap();
            sidecar.until_archived(&conn);
        }
        assert_eq!(place.newest(), begin + 20);
        for number in [1, 2, 10, 19, 20] {
            let restored = place.at(begin + number);
            assert_eq!(
                one::<i64>(&restored.open(), "SELECT count(*) FROM t"),
                number.cast_signed(),
                "{engine:?}"
            );
        }
        conn.close().unwrap();
        sidecar.until_plain(&machine);
        sidecar.end();
    }
}
