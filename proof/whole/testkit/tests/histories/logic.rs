//! Tests SQL with constraints, a trigger and an index. The log gives the order of the transactions. If stock
//! SQLite runs the transactions one by one in that order, it must give the same answers, and must end with
//! the same rows.

use std::time::Duration;

use duralite_histories::Fate;
use duralite_testkit::{Actor, Did, Dids, Fixture, Reads, Work, dump, integrity, logic_schema, one, stock};
use duralite_wal::engine::media::MediaSet;
use duralite_wal::{EngineOptions, Follower, LogPlacement};
use rusqlite::Connection;

use super::{Case, Judged, NAME, for_long, replay, reported};

/// The sessions' settings in the tests.
const ALONE: &[&str] = &["concurrent=on"];

fn follow(fixture: &Fixture) -> Follower {
    let engine = fixture.engine().descriptor();
    let logs = LogPlacement::at(engine, fixture.log_dir(), &MediaSet::default());
    Follower::open(&logs, &EngineOptions::default(), &fixture.path(NAME)).unwrap()
}

/// The order of the transactions in the log, as the number of each transaction's session. A transaction
/// changes the root page of its session's own table, so this page identifies the session.
struct Order {
    roots: Vec<u32>,
    position: u64,
    sessions: Vec<u64>,
}

impl Order {
    /// Reads the new transactions in the log. Returns whether there were any.
    fn take(&mut self, follower: &mut Follower) -> bool {
        let before = self.position;
        while let Some(transaction) = follower.read_since(self.position).unwrap() {
            let is_own = |root: &u32| transaction.pages.contains(root);
            let mut own = (0..).zip(&self.roots).filter(|(_, root)| is_own(root)).map(|(session, _)| session);
            // The first transactions, which make the tables, belong to no session.
            self.sessions.extend(own.next());
            assert_eq!(own.next(), None, "two sessions wrote one transaction of the log");
            self.position = transaction.position;
        }
        // While the log is about to start over, `pin` leaves the pin where it is. The next call of `take`
        // then moves it.
        let _ = follower.pin(self.position).unwrap();
        self.position > before
    }
}

/// Makes the database, and lets another process stay connected to it. Returns that process, and the root
/// pages of the sessions' tables.
fn make(fixture: &Fixture, sessions: u64) -> (Actor, Vec<u32>) {
    let schema = logic_schema(sessions);
    let conn = fixture.open(NAME);
    conn.execute_batch(&schema).unwrap();
    let roots = (0..sessions)
        .map(|session| {
            one::<u32>(&conn, &format!("SELECT rootpage FROM sqlite_schema WHERE name = 'done_{session}'"))
        })
        .collect();
    conn.close().unwrap();
    // From here on this process has no connection, so that it can follow the log.
    let mut holder = Actor::sql(&fixture.uri(NAME, ""));
    assert_eq!(holder.run("PRAGMA busy_timeout=30000"), "30000");
    assert_eq!(holder.run("PRAGMA journal_mode=WAL"), "wal");
    assert_eq!(holder.run("CREATE TABLE holder(n)"), "");
    (holder, roots)
}

/// Runs a case. Returns the number of transactions in the log, and how many transactions were judged. Returns
/// an error if no order of the transactions explains their answers.
pub fn judged(seed: u64, case: &Case) -> Result<(usize, Judged), String> {
    let fixture = Fixture::new();
    let sessions = case.processes * case.threads;
    let (holder, roots) = make(&fixture, sessions);
    let mut follower = follow(&fixture);
    let position = follower.newest().unwrap();
    assert!(follower.pin(position).unwrap());
    let mut order = Order { roots, position, sessions: Vec::new() };
    let mut processes: Vec<Actor> =
        (0..case.processes).map(|process| case.start(&fixture, Work::Logic, seed, process)).collect();
    while processes.iter_mut().any(|process| !process.has_ended()) {
        follower.wait(order.position, Duration::from_millis(50)).unwrap();
        order.take(&mut follower);
    }
    processes.into_iter().for_each(|process| process.finish());
    while order.take(&mut follower) {}
    assert_eq!(order.position, follower.newest().unwrap());
    drop(follower);
    holder.finish();
    let conn = fixture.open(NAME);
    integrity(&conn);
    assert_eq!(
        conn.prepare("PRAGMA foreign_key_check").unwrap().query([]).unwrap().next().unwrap().map(drop),
        None
    );
    let left = dump(&conn);
    conn.close().unwrap();
    fixture.assert_plain(NAME);
    assert_eq!(dump(&stock(&fixture.path(NAME))), left);
    let mut dids = Dids::default();
    reported(&fixture, case.processes).lines().for_each(|line| dids.line(line));
    let dids: Vec<Did> = dids.all();
    let stock = Connection::open_in_memory().unwrap();
    stock.execute_batch("PRAGMA foreign_keys=ON").unwrap();
    stock.execute_batch(&logic_schema(sessions)).unwrap();
    stock.execute_batch("CREATE TABLE holder(n)").unwrap();
    let committed = dids.iter().filter(|did| did.fate == Fate::Committed).count() as u64;
    let (verdict, judged) = Judged::by(|| replay::replay(&stock, &dids, &order.sessions), |_| committed);
    verdict?;
    if dump(&stock) != left {
        return Err("other rows are left".to_owned());
    }
    Ok((order.sessions.len(), judged))
}

fn round(seed: u64, case: &Case) -> Judged {
    let (count, judged) = judged(seed, case).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    eprintln!("seed {seed}: {count} transactions in the log");
    assert!(count > 50, "only {count} transactions");
    judged
}

#[test]
fn transactions_answer_as_one_after_the_other() {
    let case = Case {
        settings: ALONE,
        processes: 2,
        threads: 3,
        transactions: 120,
        keys: 5,
        spread: 1,
        reads: Reads::Inside,
    };
    for_long(701, 2, |seed| round(seed, &case));
}
