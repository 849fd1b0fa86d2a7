//! Saves only the database file, if nothing of the log can be read.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use duralite_cli::output::{print_json, print_text};
use duralite_wal::engine::home::DatabaseAt;
use duralite_wal::engine::salvage;
use duralite_wal::{LogError, placement};
use serde_json::json;

use super::check::check;
use duralite_cli::progress::{self, HowFar};

/// The exit status if nothing of the log can be read.
const NOTHING_READ: u8 = 3;

/// Copies the database file, and leaves the guard out of the copy's header.
pub(super) fn save(
    (database, log): (&Path, &Path),
    out: &Path,
    error: LogError,
    as_json: bool,
) -> Result<ExitCode> {
    let file_alone = DatabaseAt::new(database);
    let file = salvage::create(out)?;
    let written =
        progress::with("writing", HowFar::default, || salvage::write_file_alone(&file_alone, (&file, out)));
    if written.is_err() {
        // This command has just created the file, and nothing in it is complete, so the command removes the file.
        drop(std::fs::remove_file(out));
    }
    let db_pages = written?;
    placement::sync_names(&std::path::absolute(out)?)?;
    let integrity = check(out)?;
    if as_json {
        print_json(&json!({
            "database": database.display().to_string(),
            "log": log.display().to_string(),
            "out": out.display().to_string(),
            "damage": { "what": error.to_string() },
            "transactions": null,
            "contents": "database file alone",
            "pages": db_pages,
            "integrity_check": integrity,
        }))?;
    } else {
        let (database, log, out) = (database.display(), log.display(), out.display());
        let said =
            integrity.as_deref().unwrap_or("sqlite3 is not on PATH; run `PRAGMA integrity_check` yourself");
        print_text(&format!(
            "nothing can be read of the log {log}: {error}\n\
             missing: every commit since the last checkpoint; how many, when, and of which tables is \
             unknown\n\
             {out}: the database file alone, {db_pages} pages, as its last checkpoint left it, if that \
             checkpoint was complete\n\
             integrity_check of {out}: {said}\n\
             {database} and its log were not changed\n"
        ))?;
    }
    Ok(ExitCode::from(NOTHING_READ))
}
