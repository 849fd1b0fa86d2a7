//! The child process, which inserts row after row. Its parent traces it, or kills it in the middle.

use std::io::{Read, Write, stdin, stdout};
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use rusqlite::Connection;

use crate::check::examine;
use crate::modes;
use crate::rows::{self, Row};
use crate::stock::load_duralite;

/// The name of the hidden subcommand.
pub(crate) const NAME: &str = "insert";

/// The first word of the line in which a resumed process reports what it found. The number of rows and the result of
/// the integrity check follow.
pub(crate) const FOUND: &str = "found ";

#[derive(Args)]
pub(crate) struct Options {
    mode: String,
    database: PathBuf,
    /// Where emulated memory is
    pool: PathBuf,
    rows: u32,
    /// Report the rows that exist, and insert the rest
    #[arg(long)]
    resume: bool,
    /// Acknowledge nothing and make no checkpoints, so that nothing but commits is counted; close the database
    #[arg(long)]
    traced: bool,
}

/// Inserts rows, and prints the number of each row after its commit has returned. After the last row, waits
/// to be killed, with the database open.
///
/// # Errors
/// An error of SQLite, or of writing to standard output when no process reads it any more.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mode = modes::find(&options.mode)?;
    if mode.settings.is_some() {
        load_duralite()?;
    }
    let rows = rows::read(Some(options.rows));
    let conn = mode.open(&options.database, &options.pool, !options.traced)?;
    let mut first = 0;
    if options.resume {
        let found = examine(&conn, &rows)?;
        first = found.rows.min(rows.len());
        found.expect_at_least(first)?;
        say(&format!("{FOUND}{} {}", found.rows, found.integrity))?;
    }
    insert(&conn, &rows[first..], |row| {
        if !options.traced {
            say(&row.line.to_string())?;
        }
        Ok(true)
    })?;
    if !options.traced {
        // The parent is about to kill this process. If the parent ends without doing so, standard input ends, and this
        // process exits.
        stdin().read_to_end(&mut Vec::new())?;
    }
    Ok(())
}

/// Inserts each row in a transaction of its own, and calls `committed` after each. Stops when `committed` returns false.
/// Returns the number of inserted rows.
///
/// # Errors
/// An error of SQLite or of `committed`.
pub(crate) fn insert(
    conn: &Connection,
    rows: &[Row],
    mut committed: impl FnMut(&Row) -> Result<bool>,
) -> Result<usize> {
    let mut statement = conn.prepare("INSERT INTO characters VALUES (?, ?, ?)")?;
    for (before, row) in rows.iter().enumerate() {
        statement.execute((row.line, &row.code, &row.name))?;
        if !committed(row)? {
            return Ok(before + 1);
        }
    }
    Ok(rows.len())
}

/// Prints a line and flushes it.
fn say(line: &str) -> Result<()> {
    let mut out = stdout().lock();
    out.write_all(format!("{line}\n").as_bytes())?;
    Ok(out.flush()?)
}
