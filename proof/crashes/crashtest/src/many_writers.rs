//! A workload of connections that write concurrently (`concurrent=on`), and of one connection that does not,
//! all in one thread. The workload's seed decides what each connection does next.
//!
//! The workload goes in rounds. In each round two or three transactions begin, run their statements in turns,
//! and commit in the order of their numbers. A transaction that was overtaken, or that finds the database
//! busy, runs again before the next transaction commits. So the transactions are published in the order of
//! their numbers, and the database is always in the state after one of them.

use anyhow::{Context, Result, bail};
use rusqlite::{Connection, ffi};

use crate::event::Event;
use crate::many_transactions::{AREAS, FIRST_AFTER, TABLES, statements};
use crate::recorder::Recorder;
use crate::setup::Setup;
use crate::sql::{self, checkpoint, is_busy, is_full, roll_back, use_mode};
use crate::stage::Stage;
use crate::transactions;

/// If a transaction has failed this many times, the test reports that it cannot commit.
const ATTEMPTS: u32 = 12;
/// The number of connections that write concurrently. They come first in the list. One more connection
/// follows, which does not write concurrently and so needs the WRITE lock.
const BESIDE: usize = AREAS as usize;

const CHECKPOINTS: [&str; 4] = ["PASSIVE", "FULL", "RESTART", "TRUNCATE"];
const BEGIN: &str = "BEGIN";

/// Counts the transactions of a run that other transactions affected. There is one count for each outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlaps {
    /// The number of transactions that passed validation and committed although other transactions had
    /// committed since they began.
    pub merged: u32,
    /// The number of transactions that were overtaken, and rolled back.
    pub overtaken: u32,
    /// The number of transactions that found the database busy with another writer.
    pub refused: u32,
}

/// A `COMMIT`, and whether it succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The number of the transaction.
    pub number: u32,
    /// Whether the `COMMIT` succeeded. If it did not, the database may or may not contain the transaction.
    pub is_certain: bool,
}

/// A transaction of a round.
struct Transaction {
    number: u32,
    conn: usize,
    /// The statement that begins the transaction.
    begin: &'static str,
    statements: Vec<String>,
    /// The number of the transaction's statements that have run.
    ran: usize,
    /// Whether the transaction was rolled back, and has to run again.
    is_lost: bool,
    /// The number of transactions that had committed when this one began.
    since: usize,
    /// Whether the transaction must run on this connection.
    is_bound: bool,
}

/// The workload.
pub struct ManyWriters<'a> {
    stage: &'a Stage,
    setup: &'a Setup,
    seed: u64,
    recorder: &'a Recorder,
    random: fastrand::Rng,
    connections: Vec<Connection>,
    /// Whether the last connection holds a snapshot.
    pinned: bool,
    /// The transactions of this round that have not committed yet.
    round: Vec<Transaction>,
    begun: u32,
    history: Vec<Committed>,
    overlaps: Overlaps,
}

impl<'a> ManyWriters<'a> {
    /// Makes a workload and opens its connections.
    ///
    /// # Errors
    /// An error of SQLite.
    pub fn new(stage: &'a Stage, setup: &'a Setup, seed: u64, recorder: &'a Recorder) -> Result<Self> {
        let mut new = Self {
            stage,
            setup,
            seed,
            recorder,
            random: fastrand::Rng::with_seed(seed ^ 0x3a11),
            connections: Vec::new(),
            pinned: false,
            round: Vec::new(),
            begun: 0,
            history: Vec::new(),
            overlaps: Overlaps::default(),
        };
        new.open()?;
        Ok(new)
    }

    /// Returns the number of the last transaction begun.
    #[must_use]
    pub fn begun(&self) -> u32 {
        self.begun
    }

    /// Returns how the transactions met.
    #[must_use]
    pub fn overlaps(&self) -> Overlaps {
        self.overlaps
    }

    /// Returns every `COMMIT` that has made a transaction visible, or may have made one visible, in the order
    /// of the commits.
    #[must_use]
    pub fn history(&self) -> &[Committed] {
        &self.history
    }

    fn open(&mut self) -> Result<()> {
        for nth in 0..=BESIDE {
            let conn = self.connect(nth)?;
            self.connections.push(conn);
        }
        Ok(())
    }

    fn connect(&self, nth: usize) -> Result<Connection> {
        let setup = Setup { concurrent: nth < BESIDE, ..self.setup.clone() };
        let conn = self.stage.connect(&setup).context("cannot open")?;
        use_mode(&conn, sql::WAL)?;
        Ok(conn)
    }

