//! What must be true of whatever a crash left, once the code that users run has recovered it.

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::event::Event;
use crate::setup::Setup;
use crate::sql;
use crate::stage::Stage;
use crate::transactions::{self, Reference};
use crate::workload::Bounds;

/// How thoroughly a state is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Recover, compare, check the database's structure.
    Once,
    /// The same; recover again, compare.
    Recover,
    /// The same, and close the last connection, which writes everything home.
    Close,
    /// The same, after another transaction has been committed; then read the file with stock SQLite.
    UseOn,
}

/// Recovers what is on a stage. Returns the number of the last transaction that is there.
///
/// # Errors
/// What is wrong, in words.
pub fn check(
    stage: &Stage,
    setup: &Setup,
    reference: &Reference,
    bounds: Bounds,
    depth: Depth,
) -> Result<u32, String> {
    let first = stage.connect(setup).map_err(|error| format!("cannot be opened: {error}"))?;
    // What is recovered stays in the log, for the second time.
    let _ = first.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
    let number = look(&first, reference, bounds)?;
    let sound: String = first
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .map_err(|error| format!("integrity_check: {error}"))?;
    if sound != "ok" {
        return Err(format!("integrity_check: {sound}"));
    }
    close(first)?;
    if depth == Depth::Once {
        return Ok(number);
    }
    let second = stage.connect(setup).map_err(|error| format!("cannot be opened again: {error}"))?;
    let _ = second.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, depth == Depth::Recover);
    let again = look(&second, reference, bounds)?;
    if again != number {
        return Err(format!("recovered {number} transactions, and then {again}"));
    }
    if depth != Depth::UseOn {
        return close(second).map(|()| number);
    }
    use_on(&second, setup, reference, number)?;
    if setup.keeps_its_log() {
        let drain = second.query_row("PRAGMA duralite_on_close=drain", [], |_| Ok(()));
        drain.map_err(|error| format!("cannot say that the log is not to be kept: {error}"))?;
    }
    close(second)?;
    let plain = Connection::open(stage.database()).map_err(|error| error.to_string())?;
    let digest = transactions::digest(&plain).map_err(|error| format!("stock SQLite: {error}"))?;
    if reference.after(number + 1) != Some(digest) {
        return Err(format!("stock SQLite does not find transaction {} after the last close", number + 1));
    }
    drop(plain);
    leftovers(stage)?;
    Ok(number)
}

/// Whatever a crash has left: after a further open and close there is no log and no memory of one, wherever it was.
fn leftovers(stage: &Stage) -> Result<(), String> {
    for dir in [stage.home(), stage.log_dir()] {
        let entries = std::fs::read_dir(dir).map_err(|error| error.to_string())?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let logs: Vec<_> = names.filter(|name| name.contains("-duralite")).collect();
        if !logs.is_empty() {
            return Err(format!("{} stays after the last close", logs.join(", ")));
        }
    }
    Ok(())
}

/// After every process has died: recovers, and commits on top of what it finds. Notes what is acknowledged.
///
/// # Errors
/// What is wrong, in words.
pub fn go_on(
    stage: &Stage,
    setup: &Setup,
    reference: &Reference,
    bounds: Bounds,
    note: &dyn Fn(Event),
) -> Result<(), String> {
    let conn = stage.connect(setup).map_err(|error| format!("cannot be opened: {error}"))?;
    let _ = conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
    let number = look(&conn, reference, bounds)?;
    note(Event::Begin { number: number + 1 });
    use_on(&conn, setup, reference, number)?;
    if setup.waits {
        note(Event::Acknowledged { number: number + 1 });
    }
    close(conn)
}

fn look(conn: &Connection, reference: &Reference, bounds: Bounds) -> Result<u32, String> {
    let digest = transactions::digest(conn).map_err(|error| format!("cannot be read: {error}"))?;
    let Bounds { acknowledged, begun } = bounds;
    match reference.number_of(digest) {
        None => {
            Err(format!("the content is that of no transaction (acknowledged {acknowledged}, begun {begun})"))
        }
        Some(number) if number < acknowledged => {
            Err(format!("transaction {acknowledged} was acknowledged, and only {number} are there"))
        }
        Some(number) if number > begun => Err(format!("transaction {number} is there, and was never begun")),
        Some(number) => Ok(number),
    }
}

/// The database goes on: the next transaction commits.
fn use_on(conn: &Connection, setup: &Setup, reference: &Reference, number: u32) -> Result<(), String> {
    let text = transactions::sql(reference.seed(), number + 1);
    // It may have been recovered from before it was in WAL mode.
    let _ = sql::use_mode(conn, &setup.journal_mode);
    let done = match sql::commit(conn, &text) {
        Err(error) if sql::is_full(&error) => {
            let emptied = sql::roll_back(conn).and_then(|()| sql::checkpoint(conn, "TRUNCATE"));
            emptied.map_err(|error| format!("the log is full: {error:#}"))?;
            sql::commit(conn, &text)
        }
        done => done,
    };
    done.map_err(|error| format!("cannot be written to: {error}"))?;
    let digest = transactions::digest(conn).map_err(|error| error.to_string())?;
    if reference.after(number + 1) == Some(digest) {
        Ok(())
    } else {
        Err(format!("transaction {} does not show after its commit", number + 1))
    }
}

fn close(conn: Connection) -> Result<(), String> {
    conn.close().map_err(|(_, error)| format!("cannot be closed: {error}"))
}
