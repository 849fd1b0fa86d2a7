//! Reports on standard error: failures when they happen, and at the end of the process what served its
//! databases.

use std::ffi::c_int;
use std::io::Write as _;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::library;
use crate::orders::orders;

/// SQLite's code of the last open that failed; 0 if none has failed.
static FAILED: AtomicI32 = AtomicI32::new(0);

/// Notes that an open has failed with this code of SQLite.
pub fn note_failure(code: c_int) {
    FAILED.store(code, Ordering::Relaxed);
}

/// Prints a line, in one write. Ignores errors, since standard error may be closed.
pub fn say(line: &str) {
    let _ = std::io::stderr().write_all(format!("duralite: {line}\n").as_bytes());
}

/// Prints a line for each database. A process that has opened no database prints a line that says so, if
/// `duralite run` has started it directly. The children of that process print nothing if they have opened no
/// database.
pub fn at_exit() {
    let orders = orders();
    if !orders.are_given || orders.quiet {
        return;
    }
    let account = library::if_loaded().map(|library| library::said(library.account)).unwrap_or_default();
    account.lines().for_each(say);
    if !orders.wal && account.contains(": journal_mode is not wal") {
        say("Duralite serves only databases in WAL mode: use `duralite enable DB`, or run with --wal");
    }
    if !account.is_empty() {
        return;
    }
    if orders.pid == Some(std::process::id()) {
        let failed = FAILED.load(Ordering::Relaxed);
        if failed != 0 {
            let why =
                library::if_loaded().map(|library| library::said(library.last_error)).unwrap_or_default();
            let why = if why.is_empty() { format!("SQLite's error {failed}") } else { why };
            say(&format!("this program could open no database: {why}"));
            return;
        }
        say(
            "this program opened no database file through a SQLite that can be reached (one that it links dynamically, \
             or exports); its child processes report on their own databases",
        );
    }
}
