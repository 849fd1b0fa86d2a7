//! `duralite backup`: copies a database into one ordinary SQLite file, even while programs use the database.
//!
//! SQLite's backup API reads through a connection on Duralite's VFS. So the copy has every commit, even a commit that
//! is only in the log. The command writes the copy under a temporary name. It renames the copy to OUT once all pages
//! are written and synced, and then syncs the directory. If the backup fails or is stopped before that, OUT does not
//! exist.

use std::cmp::Ordering::{Greater, Less};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use duralite_cli::output::{print_json, print_text};
use duralite_cli::progress::{self, HowFar};
use duralite_format::guard::DatabaseHeader;
use duralite_wal::log::offline;
use duralite_wal::placement;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use serde_json::json;
use tempfile::NamedTempFile;

use crate::launch::Settings;
use duralite_cli::locate;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    settings: Settings,
    /// The database
    database: PathBuf,
    /// The copy: a file that does not exist yet
    out: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The number of pages that one backup step copies. The command reports progress after each step.
const STEP: i32 = 256;
/// The pause between two steps if the database has a rollback journal. A writer has to wait while the backup holds its
/// read lock, so it can write only during this pause.
const TURN: Duration = Duration::from_millis(5);
/// If the database has a rollback journal, SQLite starts the copy again from the first page when another connection has
/// written. If the copy has started more often than this, the command copies all pages in one step.
const BEGINNINGS: u32 = 4;
/// How long the backup waits for a lock that another process holds.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the command waits for a lock when it first tries to open the database. This first try shows whether a
/// program without Duralite has the database open.
const SHORTLY: Duration = Duration::from_millis(100);

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let Arguments { database, out, .. } = arguments;
    check(database, out)?;
    duralite::register().map_err(|error| anyhow!("{error}"))?;
    let source = open(database, &arguments.settings)?;
    let parent = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let temporary = tempfile::Builder::new()
        .prefix(".duralite-backup-")
        .tempfile_in(parent)
        .with_context(|| format!("make a file in {}", parent.display()))?;
    let pages = copy(&source, temporary.path()).map_err(|error| reason(error, database, out))?;
    source.close().map_err(|(_, error)| reason(error.into(), database, out))?;
    publish(temporary, database, out)?;
    if arguments.json {
        print_json(&json!({ "outcome": "backed up", "backup": out.display().to_string(), "pages": pages }))?;
    } else {
        print_text(&format!("{} is one ordinary SQLite file of {pages} pages\n", out.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses a file that is not a database, and refuses to replace an OUT that exists.
fn check(database: &Path, out: &Path) -> Result<()> {
    if out.symlink_metadata().is_ok() {
        bail!(
            "{} exists already and was not changed; name another file, or move that one away",
            out.display()
        );
    }
    match offline::inspect(database)? {
        header @ (DatabaseHeader::NotSqlite | DatabaseHeader::Damaged) => {
            bail!("{} is {}", database.display(), locate::describe(header))
        }
        _ => Ok(()),
    }
}

/// Opens a connection that sees every commit. Duralite refuses to open a plain database while a program without
/// Duralite has it open. In that case this function opens the database through SQLite's own VFS, which also sees every
/// commit, because a plain database has no log.
fn open(database: &Path, settings: &Settings) -> Result<Connection> {
    settings.variables()?;
    let mut given = settings.pairs()?;
    given.push(("strict", "off"));
    let path = std::path::absolute(database)?;
    let through = duralite::uri(&path, &given);
    let plain = through.replacen("vfs=duralite", "vfs=unix", 1);
    if matches!(offline::inspect(database)?, DatabaseHeader::Plain { .. }) {
        let opened = try_open(&through, SHORTLY).or_else(|_| try_open(&plain, SHORTLY));
        if let Ok(conn) = opened {
            return Ok(conn);
        }
    }
    try_open(&through, PATIENCE).map_err(|error| {
        let refused = duralite::last_error().unwrap_or_else(|| error.to_string());
        anyhow!("{}: {refused}", database.display())
    })
}

fn try_open(uri: &str, patience: Duration) -> rusqlite::Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(uri, flags)?;
    conn.busy_timeout(patience)?;
    conn.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    conn.busy_timeout(PATIENCE)?;
    Ok(conn)
}

/// Copies all pages and returns their number.
fn copy(source: &Connection, to: &Path) -> Result<u64> {
    let mut copy = Connection::open_with_flags(
        duralite::uri(std::path::absolute(to)?, &[("strict", "off")]).replacen("vfs=duralite", "vfs=unix", 1),
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_URI,
    )?;
    // The copy has no final name until it is complete, so one sync at the end is enough.
    copy.execute_batch("PRAGMA synchronous=OFF; PRAGMA journal_mode=OFF")?;
    let mode: String = source.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    let is_wal = mode == "wal";
    let (done, all) = (AtomicU64::new(0), AtomicU64::new(0));
    let how_far = || HowFar::of(done.load(Ordering::Relaxed), all.load(Ordering::Relaxed), "pages");
    progress::with("copying", how_far, || -> Result<()> {
        if is_wal {
            // Because of this snapshot, all steps of the backup read the same state of the database. The snapshot
            // blocks no writer, but the log cannot start again from its beginning while the snapshot exists.
            hold(source)?;
        }
        let backup = Backup::new(source, &mut copy)?;
        let (mut beginnings, mut left, mut since) = (1, i32::MAX, Instant::now());
        loop {
            let step = backup.step(if beginnings > BEGINNINGS { -1 } else { STEP })?;
            let seen = backup.progress();
            all.store(u64::from(seen.pagecount.unsigned_abs()), Ordering::Relaxed);
            done.store(u64::from((seen.pagecount - seen.remaining).unsigned_abs()), Ordering::Relaxed);
            match step {
                StepResult::Done => return Ok(()),
                StepResult::More => {
                    match seen.remaining.cmp(&left) {
                        Greater => beginnings += 1,
                        Less => since = Instant::now(),
                        _ => {}
                    }
                    left = seen.remaining;
                }
                _ if since.elapsed() > PATIENCE => bail!("the database is locked; nothing was copied"),
                _ => {}
            }
            if !is_wal || step != StepResult::More {
                std::thread::sleep(TURN);
            }
        }
    })?;
    if is_wal {
        source.execute_batch("COMMIT")?;
    }
    Ok(all.into_inner())
}

/// Begins a read transaction, and reads once, so that SQLite takes the snapshot now.
fn hold(source: &Connection) -> Result<()> {
    source.execute_batch("BEGIN")?;
    Ok(source.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?)
}

/// Gives the copy its final name, and the permissions of the database. When this function returns, the copy's data,
/// permissions and name are durable.
fn publish(temporary: NamedTempFile, database: &Path, out: &Path) -> Result<()> {
    let failed = || format!("write {}", out.display());
    let mode = database.metadata().with_context(failed)?.permissions().mode() & 0o777;
    let file = temporary.as_file();
    file.set_permissions(Permissions::from_mode(mode)).with_context(failed)?;
    file.sync_all().with_context(failed)?;
    temporary.persist_noclobber(out).with_context(failed)?;
    Ok(placement::sync_names(out)?)
}

/// Returns SQLite's error text, followed by Duralite's reason if Duralite refused something.
fn reason(error: anyhow::Error, database: &Path, out: &Path) -> anyhow::Error {
    let own = duralite::last_error().map_or_else(String::new, |own| format!(" ({own})"));
    anyhow!("copy {} into {}: {error}{own}", database.display(), out.display())
}
