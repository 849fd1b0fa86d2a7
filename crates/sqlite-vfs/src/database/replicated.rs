//! The end of every commit ([`commit`]), with `replicated=on` or without.
//!
//! `replicated=on`: a commit returns once its transaction is in the archive (invariant 70).
//!
//! The transaction is committed, durable and visible in this database before it is in the archive, because
//! the sidecar reads it from the log. So a commit that the sidecar cannot replicate in time fails although
//! the transaction is in this database. The error says so. A connection that also has `read_durable` reads no
//! transaction before the transaction is in the archive (invariant 71).
//!
//! Only a transaction that a log serves as a WAL can be replicated. [`super::strict`] refuses other
//! transactions before they change anything, as far as it can. If such a transaction commits all the same,
//! [`check_plain`] makes the commit fail.

use std::path::Path;
use std::time::Duration;

use duralite_format::guard::{DatabaseHeader, JournalKind};
use duralite_sqlite_ffi as ffi;
use duralite_wal::archive::ArchiveFile;
use duralite_wal::engine::wall_clock;
use duralite_wal::log::follow;
use duralite_wal::shared::archived::{Archived, NotArchived, Sidecar};

use super::{Db, super_journal};
use crate::attachment::Attachment;
use crate::errors::{During, Failure};

const COMMITTED: &str = "committed here, not in the archive";
const UNREADABLE: &str = "what this transaction would read is committed here, not in the archive";

/// Ends a commit for SQLite. Waits until the transaction is durable. If this connection has `replicated=on`,
/// also waits until the transaction is in the archive.
pub fn commit(db: &Db) -> Result<(), Failure> {
    db.wait_durable(|attachment, position| wait(db, attachment, position))?;
    check_plain(db)
}

/// Waits until the archive holds all commits before this position, if this connection has `replicated=on`.
fn wait(db: &Db, attachment: &Attachment, position: u64) -> Result<(), Failure> {
    match limit(db) {
        Some(limit) => wait_for(db, attachment, position, limit, COMMITTED),
        None => Ok(()),
    }
}

/// If this connection has `replicated=on`, waits until the archive holds everything that a reader may see
/// under the read mark that it has just taken.
pub fn wait_to_read(db: &Db, attachment: &Attachment) -> Result<(), Failure> {
    let Some(limit) = limit(db) else { return Ok(()) };
    let published = attachment.log().published(attachment.indexed_frames());
    let (position, newest) = published.map_err(|error| Failure::of(&error, During::Read))?;
    if attachment.archived().look().position >= position {
        return Ok(());
    }
    if let Some(newest) = newest {
        // The committer may have died after it had published the commit and before it acknowledged the
        // commit. The sidecar would then leave the commit out until another commit follows. So acknowledge
        // the commit here. This reader has the commit in its snapshot, so no other commit can replace it any
        // more.
        follow::acknowledge(attachment.segment(), newest);
    }
    wait_for(db, attachment, position, limit, UNREADABLE)
}

/// Returns how long a commit of this connection waits for the archive, or `None` if it does not wait.
fn limit(db: &Db) -> Option<Duration> {
    let settings = db.settings();
    settings.replicated.then(|| Duration::from_millis(settings.replicated_timeout))
}

fn wait_for(
    db: &Db,
    attachment: &Attachment,
    position: u64,
    limit: Duration,
    what: &str,
) -> Result<(), Failure> {
    let waited = match sidecar(db, attachment) {
        // The archive may have got the commit before another primary took the archive over.
        Sidecar::Fenced if attachment.archived().look().position < position => Err(NotArchived::Fenced),
        Sidecar::Fenced => Ok(()),
        _ => attachment.archived().wait(position, limit),
    };
    waited.map_err(|why| failed(&db.path, what, why, limit))
}

/// Returns what is known about the sidecar. A sidecar that finds that another primary has taken the archive
/// over says so in the shared memory, and records it in a file beside the database. The shared memory may be
/// gone by now, so if no sidecar runs, this function also looks at that file.
fn sidecar(db: &Db, attachment: &Attachment) -> Sidecar {
    let known = attachment.archived().look().sidecar;
    let is_there = !matches!(known, Sidecar::None | Sidecar::Died);
    if is_there || !db.identity().is_ok_and(|identity| ArchiveFile::is_fenced(&identity)) {
        return known;
    }
    Sidecar::Fenced
}

