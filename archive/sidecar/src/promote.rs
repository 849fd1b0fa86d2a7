//! Taking an archive over: this machine's database becomes its primary.
//!
//! The order is the one of the archive's protocol: the claim first, which fences the primary before; then the list of
//! what that primary has acknowledged; then the database is brought to exactly that; then the start record, and a
//! snapshot. What can be known to fail is tried before the claim. If something fails after it, the file beside the copy is
//! still there, and the same command can be run again.

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
/// The database exists and is no copy of this archive; a program is using it; the archive is empty; another primary has
/// taken it over meanwhile; those of a restore.
pub fn run(runtime: &Handle, url: &str, config: Database) -> Result<()> {
    let database = &config.path.clone();
    let archive = Archive::open(&url.parse()?)?;
    // An attempt that has died after its claim may have left the copy in use by a log, and stock SQLite refuses it then.
    if let Ok(DatabaseHeader::Guarded { .. }) = offline::inspect(database) {
        hold::close(database, &config.pairs()).context("take the log of an earlier attempt home")?;
    }
    // A connection to the copy and the sidecar's lock do not go together in one process, so the copy is open only while
    // it is changed.
    let mut standby = Replica::open(runtime, &archive, url, database, Target::Latest)?;
    // This also finds whether pages still have the same size.
    standby.catch_up(runtime, &archive, &AtomicBool::new(false)).context("bring the copy up to date")?;
    drop(standby.close()?);
    // A primary's log needs the copy for itself for a moment.
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