    /// Closes the connections.
    ///
    /// # Errors
    /// An error of SQLite.
    pub fn close(&mut self) -> Result<()> {
        self.pinned = false;
        for conn in self.connections.drain(..) {
            conn.close().map_err(|(_, error)| error).context("cannot close")?;
        }
        Ok(())
    }

    /// Runs the whole workload, and closes the connections. One step runs several transactions, so the
    /// workload takes only half as many steps as `steps` says.
    ///
    /// # Errors
    /// The error of the first step that fails.
    pub fn all_steps(&mut self, steps: u32) -> Result<()> {
        for _ in 0..TABLES {
            self.round(1)?;
        }
        for _ in 0..steps.div_ceil(2) {
            self.step()?;
        }
        self.close()
    }

    fn step(&mut self) -> Result<()> {
        match self.random.u8(..24) {
            0..18 => {
                let count = self.random.usize(2..=BESIDE);
                self.round(count)
            }
            18 | 19 => self.checkpoint(),
            20 => self.roll_back(),
            21 => self.pin_or_release(),
            22 if self.random.bool() => self.reopen(),
            22 => self.vacuum(),
            _ => self.replace(),
        }
    }

    fn last(&self) -> u32 {
        self.history.last().map_or(0, |last| last.number)
    }

    /// Runs a round: begins its transactions, runs their statements in turns, and commits them.
    fn round(&mut self, count: usize) -> Result<()> {
        self.begin(count)?;
        while let Some(at) = self.next() {
            self.go_on(at)?;
            if self.random.u8(..12) == 0 {
                self.look_or_checkpoint()?;
            }
        }
        while !self.round.is_empty() {
            if !self.commit()? {
                // The transaction is larger than the log may become.
                return self.roll_back_all();
            }
        }
        Ok(())
    }

    fn begin(&mut self, count: usize) -> Result<()> {
        for number in (self.last() + 1..).take(count) {
            let begin = if self.random.u8(..8) == 0 { "BEGIN IMMEDIATE" } else { BEGIN };
            let takes_turn = !self.pinned && self.random.u8(..12) == 0;
            let own = (number % AREAS) as usize;
            let is_free = |conn: usize| self.round.iter().all(|other| other.conn != conn);
            let conn = if takes_turn && is_free(BESIDE) { BESIDE } else { own };
            let statements = statements(self.setup.page_bytes, self.seed, number);
            let begun = self.connections[conn].execute_batch(begin);
            let (is_lost, since) = (begun.is_err(), self.history.len());
            self.round.push(Transaction {
                number,
                conn,
                begin,
                statements,
                ran: 0,
                is_lost,
                since,
                is_bound: false,
            });
            if let Err(error) = begun {
                self.overlaps.note(error).with_context(|| format!("{begin} of transaction {number}"))?;
            }
        }
        Ok(())
    }

    /// Chooses a transaction of this round that has statements left.
    fn next(&mut self) -> Option<usize> {
        let is_running = |transaction: &Transaction| {
            !transaction.is_lost && transaction.ran < transaction.statements.len()
        };
        let running: Vec<usize> = (0..self.round.len()).filter(|at| is_running(&self.round[*at])).collect();
        (!running.is_empty()).then(|| running[self.random.usize(..running.len())])
    }

    /// Runs a transaction's next statement.
    fn go_on(&mut self, at: usize) -> Result<()> {
        let transaction = &mut self.round[at];
        let conn = &self.connections[transaction.conn];
        let done = conn.execute_batch(&transaction.statements[transaction.ran]);
        transaction.ran += 1;
        let Err(error) = done else { return Ok(()) };
        let number = transaction.number;
        let rolled_back = self.lose(at);
        if !is_full(&error) {
            self.overlaps.note(error).with_context(|| format!("in transaction {number}"))?;
        }
        Ok(rolled_back?)
    }

    /// Rolls back a transaction of this round, and notes that it has to run again.
    fn lose(&mut self, at: usize) -> rusqlite::Result<()> {
        let transaction = &mut self.round[at];
        transaction.is_lost = true;
        roll_back(&self.connections[transaction.conn])
    }

    /// Lets a connection that is not in a transaction read everything, or make a checkpoint.
    fn look_or_checkpoint(&mut self) -> Result<()> {
        let idle = (0..self.connections.len()).find(|nth| self.connections[*nth].is_autocommit());
        let Some(conn) = idle.map(|nth| &self.connections[nth]) else { return Ok(()) };
        if self.random.bool() {
            transactions::digest(conn)?;
            return Ok(());
        }
        checkpoint(conn, CHECKPOINTS[self.random.usize(..CHECKPOINTS.len())])
    }

