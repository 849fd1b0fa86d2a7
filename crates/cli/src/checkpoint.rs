//! `duralite checkpoint`: writes the pages of a log into the database file, so that the database is one plain SQLite
//! file again.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use duralite_cli::output::{print_json, print_text};
use duralite_format::guard::{self, DatabaseHeader};
use duralite_wal::engine::home::DatabaseAt;
use duralite_wal::log::offline;
use duralite_wal::placement::{self, Claim, FoundLog};
use duralite_wal::{DatabaseIdentity, ErrorKind};
use serde_json::json;

use crate::discard::{self, Lost};
use duralite_cli::locate;
use duralite_cli::progress::{self, HowFar};
use duralite_cli::target::Target;

/// What the user wants the command to do with the log.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// Whether a copy of the original database may take over the log.
    pub(crate) adopt: bool,
    /// Whether to give up the commits of a log that is lost or damaged.
    pub(crate) discard_log: bool,
    /// Whether to go on without asking for consent.
    pub(crate) yes: bool,
}

pub(crate) fn run(target: &Target, wanted: Wanted) -> Result<ExitCode> {
    let Wanted { adopt, discard_log, yes } = wanted;
    if locate::is_log(&target.path) {
        return of_log(target, wanted);
    }
    let path = &target.path;
    let header = offline::inspect(path)?;
    let log = match header {
        DatabaseHeader::Guarded { log_id, provisional, .. } => match locate::find(target, log_id) {
            Some(log) => log,
            None if provisional => {
                offline::discard_log(path, header)?;
                let text = format!("{} is a plain SQLite database now", path.display());
                return done(target, "checkpointed", &text);
            }
            None if discard_log => {
                return discard(target, &Lost { header, id: Some(log_id), damaged: None }, yes);
            }
            None => bail!(locate::missing(target, log_id)),
        },
        // This header does not say which log belongs to the database. But a log may say that it belongs to this
        // database.
        DatabaseHeader::Damaged | DatabaseHeader::NotSqlite => match locate::find_by_owner(target)? {
            Some(log) => log,
            None if discard_log && header == DatabaseHeader::Damaged => {
                return discard(target, &Lost { header, id: None, damaged: None }, yes);
            }
            None => bail!("{} is {}", path.display(), locate::describe(header)),
        },
        DatabaseHeader::Plain { .. } => {
            let text = format!("{} is {}", path.display(), locate::describe(header));
            return done(target, "nothing to do", &text);
        }
        DatabaseHeader::Empty => bail!("{} is {}", path.display(), locate::describe(header)),
    };
    if discard_log {
        let database = DatabaseAt::new(path);
        let walked = placement::look_through(&log.path, &database, &mut || (), &mut |_| ());
        if walked.as_ref().is_ok_and(|looked| looked.found.mismatch.is_none()) {
            bail!("the log is not lost: it is {}; checkpoint it, without --discard-log", log.path.display());
        }
        if let Err(error) = walked
            && (error.kind() == ErrorKind::Busy || error.is_other_version())
        {
            bail!(error);
        }
        return discard(target, &Lost { header, id: Some(log.id), damaged: Some(log.path) }, yes);
    }
    check_reserved(path, yes)?;
    checkpoint(target, path, &log, adopt)
}

/// How many bytes SQLite reserves at the end of each page for the checksum of the VFS `cksumvfs`.
const CHECKSUM_BYTES: u8 = 8;

/// Refuses a database whose pages may have checksums of `cksumvfs`, unless the user has said `--yes`. This command does
/// not compute such checksums for the pages that it writes.
fn check_reserved(database: &Path, yes: bool) -> Result<()> {
    let mut reserved = [0];
    File::open(database)?.read_at(&mut reserved, guard::RESERVED_BYTES as u64)?;
    if reserved[0] == CHECKSUM_BYTES && !yes {
        bail!(
            "{} keeps 8 bytes at the end of each page, as cksumvfs does. cksumvfs puts checksums there \
             whenever pages are written to the database file, and this command does not: open the database \
             once in a program with Duralite and cksumvfs, and close it. If no VFS uses these bytes, add \
             --yes",
            database.display()
        );
    }
    Ok(())
}

/// Checkpoints a log that the user named directly, into the database that the log was made for.
fn of_log(target: &Target, wanted: Wanted) -> Result<ExitCode> {
    if wanted.discard_log {
        bail!("{} is a log; --discard-log takes the database whose log is lost", target.path.display());
    }
    let about = placement::describe(&target.path)?;
    let path = target.path.canonicalize()?;
    let dir = path.parent().map(Path::to_path_buf).unwrap_or_default();
    // The database is still at the path that it had when the log was made, or it is beside the log because both were
    // moved.
    let name = about.database.file_name().unwrap_or_default();
    let database = [about.database.clone(), dir.join(name)].into_iter().find(|database| database.exists());
    let Some(database) = database else {
        bail!("the database of {}, {}, does not exist", path.display(), about.database.display())
    };
    let log = FoundLog { placement: locate::directory_of(about.engine, &dir), path, id: about.id };
    check_reserved(&database, wanted.yes)?;
    checkpoint(target, &database, &log, wanted.adopt)
}

fn checkpoint(target: &Target, database: &Path, log: &FoundLog, adopt: bool) -> Result<ExitCode> {
    let identity = DatabaseIdentity::of(database)?;
    // If the database was copied together with its log, no other database needs the copied log. So without `adopt`,
    // this function deletes the log after the checkpoint.
    let copied = placement::claim(log, &identity)? == Claim::Copy;
    let checkpointed = progress::with("checkpointing", HowFar::default, || {
        if copied && !adopt {
            offline::checkpoint_copy(&log.placement, database, log.id)
        } else {
            offline::checkpoint(&log.placement, database, log.id, adopt)
        }
    });
    let checkpointed = checkpointed.map_err(|error| match way_out(error.kind()) {
        Some(way_out) => anyhow!("{error}; nothing is lost: the log is as it was. {way_out}"),
        None => anyhow!(error),
    })?;
    let kept = checkpointed
        .kept
        .map_or_else(String::new, |log| format!("; the log was put aside as {}", log.display()));
    let text = format!(
        "{} pages written; {} is a plain SQLite database now{kept}",
        checkpointed.pages,
        database.display()
    );
    done(target, "checkpointed", &text)
}

/// Returns what the user can do if the command could not write a page to the database file. After such a failure, the
/// log still has all commits.
fn way_out(kind: ErrorKind) -> Option<&'static str> {
    match kind {
        ErrorKind::Full => Some("Free space on the file system of the database, and checkpoint again"),
        ErrorKind::ReadOnly => {
            Some("Checkpoint as a user who may write, on a file system mounted for writing")
        }
        _ => None,
    }
}

fn discard(target: &Target, lost: &Lost, yes: bool) -> Result<ExitCode> {
    let text = discard::discard(target, lost, yes)?;
    done(target, "discarded", &text)
}

fn done(target: &Target, outcome: &str, text: &str) -> Result<ExitCode> {
    if target.json {
        print_json(&json!({ "outcome": outcome, "message": text }))?;
    } else {
        print_text(&format!("{text}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}
