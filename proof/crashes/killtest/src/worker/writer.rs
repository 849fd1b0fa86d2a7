//! Commits transactions, one after the other.

use std::time::Duration;

use anyhow::Result;

use super::Session;
use crate::Phase;

pub(super) fn run(session: &mut Session<'_>) -> Result<()> {
    let conn = session.open()?;
    while !session.note.should_end()? {
        session.commit_one(&conn)?;
        match session.rng.u32(..4000) {
            0 => {
                session.note.phase(Phase::Housekeeping)?;
                session.when_there_is_room(&conn, |session| {
                    session.patiently("VACUUM", || conn.execute_batch("VACUUM"))
                })?;
            }
            1..20 => {
                session.note.phase(Phase::Housekeeping)?;
                let vacuum = || conn.execute_batch("PRAGMA incremental_vacuum(5)");
                session
                    .when_there_is_room(&conn, |session| session.patiently("incremental_vacuum", vacuum))?;
            }
            20..120 => session.roll_back(&conn)?,
            // During the pause, other writers commit. So the number of transactions in a group
            // varies.
            120..1200 => std::thread::sleep(Duration::from_micros(session.rng.u64(..400))),
            _ => {}
        }
    }
    session.close(conn)
}
