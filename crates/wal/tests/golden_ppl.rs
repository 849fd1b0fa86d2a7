//! The golden file of the `ppl` format. The tests check what the file means, and that the current code still writes the
//! same bytes, except for the bytes that recovery rebuilds. For a new version of the format, `DURALITE_REGENERATE=1
//! cargo test -p duralite-wal --test all golden_ppl::` writes the file again. The stored file lacks the zeros at its
//! end.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed expectation is a failed test")]

use crate::common;

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::Rng;
use duralite_crashmodel::RecordingNvm;
use duralite_format::FormatError;
use duralite_format::ppl::{STATE_BYTES, Superblock};
use duralite_format::sqlite_wal::{WalHeader, make_wal_header};
use duralite_medium::{LocalSegment, Nvm as _};
use duralite_wal::engine::home::DatabaseFile;
use duralite_wal::engine::prelude::*;
use duralite_wal::engine::{Commit, Engine as _};
use duralite_wal::engines::ppl::{Ppl, SHARED_BYTES};
use duralite_wal::{LogError, PplOptions};

const PAGE: usize = 512;
const PAGES: u32 = 6;
const TRANSACTIONS: u64 = 40;

fn superblock() -> Superblock {
    Superblock {
        head: common::head(PAGE as u32),
        sector_bytes: 4096,
        limit_chunks: 1,
        usual_chunks: 1,
        slots: 8,
        buckets: 16,
    }
}

fn file_bytes() -> usize {
    superblock().geometry().file_bytes(1) as usize
}

/// A database file in memory. A test can tear its writes, and make its syncs fail.
#[derive(Default)]
struct Database {
    bytes: RefCell<Vec<u8>>,
    tears: Cell<bool>,
}

