//! Runs the program of one process of a race, and records in the ledger what its connection answers.

use std::time::Duration;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Error, OpenFlags, ffi};

use super::ledger::ledger;
use super::memory;
use super::mix::{FILL, Mix, ROWS};
use super::trap;
use crate::board::board;
use crate::call::{Call, Kind};
use crate::clock;
use crate::grain;
use crate::scenario::ENGINE;

/// How long SQLite's busy handler waits, by the process's own clock, which advances only in sleeps. In a
/// race, a waiting process gets a turn after each step of another process, or sooner. So it waits for the
/// whole time only if the lock that it wants never becomes free.
const BUSY: Duration = Duration::from_secs(12);

/// Returns the name of the engine that this exploration uses.
pub fn engine() -> &'static str {
    ENGINE.get().map_or("nvwal", String::as_str)
}

/// Opens the database through Duralite.
fn open(concurrent: &str) -> Connection {
    let here = std::env::current_dir().unwrap();
    let here = here.display();
    let media = match engine() {
        "waldio" => format!("log_dir={here}"),
        "scratchpad" => format!("scratchpad=emulate&home=emulate&nvram_dir={here}"),
        _ => format!("nvram=emulate&nvram_dir={here}"),
    };
    let uri = format!("file:db?vfs=top&journal={}&{media}&concurrent={concurrent}", engine());
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(uri, flags).unwrap();
    connection.busy_timeout(BUSY).unwrap();
    connection
}

/// Returns the statements of an operation.
pub fn statements(operation: &str) -> impl Iterator<Item = &str> {
    operation.split(';').map(str::trim)
}

/// Returns whether a statement only reads or changes rows. Its answer then depends only on rows.
pub fn is_about_rows(sql: &str) -> bool {
    !["BEGIN", "COMMIT", "PRAGMA"].iter().any(|word| sql.starts_with(word))
}

/// Runs a statement, and returns its answer as one line.
pub fn answer(connection: &Connection, sql: &str) -> Result<String, Error> {
    let mut statement = connection.prepare(sql)?;
    let columns = statement.column_count();
    let before = connection.total_changes();
    let mut rows = statement.query([])?;
    let mut text = String::new();
    while let Some(row) = rows.next()? {
        for column in 0..columns {
            match row.get_ref(column)? {
                ValueRef::Integer(number) => text += &number.to_string(),
                ValueRef::Text(bytes) => text += &String::from_utf8_lossy(bytes),
                other => text += &format!("{other:?}"),
            }
            text.push(' ');
        }
        text.push(';');
    }
    drop(rows);
    Ok(if columns > 0 { text } else { format!("changes {}", connection.total_changes() - before) })
}

/// Returns SQLite's extended result code; 1 for an error that does not come from SQLite.
fn code_of(error: &Error) -> i32 {
    match error {
        Error::SqliteFailure(failure, _) => failure.extended_code,
        Error::SqlInputError { error, .. } => error.extended_code,
        _ => ffi::SQLITE_ERROR,
    }
}

/// Runs a process of a race until its connection is closed.
pub fn run(process: usize, mix: &Mix) {
    let program = &mix.programs[process];
    let here = std::env::current_dir().unwrap();
    let _stops = memory::stop_at(process, &here);
    let connection = open(program.concurrent);
    // The first statement opens the log and maps the wal-index.
    let first = if process == 0 && !mix.has_new_log { FILL } else { "SELECT count(*) FROM sqlite_master" };
    for sql in std::iter::once(&first).chain(program.before) {
        answer(&connection, sql).unwrap();
    }
    board().barrier(process);
    grain::races(true);
    trap::begin(process);
    for (number, operations) in program.transactions.iter().enumerate() {
        transaction(process, &connection, number, operations);
    }
    trap::end();
    grain::races(false);
    board().barrier(process);
    look_at_all(process, &connection);
    close(process, connection);
}

fn transaction(process: usize, connection: &Connection, number: usize, operations: &[&str]) {
    let mut is_begun = false;
    for operation in operations {
        board().step(process, Call::Operation, Kind::None, i32::try_from(number).unwrap_or(0));
        grain::operation_begins();
        clock::operation_begins(process);
        if !std::mem::replace(&mut is_begun, true) {
            ledger().begins(process, number);
        }
        for sql in statements(operation) {
            if sql == "COMMIT" {
                ledger().commits(process);
            }
            match answer(connection, sql) {
                Ok(answer) if is_about_rows(sql) => ledger().answered(process, &answer),
                Ok(_) => {}
                Err(error) => return refused(process, connection, sql, &error),
            }
        }
    }
    ledger().committed(process);
}

fn refused(process: usize, connection: &Connection, sql: &str, error: &Error) {
    let code = code_of(error);
    match code & 0xff {
        ffi::SQLITE_BUSY if clock::has_waited(process) < BUSY / 2 => {}
        ffi::SQLITE_BUSY => {
            board().finding(process, format_args!("`{sql}` waits for nobody: {error}"));
        }
        _ => board().finding(process, format_args!("`{sql}` fails with {code}: {error}")),
    }
    if !connection.is_autocommit()
        && let Err(error) = answer(connection, "ROLLBACK")
    {
        board().finding(process, format_args!("ROLLBACK fails with {}: {error}", code_of(&error)));
    }
    ledger().refused(process, code);
}

/// Takes the WRITE lock, and records all rows that this process finds. By now every other process must have
/// released that lock.
fn look_at_all(process: usize, connection: &Connection) {
    clock::operation_begins(process);
    for sql in ["BEGIN IMMEDIATE", ROWS, "ROLLBACK"] {
        match answer(connection, sql) {
            Ok(answer) if sql == ROWS => ledger().finds(process, &answer),
            Ok(_) => {}
            Err(error) => {
                board().finding(process, format_args!("after the race `{sql}` fails: {error}"));
                return;
            }
        }
    }
}

fn check(process: usize, connection: &Connection, sql: &str, is_good: impl Fn(&str) -> bool) {
    match answer(connection, sql) {
        Ok(answer) if is_good(&answer) => {}
        Ok(answer) => board().finding(process, format_args!("after the race `{sql}` says {answer}")),
        Err(error) => board().finding(process, format_args!("after the race `{sql}` fails: {error}")),
    }
}

fn close(process: usize, connection: Connection) {
    if let Err((_, error)) = connection.close() {
        board().finding(process, format_args!("it cannot close: {error}"));
    }
}

/// Runs the process that checks the whole database. It starts when all other processes have ended.
pub fn audit(process: usize) {
    let connection = open("off");
    look_at_all(process, &connection);
    check(process, &connection, "PRAGMA integrity_check", |answer| answer == "ok ;");
    check(process, &connection, "PRAGMA wal_checkpoint(TRUNCATE)", |answer| answer.starts_with("0 "));
    check(process, &connection, "PRAGMA integrity_check", |answer| answer == "ok ;");
    close(process, connection);
}

/// Makes the database with which each schedule begins.
pub fn make(process: usize, setup: &str) {
    let connection = Connection::open("file:db?vfs=shim").unwrap();
    let made = connection.execute_batch(&format!("PRAGMA page_size=512; PRAGMA journal_mode=WAL; {setup}"));
    if let Err(error) = made {
        board().finding(process, format_args!("the race does not begin: {error}"));
    }
    close(process, connection);
}
