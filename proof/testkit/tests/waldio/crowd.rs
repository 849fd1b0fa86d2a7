//! Many writers: nobody starves, nobody is told that the database is busy.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use duralite_testkit::{Engine, Place, integrity, one};

use crate::{insert, number, prepare};

const THREADS: usize = 16;

/// Commits of each of 16 threads in a second and a half.
fn crowd(place: &Place, settings: &str) -> Vec<u64> {
    let first = place.open_with("c.db", settings);
    prepare(&first);
    let barrier = Barrier::new(THREADS);
    let counts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    let conn = place.open_with("c.db", settings);
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
    assert!(slowest * 2 >= mean, "the slowest has {slowest} commits, the mean is {mean}: {counts:?}");
}

#[test]
fn sixteen_writers_share_fairly_and_are_never_busy() {
    for (engine, settings) in [(Engine::WALDIO, ""), (Engine::WALDIO, "layout=embedded"), (Engine::NVWAL, "")]
    {
        let place = Place::on(engine);
        assert_fair(&crowd(&place, settings));
        place.assert_plain("c.db");
    }
}

#[test]
fn writers_share_their_flushes() {
    let place = Place::on(Engine::WALDIO);
    let keep = place.open("c.db");
    // Attached before the others, and after them: its figures are those of all of them.
    keep.execute_batch("CREATE TABLE u(a)").unwrap();
    let counts = crowd(&place, "");
    let rows = one::<i64>(&keep, "SELECT count(*) FROM t");
    let (commits, flushes) = (number(&keep, "commits"), number(&keep, "device_flushes"));
    assert!(commits >= rows.unsigned_abs());
    assert!(commits >= counts.iter().sum::<u64>());
    assert!(flushes < commits, "{flushes} flushes for {commits} commits");
}