    /// Commits the first transaction of this round. Returns false if the log has no room for the transaction.
    fn commit(&mut self) -> Result<bool> {
        let number = self.round[0].number;
        let mut was_full = false;
        for _ in 0..ATTEMPTS {
            let was_lost = self.round[0].is_lost;
            match self.attempt() {
                Ok(transaction) => {
                    let is_merged = !was_lost && self.history.len() > transaction.since + 1;
                    self.overlaps.merged += u32::from(is_merged && transaction.is_validated());
                    return Ok(true);
                }
                Err(error) if is_full(&error) && was_full && number <= TABLES => {
                    return Err(error).with_context(|| format!("transaction {number}, after a checkpoint"));
                }
                Err(error) if is_full(&error) && was_full => return Ok(false),
                Err(error) if is_full(&error) => {
                    was_full = true;
                    self.make_room()?;
                }
                Err(error) => {
                    self.overlaps.note(error).with_context(|| format!("transaction {number}"))?;
                    // Another transaction of this round may hold the lock for writing, so roll back all
                    // others. If SQLite only reported that the database is busy, this transaction is still
                    // open and can now commit.
                    for other in 1..self.round.len() {
                        self.lose(other)?;
                    }
                }
            }
        }
        bail!("transaction {number} does not get through");
    }

    /// Runs the first transaction of this round again if it was rolled back, and commits it. If the commit
    /// fails and has no effect, the transaction stays in the round.
    fn attempt(&mut self) -> rusqlite::Result<Transaction> {
        if self.round[0].is_lost && !self.round[0].is_bound && self.random.bool() {
            // Like an application with a pool of connections, continue on another connection. First roll back
            // what is left of the transaction on its old connection.
            roll_back(&self.connections[self.round[0].conn])?;
            let is_idle = |conn: &usize| self.connections[*conn].is_autocommit();
            let idle: Vec<usize> = (0..BESIDE).filter(is_idle).collect();
            if !idle.is_empty() {
                self.round[0].conn = idle[self.random.usize(..idle.len())];
            }
        }
        let Transaction { number, conn, begin, statements, is_lost, .. } = &mut self.round[0];
        let (number, conn) = (*number, &self.connections[*conn]);
        if *is_lost {
            roll_back(conn)?;
            conn.execute_batch(begin)?;
            statements.iter().try_for_each(|statement| conn.execute_batch(statement))?;
            *is_lost = false;
        }
        self.recorder.note(Event::Begin { number });
        self.begun = self.begun.max(number);
        let committed = match conn.execute_batch("COMMIT") {
            Err(error) if is_busy(&error) || is_full(&error) => {
                self.round[0].is_lost = conn.is_autocommit();
                return Err(error);
            }
            done => done,
        };
        self.history.push(Committed { number, is_certain: committed.is_ok() });
        let transaction = self.round.remove(0);
        if let Err(error) = committed {
            let _ = roll_back(conn);
            return Err(error);
        }
        if self.setup.waits {
            self.recorder.note(Event::Acknowledged { number });
        }
        Ok(transaction)
    }

    fn make_room(&mut self) -> Result<()> {
        for at in 0..self.round.len() {
            self.lose(at)?;
        }
        self.unpin()?;
        checkpoint(&self.connections[BESIDE], "TRUNCATE")
    }

