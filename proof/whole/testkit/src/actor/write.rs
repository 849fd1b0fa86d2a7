//! Commits one row after another, and records each acknowledged row in a file.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

use duralite_testkit::{Ledger, connect};
use rusqlite::Connection;

fn open(uri: &str) -> Connection {
    let conn = connect(uri).unwrap();
    conn.busy_timeout(Duration::from_secs(10)).unwrap();
    conn.execute_batch("PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=40; PRAGMA cache_size=10;")
        .unwrap();
    conn
}

/// Runs until the process is killed. Closes and reopens the database after every `reopen_every` rows, unless
/// `reopen_every` is 0.
pub fn run(uri: &str, acknowledgements: &str, reopen_every: i64) {
    let mut acknowledged = OpenOptions::new().append(true).create(true).open(acknowledgements).unwrap();
    let mut conn = open(uri);
    let ledger = Ledger::prepare(&conn).unwrap();
    let mut row = ledger.verify(&conn);
    // A row that is in the database now must stay there. The process that inserted it may have been killed
    // before it recorded the row in the file. So this process records the row.
    acknowledged.write_all(&row.to_le_bytes()).unwrap();
    println!("ready");
    std::io::stdout().flush().unwrap();
    loop {
        row += 1;
        ledger.append(&conn, row).unwrap();
        acknowledged.write_all(&row.to_le_bytes()).unwrap();
        if reopen_every > 0 && row % reopen_every == 0 {
            conn.close().unwrap();
            conn = open(uri);
        }
    }
}
