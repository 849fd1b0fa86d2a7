//! Tests that the lines of a process report exactly what its transactions did.
#![allow(clippy::unwrap_used)] // a failed helper is a failed test

use duralite_histories::{Fate, Op, Property, Told, commits, ended};

#[test]
fn what_is_told_is_what_happened() {
    let even = Property { from: 1, to: 9, divisor: 2, remainder: 0 };
    let ops = [
        Op::Append(1, 2),
        Op::Read(3, vec![]),
        Op::Read(3, vec![4, 5]),
        Op::Scan(0, 9, vec![]),
        Op::Scan(0, 9, vec![(1, vec![2]), (3, vec![4, 5])]),
        Op::Write(6, 7),
        Op::Look(6, None),
        Op::Look(6, Some(7)),
        Op::Find(even, vec![]),
        Op::Find(even, vec![(1, 2), (4, 8)]),
    ];
    let mut told = Told::default();
    for line in (commits(5, 4, &ops) + &commits(6, 6, &[]) + &ended(5, Fate::Committed, 8)).lines() {
        told.line(line).unwrap();
    }
    let history = told.history();
    assert_eq!(history[0].ops, ops);
    assert_eq!((history[0].fate, history[0].span), (Fate::Committed, Some((4, 8))));
    assert_eq!(history[1].fate, Fate::Unknown);
}

#[test]
fn a_report_that_cannot_be_read_is_an_error() {
    let mut told = Told::default();
    assert!(!told.line("running 1 test").unwrap());
    for line in ["commits 1 2 a:1", "commits 1 2 x:1:2", "commits 1 2 r:1:2,z", "ended 9 committed 3"] {
        assert!(told.line(line).unwrap_err().contains(line));
    }
}
