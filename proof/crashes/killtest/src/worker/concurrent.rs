//! A process that commits the transactions of its lane, one after the other, concurrently with other
//! processes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rusqlite::Connection;

use super::Session;
use super::session::{has_no_room, is_busy};
use crate::lanes::{self, LANES, LaneAcks};
use crate::{Acknowledge, Phase};

/// After this many conflicts, a transaction takes the WRITE lock when it begins.
const CONFLICTS: u32 = 5;

/// The lane of a process, and the transactions in it that the process has acknowledged.
struct Lane {
    number: i64,
    acks: LaneAcks,
    acknowledged: i64,
}

pub(super) fn run(session: &mut Session<'_>) -> Result<()> {
    let path = &session.orders.lane_acks;
    let acks = LaneAcks::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let number = i64::try_from(session.orders.slot)? % LANES;
    let mut lane = Lane { number, acks, acknowledged: 0 };
    let conn = session.open_with("&concurrent=on")?;
    while !session.note.should_end()? {
        lane.commit_one(session, &conn)?;
        match session.rng.u32(..40) {
            0 => lane.roll_back(session, &conn)?,
            1..8 => std::thread::sleep(Duration::from_micros(session.rng.u64(..1000))),
            _ => {}
        }
    }
    session.close(conn)
}

impl Lane {
    /// Commits the lane's next transaction, and acknowledges it. A transaction that was overtaken runs again.
    fn commit_one(&mut self, session: &mut Session<'_>, conn: &Connection) -> Result<()> {
        let (start, limit) = (Instant::now(), session.orders.busy);
        for conflicts in 0.. {
            let begin = if conflicts >= CONFLICTS { "BEGIN IMMEDIATE" } else { "BEGIN" };
            let Err(error) = self.attempt(session, conn, begin) else { break };
            let is_busy = error.downcast_ref().is_some_and(is_busy);
            if !is_busy && !has_no_room(&error) {
                return Err(error);
            }
            if start.elapsed() >= limit {
                let waited = start.elapsed().as_millis();
                bail!("starvation: no transaction got through in {waited} ms: {error:#}");
            }
            if !conn.is_autocommit() {
                conn.execute_batch("ROLLBACK").context("ROLLBACK")?;
            }
            std::thread::sleep(Duration::from_micros(session.rng.u64(..500)));
        }
        session.note.phase(Phase::Ready)
    }

    fn attempt(&mut self, session: &mut Session<'_>, conn: &Connection, begin: &str) -> Result<()> {
        let m = self.start(session, conn, begin)?;
        if session.rng.u32(..4) == 0 {
            // Give other processes time to commit.
            std::thread::sleep(Duration::from_micros(session.rng.u64(..3000)));
        }
        if session.orders.acknowledge == Acknowledge::BeforeCommit {
            self.acks.record([self.number, m])?;
        }
        session.note.phase(Phase::Commit)?;
        conn.execute_batch("COMMIT").context("COMMIT")?;
        if session.orders.acknowledge == Acknowledge::AfterCommit {
            self.acks.record([self.number, m])?;
        }
        self.acknowledged = m;
        Ok(())
    }

    /// Begins the lane's next transaction. Returns its number.
    fn start(&self, session: &Session<'_>, conn: &Connection, begin: &str) -> Result<i64> {
        session.note.phase(Phase::Begin)?;
        conn.execute_batch(begin).context("BEGIN")?;
        session.note.phase(Phase::Changing)?;
        let (lane, mine) = (self.number, self.acknowledged);
        let total = lanes::total(conn, lane)?;
        ensure!(
            total >= mine,
            "lost: lane {lane} has {total} transactions, and {mine} was acknowledged here"
        );
        lanes::change(conn, lane, total + 1, session.id())?;
        Ok(total + 1)
    }

    /// Makes changes that must never be visible, and rolls them back.
    fn roll_back(&self, session: &Session<'_>, conn: &Connection) -> Result<()> {
        match self.start(session, conn, "BEGIN") {
            Err(error) if error.downcast_ref().is_some_and(is_busy) || has_no_room(&error) => {}
            done => _ = done?,
        }
        session.note.phase(Phase::Housekeeping)?;
        if !conn.is_autocommit() {
            conn.execute_batch("ROLLBACK").context("ROLLBACK")?;
        }
        session.note.phase(Phase::Ready)
    }
}