fn failed(path: &Path, what: &str, why: NotArchived, limit: Duration) -> Failure {
    let (path, limit) = (path.display(), limit.as_millis());
    let why = match why {
        NotArchived::Fenced | NotArchived::Late(Sidecar::Fenced) => format!(
            "another primary has taken the archive of {path} over, and nothing that is committed here gets into it any \
             more; stop writing here, and go on at the new primary"
        ),
        NotArchived::Late(Sidecar::Runs) => format!(
            "the sidecar of {path} has not acknowledged it within {limit} ms (replicated_timeout); it follows once the \
             store can be reached, see the messages of `duralite replicate`"
        ),
        NotArchived::Late(Sidecar::None) => {
            format!("no sidecar runs for {path}, and none came within {limit} ms; start `duralite replicate`")
        }
        NotArchived::Late(Sidecar::Died) => format!(
            "the sidecar of {path} has died, and none came within {limit} ms; start `duralite replicate` again"
        ),
    };
    Failure::new(ffi::IOERR_FSYNC, format!("{what}: {why}"))
}

/// Refuses to seal a transaction if SQLite commits it to several files with a super-journal. SQLite ignores
/// failures in the second phase of such a commit, so the application would not learn that the transaction is
/// not in the archive.
pub fn check_commit(db: &Db) -> Result<(), Failure> {
    if !super_journal::is_open() || limit(db).is_none() {
        return Ok(());
    }
    let message = format!(
        "replicated=on refuses a transaction that changes {} together with databases that are not in WAL mode: set \
         journal_mode=WAL in all of them",
        db.path.display()
    );
    Err(Failure::new(ffi::READONLY, message))
}

/// Fails a commit that no log has served, unless that commit has set WAL mode.
fn check_plain(db: &Db) -> Result<(), Failure> {
    let has_written = db.end_plain_write();
    if !has_written || db.is_active() || limit(db).is_none() {
        return Ok(());
    }
    match db.header()? {
        DatabaseHeader::Plain { wal: true, .. } | DatabaseHeader::Guarded { kind: JournalKind::Wal, .. } => {
            Ok(())
        }
        _ => {
            let path = db.path.display();
            let message = format!("{COMMITTED}: {path} is not in WAL mode; set PRAGMA journal_mode=WAL");
            Err(Failure::new(ffi::IOERR_FSYNC, message))
        }
    }
}

/// Returns the rows of the status that say how much of the log is archived.
pub fn status(db: &Db, attachment: &Attachment) -> Vec<(&'static str, String)> {
    let Archived { position, behind: shown, .. } = attachment.archived().look();
    let sidecar = sidecar(db, attachment);
    let mut status = vec![("archive", sidecar.as_str().to_owned())];
    if matches!(sidecar, Sidecar::None | Sidecar::Fenced) && position == 0 {
        return status;
    }
    let mut log = attachment.log();
    // Ignore an error, because the next commit meets and reports it.
    let mut behind = log.behind(position).unwrap_or_default();
    if behind.transactions > 0 {
        // The sidecar may hold commits that are not in the archive yet and that the log no longer has. So
        // count what the sidecar reports too.
        behind.bytes = behind.bytes.max(shown.bytes);
        behind.since_ms =
            [behind.since_ms, shown.since_ms].into_iter().filter(|since| *since > 0).min().unwrap_or(0);
    }
    let since = Some(behind.since_ms).filter(|since| *since > 0);
    let lag = since.map_or(0, |since| wall_clock().saturating_sub(since));
    status.extend([
        ("log_position", log.position().to_string()),
        ("archive_position", position.to_string()),
        ("archive_lag_transactions", behind.transactions.to_string()),
        ("archive_lag_bytes", behind.bytes.to_string()),
        ("archive_lag_ms", lag.to_string()),
    ]);
    status
}
