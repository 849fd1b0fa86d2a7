//! Makes checkpoints in every mode.

use std::time::Duration;

use anyhow::Result;

use super::Session;
use crate::Phase;

const MODES: [&str; 4] = ["PASSIVE", "FULL", "RESTART", "TRUNCATE"];

pub(super) fn run(session: &mut Session<'_>) -> Result<()> {
    let conn = session.open()?;
    while !session.note.should_end()? {
        session.note.phase(Phase::Checkpoint)?;
        let sql = format!("PRAGMA wal_checkpoint({})", MODES[session.rng.usize(..MODES.len())]);
        // The first column of the result is 1 if something blocked the checkpoint, such as another
        // checkpoint.
        session.patiently(&sql, || conn.query_row(&sql, [], |row| row.get::<_, i64>(0)))?;
        session.note.phase(Phase::Ready)?;
        std::thread::sleep(Duration::from_micros(session.rng.u64(..8000)));
    }
    session.close(conn)
}
