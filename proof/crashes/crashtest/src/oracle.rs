//! Checks the conditions that every crash state must meet once the code that users run has recovered it.

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::event::Event;
use crate::setup::Setup;
use crate::sql;
use crate::stage::Stage;
use crate::transactions::{self, Reference};
use crate::workload::Bounds;

/// The thoroughness with which a state is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Recover the database, compare its content with the reference, and check its structure.
    Once,
    /// Do the same as `Once`, then recover again and compare.
    Recover,
    /// Do the same as `Recover`, but let the last connection write everything into the database file when it
    /// closes.
    Close,
    /// Do the same as `Recover`, then commit another transaction, close everything, and read the database
    /// file with stock SQLite.
    UseOn,
}

/// Recovers the database from the crash state in the stage's directories, and checks it. Returns the number
/// of the last transaction that it contains.
///
/// # Errors
/// A text that says what is wrong.
pub fn check(
    stage: &Stage,
    setup: &Setup,
    reference: &Reference,
    bounds: Bounds,
    depth: Depth,
) -> Result<u32, String> {
    // With `Depth::Once`, the connection that recovers the state is concurrent if the setup says so. With
    // every other depth it is not concurrent. So the test covers recovery by both kinds of connections.
    let others = Setup { concurrent: false, ..setup.clone() };
    let recovers = if depth == Depth::Once { setup } else { &others };
    let first = stage.connect(recovers).map_err(|error| format!("cannot be opened: {error}"))?;
    // The close makes no checkpoint, so that the second recovery finds the same log.
    let _ = first.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
    let number = look(&first, reference, bounds)?;
    assert_sound(&first)?;
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
    close_for_good(second, stage, setup)?;
    let wanted = reference.after(number + 1);
    assert_plain(stage, wanted).map_err(|what| format!("transaction {}: {what}", number + 1))?;
    Ok(number)
}

/// Asks SQLite whether pages, indexes and the list of free pages fit together.
///
/// # Errors
/// An error of SQLite.
pub fn assert_sound(conn: &Connection) -> Result<(), String> {
    let sound: rusqlite::Result<String> = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0));
    match sound {
        Ok(sound) if sound == "ok" => Ok(()),
        Ok(sound) => Err(format!("integrity_check: {sound}")),
        Err(error) => Err(format!("integrity_check: {error}")),
    }
}

/// Checks that the last close of a database leaves no log. If the setup tells Duralite to keep the log, this
/// function first asks Duralite to empty and delete the log. Then it closes the last connection.
///
/// # Errors
/// A text that says what is wrong.
pub fn close_for_good(conn: Connection, stage: &Stage, setup: &Setup) -> Result<(), String> {
    if setup.keeps_its_log() {
        let drain = conn.query_row("PRAGMA duralite_on_close=drain", [], |_| Ok(()));
        drain.map_err(|error| format!("cannot say that the log is not to be kept: {error}"))?;
    }
    close(conn)?;
    leftovers(stage)
}

/// Compares the content of a closed database, as stock SQLite reads it, with a digest.
///
/// # Errors
/// A text that says what is wrong.
pub fn assert_plain(stage: &Stage, wanted: Option<u64>) -> Result<(), String> {
    let plain = Connection::open(stage.database()).map_err(|error| error.to_string())?;
    let digest = transactions::digest(&plain).map_err(|error| format!("stock SQLite: {error}"))?;
    if wanted == Some(digest) {
        Ok(())
    } else {
        Err("stock SQLite finds another content after the last close".into())
    }
}

/// Checks that the last close has left no log and no shared memory of a log in either directory, even if an
/// earlier crash left some there.
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

/// Recovers the database after every process has died, commits more transactions, and records which of them
/// are acknowledged.
///
/// # Errors
/// A text that says what is wrong.
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

/// Commits the next transaction.
fn use_on(conn: &Connection, setup: &Setup, reference: &Reference, number: u32) -> Result<(), String> {
    let text = reference.text(number + 1).ok_or("the reference ends too early")?;
    // The recovered state may be from before the database was in WAL mode.
    let _ = sql::use_mode(conn, &setup.journal_mode);
    let commit = if setup.concurrent { sql::commit_beside } else { sql::commit };
    let done = match commit(conn, text) {
        Err(error) if sql::is_full(&error) => {
            let emptied = sql::roll_back(conn)
                .map_err(anyhow::Error::from)
                .and_then(|()| sql::checkpoint(conn, "TRUNCATE"));
            emptied.map_err(|error| format!("the log is full: {error:#}"))?;
            commit(conn, text)
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

/// Closes a connection.
///
/// # Errors
/// An error of SQLite.
pub fn close(conn: Connection) -> Result<(), String> {
    conn.close().map_err(|(_, error)| format!("cannot be closed: {error}"))
}
