//! Opens the database, does little, and closes it. The connection is often the first or the last one.

use std::time::Duration;

use anyhow::Result;

use super::Session;
use crate::{Phase, ledger};

pub(super) fn run(session: &mut Session<'_>) -> Result<()> {
    while !session.note.should_end()? {
        let conn = session.open()?;
        if session.rng.bool() {
            for _ in 0..session.rng.u32(1..4) {
                session.commit_one(&conn)?;
            }
        } else {
            session.note.phase(Phase::Reading)?;
            let total = session.patiently("SELECT", || ledger::total(&conn))?;
            session.notice_loss(&conn, total)?;
        }
        session.close(conn)?;
        if session.rng.u32(..4) == 0 {
            std::thread::sleep(Duration::from_micros(session.rng.u64(..3000)));
        }
    }
    Ok(())
}
