//! Runs the same SQL on stock SQLite and on Duralite. Both must give the same answers, including errors, and
//! must end with the same database.
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

mod pair;
mod statements;

use duralite_testkit::{Engine, Fixture, Rng, dump, for_seeds, integrity, stock};

use pair::Pair;

/// The number of histories on `nvwal`, and the number on each other engine. The other engines share most of
/// the code, so they run fewer histories.
const SEEDS: u64 = 16;
const SEEDS_OF_OTHERS: u64 = 8;

fn seeds() -> u64 {
    if Engine::under_test() == Engine::NVWAL { SEEDS } else { SEEDS_OF_OTHERS }
}
const STATEMENTS: u64 = 500;
/// Settings of `ppl`. The last two make `ppl` merge pages very often.
const OWN: &[&str] = &["", "&sector_bytes=12288", "&overflow_bytes=0"];

fn settings(rng: &mut Rng) -> String {
    let sync = rng.pick(&["lazy", "eager", "checksum"]);
    let more = rng.pick(&["", "", "&diff=off", "&heap=system", "&cache_bytes=0", "&block_bytes=128k"]);

    // By default a log of `ppl` has a limit, and the limit decides which transactions fit. Stock SQLite has
    // no such limit, so the test sets a high one.
    let own = if Engine::under_test() == Engine::PPL {
        format!("&log_limit=1g{}", rng.pick(OWN))
    } else {
        String::new()
    };
    format!("sync={sync}{more}{own}")
}

fn compare(seed: u64, connections: usize) {
    let mut rng = Rng::new(seed + 1000 * connections as u64);
    let settings = settings(&mut rng);
    compare_on(&Fixture::new(), rng, &settings, "WAL", connections);
}

fn compare_on(fixture: &Fixture, mut rng: Rng, settings: &str, mode: &str, connections: usize) {
    let mut pair = Pair::new(fixture, settings, connections);
    let page_bytes = 512_u64 << rng.below(8);
    let vacuum = rng.pick(&["NONE", "NONE", "FULL", "INCREMENTAL"]);
    pair.run(0, &format!("PRAGMA page_size={page_bytes}"));
    pair.run(0, &format!("PRAGMA auto_vacuum={vacuum}"));
    for connection in 0..connections {
        // WAL mode is a property of the database. Any other journal mode is a setting of the connection.
        if connection == 0 || mode != "WAL" {
            pair.run(connection, &format!("PRAGMA journal_mode={mode}"));
        }
        pair.run(connection, &format!("PRAGMA cache_size={}", 5 + rng.below(20)));
    }
    for table in 0..statements::TABLES {
        pair.run(0, &statements::create(table));
    }
    let mut writer = statements::Writer::new(rng);
    for _ in 0..STATEMENTS {
        let connection = writer.choose(connections);
        match writer.next(pair.in_transaction(connection)) {
            // This statement may leave WAL mode. Stock SQLite then deletes its `-wal` file. But Duralite
            // keeps the log while an idle connection may still use it for rollback journals. Because of this
            // difference the test skips the statement.
            Some(sql) if mode != "WAL" && connections > 1 && sql.starts_with("PRAGMA journal_mode") => {}
            Some(sql) => pair.run(connection, &sql),
            None => pair.reopen(connection),
        }
    }
    assert!(pair.answered > STATEMENTS / 3, "only {} statements had an answer", pair.answered);
    pair.finish();
    fixture.assert_plain("ours.db");
    assert!(fixture.logs().is_empty());
    let (ours, theirs) = (stock(&fixture.path("ours.db")), stock(&fixture.path("theirs.db")));
    integrity(&theirs);
    assert!(dump(&ours) == dump(&theirs), "the contents differ");
    drop((ours, theirs));
    let read = |name| std::fs::read(fixture.path(name)).unwrap();
    assert!(read("ours.db") == read("theirs.db"), "the files differ");
}

/// Compares the answers on every engine that keeps rollback journals, in each journal mode that uses a
/// rollback journal.
#[test]
fn the_same_answers_with_rollback_journals() {
    let engines = Engine::keeping_rollback_journals();
    for_seeds(seeds(), |seed| {
        for (number, engine) in (0..).zip(&engines) {
            let mode = ["DELETE", "TRUNCATE", "PERSIST"][(seed as usize + number) % 3];
            eprintln!("{engine:?}, {mode}");
            let connections = 1 + (seed as usize / 3) % 3;
            compare_on(&Fixture::on(*engine), Rng::new(seed + 5000), "", mode, connections);
        }
    });
}

#[test]
fn the_same_answers_on_one_connection() {
    for_seeds(seeds(), |seed| compare(seed, 1));
}

#[test]
fn the_same_answers_on_several_connections() {
    for_seeds(seeds(), |seed| compare(seed, 2 + usize::from(seed % 3 == 0)));
}
