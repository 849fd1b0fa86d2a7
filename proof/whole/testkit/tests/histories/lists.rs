//! Checks that histories of lists and registers are strictly serializable.

use duralite_testkit::{Fixture, Reads, Work};

use super::{Case, Judged, for_long, judge};

/// The sessions' settings in the tests.
const ALONE: &[&str] = &["concurrent=on"];
const MIXED: &[&str] = &["concurrent=on", "concurrent=upgrade", "concurrent=off"];

fn round(seed: u64, case: &Case) -> Judged {
    let fixture = Fixture::new();
    judge::make(&fixture, case);
    let processes: Vec<_> =
        (0..case.processes).map(|process| case.start(&fixture, Work::Lists, seed, process)).collect();
    processes.into_iter().for_each(|process| process.finish());
    let history = judge::history(&fixture, case.processes);
    let last = judge::last(&fixture, case.spread);
    let (counts, judged) = judge::judged(seed, history, &last);
    eprintln!("seed {seed}: {counts:?}");
    let tried = case.processes * case.threads * case.transactions;
    assert!(judged.committed > tried / 5, "{counts:?} of {tried}");
    assert!(counts.aborted > 0, "some are rolled back: {counts:?}");
    assert_eq!(counts.unknown, 0, "nobody was killed");
    judged
}

#[test]
fn sessions_of_one_process_on_few_keys() {
    let case = Case {
        settings: ALONE,
        processes: 1,
        threads: 6,
        transactions: 150,
        keys: 6,
        spread: 8,
        reads: Reads::Inside,
    };
    for_long(1, 2, |seed| round(seed, &case));
}

#[test]
fn sessions_of_several_processes_on_few_keys() {
    let case = Case {
        settings: ALONE,
        processes: 3,
        threads: 2,
        transactions: 150,
        keys: 6,
        spread: 8,
        reads: Reads::Inside,
    };
    for_long(101, 2, |seed| round(seed, &case));
}

/// All rows of lists and registers share one or two pages.
#[test]
fn sessions_whose_rows_share_pages() {
    let case = Case {
        settings: ALONE,
        processes: 2,
        threads: 3,
        transactions: 120,
        keys: 10,
        spread: 1,
        reads: Reads::Inside,
    };
    for_long(201, 1, |seed| round(seed, &case));
}

/// There are many keys, on hundreds of pages with interior pages above them.
#[test]
fn sessions_with_many_pages() {
    let case = Case {
        settings: ALONE,
        processes: 2,
        threads: 3,
        transactions: 150,
        keys: 60,
        spread: 24,
        reads: Reads::Inside,
    };
    for_long(301, 1, |seed| round(seed, &case));
}

#[test]
fn sessions_of_which_each_works_in_its_own_way() {
    let case = Case {
        settings: MIXED,
        processes: 2,
        threads: 4,
        transactions: 120,
        keys: 12,
        spread: 12,
        reads: Reads::Inside,
    };
    for_long(401, 1, |seed| round(seed, &case));
}
