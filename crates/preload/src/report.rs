//! What a process says on standard error: at its end what became of its databases, and what failed before.

use std::io::Write as _;

use crate::library;
use crate::orders::orders;

/// Says a line, in one write; standard error may be closed.
pub fn say(line: &str) {
    let _ = std::io::stderr().write_all(format!("duralite: {line}\n").as_bytes());
}

/// A line for each database. Children that have opened none say nothing; the program that was asked for says that it
/// has not.
pub fn at_exit() {
    let orders = orders();
    if !orders.are_given || orders.quiet {
        return;
    }
    let account = library::if_loaded().map(|library| library::said(library.account)).unwrap_or_default();
    account.lines().for_each(say);
    if !orders.wal && account.contains(": journal_mode is not wal") {
        say("only databases in WAL mode are served: `duralite enable DB`, or run with --wal");
    }
    if !account.is_empty() {
        return;
    }
    if orders.pid == Some(std::process::id()) {
        say(
            "this program opened no database file through a SQLite that can be reached (one that it links dynamically, \
             or exports); what its children did, they say themselves",
        );
    }
}
