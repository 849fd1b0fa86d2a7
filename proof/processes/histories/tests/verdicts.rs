//! Tests that the checker notices histories that are not serializable, and accepts those that are.
#![allow(clippy::unwrap_used)] // a failed helper is a failed test

use duralite_histories::{Fate, Last, Op, Tx, check};

fn committed(ops: &[Op]) -> Tx {
    Tx { ops: ops.to_vec(), fate: Fate::Committed, span: None }
}

fn verdict(history: &[Tx], last: &[(u64, &[u64])]) -> Result<(), String> {
    verdict_of_both(history, last, &[])
}

#[test]
fn the_checker_accepts_what_is_serializable() {
    let history = [
        committed(&[Op::Append(1, 10), Op::Append(2, 20)]),
        committed(&[Op::Read(1, vec![10]), Op::Append(2, 21)]),
        committed(&[Op::Scan(1, 3, vec![(1, vec![10]), (2, vec![20, 21])])]),
        Tx { ops: vec![Op::Append(1, 11)], fate: Fate::Aborted, span: None },
    ];
    verdict(&history, &[(1, &[10]), (2, &[20, 21])]).unwrap();
}

/// This history could happen if there were no range locks.
#[test]
fn the_checker_catches_a_phantom() {
    let history = [
        committed(&[Op::Scan(1, 9, vec![]), Op::Append(3, 30)]),
        committed(&[Op::Scan(1, 9, vec![]), Op::Append(4, 40)]),
    ];
    let why = verdict(&history, &[(3, &[30]), (4, &[40])]).unwrap_err();
    assert!(why.contains("rw"), "{why}");
}

/// This history could happen if a transaction released its locks before its commit had a position in the log.
/// Then a crash could lose a commit that another transaction had already read.
#[test]
fn the_checker_catches_a_lost_dependency() {
    let history = [
        Tx { ops: vec![Op::Append(1, 10)], fate: Fate::Unknown, span: None },
        committed(&[Op::Read(1, vec![10]), Op::Append(2, 20)]),
    ];
    assert!(verdict(&history, &[(2, &[20])]).is_err());
}

#[test]
fn the_checker_catches_dirty_and_stale_reads_and_what_is_lost() {
    let dirty = [
        Tx { ops: vec![Op::Append(1, 10)], fate: Fate::Aborted, span: None },
        committed(&[Op::Read(1, vec![10])]),
    ];
    assert!(verdict(&dirty, &[]).is_err());
    let aborted = [Tx { ops: vec![Op::Append(1, 10)], fate: Fate::Aborted, span: None }];
    assert!(verdict(&aborted, &[(1, &[10])]).is_err());
    let lost = [committed(&[Op::Append(1, 10)])];
    assert!(verdict(&lost, &[]).is_err());
    let skew = [
        committed(&[Op::Read(1, vec![]), Op::Append(2, 20)]),
        committed(&[Op::Read(2, vec![]), Op::Append(1, 10)]),
    ];
    assert!(verdict(&skew, &[(1, &[10]), (2, &[20])]).is_err());
}

fn verdict_of_both(history: &[Tx], lists: &[(u64, &[u64])], registers: &[(u64, u64)]) -> Result<(), String> {
    let lists = lists.iter().map(|(list, elements)| (*list, elements.to_vec())).collect();
    check(history, &Last { lists, registers: registers.iter().copied().collect() })
}

/// Returns a transaction or a snapshot, with the moments at which it began and ended.
fn at(span: (u64, u64), ops: &[Op]) -> Tx {
    Tx { span: Some(span), ..committed(ops) }
}

#[test]
fn the_checker_accepts_registers_and_snapshots_that_are_serializable() {
    let history = [
        at((1, 9), &[Op::Look(1, None), Op::Write(1, 10), Op::Write(1, 11), Op::Look(1, Some(11))]),
        at((2, 8), &[Op::Write(1, 12), Op::Append(1, 20)]),
        // If a transaction began before another had ended, it may or may not have seen what the other wrote.
        at((3, 4), &[Op::Look(1, Some(11)), Op::Read(1, vec![])]),
        at((10, 11), &[Op::Look(1, Some(12)), Op::Scan(0, 5, vec![(1, vec![20])]), Op::Look(1, Some(12))]),
        Tx { ops: vec![Op::Write(2, 30)], fate: Fate::Unknown, span: Some((5, 6)) },
    ];
    verdict_of_both(&history, &[(1, &[20])], &[(1, 12), (2, 30)]).unwrap();
    verdict_of_both(&history, &[(1, &[20])], &[(1, 12)]).unwrap();
}

