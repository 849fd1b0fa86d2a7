//! Kills processes with sessions at any moment. Afterwards it is unknown whether the last transaction of each
//! session is committed. A committed transaction must be there as a whole, and must fit what all other
//! sessions saw.

use duralite_testkit::{Actor, Fixture, Reads, Rng, SessionPlan, Work};

use super::{Case, Judged, for_long, judge, report, start};

const ALONE: &[&str] = &["concurrent=on&read_durable=on", "concurrent=upgrade&read_durable=on"];

/// The number of kills in a round.
const KILLS: u64 = 6;

/// Starts the next process. Its sessions run until they are killed.
fn begin(fixture: &Fixture, case: &Case, seed: u64, process: u64) -> (u64, Actor) {
    let plan = SessionPlan { transactions: u64::MAX, ..case.plan(fixture, Work::Lists, seed, process) };
    (process, start(&plan))
}

/// Waits until a process has reported `bytes` more bytes.
fn until_reported(fixture: &Fixture, (process, actor): &mut (u64, Actor), bytes: u64) {
    let reported = || std::fs::metadata(report(fixture, *process)).map_or(0, |file| file.len());
    let wanted = reported() + bytes;
    while reported() < wanted {
        assert!(!actor.has_ended(), "a process has ended by itself");
        std::thread::sleep(std::time::Duration::from_micros(300));
    }
}

fn round(seed: u64, case: &Case) -> Judged {
    let mut rng = Rng::new(seed);
    let fixture = Fixture::new();
    judge::make(&fixture, case);
    let mut next = case.processes;
    let mut processes: Vec<(u64, Actor)> =
        (0..case.processes).map(|process| begin(&fixture, case, seed, process)).collect();
    for _ in 0..KILLS {
        let victim = usize::try_from(rng.below(case.processes)).unwrap();
        until_reported(&fixture, &mut processes[victim], rng.below(30_000));
        // Now and then the test kills all processes, and the next process recovers what they leave.
        let dead =
            if rng.chance(4) { std::mem::take(&mut processes) } else { vec![processes.swap_remove(victim)] };
        for (_, actor) in dead {
            actor.kill();
            processes.push(begin(&fixture, case, seed, next));
            next += 1;
        }
    }
    for one in &mut processes {
        until_reported(&fixture, one, 5000);
    }
    processes.into_iter().for_each(|(_, actor)| actor.kill());
    let history = judge::history(&fixture, next);
    let last = judge::last(&fixture, case.spread);
    let (counts, judged) = judge::judged(seed, history, &last);
    eprintln!("seed {seed}: {counts:?} in {next} processes");
    assert!(counts.committed > 20, "{counts:?}");
    judged
}

#[test]
fn what_killed_sessions_leave_fits_to_what_others_have_seen() {
    let case = Case {
        settings: ALONE,
        processes: 3,
        threads: 2,
        transactions: 0,
        keys: 8,
        spread: 10,
        reads: Reads::Inside,
    };
    for_long(501, 2, |seed| round(seed, &case));
}
