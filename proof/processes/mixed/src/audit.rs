//! Checks the databases after all processes have ended.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use duralite_testkit::register;
use rusqlite::{Connection, ErrorCode};

use crate::acks::Acks;
use crate::bank::{SCHEMAS, View, create as fill};
use crate::mind::Mind;
use crate::site::Paths;
use crate::{Plan, Side};

/// How long killed processes may still hold their locks.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes both databases with stock SQLite.
pub(crate) fn create(plan: &Plan, paths: &Paths) -> Result<()> {
    for database in 0..SCHEMAS.len() {
        let conn = Connection::open(paths.uri(plan, Side::Stock, database, ""))?;
        conn.execute_batch(&format!("PRAGMA page_size={}; PRAGMA synchronous=OFF", plan.page_bytes))?;
        fill(&conn)?;
        if !plan.seed.is_multiple_of(3) {
            conn.query_row("PRAGMA journal_mode=WAL", [], |_| Ok(()))?;
        }
    }
    Ok(())
}

/// Checks both databases through one side's VFS, while no other process uses them.
pub(crate) fn audit(plan: &Plan, paths: &Paths, side: Side) -> Result<()> {
    if side == Side::Ours {
        register();
    }
    for (database, name) in SCHEMAS.iter().enumerate() {
        let conn = Connection::open(paths.uri(plan, side, database, "&mode=rw"))?;
        conn.busy_timeout(PATIENCE)?;
        let checked = check(&conn, paths, database);
        if checked.is_err() {
            // Leave the connection open, so that the files stay unchanged.
            std::mem::forget(conn);
        } else {
            conn.close().map_err(|(_, error)| error).context("closing")?;
        }
        checked.with_context(|| format!("audit by {} of {name}", side.name()))?;
    }
    Ok(())
}

fn check(conn: &Connection, paths: &Paths, database: usize) -> Result<()> {
    let start = Instant::now();
    let view = loop {
        // The audit opens one database at a time, as its connection's main database.
        match View::of_main(conn) {
            Err(error)
                if start.elapsed() < PATIENCE
                    && matches!(
                        error.sqlite_error_code(),
                        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
                    ) =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            result => break result.context("reading")?,
        }
    };
    let mut mind = Mind::new(0, Acks::open(&paths.acks())?);
    let floors = mind.floors()?;
    mind.compare(database, &view, &floors)?;
    no_more_than_tried(&view, &floors, database)?;
    let sound: String =
        conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).context("integrity_check")?;
    ensure!(sound == "ok", "integrity_check: {sound}");
    Ok(())
}

/// Checks that no writer has more commits than it can have made. A writer begins a commit only after the
/// previous one has failed, or after it has recorded the acknowledgement of the previous one. So it can be at
/// most one commit ahead of its last recorded acknowledgement.
fn no_more_than_tried(view: &View, floors: &HashMap<(usize, i64), i64>, database: usize) -> Result<()> {
    for (writer, found) in &view.newest {
        let acknowledged = floors.get(&(database, *writer)).copied().unwrap_or(0);
        if *found > acknowledged + 1 {
            bail!("writer {writer} has {found} commits, and {acknowledged} were acknowledged");
        }
    }
    Ok(())
}
