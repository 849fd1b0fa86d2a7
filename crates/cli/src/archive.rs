//! Sets and removes the archive of a database, for `duralite enable --archive` and `duralite disable`. To check an
//! object store, this module starts the program `duralite-archive`, which has the client for object stores.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Result, bail};
use duralite_wal::DatabaseIdentity;
use duralite_wal::archive::{ArchiveFile, new_token};

use crate::proof;

const PROGRAM: &str = "duralite-archive";

/// Replaces this process with `duralite-archive`, the only program that has a client for object stores.
pub(crate) fn run(first: &[&str], arguments: &proof::Arguments) -> Result<ExitCode> {
    proof::become_program(PROGRAM, "archive/sidecar", first, arguments)
}

/// Has `duralite-archive` check that the object store at a URL refuses to create a key that exists. If the store did
/// not refuse, an old primary could go on writing to the archive after another process has become the primary. Returns
/// a warning if `duralite-archive` cannot be run.
///
/// # Errors
/// The store is not suitable, or cannot be reached.
pub(crate) fn probe(url: &str) -> Result<Option<String>> {
    match Command::new(proof::program(PROGRAM)?).args(["probe", url]).status() {
        Ok(status) if status.success() => Ok(None),
        Ok(_) => bail!("{PROGRAM} refuses {url}, for the reason above; nothing was changed"),
        Err(error) => Ok(Some(format!(
            "the store was not tried, because {PROGRAM} cannot be run ({error}); `duralite replicate` tries it"
        ))),
    }
}

/// Records the URL of a database's archive in the file beside the database. Does not change a file that already names
/// this archive, because the file also holds the generation and the token with which the database writes to the
/// archive.
pub(crate) fn enable(database: &Path, url: &str) -> Result<()> {
    let identity = DatabaseIdentity::of(database)?;
    let known = ArchiveFile::open(&identity)?.filter(|found| found.is_of(&identity));
    let is_there = known.is_some_and(|found| found.records.owner.url == url);
    if !is_there {
        ArchiveFile::enable(&identity, url, 0, new_token()?)?;
    }
    Ok(())
}

/// Removes the record of a database's archive. Returns the archive's URL.
pub(crate) fn disable(database: &Path) -> Result<Option<String>> {
    let identity = DatabaseIdentity::of(database)?;
    let Some(found) = ArchiveFile::open(&identity)? else { return Ok(None) };
    let url = found.records.owner.url.clone();
    drop(found);
    Ok(ArchiveFile::disable(&identity)?.then_some(url))
}
