//! Reads the newest rows, and now and then all of them. The number of transactions must never become smaller.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rusqlite::Connection;

use super::Session;
use crate::{Phase, ledger};

/// The number of rows that the reader reads at a time.
const NEWEST: i64 = 100;

pub(super) fn run(session: &mut Session<'_>) -> Result<()> {
    let conn = session.open()?;
    read(session, &conn, u32::MAX)?;
    session.close(conn)
}

/// Opens a read-only connection, reads a few times and closes it. Repeats this until it is asked to end.
pub(super) fn look_on(session: &mut Session<'_>) -> Result<()> {
    while !session.note.should_end()? {
        let conn = session.open_with("&mode=ro")?;
        let times = session.rng.u32(1..20);
        read(session, &conn, times)?;
        session.close(conn)?;
    }
    Ok(())
}

fn read(session: &mut Session<'_>, conn: &Connection, times: u32) -> Result<()> {
    let mut last = 0;
    for _ in 0..times {
        if session.note.should_end()? {
            break;
        }
        session.note.phase(Phase::Reading)?;
        let total = session.patiently("BEGIN", || {
            if conn.is_autocommit() {
                conn.execute_batch("BEGIN")?;
            }
            ledger::total(conn)
        })?;
        ensure!(total >= last, "lost: {total} transactions are there, and there were {last}");
        last = total;
        if session.rng.u32(..50) == 0 {
            ledger::verify_all(conn, total, |_| None).context("a reader's check")?;
        } else {
            ledger::verify_rows(conn, total - NEWEST, total, |_| None).context("a reader's check")?;
        }
        if session.rng.u32(..4) == 0 {
            std::thread::sleep(Duration::from_micros(session.rng.u64(..5000)));
        }
        // The transaction must still see the same snapshot.
        let again = ledger::total(conn)?;
        ensure!(again == total, "a snapshot changed from {total} to {again} transactions");
        conn.execute_batch("COMMIT").context("COMMIT")?;
        session.note.phase(Phase::Ready)?;
        std::thread::sleep(Duration::from_micros(session.rng.u64(..2000)));
    }
    Ok(())
}

/// Stays connected and does nothing.
pub(super) fn keep(session: &mut Session<'_>) -> Result<()> {
    let conn = session.open()?;
    while !session.note.should_end()? {
        session.note.phase(Phase::Ready)?;
        std::thread::sleep(Duration::from_millis(5));
    }
    session.close(conn)
}
