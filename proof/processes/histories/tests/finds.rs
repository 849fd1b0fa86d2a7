//! Tests reads by a property. Such a read also reads those registers that it does not return.
#![allow(clippy::unwrap_used)] // a failed helper is a failed test

use duralite_histories::{Fate, Last, Op, Property, Tx, check};

/// Returns a read of all registers whose values end with this digit.
fn find(digit: u64, found: &[(u64, u64)]) -> Op {
    Op::Find(Property { from: 1, to: 9, divisor: 10, remainder: digit }, found.to_vec())
}

fn at(begin: u64, end: u64, ops: &[Op]) -> Tx {
    Tx { ops: ops.to_vec(), fate: Fate::Committed, span: Some((begin, end)) }
}

/// Returns a transaction that may have run at the same time as all others.
fn any(ops: &[Op]) -> Tx {
    at(1, 99, ops)
}

fn update(register: u64, before: impl Into<Option<u64>>, value: u64) -> [Op; 2] {
    [Op::Look(register, before.into()), Op::Write(register, value)]
}

fn verdict(history: &[Tx], registers: &[(u64, u64)]) -> Result<(), String> {
    check(history, &Last { registers: registers.iter().copied().collect(), ..Last::default() })
}

#[test]
fn what_is_found_was_read() {
    let writer = at(1, 2, &update(1, None, 15));
    verdict(&[writer.clone(), at(3, 4, &[find(5, &[(1, 15)])])], &[(1, 15)]).unwrap();
    let early = verdict(&[at(0, 0, &[find(5, &[(1, 15)])]), writer.clone()], &[(1, 15)]).unwrap_err();
    assert!(early.contains("time") && early.contains("wr, register 1"), "{early}");
    for wrong in [find(6, &[(1, 15)]), find(5, &[(1, 15), (1, 15)]), find(5, &[(2, 15)]), find(5, &[(1, 25)])]
    {
        verdict(&[writer.clone(), any(&[wrong])], &[(1, 15)]).unwrap_err();
    }
}

#[test]
fn a_phantom_makes_write_skew() {
    // Each transaction looks for values that end with 5, finds none, and writes one.
    let both = [
        any(&[find(5, &[]), Op::Look(1, None), Op::Write(1, 15)]),
        any(&[&[find(5, &[])], &update(2, None, 25)[..]].concat()),
    ];
    let why = verdict(&both, &[(1, 15), (2, 25)]).unwrap_err();
    assert!(why.contains("0 -(rw, register 2)-> 1") && why.contains("1 -(rw, register 1)-> 0"), "{why}");
    assert!(why.contains("remainder 5 of 10"), "{why}");
    let one = [both[0].clone(), any(&[&[find(5, &[(1, 15)])], &update(2, None, 25)[..]].concat())];
    verdict(&one, &[(1, 15), (2, 25)]).unwrap();
}

#[test]
fn what_is_not_found_any_more_was_replaced() {
    let history = |seen: &[(u64, u64)], begin| {
        [at(1, 2, &update(1, None, 15)), at(5, 6, &update(1, 15, 16)), at(begin, begin + 1, &[find(5, seen)])]
    };
    verdict(&history(&[], 7), &[(1, 16)]).unwrap();
    verdict(&history(&[], 5), &[(1, 16)]).unwrap();
    // If the read comes between the two writes, it has to find the value. If it comes after both, it must not
    // find the value.
    let missed = verdict(&history(&[], 3), &[(1, 16)]).unwrap_err();
    assert!(missed.contains("transaction 2 did not find register 1"), "{missed}");
    assert!(verdict(&history(&[(1, 15)], 7), &[(1, 16)]).unwrap_err().contains("rw, register 1"));
}

/// Only another reader shows where a reader belongs in the order.
#[test]
fn one_read_tells_about_another_one() {
    let mut history = vec![
        any(&update(1, None, 15)),
        any(&update(1, 15, 16)),
        // The reader comes before the first writer or after the second one. Register 3 shows which.
        any(&[find(5, &[]), Op::Look(3, Some(30))]),
        any(&[Op::Look(1, Some(15)), Op::Look(2, None)]),
        any(&[Op::Look(1, Some(16)), Op::Look(3, None), Op::Write(3, 30)]),
    ];
    verdict(&history, &[(1, 16), (3, 30)]).unwrap();
    // The reader comes after both writers. So a transaction that has seen a write of the reader must also
    // have seen the writers.
    history[2].ops.extend(update(4, None, 40));
    history.push(any(&[Op::Look(4, Some(40)), Op::Look(1, None)]));
    verdict(&history, &[(1, 16), (3, 30), (4, 40)]).unwrap_err();
}

#[test]
fn a_transaction_finds_its_own_writes() {
    let own = |seen: &[(u64, u64)]| {
        verdict(&[any(&[&update(1, None, 15)[..], &[find(5, seen)]].concat())], &[(1, 15)])
    };
    own(&[(1, 15)]).unwrap();
    assert!(own(&[]).unwrap_err().contains("did not find 15"));
    // A transaction must also not see two values of one register, one through a read by a property and one
    // through another read. The order of the two reads makes no difference.
    let writer = any(&update(1, None, 15));
    for ops in [[Op::Look(1, None), find(5, &[(1, 15)])], [find(5, &[]), Op::Look(1, Some(15))]] {
        verdict(&[writer.clone(), any(&ops)], &[(1, 15)]).unwrap_err();
    }
    verdict(&[writer, any(&[find(5, &[]), Op::Look(1, None), find(6, &[])])], &[(1, 15)]).unwrap();
}
