//! Runs SQL transactions on tables with constraints, a trigger and an index. A session reports each statement
//! with its answer, so that a judge can run the statement on another database and compare.
//!
//! Each session has a table of its own with one row. A transaction that changes anything changes
//! that row too, so the transaction's pages in the log show which session wrote them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use duralite_histories::Fate;
use rusqlite::{Connection, Error};

use super::report::now;
use super::session::{Overtaken, Session, step};
use crate::{code, run as rows_of};

/// The result code of a violated constraint.
const CONSTRAINT: i32 = 19;

/// Returns the schema, some rows, and one table for each of `sessions` sessions.
#[must_use]
pub fn logic_schema(sessions: u64) -> String {
    let mut schema = String::from(
        "CREATE TABLE customers(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, balance INTEGER NOT NULL,
             orders INTEGER NOT NULL DEFAULT 0, CHECK(balance >= 0));
         CREATE TABLE orders(id INTEGER PRIMARY KEY AUTOINCREMENT, customer INTEGER NOT NULL
                 REFERENCES customers(id) DEFERRABLE INITIALLY DEFERRED,
             state INTEGER NOT NULL, amount INTEGER NOT NULL, note TEXT);
         CREATE INDEX orders_state ON orders(state, customer);
         CREATE TABLE audit(customer INTEGER PRIMARY KEY REFERENCES customers(id) ON DELETE CASCADE,
             placed INTEGER NOT NULL, newest INTEGER NOT NULL);
         CREATE TRIGGER placed AFTER INSERT ON orders BEGIN
             UPDATE customers SET orders = orders + 1 WHERE id = new.customer;
             INSERT INTO audit VALUES(new.customer, new.amount, new.id)
                 ON CONFLICT(customer) DO UPDATE SET placed = placed + excluded.placed, newest = excluded.newest;
         END;
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60)
         INSERT INTO customers(id, name, balance) SELECT i * 10, printf('%d %.*c', i, 200, 'n'), 100 FROM n;",
    );
    for session in 0..sessions {
        let _ = write!(schema, "CREATE TABLE {0}(n INTEGER); INSERT INTO {0} VALUES(0);", own_table(session));
    }
    schema
}

fn own_table(session: u64) -> String {
    format!("done_{session}")
}

/// A transaction as its session reports it.
#[derive(Clone, Debug)]
pub struct Did {
    /// The number of the session that ran the transaction.
    pub session: u64,
    /// Whether the transaction has changed the row in its session's own table.
    pub has_written: bool,
    /// The statements of the transaction and their answers. If another transaction overtook this one at a
    /// statement, that statement is missing.
    pub statements: Vec<(String, String)>,
    /// The way in which the transaction ended.
    pub fate: Fate,
    /// The time when the transaction began, and the time when its outcome was known.
    pub span: (u64, u64),
}

/// The reported transactions, by number.
#[derive(Default)]
pub struct Dids(BTreeMap<u64, Did>);

impl Dids {
    /// Adds a line of a report.
    ///
    /// # Panics
    /// Panics if `line` is no line of a report.
    pub fn line(&mut self, line: &str) {
        let words: Vec<&str> = line.split('\t').collect();
        let number = |word: &str| word.parse::<u64>().unwrap();
        match words.as_slice() {
            ["did", name, session, begin, has_written, statements @ ..] => {
                let pairs = statements.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned()));
                let did = Did {
                    session: number(session),
                    has_written: *has_written == "true",
                    statements: pairs.collect(),
                    fate: Fate::Unknown,
                    span: (number(begin), u64::MAX),
                };
                self.0.insert(number(name), did);
            }
            ["ended", name, fate, end] => {
                let did = self.0.get_mut(&number(name)).unwrap();
                did.fate = if *fate == "committed" { Fate::Committed } else { Fate::Aborted };
                did.span.1 = number(end);
            }
            _ => assert_eq!(line, "", "a report"),
        }
    }

    /// Returns all transactions. Those of a session are in the order in which the session ran them.
    #[must_use]
    pub fn all(self) -> Vec<Did> {
        self.0.into_values().collect()
    }
}

/// Returns what a connection answers to a statement: the rows and the number of changed rows, or the
/// constraint that the statement violates.
///
/// # Errors
/// Any error other than a violated constraint.
pub fn answer(conn: &Connection, sql: &str) -> Result<String, Error> {
    let before = conn.total_changes();
    match rows_of(conn, sql) {
        Ok(rows) => Ok(format!("{rows:?}, {} changes", conn.total_changes() - before)),
        Err(error) if code(&error) & 0xff == CONSTRAINT => Ok(format!("constraint {}", code(&error))),
        Err(error) => Err(error),
    }
}

pub fn run(mut session: Session<'_>) {
    for _ in 0..session.plan.transactions {
        transaction(&mut session);
        session.between();
    }
}

fn transaction(session: &mut Session<'_>) {
    let (number, begin) = (session.fresh(), now());
    let (kind, only_reads) = (session.rng.below(4), session.rng.chance(5));
    let is_immediate = kind == 0 && !session.reads_outside() && !only_reads;
    if session.execute(if is_immediate { "BEGIN IMMEDIATE" } else { "BEGIN" }).is_err() {
        return;
    }
    let mut did = Did {
        session: session.number,
        has_written: false,
        statements: Vec::new(),
        fate: Fate::Unknown,
        span: (begin, u64::MAX),
    };
    let is_done = statements(session, number, only_reads, &mut did).is_ok();
    if !is_done || session.rng.chance(15) {
        tell(session, number, &did);
        session.roll_back();
        return session.report.tell(&format!("ended\t{number}\taborted\t{}\n", now()));
    }
    // From here on the transaction may be committed, even if the process dies before it reports the end. So
    // the session reports the transaction now.
    tell(session, number, &did);
    let (is_there, end) = commit(session);
    let fate = if is_there { "committed" } else { "aborted" };
    session.report.tell(&format!("ended\t{number}\t{fate}\t{end}\n"));
}