#[test]
fn the_checker_catches_a_snapshot_that_is_behind_the_time() {
    let write = at((1, 2), &[Op::Write(1, 10)]);
    let stale = at((3, 4), &[Op::Look(1, None)]);
    let why = verdict_of_both(&[write.clone(), stale], &[], &[(1, 10)]).unwrap_err();
    assert!(why.contains("time") && why.contains("rw"), "{why}");
    let read = at((3, 4), &[Op::Read(1, vec![])]);
    assert!(verdict_of_both(&[at((1, 2), &[Op::Append(1, 10)]), read], &[(1, &[10])], &[]).is_err());
    // A snapshot that was opened before a transaction began must not see what that transaction wrote.
    let early = at((1, 2), &[Op::Look(1, Some(10))]);
    assert!(verdict_of_both(&[early, Tx { span: Some((3, 4)), ..write }], &[], &[(1, 10)]).is_err());
}

/// Two snapshots see two transactions in different orders.
#[test]
fn the_checker_catches_a_long_fork() {
    let history = [
        committed(&[Op::Write(1, 10)]),
        committed(&[Op::Append(2, 20)]),
        committed(&[Op::Look(1, Some(10)), Op::Read(2, vec![])]),
        committed(&[Op::Look(1, None), Op::Read(2, vec![20])]),
    ];
    let why = verdict_of_both(&history, &[(2, &[20])], &[(1, 10)]).unwrap_err();
    assert!(why.contains("circle"), "{why}");
}

#[test]
fn the_checker_catches_what_registers_tell() {
    let both = |first: &[Op], second: &[Op], last| {
        verdict_of_both(&[committed(first), committed(second)], &[], &[(1, last)])
    };
    // The histories: a lost update, a transaction that is seen in part, a read of a value that its own writer
    // replaced, and a transaction that reads two values of one register.
    let update = |value| [Op::Look(1, None), Op::Write(1, value)];
    assert!(both(&update(10), &update(11), 11).unwrap_err().contains("circle"));
    let seen = [Op::Look(1, Some(10)), Op::Look(2, None)];
    let history = [committed(&[Op::Write(1, 10), Op::Write(2, 20)]), committed(&seen)];
    assert!(verdict_of_both(&history, &[], &[(1, 10), (2, 20)]).unwrap_err().contains("circle"));
    let replaced = [Op::Write(1, 10), Op::Write(1, 11)];
    assert!(both(&replaced, &[Op::Look(1, Some(10))], 11).unwrap_err().contains("replaced"));
    let twice = [Op::Look(1, None), Op::Look(1, Some(10))];
    assert!(both(&[Op::Write(1, 10)], &twice, 10).unwrap_err().contains("and then"));
    let own = [Op::Write(1, 11), Op::Look(1, Some(10))];
    assert!(both(&[Op::Write(1, 10)], &own, 11).is_err());
    // One read sees a value of an aborted transaction, and another a value that no transaction wrote.
    let aborted = Tx { ops: vec![Op::Write(1, 10)], fate: Fate::Aborted, span: None };
    assert!(verdict_of_both(&[aborted.clone(), committed(&[Op::Look(1, Some(10))])], &[], &[]).is_err());
    assert!(verdict_of_both(&[aborted], &[], &[(1, 10)]).is_err());
    assert!(verdict_of_both(&[committed(&[Op::Look(1, Some(7))])], &[], &[]).is_err());
    assert!(verdict_of_both(&[committed(&[Op::Write(1, 10)])], &[], &[]).unwrap_err().contains("gone"));
}

#[test]
fn the_checker_catches_a_part_of_what_nobody_was_told_of() {
    let both = [Tx { ops: vec![Op::Append(1, 10), Op::Write(1, 20)], fate: Fate::Unknown, span: None }];
    assert!(verdict_of_both(&both, &[], &[(1, 20)]).unwrap_err().contains("a part"));
    verdict_of_both(&both, &[], &[]).unwrap();
    verdict_of_both(&both, &[(1, &[10])], &[(1, 20)]).unwrap();
    assert!(verdict_of_both(&both, &[(1, &[10])], &[]).unwrap_err().contains("gone"));
    // A snapshot saw the value that this transaction wrote, so a crash must not lose it.
    let unknown = Tx { ops: vec![Op::Write(1, 20)], fate: Fate::Unknown, span: None };
    let shown = committed(&[Op::Look(1, Some(20))]);
    assert!(verdict_of_both(&[unknown, shown], &[], &[]).unwrap_err().contains("gone"));
}
