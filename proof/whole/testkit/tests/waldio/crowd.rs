//! Tests that none of many writers starves or gets a busy error.

use std::sync::Barrier;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use duralite_testkit::{Actor, Engine, Fixture, Gate, integrity, one};
use rusqlite::Connection;

use super::{insert, prepare};

const THREADS: usize = 16;
const PROCESSES: usize = 5;

/// Returns the number of commits of each of 16 threads in one and a half seconds.
fn crowd(fixture: &Fixture, settings: &str) -> Vec<u64> {
    let first = fixture.open_with("c.db", settings);
    prepare(&first);
    let barrier = Barrier::new(THREADS);
    let counts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    let conn = fixture.open_with("c.db", settings);
                    conn.busy_timeout(Duration::from_secs(30)).unwrap();
                    barrier.wait();
                    let start = Instant::now();
                    let mut commits = 0;
                    while start.elapsed() < Duration::from_millis(1500) {
                        insert(&conn).unwrap();
                        commits += 1;
                    }
                    commits
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<u64>>()
    });
    let rows = u64::try_from(one::<i64>(&first, "SELECT count(*) FROM t")).unwrap();
    assert_eq!(rows, counts.iter().sum::<u64>() + 1);
    integrity(&first);
    counts
}

fn assert_fair(counts: &[u64]) {
    let mean = counts.iter().sum::<u64>() / counts.len() as u64;
    let slowest = counts.iter().min().unwrap();
    // Other programs on the machine may keep a thread from its processor, so the test allows a wide margin. A
    // writer that starves has almost no commits.
    assert!(slowest * 6 >= mean, "the slowest has {slowest} commits, the mean is {mean}: {counts:?}");
}

#[test]
fn sixteen_writers_share_fairly_and_are_never_busy() {
    for (engine, settings) in [(Engine::WALDIO, ""), (Engine::WALDIO, "layout=embedded"), (Engine::NVWAL, "")]
    {
        let fixture = Fixture::on(engine);
        assert_fair(&crowd(&fixture, settings));
        fixture.assert_plain("c.db");
    }
}

/// Checks that all commits that are sealed during one flush share the next flush. A gate delays the first
/// flush. `start` prepares the writers, `insert` lets one of them begin its commit, and `end` waits until
/// that commit is acknowledged.
fn share_the_next_flush<T>(
    fixture: &Fixture,
    start: impl Fn(&Gate) -> Vec<T>,
    insert: impl Fn(T) -> T,
    end: impl Fn(T),
) {
    let dir = tempfile::tempdir().unwrap();
    let gate = Gate::new(dir.path());
    let _gate = gate.before(fixture.log_dir());
    let watch = fixture.open("c.db");
    prepare(&watch);
    let mut writers = start(&gate);
    let others = writers.split_off(1);
    let sealed = |count: usize| {
        while one::<i64>(&watch, "SELECT count(*) FROM t") < 1 + count as i64 {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    gate.close();
    let mut started: Vec<T> = writers.into_iter().map(&insert).collect();
    gate.until_reached();
    sealed(1);
    let count = 1 + others.len();
    started.extend(others.into_iter().map(&insert));
    // A sealed commit is readable, but is not acknowledged before it is durable.
    sealed(count);
    assert_eq!(gate.places().len(), 1, "a group was written beside the one that is held up");
    gate.open();
    started.into_iter().for_each(end);
    assert_eq!(gate.places().len(), 2, "{} commits took more than one flush", count - 1);
    assert_eq!(one::<i64>(&watch, "SELECT count(*) FROM t"), 1 + count as i64);
    integrity(&watch);
}

#[test]
fn threads_that_commit_while_a_flush_is_held_up_share_the_next_one() {
    enum Writer {
        Ready(Connection),
        Started(JoinHandle<()>),
    }
    let fixture = Fixture::on(Engine::WALDIO);
    let insert_in_thread = |writer| match writer {
        Writer::Ready(conn) => Writer::Started(std::thread::spawn(move || assert_eq!(insert(&conn), Ok(1)))),
        started @ Writer::Started(_) => started,
    };
    let end = |writer| match writer {
        Writer::Started(thread) => thread.join().unwrap(),
        Writer::Ready(_) => unreachable!("it was started"),
    };
    let open = |_: &Gate| {
        let conn = fixture.open("c.db");
        conn.busy_timeout(Duration::from_secs(600)).unwrap();
        Writer::Ready(conn)
    };
    share_the_next_flush(&fixture, |gate| (0..=THREADS).map(|_| open(gate)).collect(), insert_in_thread, end);
}

#[test]
fn processes_that_commit_while_a_flush_is_held_up_share_the_next_one() {
    let fixture = Fixture::on(Engine::WALDIO);
    let start = |gate: &Gate| {
        let uri = fixture.uri("c.db", "");
        let mut actor =
            Actor::start(&["gated", &uri, fixture.log_dir().to_str().unwrap(), gate.dir().to_str().unwrap()]);
        assert_eq!(actor.run("PRAGMA busy_timeout=600000"), "600000");
        assert_eq!(actor.run("SELECT count(*) FROM t"), "1");
        actor
    };
    let insert = |mut actor: Actor| {
        actor.tell("INSERT INTO t(b) VALUES('of a process')");
        actor
    };
    let end = |mut actor: Actor| {
        assert_eq!(actor.line(), "");
        actor.finish();
    };
    share_the_next_flush(&fixture, |gate| (0..=PROCESSES).map(|_| start(gate)).collect(), insert, end);
}
