//! Takes an archive over, so that the database on this machine becomes the primary.
//!
//! The archive's protocol sets the order of the steps. First comes the claim, which fences the previous primary. Then
//! the new primary lists what the previous one has acknowledged, and brings its database to exactly that state. Then
//! come the start record and a snapshot. Before the claim, this code checks as far as it can that the later steps will
//! succeed. If something fails after the claim, the file beside the copy still exists, and the user can run the same
//! command again.

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
/// The database exists, but is not a copy of this archive; a program is using it; the archive is empty; another primary
/// has taken the archive over meanwhile; an error of a restore.
pub fn run(runtime: &Handle, url: &str, config: Database) -> Result<()> {
    let database = &config.path.clone();
    let archive = Archive::open(&url.parse()?)?;
    // An earlier run of this command may have died after its claim. Then a log may still guard the copy, and stock
    // SQLite would refuse the copy.
    if let Ok(DatabaseHeader::Guarded { .. }) = offline::inspect(database) {
        hold::close(database, &config.pairs()).context("take the log of an earlier attempt home")?;
    }
    // A process cannot have a connection to the copy and hold the sidecar's lock at the same time. So this code keeps
    // the copy open only while it changes the copy.
    let mut standby = Replica::open(runtime, &archive, url, database, Target::Latest)?;
    // Catching up also checks whether the page size is still the same.
    standby.catch_up(runtime, &archive, &AtomicBool::new(false)).context("bring the copy up to date")?;
    drop(standby.close()?);
    // The copy can get a log only if no other process has it open at that moment. This call checks whether that is so.
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
