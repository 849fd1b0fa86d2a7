//! Counts conflicts, tells the application why a transaction was overtaken, and lists the pages on which
//! transactions were overtaken.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use duralite_sqlite_ffi as ffi;
use duralite_wal::metrics::Counter;

use super::owners::owners;
use super::pages::read_page;
use super::shared_index::SharedIndex;
use super::snapshot::Snapshot;
use super::state::{Concurrent, Write};
use crate::attachment::Attachment;
use crate::attachment::conflicts::HotPage;
use crate::database::{Db, Serving};
use crate::errors::Failure;

/// The largest number of pages that this VFS reads to find the table or index of a page on which a
/// transaction was overtaken. That transaction holds WRITE during the search, so this VFS searches only at
/// the first, the second, the fourth, the eighth conflict on a page, and so on.
const READS_OF_CONFLICT: usize = 64;
/// The largest number of pages that this VFS reads when the application asks for the owners of pages.
const READS_OF_QUESTION: usize = 10_000;

/// The reason why a transaction cannot commit.
pub(super) enum Conflict {
    /// Another transaction has written this page, which this transaction has read or written.
    Page(u32),
    /// The database has become smaller.
    Shrunk,
    /// So much was committed since the snapshot that this VFS no longer knows which pages were written.
    Unknown,
    /// A checkpoint keeps writers out until this transaction is over.
    Checkpoint,
    /// The transaction has kept the log from starting over for too long.
    Overdue,
}

/// Returns the failure that says why a transaction cannot continue. The message tells what to do, and where
/// the conflict was.
#[cold]
pub(super) fn overtaken(db: &Db, conflict: &Conflict) -> Failure {
    let owner = record(db, conflict);
    let why = match (conflict, owner) {
        (Conflict::Page(page), Some(owner)) => {
            format!("another transaction has changed page {page} ({owner}), which this one uses")
        }
        (Conflict::Page(page), None) => {
            format!("another transaction has changed page {page}, which this one uses")
        }
        (Conflict::Shrunk, _) => "another transaction has made the database smaller".to_owned(),
        (Conflict::Unknown, _) => "others have committed too much meanwhile".to_owned(),
        (Conflict::Checkpoint, _) => "a checkpoint waits for its end".to_owned(),
        (Conflict::Overdue, _) => "it has kept the log from starting over for too long".to_owned(),
    };
    let message = format!(
        "a transaction of {} was overtaken: {why}; roll it back, unless COMMIT has, and run it again (PRAGMA \
         duralite_conflicts lists the pages on which this happens)",
        db.path.display()
    );
    Failure::new(ffi::BUSY_SNAPSHOT, message).because_of("a transaction was overtaken")
}

/// Counts a conflict. Returns the table or index to which its page belongs, if that is known. If the
/// transaction has read nothing, SQLite itself begins it again, so the conflict does not count.
fn record(db: &Db, conflict: &Conflict) -> Option<String> {
    let concurrent = db.concurrent()?;
    let is_begun = db.host.is_in_transaction(db.sqlite).unwrap_or(false);
    let begins_anew = !is_begun || db.host.has_read_nothing(db.sqlite);
    if begins_anew && concurrent.state().write == Write::Not {
        return None;
    }
    let attachment = &concurrent.attachment;
    attachment.count(match conflict {
        Conflict::Page(1) => Counter::SchemaConflicts,
        Conflict::Page(_) => Counter::PageConflicts,
        Conflict::Shrunk => Counter::ShrinkConflicts,
        Conflict::Unknown | Conflict::Checkpoint | Conflict::Overdue => Counter::UnknownConflicts,
    });
    let Conflict::Page(page) = conflict else { return None };
    let hot = attachment.conflicts().add(*page, Instant::now());
    if !hot.count.is_power_of_two() {
        return hot.owner;
    }
    let owner = concurrent.owner(db, *page);
    attachment.conflicts().set_owner(*page, owner.as_deref());
    owner
}

impl Concurrent {
    /// Returns the table or index that a page belongs to in the transaction's own snapshot.
    fn owner(&self, db: &Db, page: u32) -> Option<String> {
        let snapshot = self.state().snapshot?;
        let read = |page| if snapshot.may_have(page) { self.page_at(db, &snapshot, page).ok() } else { None };
        owners(&BTreeSet::from([page]), READS_OF_CONFLICT, read).remove(&page)
    }
}

impl Db {
    /// Returns the pages on which transactions of this process were overtaken. The pages with the most
    /// conflicts come first. The owner of a page is the table or index to which it belongs at the newest
    /// commit. If the connection does not use the log yet, or uses it for rollback journals, this function
    /// cannot look for the owners, and returns those that were found earlier.
    pub fn hot_pages(&self) -> Vec<HotPage> {
        let served = self.serving();
        let is_wal = served.as_ref().is_some_and(|(_, serving)| *serving == Serving::Wal);
        let attachment = match served {
            Some((attachment, _)) => Some(attachment),
            None => self.identity().ok().and_then(|identity| Attachment::here(&identity)),
        };
        let Some(attachment) = attachment else { return Vec::new() };
        let mut list = attachment.conflicts().list();
        if list.is_empty() || !is_wal || attachment.outside().is_some() {
            return list;
        }
        let wanted = list.iter().map(|hot| hot.page).collect();
        if let Some(mut found) = self.owners_now(&attachment, &wanted) {
            for hot in &mut list {
                hot.owner = found.remove(&hot.page);
                attachment.conflicts().set_owner(hot.page, hot.owner.as_deref());
            }
        }
        list
    }

    /// Returns the tables and indexes that pages belong to at the newest commit. The function takes a read
    /// mark of its own, because the connection may be in a transaction that reads an older state, or in no
    /// transaction. Returns `None` if no mark is free.
    fn owners_now(&self, attachment: &Attachment, wanted: &BTreeSet<u32>) -> Option<BTreeMap<u32, String>> {
        let index = SharedIndex::of(attachment);
        // A connection in exclusive locking mode keeps its wal-index for itself.
        index.header().ok()??;
        let gone = || Failure::new(ffi::BUSY, "the wal-index is being recovered");
        let header = || index.header()?.ok_or_else(gone);
        let holder = attachment.locks().holder();
        let snapshot = Snapshot::take(index, &holder, header).ok()?;
        let page_bytes = attachment.log().page_bytes() as usize;
        let found = owners(wanted, READS_OF_QUESTION, |page| {
            let mut image = vec![0; page_bytes];
            let is_read =
                snapshot.may_have(page) && read_page(self, index, &snapshot, page, &mut image).is_ok();
            is_read.then_some(image)
        });
        snapshot.release(&holder);
        Some(found)
    }
}
