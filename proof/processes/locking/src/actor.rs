//! Runs the program of one process: its SQL statements. Records what SQLite has acknowledged to the process.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::SeqCst;

use rusqlite::{Connection, Error, OpenFlags, ffi};

use crate::board::board;
use crate::call::Call;
use crate::clock;
use crate::scenario::{Actor, Via};

/// The time for which SQLite's busy handler waits, in milliseconds of the process's own clock.
const BUSY_MS: u64 = 30;
/// How many times a process tries an operation.
const TRIES: u32 = 3;
/// `ROWS_BEFORE` is the largest number of rows that exist when a schedule begins. `ROWS` is the number of
/// rows that each process may insert.
const ROWS_BEFORE: usize = 4;
const ROWS: usize = 10;
/// The number of rows that a process may insert in its first life, before it is restarted.
const ROWS_OF_A_LIFE: usize = 5;

/// Returns the number of the first row of a process in a schedule.
pub fn first_row(process: usize) -> usize {
    ROWS_BEFORE + process * ROWS
}

/// Returns the number of the first row that a restarted process inserts. The rows of its first life may
/// already be in the database.
pub fn first_row_again(process: usize) -> usize {
    first_row(process) + ROWS_OF_A_LIFE
}

struct Run {
    process: usize,
    actor: Actor,
    connection: Option<Connection>,
    next_row: usize,
    /// The rows that the open transaction has inserted, as one bit for each row.
    pending: u64,
    /// The rows that had been acknowledged when the open transaction first read, as one bit for each row.
    began: Option<u64>,
}

/// Runs the program of a process in a schedule.
pub fn run(process: usize, actor: Actor, first_row: usize) {
    let mut run = Run { process, actor, connection: None, next_row: first_row, pending: 0, began: None };
    for (number, operation) in actor.program.iter().enumerate() {
        board().note(process, Call::Operation, number as i32, 0);
        clock::operation_begins(process);
        let code = run.operation_with_retries(operation);
        board().note(process, Call::Ended, number as i32, code);
        board().operation_ended(process);
    }
    // If the program does not close its connection, the process ends with an open connection, as if it were
    // killed.
    std::mem::forget(run.connection.take());
}

impl Run {
    fn operation_with_retries(&mut self, operation: &str) -> i32 {
        for tries in 1.. {
            let code = match self.operation(operation) {
                Ok(()) => ffi::SQLITE_OK,
                Err(error) => code_of(&error),
            };
            if code & 0xff == ffi::SQLITE_BUSY && tries < TRIES && !self.actor.is_auditor {
                clock::sleep(self.process, 1_000_000);
                continue;
            }
            if !self.is_expected(code) {
                board().finding(self.process, format_args!("`{operation}` ends with code {code}"));
            }
            return code;
        }
        unreachable!()
    }

    /// Returns whether a process may get this result code while other processes use the database.
    fn is_expected(&self, code: i32) -> bool {
        match code & 0xff {
            ffi::SQLITE_OK => true,
            _ if self.actor.is_auditor => false,
            ffi::SQLITE_BUSY => true,
            // SQLite returns this error if another process is stopped for a long time while it recovers the
            // wal-index.
            ffi::SQLITE_PROTOCOL => true,
            // The guard makes stock SQLite refuse the database.
            ffi::SQLITE_NOTADB if self.actor.via == Via::Stock => true,
            ffi::SQLITE_READONLY if self.actor.via == Via::Stock => true,
            ffi::SQLITE_READONLY | ffi::SQLITE_CANTOPEN => self.actor.read_only,
            _ => false,
        }
    }

    fn operation(&mut self, operation: &str) -> Result<(), Error> {
        match operation {
            "open" => self.open(),
            "close" => {
                if let Some(connection) = self.connection.take() {
                    connection.close().map_err(|(connection, error)| {
                        self.connection = Some(connection);
                        error
                    })?;
                }
                Ok(())
            }
            "yield" => {
                board().pause(self.process, Call::Sleep, 0);
                Ok(())
            }
            "nap" => {
                board().pause(self.process, Call::Nap, 0);
                Ok(())
            }
            "insert" => self.insert(),
            "read" => self.read(),
            sql => self.sql(sql),
        }
    }

    fn open(&mut self) -> Result<(), Error> {
        let mut uri = self.actor.uri();
        if self.actor.read_only {
            uri.push_str("&mode=ro");
        }
        let flags =
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(uri, flags)?;
        connection.busy_timeout(std::time::Duration::from_millis(BUSY_MS))?;
        self.connection = Some(connection);
        Ok(())
    }

    fn sql(&mut self, sql: &str) -> Result<(), Error> {
        // If the transaction could not begin, the process skips its COMMIT.
        let goes = |connection: &&Connection| sql != "COMMIT" || !connection.is_autocommit();
        let Some(connection) = self.connection.as_ref().filter(goes) else { return Ok(()) };
        let mut statement = connection.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            if sql == "PRAGMA integrity_check" && row.get::<_, String>(0)? != "ok" {
                let text: String = row.get(0)?;
                board().finding(self.process, format_args!("integrity_check: {text}"));
            }
        }
        drop(rows);
        drop(statement);
        if connection.is_autocommit() {
            if sql == "COMMIT" {
                board().acknowledged.fetch_or(self.pending, SeqCst);
            }
            self.pending = 0;
            self.began = None;
        }
        Ok(())
    }

    fn insert(&mut self) -> Result<(), Error> {
        let Some(connection) = &self.connection else { return Ok(()) };
        let row = self.next_row;
        let inserted = connection.execute("INSERT INTO t VALUES(?1, zeroblob(10))", [row as u32]);
        if inserted.is_err() && connection.is_autocommit() {
            self.pending = 0;
        }
        inserted?;
        self.next_row += 1;
        if connection.is_autocommit() {
            board().acknowledged.fetch_or(1 << row, SeqCst);
        } else {
            self.pending |= 1 << row;
        }
        Ok(())
    }

    /// Checks that the database has every row that was acknowledged before the transaction began.
    fn read(&mut self) -> Result<(), Error> {
        let Some(connection) = &self.connection else { return Ok(()) };
        let before = board().acknowledged.load(SeqCst);
        let before = self.began.unwrap_or(before) | self.pending;
        let mut statement = connection.prepare("SELECT v FROM t")?;
        let seen: Result<BTreeSet<u32>, Error> = statement.query_map([], |row| row.get(0))?.collect();
        let seen = seen?;
        if !connection.is_autocommit() && self.began.is_none() {
            self.began = Some(before);
        }
        let missing: Vec<u32> = (0..64).filter(|row| before >> row & 1 == 1 && !seen.contains(row)).collect();
        if !missing.is_empty() {
            board().finding(self.process, format_args!("acknowledged rows {missing:?} are not there"));
        }
        Ok(())
    }
}

/// Returns SQLite's extended result code; 1 for an error that does not come from SQLite.
fn code_of(error: &Error) -> i32 {
    match error {
        Error::SqliteFailure(failure, _) => failure.extended_code,
        Error::SqlInputError { error, .. } => error.extended_code,
        _ => ffi::SQLITE_ERROR,
    }
}