/// Commits, or rolls back if `COMMIT` fails. Returns whether the transaction is committed, and the time when
/// that was known.
fn commit(session: &Session<'_>) -> (bool, u64) {
    let refused = step(|| answer(&session.conn, "COMMIT")).map(|text| text.starts_with("constraint"));
    let end = now();
    session.roll_back();
    (matches!(refused, Ok(false)), end)
}

fn tell(session: &Session<'_>, number: u64, did: &Did) {
    let mut line = format!("did\t{number}\t{}\t{}\t{}", did.session, did.span.0, did.has_written);
    for (sql, answer) in &did.statements {
        let _ = write!(line, "\t{sql}\t{answer}");
    }
    session.report.tell(&(line + "\n"));
}

fn statements(
    session: &mut Session<'_>,
    number: u64,
    only_reads: bool,
    did: &mut Did,
) -> Result<(), Overtaken> {
    let has_savepoint = !only_reads && session.rng.chance(8);
    for nth in 0..1 + session.rng.below(5) {
        if has_savepoint && nth == 1 {
            ask(session, "SAVEPOINT inner", did)?;
        }
        let sql = if only_reads || session.rng.chance(2) { question(session) } else { change(session) };
        // A read on another connection does not see what the transaction has changed, so its answer would be
        // wrong.
        if session.reads_outside() && sql.starts_with("SELECT") && did.has_written {
            continue;
        }
        if !did.has_written && !sql.starts_with("SELECT") {
            ask(session, &format!("UPDATE {} SET n = {number}", own_table(session.number)), did)?;
            did.has_written = true;
        }
        ask(session, &sql, did)?;
        session.pause();
    }
    if did.statements.iter().any(|(sql, _)| sql == "SAVEPOINT inner") {
        if did.statements[0].0.starts_with("UPDATE done") || !did.has_written {
            ask(session, "ROLLBACK TO inner", did)?;
        }
        ask(session, "RELEASE inner", did)?;
    }
    Ok(())
}

/// Runs a statement, and records its answer.
fn ask(session: &Session<'_>, sql: &str, did: &mut Did) -> Result<(), Overtaken> {
    let conn = if sql.starts_with("SELECT") { session.reader() } else { &session.conn };
    let answer = step(|| answer(conn, sql))?;
    did.statements.push((sql.to_owned(), answer));
    Ok(())
}

/// Returns the number of a customer, who need not exist. Three of four calls choose among a few customers.
fn customer(session: &mut Session<'_>) -> u64 {
    let few = session.plan.keys;
    1 + if session.rng.chance(4) { session.rng.below(620) } else { session.rng.below(few) * 10 + 9 }
}

fn question(session: &mut Session<'_>) -> String {
    let (customer, state) = (customer(session), session.rng.below(4));
    match session.rng.below(8) {
        0 => "SELECT count(*), sum(balance), sum(orders) FROM customers".to_owned(),
        1 => format!("SELECT id, customer, amount FROM orders WHERE state = {state} ORDER BY id"),
        2 => format!("SELECT * FROM orders WHERE state = {state} AND customer = {customer} ORDER BY id"),
        3 => format!(
            "SELECT c.id, c.balance, o.id FROM customers c LEFT JOIN orders o ON o.customer = c.id
             WHERE c.id BETWEEN {customer} AND {customer} + 40 ORDER BY c.id, o.id"
        )
        .replace('\n', " "),
        4 => "SELECT max(newest), sum(placed) FROM audit".to_owned(),
        _ => format!("SELECT * FROM customers WHERE id = {customer}"),
    }
}

fn change(session: &mut Session<'_>) -> String {
    let (customer, other) = (customer(session), customer(session));
    let (state, amount) = (session.rng.below(4), session.rng.below(30));
    match session.rng.below(10) {
        0 => {
            format!("INSERT INTO customers(name, balance) VALUES('new {}', {amount})", session.rng.below(300))
        }
        1..=3 => format!(
            "INSERT INTO orders(customer, state, amount, note)
             SELECT {customer}, {state}, {amount}, printf('%.*c', {amount} * 20, 'o') RETURNING id"
        )
        .replace('\n', " "),
        4 => format!(
            "UPDATE orders SET state = (state + 1) % 4 WHERE customer = {customer} AND state = {state}"
        ),
        5 => format!("UPDATE customers SET balance = balance - {amount} WHERE id = {customer}"),
        6 => format!(
            "UPDATE customers SET balance = balance + (SELECT coalesce(sum(amount), 0) FROM orders
             WHERE customer = {other} AND state = {state}) WHERE id = {customer}"
        )
        .replace('\n', " "),
        7 => format!("DELETE FROM orders WHERE state = 3 AND customer = {customer}"),
        8 => format!("DELETE FROM customers WHERE id = {customer} AND orders < 3"),
        _ => format!("UPDATE customers SET name = 'new {}' WHERE id = {customer}", session.rng.below(300)),
    }
}
