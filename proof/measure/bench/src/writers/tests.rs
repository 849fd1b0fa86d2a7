use std::time::Duration;

use super::client::{self, attempt};
use super::drive::{self, Job};
use super::mode::{self, STOCK};
use super::works::{self, Place, Work};

const WORKS: [Work; 10] = [
    Work::Own { reads: 2, updates: 2 },
    Work::Keys { rows: 2000 },
    Work::Append { autoincrement: false },
    Work::Append { autoincrement: true },
    Work::Queue,
    Work::Web,
    Work::Orders { warehouses: 2, spread: false },
    Work::Turns(Place::OwnLeaf),
    Work::Turns(Place::SharedLeaf),
    Work::Turns(Place::Growing),
];

fn job(work: Work, mode: mode::Mode) -> Job {
    Job { work, mode, hold: Duration::ZERO, writers: 3, time: Duration::from_millis(100) }
}

#[test]
fn every_mode_leaves_what_was_committed() {
    let dir = tempfile::tempdir().unwrap();
    let mut modes = mode::all(true, true);
    modes.extend(mode::all(false, true));
    for (nth, mode) in modes.into_iter().enumerate() {
        for work in WORKS.into_iter().skip(nth % 5).step_by(5) {
            let outcome = drive::run(dir.path(), &job(work, mode), false).unwrap();
            assert!(outcome.per_second > 0.0 && outcome.p99_ms >= outcome.p50_ms, "{work:?}: {outcome:?}");
        }
    }
}

#[test]
fn a_commit_that_is_lost_or_wrong_is_found() {
    let dir = tempfile::tempdir().unwrap();
    for work in WORKS {
        let base = client::fresh(dir.path(), STOCK).unwrap();
        let mut client = base.client().unwrap();
        let workload = work.workload();
        let filled = works::prepare(&*workload, &mut *client, 3).unwrap();
        works::check(&*workload, &mut *client, &filled).unwrap();
        for place in 0..workload.sums().len() {
            let mut lost = filled;
            lost[place] += 1;
            works::check(&*workload, &mut *client, &lost).unwrap_err();
        }
    }
}

#[test]
fn halves_of_an_order_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let workload = Work::Orders { warehouses: 1, spread: false }.workload();
    let base = client::fresh(dir.path(), STOCK).unwrap();
    let mut client = base.client().unwrap();
    let filled = works::prepare(&*workload, &mut *client, 1).unwrap();
    for half in ["UPDATE district SET next=next+1 WHERE id=3", "UPDATE customer SET balance=1 WHERE id=3"] {
        let undone = attempt(&mut *client, "BEGIN", |client| {
            client.run(half, &[])?;
            assert!(works::check(&*workload, client, &filled).is_err(), "{half}");
            Err::<(), _>(client::Failure::Lost(0))
        });
        assert!(undone.is_err());
    }
    works::check(&*workload, &mut *client, &filled).unwrap();
}

#[test]
fn a_damaged_database_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let workload = Work::Web.workload();
    let base = client::fresh(dir.path(), STOCK).unwrap();
    let mut client = base.client().unwrap();
    let filled = works::prepare(&*workload, &mut *client, 1).unwrap();
    client.run("PRAGMA writable_schema=ON", &[]).unwrap();
    client.run("INSERT INTO events VALUES(1, 1, 1)", &[]).unwrap();
    let mut expected = filled;
    expected[1] += 1;
    works::check(&*workload, &mut *client, &expected).unwrap();
    client.run("DELETE FROM sqlite_schema WHERE name='events_of_session'", &[]).unwrap();
    let mut again = base.client().unwrap();
    again.run("INSERT INTO events VALUES(2, 2, 2)", &[]).unwrap();
    expected[1] += 1;
    let error = works::check(&*workload, &mut *again, &expected).unwrap_err();
    assert!(error.to_string().contains("integrity_check"), "{error}");
}
