//! Walking a log, for `duralite verify`: by the code that recovers.

use duralite_logfmt::page_change::{self, ChangeKind};
use duralite_logfmt::ppl::{RECORD_HEADER_BYTES, TransactionRecord};

use super::chain::Walk;
use super::pages::Pages;
use super::{Ppl, files};
use crate::JournalError;
use crate::descriptor::OpenFile;
use crate::engine::prelude::*;
use crate::home::DatabaseFile;
use crate::walk::{WalkSummary, WalkedRecord, WalkedTransaction};

/// Visits every committed transaction of which there are records, in order; checks every record, and rebuilds every page
/// over the one in the database file. Stores nothing.
pub(super) fn walk(
    log: &OpenFile<'_>,
    file: &dyn DatabaseFile,
    visit: &mut dyn FnMut(&WalkedTransaction),
) -> Result<WalkSummary, JournalError> {
    files::look_at(log)?.walk(file, visit)
}

impl Ppl {
    /// The same for a log that is open read-only.
    ///
    /// # Errors
    /// `Corrupt`; what reading the database file says.
    pub fn walk(
        &self,
        file: &dyn DatabaseFile,
        visit: &mut dyn FnMut(&WalkedTransaction),
    ) -> Result<WalkSummary, JournalError> {
        let mut records = records_of(self)?;
        records.sort_by_key(|(number, record)| (*number, record.page_number));
        for (sequence, records) in (1u32..).zip(records.chunk_by(|one, other| one.0 == other.0)) {
            let number = records.first().map_or(0, |(number, _)| *number);
            visit(&WalkedTransaction {
                sequence,
                offset: TransactionRecord::offset(number),
                first_frame: 0,
                last_frame: 0,
                db_pages: 0,
                order: "ppl",
                records: records.iter().map(|(_, record)| record.clone()).collect(),
            });
        }
        self.check_pages(file)?;
        Ok(WalkSummary {
            generation: 1,
            transactions: u32::try_from(self.position()).unwrap_or(u32::MAX),
            frames: 0,
            retired: self.is_spent(),
            mismatch: None,
        })
    }
}

/// Every record that counts, with its transaction. All of them are checked.
fn records_of(log: &Ppl) -> Result<Vec<(u64, WalkedRecord)>, JournalError> {
    let store = &log.store;
    let Pages::Scanned(chains) = &store.pages else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    let mut payload = Vec::new();
    for (page_number, chain) in chains {
        let mut walk = Walk::new(&store.area, &chain.extents, store.page_bytes);
        while let Some(record) = walk.next()? {
            if record.transaction > log.position() {
                break;
            }
            walk.payload(&record, *page_number, &mut payload)?;
            let record_bytes = RECORD_HEADER_BYTES + record.payload_bytes;
            let whole = page_change::kind(&payload) == Ok(ChangeKind::Whole);
            let page_number = *page_number;
            let walked =
                WalkedRecord { offset: record.at, frame: 0, page_number, record_bytes, ranges: 0, whole };
            found.push((record.transaction, walked));
        }
    }
    Ok(found)
}
