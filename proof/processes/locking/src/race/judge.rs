//! Judges whether one order of a race's transactions explains everything that the processes have seen.
//!
//! The order is the one in which the commits were published. The judge runs the transactions again in this
//! order, one at a time, on a plain SQLite database, and compares:
//!
//! 1. A transaction that has committed got the answers that it gets at its place in the order.
//! 2. Other transactions have only read, were refused, or lost their process. Each of them got the answers
//!    that it gets after the first few commits of the order. These must include all commits that had returned
//!    before the transaction began, and no commit that was published after its first answer.
//! 3. At the end every process finds the rows that the whole order leaves. So a transaction that was refused
//!    has changed nothing.
//! 4. If a process died in a commit after it had begun to write to the log, its transaction may be in the
//!    order or not. The log may already have the whole transaction (sealed), although it is not published.
//!    Then other processes see it only after one of them has rebuilt the wal-index. Stock SQLite behaves in
//!    the same way. But if another transaction commits first, it overwrites the sealed one in the log. So only
//!    the last transaction of the order may appear late, and once it has appeared, it stays.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use rusqlite::Connection;

use super::ledger::{End, Seen};
use super::mix::{Mix, ROWS, SETUP};
use super::session::{answer, is_about_rows, statements};

/// A transaction, as the number of its process and its number among that process's transactions.
type Id = (usize, usize);

/// The results of a transaction that runs after certain other transactions.
struct Run {
    answers: Vec<String>,
    /// All rows of the database after the transaction.
    rows: String,
}

/// Runs transactions again, and compares their results with what the processes have seen.
pub struct Judge {
    mix: &'static Mix,
    plain: Connection,
    /// The results that the judge has already computed. Each key is a list of transactions in their order,
    /// and the value has the results of the last one.
    known: RefCell<HashMap<Vec<Id>, Rc<Run>>>,
}

impl Judge {
    /// Makes a judge of this race.
    pub fn new(mix: &'static Mix) -> Self {
        let plain = Connection::open_in_memory().unwrap();
        plain.execute_batch(SETUP).unwrap();
        for sql in mix.programs.iter().flat_map(|program| program.before) {
            answer(&plain, sql).unwrap();
        }
        Self { mix, plain, known: RefCell::default() }
    }

    /// Runs these transactions in order, and returns the results of the last one.
    fn run(&self, order: &[Id]) -> Rc<Run> {
        if let Some(known) = self.known.borrow().get(order) {
            return Rc::clone(known);
        }
        answer(&self.plain, "SAVEPOINT start").unwrap();
        let mut answers = Vec::new();
        for (process, number) in order {
            answers.clear();
            let operations = self.mix.programs[*process].transactions[*number];
            for sql in operations.iter().flat_map(|operation| statements(operation)) {
                if is_about_rows(sql) {
                    answers.push(answer(&self.plain, sql).unwrap());
                }
            }
        }
        let rows = answer(&self.plain, ROWS).unwrap();
        answer(&self.plain, "ROLLBACK TO start").unwrap();
        answer(&self.plain, "RELEASE start").unwrap();
        let run = Rc::new(Run { answers, rows });
        self.known.borrow_mut().insert(order.to_vec(), Rc::clone(&run));
        run
    }

    /// Describes what is wrong with a history; returns `None` if nothing is wrong. `seen` has the
    /// transactions of the history. `found` has the rows that each process found at the end.
    pub fn judge(&self, seen: &[Seen], found: &[(usize, String)]) -> Option<String> {
        // Nobody knows whether these transactions have committed. So the judge tries every combination, each
        // transaction with its commit and without it.
        let doubtful: Vec<&Seen> =
            seen.iter().filter(|one| matches!(one.end, End::Died { sealed: 1.. })).collect();
        let mut wrong = Vec::new();
        for taken in 0..1_u32 << doubtful.len() {
            let is_in = |one: &Seen| match one.end {
                End::Committed { sealed, .. } => sealed > 0,
                End::Refused => false,
                End::Died { .. } => {
                    let at = doubtful.iter().position(|other| *other == one);
                    at.is_some_and(|at| taken >> at & 1 == 1)
                }
            };
            let mut order: Vec<&Seen> = seen.iter().filter(|one| is_in(one)).collect();
            order.sort_by_key(|one| one.end.sealed());
            wrong.push(self.is_wrong(&order, seen, found)?);
        }
        Some(wrong.join("; or else "))
    }

    fn is_wrong(&self, order: &[&Seen], seen: &[Seen], found: &[(usize, String)]) -> Option<String> {
        let ids: Vec<Id> = order.iter().map(|one| one.id()).collect();
        for one in seen {
            let own = order.iter().position(|other| *other == one);
            let places = own.map_or_else(|| places(one, order), |own| own..=own);
            let fits = places.clone().any(|place| {
                let mut before = ids[..place].to_vec();
                before.push(one.id());
                let answers = &self.run(&before).answers;
                one.answers.len() <= answers.len()
                    && one.answers.iter().zip(answers).all(|((_, seen), expected)| seen == expected)
            });
            if !fits {
                let (process, number) = one.id();
                let answers: Vec<&str> = one.answers.iter().map(|(_, answer)| answer.as_str()).collect();
                return Some(format!(
                    "transaction {number} of process {process} ({}) has got {answers:?}, which it gets at none of the places {places:?} \
                     in {ids:?}",
                    one.end.name()
                ));
            }
        }
        let mut may_be_late = order.last().is_some_and(|last| matches!(last.end, End::Died { .. }));
        for (process, rows) in found {
            let expected = &self.run(&ids).rows;
            may_be_late &= rows != expected;
            let is_there_later = may_be_late && *rows == self.run(&ids[..ids.len() - 1]).rows;
            if rows != expected && !is_there_later {
                return Some(format!(
                    "process {process} finds other rows than {ids:?} leave: {}",
                    difference(rows, expected)
                ));
            }
        }
        None
    }
}

