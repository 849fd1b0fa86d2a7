//! Runs the reported transactions again, one by one, and compares the answers.
//!
//! Transactions that changed anything run in their order in the log. All other transactions only read or did
//! not commit, so they have no place in the log. For each of them there must be a moment between its
//! beginning and its end at which the database gave the same answers. If one of them ended before another
//! began, its moment must come first.

use duralite_histories::Fate;
use duralite_testkit::{Did, answer};
use rusqlite::Connection;

/// Runs all transactions on `conn`. Its database must have the content from before the first transaction.
/// `order` gives the session of each transaction in the log.
pub fn replay(conn: &Connection, dids: &[Did], order: &[u64]) -> Result<(), String> {
    let (log, others) = places(dids, order)?;
    let mut open = others;
    open.sort_by_key(|did| did.span.0);
    // Each transaction in `others` saw one state. That state comes after every logged transaction that ended
    // before the other began. It comes before every logged transaction that began after the other had ended.
    let first = |did: &Did| log.iter().rposition(|other| other.span.1 < did.span.0).map_or(0, |nth| nth + 1);
    let last = |did: &Did| log.iter().position(|other| other.span.0 > did.span.1).unwrap_or(log.len());
    let mut open: Vec<(&Did, usize, usize)> =
        open.into_iter().map(|did| (did, first(did), last(did))).collect();
    for state in 0..=log.len() {
        let mut left = Vec::new();
        let mut why = String::new();
        // The earliest end among the transactions for which no state has been found yet.
        let mut earliest = u64::MAX;
        for (did, from, to) in open {
            let fits = state >= from && earliest >= did.span.0 && {
                let found = attempt(conn, did);
                why = found.as_ref().err().cloned().unwrap_or(why);
                found.is_ok()
            };
            if fits {
                continue;
            }
            if state >= to {
                return Err(format!(
                    "{}\n at no moment from {from} to {to}; at the last one {why}",
                    told(did)
                ));
            }
            earliest = earliest.min(did.span.1);
            left.push((did, from, to));
        }
        open = left;
        if let Some(did) = log.get(state) {
            conn.execute_batch("BEGIN").map_err(|error| error.to_string())?;
            compare(conn, did)
                .map_err(|why| format!("{}\n as number {state} in the log: {why}", told(did)))?;
            conn.execute_batch("COMMIT").map_err(|error| format!("{}\n {error}", told(did)))?;
        }
    }
    Ok(())
}

/// Separates the transactions in the log from all others. Returns the former in their order in the log.
fn places<'a>(dids: &'a [Did], order: &[u64]) -> Result<(Vec<&'a Did>, Vec<&'a Did>), String> {
    let can_be_there = |did: &Did| did.has_written && did.fate != Fate::Aborted;
    let (mut waiting, mut others): (Vec<&Did>, Vec<&Did>) = dids.iter().partition(|did| can_be_there(did));
    let mut log: Vec<&Did> = Vec::new();
    for (nth, session) in order.iter().enumerate() {
        let next = waiting.iter().position(|did| did.session == *session);
        let next = next.ok_or_else(|| {
            format!("number {nth} in the log is of session {session}, which knows nothing of it")
        })?;
        log.push(waiting.remove(next));
    }
    // An acknowledged transaction must be in the log. A transaction that was not acknowledged may be missing.
    if let Some(lost) = waiting.iter().find(|did| did.fate == Fate::Committed) {
        return Err(format!("{}\n is not in the log", told(lost)));
    }
    others.extend(waiting);
    let mut newest = 0;
    for did in &log {
        if did.span.1 < newest {
            return Err(format!("{}\n is in the log after one that began later than it ended", told(did)));
        }
        newest = newest.max(did.span.0);
    }
    Ok((log, others))
}

/// Checks that a transaction gives the same answers here, and rolls the transaction back.
fn attempt(conn: &Connection, did: &Did) -> Result<(), String> {
    conn.execute_batch("BEGIN").map_err(|error| error.to_string())?;
    let compared = compare(conn, did);
    conn.execute_batch("ROLLBACK").map_err(|error| error.to_string())?;
    compared
}

fn compare(conn: &Connection, did: &Did) -> Result<(), String> {
    for (sql, answered) in &did.statements {
        let found = answer(conn, sql).map_err(|error| format!("{sql}: {error}"))?;
        if found != *answered {
            return Err(format!("{sql}\n  answered {answered}\n  now      {found}"));
        }
    }
    Ok(())
}

fn told(did: &Did) -> String {
    let statements: Vec<&str> = did.statements.iter().map(|(sql, _)| sql.as_str()).collect();
    let Did { session, fate, span: (begin, end), .. } = did;
    format!("session {session} ({fate:?}, from {begin} to {end}): {}", statements.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn did(session: u64, span: (u64, u64), statements: &[(&str, &str)]) -> Did {
        let own = |(sql, answer): &(&str, &str)| ((*sql).to_owned(), (*answer).to_owned());
        Did {
            session,
            has_written: statements.iter().any(|(sql, _)| !sql.starts_with("SELECT")),
            statements: statements.iter().map(own).collect(),
            fate: Fate::Committed,
            span,
        }
    }

    fn verdict(dids: &[Did], order: &[u64]) -> Result<(), String> {
        let conn = Connection::open_in_memory().unwrap();
        conn.execute_batch("CREATE TABLE t(n); INSERT INTO t VALUES(1)").unwrap();
        replay(&conn, dids, order)
    }

    #[test]
    fn each_transaction_has_to_fit_somewhere() {
        let add = ("UPDATE t SET n = n + 1", "[], 1 changes");
        let seen = |answer| [("SELECT n FROM t", answer)];
        let (one, two, three) =
            ("[[Integer(1)]], 0 changes", "[[Integer(2)]], 0 changes", "[[Integer(3)]], 0 changes");
        let writers = [did(0, (1, 20), &[add]), did(1, (5, 30), &[("SELECT n FROM t", two), add])];
        verdict(&writers, &[0, 1]).unwrap();
        assert!(verdict(&writers, &[1, 0]).unwrap_err().contains("as number 0"));
        assert!(verdict(&writers, &[0]).unwrap_err().contains("is not in the log"));
        assert!(verdict(&writers, &[0, 1, 1]).unwrap_err().contains("knows nothing"));
        let with = |readers: &[Did]| verdict(&[&writers[..], readers].concat(), &[0, 1]);
        for answer in [one, two, three] {
            with(&[did(2, (6, 7), &seen(answer))]).unwrap();
        }
        with(&[did(2, (6, 7), &seen(two)), did(2, (8, 9), &seen(three))]).unwrap();
        // A reader must not see a state that is too old for the transactions that ended before it began. Nor
        // may it see one that includes a transaction that began after it had ended.
        assert!(with(&[did(2, (6, 7), &seen(three)), did(3, (8, 9), &seen(two))]).is_err());
        assert!(with(&[did(2, (21, 22), &seen(one))]).unwrap_err().contains("at no moment from 1 to 2"));
        assert!(with(&[did(2, (2, 3), &seen(three))]).is_err());
        // A transaction that did not commit must not see two states either.
        let torn = Did { fate: Fate::Aborted, ..did(2, (6, 7), &[seen(one)[0], seen(two)[0]]) };
        assert!(with(&[torn]).is_err());
        let late = [did(0, (10, 20), &[add]), did(1, (1, 5), &[add])];
        assert!(verdict(&late, &[0, 1]).unwrap_err().contains("began later"));
    }
}
