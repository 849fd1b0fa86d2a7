//! The anomalies known from the literature, written by hand as histories of lists, of registers, and of both.
#![allow(clippy::unwrap_used)] // a failed helper is a failed test

use duralite_histories::{Fate, Last, Op, Tx, check, reads_of_the_uncommitted};

fn committed(ops: &[Op]) -> Tx {
    Tx { ops: ops.to_vec(), fate: Fate::Committed, span: None }
}

fn aborted(ops: &[Op]) -> Tx {
    Tx { fate: Fate::Aborted, ..committed(ops) }
}

fn at(begin: u64, end: u64, ops: &[Op]) -> Tx {
    Tx { span: Some((begin, end)), ..committed(ops) }
}

fn append(list: u64, element: u64) -> Op {
    Op::Append(list, element)
}

fn read(list: u64, seen: &[u64]) -> Op {
    Op::Read(list, seen.to_vec())
}

fn write(register: u64, value: u64) -> Op {
    Op::Write(register, value)
}

fn look(register: u64, value: impl Into<Option<u64>>) -> Op {
    Op::Look(register, value.into())
}

fn last(lists: &[(u64, &[u64])], registers: &[(u64, u64)]) -> Last {
    let lists = lists.iter().map(|(list, elements)| (*list, elements.to_vec())).collect();
    Last { lists, registers: registers.iter().copied().collect() }
}

/// Checks that the checker refuses the history, and that the reason contains all of `words`.
#[track_caller]
fn refused(history: &[Tx], last: &Last, words: &[&str]) {
    let why = check(history, last).unwrap_err();
    for word in words {
        assert!(why.contains(word), "{word} is not in: {why}");
    }
}

#[test]
fn a_dirty_read() {
    // A transaction appends two elements, and the reader sees only the first.
    let history = [committed(&[append(1, 10), append(1, 11)]), committed(&[read(1, &[10])])];
    refused(&history, &last(&[(1, &[10, 11])], &[]), &["a part of what 0 appended to list 1"]);
    let history = [committed(&[write(1, 10), write(2, 20)]), committed(&[look(1, 10), look(2, None)])];
    refused(
        &history,
        &last(&[], &[(1, 10), (2, 20)]),
        &["0 -(wr, register 1)-> 1", "1 -(rw, register 2)-> 0"],
    );
}

#[test]
fn an_aborted_read() {
    let end = last(&[(1, &[11])], &[(1, 11)]);
    let good = committed(&[append(1, 11), write(1, 11)]);
    refused(
        &[aborted(&[append(1, 10)]), good.clone(), committed(&[read(1, &[10])])],
        &end,
        &["[10] of list 1"],
    );
    let read_of_register = committed(&[look(1, 10)]);
    refused(&[aborted(&[write(1, 10)]), good, read_of_register], &end, &["10, whose transaction aborted"]);
}

#[test]
fn an_intermediate_read() {
    let history = [committed(&[write(1, 10), write(1, 11)]), committed(&[look(1, 10)])];
    refused(&history, &last(&[], &[(1, 11)]), &["10, which 0 has replaced itself"]);
}

#[test]
fn a_lost_update() {
    let update = |value| committed(&[look(1, 5), write(1, value)]);
    let history = [committed(&[write(1, 5)]), update(10), update(11)];
    let circle = [
        "1 -(rw, register 1)-> 2",
        "2 -(rw, register 1)-> 1",
        "reads register 1: 5; writes 11 to register 1",
    ];
    refused(&history, &last(&[], &[(1, 11)]), &circle);
    let history = [committed(&[read(1, &[]), append(1, 10)]), committed(&[read(1, &[]), append(1, 11)])];
    refused(&history, &last(&[(1, &[10, 11])], &[]), &["a circle"]);
    refused(&history, &last(&[(1, &[11])], &[]), &["10, which was acknowledged, is not in list 1"]);
}

