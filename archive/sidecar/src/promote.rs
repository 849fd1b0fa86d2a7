//! Takes an archive over, so that this machine's database becomes the primary.
//!
//! The archive's protocol sets the order. First comes the claim, which fences the previous primary. Then the new
//! primary lists what the previous one has acknowledged, and brings the database to exactly that state. Then come
//! the start record and a snapshot. Before the claim, this code checks that the later steps can succeed, as far as
//! it can find out. If something fails after the claim, the file beside the copy is still there, and the user can
//! run the same command again.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, bail};
use duralite_archive::{Archive, Target};
use duralite_cli::output::print_text;
use duralite_format::guard::DatabaseHeader;
use duralite_wal::log::offline;
use tokio::runtime::Handle;

use crate::config::Database;
use crate::hold;
use crate::replica::Replica;
use crate::replicate::{Replicator, Until};

/// Makes a database the primary of an archive.
///
/// # Errors
/// The database exists and is no copy of this archive; a program is using it; the archive is empty; another primary
/// has taken the archive over meanwhile; an error of a restore.
pub fn run(runtime: &Handle, url: &str, config: Database) -> Result<()> {
    let database = &config.path.clone();
    let archive = Archive::open(&url.parse()?)?;
    // If an attempt has died after its claim, a log may still guard the copy, and then stock SQLite refuses the copy.
    if let Ok(DatabaseHeader::Guarded { .. }) = offline::inspect(database) {
        hold::close(database, &config.pairs()).context("take the log of an earlier attempt home")?;
    }
    // One process cannot have a connection to the copy and hold the sidecar's lock at once. So the copy is open only
    // while this code changes it.
    let mut standby = Replica::open(runtime, &archive, url, database, Target::Latest)?;
    // Catching up also checks whether the page size is still the same.
    standby.catch_up(runtime, &archive, &AtomicBool::new(false)).context("bring the copy up to date")?;
    drop(standby.close()?);
    // To get a log, the copy must have no other user for a moment. This call tries whether that is so.
    hold::close(database, &config.pairs()).with_context(|| {
        format!(
            "nothing was taken over, because {} cannot be had alone; end the programs that read it",
            database.display()
        )
    })?;
    let config = Database { archive: Some(url.to_owned()), ..config };
    let mut replicator =
        Replicator::new(config, runtime.clone(), Arc::new(AtomicBool::new(false)), Until::Drained)?;
    let claimed = replicator.claim()?;
    let Some(inherited) = runtime.block_on(claimed.inherited())? else {
        bail!(
            "{url} has nothing that a database could be restored from; duralite replicate begins an archive"
        );
    };
    let mut standby = Replica::open(runtime, &archive, url, database, Target::Latest)?;
    standby.move_to(runtime, &archive, Target::Txid(inherited.end)).context("bring the copy up to date")?;
    let beside = standby.close()?;
    let generation = replicator.take_over(claimed, &inherited)?;
    beside.remove()?;
    print_text(&format!(
        "{} is the primary of {url} from transaction {} on, in generation {generation}; duralite replicate {} goes on\n",
        database.display(),
        inherited.end + 1,
        database.display()
    ))
}