impl DatabaseFile for Database {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<usize, LogError> {
        let bytes = self.bytes.borrow();
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write(&self, new: &[u8], offset: u64) -> Result<(), LogError> {
        let mut bytes = self.bytes.borrow_mut();
        let end = offset as usize + new.len();
        let length = bytes.len().max(end);
        bytes.resize(length, 0);
        let place = &mut bytes[offset as usize..end];
        if self.tears.get() {
            place.fill(0xEE)
        } else {
            place.copy_from_slice(new)
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), LogError> {
        if self.tears.get() { Err(LogError::BaseVfs { op: "sync", code: 10 }) } else { Ok(()) }
    }

    fn size(&self) -> Result<u64, LogError> {
        Ok(self.bytes.borrow().len() as u64)
    }

    fn truncate(&self, bytes: u64) -> Result<(), LogError> {
        self.bytes.borrow_mut().truncate(bytes as usize);
        Ok(())
    }
}

/// Returns a log, the database file, and the pages that result from both. Some pages of the log have one record, some
/// have many, and some have pieces of the pool. Merges have removed or relocated the logs of some pages. One slot
/// holds the image of a page that is torn in the file.
fn good() -> (Vec<u8>, Database, Vec<Vec<u8>>) {
    let nvm = Arc::new(RecordingNvm::new(0, file_bytes() as u64));
    Ppl::format(nvm.as_ref(), &superblock()).expect("format");
    let segment = Arc::new(LocalSegment::new(SHARED_BYTES));
    let options = PplOptions { overflow_bytes: 0, ..PplOptions::default() };
    let mut log = Ppl::attach(nvm.clone(), Path::new("good"), &options, segment, 0, true).expect("attach");
    log.set_clock(common::ticking_clock());
    let database = Database::default();
    database.write(&vec![0; PAGE * PAGES as usize], 0).expect("a file");
    let header = WalHeader::parse(&make_wal_header(PAGE as u32, 1, [1, 2])).expect("a header");
    log.begin_generation(&database, Some(&header)).expect("a generation");
    let home = log.home().expect("a home");
    let mut pages = vec![vec![0; PAGE]; PAGES as usize];
    let mut rng = Rng(2015);
    for (first_frame, number) in (1..).zip(0..TRANSACTIONS) {
        // Page 2 is written once. Page 3 is written almost every time, and completely.
        let page_number = match number {
            0 => 2,
            _ if number % 7 == 3 => 4 + (number % 3) as u32,
            _ => 3,
        };
        let page = &mut pages[page_number as usize - 1];
        let count = if page_number == 3 { PAGE } else { 20 };
        (0..count).for_each(|at| page[(at * 13) % PAGE] = rng.next() as u8);
        log.stage(&database, first_frame, page_number, page).expect("stage");
        let commit =
            Commit { first_frame, last_frame: first_frame, db_pages: PAGES, checksum: [number as u32, 7] };
        log.seal(&database, &commit).expect("seal");
        if [12, 25, 38].contains(&number) {
            // Do SQLite's checkpoint of what has been committed so far.
            for (number, page) in (1u64..).zip(&pages).skip(1) {
                home.write(&database, page, (number - 1) * PAGE as u64).expect("home");
            }
            database.tears.set(number == 38);
            assert_eq!(home.sync(&database).is_err(), number == 38);
            database.tears.set(false);
        }
    }
    let mut bytes = vec![0; file_bytes()];
    nvm.read(0, &mut bytes);
    (bytes, database, pages)
}

/// Clears the parts that recovery rebuilds: the page table, and the states of extents.
fn without_states(mut bytes: Vec<u8>) -> Vec<u8> {
    let geometry = superblock().geometry();
    bytes[geometry.buckets_offset as usize..geometry.chunks_offset as usize].fill(0);
    for extent in geometry.extents_of(0) {
        let at = geometry.state_offset(extent) as usize;
        bytes[at..at + STATE_BYTES as usize].fill(0);
    }
    bytes
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/format/ppl-v1/good.ppl")
}

fn stored() -> Vec<u8> {
    let mut bytes = std::fs::read(file()).expect("a golden file");
    bytes.resize(file_bytes(), 0);
    bytes
}

fn medium(bytes: &[u8]) -> Arc<RecordingNvm> {
    let nvm = RecordingNvm::new(bytes.len() as u64, bytes.len() as u64);
    nvm.store(0, bytes);
    Arc::new(nvm)
}

/// Returns the pages that result from a log and a database file together.
fn pages_of(bytes: &[u8], database: &Database) -> Result<Vec<Vec<u8>>, LogError> {
    let log = Ppl::open_read_only(medium(bytes), Path::new("golden"))?;
    let home = log.home().expect("a home");
    (0..u64::from(PAGES))
        .map(|page| {
            let mut bytes = vec![0; PAGE];
            home.read(database, &mut bytes, page * PAGE as u64).map(|_| bytes)
        })
        .collect()
}

#[test]
fn what_is_written_today_is_what_is_stored() {
    let (bytes, ..) = good();
    let bytes = without_states(bytes);
    if std::env::var_os("DURALITE_REGENERATE").is_some() {
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        std::fs::write(file(), &bytes[..end]).expect("write");
    }
    assert!(stored() == bytes, "the format has changed");
}

#[test]
fn the_golden_log_means_what_it_meant() {
    let (_, database, expected) = good();
    assert!(pages_of(&stored(), &database).expect("sound") == expected);
    assert_ne!(database.bytes.borrow()[2 * PAGE..3 * PAGE], expected[2], "page 3 is torn in the file");
    let log = Ppl::open_read_only(medium(&stored()), Path::new("golden")).expect("sound");
    assert_eq!(log.position(), TRANSACTIONS);
    let mut records = 0;
    log.walk(&database, &mut |transaction| records += transaction.records.len()).expect("walk");
    assert!((10..TRANSACTIONS as usize).contains(&records), "{records} records, others are merged");
    // Recovery and a drain lead to the same pages.
    let segment = Arc::new(LocalSegment::new(SHARED_BYTES));
    let (options, nvm) = (PplOptions::default(), medium(&stored()));
    let log = Ppl::attach(nvm, Path::new("golden"), &options, segment, 0, true).expect("attach");
    log.home().expect("a home").drain(&database).expect("drain");
    assert!(*database.bytes.borrow() == expected.concat());
}

#[test]
fn damaged_golden_logs_are_refused() {
    let (_, database, _) = good();
    let geometry = superblock().geometry();
    let damaged = |at: usize| {
        let mut bytes = stored();
        bytes[at] ^= 0x10;
        pages_of(&bytes, &database)
    };
    assert!(matches!(damaged(8), Err(LogError::Format { source: FormatError::LogVersion { .. }, .. })));
    assert!(matches!(damaged(0), Err(LogError::Format { source: FormatError::Magic, .. })));
    assert!(matches!(damaged(1090), Err(LogError::Format { .. })));
    // Damage a commit in the transaction log, and the payload of a page's first record.
    assert!(matches!(damaged(4096 + 64 * 20 + 24), Err(LogError::Corrupt { .. })));
    let extent = geometry.extents_of(0).next().expect("a sector");
    assert!(damaged(geometry.extent_offset(extent) as usize + 32 + 16 + 3).is_err());
}