    fn roll_back_all(&mut self) -> Result<()> {
        for transaction in self.round.drain(..) {
            roll_back(&self.connections[transaction.conn])?;
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<()> {
        let conn = &self.connections[self.random.usize(..BESIDE)];
        checkpoint(conn, CHECKPOINTS[self.random.usize(..CHECKPOINTS.len())])
    }

    /// Runs a transaction that the application rolls back.
    fn roll_back(&mut self) -> Result<()> {
        let number = self.last() + 1;
        let conn = &self.connections[self.random.usize(..BESIDE)];
        conn.execute_batch("BEGIN")?;
        for statement in statements(self.setup.page_bytes, self.seed ^ 1, number) {
            match conn.execute_batch(&statement) {
                Err(error) if is_full(&error) => break,
                done => done.with_context(|| format!("{statement}, to be rolled back"))?,
            }
        }
        roll_back(conn)?;
        Ok(())
    }

    fn pin_or_release(&mut self) -> Result<()> {
        if self.pinned {
            return self.unpin();
        }
        self.connections[BESIDE].execute_batch("BEGIN; SELECT count(*) FROM hot")?;
        self.pinned = true;
        Ok(())
    }

    fn unpin(&mut self) -> Result<()> {
        if std::mem::take(&mut self.pinned) {
            roll_back(&self.connections[BESIDE])?;
        }
        Ok(())
    }

    /// Closes all connections, and opens them again. The last close lifts the guard and deletes the log.
    fn reopen(&mut self) -> Result<()> {
        self.close()?;
        self.recorder.note(Event::Acknowledged { number: self.last() });
        self.open()
    }

    fn replace(&mut self) -> Result<()> {
        let nth = self.random.usize(..BESIDE);
        let conn = self.connect(nth)?;
        let old = std::mem::replace(&mut self.connections[nth], conn);
        old.close().map_err(|(_, error)| error).context("cannot close")
    }

    fn vacuum(&mut self) -> Result<()> {
        self.unpin()?;
        match self.connections[self.random.usize(..BESIDE)].execute_batch("VACUUM") {
            Err(error) if !is_full(&error) && !is_busy(&error) => Err(error).context("VACUUM"),
            _ => Ok(()),
        }
    }

    /// After a failed step, continues each transaction of the round until it commits or gets an error.
    /// Removes a transaction from the round if its `COMMIT` may have had an effect.
    pub fn finish_round(&mut self) {
        while let Some(Transaction { number, .. }) = self.round.first() {
            let number = *number;
            while !self.round[0].is_lost && self.round[0].ran < self.round[0].statements.len() {
                // If a statement fails, `go_on` marks the transaction as lost, and the transaction runs
                // again.
                let _ = self.go_on(0);
            }
            for _ in 0..ATTEMPTS {
                match self.attempt() {
                    Err(error) if is_busy(&error) => (1..self.round.len()).for_each(|at| _ = self.lose(at)),
                    _ => break,
                }
            }
            if self.round.first().is_some_and(|first| first.number == number) {
                let transaction = self.round.remove(0);
                let _ = roll_back(&self.connections[transaction.conn]);
            }
        }
    }

    /// After the fault is removed, commits one more transaction on each connection. If a connection reports
    /// that the log has stopped (invariant 9), opens all connections again and commits on each. Returns
    /// whether that was necessary.
    ///
    /// # Errors
    /// An error if a connection still cannot commit.
    pub fn work_again(&mut self) -> Result<bool> {
        let is_complete = self.connections.len() == BESIDE + 1;
        let told = match is_complete.then(|| self.commit_on_each()) {
            Some(Ok(())) => return Ok(false),
            Some(Err(error)) if error.downcast_ref::<rusqlite::Error>().is_none() => return Err(error),
            told => told,
        };
        self.round.clear();
        self.connections.clear();
        self.pinned = false;
        let told = || format!("all connections were opened again, since {told:?}");
        self.open().and_then(|()| self.commit_on_each()).with_context(told)?;
        Ok(true)
    }

    fn commit_on_each(&mut self) -> Result<()> {
        self.pinned = false;
        self.connections.iter().try_for_each(|conn| roll_back(conn).context("ROLLBACK"))?;
        for conn in 0..self.connections.len() {
            let number = self.begun.max(FIRST_AFTER) + 1;
            let statements = statements(self.setup.page_bytes, self.seed, number);
            let (begin, since) = (BEGIN, self.history.len());
            self.round = vec![Transaction {
                number,
                conn,
                begin,
                statements,
                ran: 0,
                is_lost: true,
                since,
                is_bound: true,
            }];
            let done = self.commit().with_context(|| format!("connection {conn} does not work again"))?;
            anyhow::ensure!(done, "connection {conn} finds the log full after the fault");
        }
        Ok(())
    }
}

impl Transaction {
    /// Returns whether the transaction is validated when it commits.
    fn is_validated(&self) -> bool {
        self.conn < BESIDE && self.begin == BEGIN
    }
}

impl Overlaps {
    /// Counts the error if other transactions have caused it. Returns any other error.
    fn note(&mut self, error: rusqlite::Error) -> rusqlite::Result<()> {
        match error {
            error if is_overtaken(&error) => self.overtaken += 1,
            error if is_busy(&error) => self.refused += 1,
            error => return Err(error),
        }
        Ok(())
    }
}

fn is_overtaken(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| error.extended_code == ffi::SQLITE_BUSY_SNAPSHOT)
}