#[test]
fn write_skew() {
    let history = [committed(&[read(1, &[]), append(2, 20)]), committed(&[read(2, &[]), append(1, 10)])];
    let circle = ["0 -(rw, list 1)-> 1", "1 -(rw, list 2)-> 0", "appends 20 to list 2"];
    refused(&history, &last(&[(1, &[10]), (2, &[20])], &[]), &circle);
    let history = [committed(&[look(1, None), write(2, 20)]), committed(&[look(2, None), write(1, 10)])];
    refused(&history, &last(&[], &[(1, 10), (2, 20)]), &["0 -(rw, register 1)-> 1"]);
}

/// The read-only anomaly of Fekete, O'Neil and O'Neil. Without the reader, the history has no anomaly.
#[test]
fn an_anomaly_of_a_transaction_that_only_reads() {
    let writers =
        [committed(&[look(1, None), look(2, None), write(1, 10)]), committed(&[look(2, None), write(2, 20)])];
    let end = last(&[], &[(1, 10), (2, 20)]);
    check(&writers, &end).unwrap();
    let [first, second] = writers;
    refused(&[first, second, committed(&[look(1, None), look(2, 20)])], &end, &["a circle", " 2 -(rw"]);
}

#[test]
fn a_long_fork() {
    let history = [
        committed(&[write(1, 10)]),
        committed(&[write(2, 20)]),
        committed(&[look(1, 10), look(2, None)]),
        committed(&[look(1, None), look(2, 20)]),
    ];
    let circle = ["0 -(wr, register 1)-> 2", "2 -(rw, register 2)-> 1", "1 -(wr", "3 -(rw, register 1)-> 0"];
    refused(&history, &last(&[], &[(1, 10), (2, 20)]), &circle);
}

#[test]
fn a_read_that_is_behind_the_time() {
    let end = last(&[(1, &[10])], &[(1, 10)]);
    let writer = at(1, 2, &[append(1, 10), write(1, 10)]);
    for stale in [read(1, &[]), look(1, None), Op::Scan(0, 9, vec![])] {
        refused(
            &[writer.clone(), at(3, 4, std::slice::from_ref(&stale))],
            &end,
            &["0 -(time)-> 1", "1 -(rw", "from 3 to 4"],
        );
        // If a reader ran at the same time as the writer, it need not have seen the write.
        check(&[writer.clone(), at(2, 4, &[stale])], &end).unwrap();
    }
    // Many transactions ran between the first and the last transaction. The report shows one edge in place of
    // them.
    let mut history = vec![writer];
    history.extend((1..50).map(|nth| at(nth * 10, nth * 10 + 1, &[look(2, None)])));
    history.push(at(900, 901, &[look(1, None)]));
    refused(&history, &end, &["a circle: 0 -(time)-> 50; 50 -(rw, register 1)-> 0;"]);
}

#[test]
fn a_read_from_the_future() {
    let history = [at(1, 2, &[look(1, 10)]), at(3, 4, &[write(1, 10)])];
    refused(&history, &last(&[], &[(1, 10)]), &["0 -(time)-> 1", "1 -(wr, register 1)-> 0"]);
}

#[test]
fn a_transaction_that_does_not_see_its_own_write() {
    let end = last(&[(1, &[10])], &[(1, 10)]);
    refused(&[committed(&[append(1, 10), read(1, &[]), write(1, 10)])], &end, &["had appended [10]"]);
    refused(
        &[committed(&[append(1, 10), write(1, 10), look(1, None)])],
        &end,
        &["transaction 0 read None of 1"],
    );
}

#[test]
fn a_transaction_that_aborts_and_has_seen_two_states() {
    let history = [
        committed(&[write(1, 10), append(2, 20)]),
        aborted(&[look(1, 10), read(2, &[]), append(3, 30), read(3, &[30])]),
        Tx { fate: Fate::Unknown, ..committed(&[append(4, 40), read(5, &[7])]) },
    ];
    let end = last(&[(2, &[20])], &[(1, 10)]);
    check(&history, &end).unwrap();
    let seen = reads_of_the_uncommitted(&history);
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].ops, [look(1, 10), read(2, &[])]);
    refused(&[history.to_vec(), seen].concat(), &end, &["0 -(wr, register 1)-> 3", "3 -(rw, list 2)-> 0"]);
}
