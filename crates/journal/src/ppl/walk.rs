//! Walking a log, for `duralite verify`: by the code that recovers.

use duralite_logfmt::page_change::{self, ChangeKind};
use duralite_logfmt::ppl::{RECORD_HEADER_BYTES, TransactionRecord};

use super::chain::{Record, Walk};
use super::pages::Pages;
use super::{Ppl, files, salvage};
use crate::descriptor::OpenFile;
use crate::engine::prelude::*;
use crate::home::DatabaseFile;
use crate::walk::{WalkSummary, WalkedRecord, WalkedTransaction};
use crate::{ErrorKind, JournalError};

/// Visits every committed transaction of which there are records, in order; checks every record, and rebuilds every page
/// over the one in the database file. Of a damaged log it visits those before the damage. Stores nothing.
pub(super) fn walk(
    log: &OpenFile<'_>,
    file: &dyn DatabaseFile,
    visit: &mut dyn FnMut(&WalkedTransaction),
) -> Result<WalkSummary, JournalError> {
    let mut visited = false;
    let result = files::look_at(log).and_then(|log| {
        log.walk(file, &mut |transaction| {
            visited = true;
            visit(transaction);
        })
    });
    match result {
        Err(error) if error.kind() == ErrorKind::Corrupt && !visited => {
            let found = salvage::records_before_damage(log)?;
            let found =
                found.iter().map(|(page, record, whole)| (record.transaction, walked(record, *page, *whole)));
            visit_all(found.collect(), visit);
            Err(error)
        }
        result => result,
    }
}

/// Visits transactions with their records, in order.
fn visit_all(mut found: Vec<(u64, WalkedRecord)>, visit: &mut dyn FnMut(&WalkedTransaction)) {
    found.sort_by_key(|(number, record)| (*number, record.page_number));
    for (sequence, records) in (1u32..).zip(found.chunk_by(|one, other| one.0 == other.0)) {
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
}

/// A record of a page, as it is shown.
fn walked(record: &Record, page_number: u32, whole: bool) -> WalkedRecord {
    let record_bytes = RECORD_HEADER_BYTES + record.payload_bytes;
    WalkedRecord { offset: record.at, frame: 0, page_number, record_bytes, ranges: 0, whole }
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
        visit_all(records_of(self)?, visit);
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
            let whole = page_change::kind(&payload) == Ok(ChangeKind::Whole);
            found.push((record.transaction, walked(&record, *page_number, whole)));
        }
    }
    Ok(found)
}
