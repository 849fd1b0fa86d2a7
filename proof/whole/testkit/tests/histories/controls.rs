//! Tests that the judge notices sessions that are not isolated. In these tests a session's transaction writes
//! on one connection, and the session reads on another one, where each read has its own snapshot.

use duralite_testkit::{Fixture, Reads, Work};

use super::{Case, judge, logic};

const OUTSIDE: Case = Case {
    settings: &[""],
    processes: 2,
    threads: 3,
    transactions: 150,
    keys: 6,
    spread: 8,
    reads: Reads::Outside,
};

#[test]
fn control_reads_outside_of_transactions_are_noticed() {
    let noticed: Vec<String> = (601..604)
        .filter_map(|seed| {
            let fixture = Fixture::new();
            judge::make(&fixture, &OUTSIDE);
            let processes =
                (0..OUTSIDE.processes).map(|process| OUTSIDE.start(&fixture, Work::Lists, seed, process));
            processes.collect::<Vec<_>>().into_iter().for_each(|process| process.finish());
            let history = judge::history(&fixture, OUTSIDE.processes);
            judge::verdict(history, &judge::last(&fixture, OUTSIDE.spread)).err()
        })
        .collect();
    assert!(noticed.len() >= 2, "{noticed:?}");
    assert!(noticed.iter().all(|why| why.contains("a circle") && why.contains("rw")), "{noticed:?}");
    eprintln!("{}", noticed[0]);
}

#[test]
fn control_answers_from_outside_of_transactions_are_noticed() {
    let noticed: Vec<String> = (611..614).filter_map(|seed| logic::judged(seed, &OUTSIDE).err()).collect();
    assert!(noticed.len() >= 2, "{noticed:?}");
}
