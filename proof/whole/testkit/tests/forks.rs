//! Tests connections across `fork` (invariant 14), and the wal-index that belongs to the log (invariant 15).
#![allow(clippy::unwrap_used, clippy::panic)] // a failed helper is a failed test

use duralite_testkit::{Actor, Engine, Fixture, integrity, one, run};

const INHERITED: [&str; 5] = ["ignored", "used", "closed-first", "closed-last", "rolled-back"];

/// Runs a parent and its children as processes with one thread each. Their allocator overwrites freed memory.
fn family(engine: Engine) {
    for inherited in INHERITED {
        let fixture = Fixture::on(engine);
        drop(fixture.open("app.db"));
        let uri = fixture.uri("app.db", "");
        Actor::start_with(&["family", &uri, inherited, "6"], &[("MALLOC_PERTURB_", "165")]).finish();
        fixture.assert_plain("app.db");
        assert!(fixture.logs().is_empty(), "{inherited}: {:?}", fixture.logs());
    }
}

#[test]
fn inv14_children_commit_beside_their_parent_on_nvwal() {
    family(Engine::NVWAL);
}

#[test]
fn inv14_children_commit_beside_their_parent_on_waldio() {
    family(Engine::WALDIO);
}

#[test]
fn inv14_children_commit_beside_their_parent_on_ppl() {
    family(Engine::PPL);
}

/// The parent and its children have connections, and a child closes the last one. The log must stay for the
/// next open.
#[test]
fn inv14_a_child_that_closes_last_keeps_the_log() {
    for inherited in INHERITED {
        let fixture = Fixture::on(Engine::PPL);
        let uri = fixture.uri("app.db", "on_close=keep");
        drop(fixture.open_with("app.db", "on_close=keep"));
        Actor::start_with(&["family", &uri, inherited, "3"], &[("MALLOC_PERTURB_", "165")]).finish();
        assert!(fixture.is_guarded("app.db"), "{inherited}");
        assert_eq!(fixture.logs().len(), 1, "{inherited}: {:?}", fixture.logs());
        let conn = fixture.open("app.db");
        integrity(&conn);
        conn.close().unwrap();
        fixture.assert_plain("app.db");
    }
}

#[test]
fn inv14_children_commit_beside_their_parent_with_a_home_in_memory() {
    family(Engine::SCRATCHPAD);
}

/// A database has two names, and gets a third one while it is open. Every process must see what the others
/// have committed.
#[test]
fn inv15_names_of_one_database_share_one_index() {
    for engine in Engine::all() {
        let fixture = Fixture::on(engine);
        let one_name = fixture.open("one.db");
        run(&one_name, "CREATE TABLE t(a)").unwrap();
        std::fs::hard_link(fixture.path("one.db"), fixture.path("two.db")).unwrap();
        let mut other = Actor::sql(&fixture.uri("two.db", ""));
        for number in 0..20 {
            run(&one_name, &format!("INSERT INTO t VALUES({number})")).unwrap();
            assert_eq!(other.run("SELECT count(*) FROM t"), (2 * number + 1).to_string());
            assert_eq!(other.run(&format!("INSERT INTO t VALUES({number})")), "");
            if number == 10 {
                std::fs::rename(fixture.path("one.db"), fixture.path("three.db")).unwrap();
            }
            assert_eq!(one::<i64>(&one_name, "SELECT count(*) FROM t"), 2 * number + 2);
        }
        integrity(&one_name);
        assert_eq!(fixture.logs().len(), 1);
        other.finish();
        one_name.close().unwrap();
        // As with stock SQLite, the last close does not checkpoint a database if a user has deleted the name
        // under which it was opened.
        fixture.open("two.db").close().unwrap();
        fixture.assert_plain("two.db");
        assert!(fixture.logs().is_empty(), "{:?}", fixture.logs());
    }
}