/// For a transaction that is not in the order, returns the range of how many of the order's commits it may
/// have seen.
fn places(one: &Seen, order: &[&Seen]) -> std::ops::RangeInclusive<usize> {
    let returned = |other: &&&Seen| matches!(other.end, End::Committed { at, .. } if at < one.begun);
    let least = order.iter().rposition(|other| returned(&other)).map_or(0, |last| last + 1);
    let read = one.answers.first().map_or(u64::MAX, |(at, _)| *at);
    let most = order.iter().filter(|other| other.end.sealed() < read).count();
    least..=most.max(least)
}

/// Describes the first row in which two texts differ.
fn difference(found: &str, expected: &str) -> String {
    let rows = |text: &str| text.split(';').map(str::to_owned).collect::<Vec<_>>();
    let (found, expected) = (rows(found), rows(expected));
    let at = found.iter().zip(&expected).position(|(found, expected)| found != expected);
    let at = at.unwrap_or(found.len().min(expected.len()));
    let row = |rows: &[String]| rows.get(at).cloned().unwrap_or_default();
    format!("`{}` in place of `{}`", row(&found), row(&expected))
}

impl Seen {
    fn id(&self) -> Id {
        (self.process, self.number)
    }
}

impl End {
    fn sealed(self) -> u64 {
        match self {
            Self::Committed { sealed, .. } | Self::Died { sealed } => sealed,
            Self::Refused => 0,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Committed { sealed: 0, .. } => "which has read",
            Self::Committed { .. } => "which has committed",
            Self::Refused => "which was refused",
            Self::Died { .. } => "whose process died",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::race::mix;

    fn seen(process: usize, begun: u64, answers: &[(u64, &str)], end: End) -> Seen {
        let answers = answers.iter().map(|(at, answer)| (*at, (*answer).to_owned())).collect();
        Seen { process, number: 0, begun, answers, end }
    }

    fn judge(history: &[Seen], found: &str) -> Option<String> {
        let judge = Judge::new(mix::named("skew").unwrap());
        judge.judge(history, &[(5, found.to_owned())])
    }

    fn rows_after(order: &[Id]) -> String {
        Judge::new(mix::named("skew").unwrap()).run(order).rows.clone()
    }

    #[test]
    fn a_skew_is_found() {
        let first = seen(0, 1, &[(2, "1 ;"), (3, "changes 1")], End::Committed { at: 8, sealed: 7 });
        let second = seen(1, 4, &[(5, "10 ;"), (6, "changes 1")], End::Committed { at: 11, sealed: 10 });
        let skewed = judge(&[first.clone(), second.clone()], &rows_after(&[(0, 0), (1, 0)]));
        assert!(skewed.unwrap().contains("which has committed"));
        let refused = Seen { end: End::Refused, ..second };
        assert_eq!(judge(&[first.clone(), refused.clone()], &rows_after(&[(0, 0)])), None);
        let left = judge(&[first, refused], &rows_after(&[(0, 0), (1, 0)]));
        assert!(left.unwrap().contains("other rows"));
    }

    #[test]
    fn whoever_begins_after_a_commit_sees_it() {
        let first = seen(0, 1, &[(2, "1 ;"), (3, "changes 1")], End::Committed { at: 5, sealed: 4 });
        let old = seen(1, 6, &[(7, "10 ;")], End::Refused);
        let rows = rows_after(&[(0, 0)]);
        assert!(judge(&[first.clone(), old.clone()], &rows).unwrap().contains("at none of the places 1..=1"));
        let beside = Seen { begun: 3, ..old };
        assert_eq!(judge(&[first, beside], &rows), None);
    }

    #[test]
    fn what_died_in_its_commit_is_there_or_not_for_all() {
        let died = seen(0, 1, &[(2, "1 ;"), (3, "changes 1")], End::Died { sealed: 4 });
        for order in [&[][..], &[(0, 0)]] {
            let rows = if order.is_empty() { rows_after(&[]) } else { rows_after(order) };
            assert_eq!(judge(std::slice::from_ref(&died), &rows), None);
        }
        let all = Judge::new(mix::named("skew").unwrap());
        let [before, after] = [rows_after(&[]), rows_after(&[(0, 0)])];
        let finds = |rows: [&String; 2]| rows.map(|rows| (5, rows.clone()));
        assert_eq!(all.judge(std::slice::from_ref(&died), &finds([&before, &after])), None);
        assert!(all.judge(std::slice::from_ref(&died), &finds([&after, &before])).is_some(), "gone again");
        let early = Seen { end: End::Died { sealed: 0 }, ..died };
        assert!(judge(&[early], &rows_after(&[(0, 0)])).is_some());
    }
}
