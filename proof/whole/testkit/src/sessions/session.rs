//! A session: a connection, its random numbers, and the code that begins and ends transactions.
//!
//! A statement may fail only with an error that the caller expects, or because another session was faster. If
//! another session was faster, the session tries the statement again a few times, or rolls the transaction
//! back. Every other error ends the process.

use std::time::Duration;

use rusqlite::{Connection, Error};

use super::plan::{Reads, SessionPlan};
use super::report::{Report, now};
use crate::{Rng, code, connect, run};

/// The size of the range from which each session takes the numbers of its transactions and values.
const NUMBERS: u64 = 1_000_000;
const BUSY: i32 = 5;
/// The number of attempts that a session makes at a statement that finds the database busy.
const TRIES: u32 = 5;

/// The error that another session was faster, so that the session has to roll its transaction back.
#[derive(Clone, Copy, Debug)]
pub struct Overtaken;

pub struct Session<'a> {
    pub plan: &'a SessionPlan,
    pub number: u64,
    pub rng: Rng,
    pub report: &'a Report,
    pub conn: Connection,
    outside: Option<Connection>,
    next: u64,
}

impl<'a> Session<'a> {
    pub fn open(plan: &'a SessionPlan, number: u64, report: &'a Report) -> Self {
        let mut rng = Rng::new(plan.seed * 1000 + number);
        let conn = open(plan, number, &mut rng);
        let outside = (plan.reads == Reads::Outside).then(|| open(plan, number, &mut rng));
        Self { plan, number, rng, report, conn, outside, next: 0 }
    }

    /// Returns a number that no other call, of any session, returns.
    pub fn fresh(&mut self) -> u64 {
        self.next += 1;
        assert!(self.next < NUMBERS);
        self.number * NUMBERS + self.next
    }

    /// Returns the connection on which the session reads.
    pub fn reader(&self) -> &Connection {
        self.outside.as_ref().unwrap_or(&self.conn)
    }

    pub fn reads_outside(&self) -> bool {
        self.outside.is_some()
    }

    /// Lets other sessions run in the middle of a transaction.
    pub fn pause(&mut self) {
        match self.rng.below(6) {
            0 => std::thread::sleep(Duration::from_micros(self.rng.below(400))),
            1 | 2 => std::thread::yield_now(),
            _ => {}
        }
    }

    /// Runs a checkpoint now and then, or closes the connection and opens another. A session calls this
    /// between transactions.
    pub fn between(&mut self) {
        match self.rng.below(120) {
            0 => self.conn = open(self.plan, self.number, &mut self.rng),
            1..=3 => {
                let mode = self.rng.pick(&["PASSIVE", "FULL", "RESTART", "TRUNCATE"]);
                // The checkpoint may fail or remain incomplete because of other sessions.
                let _ = step(|| run(&self.conn, &format!("PRAGMA wal_checkpoint({mode})")));
            }
            _ => self.pause(),
        }
    }

    /// Runs statements that return no rows.
    pub fn execute(&self, sql: &str) -> Result<(), Overtaken> {
        step(|| self.conn.execute_batch(sql))
    }

    /// Commits. Returns whether the transaction is committed, and the time at which that was known.
    pub fn commit(&self) -> (bool, u64) {
        let is_done = self.execute("COMMIT").is_ok();
        let end = now();
        if !is_done {
            self.roll_back();
        }
        (is_done, end)
    }

    /// Rolls back the open transaction, if there is one. SQLite may have rolled it back already when `COMMIT`
    /// failed.
    pub fn roll_back(&self) {
        if !self.conn.is_autocommit() {
            self.conn.execute_batch("ROLLBACK").unwrap();
        }
    }
}

/// Runs `what`, and repeats it while the database is busy.
pub fn step<T>(mut what: impl FnMut() -> Result<T, Error>) -> Result<T, Overtaken> {
    for nth in 1.. {
        let error = match what() {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let found = code(&error);
        assert_eq!(found & 0xff, BUSY, "{error}, {found}");
        // Extended codes, such as `SQLITE_BUSY_SNAPSHOT`, mean that another attempt cannot succeed. Only
        // plain `SQLITE_BUSY` is worth another attempt.
        if found != BUSY || nth == TRIES {
            break;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Err(Overtaken)
}

fn open(plan: &SessionPlan, number: u64, rng: &mut Rng) -> Connection {
    let uri = plan.uri_of(number);
    // An open may fail while another process writes or removes the guard in the database's header, so try
    // again.
    let mut tries = 0;
    loop {
        match connect(&uri).and_then(|conn| set_up(&conn, rng).map(|()| conn)) {
            Ok(conn) => break conn,
            Err(error) => {
                assert!(code(&error) & 0xff == BUSY && tries < 1000, "{error}, after {tries} tries")
            }
        }
        tries += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sets up a session's connection. The cache of some connections is too small for their transactions, and
/// some connections wait for locks.
fn set_up(conn: &Connection, rng: &mut Rng) -> Result<(), Error> {
    conn.busy_timeout(Duration::from_secs(10))?;
    let cache = rng.pick(&["4", "30", "-2000"]);
    let pages = rng.pick(&["10", "50", "1000"]);
    run(conn, "PRAGMA journal_mode=WAL")?;
    run(conn, "SELECT count(*) FROM sqlite_schema")?;
    for pragma in [
        format!("cache_size={cache}"),
        format!("wal_autocheckpoint={pages}"),
        "foreign_keys=ON".to_owned(),
        "synchronous=NORMAL".to_owned(),
    ] {
        run(conn, &format!("PRAGMA {pragma}"))?;
    }
    conn.busy_timeout(Duration::from_millis(rng.below(3) * 2000))
}
