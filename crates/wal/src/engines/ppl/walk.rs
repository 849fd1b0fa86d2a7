//! Walking a log for `duralite verify`, with the code that recovers logs.

use duralite_format::page_change::{self, ChangeKind};
use duralite_format::ppl::{RECORD_HEADER_BYTES, TransactionRecord};

use super::chain::{Record, Walk};
use super::pages::Pages;
use super::{Ppl, files, salvage};
use crate::engine::descriptor::OpenFile;
use crate::engine::home::DatabaseFile;
use crate::engine::prelude::*;
use crate::engine::walk::{WalkSummary, WalkedRecord, WalkedTransaction};
use crate::{ErrorKind, LogError};

/// Visits, in order, every committed transaction of which the log has records. Checks every record, and rebuilds every page
/// from the one in the database file. In a damaged log it visits the transactions before the damage. Stores nothing.
pub(super) fn walk(
    log: &OpenFile<'_>,
    file: &dyn DatabaseFile,
    visit: &mut dyn FnMut(&WalkedTransaction),
) -> Result<WalkSummary, LogError> {
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

/// Visits transactions with their records, in the order of their numbers.
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

/// A page's record in the form that a walk shows.
fn walked(record: &Record, page_number: u32, whole: bool) -> WalkedRecord {
    let record_bytes = RECORD_HEADER_BYTES + record.payload_bytes;
    WalkedRecord { offset: record.at, frame: 0, page_number, record_bytes, ranges: 0, whole }
}

impl Ppl {
    /// Visits the committed transactions of a log that is open read-only, in order, and checks every record and page.
    ///
    /// # Errors
    /// `Corrupt`; the errors of reading the database file.
    pub fn walk(
        &self,
        file: &dyn DatabaseFile,
        visit: &mut dyn FnMut(&WalkedTransaction),
    ) -> Result<WalkSummary, LogError> {
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

/// All records of committed transactions, each with its transaction. Checks every record.
fn records_of(log: &Ppl) -> Result<Vec<(u64, WalkedRecord)>, LogError> {
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
