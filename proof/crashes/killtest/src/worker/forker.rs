//! Forks with its connection open, even in the middle of a transaction. The child opens its own connection
//! and commits. Whatever the child does with the inherited connection must not affect the parent (invariant
//! 14).

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use duralite_testkit::{Ended, fork};
use rustix::process::{Signal, getpid, kill_process};

use super::Session;
use super::session::{self, Kept, has_no_room};
use crate::{Phase, ledger};

/// What a child does with the connection that it inherits.
#[derive(Debug, Clone, Copy)]
enum Inherited {
    Ignored,
    Used,
    ClosedFirst,
    ClosedLast,
    RolledBack,
}

/// The way in which a child ends.
#[derive(Debug, Clone, Copy)]
enum End {
    Closing,
    WithoutClosing,
    Killed,
}

const INHERITED: [Inherited; 6] = [
    Inherited::Ignored,
    Inherited::Ignored,
    Inherited::Used,
    Inherited::ClosedFirst,
    Inherited::ClosedLast,
    Inherited::RolledBack,
];
const ENDS: [End; 4] = [End::Closing, End::Closing, End::WithoutClosing, End::Killed];
/// The time after which a parent checks on its child again.
const GLANCE: Duration = Duration::from_micros(300);

pub(super) fn run(session: &mut Session<'_>) -> Result<()> {
    let mut children = 0;
    while !session.note.should_end()? {
        let mut conn = Some(session.open()?);
        for _ in 0..session.rng.u32(1..6) {
            children += 1;
            generation(session, &mut conn, children)?;
            if session.note.should_end()? {
                break;
            }
        }
        if let Some(conn) = conn.take() {
            session.close(conn)?;
        }
    }
    Ok(())
}

/// Forks once, and waits for the child to end.
fn generation(session: &mut Session<'_>, conn: &mut Option<Kept>, number: u64) -> Result<()> {
    let Some(own) = conn.as_ref() else { bail!("there is no connection") };
    for _ in 0..session.rng.u32(..3) {
        session.commit_one(own)?;
    }
    // The parent sometimes forks in the middle of a transaction. The child must not end that transaction.
    let begun = if session.rng.u32(..4) == 0 {
        Some(session.when_there_is_room(own, |session| session.start(own))?)
    } else {
        None
    };
    let seed = session.rng.u64(..);
    session.note.phase(Phase::Forking)?;
    let forked = fork(|| match child(session, conn, number, seed) {
        Ok(()) => true,
        Err(error) => {
            eprintln!("failure: child {number} of forker {}: {error:#}", session.id() & 0xffff_ffff);
            false
        }
    });
    let Some(own) = conn.as_ref() else { bail!("there is no connection") };
    match begun.map(|n| session.finish(own, n)) {
        // The log has become full since the transaction began.
        Some(Err(error)) if has_no_room(&error) => {
            if !own.is_autocommit() {
                own.execute_batch("ROLLBACK").context("ROLLBACK")?;
            }
        }
        finished => finished.unwrap_or(Ok(()))?,
    }
    let mut kill_after = (session.rng.u32(..4) == 0).then(|| session.rng.u32(..40));
    loop {
        if let Some(ended) = forked.try_wait() {
            let fine = matches!(ended, Ended::Well | Ended::Killed(9));
            ensure!(fine, "child {number} ended: {ended:?}");
            return session.note.phase(Phase::Ready);
        }
        match &mut kill_after {
            Some(0) => forked.kill(),
            Some(left) => *left -= 1,
            None => {}
        }
        if session.rng.u32(..3) == 0 {
            session.commit_one(own)?;
        } else {
            std::thread::sleep(GLANCE);
        }
        // While the parent waits for its child, this note counts as progress of the parent. Nothing checks
        // the child's progress except the child itself.
        session.note.phase(Phase::Forking)?;
    }
}

fn child(session: &mut Session<'_>, conn: &mut Option<Kept>, number: u64, seed: u64) -> Result<()> {
    session.become_child(number, seed);
    let inherited = INHERITED[session.rng.usize(..INHERITED.len())];
    let end = ENDS[session.rng.usize(..ENDS.len())];
    match (inherited, conn.as_ref()) {
        (Inherited::Used, Some(conn)) => {
            let answer = ledger::total(conn);
            // In an open transaction SQLite may answer from a page that it has already cached.
            let allowed = !conn.is_autocommit() || answer.is_err();
            ensure!(allowed, "an inherited connection answers {answer:?}");
            let written = conn.execute_batch("BEGIN IMMEDIATE; UPDATE counter SET total = -1; COMMIT");
            ensure!(written.is_err(), "an inherited connection commits");
        }
        (Inherited::RolledBack, Some(conn)) => drop(conn.execute_batch("ROLLBACK")),
        (Inherited::ClosedFirst, _) => close_inherited(conn),
        _ => {}
    }
    let own = session.open()?;
    for _ in 0..session.rng.u32(..5) {
        session.commit_one(&own)?;
    }
    let total = session.patiently("SELECT", || ledger::total(&own))?;
    session.notice_loss(&own, total)?;
    if matches!(inherited, Inherited::ClosedLast) {
        close_inherited(conn);
        // The child's own connection still works.
        session.commit_one(&own)?;
    }
    match end {
        End::Closing => session.close(own),
        End::WithoutClosing => Ok(()),
        End::Killed => Ok(kill_process(getpid(), Signal::KILL)?),
    }
}

/// Closes the inherited connection. Ignores errors: whatever happens, the parent must not notice the close.
fn close_inherited(conn: &mut Option<Kept>) {
    if let Some(conn) = conn.take() {
        let _ = session::close(conn);
    }
}
